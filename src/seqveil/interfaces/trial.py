"""Streams released for a trial: those of simulated people, or of people whose data one holds. None of it is private.

Plans, checks of a context and comparisons release streams with seeded randomness and lay the truth beside what anyone
sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.randomness import Randomness, SeededRandomness
from seqveil.engine import batches
from seqveil.engine.state import Private, State
from seqveil.engine.step import step
from seqveil.engine.stream import Released, Terms
from seqveil.receiver.decode import decode_codes


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

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> [step.truth.tolist() for step in one_by_one(setting, [np.array([0, 1]), np.array([1])], SeededRandomness(1))]
    [[0, 1], [1]]
    """
    lengths, state = np.array([len(codes) for codes in streams]), State.start(setting, len(streams))
    private = Private.start(setting, len(streams))
    if (np.diff(lengths) > 0).any():
        raise InputError("expected the longest stream first; sort them by their lengths")
    for t in range(int(lengths[0])):
        now = int((lengths > t).sum())
        truth = np.array([codes[t] for codes in streams[:now]])
        before = state.take(slice(0, now))
        stamps = np.full(now, setting.slots.since_midnight(t)) if setting.clocked else None
        made, state, private = step(setting, before, private.take(slice(0, now)), truth, randomness, stamps)
        assert isinstance(made, Released)
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
    """Means over all releases of a trial.

    The first five are what anyone expects after each release, under the model: given all that is public, a release y
    costs Σ post(x) D(x, y), and the receiver's best estimate min_r Σ post(x) D(x, r). A release that says nothing
    counts as a wrong one. `realised_error` and `realised_decoded` are what both cost these very streams.
    """

    error: float
    decoded_error: float
    truth: float  # probability that a release is the truth
    paid_truth: float | None  # the same of the releases that carry ε; None where none does
    withheld: float  # share of releases that say nothing
    realised_error: float
    realised_decoded: float
    smoothed_error: float | None  # of the best estimate from all releases of a stream; None where nobody asked
    ends: tuple[State, ...]  # where the streams stand at the end


def measure(setting: Terms, streams: Sequence[Ints] | Ints, seed: int, hindsight: bool = False) -> Measured:
    """Release streams, the longest first, and average what every release costs.

    Averages of conditional expectations leave only the noise of the histories, far less than that of realised costs.
    `hindsight` decodes the streams as a whole as well, for which they have one length.
    """
    if setting.budget.seconds is not None or (setting.in_batches and setting.budget.when_spent == "stop"):
        raise InputError(
            "a budget for seconds, or one that stops batches, cannot be tried without times and gaps; try it with "
            "a budget for releases that holds"
        )
    randomness, sums, ends = SeededRandomness(seed), np.zeros(9), list[State]()
    codes, late = list[Ints](), list[Floats]()
    if setting.in_batches:
        for truth in streams:
            sent, state = in_batches(setting, truth, randomness)
            released = np.concatenate([one.codes for one in sent])
            carries = np.ones(truth.size, bool)
            sums += _sums(setting.distortion, truth, released, batches.filtered(setting, sent), carries)
            ends.append(state)
            late += [batches.smooth(setting, sent)] if hindsight else []
    else:
        for step in one_by_one(setting, streams, randomness):
            made = step.made
            sums += _sums(setting.distortion, step.truth, made.codes, step.distribution, made.epsilons > 0)
            ends = [step.after]
            codes.append(made.codes)
        late = [*decode_codes(setting, np.stack(codes, axis=1))] if hindsight else []
    error, decoded, right, withheld, realised, realised_decoded = (sums[:6] / sums[8]).tolist()
    paid = float(sums[6] / sums[7]) if sums[7] else None
    smoothed = float(setting.distortion.expected(np.concatenate(late)).min(1).mean()) if hindsight else None
    return Measured(error, decoded, right, paid, withheld, realised, realised_decoded, smoothed, tuple(ends))


def _sums(
    distortion: Distortion, truth: Ints, codes: Ints, distributions: Floats, carries: NDArray[np.bool_]
) -> Floats:
    """What `Measured` averages, added up over some releases, then those that carry ε, and how many there are."""
    rows, costs, silent = np.arange(truth.size), distortion.expected(distributions), codes < 0
    said = np.where(silent, 0, codes)
    right = np.where(silent, 0.0, distributions[rows, said])
    parts = (
        np.where(silent, 1.0, costs[rows, said]),
        costs.min(1),
        right,
        silent,
        np.where(silent, 1.0, distortion.between(truth, said)),
        distortion.between(truth, distortion.best_guess(distributions)),
        right[carries],
        carries,
    )
    return np.array([*(part.sum() for part in parts), truth.size], np.float64)
