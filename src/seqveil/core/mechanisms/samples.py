"""Which question to ask next in a large alphabet: judged by batches sampled from the node with a public seed.

The sample ranks positions and orders; where to cut is then found from the exact distribution of the position. Sums over
the sample are sums of integers, exact in any order, so that no tree depends on how a product of matrices is blocked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms.boxes import Node, Split
from seqveil.core.mechanisms.questions import SEED, Cuts, Search, cells, cut, score
from seqveil.core.model import MarkovModel

FIRST, DRAWN, ENOUGH = 300, 160, 10  # batches sampled at the root, at a node, and how few of them a child may inherit
STAY = 0.7  # share of the best gain that is enough to ask about the same position again, which needs no pass
SCALE = 1024.0  # coordinates become integers up to this
POPULAR = 32  # symbols of a position that may be its best guess
THIN, TAIL = 32, 8  # entries of a chain's row that sampling looks at, and how many of them stand for all the others
TOGETHER = 32  # symbols whose maximum stands for them in a search for the likeliest
AIMS, MANY_AIMS = np.array([0.35, 0.5, 0.65]), np.linspace(0.1, 0.9, 9)


class Sample(Protocol):
    """Batches drawn from a node, and what the two sides of a question would cost by them."""

    @property
    def codes(self) -> Ints:
        """(sample, w)"""

    def part(self, kept: Ints) -> Sample:
        """The batches that a child inherits."""

    def both(self, weight: Floats) -> Floats:
        """(C, 2): cost of each side, for weights (C, sample) in [0, 1] of the left one."""

    def gains(self) -> tuple[Floats, Ints, Ints]:
        """What each of the first questions gains (C,), its position and its order (-1: popularity); none: nothing is
        left to gain.
        """


def best_sampled(search: Search, node: Node) -> Split | None:
    """The best split among the most promising positions and orders, or None where nothing is left to gain."""
    sample = node.batches
    if sample is None or len(sample.codes) < ENOUGH:
        sample = node.batches = _sample(search, node)
    gain, positions, orders = sample.gains()
    ranked = np.argsort(-np.where(positions == node.asked, gain / STAY, gain).round(9), kind="stable")
    tried: set[tuple[int, int]] = set()
    for index in ranked.tolist():
        owner = int(positions[index]), int(orders[index])
        if owner in tried:
            continue
        tried.add(owner)
        found = _cuts(search, node, *owner)
        if len(found.place):
            weight = found.shares(sample.codes[:, found.position], SCALE)
            values = score(sample.both(weight), found.sides, node.mass, search.least)
            return found.split(node, int(values.argmin()))
    return None


def _sample(search: Search, node: Node) -> Sample:
    drawn = _draw(node, _randomness(node.path, node.window.length))
    return sample_of(search.levels, search.distortion, drawn)


@lru_cache(maxsize=32)
def _randomness(path: tuple[int, ...], length: int) -> Floats:
    """(w, sample) public randomness for the batches drawn at a node."""
    generator = np.random.default_rng([SEED, len(path), *path])
    return generator.random((length, DRAWN if path else FIRST))


def sample_of(levels: list[Ints], distortion: Distortion, codes: Ints) -> Sample:
    """A sample of batches (sample, w), judged by the distortion."""
    if distortion.points is not None:
        return _Moments.of(levels, distortion, codes)
    return _Counts(levels, distortion.table, codes)


def _cuts(search: Search, node: Node, position: int, which: int) -> Cuts:
    """Cuts of a position from its exact distribution: near the middle of a given order, or at every likely symbol."""
    distribution = node.symbol_distribution(position)
    if which >= 0:
        level = search.levels[which]
        masses = np.bincount(level, distribution, search.tops[which]).astype(np.float64, copy=False)
        aims = AIMS if cells(node.mass, search.least) > 8 else MANY_AIMS
        return cut(position, level, masses, node.mass, search.least, aims)
    # symbols past the likely ones share one level: they are never distinguished here
    order = top_one(distribution, 4 * POPULAR)
    level = np.full(len(distribution), len(order))
    level[order] = np.arange(len(order))
    masses = np.bincount(level, distribution, len(order) + 1).astype(np.float64, copy=False)
    return cut(position, level, masses, node.mass, search.least, MANY_AIMS)


def _halves(keys: Ints) -> NDArray[np.bool_]:
    """For levels (orders, sample, w) the lower half of each order and position (C, sample)."""
    orders, count, length = keys.shape
    middle = np.partition(keys, count // 2, axis=1)[:, count // 2, None]
    strict, loose = keys < middle, keys <= middle
    nearer = np.abs(2 * strict.sum(1) - count) <= np.abs(2 * loose.sum(1) - count)
    return np.where(nearer[:, None], strict, loose).transpose(0, 2, 1).reshape(orders * length, count)


@lru_cache(maxsize=64)
def _owners(orders: int, length: int) -> tuple[Ints, Ints]:
    """Position and order of each of these halves."""
    return np.tile(np.arange(length), orders), np.repeat(np.arange(orders), length)


def _gained(sample: Sample, sides: Floats, positions: Ints, orders: Ints) -> tuple[Floats, Ints, Ints]:
    """By how much each question lowers the cost of a sample; see `Sample.gains`."""
    before = float(sample.both(np.ones((1, len(sample.codes)))).sum())
    if before <= 0.0:
        return np.zeros(0), positions[:0], orders[:0]
    return before - sample.both(sides).sum(1), positions, orders


@dataclass(frozen=True, eq=False)
class _Moments:
    """Cost of a part of the sample by its spread around its mean, position by position."""

    codes: Ints
    keys: Ints  # (orders, sample, w) levels
    places: Floats  # (sample, w·d) coordinates as whole numbers
    squares: Floats  # (sample, w)
    squared: bool

    @classmethod
    def of(cls, levels: list[Ints], distortion: Distortion, codes: Ints) -> _Moments:
        points = distortion.points
        assert points is not None
        keys, squared = np.stack([level[codes] for level in levels]), distortion.name == "squared"
        flat = points.reshape(len(points), -1)[codes]  # (sample, w, d)
        low = flat.min((0, 1))
        span = float((flat - low).max()) or 1.0
        whole = np.rint((flat - low) * (SCALE / span))
        squares = (whole**2).sum(2)
        return cls(codes, keys, whole.reshape(len(codes), -1), squares, squared)

    def part(self, kept: Ints) -> _Moments:
        places, squares = self.places[kept], self.squares[kept]
        return _Moments(self.codes[kept], self.keys[:, kept], places, squares, self.squared)

    def gains(self) -> tuple[Floats, Ints, Ints]:
        orders, _, length = self.keys.shape
        return _gained(self, _halves(self.keys).astype(np.float64), *_owners(orders, length))

    def both(self, weight: Floats) -> Floats:
        mass = weight.sum(1)[:, None]
        first, second = weight @ self.places, weight @ self.squares
        left = self._cost(mass, first, second)
        right = self._cost(len(self.places) - mass, self.places.sum(0) - first, self.squares.sum(0) - second)
        return np.stack((left, right), axis=1)

    def _cost(self, mass: Floats, first: Floats, second: Floats) -> Floats:
        around = (first**2).reshape(*second.shape, -1).sum(2)
        spread = np.maximum(mass * second - around, 0.0)
        return np.asarray((spread / np.maximum(mass, 1.0) if self.squared else np.sqrt(spread)).sum(1))


class _Counts:
    """Cost of a part of the sample by its counts of the most popular symbols, position by position.

    Counts are whole numbers, or whole numbers over `SCALE`, and few: single precision holds them exactly.
    """

    def __init__(self, levels: list[Ints], table: Floats | None, codes: Ints) -> None:
        self.levels, self.codes, self.table = levels, codes, table
        count, length = codes.shape
        n = int(codes.max(initial=0)) + 1
        symbols, place, counts = np.unique(codes + n * np.arange(length), return_inverse=True, return_counts=True)
        position = symbols // n
        order = np.lexsort((-counts, position))  # the most frequent symbols of each position first, ties by code
        distinct = np.bincount(position, minlength=length)
        rank = np.empty(len(symbols), np.int64)
        rank[order] = np.arange(len(symbols)) - np.repeat(np.cumsum(distinct) - distinct, distinct)
        self.ranks = rank[place.reshape(codes.shape)]  # (sample, w) of each symbol among those of its position
        reached = np.cumsum(counts[order]) - count * position
        self.middle = np.bincount(position[reached < count / 2], minlength=length) + 1
        kept = np.minimum(distinct, POPULAR)
        self.starts = np.cumsum(kept) - kept
        self.hot: NDArray[np.float32] = np.zeros((count, int(kept.sum())), np.float32)
        batch, column = np.nonzero(self.ranks < POPULAR)
        self.hot[batch, self.starts[column] + self.ranks[batch, column]] = 1.0
        self.everything: NDArray[np.float32] = self.hot.sum(0)
        self.popular: Ints = symbols[order[rank[order] < POPULAR]] % n

    def part(self, kept: Ints) -> _Counts:
        return _Counts(self.levels, self.table, self.codes[kept])

    def gains(self) -> tuple[Floats, Ints, Ints]:
        halves = _halves(np.stack([level[self.codes] for level in self.levels]))
        owners = _owners(len(self.levels), self.codes.shape[1])
        asked = [
            (k, many) for k, half in enumerate(self.middle.tolist()) for many in sorted({1, max(1, half - 1), half})
        ]
        positions, most = np.array(asked).T
        popular = (self.ranks[:, positions] < most).T
        sides = np.concatenate([halves, popular]).astype(np.float64)
        by_popularity = np.full(len(asked), -1)
        return _gained(self, sides, np.concatenate([owners[0], positions]), np.concatenate([owners[1], by_popularity]))

    def cost(self, counts: NDArray[np.float32], mass: Floats) -> Floats:
        """Cost of parts of the sample with so many of each popular symbol (C, …) and of all (C,)."""
        if self.table is None:
            most = np.maximum.reduceat(counts, self.starts, axis=1).sum(1, dtype=np.float64)
            return np.asarray(mass * len(self.starts) - most)
        total = np.zeros(len(counts))
        for start, top in zip(self.starts, np.split(self.popular, self.starts[1:]), strict=True):
            part = counts[:, start : start + len(top)].astype(np.float64)
            total += np.einsum("cx,xr->cr", part, self.table[np.ix_(top, top)]).min(1)
        return total

    def both(self, weight: Floats) -> Floats:
        left, mass = weight.astype(np.float32) @ self.hot, weight.sum(1)
        return np.stack((self.cost(left, mass), self.cost(self.everything - left, len(self.codes) - mass)), axis=1)


def _draw(node: Node, randomness: Floats) -> Ints:
    """Batches drawn nearly by the node's distribution: codes (sample, w). For utility only; nothing rests on it."""
    window, model = node.window, node.window.model
    states = window.kept[0][begin(node.distribution(0), randomness[0])]
    if window.length == 1:
        return model.newest[states][:, None]
    values = np.zeros((window.length, model.size))
    for position in range(1, window.length):
        values[position, window.kept[position]] = node.weights[position] * node.backward(position)
    found = walk(model, states, values, randomness[1:])
    return np.ascontiguousarray(model.newest[found].T)


