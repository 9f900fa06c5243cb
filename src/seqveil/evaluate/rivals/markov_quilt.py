"""The Markov quilt mechanism: one noisy query over a whole stream that follows a Markov chain; offline.

For event i a *quilt* is a set of events that keeps the rest away from it: {i-a, i+b}, one of the two, or none. The
events on i's side of it (`card` of them) may depend on X_i fully; those beyond learn of X_i only through the quilt,
which tells `influence` about it. With card/(ε - influence) times Laplace noise X_i is protected at ε; each i takes its
best quilt, and the scale is that of the worst i.

It keeps each X_i within ε against someone who knows the chain, but publishes one number (or histogram) at the end; it
cannot release a stream as it happens, and is therefore not in the registry.

Reference: Song, Wang, Chaudhuri, *Pufferfish privacy mechanisms for correlated data*, SIGMOD 2017, Algorithms 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.coins import Coins
from seqveil.core.errors import InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import check_epsilon
from seqveil.core.model import MarkovModel
from seqveil.evaluate.rivals.temporal import stationary
from seqveil.receiver.learn.private import exact_laplace

MOST = 64  # symbols: every pair of them is compared, at every event
LONGEST = 10_000
FINE = 1 << 20  # a scale of noise is rounded up to a whole multiple of 1/FINE
WIDEST = 2.0**34  # scale of noise
SAME = 1e-13  # events whose laws agree this closely share their score

Quilt = tuple[int, ...]
NO_QUILT: Quilt = ()
Side = Callable[[int], Floats]  # distance → log influence of that end of the quilt for each pair (x, x')


@dataclass(frozen=True)
class Scale:
    """Noise per unit of the query's Lipschitz constant, and the event and quilt (numbered from 1) that decide it."""

    sigma: float
    node: int
    quilt: Quilt


def scale(model: MarkovModel, length: int, epsilon: float, method: str = "exact") -> Scale:
    """σ for a stream of `length` events: max over events of min over quilts of card / (ε - influence).

        influence = max_{x,x'} [log Pr(X_i=x')/Pr(X_i=x) + max_w log P^a(w,x)/P^a(w,x') + max_z log P^b(x,z)/P^b(x',z)]

    A quilt without a left end lacks the first two terms, one without a right end the last. As published, w runs over
    all symbols, also those that cannot occur at i-a. `method` "exact" computes this; "approx" bounds it from the
    spectral gap (see `approximate`), whatever law the stream starts from.

    *Guarantee*: F + Lap(L·σ), for F that moves by at most L when one event changes, is ε-Pufferfish private for every
    event's value under this chain.

    >>> found = scale(MarkovModel([1.0, 0.0], [[0.9, 0.1], [0.4, 0.6]]), 100, 1.0)
    >>> round(found.sigma, 4), found.node, found.quilt
    (13.0219, 8, (3, 13))
    """
    check_epsilon(epsilon)
    if model.order != 1 or model.types != 1 or model.n > MOST:
        raise InputError(
            f"a Markov quilt needs a chain of order 1 over at most {MOST} symbols, got order {model.order} over "
            f"{model.n} and {model.types} types; fit a smaller model"
        )
    if not 1 <= length <= LONGEST:
        raise InputError(f"expected a length from 1 to {LONGEST}, got {length}; split a longer stream")
    if method not in ("exact", "approx"):
        raise InputError(f'expected method "exact" or "approx", got {method!r}')
    transitions = model.advance(np.eye(model.size))
    if method == "approx":
        left, right = approximate(transitions, model.initial)
        return _worst(length, epsilon, lambda node: (left, right), None)
    return _exact(transitions, model.initial, length, epsilon)


