"""Which question to ask next: the split of a soft box that lowers the expected distortion most.

A question puts the symbols of one position in an order and cuts it: left below the cut, right above, and the symbols at
the cut to both sides in proportion θ where that makes the masses fit. What a split is worth is the exact cost of its
two sides as releases, mixed with the belief before the release as they will be,

    cost(v) = Σ_t min_r Σ_x [λ E(f_v; x_t = x) + (1-λ) m_v β_t(x)] D(x, r),

from the joint distribution of every pair of positions. The score of a split is
cost(left)·k_left^-ρ + cost(right)·k_right^-ρ, with k the cells that still fit into each side: it rewards what is gained
now, and keeping cells for later. Small problems look one question further ahead.

In a large alphabet batches sampled from the node with a public seed rank positions and orders; where to cut is then
found from the exact distribution of the position. Sums over the sample are sums of integers, exact in any order, so
that no tree depends on how a product of matrices is blocked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.bulk import places_within, row_entries
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.mechanisms.base import Batch
from seqveil.core.model import MarkovModel

if TYPE_CHECKING:
    from seqveil.core.mechanisms.trees import Node

HAIR = 1e-10
ONE = float(DENOMINATOR)
STEPS = 1 << 50  # of a soft cut: θ and 1-θ are both exact in float64
RHO = 0.1  # how much is hoped for from cells still to come
EXACT = 100_000  # w²·S² up to which the joint distributions of all pairs are written out
AHEAD = 1_000  # w²·S² up to which the best few splits are judged by what can follow them
TRIED = 6
BALANCE = 0.15  # with many cells left, both sides should have this share: it keeps the tree shallow
LOOSE = 0.05  # the same where splits are judged exactly
SOFT = 64  # with more cells than this a lost one is not worth a soft cut
ROUND = 11  # digits of a score that count: rounding elsewhere must not change the tree
SEED = 20260101  # public, and part of the format: another seed is another tree
FIRST, DRAWN, ENOUGH = 300, 160, 10  # batches sampled at the root, at a node, and how few of them a child may inherit
ROUNDS = 60  # of the search for symbols that follow one another
STAY = 0.7  # share of the best gain that is enough to ask about the same position again, which needs no pass
SCALE = 1024.0  # coordinates become integers up to this
POPULAR = 32  # symbols of a position that may be its best guess
AIMS, MANY_AIMS = np.array([0.35, 0.5, 0.65]), np.linspace(0.1, 0.9, 9)


def cells(mass: float, least: float) -> int:
    """How many cells of mass `least` fit into a mass."""
    return math.floor(mass / least + HAIR)


@dataclass(frozen=True, eq=False)
class Split:
    """One public question: is the symbol at `position` to the left? Yes with probability left(x) / 2**62."""

    position: int
    left: Ints  # (n,) each 0, 2**62, or one value in between
    mass: float  # of the left side, inside the node
    rest: float  # of the right side

    @property
    def fresh(self) -> int:
        """Weight out of 2**62 with which a fresh draw from the node goes left.

        The smaller side is rounded, so that a cell of e^-32 keeps its chance to many digits.
        """
        smaller = round(DENOMINATOR * (min(self.mass, self.rest) / (self.mass + self.rest)))
        return smaller if self.mass <= self.rest else DENOMINATOR - smaller

    def chance(self, side: int) -> float:
        """Probability of a fresh draw from the node to go to that side."""
        return (DENOMINATOR - self.fresh if side else self.fresh) / ONE

    def share(self, side: int) -> Floats:
        """Probability (n,) that each symbol goes to that side (0: left, 1: right); exact in float64."""
        leftward = self.left / ONE
        return 1.0 - leftward if side else leftward


@dataclass(frozen=True, eq=False)
class Search:
    """All that the choice of a split depends on besides the node; public."""

    batch: Batch
    before: Floats  # (w, n) distributions of the symbols before the release
    least: float  # mass of the smallest cell
    disclosed: float  # λ

    @property
    def pairs(self) -> int:
        """How many pairs there are of a position and state with another: what exact joint distributions take."""
        return (self.batch.length * self.batch.model.size) ** 2

    @cached_property
    def levels(self) -> list[Ints]:
        """Orders of the symbols that the distortion suggests (or else the chain), each as a level (n,) per symbol."""
        if self.batch.distortion.is_hamming and self.pairs > EXACT:
            return _similar(self.batch.model)
        return _levels(self.batch.distortion, self.batch.model.n)

    def orders(self, distribution: Floats) -> Iterator[Ints]:
        """Levels of the symbols to cut a position by, given the symbols' distribution there."""
        yield from self.levels
        if self.batch.distortion.points is None:
            ranks = _ranked(distribution)
            yield ranks
            if self.pairs <= AHEAD:  # one symbol against the rest
                for first in range(1, min(len(distribution) - 1, 5)):
                    yield np.where(ranks == first, 0, np.where(ranks < first, ranks + 1, ranks))


