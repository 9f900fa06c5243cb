"""Streams released for a trial: those of simulated people, or of people whose data one holds. None of it is private.

Plans, checks of a context and comparisons release streams with seeded randomness and lay the truth beside what anyone
sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.randomness import Randomness
from seqveil.engine import batches, stream
from seqveil.engine.state import State
from seqveil.engine.stream import Released, Terms


@dataclass(frozen=True, eq=False)
class Step:
    """One release of each stream that has got so far, between what is public before and after it."""

    truth: Ints  # (B,)
    before: State
    made: Released
    after: State

    @property
    def distribution(self) -> Floats:
        """What anyone believes of each symbol once it is released: (B, n)."""
        joint = self.made.beliefs * self.made.columns
        return np.asarray(joint / joint.sum(1, keepdims=True))


def one_by_one(setting: Terms, streams: Sequence[Ints] | Ints, randomness: Randomness) -> Iterator[Step]:
    """Release streams side by side, symbol by symbol. By the clock of secrets that follow one, all begin at midnight.

    Parameters:
        setting: what they are released with.
        streams: the true codes of each, the longest first, so that whoever has ended stands last.
        randomness: seeded ones.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> [step.truth.tolist() for step in one_by_one(setting, [np.array([0, 1]), np.array([1])], SeededRandomness(1))]
    [[0, 1], [1]]
    """
    lengths, state = np.array([len(codes) for codes in streams]), State.start(setting, len(streams))
    if (np.diff(lengths) > 0).any():
        raise InputError("expected the longest stream first; sort them by their lengths")
    for t in range(int(lengths[0])):
        now = int((lengths > t).sum())
        truth = np.array([codes[t] for codes in streams[:now]])
        before = state.take(slice(0, now))
        stamps = np.full(now, setting.slots.since_midnight(t)) if setting.clocked else None
        made, state = stream.step(setting, before, truth, randomness, stamps)
        yield Step(truth, before, made, state)


def in_batches(setting: Terms, codes: Ints, randomness: Randomness) -> tuple[list[Sent], State]:
    """Release one stream batch by batch, without a budget: what was sent, and where the stream stands afterwards."""
    state, sent = State.start(setting), list[Sent]()
    for begin in range(0, len(codes), setting.batch):
        one, state = batches.step(setting, state, codes[begin : begin + setting.batch], randomness)
        assert one is not None  # nothing is left out without a budget
        sent.append(one)
    return sent, state