def begin(distribution: Floats, randomness: Floats) -> Ints:
    """Places in a distribution, one for each of as many equal parts of it, by one draw each."""
    running = np.cumsum(distribution)
    aim = (np.arange(len(randomness)) + randomness) / len(randomness) * running[-1]
    return np.minimum(np.searchsorted(running, aim, side="right"), len(running) - 1)


def walk(model: MarkovModel, states: Ints, values: Floats, randomness: Floats) -> Ints:
    """States (w, sample) of batches that begin with these: each step goes in proportion to transition × value.

    values: (w, S) of every state at each position.
    randomness: (w - 1, sample) for the steps.
    """
    found = np.empty((len(values), len(states)), np.int64)
    found[0] = states
    for position in range(1, len(values)):
        found[position] = _step(model, found[position - 1], values[position], randomness[position - 1])
    return found


def _step(model: MarkovModel, states: Ints, value: Floats, randomness: Floats) -> Ints:
    """One step of sampled batches, towards states in proportion to (thinned) transition × value."""
    targets, chances = _thinned(model)
    target = targets[states]
    running = np.cumsum(chances[states] * value[target], axis=1)
    inside, base = running[:, -1], model.base * value[model.base_state]
    restart = model.backoff[states] * float(base.sum())
    aim = randomness * (inside + restart)
    place = np.minimum((running <= aim[:, None]).sum(1), target.shape[1] - 1)
    following = target[np.arange(len(target)), place]
    anew = np.flatnonzero((aim >= inside) & (restart > 0))
    if anew.size:
        running, share = np.cumsum(base), (aim[anew] - inside[anew]) / restart[anew]
        symbol = np.minimum(np.searchsorted(running, share * running[-1], side="right"), len(base) - 1)
        following[anew] = model.base_state[symbol]
    return following