def _ranked(distribution: Floats) -> Ints:
    """Place of each symbol in the order of likelihood; equally likely ones by code."""
    return np.argsort(np.argsort(-distribution, kind="stable"), kind="stable")


@lru_cache(maxsize=8)
def _levels(distortion: Distortion, n: int) -> list[Ints]:
    points = distortion.points
    if points is None and distortion.table is not None:
        points = _spread_out(distortion.table)
    if points is None:
        return []
    flat = points.reshape(n, -1)
    keys = [flat[:, axis] for axis in range(flat.shape[1])]
    if flat.shape[1] == 2:
        keys += [flat[:, 0] + flat[:, 1], flat[:, 0] - flat[:, 1]]
    return [np.unique(key, return_inverse=True)[1].reshape(-1) for key in keys]


@lru_cache(maxsize=4)
def _similar(model: MarkovModel) -> list[Ints]:
    """Two orders of the symbols in which those that follow one another are near, as levels (n,).

    Slow modes of the symmetrised chain, by a few dozen steps of subspace iteration; rounded, so that a last digit does
    not change the order.
    """
    from scipy import sparse

    shown = sparse.csr_array((np.ones(model.size), (np.arange(model.size), model.newest)), (model.size, model.n))
    both = shown.T @ model.chain @ shown
    both = sparse.csr_array(both + both.T)
    degree = np.maximum(np.asarray(both.sum(1)).reshape(-1), 1e-12)
    scaled = sparse.diags_array(degree**-0.5) @ both @ sparse.diags_array(degree**-0.5)
    modes = np.random.default_rng(SEED).standard_normal((model.n, 3))
    modes[:, 0] = np.sqrt(degree)
    for _ in range(ROUNDS):
        modes[:, 1:] += scaled @ modes[:, 1:]
        for place in range(3):
            for earlier in range(place):
                modes[:, place] -= (modes[:, place] * modes[:, earlier]).sum() * modes[:, earlier]
            modes[:, place] /= np.sqrt((modes[:, place] ** 2).sum())
    keys = (modes[:, 1:] / np.sqrt(degree)[:, None]).T
    return [_ranked(-(key / np.abs(key).max()).round(9)) for key in keys]


def _spread_out(table: Floats) -> Floats:
    """A coordinate for each symbol by classical scaling of any matrix of costs."""
    square = ((table + table.T) / 2.0) ** 2
    centred = square - square.mean(0) - square.mean(1)[:, None] + square.mean()
    _, vectors = np.linalg.eigh(-centred / 2.0)
    first = vectors[:, -1].round(9)
    return np.asarray(first * (1.0 if first[np.abs(first).argmax()] > 0 else -1.0))


