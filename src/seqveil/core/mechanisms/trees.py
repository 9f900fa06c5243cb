"""Tree-quantised release: release the soft cell of the whole batch, and never let a cell get too small.

Cells are the leaves of a public binary tree of soft boxes over X^w, grown only where a release walks (`questions` says
which question is asked where). With f_y(o) the share of batch o in cell y, q_y the probability that a fresh draw ends
in y, and m_y = E f_y under the belief, which q_y is up to rounding,

    a(y|o) = (1-λ) q_y + λ f_y(o),      p(y) = (1-λ) q_y + λ m_y.

*Guarantee*: with masses of at least κ = 1/(1+e^ε) and λ = 1-e^-ε every lift a(y|o)/p(y) is within [e^-ε, e^ε], for
every batch o, in or out of the support: BIL ≤ ε, SIL ≤ Σε, and 2ε-LDP whatever the true distribution is. A question is
asked only where both its sides pass this from the numbers in use (`_keeps`), else the node is a leaf, so nothing is
refused once anything is drawn.

A soft box is f(o) = Π_t φ_t(o_t) with weights φ_t(x) ∈ [0, 1]. Its mass E f and its state distributions come from one
pass forward and one backward over the chain, with the weights put on at each position:

    α_1 = π·φ_1,  α_{t+1} = (α_t P)·φ_{t+1},  b_w = 1,  b_t = P (φ_{t+1}·b_{t+1}),  E[f; state_t = s] = α_t(s) b_t(s)

Every draw is one comparison of integers: disclosed or fresh, then left or right. How many depends on the release alone.

Reference: docs/theory.md, section 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import DataError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, outward, slack, usable
from seqveil.core.mechanisms.base import Batch, Sent, rules_kept
from seqveil.core.mechanisms.questions import Sample, Search, Split, best, cells
from seqveil.core.randomness import Randomness

LARGEST_BATCH = 32.0  # ε of a batch: each question has a draw of its own, so only e^-ε must fit 62 bits
ROOM = 1.0 + 2e-9  # cells are grown a hair larger than κ, so that rounding cannot make one too small

Box = dict[int, Floats]
"""Weights φ_t (n,) by position; a position that is missing has weight one everywhere."""


@dataclass(eq=False)
class Node:
    """A soft box of one batch. Passes are made only as far as a distribution is asked for."""

    batch: Batch
    box: Box
    path: tuple[int, ...]
    mass: float
    chance: float  # that a fresh draw comes here
    ahead: list[Floats]  # α_t of the first positions, as far as known
    behind: list[Floats]  # b_t of the last positions, as far as known, the last position first
    asked: int = 0  # position of the last question
    sample: Sample | None = None  # batches drawn from the box with the public seed
    split: Split | None = None  # the next question (None: a leaf)
    children: dict[int, Node] = field(default_factory=dict)  # by side, as far as grown

    def weighed(self, position: int, values: Floats) -> Floats:
        """Values of the states times φ_t."""
        return values * self.box[position][self.batch.model.newest] if position in self.box else values

    def forward(self, position: int) -> Floats:
        """α_t over the states."""
        for place in range(len(self.ahead), position + 1):
            before = self.batch.model.advance(self.ahead[-1]) if place else self.batch.states
            self.ahead.append(self.weighed(place, before))
        return self.ahead[position]

    def backward(self, position: int) -> Floats:
        """b_t over the states."""
        last = self.batch.length - 1
        for place in range(last + 1 - len(self.behind), position, -1):
            self.behind.append(filtering.pull(self.batch.model, self.weighed(place, self.behind[-1])[None])[0])
        return self.behind[last - position]

    def symbol_distribution(self, position: int) -> Floats:
        """E[f; symbol]: (n,)."""
        model, found = self.batch.model, self.forward(position) * self.backward(position)
        if model.size == model.n:
            return found
        return np.bincount(model.newest, found, model.n).astype(np.float64, copy=False)

    def symbol_distributions(self) -> Floats:
        """E[f; symbol] at every position: (w, n)."""
        return np.stack([self.symbol_distribution(position) for position in range(self.batch.length)])

    def child(self, split: Split, side: int) -> Node:
        """The part of the node on one side of a split; what the split does not change is shared."""
        place, share, behind = split.position, split.share(side), self.behind[: self.batch.length - split.position]
        box = {**self.box, place: self.box[place] * share if place in self.box else share}
        ahead = [*self.ahead[:place], self.forward(place) * share[self.batch.model.newest]]
        path, mass = (*self.path, side), split.rest if side else split.mass
        node = Node(self.batch, box, path, mass, self.chance * split.chance(side), ahead, behind, place)
        if self.sample is not None:  # the part of the sample on that side serves the child too
            node.sample = self.sample.part(np.flatnonzero(share[self.sample.codes[:, place]] >= 0.5))
        return node


@dataclass(frozen=True, eq=False)
class Tree:
    """The public tree of one batch: how much is disclosed, and how it is split. It is the batch's `Rule`."""

    batch: Batch
    disclosed: int  # λ out of 2**62
    search: Search
    root: Node
    releases: dict[tuple[int, ...], TreeRelease] = field(default_factory=dict)

    def draw(self, codes: Ints, randomness: Randomness) -> TreeRelease:
        """Release a batch: exact integer randomness, one for disclosed or fresh and one a question."""
        disclosed = bool(randomness.draw(1)[0] < self.disclosed)

        def decide(level: int, split: Split) -> int:
            """Draw a side by the truth, or from the model alone where this batch discloses nothing."""
            weight = split.left[codes[split.position]] if disclosed else split.fresh
            return int(randomness.draw(1)[0] >= weight)

        return self._release(self.walk(decide))

    def read(self, path: tuple[int, ...]) -> TreeRelease:
        """What `draw` returned, from the path alone."""
        leaf = self.walk(lambda level, split: int(level < len(path) and path[level] == 1))
        if leaf.path != path:
            raise DataError(f"a path of {len(path)} steps leads to no leaf; model, ε or history must differ")
        return self._release(leaf)

    def walk(self, decide: Callable[[int, Split], int]) -> Node:
        """The leaf reached when `decide` answers each question; what was not known before is grown."""
        node = self.root
        while node.split is not None:
            side = decide(len(node.path), node.split)
            if side not in node.children:
                child = node.child(node.split, side)
                child.split = self.question(child)
                node.children[side] = child
            node = node.children[side]
        return node

    def question(self, node: Node) -> Split | None:
        """The next question at a node, or None where it is a leaf. Public: no randomness, no raw symbol."""
        if not self.disclosed or cells(node.mass, self.search.least) < 2:
            return None
        split = best(self.search, node)
        if split is None:
            return None
        sides = ((0, split.mass), (1, split.rest))
        return split if all(self._keeps(node.chance * split.chance(side), mass) for side, mass in sides) else None

    def _keeps(self, chance: float, mass: float) -> bool:
        """Whether every lift of a cell of this chance and mass is within ε, rounded outward."""
        share, rest = self.shares
        fresh, terms = rest * chance, slack(self.batch.model.size * self.batch.length)
        marginal = fresh + share * mass
        sides = math.log((fresh + share) / marginal), math.log(marginal / fresh)
        return all(side + 4 * terms + 8 * UNIT * side <= self.batch.epsilon for side in sides)

    @property
    def shares(self) -> tuple[float, float]:
        """λ and 1-λ, each to the last bit."""
        return self.disclosed / float(DENOMINATOR), (DENOMINATOR - self.disclosed) / float(DENOMINATOR)

    def _release(self, leaf: Node) -> TreeRelease:
        """Everything that follows from the leaf, exactly; kept with the tree."""
        if leaf.path in self.releases:
            return self.releases[leaf.path]
        batch, (disclosed, rest), end = self.batch, self.shares, self.batch.length - 1
        fresh, last = rest * leaf.chance, leaf.forward(end)
        marginal = fresh + disclosed * float(last.sum())
        posterior = fresh * self.root.forward(end) + disclosed * last
        least = most = 0.0
        if leaf.path:
            inside = [math.prod(float(pick(weights)) for weights in leaf.box.values()) for pick in (np.min, np.max)]
            terms = slack(batch.model.size * batch.length)
            low, high = ((fresh + disclosed * value) / marginal for value in inside)
            least, most = float(outward(np.log(low), terms, -1)), float(outward(np.log(high), terms, +1))
        posterior /= posterior.sum()
        joint = disclosed * leaf.symbol_distributions() + fresh * self.search.before  # of the release and each symbol
        codes = batch.distortion.best_guess(joint)
        sent = TreeRelease(batch, leaf.path, codes, posterior, least, most, disclosed, fresh, marginal, leaf.box)
        self.releases[leaf.path] = sent
        return sent