def _exact(transitions: Floats, initial: Floats, length: int, epsilon: float) -> Scale:
    """σ from the powers of the chain and the law of every event."""
    laws = [initial]
    for _ in range(length - 1):
        laws.append(laws[-1] @ transitions)
    powers = [transitions]

    @cache
    def ends(distance: int, columns: bool) -> Floats:
        """For every pair the largest log ratio of two columns (rows) of a power, entry by entry."""
        while len(powers) < distance:
            powers.append(powers[-1] @ transitions)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(powers[distance - 1] if columns else powers[distance - 1].T)
            ratio = logs[:, :, None] - logs[:, None, :]
        return np.asarray(np.where(np.isnan(ratio), -np.inf, ratio).max(0))

    def sides(node: int) -> tuple[Side, Side]:
        law = laws[node - 1]
        possible = np.flatnonzero(law > 0)
        pairs = np.ix_(possible, possible)
        before = np.log(law[possible])[None, :] - np.log(law[possible])[:, None]

        def left(a: int) -> Floats:
            return np.asarray((before + ends(a, True)[pairs]).ravel())

        def right(b: int) -> Floats:
            return np.asarray(ends(b, False)[pairs].ravel())

        return left, right

    return _worst(length, epsilon, sides, laws)


def approximate(transitions: Floats, initial: Floats) -> tuple[Side, Side]:
    """Bounds on both ends' influence that hold for every start: log((1+Δ_b)/(1-Δ_b)) right, twice that with Δ_a left.

    With stationary law π, gap g = min 1-|λ| over the eigenvalues of P·P* other than 1 (P* the reversed chain), or
    twice that of P if P = P*: Cauchy–Schwarz in L2(π) gives |P^k(x,z)/π(z) - 1| ≤ Δ_k = e^{-gk/2}/min π. The right
    end's ratio is within (1+Δ_b)/(1-Δ_b); the left end compares P^a(w,x)/Pr(X_i=x) for two x, and in each such quotient
    both numbers are within 1±Δ_a of π(x).
    """
    law = stationary(transitions, initial)
    if law.min() <= 1e-9:
        raise ModelError(
            "the approximate quilt needs a chain in which every symbol keeps coming back; use the exact one"
        )
    reverse = (law[:, None] * transitions).T / law[:, None]
    reversible = np.allclose(reverse, transitions, atol=1e-12)
    roots = np.sort(np.abs(np.linalg.eigvals(transitions if reversible else transitions @ reverse)))[:-1]
    gap = (2.0 if reversible else 1.0) * (1.0 - float(roots.max(initial=0.0)))
    if gap < 1e-12:
        raise ModelError('the approximate quilt needs a chain that mixes, and this one is periodic; use "exact"')

    def bound(distance: int) -> float:
        off = math.exp(-0.5 * gap * distance) / float(law.min())
        return math.inf if off >= 1.0 else math.log((1.0 + off) / (1.0 - off))

    return (lambda a: np.array([2.0 * bound(a)])), (lambda b: np.array([bound(b)]))


def _worst(length: int, epsilon: float, sides: Callable[[int], tuple[Side, Side]], laws: list[Floats] | None) -> Scale:
    """The event with the largest σ_i; one whose law and room are those of the event before shares its score."""
    worst, sigma, reach = Scale(0.0, 0, ()), 0.0, length
    for node in range(1, length + 1):
        if node > 1 and reach < min(node - 1, length - node + 1) and _alike(laws, node):
            continue
        sigma, quilt, reach = _best(node, length, epsilon, *sides(node))
        if sigma > worst.sigma * (1 + 1e-12):
            worst = Scale(sigma, node, quilt)
    return worst


def _alike(laws: list[Floats] | None, node: int) -> bool:
    """Whether an event has the law of the one before it; without laws all have."""
    return laws is None or bool((np.abs(laws[node - 1] - laws[node - 2]) <= SAME * laws[node - 2]).all())


