"""Tree-quantised release: tell the soft cell of the whole batch, and never let a cell get too small.

Cells are the leaves of a public binary tree of soft boxes over X^w, grown only where a release walks (`boxes`,
`questions`). With f_y(o) the share of batch o in cell y, q_y the probability that a fresh draw ends in y, and
m_y = E f_y under the belief,

    a(y|o) = (1-λ) q_y + λ f_y(o),      p(y) = (1-λ) q_y + λ m_y.

The tree is grown on a window of the chain that leaves out τ of the belief. Cell masses under the window are at least κ,
so q_y ≥ κ and κ ≤ m_y ≤ q_y + τ.

*Guarantee*: with κ = 1/(1+e^ε) and λ = (e^ε-1) / (e^ε+τ/κ) every lift a(y|o)/p(y) is within [e^-ε, e^ε], for every
batch o, in or out of the support. Lower side: (1-λ)q/p ≥ (1-λ)κ/((1-λ)κ + λ(κ+τ)) = e^-ε. Upper side:
((1-λ)q+λ)/p ≤ (1-λ) + λ/κ ≤ e^ε, as λ ≤ 1-e^-ε. So BIL ≤ ε, SIL ≤ Σε, and 2ε-LDP whatever the truth's distribution is.
In LDP mode κ = 1/M and λ = (e^ε-1)κ/(1+(e^ε-1)κ): largest over least weight is 1 + λ/((1-λ)q_y) ≤ e^ε for any q_y ≥ κ.
A question is asked only where both its sides pass this from the numbers in use (`_keeps`), else the node is a
leaf: a walk never comes to a cell that breaks the promise, so nothing is refused once anything is drawn.

Every draw is one comparison of integers: disclosed or fresh, then left or right. The number of questions depends on the
release, which is public, and so does the run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import DataError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, outward, slack, usable
from seqveil.core.mechanisms.base import Batch
from seqveil.core.mechanisms.boxes import Box, Node, Split, backward, forward, open_window
from seqveil.core.mechanisms.questions import Search, best_exact, cells
from seqveil.core.mechanisms.rule_cache import RuleCache
from seqveil.core.mechanisms.samples import best_sampled
from seqveil.core.randomness import Randomness

LARGEST_BATCH = 32.0  # ε of a batch: randomness are drawn one by one, so only e^-ε must fit 62 bits
ROOM = 1.0 + 2e-9  # cells are grown a hair larger than κ, so that rounding cannot make one too small
SPARE = 3e-4  # belief the window may leave out: about what it adds to the chance of a fresh draw
KEPT = 500  # w × states up to which every grown tree is kept; larger ones from the second time on
LEAVES = 512  # a tree with more leaves is not written out
MANY = 1.0  # in LDP mode 1/κ = MANY·e^(ε/2) + 1: more cells say more, and are disclosed less often


@dataclass(frozen=True, eq=False)
class Tree:
    """The public tree of one batch: how much is disclosed, and how it is split. It is the batch's `Rule`."""

    batch: Batch
    disclosed: int  # λ out of 2**62
    search: Search
    kept: bool  # whether what is grown stays for the next batch in the same context
    nodes: dict[tuple[int, ...], tuple[Node, Split | None]] = field(default_factory=dict)
    leaves: dict[tuple[int, ...], TreeRelease] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Bytes that it takes, about: distributions, weights and shares of nodes, and each leaf's posterior and box."""
        return 8 * self.batch.length * self.batch.model.size * (6 * len(self.nodes) + 3 * len(self.leaves) + 3)

    @property
    def shares(self) -> tuple[float, float]:
        """λ and 1-λ."""
        return _shares(self.disclosed)

    def draw(self, codes: Ints, randomness: Randomness) -> TreeRelease:
        """Release a batch: exact integer randomness, one for disclosed or fresh and one a question."""
        disclosed = bool(randomness.draw(1)[0] < self.disclosed)

        def decide(level: int, split: Split) -> int:
            weight = split.left[codes[split.position]] if disclosed else split.fresh
            return int(randomness.draw(1)[0] >= weight)

        return self._release(self.walk(decide))

    def read(self, path: tuple[int, ...]) -> TreeRelease:
        """What `draw` returned, from the path alone."""
        if any(side not in (0, 1) for side in path):
            raise DataError("expected a path of zeros and ones; the record is damaged or of another mechanism")

        def decide(level: int, split: Split) -> int:
            if level >= len(path):
                raise DataError(f"a path of {len(path)} steps ends inside the tree; model, ε or history must differ")
            return int(path[level])

        leaf = self.walk(decide)
        if len(leaf.path) != len(path):
            raise DataError(f"a path of {len(path)} steps leads past a leaf; model, ε or history must differ")
        return self._release(leaf)

    @property
    def expected(self) -> float | None:
        """Expected distortion of the whole batch, summed over positions; None where the tree has too many leaves."""
        if 1.0 / self.search.least > LEAVES:
            return None
        batch, (disclosed, rest), columns = self.batch, self.shares, np.arange(self.batch.model.n)
        root = _symbol_distributions(batch, {})
        total = 0.0
        for leaf in self.everything():
            distributions = disclosed * _symbol_distributions(batch, leaf.box) + rest * leaf.chance * root
            costs = [batch.distortion.between(columns, code) for code in self.reproduce(leaf)]
            total += float((distributions * costs).sum(1).sum())
        return total

    def walk(self, decide: Callable[[int, Split], int]) -> Node:
        """The leaf reached when `decide` answers each question."""
        node, split = self._at((), lambda: self.search.root)
        while split is not None:
            side = decide(len(node.path), split)
            node, split = self._at((*node.path, side), partial(node.child, split, side))
        return node

    def everything(self) -> list[Node]:
        """Every leaf."""
        found, todo = [], [self._at((), lambda: self.search.root)]
        while todo:
            node, split = todo.pop()
            if split is None:
                found.append(node)
                continue
            todo += [self._at((*node.path, side), partial(node.child, split, side)) for side in (1, 0)]
        return found

    def _at(self, path: tuple[int, ...], grow: Callable[[], Node]) -> tuple[Node, Split | None]:
        """The node at a path, grown where it is not known, and its question (None: a leaf)."""
        found = self.nodes.get(path)
        if found is None:
            node = grow()
            found = node, self._question(node)
            if self.kept:
                self.nodes[path] = found
        return found

    def _question(self, node: Node) -> Split | None:
        """The next question at a node, or None where it is a leaf. Public: no coin, no raw symbol."""
        search = self.search
        if not self.disclosed or cells(node.mass, search.least) < 2:
            return None
        split = best_exact(search, node) if search.exact else best_sampled(search, node)
        return split if split is not None and search.may_ask(node, split) else None

    def _release(self, leaf: Node) -> TreeRelease:
        """Everything that follows from the leaf; kept with the tree where that is."""
        known = self.leaves.get(leaf.path) or TreeRelease.of(self, leaf)
        if self.kept:
            self.leaves[leaf.path] = known
        return known

    def last(self, node: Node) -> Floats:
        """E[f; state] at the last position over the whole chain."""
        batch = self.batch
        if node.window.whole:
            return node.forward(batch.length - 1)
        return forward(batch.model, batch.states, batch.length, node.box)[-1]

    def reproduce(self, leaf: Node) -> Ints:
        """Best estimate of each symbol under the window's distribution of the batch given the release."""
        (disclosed, rest), search = self.shares, self.search
        codes = np.empty(self.batch.length, np.int64)
        for position in range(len(codes)):
            distribution = disclosed * leaf.symbol_distribution(
                position
            ) + rest * leaf.chance * search.root.symbol_distribution(position)
            codes[position] = search.distortion.best_guess(distribution)
        return codes