@rules_kept
def tree(batch: Batch) -> Tree:
    """The tree of a batch, of which nothing but the root is grown yet."""
    aim = usable(batch.epsilon, batch.model.size * batch.length, power=1)
    kappa, fresh = 1.0 / (1.0 + math.exp(aim)), math.exp(-aim)
    disclosed = DENOMINATOR - math.ceil(fresh * DENOMINATOR)
    ones = [np.ones(batch.model.size)] * batch.length  # the root is the whole batch: weight one everywhere
    root = Node(batch, {}, (), float(batch.states.sum()), 1.0, [], ones)
    made = Tree(batch, disclosed, Search(batch, root.symbol_distributions(), kappa * ROOM, 1.0 - fresh), root)
    root.split = made.question(root)
    return made


@dataclass(frozen=True, eq=False)
class TreeRelease(Sent):
    """One leaf of a tree as it was made public."""

    disclosed: float  # λ
    fresh: float  # (1-λ) q_y
    marginal: float  # p(y): how likely this release was before it was made
    box: Box

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        """Distributions of the w symbols and the likelihood of the first state; see `Sent.smooth`."""
        whole, inside = (Node(self.batch, box, (), 1.0, 1.0, [], [later]) for box in ({}, self.box))
        joint = self.fresh * whole.symbol_distributions() + self.disclosed * inside.symbol_distributions()
        first = self.fresh * whole.backward(0) + self.disclosed * inside.weighed(0, inside.backward(0))
        return joint / joint.sum(1, keepdims=True), first / self.marginal
