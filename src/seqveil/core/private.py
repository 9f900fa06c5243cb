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
from numpy.typing import ArrayLike, NDArray

from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import numbered, places_within
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel, symbols_of
from seqveil.core.randomness import BITS, Randomness
from seqveil.core.states import States, validate

CONTRIBUTION = 20  # transitions of a user that count by default
MOST_SYMBOLS = 2_000  # n² counts are noised one by one
FINENESS = 1 << 20  # ε is rounded down to a multiple of 1/FINENESS, so that the noise has a rational rate
CUT = 4.0  # counts below so many noise scales are taken for noise
WIDEST = 1 << 54  # of a denominator: leaves 8 bits for the factor K of `_decays`
MOST_STAYING = 0.95  # share of what was not kept that may stay where it is


class BoundedCounts:
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
        self.n, self.contribution = n, int(contribution)
        self._slots: dict[Hashable, int] = {}
        self._events = self._seen = self._last = np.zeros(0, np.int64)
        self._starts, self._moves = np.zeros(n, np.int64), np.zeros(n * n, np.int64)

    def measure(self, users: Sequence[Hashable]) -> None:
        """Count the events of each user; all chunks, before the first `add`."""
        rows = numbered(self._slots, users)
        self._events = np.pad(self._events, (0, len(self._slots) - len(self._events)))
        self._events += np.bincount(rows, minlength=len(self._slots))

    def add(self, users: Sequence[Hashable], codes: ArrayLike) -> None:
        """Count a chunk again, with its codes, in time order within each user."""
        array, known = np.asarray(codes, np.int64), len(self._slots)
        rows = numbered(self._slots, users)
        if len(self._slots) > known or rows.size != array.size:
            raise DataError("the second reading of the data is not like the first; fit from a file that stays as it is")
        if array.size and not (array.min() >= 0 and array.max() < self.n):
            raise DataError(f"a code is outside 0..{self.n - 1}; encode the values with the alphabet first")
        if not len(self._seen):
            self._seen, self._last = np.zeros(known, np.int64), np.zeros(known, np.int64)
        order = np.argsort(rows, kind="stable")
        rows, array = rows[order], array[order]
        begins = np.flatnonzero(np.append(True, rows[1:] != rows[:-1])) if rows.size else np.zeros(0, np.int64)
        lengths = np.diff(np.append(begins, rows.size))
        place = self._seen[rows] + places_within(lengths)
        before = np.roll(array, 1)
        before[begins] = self._last[rows[begins]]
        self._count(place, self._events[rows], before, array)
        ends = begins + lengths - 1
        self._seen[rows[begins]] += lengths
        self._last[rows[begins]] = array[ends]

    def _count(self, place: Ints, events: Ints, before: Ints, after: Ints) -> None:
        """Count these events, each the place-th of a stream of so many."""
        total, bound = np.maximum(events - 1, 1), self.contribution
        number, shift = place - 1, total // 2
        kept = (number + 1) * bound + shift >= ((number * bound + shift) // total + 1) * total
        kept = (place > 0) & (place < events) & ((total <= bound) | kept)
        self._starts += np.bincount(after[place == 0], minlength=self.n)
        self._moves += np.bincount(before[kept] * self.n + after[kept], minlength=self.n**2)

    def noisy(self, epsilon: float, source: Randomness) -> NoisyCounts:
        """The counts with noise: ε-differentially private, where `source` is. Each call spends its own ε."""
        if isinstance(epsilon, bool) or not math.isfinite(epsilon) or not 1 / FINENESS <= epsilon <= 64:
            raise InputError(f"expected epsilon of the fit from 1e-6 to 64, got {epsilon}")
        steps, sensitivity = math.floor(epsilon * FINENESS), self.contribution + 1
        noise = exact_laplace((steps, FINENESS * sensitivity), self.n * (self.n + 1), source)
        starts, moves = self._starts + noise[: self.n], self._moves + noise[self.n :]
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

    def model(
        self, alphabet: Symbols | None = None, cut: float = CUT, most_staying: float = MOST_STAYING
    ) -> MarkovModel:
        """The chain: post-processing, free of further cost.

        With b the scale of the noise, counts below `cut`·b are taken for noise. What a row has beyond its kept counts,
        its noisy sum less theirs and at least b, is shared out: a part stays where it is, the same part in all rows
        (what the diagonal has of all counts not kept, which many cells together tell well, but `most_staying` at most);
        the rest goes to the base distribution, the kept counts by symbol entered.
        """
        from scipy import sparse

        n, scale = len(self.starts), self.scale
        kept = np.where(self.moves >= cut * scale, self.moves, 0).astype(np.float64)
        into = kept.sum(0) + np.maximum(self.starts, 0.0)
        base = (into + scale) / (into.sum() + n * scale)
        left = self.moves - kept
        rest = np.maximum(left.sum(1), scale)
        total = kept.sum(1) + rest
        staying = max(0.0, float(np.trace(left)))
        stay = min(most_staying, staying / max(float(left.sum()), staying, scale))
        chain = sparse.csr_array((kept + np.diag(stay * rest)) / total[:, None])
        states = States(1, n, self._first(base, cut), chain, (1 - stay) * rest / total, base, *2 * (np.arange(n),))
        validate(states)
        return MarkovModel._of(states, symbols_of(alphabet, n)).with_origin(self.origin())

    def _first(self, base: Floats, cut: float) -> Floats:
        """Distribution of the first symbol, by the same rule."""
        kept = np.where(self.starts >= cut * self.scale, self.starts, 0).astype(np.float64)
        rest = max(float(self.starts.sum() - kept.sum()), self.scale)
        return np.asarray((kept + rest * base) / (kept.sum() + rest))


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
