"""A chain fitted to raw data with differential privacy: noisy integer counts, bounded for each user.

Every one of the n starts and n² transitions gets integer noise that is drawn exactly, whether it occurred or not, and
all that follows uses the noisy counts alone. No floating-point number decides anything about the noise, so pure ε-DP is
pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Symbols
from seqveil.core.bulk import places_within
from seqveil.core.errors import InputError, whole_number
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import BITS, Randomness
from seqveil.core.states import States

CONTRIBUTION = 20  # transitions of a user that count by default
MOST_SYMBOLS = 2_000  # n² counts are noised one by one
FINENESS = 1 << 20  # ε is rounded down to a multiple of 1/FINENESS, so that the noise has a rational rate
CUT = 4.0  # counts below so many noise scales are taken for noise
WIDEST = 1 << 54  # of a denominator: leaves 8 bits for the factor K of `_decays`
MOST_STAYING = 0.95  # share of what was not kept that may stay where it is


@dataclass(frozen=True, eq=False)
class BoundedCounts:
    """Starts (n,) and transitions (n, n) of many users, at most M transitions of each.

    Of a stream of T > M transitions those numbered j with ⌊((j+1)M + r)/T⌋ > ⌊(jM + r)/T⌋, r = ⌊T/2⌋, are kept:
    exactly M of them, evenly spread.

    *Guarantee*: which transitions of a user count depends on that user's stream alone, and they are at most M. So
    adding or removing one user with their whole stream changes the probability of any `model` by a
    factor of at most e^ε (replacing one user: e^{2ε}), whatever the data. It does not cover the alphabet, which is
    public, nor messages about bad rows, which only the one who fits sees.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> counts = BoundedCounts.of(np.repeat(np.arange(2000), 5), np.tile([0, 0, 1, 1, 0], 2000), 2)
    >>> model = counts.model(1.0, SeededRandomness(1))
    >>> model.advance(np.array([1.0, 0.0])).round(1).tolist(), model.origin["sensitivity"], model.origin["private"]
    ([0.5, 0.5], 21, False)

    Reference: Dwork, McSherry, Nissim, Smith, *Calibrating noise to sensitivity in private data analysis*, TCC 2006.
    """

    starts: Ints = field(repr=False)
    moves: Ints = field(repr=False)
    contribution: int

    @classmethod
    def of(cls, users: Ints, codes: Ints, n: int, contribution: int = CONTRIBUTION) -> BoundedCounts:
        """Of all events: who, and which code, in time order within each user."""
        if n > MOST_SYMBOLS:
            raise InputError(
                f"a private fit draws noise for each of n² transitions and takes at most {MOST_SYMBOLS} symbols, got "
                f"{n}; use wider bins or a coarser grid, or learn the chain from releases"
            )
        whole_number("the contribution of each user, in transitions,", contribution)
        _, rows, lengths = np.unique(users, return_inverse=True, return_counts=True)
        codes, places = codes[np.argsort(rows, kind="stable")], places_within(lengths)
        starts = np.bincount(codes[places == 0], minlength=n)
        number, total = places[1:] - 1, np.repeat(np.maximum(lengths - 1, 1), lengths)[1:]
        shift = total // 2
        kept = (number + 1) * contribution + shift >= ((number * contribution + shift) // total + 1) * total
        kept = (number >= 0) & (kept | (total <= contribution))
        moves = np.bincount((codes[:-1] * n + codes[1:])[kept], minlength=n * n)
        return cls(starts, moves.reshape(n, n), int(contribution))

    def model(self, epsilon: float, source: Randomness, alphabet: Symbols | None = None) -> MarkovModel:
        """The chain of the counts with noise, ε-differentially private where `source` is, with its ledger entry as
        `origin`. Each call spends its own ε; all that follows the noise is post-processing.

        With b the scale of the noise, counts below `CUT`·b are taken for noise. What a row has beyond its kept counts,
        its noisy sum less theirs and at least b, is shared out: a part stays where it is, the same part in all rows
        (what the diagonal has of all counts not kept, which many cells together tell well, but `MOST_STAYING` at most);
        the rest goes to the base distribution, the kept counts by symbol entered.
        """
        if isinstance(epsilon, bool) or not math.isfinite(epsilon) or not 1 / FINENESS <= epsilon <= 64:
            raise InputError(f"expected epsilon of the fit from 1e-6 to 64, got {epsilon}")
        steps, sensitivity, n = math.floor(epsilon * FINENESS), self.contribution + 1, len(self.starts)
        noise, scale = exact_laplace((steps, FINENESS * sensitivity), n * (n + 1), source), sensitivity / epsilon
        starts, moves = self.starts + noise[:n], self.moves + noise[n:].reshape(n, n)
        users = max(0, int(starts.sum()))
        origin = {
            "kind": "private fit",
            "private": source.private,
            "epsilon": float(epsilon),
            "delta": 0.0,
            "relation": "one user added or removed",
            "contribution": {"starts": 1, "transitions": self.contribution},
            "sensitivity": sensitivity,
            "noise": f"discrete Laplace of scale {scale:.6g} on {n * (n + 1)} counts",
            "users": users,
            "events": users + max(0, int(moves.sum())),
        }
        return MarkovModel._of(_chain(starts, moves, scale), alphabet or Alphabet(range(n)), origin)


def _chain(starts: Ints, moves: Ints, scale: float) -> States:
    """The states of the chain from counts with noise of this scale."""
    from scipy import sparse

    n = len(starts)
    kept = np.where(moves >= CUT * scale, moves, 0).astype(np.float64)
    into = kept.sum(0) + np.maximum(starts, 0.0)
    base = (into + scale) / (into.sum() + n * scale)
    left = moves - kept
    rest = np.maximum(left.sum(1), scale)
    total = kept.sum(1) + rest
    staying = max(0.0, float(np.trace(left)))
    stay = min(MOST_STAYING, staying / max(float(left.sum()), staying, scale))
    chain = sparse.csr_array((kept + np.diag(stay * rest)) / total[:, None])
    first = np.where(starts >= CUT * scale, starts, 0).astype(np.float64)  # by the same rule
    others = max(float(starts.sum() - first.sum()), scale)
    first = (first + others * base) / (first.sum() + others)
    return States(1, n, first, chain, (1 - stay) * rest / total, base, *2 * (np.arange(n),))


def exact_laplace(rate: tuple[int, int], count: int, randomness: Randomness) -> Ints:
    """`count` integers with Pr(k) ∝ e^{-|k|·s/t}, exactly, where `rate` = (s, t) is a fraction above 0.

    U is uniform on 0..t-1 and kept with probability e^{-U/t}, V counts successes of probability e^{-1}; then
    ⌊(U + tV)/s⌋ is geometric with ratio e^{-s/t}, and a fair sign that is drawn again at -0 makes it two-sided.

    *Guarantee*: each decision is a comparison of integers drawn uniformly by rejection, so the distribution is the one
    stated and not near it: shifting a count by L changes the probability of any outcome by a factor of at most
    e^{L·s/t}.

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
        share = uniform(t, 2 * missing + 16, randomness)
        share = share[_decays(share, t, randomness)]
        size = (share + t * _run(share.size, randomness)) // s
        negative = (randomness.draw(size.size) & 1).astype(bool)
        kept = ~(negative & (size == 0))
        part = np.where(negative, -size, size)[kept][:missing]
        found.append(part)
        missing -= part.size
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def uniform(bound: int, count: int, randomness: Randomness) -> Ints:
    """`count` integers uniform on 0..bound-1 (1..2**62): draws beyond the last whole multiple are redone."""
    drawn = randomness.draw(count)
    while (beyond := np.flatnonzero(drawn >= (1 << BITS) // bound * bound)).size:
        drawn[beyond] = randomness.draw(beyond.size)
    return drawn % bound


def _decays(numerators: Ints, denominator: int, randomness: Randomness) -> NDArray[np.bool_]:
    """True with probability e^{-a/b} for each a in 0..b: a run of successes of chance a/(bK), K = 1, 2, …, is even."""
    even = np.ones(numerators.size, bool)
    alive, turn = np.arange(numerators.size), 1
    while alive.size:
        alive = alive[uniform(denominator * turn, alive.size, randomness) < numerators[alive]]
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


def origin_in_words(origin: Mapping[str, Any]) -> str:
    """A model's record of how it was made, in a sentence."""
    if origin.get("kind") != "private fit":
        return f"{origin.get('kind', 'unknown')}: {origin.get('note', 'see the model file')}"
    if not origin.get("private"):
        return "fitted with seeded noise: NOT private"
    most = origin["contribution"]["transitions"]
    return (
        f"fitted with ε = {origin['epsilon']:g} for each user ({origin['relation']}; at most {most} transitions and "
        f"one start of each; {origin['noise']})"
    )
