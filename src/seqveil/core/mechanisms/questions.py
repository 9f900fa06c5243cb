"""Which question to ask next: the split of a soft box that lowers the expected distortion most.

A question puts the symbols of one position in an order and cuts it: left below the cut, right above, and the symbols at
the cut to both sides in proportion θ where that makes the masses fit. What a split is worth is the exact cost of its
two sides as releases, mixed with the belief before the release as they will be,

    cost(v) = Σ_t min_r Σ_x [λ E(f_v; x_t = x) + (1-λ) m_v β_t(x)] D(x, r),

from the joint distribution of every pair of positions; large alphabets are judged by a public sample instead
(`samples`). The score of a split is cost(left)·k_left^-ρ + cost(right)·k_right^-ρ, with k the cells that still fit into
each side: it rewards what is gained now, and keeping cells for later. Small problems look one question further ahead.

A question is asked only where either answer could be published as it is (`Search.sound`), so that every cell a walk can
come to keeps the promise before the first draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.mechanisms.boxes import Node, Split
from seqveil.core.model import MarkovModel

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
SEED = 20260101  # public, and part of the format: another seed is another tree
ROUNDS = 60  # of the search for symbols that follow one another
ROUND = 11  # digits of a score that count: rounding elsewhere must not change the tree


def cells(mass: float, least: float) -> int:
    """How many cells of mass `least` fit into a mass."""
    return math.floor(mass / least + HAIR)


@dataclass(frozen=True, eq=False)
class Search:
    """All that the choice of a split depends on besides the node; public."""

    model: MarkovModel
    root: Node  # the whole batch
    distortion: Distortion
    least: float  # mass of the smallest cell
    disclosed: float  # λ
    sound: Callable[[float, float], bool]  # whether a cell of this chance and mass may be published

    @cached_property
    def before(self) -> Floats:
        """(w, n) distributions of the symbols before the release."""
        return self.root.symbol_distributions()

    def may_ask(self, node: Node, split: Split) -> bool:
        """Whether either answer could be published as it is."""
        sides = ((0, split.mass), (1, split.rest))
        return all(self.sound(node.chance * split.chance(side), mass) for side, mass in sides)

    @property
    def balance(self) -> float:
        """Share of the mass that both sides should have while many cells are left."""
        return 0.0 if self.pairs <= AHEAD else LOOSE if self.exact else BALANCE

    @property
    def exact(self) -> bool:
        """Whether splits are judged by exact joint distributions rather than by a sample."""
        return self.root.window.whole and self.pairs <= EXACT

    @property
    def pairs(self) -> int:
        """How many pairs there are of a position and state with another: what exact joint distributions take."""
        return (self.root.window.length * self.model.size) ** 2

    @cached_property
    def levels(self) -> list[Ints]:
        """Orders of the symbols that the distortion suggests (or else the chain), each as a level (n,) per symbol."""
        if self.distortion.is_hamming and not self.exact:
            return _similar(self.model)
        return _levels(self.distortion, self.model.n)

    @property
    def tops(self) -> tuple[int, ...]:
        """How many levels each of these orders has."""
        by_chain = self.distortion.is_hamming and not self.exact
        return (self.model.n,) * 2 if by_chain else _tops(self.distortion, self.model.n)

    def orders(self, distribution: Floats) -> Iterator[Ints]:
        """Levels of the symbols to cut a position by, given the symbols' distribution there."""
        yield from self.levels
        if self.distortion.points is None:
            ranks = _ranked(distribution)
            yield ranks
            if self.pairs <= AHEAD:  # one symbol against the rest
                for first in range(1, min(len(distribution) - 1, 5)):
                    yield np.where(ranks == first, 0, np.where(ranks < first, ranks + 1, ranks))


def _ranked(distribution: Floats) -> Ints:
    """Place of each symbol in the order of likelihood; equally likely ones by code."""
    ranks = np.empty(len(distribution), np.int64)
    ranks[np.argsort(-distribution, kind="stable")] = np.arange(len(distribution))
    return ranks


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


@lru_cache(maxsize=8)
def _tops(distortion: Distortion, n: int) -> tuple[int, ...]:
    return tuple(int(level.max()) + 1 for level in _levels(distortion, n))


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
    found = []
    for key in keys:
        level = np.empty(model.n, np.int64)
        level[np.argsort((key / np.abs(key).max()).round(9), kind="stable")] = np.arange(model.n)
        found.append(level)
    return found


def _spread_out(table: Floats) -> Floats:
    """A coordinate for each symbol by classical scaling of any matrix of costs."""
    square = ((table + table.T) / 2.0) ** 2
    centred = square - square.mean(0) - square.mean(1)[:, None] + square.mean()
    _, vectors = np.linalg.eigh(-centred / 2.0)
    first = vectors[:, -1].round(9)
    return np.asarray(first * (1.0 if first[np.abs(first).argmax()] > 0 else -1.0))


