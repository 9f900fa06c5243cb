"""Which question to ask next in a large alphabet: judged by batches sampled from the node with a public seed.

The sample ranks positions and orders; where to cut is then found from the exact law of the position. Sums over the
sample are sums of integers, exact in any order, so that no tree depends on how a product of matrices is blocked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms._boxes import Node, Split
from seqveil.core.mechanisms._hamming import top_one
from seqveil.core.mechanisms._splits import Cuts, cells, cut, score
from seqveil.core.model import MarkovModel

if TYPE_CHECKING:
    from seqveil.core.mechanisms._splits import Search

SEED = 20260101  # public, and part of the format: another seed is another tree
FIRST, DRAWN, ENOUGH = 300, 160, 10  # batches sampled at the root, at a node, and how few of them a child may inherit
STAY = 0.7  # share of the best gain that is enough to ask about the same position again, which needs no pass
SCALE = 1024.0  # coordinates become integers up to this
POPULAR = 32  # symbols of a position that may be its best guess
ROUNDS = 60
AIMS = np.array([0.35, 0.5, 0.65])


class Sample(Protocol):
    """Batches drawn from a node, and what the two sides of a question would cost by them."""

    @property
    def codes(self) -> Ints:
        """(sample, w)"""

    def part(self, kept: Ints) -> Sample:
        """The batches that a child inherits."""

    def both(self, weight: Floats) -> Floats:
        """(C, 2): cost of each side, for weights (C, sample) in [0, 1] of the left one."""

    def questions(self) -> tuple[Floats, list[tuple[int, int]]]:
        """Sides (C, sample) of the first questions to rank, and position and order of each; order -1: popularity."""


def best_sampled(search: Search, node: Node) -> Split | None:
    """The best split among the most promising positions and orders, or None where nothing is left to gain."""
    sample = node.batches
    if sample is None or len(sample.codes) < ENOUGH:
        count = DRAWN if node.path else FIRST
        drawn = node.sample(np.random.default_rng([SEED, len(node.path), *node.path]), count)
        sample = _Moments.of(search, drawn) if search.distortion.points is not None else _Counts(search, drawn)
        node.batches = sample
    sides, owners = sample.questions()
    before = float(sample.both(np.ones((1, len(sample.codes)))).sum())
    if before <= 0.0:
        return None
    gain = before - sample.both(sides).sum(1)
    here = np.array([position == node.asked for position, _ in owners])
    ranked = np.argsort(-np.where(here, gain / STAY, gain).round(9), kind="stable")
    for place, index in enumerate(ranked.tolist()):
        if owners[index] in [owners[earlier] for earlier in ranked[:place]]:
            continue
        found = _cuts(search, node, *owners[index])
        if len(found.place):
            weight: Floats = np.round(found.shares(sample.codes[:, found.position]) * SCALE) / SCALE
            values = score(sample.both(weight), found.sides, node.mass, search.least)
            return found.split(node, int(values.argmin()))
    return None


def _cuts(search: Search, node: Node, position: int, which: int) -> Cuts:
    """Cuts of a position from its exact law: near the middle of a given order, or at every likely symbol."""
    law = node.symbol_law(position)
    if which >= 0:
        level = search.levels[which]
        masses = np.bincount(level, law, int(level.max()) + 1).astype(np.float64, copy=False)
        aims = AIMS if cells(node.mass, search.least) > 8 else np.linspace(0.1, 0.9, 9)
        return cut(position, level, masses, node.mass, search.least, aims)
    # symbols past the likely ones share one level: they are never told apart here
    order = top_one(law, 4 * POPULAR)
    level = np.full(len(law), len(order))
    level[order] = np.arange(len(order))
    masses = np.bincount(level, law, len(order) + 1).astype(np.float64, copy=False)
    return cut(position, level, masses, node.mass, search.least, np.linspace(0.1, 0.9, 9))


@lru_cache(maxsize=4)
def similar(model: MarkovModel) -> list[Ints]:
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
    found = []
    for key in keys:
        level = np.empty(model.n, np.int64)
        level[np.argsort((key / np.abs(key).max()).round(9), kind="stable")] = np.arange(model.n)
        found.append(level)
    return found


@dataclass(frozen=True, eq=False)
class _Moments:
    """Cost of a part of the sample by its spread around its mean, position by position."""

    codes: Ints
    keys: Ints  # (orders, sample, w) levels
    places: Floats  # (sample, w·d) coordinates as whole numbers
    squares: Floats  # (sample, w)
    squared: bool

    @classmethod
    def of(cls, search: Search, codes: Ints) -> _Moments:
        points = search.distortion.points
        assert points is not None
        flat = points.reshape(len(points), -1)[codes]  # (sample, w, d)
        low = flat.min((0, 1))
        span = float((flat - low).max()) or 1.0
        whole = np.rint((flat - low) * (SCALE / span))
        keys = np.stack([level[codes] for level in search.levels])
        squares = (whole**2).sum(2)
        return cls(codes, keys, whole.reshape(len(codes), -1), squares, search.distortion.name == "squared")

    def part(self, kept: Ints) -> _Moments:
        places, squares = self.places[kept], self.squares[kept]
        return _Moments(self.codes[kept], self.keys[:, kept], places, squares, self.squared)

    def questions(self) -> tuple[Floats, list[tuple[int, int]]]:
        orders, count, length = self.keys.shape
        middle = np.partition(self.keys, count // 2, axis=1)[:, count // 2, None]
        strict, loose = self.keys < middle, self.keys <= middle
        nearer = np.abs(2 * strict.sum(1) - count) <= np.abs(2 * loose.sum(1) - count)
        sides = np.where(nearer[:, None], strict, loose).transpose(0, 2, 1).reshape(-1, count)
        owners = [(position, which) for which in range(orders) for position in range(length)]
        return sides.astype(np.float64), owners

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
    """Cost of a part of the sample by its counts of the most popular symbols, position by position."""

    def __init__(self, search: Search, codes: Ints) -> None:
        self.search, self.codes, self.table = search, codes, search.distortion.table
        self.top: list[Ints] = []
        blocks = []
        for column in codes.T:
            symbols, place, counts = np.unique(column, return_inverse=True, return_counts=True)
            kept = np.argsort(-counts, kind="stable")[:POPULAR]
            slot = np.full(len(symbols), len(kept))
            slot[kept] = np.arange(len(kept))
            hot = np.zeros((len(column), len(kept) + 1))
            hot[np.arange(len(column)), slot[place.reshape(-1)]] = 1.0
            blocks.append(hot[:, :-1])
            self.top.append(symbols[kept])
        self.starts = np.cumsum([0] + [block.shape[1] for block in blocks[:-1]])
        self.hot = np.concatenate(blocks, axis=1)

    def part(self, kept: Ints) -> _Counts:
        return _Counts(self.search, self.codes[kept])

    def questions(self) -> tuple[Floats, list[tuple[int, int]]]:
        count, length = self.codes.shape
        sides: list[NDArray[np.bool_]] = []
        owners: list[tuple[int, int]] = []
        for which, level in enumerate(self.search.levels):
            keys = level[self.codes]
            middle = np.partition(keys, count // 2, axis=0)[count // 2]
            strict, loose = keys < middle, keys <= middle
            nearer = np.abs(2 * strict.sum(0) - count) <= np.abs(2 * loose.sum(0) - count)
            sides.append(np.where(nearer, strict, loose).T)
            owners += [(position, which) for position in range(length)]
        for position in range(length):
            _, place, counts = np.unique(self.codes[:, position], return_inverse=True, return_counts=True)
            ranks = np.empty(len(counts), np.int64)
            ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
            half = int(np.searchsorted(np.cumsum(np.sort(counts)[::-1]), count / 2)) + 1
            for many in sorted({1, max(1, half - 1), half}):
                sides.append((ranks[place.reshape(-1)] < many)[None])
                owners.append((position, -1))
        return np.concatenate(sides).astype(np.float64), owners

    def cost(self, weight: Floats) -> Floats:
        counts, mass = weight @ self.hot, weight.sum(1)
        if self.table is None:
            return np.asarray(mass * len(self.top) - np.maximum.reduceat(counts, self.starts, axis=1).sum(1))
        total = np.zeros(len(weight))
        for start, top in zip(self.starts, self.top, strict=True):
            part = counts[:, start : start + len(top)]
            total += np.einsum("cx,xr->cr", part, self.table[np.ix_(top, top)]).min(1)
        return total

    def both(self, weight: Floats) -> Floats:
        return np.stack((self.cost(weight), self.cost(1.0 - weight)), axis=1)
