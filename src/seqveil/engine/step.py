"""One event of many streams as a pure step, whichever mechanism the terms have: what sessions and streams are made of.

`step` takes what is public of B streams, what is private of them, and a raw symbol for each; it gives back what was
released and both parts of the state after it. `observe` is the same step as anyone sees it who has the releases. A
batch is a step of its own (`batches`), for it takes several symbols.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import Randomness
from seqveil.engine import blocks, stream
from seqveil.engine.blocks import ReleasedInBlocks
from seqveil.engine.secrets import Remembered
from seqveil.engine.state import Private, State
from seqveil.engine.stream import Released
from seqveil.engine.terms import Terms

Made = Released | ReleasedInBlocks


def step(
    setting: Terms, state: State, private: Private, codes: Ints, randomness: Randomness, times: Floats | None = None
) -> tuple[Made, State, Private]:
    """Release one symbol for each user and charge it.

    *Guarantee*: that of the mechanism (`stream.step`, `blocks.step`). What is private decides draws alone: it is in no
    release, and in no public state.

    >>> import numpy as np
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.core.randomness import SeededRandomness
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(epsilon=2.0, block=2).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> state, private = State.start(setting), Private.start(setting)
    >>> made, state, private = step(setting, state, private, np.array([1]), SeededRandomness(1))
    >>> made.places.tolist(), state.blocks.places.tolist(), private
    ([0], [1], Private(…))
    """
    if setting.in_blocks:
        return blocks.step(setting, state, private, codes, randomness, times)
    memory = Remembered(private.memory)
    released, after = stream.step(setting, state, codes, randomness, times, memory)
    return released, after, Private(private.bits, memory.states)


def observe(
    setting: Terms,
    state: State,
    codes: Ints,
    times: Floats | None = None,
    epsilons: Floats | None = None,
    forgot: NDArray[np.bool_] | None = None,
) -> tuple[Made, State]:
    """The same step as an observer sees it: the releases are given, nothing private is needed.

    `epsilons` are those of the record, where it is at hand: what was used whatever the budget says, and where blocks
    begin. `forgot` says of whom nothing was remembered from this event on.
    """
    if setting.in_blocks:
        return blocks.observe(setting, state, codes, times, epsilons)
    return stream.observe(setting, state, codes, times, epsilons, forgot)
