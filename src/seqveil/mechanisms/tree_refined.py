"""A linear program on the leaves of a fine tree: nearly the exact optimum where X^w is too large to list."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil import belief as filtering
from seqveil.coins import Coins
from seqveil.errors import DataError
from seqveil.kernel import DENOMINATOR, UNIT, Floats, Ints, Kernels, usable
from seqveil.mechanisms._base import parts
from seqveil.mechanisms._batch import Batch, BatchMechanism, Sent
from seqveil.mechanisms._support import remembered
from seqveil.mechanisms.batch_lp import with_best_labels
from seqveil.mechanisms.tree import TREE, leaves

FINER = 4  # leaves of mass κ/4: the program joins them into cells of mass κ again, and chooses which
MOST_LEAVES = 400
MOST_NUMBERS = 4_000_000  # leaves × positions × states; beyond it the tree alone
MOST_LABELS = 40_000  # leaves × labels up to which every batch is tried as a label


@dataclass(frozen=True, eq=False)
class Leaves:
    """M soft boxes f_ℓ(o) = Π_t φ_ℓ,t(o_t) that add up to one for every o, and what the belief says about each."""

    batch: Batch
    weights: Floats  # (M, w, n): φ

    @cached_property
    def ahead(self) -> Floats:
        """α_t(s) = E[Π_{u≤t} φ_u; state_t = s], (w, M, S)."""
        model = self.batch.model
        out = np.empty((self.batch.length, len(self.weights), model.size))
        out[0] = self.batch.states * self.weights[:, 0, model.newest]
        for position in range(1, self.batch.length):
            out[position] = model.advance(out[position - 1]) * self.weights[:, position, model.newest]
        return out

    def behind(self, later: Floats) -> Floats:
        """b_t(s) = E[Π_{u>t} φ_u · later(state_w) | state_t = s], (w, M, S)."""
        model = self.batch.model
        out = np.empty((self.batch.length, len(self.weights), model.size))
        out[-1] = later
        for position in range(self.batch.length - 1, 0, -1):
            value = out[position] * self.weights[:, position, model.newest]
            restart = value[:, model.base_state] @ model.base
            out[position - 1] = np.asarray(model.chain @ value.T).T + model.backoff * restart[:, None]
        return out

    @cached_property
    def mass(self) -> Floats:
        """m_ℓ = E f_ℓ, (M,), divided by their sum, which is one up to rounding."""
        mass: Floats = self.ahead[-1].sum(1)
        return mass / mass.sum()

    @property
    def drift(self) -> float:
        """Relative error that float64 may have left in the masses and in a batch's shares."""
        count, length, _ = self.weights.shape
        return 8 * (length * (self.batch.model.size + 16) + count) * UNIT

    @cached_property
    def laws(self) -> Floats:
        """Law of each symbol inside each leaf, (M, w, n); of the whole batch for a leaf that cannot occur."""
        model = self.batch.model
        states = self.ahead * self.behind(np.ones(model.size))
        symbols = np.stack([filtering.symbols(model, law) for law in states], axis=1)
        symbols = np.where(self.mass[:, None, None] > 0, symbols, symbols.sum(0))
        return symbols / symbols.sum(2, keepdims=True)

    def shares(self, codes: Ints) -> Ints:
        """f_ℓ(o) as integers that sum to 2**62, (M,)."""
        share = self.weights[:, np.arange(self.batch.length), codes].prod(1)
        return parts(share[None] / share.sum(), np.array([DENOMINATOR]))[0]

    def costs(self, labels: Ints) -> Floats:
        """E[Σ_t D(x_t, r_t) | leaf] of every label (K, w): (M, K)."""
        return sum((self._costs[:, t, symbols] for t, symbols in enumerate(labels.T)), np.zeros(1))

    @cached_property
    def _costs(self) -> Floats:
        return self.batch.distortion.expected(self.laws)

    def guesses(self, weights: Floats) -> Ints:
        """The best reproduction under each row of weights over leaves: (K, M) → (K, w)."""
        return self.batch.distortion.best_guess(np.einsum("km,mtx->ktx", weights, self.laws))


