"""A linear program on the leaves of a public tree: nearly the exact optimum where X^w is too large to list.

The leaves are boxes that partition X^w (`_leaves`), several for each cell of mass κ = 1/(1+e^ε) that a release could
tell. The program joins them into such cells, softly, and chooses what each cell stands for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import Coins
from seqveil.core.kernel import Floats, Ints, Kernels, usable
from seqveil.core.mechanisms._batch import Batch, BatchMechanism, Sent
from seqveil.core.mechanisms._leaves import Leaves, grow
from seqveil.core.mechanisms._support import Book, TabledSent, remembered
from seqveil.core.mechanisms.batch_lp import with_best_labels
from seqveil.core.mechanisms.tree import TREE
from seqveil.core.model import MarkovModel

FINER = 4  # leaves for each cell of mass κ: the program joins them into such cells, and chooses which
FEWEST_LEAVES, MOST_LEAVES = 64, 256
MOST_NUMBERS = 4_000_000  # leaves × positions × states; beyond it the tree alone
MOST_LABELS = 40_000  # leaves × labels up to which every batch is tried as a label


@dataclass(frozen=True, eq=False)
class Refined(Book):
    """A sound kernel on leaves, and the reproduction of each of its outputs.

    *Guarantee*: a batch o draws a leaf ℓ with probability f_ℓ(o), the leaf an output y by Q(y|ℓ). So
    Q(y|o) = Σ_ℓ f_ℓ(o) Q(y|ℓ), and its marginal is Σ_o β(o) Q(y|o) = Σ_ℓ m_ℓ Q(y|ℓ), that of the kernel on leaves
    under the masses m. Hence the lift of o is Σ_ℓ f_ℓ(o) ρ_y(ℓ), a mean of lifts of leaves: within [e^-ε, e^ε] if
    theirs are, for every o in X^w, in or out of the support. ∎
    """

    leaves: Leaves
    labels: Ints  # (K, w)
    kernels: Kernels  # a stack of one over M "symbols", the leaves

    def draw(self, codes: Ints, coins: Coins) -> TabledSent:
        steps = np.cumsum(self.leaves.shares(codes))
        leaf = np.searchsorted(steps, coins.draw(1), side="right")
        return TabledSent(self, int(self.kernels.draw(leaf, coins)[0]))

    @property
    def model(self) -> MarkovModel:
        return self.leaves.batch.model

    @property
    def mass(self) -> Floats:
        return self.leaves.mass

    @property
    def drift(self) -> float:
        return self.leaves.drift

    def costs(self) -> Floats:
        return self.leaves.costs(self.labels)

    def last_states(self, lifts: Floats) -> Floats:
        law: Floats = lifts @ self.leaves.ahead[-1]
        return law / law.sum()

    def smooth(self, lifts: Floats, later: Floats) -> tuple[Floats, Floats]:
        leaves = self.leaves
        behind = leaves.behind(later)
        states = np.einsum("m,tms,tms->ts", lifts, leaves.ahead, behind)
        laws = filtering.symbols(leaves.batch.model, states)
        first = leaves.weights[:, 0, leaves.batch.model.newest] * behind[0]
        return laws / laws.sum(1, keepdims=True), lifts @ first


def refine(fine: Leaves) -> Refined:
    """The kernel on leaves of least expected cost, sound at ε, with the best reproduction for each output.

    minimise Σ m_ℓ Q(r|ℓ) E[D(O, r) | ℓ]   over row-stochastic Q with  e^-ε p(r) ≤ Q(r|ℓ) ≤ e^ε p(r)
    """
    mass, limit = fine.mass, fine.batch.epsilon - fine.drift
    aim = usable(limit, len(mass))
    if aim == 0.0 or len(mass) == 1:
        label, table = fine.guesses(mass[None]), np.ones((1, len(mass), 1))
    else:
        optimum, label = with_best_labels(mass, aim, _first_labels(fine), fine.costs, fine.guesses)
        table = optimum.table[None]
    kernels = Kernels.from_tables(np.arange(len(label))[None], table, None, mass[None])
    return Refined(fine, label, kernels.made_sound(mass[None], limit, 2 * limit))


def _first_labels(fine: Leaves) -> Ints:
    """Every batch where they are few, else the best reproduction of each leaf and of all together."""
    count, length, n = fine.weights.shape
    if n**length * count <= MOST_LABELS:
        return np.indices((n,) * length).reshape(length, -1).T.astype(np.int64)
    return np.unique(fine.guesses(np.vstack((np.eye(count), fine.mass))), axis=0)


@remembered
def plan(batch: Batch) -> Refined | None:
    """What the program on the leaves gives; None where the tree alone is cheaper, or the leaves are too many.

    The choice rests on the expected cost under the public belief, so reading a release makes the same one.
    """
    cells = 1.0 + math.exp(batch.epsilon)
    count = min(MOST_LEAVES, max(FEWEST_LEAVES, math.ceil(FINER * cells)))
    if count < cells or count * batch.length * batch.model.size > MOST_NUMBERS:
        return None
    refined = refine(grow(batch, count))
    alone = TREE.expected(batch)
    return refined if alone is None or refined.expected <= alone else None


def draw(batch: Batch, codes: Ints, coins: Coins) -> Sent:
    """Release one batch.

    >>> from seqveil.core.coins import coins
    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> context = Batch(sticky, sticky.initial, 30, 3.0, hamming())  # 10^9 batches
    >>> sent = draw(context, np.repeat([0, 1], 15), coins(seed=1))
    >>> sent.most <= 3.0, read(context, sent.path).codes.tolist() == sent.codes.tolist()
    (True, True)
    """
    refined = plan(batch)
    return TREE.draw(batch, codes, coins) if refined is None else refined.draw(codes, coins)


def read(batch: Batch, path: tuple[int, ...]) -> Sent:
    """The release with this path, as anyone with the model reads it."""
    refined = plan(batch)
    return TREE.read(batch, path) if refined is None else refined.read(path)


def expected(batch: Batch) -> float | None:
    """Expected cost of the whole batch under the belief."""
    refined = plan(batch)
    return TREE.expected(batch) if refined is None else refined.expected


MECHANISM = BatchMechanism(
    name="tree_refined",
    summary="a linear program over boxes of batches; the tree where that is cheaper",
    guarantee="ε-SIP, both sides, per batch",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost=f"an LP over {FEWEST_LEAVES} to {MOST_LEAVES} boxes, seconds at ε = 5; the tree alone beyond ε = 5.5",
    reference="docs/theory.md, section 16",
    sound=True,
    ldp=2.0,
    draw=draw,
    read=read,
    expected=expected,
    largest=TREE.largest,
)
