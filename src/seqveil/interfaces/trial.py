"""Streams released for a trial: those of simulated people, or of people whose data one holds. None of it is private.

Plans, checks of a context and comparisons release streams with seeded randomness and compare the truth with what anyone
sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.randomness import Randomness, SeededRandomness
from seqveil.engine import batches
from seqveil.engine import step as engine
from seqveil.engine.state import Private, State
from seqveil.engine.stream import Terms

Streams = Sequence[Ints] | Ints


@dataclass(frozen=True, eq=False)
class Step:
    """One release of each stream that has got so far, between what is public before and after it."""

    truth: Ints  # (B,)
    before: State
    made: Any  # `Released`, or `ReleasedInBlocks`
    after: State

    @property
    def distribution(self) -> Floats:
        """What anyone believes about each symbol once it is released: (B, n)."""
        joint = self.made.beliefs * self.made.columns
        return np.asarray(joint / joint.sum(1, keepdims=True))


def one_by_one(setting: Terms, streams: Streams, randomness: Randomness) -> Iterator[Step]:
    """Release streams side by side, symbol by symbol. By the clock of secrets that follow one, all begin at midnight.

    Parameters:
        setting: what they are released with.
        streams: the true codes of each, the longest first, so that whoever has ended stands last.
        randomness: seeded randomness.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> [step.truth.tolist() for step in one_by_one(setting, [np.array([0, 1]), np.array([1])], SeededRandomness(1))]
    [[0, 1], [1]]
    """
    lengths = np.array([len(codes) for codes in streams])
    if (np.diff(lengths) > 0).any():
        raise InputError("expected the longest stream first; sort them by their lengths")
    state, private = State.start(setting, len(streams)), Private.start(setting, len(streams))
    for t in range(int(lengths[0])):
        now = slice(0, int((lengths > t).sum()))
        truth = np.array([codes[t] for codes in streams[now]])
        before = state.take(now)
        stamps = np.full(truth.size, setting.slots.since_midnight(t)) if setting.clocked else None
        made, state, private = engine.step(setting, before, private.take(now), truth, randomness, stamps)
        yield Step(truth, before, made, state)


def in_batches(setting: Terms, codes: Ints, randomness: Randomness) -> tuple[list[Sent], State]:
    """Release one stream batch by batch, without a budget: what was sent, and where the stream stands afterwards."""
    state, sent = State.start(setting), list[Sent]()
    for begin in range(0, len(codes), setting.batch):
        one, state = batches.step(setting, state, codes[begin : begin + setting.batch], randomness)
        assert one is not None  # nothing is left out without a budget
        sent.append(one)
    return sent, state


@dataclass(frozen=True, eq=False)
class Measured:
    """What releases cost these people, event by event, in the order of their streams; one that says nothing costs 1."""

    costs: list[Floats]
    decoded: list[Floats]  # of the receiver's best estimate given the releases up to each; of blocks those released
    withheld: float  # share of releases that say nothing
    leakage: float  # the most that any stream revealed, by the exact account

    @property
    def error(self) -> float:
        """The mean cost of a release."""
        return float(np.concatenate(self.costs).mean())

    @property
    def standard_error(self) -> float | None:
        """Of the mean, over people; None for a single person."""
        count, lengths = len(self.costs), np.array([len(costs) for costs in self.costs])
        if count < 2:
            return None
        apart = np.array([costs.sum() for costs in self.costs]) - self.error * lengths
        return float(np.sqrt((apart**2).sum() * count / (count - 1)) / lengths.sum())

    @property
    def decoded_error(self) -> float:
        """The mean cost of the receiver's best estimate."""
        return float(np.concatenate(self.decoded).mean())


def measure(setting: Terms, streams: Streams, seed: int) -> Measured:
    """Release streams, the longest first, and compare them with the truth.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> people = model.sample(12, 200, seed=1)
    >>> alone, shared = (measure(Policy(**each).on(model), people, 1).error for each in
    ...                  ({"epsilon": 0.5}, {"epsilon": 6.0, "block": 12}))
    >>> shared < alone / 2
    True
    """
    if setting.budget.seconds is not None or (setting.in_batches and setting.budget.when_spent == "stop"):
        raise InputError(
            "a budget per number of seconds, or one that stops batches, depends on times and gaps that a trial does "
            "not have; plan with a budget per number of releases, and when_spent = hold"
        )
    released, guesses, leakage = (_batched if setting.in_batches else _stepwise)(
        setting, streams, SeededRandomness(seed)
    )
    between = setting.distortion.between
    costs = [
        np.where(codes < 0, 1.0, between(truth, np.maximum(codes, 0)))
        for truth, codes in zip(streams, released, strict=True)
    ]
    decoded = costs if setting.in_blocks else [between(*pair) for pair in zip(streams, guesses, strict=True)]
    withheld = float((np.concatenate(released) < 0).mean())
    return Measured(costs, decoded, withheld, leakage)


Outcomes = tuple[list[Ints], list[Ints], float]  # released, best estimates, the most that a stream revealed


def _stepwise(setting: Terms, streams: Streams, randomness: Randomness) -> Outcomes:
    """Of releases one by one, and of blocks, whose labels are best guesses already."""
    codes, guesses, leakage = list[Ints](), list[Ints](), 0.0
    for step in one_by_one(setting, streams, randomness):
        codes.append(step.made.codes)
        leakage = max(leakage, float(step.after.account.worst.max()))
        if not setting.in_blocks:
            guesses.append(setting.distortion.best_guess(step.distribution))
    released, best = (
        [np.array([row[k] for row in rows if k < row.size], np.int64) for k in range(len(streams))]
        for rows in (codes, guesses)
    )
    return released, best, leakage


def _batched(setting: Terms, streams: Streams, randomness: Randomness) -> Outcomes:
    codes, guesses, leakage = list[Ints](), list[Ints](), 0.0
    for truth in streams:
        sent, end = in_batches(setting, truth, randomness)
        codes.append(np.concatenate([one.codes for one in sent]))
        guesses.append(setting.distortion.best_guess(batches.filtered(setting, sent)))
        leakage = max(leakage, float(end.account.worst.max()))
    return codes, guesses, leakage