def _best(node: int, length: int, epsilon: float, left: Side, right: Side) -> tuple[float, Quilt, int]:
    """Least card/(ε - influence) over the quilts of an event, that quilt, and how far one had to look.

    A quilt that reaches further than σ·ε has more than σ·ε events inside and cannot win, so the search stops there.
    """
    width = 8
    while True:
        lefts = [left(a) for a in range(1, min(width, node - 1) + 1)]
        rights = [right(b) for b in range(1, min(width, length - node) + 1)]
        sigma, quilt = length / epsilon, NO_QUILT
        for influence, card, name in _quilts(node, length, lefts, rights):
            if influence < epsilon and card / (epsilon - influence) < sigma:
                sigma, quilt = card / (epsilon - influence), name
        if width >= sigma * epsilon or (width >= node - 1 and width >= length - node):
            return sigma, quilt, width
        width *= 2


def _quilts(node: int, length: int, lefts: list[Floats], rights: list[Floats]) -> Iterator[tuple[float, int, Quilt]]:
    """Influence, card and name of every quilt but the empty one."""
    for a, one in enumerate(lefts, start=1):
        yield float(one.max()), length - node + a, (node - a,)
    for b, one in enumerate(rights, start=1):
        yield float(one.max()), node + b - 1, (node + b,)
    if lefts and rights:
        every_right = np.stack(rights)
        for a, one in enumerate(lefts, start=1):
            for b, influence in enumerate((one + every_right).max(1).tolist(), start=1):
                yield influence, a + b - 1, (node - a, node + b)


def noisy_histogram(
    model: MarkovModel, codes: ArrayLike, epsilon: float, coins: Coins, method: str = "exact"
) -> tuple[Ints, Scale]:
    """How often each symbol occurs in a stream, with noise: (n,) integers (they may be negative), and the scale.

    One event moves two counts by one, so L = 2.

    *Guarantee*: ε-Pufferfish private for every event's value under the chain.

    >>> from seqveil.core.coins import SeededCoins
    >>> model = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    >>> counts, found = noisy_histogram(model, [0, 1, 1, 0] * 25, 1.0, SeededCoins(2))
    >>> counts.shape, round(found.sigma, 2)
    ((2,), 3.57)
    """
    sequence = _checked(model, codes)
    found = scale(model, sequence.size, epsilon, method)
    counts = np.bincount(sequence, minlength=model.n)
    return counts + discrete_laplace(2.0 * found.sigma, model.n, coins), found


def noisy_count(
    model: MarkovModel, codes: ArrayLike, code: int, epsilon: float, coins: Coins, method: str = "exact"
) -> tuple[int, Scale]:
    """How often one symbol occurs in a stream, with noise; L = 1. See `noisy_histogram`."""
    sequence = _checked(model, codes)
    found = scale(model, sequence.size, epsilon, method)
    return int((sequence == code).sum() + discrete_laplace(found.sigma, 1, coins)[0]), found


def _checked(model: MarkovModel, codes: ArrayLike) -> Ints:
    sequence = np.asarray(codes)
    if sequence.ndim != 1 or not sequence.size or not np.issubdtype(sequence.dtype, np.integer):
        raise InputError(f"expected the codes of one stream, got an array of shape {sequence.shape}")
    if sequence.min() < 0 or sequence.max() >= model.n:
        raise InputError(f"expected codes 0..{model.n - 1}; encode symbols by the model's alphabet")
    return sequence.astype(np.int64)


def discrete_laplace(scale: float, count: int, coins: Coins) -> Ints:
    """`count` integers with Pr(k) ∝ e^{-|k|/scale}, drawn exactly, the scale rounded up: no less noise than stated.

    >>> from seqveil.core.coins import SeededCoins
    >>> abs(float(discrete_laplace(3.0, 4000, SeededCoins(1)).mean())) < 0.3
    True
    """
    if not 0.0 < scale <= WIDEST:
        raise InputError(f"expected a noise scale above 0 and at most 2**34, got {scale}")
    return exact_laplace((FINE, math.ceil(scale * FINE)), count, coins)
