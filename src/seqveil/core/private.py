"""A chain fitted to raw data with differential privacy: noisy integer counts, bounded for each user.

Each user adds at most one start and M transitions, taken evenly along the stream. Every one of the n starts and n²
transitions gets integer noise that is drawn exactly, whether it occurred or not, and all that follows uses the noisy
counts alone. No floating-point number decides anything about the noise, so pure ε-DP is pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import RunCounts
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel, symbols_of
from seqveil.core.randomness import BITS, Randomness
from seqveil.core.states import States, validate

CONTRIBUTION = 20  # transitions of a user that count by default
MOST_SYMBOLS = 2_000  # n² counts are noised one by one
FINENESS = 1 << 20  # ε is rounded down to a multiple of 1/FINENESS, so that the noise has a rational rate
CUT = 4.0  # counts below so many noise scales are taken for noise
WIDEST = 1 << 54  # of a denominator: leaves 8 bits for the factor K of `_decays`
MOST_STAYING = 0.95  # share of what was not kept that may stay where it is


class BoundedCounts(RunCounts):
    """Starts and transitions of many users, each user's part bounded; fed in chunks, twice.

    The first reading (`measure`) finds how long each stream is; the second (`add`) keeps, of a stream of T > M
    transitions, those numbered j with ⌊((j+1)M + r)/T⌋ > ⌊(jM + r)/T⌋, r = ⌊T/2⌋: exactly M of them, evenly spread.

    *Guarantee*: which transitions of a user count depends on that user's stream alone, and they are at most M. So
    adding or removing one user with their whole stream changes the probability of any model made of `noisy` counts by a
    factor of at most e^ε (replacing one user: e^{2ε}), whatever the data. It does not cover the alphabet, which is
    public, nor messages about bad rows, which only the one who fits sees.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> counts, users, codes = BoundedCounts(2), np.repeat(np.arange(2000), 5).tolist(), [0, 0, 1, 1, 0] * 2000
    >>> counts.measure(users)
    >>> counts.add(users, codes)
    >>> model = counts.noisy(1.0, SeededRandomness(1)).model(None)
    >>> model.advance(np.array([1.0, 0.0])).round(1).tolist(), model.origin["sensitivity"], model.origin["private"]
    ([0.5, 0.5], 21, False)

    Reference: Dwork, McSherry, Nissim, Smith, *Calibrating noise to sensitivity in private data analysis*, TCC 2006.
    """

    def __init__(self, n: int, contribution: int = CONTRIBUTION) -> None:
        if n > MOST_SYMBOLS:
            raise InputError(
                f"a private fit draws noise for each of n² transitions and takes at most {MOST_SYMBOLS} symbols, got "
                f"{n}; use wider bins or a coarser grid, or learn the chain from releases"
            )
        if isinstance(contribution, bool) or not isinstance(contribution, (int, np.integer)) or contribution < 1:
            raise InputError("expected a contribution of a whole number of transitions ≥ 1 for each user")
        super().__init__(n)
        self.contribution = int(contribution)
        self.lengths = np.zeros(0, np.int64)  # of the users' streams
        self.starts, self.moves = np.zeros(n, np.int64), np.zeros(n * n, np.int64)

    def measure(self, users: Sequence[Hashable]) -> None:
        """Count the events of each user; all chunks, before the first `add`."""
        rows = self._rows_of(users)
        self.lengths = np.pad(self.lengths, (0, len(self._slots) - len(self.lengths)))
        self.lengths += np.bincount(rows, minlength=len(self._slots))

    def _count(self, rows: Ints, codes: Ints) -> None:
        if len(self._slots) > len(self.lengths):
            raise DataError("the second reading of the data is not like the first; fit from a file that stays as it is")
        super()._count(rows, codes)

    def _note(self, back: int, rows: Ints, runs: Ints, places: Ints) -> None:
        """Count starts, and the transitions that are kept: each ends in the place-th event of a stream of so many."""
        if back == 0:
            self.starts += np.bincount(runs[places == 0], minlength=self.n)
            return
        events, bound, number = self.lengths[rows], self.contribution, places - 1
        total = np.maximum(events - 1, 1)
        shift = total // 2
        kept = (number + 1) * bound + shift >= ((number * bound + shift) // total + 1) * total
        kept = (places < events) & ((total <= bound) | kept)
        self.moves += np.bincount(runs[kept], minlength=self.n**2)

    def noisy(self, epsilon: float, source: Randomness) -> NoisyCounts:
        """The counts with noise: ε-differentially private, where `source` is. Each call spends its own ε."""
        if isinstance(epsilon, bool) or not math.isfinite(epsilon) or not 1 / FINENESS <= epsilon <= 64:
            raise InputError(f"expected epsilon of the fit from 1e-6 to 64, got {epsilon}")
        steps, sensitivity = math.floor(epsilon * FINENESS), self.contribution + 1
        noise = exact_laplace((steps, FINENESS * sensitivity), self.n * (self.n + 1), source)
        starts, moves = self.starts + noise[: self.n], self.moves + noise[self.n :]
        return NoisyCounts(starts, moves.reshape(self.n, self.n), float(epsilon), self.contribution, source.private)

    def __repr__(self) -> str:
        return f"BoundedCounts({self.n} symbols, at most {self.contribution} transitions of a user)"


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """What a private fit may look at: counts with noise, and how much there is of it."""

    starts: Ints = field(repr=False)
    moves: Ints = field(repr=False)
    epsilon: float
    contribution: int
    private: bool

    @property
    def scale(self) -> float:
        """Scale of the noise: sensitivity / ε."""
        return (self.contribution + 1) / self.epsilon

    @property
    def users(self) -> int:
        """About how many users there were: the noisy starts, added up."""
        return max(0, int(self.starts.sum()))

    def origin(self) -> Mapping[str, Any]:
        """The fit's ledger entry: what was spent on the people in the data, and what that promises."""
        return {
            "kind": "private fit",
            "private": self.private,
            "epsilon": self.epsilon,
            "delta": 0.0,
            "relation": "one user added or removed",
            "contribution": {"starts": 1, "transitions": self.contribution},
            "sensitivity": self.contribution + 1,
            "noise": f"discrete Laplace of scale {self.scale:.6g} on {self.moves.size + self.starts.size} counts",
        }

    def model(self, alphabet: Symbols | None = None) -> MarkovModel:
        """The chain: post-processing, free of further cost.

        With b the scale of the noise, counts below `CUT`·b are taken for noise. What a row has beyond its kept counts,
        its noisy sum less theirs and at least b, is shared out: a part stays where it is, the same part in all rows
        (what the diagonal has of all counts not kept, which many cells together tell well, but `MOST_STAYING` at most);
        the rest goes to the base distribution, the kept counts by symbol entered.
        """
        from scipy import sparse

        n, scale = len(self.starts), self.scale
        kept = np.where(self.moves >= CUT * scale, self.moves, 0).astype(np.float64)
        into = kept.sum(0) + np.maximum(self.starts, 0.0)
        base = (into + scale) / (into.sum() + n * scale)
        left = self.moves - kept
        rest = np.maximum(left.sum(1), scale)
        total = kept.sum(1) + rest
        staying = max(0.0, float(np.trace(left)))
        stay = min(MOST_STAYING, staying / max(float(left.sum()), staying, scale))
        chain = sparse.csr_array((kept + np.diag(stay * rest)) / total[:, None])
        first = np.where(self.starts >= CUT * scale, self.starts, 0).astype(np.float64)  # by the same rule
        others = max(float(self.starts.sum() - first.sum()), scale)
        first = (first + others * base) / (first.sum() + others)
        states = States(1, n, first, chain, (1 - stay) * rest / total, base, *2 * (np.arange(n),))
        validate(states)
        return MarkovModel._of(states, symbols_of(alphabet, n)).with_origin(self.origin())