@dataclass(frozen=True, eq=False)
class Cuts:
    """Cuts of positions of a node, each by an order of its symbols."""

    positions: Ints  # (K,) of each order
    levels: Ints  # (K, n)
    order: Ints  # (C,) by which each cut is
    place: Ints  # (C,) level at the cut
    theta: Floats  # (C,) share of that level that goes left
    sides: Floats  # (C, 2) masses of both sides

    def shares(self, codes: Ints) -> Floats:
        """(C, k) probability of each of k symbols to go left, as a whole number over `SCALE`."""
        level, place = self.levels[:, codes][self.order], self.place[:, None]
        theta = np.round(self.theta * SCALE) / SCALE
        return np.where(level < place, 1.0, np.where(level == place, theta[:, None], 0.0))

    def split(self, node: Node, index: int) -> Split:
        """One of the cuts as a question of the tree, with the integer weights it is asked with."""
        place, theta = self.place[index], round(float(self.theta[index]) * STEPS) * (DENOMINATOR // STEPS)
        level, position = self.levels[self.order[index]], int(self.positions[self.order[index]])
        left = np.where(level < place, DENOMINATOR, np.where(level == place, theta, 0))
        distribution, share = node.symbol_distribution(position), left / ONE
        mass, rest = float((distribution * share).sum()), float((distribution * (1.0 - share)).sum())
        return Split(position, left, mass, rest)


def cut(positions: Ints, levels: Ints, masses: Floats, mass: float, least: float, aims: Floats | None = None) -> Cuts:
    """Cuts that leave a cell on both sides: between levels, and inside one where a whole number of cells fits.

    `masses` (K, L) are those of the levels; `aims` are the shares near which to cut (every place where None).
    """
    rows, (orders, width), last = np.arange(len(masses))[:, None], masses.shape, levels.max(1, keepdims=True)
    running, beyond = np.zeros((orders, width + 1)), np.zeros((orders, width + 2))
    np.cumsum(masses, axis=1, out=running[:, 1:])
    np.cumsum(masses[:, ::-1], axis=1, out=beyond[:, width - 1 :: -1])  # no difference: a small side keeps its digits
    count, enough = cells(mass, least), least * (1 - HAIR)
    inner = np.arange(1, width)
    if aims is not None:
        near = np.searchsorted(running[0], aims * mass)
        inner = np.unique(np.minimum(np.maximum(np.concatenate((near, near - 1)), 1), max(1, width - 1)))
    left, right = running[:, inner], beyond[:, inner]
    fits = (left >= enough) & (right >= enough)
    where = np.where(inner <= np.maximum(last, 1), left * (count / mass), count // 2)
    halves = np.tile([count // 2, (count + 1) // 2], (orders, 1))
    whole = np.sort(np.concatenate((np.floor(where), np.ceil(where), halves), axis=1), axis=1)
    target = whole * (mass / count)
    at = np.stack([sums.searchsorted(aim, side="right") for sums, aim in zip(running, target, strict=True)]) - 1
    at = np.minimum(np.maximum(at, 0), last)
    held = masses[rows, at]
    theta = np.where(held > 0, (target - running[rows, at]) / np.maximum(held, 1e-300), 0.0)
    theta = np.rint(np.minimum(np.maximum(theta, 0.0), 1.0) * STEPS) / STEPS
    low, high = running[rows, at] + theta * held, beyond[rows, at + 1] + (1.0 - theta) * held
    soft = (whole >= 1) & (whole <= count - 1) & (low >= enough) & (high >= enough)
    soft &= (count <= SOFT) | ~fits.any(1, keepdims=True)
    soft[:, 1:] &= whole[:, 1:] > whole[:, :-1]
    kept = np.hstack((fits, soft))
    both = (np.tile(inner, (orders, 1)), at), (np.zeros(left.shape), theta), (left, low), (right, high)
    place, theta, *sides = (np.hstack(each)[kept] for each in both)
    return Cuts(positions, levels, kept.nonzero()[0], place, theta, np.stack(sides, axis=1))


def score(costs: Floats, sides: Floats, mass: float, least: float, balance: float = BALANCE) -> Floats:
    """Less is better; see the module. costs, sides: (C, 2) costs and masses of the two sides."""
    found = (costs * np.floor(sides / least + HAIR) ** -RHO).sum(1)
    if balance and cells(mass, least) > 16:
        slim = sides.min(1) < balance * mass
        found = np.where(slim, found + costs.sum(1).max(), found)
    return found.round(ROUND)


def best(search: Search, node: Node) -> Split | None:
    """The best split of a node, or None where nothing is left to gain."""
    if search.pairs > EXACT:
        return _best_sampled(search, node)
    cuts, costs, before = _weighed(search, node)
    if not len(costs):
        return None
    count = cells(node.mass, search.least)
    disclosed = costs.sum(1) < before * (1 - 1e-9)
    if count > SOFT and not disclosed.any():
        return None
    balance = LOOSE if search.pairs > AHEAD else 0.0
    scores = score(costs, cuts.sides, node.mass, search.least, balance)
    if count > SOFT:  # a soft cut that tells nothing is balanced, and would only halve what must be distinguished later
        scores = np.where(disclosed, scores, np.inf)
    ahead = search.pairs <= AHEAD and count > 2
    order = np.argsort(scores, kind="stable")[: TRIED if ahead else 1].tolist()
    tried = [cuts.split(node, k) for k in order]
    if not ahead:
        return tried[0] if disclosed[order[0]] or count > 2 else None
    values = [_follow(search, node, split, costs[k]) for split, k in zip(tried, order, strict=True)]
    return tried[values.index(min(values))] if min(values) < before * (1 - 1e-9) else None


def _follow(search: Search, node: Node, split: Split, costs: Floats) -> float:
    """What the two sides cost once each is split again as well as it can be."""
    total = 0.0
    for side in (0, 1):
        child, cost = node.child(split, side), float(costs[side])
        if cells(child.mass, search.least) >= 2:
            cuts, further, _ = _weighed(search, child)
            if len(further):
                cost = min(cost, float(score(further, cuts.sides, child.mass, search.least, 0.0).min()))
        total += cost
    return round(total, ROUND)


def _weighed(search: Search, node: Node) -> tuple[Cuts, Floats, float]:
    """All cuts of a node, the exact cost of their two sides (C, 2), and the node's own."""
    batch, n, length = node.batch, node.batch.model.n, node.batch.length
    joint, each = _joint(node) if length > 1 or batch.model.size > n else None, np.arange(length)
    distributions = node.symbol_distributions() if joint is None else joint[each, each].sum(1)
    orders = [(t, level) for t in range(length) for level in search.orders(distributions[t])]
    fresh = (1.0 - search.disclosed) * search.before
    before = float(_least_cost(batch.distortion, search.disclosed * distributions + node.mass * fresh))
    positions, levels = np.array([t for t, _ in orders], np.int64), np.array([level for _, level in orders])
    shape = len(levels), int(levels.max()) + 1, length, n  # E[f; symbol at each level, symbol at each position]
    if joint is None:
        rows = np.where(levels[:, None, None] == np.arange(shape[1])[:, None, None], distributions, 0.0)
    else:
        bins = (levels + shape[1] * np.arange(len(levels))[:, None])[..., None] * (length * n) + np.arange(length * n)
        values = joint[positions].transpose(0, 2, 1, 3)
        rows = np.bincount(bins.ravel(), values.ravel(), math.prod(shape)).reshape(shape)
    masses = rows[np.arange(len(levels)), :, positions].sum(2)
    cuts = cut(positions, levels, masses, node.mass, search.least)
    below = np.concatenate((np.zeros_like(rows[:, :1]), np.cumsum(rows, axis=1)), axis=1)
    left = below[cuts.order, cuts.place] + cuts.theta[:, None, None] * rows[cuts.order, cuts.place]
    right, mass = np.maximum(distributions - left, 0.0), cuts.sides[:, 0, None, None]
    sides = (search.disclosed * left + mass * fresh, search.disclosed * right + (node.mass - mass) * fresh)
    return cuts, np.stack([_least_cost(batch.distortion, side) for side in sides], axis=1), before


def _least_cost(distortion: Distortion, distributions: Floats) -> Floats:
    """Σ_t min_r Σ_x distribution_t(x) D(x, r) for distributions (..., w, n)."""
    if distortion.is_hamming:
        return np.asarray((distributions.sum(-1) - distributions.max(-1)).sum(-1))
    return np.asarray(distortion.expected(distributions).min(-1).sum(-1))


def _joint(node: Node) -> Floats:
    """E[f; symbol_t = x, symbol_s = x'] for all pairs of positions: (w, w, n, n)."""
    model, length = node.batch.model, node.batch.length
    steps, newest = model.advance(np.eye(model.size)), np.eye(model.n)[model.newest]
    out = np.empty((length, length, model.n, model.n))
    reach = np.empty((0, model.n, model.size))
    for later in range(length):
        if later:
            reach = node.weighed(later, np.einsum("txy,yz->txz", reach, steps))
        reach = np.concatenate((reach, (newest.T * node.forward(later))[None]))
        pair = reach * node.backward(later)
        pair = pair if model.size == model.n else np.einsum("txy,yz->txz", pair, newest)
        out[: later + 1, later] = pair
        out[later, : later + 1] = pair.transpose(0, 2, 1)
    return out


def _best_sampled(search: Search, node: Node) -> Split | None:
    """The best split among the most promising positions and orders, or None where nothing is left to gain."""
    sample = node.sample
    if sample is None or len(sample.codes) < ENOUGH:
        kind = ByCounts if node.batch.distortion.points is None else ByMoments
        generator = np.random.default_rng([SEED, len(node.path), *node.path])  # public
        draws = generator.random((node.batch.length, DRAWN if node.path else FIRST))
        sample = node.sample = kind(search, _draw(node, draws))
    before = float(sample.both(np.ones((1, len(sample.codes)))).sum())
    if before <= 0.0:
        return None
    sides, positions, orders = sample.first_questions()
    gain = before - sample.both(sides.astype(np.float64)).sum(1)
    ranked = np.argsort(-np.where(positions == node.asked, gain / STAY, gain).round(9), kind="stable")
    for position, order in dict.fromkeys(zip(positions[ranked].tolist(), orders[ranked].tolist(), strict=True)):
        distribution = node.symbol_distribution(position)
        if order >= 0:
            level, aims = search.levels[order], AIMS if cells(node.mass, search.least) > 8 else MANY_AIMS
        else:  # symbols past the likely ones share one level: they are never distinguished here
            level, aims = np.minimum(_ranked(distribution), 4 * POPULAR), MANY_AIMS
        masses = np.bincount(level, distribution).astype(np.float64, copy=False)
        found = cut(np.array([position]), level[None], masses[None], node.mass, search.least, aims)
        if len(found.place):
            weight = found.shares(sample.codes[:, position])
            values = score(sample.both(weight), found.sides, node.mass, search.least)
            return found.split(node, int(values.argmin()))
    return None


class Sample(ABC):
    """Batches drawn from a node, (sample, w), and what the two sides of a question would cost by them.

    What a part of the sample costs follows from sums of the features of its batches: whole numbers, exact in any order.
    """

    features: NDArray[Any]  # (sample, F)

    def __init__(self, search: Search, codes: Ints) -> None:
        self.search, self.codes = search, codes

    def part(self, kept: Ints) -> Sample:
        """The batches that a child inherits."""
        return type(self)(self.search, self.codes[kept])

    def both(self, weight: Floats) -> Floats:
        """(C, 2): cost of each side, for weights (C, sample) in [0, 1] of the left one."""
        left, mass = weight.astype(self.features.dtype) @ self.features, weight.sum(1)
        right = self.features.sum(0) - left, len(self.codes) - mass
        return np.stack((self.cost(left, mass), self.cost(*right)), axis=1)

    @abstractmethod
    def cost(self, sums: NDArray[Any], mass: Floats) -> Floats:
        """Cost of parts of the sample (C,) with these sums of features (C, F) and so many batches (C,)."""

    def first_questions(self) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Questions that are tried to rank positions and orders (-1: popularity): who goes left, (C, sample), and both.

        By each order, the lower half of the sample at each position.
        """
        count, length = self.codes.shape
        keys = np.stack([level[self.codes] for level in self.search.levels])
        middle = np.partition(keys, count // 2, axis=1)[:, count // 2, None]
        strict, loose = keys < middle, keys <= middle
        nearer = np.abs(2 * strict.sum(1) - count) <= np.abs(2 * loose.sum(1) - count)
        sides = np.where(nearer[:, None], strict, loose).transpose(0, 2, 1).reshape(-1, count)
        return sides, np.tile(np.arange(length), len(keys)), np.repeat(np.arange(len(keys)), length)


class ByMoments(Sample):
    """Cost of a part of the sample by its spread around its mean, position by position."""

    def __init__(self, search: Search, codes: Ints) -> None:
        super().__init__(search, codes)
        points = search.batch.distortion.points
        assert points is not None
        flat = points.reshape(len(points), -1)[codes]  # (sample, w, d)
        low = flat.min((0, 1), initial=math.inf)
        span = float((flat - low).max(initial=0.0)) or 1.0
        whole = np.rint((flat - low) * (SCALE / span))
        both = np.concatenate((whole, (whole**2).sum(2, keepdims=True)), axis=2)  # places, and their squares
        self.features = both.reshape(len(codes), math.prod(both.shape[1:]))  # of nobody, perhaps

    def cost(self, sums: NDArray[Any], mass: Floats) -> Floats:
        """Cost of parts of the sample, by the spread of their places."""
        moments, mass = sums.reshape(len(sums), self.codes.shape[1], -1), mass[:, None]
        spread = np.maximum(mass * moments[..., -1] - (moments[..., :-1] ** 2).sum(2), 0.0)
        squared = self.search.batch.distortion.name == "squared"
        return np.asarray((spread / np.maximum(mass, 1.0) if squared else np.sqrt(spread)).sum(1))


class ByCounts(Sample):
    """Cost of a part of the sample by its counts of the most popular symbols, position by position.

    Counts are whole numbers, or whole numbers over `SCALE`, and few: single precision holds them exactly.
    """

    def __init__(self, search: Search, codes: Ints) -> None:
        super().__init__(search, codes)
        count, length = codes.shape
        n = search.batch.model.n
        symbols, place, counts = np.unique(codes + n * np.arange(length), return_inverse=True, return_counts=True)
        position = symbols // n
        order = np.lexsort((-counts, position))  # the most frequent symbols of each position first, ties by code
        distinct = np.bincount(position, minlength=length)
        rank = np.empty(len(symbols), np.int64)
        rank[order] = places_within(distinct)
        self.ranks = rank[place.reshape(codes.shape)]  # (sample, w) of each symbol among those of its position
        reached = np.cumsum(counts[order]) - count * position
        self.middle = np.bincount(position[reached < count / 2], minlength=length) + 1
        kept = np.minimum(distinct, POPULAR)
        self.starts = np.cumsum(kept) - kept
        self.features = np.zeros((count, int(kept.sum())), np.float32)
        batch, column = np.nonzero(self.ranks < POPULAR)
        self.features[batch, self.starts[column] + self.ranks[batch, column]] = 1.0
        self.popular = np.split(symbols[order[rank[order] < POPULAR]] % n, self.starts[1:])

    def first_questions(self) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Halves by each order, and the most popular symbols of a position against the others."""
        tried = [
            (place, many)
            for place, half in enumerate(self.middle.tolist())
            for many in sorted({1, max(1, half - 1), half})
        ]
        positions, most = np.array(tried).T
        found = (self.ranks[:, positions] < most).T, positions, np.full(len(tried), -1)
        halves = super().first_questions()
        sides, places, orders = (np.concatenate(both) for both in zip(halves, found, strict=True))
        return sides, places, orders

    def cost(self, sums: NDArray[Any], mass: Floats) -> Floats:
        """Cost of parts of the sample, by the best guess at each position among its popular symbols."""
        table = self.search.batch.distortion.table
        if table is None:
            most = np.maximum.reduceat(sums, self.starts, axis=1).sum(1, dtype=np.float64)
            return np.asarray(mass * len(self.starts) - most)
        total = np.zeros(len(sums))
        for start, top in zip(self.starts.tolist(), self.popular, strict=True):
            part = sums[:, start : start + len(top)].astype(np.float64)
            total += np.einsum("cx,xr->cr", part, table[np.ix_(top, top)]).min(1)
        return total


def _draw(node: Node, draws: Floats) -> Ints:
    """Batches drawn by the node's distribution: codes (sample, w). For utility only; nothing rests on it."""
    model, found = node.batch.model, np.empty(draws.shape, np.int64)
    count = draws.shape[1]
    for position, uniform in enumerate(draws):
        if position == 0:  # one in each of as many equal parts of the distribution
            found[0] = _place(np.cumsum(node.forward(0) * node.backward(0)), (np.arange(count) + uniform) / count)
            continue
        weighed = node.weighed(position, node.backward(position))
        found[position] = _step(model, found[position - 1], weighed, uniform)
    return np.ascontiguousarray(model.newest[found].T)


def _place(running: Floats, shares: Floats) -> Ints:
    """The places in a running sum at which these shares of it are reached."""
    return np.minimum(np.searchsorted(running, shares * running[-1], side="right"), len(running) - 1)


def _step(model: MarkovModel, states: Ints, value: Floats, uniform: Floats) -> Ints:
    """One step of sampled batches, towards states in proportion to transition × value."""
    counts, entry = row_entries(model.chain.indptr, states)
    running = np.concatenate(([0.0], np.cumsum(model.chain.data[entry] * value[model.chain.indices[entry]])))
    ends = np.cumsum(counts)
    low, weighed = running[ends - counts], model.base * value[model.base_state]
    answers, totals = model.answers[states], np.bincount(model.base_answer, weighed, model.restart_rows)
    inside, restart = running[ends] - low, model.backoff[states] * totals[answers]
    aim = uniform * (inside + restart)
    anew = (restart > 0) & (aim >= inside)
    place = np.clip(np.searchsorted(running, low + aim, side="right") - 1, ends - counts, ends - 1)
    following = np.where(anew, 0, model.chain.indices[entry[np.where(anew, 0, place)]]) if entry.size else ends * 0
    for answer in np.unique(answers[anew]).tolist():
        own, base = anew & (answers == answer), np.cumsum(np.where(model.base_answer == answer, weighed, 0.0))
        following[own] = model.base_state[_place(base, (aim[own] - inside[own]) / restart[own])]
    return following