@lru_cache(maxsize=4)
def _thinned(model: MarkovModel) -> tuple[Ints, Floats]:
    """Each row of the chain by at most `THIN` of its entries, (S, THIN) targets and weights: for sampling only.

    The likeliest entries stay as they are. Of the others a few stand for all: evenly spaced ones, each with an equal
    share of what they weigh together.
    """
    chain, size = model.chain, model.size
    count = np.diff(chain.indptr)
    width = int(min(THIN, count.max(initial=1)))
    row = np.repeat(np.arange(size), count)
    order = np.lexsort((-chain.data, row))
    target, weight = chain.indices[order], chain.data[order]
    rank = np.arange(len(row)) - np.repeat(chain.indptr[:-1], count)
    head = width - np.where(count > width, TAIL, 0)
    likely = rank < head[row]
    targets, weights = np.zeros((size, width), np.int64), np.zeros((size, width))
    targets[row[likely], rank[likely]], weights[row[likely], rank[likely]] = target[likely], weight[likely]
    long = np.flatnonzero(count > width)
    if long.size:
        running = np.concatenate(([0.0], np.cumsum(np.where(likely, 0.0, weight))))
        low, high = running[chain.indptr[long]], running[chain.indptr[long + 1]]
        aim = low[:, None] + (high - low)[:, None] * ((np.arange(TAIL) + 0.5) / TAIL)
        place = np.searchsorted(running, aim, side="left") - 1
        targets[long, width - TAIL :] = target[np.clip(place, 0, len(target) - 1)]
        weights[long, width - TAIL :] = ((high - low) / TAIL)[:, None]
    return targets, weights


def top_one(belief: Floats, count: int) -> Ints:
    """Codes of the `count` likeliest symbols, likeliest first, ties by code, without sorting all of them.

    The `count` largest of the maxima of small blocks bound the `count` largest values from below.

    >>> top_one(np.array([0.1, 0.4, 0.1, 0.4]), 3).tolist()
    [1, 3, 0]
    """
    blocks = belief.size // TOGETHER
    if blocks <= 2 * count:
        return np.argsort(-belief, kind="stable")[:count]
    largest = belief[: blocks * TOGETHER].reshape(blocks, TOGETHER).max(1)
    least = np.partition(largest, blocks - count)[blocks - count]
    chosen = np.flatnonzero(belief >= least)
    return chosen[np.argsort(-belief[chosen], kind="stable")[:count]]
