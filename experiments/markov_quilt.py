"""The noise of the Markov quilt mechanism: one noisy query over a whole stream that follows a Markov chain; offline.

For event i a *quilt* is a set of events that keeps the rest away from it: {i-a, i+b}, one of the two, or none. The
events on i's side of it (`card` of them) may depend on X_i fully; those beyond learn of X_i only through the quilt,
which tells `influence` about it. With card/(ε - influence) times Laplace noise X_i is protected at ε; each i takes its
best quilt, and the scale is that of the worst i.

It keeps each X_i within ε against someone who knows the chain, but publishes one number (or histogram) at the end; it
cannot release a stream as it happens, and is therefore not in the registry.

Reference: Song, Wang, Chaudhuri, *Pufferfish privacy mechanisms for correlated data*, SIGMOD 2017, Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.mechanisms import check_epsilon
from seqveil.core.model import MarkovModel

MOST = 64  # symbols: every pair of them is compared, at every event
LONGEST = 10_000
SAME = 1e-13  # events whose distributions agree this closely share their score

Quilt = tuple[int, ...]
NO_QUILT: Quilt = ()
Side = Callable[[int], Floats]  # distance → log influence of that end of the quilt for each pair (x, x')


@dataclass(frozen=True)
class Scale:
    """Noise per unit of the query's Lipschitz constant, and the event and quilt (numbered from 1) that decide it."""

    sigma: float
    node: int
    quilt: Quilt


def scale(model: MarkovModel, length: int, epsilon: float) -> Scale:
    """σ for a stream of `length` events: max over events of min over quilts of card / (ε - influence).

        influence = max_{x,x'} [log Pr(X_i=x')/Pr(X_i=x) + max_w log P^a(w,x)/P^a(w,x') + max_z log P^b(x,z)/P^b(x',z)]

    A quilt without a left end lacks the first two terms, one without a right end the last. As published, w runs over
    all symbols, also those that cannot occur at i-a.

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
    transitions, distributions = model.advance(np.eye(model.size)), [model.initial]
    for _ in range(length - 1):
        distributions.append(distributions[-1] @ transitions)
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
        distribution = distributions[node - 1]
        possible = np.flatnonzero(distribution > 0)
        pairs = np.ix_(possible, possible)
        before = np.log(distribution[possible])[None, :] - np.log(distribution[possible])[:, None]

        def left(a: int) -> Floats:
            return np.asarray((before + ends(a, True)[pairs]).ravel())

        def right(b: int) -> Floats:
            return np.asarray(ends(b, False)[pairs].ravel())

        return left, right

    return _worst(length, epsilon, sides, distributions)


def _worst(
    length: int, epsilon: float, sides: Callable[[int], tuple[Side, Side]], distributions: list[Floats]
) -> Scale:
    """The event with the largest σ_i; one with the distribution and room of the event before shares its score."""
    worst, sigma, reach = Scale(0.0, 0, ()), 0.0, length
    for node in range(1, length + 1):
        if node > 1 and reach < min(node - 1, length - node + 1) and _alike(distributions, node):
            continue
        sigma, quilt, reach = _best(node, length, epsilon, *sides(node))
        if sigma > worst.sigma * (1 + 1e-12):
            worst = Scale(sigma, node, quilt)
    return worst


def _alike(distributions: list[Floats], node: int) -> bool:
    """Whether an event has the distribution of the one before it."""
    return bool((np.abs(distributions[node - 1] - distributions[node - 2]) <= SAME * distributions[node - 2]).all())


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