def exact_laplace(rate: tuple[int, int], count: int, randomness: Randomness) -> Ints:
    """`count` integers with Pr(k) ∝ e^{-|k|·s/t}, exactly, where `rate` = (s, t) is a fraction above 0.

    U is uniform on 0..t-1 and kept with probability e^{-U/t}, V counts successes of probability e^{-1}; then
    ⌊(U + tV)/s⌋ is geometric with ratio e^{-s/t}, and a fair sign that is drawn again at -0 makes it two-sided.

    *Guarantee*: each decision is a comparison of integers drawn uniformly by rejection, so the distribution is the one
    stated and not near it: shifting a count by L changes the probability of any outcome by a factor of at most
    e^{L·s/t}.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> noise = exact_laplace((1, 3), 4000, SeededRandomness(1))
    >>> abs(float(noise.mean())) < 0.3, round(float((noise == 0).mean()), 1)
    (True, 0.2)

    Reference: Canonne, Kamath, Steinke, *The discrete Gaussian for differential privacy*, 2020, algorithms 1 and 2.
    """
    s, t = rate
    if not (0 < s <= WIDEST and 0 < t <= WIDEST):
        raise InputError(
            "expected a rate s/t of whole numbers from 1 to 2**54; use a larger epsilon or a smaller bound"
        )
    found: list[Ints] = []
    missing = count
    while missing:
        share = uniform(np.full(2 * missing + 16, t, np.int64), randomness)
        share = share[_decays(share, t, randomness)]
        size = (share + t * _run(share.size, randomness)) // s
        negative = (randomness.draw(size.size) & 1).astype(bool)
        kept = ~(negative & (size == 0))
        part = np.where(negative, -size, size)[kept][:missing]
        found.append(part)
        missing -= part.size
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def uniform(bounds: Ints, randomness: Randomness) -> Ints:
    """An integer uniform on 0..bound-1 for each bound (1..2**62): draws beyond the last whole multiple are redone."""
    limits = (1 << BITS) // bounds * bounds
    drawn = randomness.draw(bounds.size)
    beyond = np.flatnonzero(drawn >= limits)
    while beyond.size:
        drawn[beyond] = randomness.draw(beyond.size)
        beyond = beyond[drawn[beyond] >= limits[beyond]]
    return drawn % bounds


def _decays(numerators: Ints, denominator: int, randomness: Randomness) -> NDArray[np.bool_]:
    """True with probability e^{-a/b} for each a in 0..b: a run of successes of chance a/(bK), K = 1, 2, …, is even."""
    even = np.ones(numerators.size, bool)
    alive, turn = np.arange(numerators.size), 1
    while alive.size:
        bounds = np.full(alive.size, denominator * turn, np.int64)
        alive = alive[uniform(bounds, randomness) < numerators[alive]]
        even[alive] = ~even[alive]
        turn += 1
    return even


def _run(count: int, randomness: Randomness) -> Ints:
    """How many draws of probability e^{-1} succeed before the first that does not."""
    length = np.zeros(count, np.int64)
    alive = np.arange(count)
    while alive.size:
        alive = alive[_decays(np.ones(alive.size, np.int64), 1, randomness)]
        length[alive] += 1
    return length