def _keeps(epsilon: float, disclosed: int, lost: float, terms: float, ldp: bool, chance: float, mass: float) -> bool:
    """Whether every lift of a cell of this chance and mass under the window is within ε, rounded outward.

    `disclosed` is λ as drawn, `lost` the belief outside the window, at most, and `terms` the relative error of a mass.
    """
    share, rest = _shares(disclosed)
    fresh = rest * chance
    least, most = fresh + share * mass, fresh + share * (mass + lost)
    if ldp:
        least = most = fresh  # whatever the belief is
    sides = math.log((fresh + share) / least), math.log(most / fresh)
    return all(side + 4 * terms + 8 * UNIT * side <= epsilon for side in sides)


def plant(batch: Batch, ldp: bool = False, kept: bool = False) -> Tree:
    """The tree of a batch, of which nothing is grown yet."""
    model, length = batch.model, batch.length
    aim = usable(batch.epsilon, model.size * length, power=1)
    window = open_window(model, batch.states, length, SPARE)
    root = window.root()
    lost = 0.0 if window.whole else max(0.0, 1.0 - root.mass) + 1e-12
    if ldp:
        kappa = 1.0 / (MANY * math.exp(aim / 2) + 1.0)
        fresh = 1.0 / (1.0 + math.expm1(aim) * kappa)
    else:
        kappa = 1.0 / (1.0 + math.exp(aim))
        fresh = (1.0 + lost / kappa) / (math.exp(aim) + lost / kappa)
    disclosed = DENOMINATOR - math.ceil(fresh * DENOMINATOR)
    sound = partial(_keeps, batch.epsilon, disclosed, lost, slack(model.size * length), ldp)
    return Tree(batch, disclosed, Search(model, root, batch.distortion, kappa * ROOM, 1.0 - fresh, sound), kept)


