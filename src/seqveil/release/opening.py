"""The shape in which a secret's box opens with time, tuned on streams simulated from the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.secrets.bounds import Opening
from seqveil.release import guarded
from seqveil.release.setting import Setting
from seqveil.release.stream import State, step

SHAPES = (None, *(Opening(start, power) for start in (0.25, 0.5, 0.75) for power in (0.5, 1.0, 2.0)))


def tune_opening(
    model: MarkovModel,
    secrets: Secret | Sequence[Secret],
    *,
    length: int | None = None,
    users: int = 100,
    seed: int = 0,
    shapes: Sequence[Opening | None] = SHAPES,
    distortion: str | Distortion = "hamming",
) -> Opening | None:
    """The shape of the opening box that costs least on streams simulated from the model; None: a constant box.

    Parameters:
        model: the chain that streams follow.
        secrets: what is kept.
        length: events of a stream; none: those of the longest window.
        users: how many streams are simulated, the same for every shape.
        seed: of the simulation; the same seed gives the same answer.
        shapes: those that are tried; of equally good ones the first is taken.
        distortion: what a wrong symbol costs.

    What is compared is the expected cost of every kernel, not what its coins make of it, so that a hundred streams are
    enough to tell shapes apart. All this is public: it uses the model and no data.

    >>> from seqveil.core.secrets import ever
    >>> model = MarkovModel([0.9, 0.1], [[0.9, 0.1], [0.9, 0.1]])
    >>> tune_opening(model, ever(1, epsilon=0.5, window="first 6"), users=10, shapes=[None, Opening(0.5)])
    Opening(start=0.5, power=1.0)
    """
    wanted = (secrets,) if isinstance(secrets, Secret) else tuple(secrets)
    lengths = [one.length for one in wanted if one.length is not None]
    if length is None and not lengths:
        raise InputError("a box opens over windows of a known length, and these secrets have none; pass length")
    streams = model.sample(max(lengths) if length is None else length, users, seed=seed)
    costs = [
        _cost(Setting.of(model, "guarded", None, distortion, secrets=wanted, opening=one), streams.T, seed)
        for one in shapes
    ]
    return shapes[int(np.argmin(np.round(costs, 12)))]


def _cost(setting: Setting, events: np.ndarray, seed: int) -> float:
    """The mean expected cost of the kernels along simulated streams."""
    state, coins, total = State.start(setting, events.shape[1]), SeededCoins(seed), 0.0
    for codes in events:
        assert state.watches is not None
        tables = {id(each): guarded.table(setting, each) for each in state.watches}
        total += sum(tables[id(each)].error for each in state.watches)
        _, state = step(setting, state, codes, coins)
    return total / events.size