@dataclass(frozen=True, eq=False)
class Refined:
    """A sound kernel on leaves, and the reproduction of each of its outputs.

    **Guarantee.** A batch o draws a leaf ℓ with probability f_ℓ(o), the leaf an output y by Q(y|ℓ). So
    Q(y|o) = Σ_ℓ f_ℓ(o) Q(y|ℓ), and its marginal is Σ_o β(o) Q(y|o) = Σ_ℓ m_ℓ Q(y|ℓ), that of the kernel on leaves
    under the masses m. Hence the lift of o is Σ_ℓ f_ℓ(o) ρ_y(ℓ), a mean of lifts of leaves: within [e^-ε, e^ε] if
    theirs are, for every o in X^w, in or out of the support. ∎
    """

    leaves: Leaves
    labels: Ints  # (K, w)
    kernels: Kernels  # a stack of one over M "symbols", the leaves

    def draw(self, codes: Ints, coins: Coins) -> RefinedSent:
        steps = np.cumsum(self.leaves.shares(codes))
        leaf = np.searchsorted(steps, coins.draw(1), side="right")
        return RefinedSent(self, int(self.kernels.draw(leaf, coins)[0]))

    def read(self, path: tuple[int, ...]) -> RefinedSent:
        count = len(self.labels)
        if len(path) != 1 or not 0 <= path[0] < count or not self.kernels.extremes()[1][0, path[0]]:
            raise DataError(
                f"expected a path of one output below {count} that can be released, got {path}; "
                "read with the model, ε, batch length and past paths it was released with"
            )
        return RefinedSent(self, int(path[0]))

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """Logs of the least and largest lift of each output over the leaves, rounded outward."""
        least, largest = self.kernels.lift_bounds(self.leaves.mass[None], whole_alphabet=True)
        return least[0] - self.leaves.drift, largest[0] + self.leaves.drift

    def lifts(self, index: int) -> Floats:
        column = self.kernels.column(np.array([index]))[0].astype(np.float64)
        return column / (self.leaves.mass @ column)

    @cached_property
    def expected(self) -> float:
        """Expected cost of the whole batch, Σ m_ℓ Q(y|ℓ) E[D | ℓ], from the integers."""
        columns = [self.kernels.column(np.array([index]))[0] for index in range(len(self.labels))]
        table = np.stack(columns, axis=1) / float(DENOMINATOR)
        return float((self.leaves.mass[:, None] * table * self.leaves.costs(self.labels)).sum())


@dataclass(frozen=True, eq=False)
class RefinedSent:
    """One release; see `_batch.Sent`."""

    plan: Refined
    index: int

    @property
    def path(self) -> tuple[int, ...]:
        return (self.index,)

    @property
    def codes(self) -> Ints:
        return self.plan.labels[self.index]

    @cached_property
    def lifts(self) -> Floats:
        """(M,) lift of every leaf."""
        return self.plan.lifts(self.index)

    @cached_property
    def posterior(self) -> Floats:
        law: Floats = self.lifts @ self.plan.leaves.ahead[-1]
        return law / law.sum()

    @property
    def least(self) -> float:
        return float(self.plan.bounds[0][self.index])

    @property
    def most(self) -> float:
        return float(self.plan.bounds[1][self.index])

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        leaves = self.plan.leaves
        behind = leaves.behind(later)
        states = np.einsum("m,tms,tms->ts", self.lifts, leaves.ahead, behind)
        laws = filtering.symbols(leaves.batch.model, states)
        first = leaves.weights[:, 0, leaves.batch.model.newest] * behind[0]
        return laws / laws.sum(1, keepdims=True), self.lifts @ first


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
    least = 1.0 / (1.0 + math.exp(batch.epsilon))
    fine = max(least / FINER, 1.0 / MOST_LEAVES)
    if fine > least or batch.length * batch.model.size / fine > MOST_NUMBERS:
        return None
    refined = refine(Leaves(batch, grow(batch, fine)))
    alone = TREE.expected(batch)
    return refined if alone is None or refined.expected <= alone else None


def grow(batch: Batch, least_mass: float) -> Floats:
    """Leaves of the tree-quantised release of at least that mass, written out: (M, w, n)."""
    found = leaves(batch, least_mass)
    weights = np.ones((len(found), batch.length, batch.model.n))
    for weight, leaf in zip(weights, found, strict=True):
        for position, shares in leaf.box.items():
            weight[position] = shares
    return weights


def draw(batch: Batch, codes: Ints, coins: Coins) -> Sent:
    """Release one batch."""
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
    summary="the tree-quantised release, its leaves four times finer and joined by a linear program",
    guarantee="ε-SIP, both sides, per batch",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost=f"an LP over at most {MOST_LEAVES} leaves; the tree alone for ε above {math.log(MOST_LEAVES - 1):.1f}",
    reference="batched design (refined mode)",
    sound=True,
    ldp=2.0,
    draw=draw,
    read=read,
    expected=expected,
)