def _shares(disclosed: int) -> tuple[float, float]:
    """λ and 1-λ, each to the last bit."""
    return disclosed / float(DENOMINATOR), (DENOMINATOR - disclosed) / float(DENOMINATOR)


def _small(batch: Batch) -> bool:
    return batch.length * batch.model.size <= KEPT


def _grown(batch: Batch, kept: bool) -> Tree:
    return plant(batch, kept=kept)


def _grown_ldp(batch: Batch, kept: bool) -> Tree:
    return plant(batch, ldp=True, kept=kept)


tree = RuleCache(_grown, _small)
tree_ldp = RuleCache(_grown_ldp, _small)


@dataclass(frozen=True, eq=False)
class TreeRelease:
    """One batch as it was made public; see `Sent`."""

    batch: Batch
    path: tuple[int, ...]
    codes: Ints
    posterior: Floats
    least: float
    most: float
    disclosed: float  # λ
    rest: float  # 1-λ
    fresh: float  # q_y
    mass: float  # m_y
    box: Box

    @classmethod
    def of(cls, tree: Tree, leaf: Node) -> TreeRelease:
        """Everything that follows from the leaf, exactly."""
        batch, (disclosed, rest), chance = tree.batch, tree.shares, leaf.chance
        root, last = tree.last(tree.search.root), tree.last(leaf)
        mass = float(last.sum())
        marginal = rest * chance + disclosed * mass
        posterior = rest * chance * root + disclosed * last
        least = most = 0.0
        if leaf.path:
            inside = [math.prod(float(pick(weights)) for weights in leaf.box.values()) for pick in (np.min, np.max)]
            terms = slack(batch.model.size * batch.length)
            low, high = ((rest * chance + disclosed * value) / marginal for value in inside)
            least, most = float(outward(np.log(low), terms, -1)), float(outward(np.log(high), terms, +1))
        posterior /= posterior.sum()
        codes = tree.reproduce(leaf)
        return cls(batch, leaf.path, codes, posterior, least, most, disclosed, rest, chance, mass, leaf.box)

    @cached_property
    def ahead(self) -> Floats:
        """(S,) distribution of the state at the next batch's first symbol."""
        return filtering.predict(self.batch.model, self.posterior[None])[0]

    @property
    def marginal(self) -> float:
        """p(y): how likely this release was before it was made."""
        return self.rest * self.fresh + self.disclosed * self.mass

    def lift(self, codes: Ints) -> float:
        """a(y|o)/p(y) for any batch o."""
        inside = math.prod(float(weights[codes[position]]) for position, weights in self.box.items())
        return (self.rest * self.fresh + self.disclosed * inside) / self.marginal

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        """Distributions of the w symbols and the likelihood of the first state; see `Sent.smooth`."""
        model, length = self.batch.model, self.batch.length
        distributions, likelihood = np.zeros((length, model.n)), np.zeros(model.size)
        for share, box in ((self.rest * self.fresh, {}), (self.disclosed, self.box)):
            ahead = forward(model, self.batch.states, length, box)
            behind = backward(model, later, length, box)
            for position in range(length):
                joint = ahead[position] * behind[position] * share
                distributions[position] += np.bincount(model.newest, joint, model.n)
            likelihood += share * behind[0] * (box[0][model.newest] if 0 in box else 1.0)
        return distributions / distributions.sum(1, keepdims=True), likelihood / self.marginal


def _symbol_distributions(batch: Batch, box: Box) -> Floats:
    """E[f; symbol] at every position over the whole chain: (w, n)."""
    model, length = batch.model, batch.length
    joint = forward(model, batch.states, length, box) * backward(model, np.ones(model.size), length, box)
    return np.stack([np.bincount(model.newest, row, model.n) for row in joint])