@dataclass(frozen=True, eq=False)
class Cuts:
    """Cuts of one position of a node by one order of its symbols."""

    position: int
    level: Ints  # (n,)
    levels: int
    place: Ints  # (C,) level at the cut
    theta: Floats  # (C,) share of that level that goes left
    mass: Floats  # (C,) of the left side
    rest: Floats  # (C,) of the right side

    @property
    def sides(self) -> Floats:
        """(C, 2) masses of both sides."""
        return np.stack((self.mass, self.rest), axis=1)

    def shares(self, codes: Ints, scale: float) -> Floats:
        """(C, k) probability of each of k symbols to go left, as a whole number over `scale`."""
        level, place, theta = self.level[codes][None], self.place[:, None], np.round(self.theta * scale) / scale
        return np.where(level < place, 1.0, np.where(level == place, theta[:, None], 0.0))

    def split(self, node: Node, index: int) -> Split:
        """One of the cuts as a question of the tree, with the integer weights it is asked with."""
        by_level = np.zeros(self.levels, np.int64)
        by_level[: self.place[index]] = DENOMINATOR
        by_level[self.place[index]] = round(float(self.theta[index]) * STEPS) * (DENOMINATOR // STEPS)
        distribution = node.symbol_distribution(self.position)
        left = by_level[self.level]
        share = left / ONE
        mass, rest = float((distribution * share).sum()), float((distribution * (1.0 - share)).sum())
        return Split(self.position, left, mass, rest, share)


def cut(
    position: int,
    level: Ints,
    masses: Floats,
    mass: float,
    least: float,
    aims: Floats | None = None,
) -> Cuts:
    """Cuts that leave a cell on both sides: between levels, and inside one where a whole number of cells fits.

    `masses` are those of the levels; `aims` are the shares near which to cut (every place where None).
    """
    running = np.concatenate(([0.0], np.cumsum(masses)))
    beyond = np.concatenate((np.cumsum(masses[::-1])[::-1], [0.0, 0.0]))  # no difference: a small side keeps its digits
    count, enough = cells(mass, least), least * (1 - HAIR)
    inner = np.arange(1, len(masses))
    if aims is not None:
        near = np.searchsorted(running, aims * mass)
        inner = np.unique(np.clip(np.concatenate((near, near - 1)), 1, max(1, len(masses) - 1)))
    place, theta = inner, np.zeros(len(inner))
    valid = (running[inner] >= enough) & (beyond[inner] >= enough)
    if count <= SOFT or not valid.any():
        where = running[inner] * (count / mass)
        whole = np.unique(np.concatenate((np.floor(where), np.ceil(where), [count // 2, (count + 1) // 2])))
        target = whole[(whole >= 1) & (whole <= count - 1)] * (mass / count)
        soft = np.clip(np.searchsorted(running, target, side="right") - 1, 0, len(masses) - 1)
        inside = np.where(masses[soft] > 0, (target - running[soft]) / np.maximum(masses[soft], 1e-300), 0.0)
        place, theta = np.concatenate((place, soft)), np.concatenate((theta, np.clip(inside, 0.0, 1.0)))
    theta = np.rint(theta * STEPS) / STEPS
    inside = np.where(place < len(masses), masses[np.minimum(place, len(masses) - 1)], 0.0)
    left, right = running[place] + theta * inside, beyond[place + 1] + (1.0 - theta) * inside
    fits = (left >= enough) & (right >= enough)
    return Cuts(position, level, len(masses), place[fits], theta[fits], left[fits], right[fits])


def score(costs: Floats, sides: Floats, mass: float, least: float, balance: float = BALANCE) -> Floats:
    """Less is better; see the module. costs, sides: (C, 2) costs and masses of the two sides."""
    found = (costs * np.floor(sides / least + HAIR) ** -RHO).sum(1)
    if balance and cells(mass, least) > 16:
        slim = sides.min(1) < balance * mass
        found = np.where(slim, found + costs.sum(1).max(), found)
    return found.round(ROUND)


def best_exact(search: Search, node: Node) -> Split | None:
    """The best split of a node, judged exactly, or None where nothing is left to gain."""
    cuts, costs, before = _weighed(search, node)
    if not cuts:
        return None
    owner = np.repeat(np.arange(len(cuts)), [len(c.place) for c in cuts])
    start = np.cumsum([0] + [len(c.place) for c in cuts])
    count = cells(node.mass, search.least)
    disclosed = costs.sum(1) < before * (1 - 1e-9)
    if count > SOFT and not disclosed.any():
        return None
    scores = score(costs, np.concatenate([c.sides for c in cuts]), node.mass, search.least, search.balance)
    if count > SOFT:  # a soft cut that tells nothing is balanced, and would only halve what must be distinguished later
        scores = np.where(disclosed, scores, np.inf)
    order = np.argsort(scores, kind="stable")

    def split(index: int) -> Split:
        which = int(owner[index])
        return cuts[which].split(node, index - int(start[which]))

    if search.pairs > AHEAD or count == 2:
        useful = disclosed[order[0]] or count > 2
        return split(int(order[0])) if useful else None
    tried = [(_follow(search, node, split(int(i)), costs[i]), place, int(i)) for place, i in enumerate(order[:TRIED])]
    best, _, index = min(tried)
    return split(index) if best < before * (1 - 1e-9) else None


def _follow(search: Search, node: Node, split: Split, costs: Floats) -> float:
    """What the two sides cost once each is split again as well as it can be."""
    total = 0.0
    for side in (0, 1):
        child, cost = node.child(split, side), float(costs[side])
        if cells(child.mass, search.least) >= 2:
            cuts, further, _ = _weighed(search, child)
            if cuts:
                sides = np.concatenate([c.sides for c in cuts])
                cost = min(cost, float(score(further, sides, child.mass, search.least, 0.0).min()))
        total += cost
    return round(total, ROUND)


def _weighed(search: Search, node: Node) -> tuple[list[Cuts], Floats, float]:
    """All cuts of a node, the exact cost of their two sides (C, 2), and the node's own."""
    length = node.window.length
    joint = _joint(search, node)
    distributions = np.stack([joint[t, t].sum(0) for t in range(length)])
    cuts, lefts = [], []
    for position in range(length):
        for level in search.orders(distributions[position]):
            rows = np.zeros((int(level.max()) + 1, length, search.model.n))
            np.add.at(rows, level, joint[position].transpose(1, 0, 2))
            found = cut(position, level, rows[:, position].sum(1), node.mass, search.least)
            if len(found.place):
                below = np.concatenate((np.zeros_like(rows[:1]), np.cumsum(rows, axis=0)))
                at = rows[np.minimum(found.place, len(rows) - 1)]
                lefts.append(below[found.place] + found.theta[:, None, None] * at)
                cuts.append(found)
    fresh = (1.0 - search.disclosed) * search.before
    before = float(least_cost(search.distortion, search.disclosed * distributions + node.mass * fresh))
    if not cuts:
        return [], np.zeros((0, 2)), before
    left, mass = np.concatenate(lefts), np.concatenate([c.mass for c in cuts])[:, None, None]
    right = np.maximum(distributions - left, 0.0)
    sides = (search.disclosed * left + mass * fresh, search.disclosed * right + (node.mass - mass) * fresh)
    return cuts, np.stack([least_cost(search.distortion, side) for side in sides], axis=1), before


def least_cost(distortion: Distortion, distributions: Floats) -> Floats:
    """Σ_t min_r Σ_x distribution_t(x) D(x, r) for distributions (..., w, n)."""
    if distortion.is_hamming:
        return np.asarray((distributions.sum(-1) - distributions.max(-1)).sum(-1))
    return np.asarray(distortion.expected(distributions).min(-1).sum(-1))


def _joint(search: Search, node: Node) -> Floats:
    """E[f; symbol_t = x, symbol_s = x'] for all pairs of positions: (w, w, n, n)."""
    model, length = search.model, node.window.length
    steps, newest = _dense(model)
    out = np.empty((length, length, model.n, model.n))
    reach = np.empty((0, model.n, model.size))
    for later in range(length):
        if later:
            reach = np.einsum("txy,yz->txz", reach, steps) * node.weights[later]
        reach = np.concatenate((reach, (newest.T * node.forward(later))[None]))
        pair = reach * node.backward(later)
        pair = pair if model.size == model.n else np.einsum("txy,yz->txz", pair, newest)
        out[: later + 1, later] = pair
        out[later, : later + 1] = pair.transpose(0, 2, 1)
    return out


@lru_cache(maxsize=8)
def _dense(model: MarkovModel) -> tuple[Floats, Floats]:
    """The transitions of a small model (S, S), and which symbol each state shows (S, n)."""
    steps = np.asarray(model.chain.todense(), dtype=np.float64).copy()
    for symbol, state in enumerate(model.base_state.tolist()):
        steps[:, state] += model.backoff * model.base[symbol]
    newest = np.zeros((model.size, model.n))
    newest[np.arange(model.size), model.newest] = 1.0
    return steps, newest
