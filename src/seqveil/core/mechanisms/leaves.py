"""A linear program on boxes of batches: nearly the exact optimum where X^w is too large to list.

The leaves of a public tree are boxes that partition X^w, cut where it pays most, several for each cell of mass
κ = 1/(1+e^ε) that a release could tell. The program joins them into such cells, softly, and chooses what each cell
stands for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import Coins
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints
from seqveil.core.mechanisms.base import Batch, Rule, parts
from seqveil.core.mechanisms.batch_programs import best_codebook, every_batch
from seqveil.core.mechanisms.boxes import backward, forward
from seqveil.core.mechanisms.codebook import Codebook
from seqveil.core.mechanisms.rule_cache import RuleCache
from seqveil.core.mechanisms.trees import tree

FINER = 4  # leaves for each cell of mass κ: the program joins them into such cells, and chooses which
FEWEST, MOST = 64, 256  # leaves
MOST_NUMBERS = 4_000_000  # leaves × positions × states; beyond it the tree alone
MOST_LABELS = 40_000  # leaves × labels up to which every batch is tried as a label
CUTS = 8  # borders tried for each position and ordering
DIGITS = 12  # of a gain: what lies beyond is rounding, and ties go to the first


@dataclass(frozen=True, eq=False)
class Leaves:
    """M soft boxes f_ℓ(o) = Π_t φ_ℓ,t(o_t) that add up to one for every o, as rows of a codebook; see `Rows`.

    *Guarantee*: a batch o draws a leaf ℓ with probability f_ℓ(o), the leaf an output y by Q(y|ℓ). So
    Q(y|o) = Σ_ℓ f_ℓ(o) Q(y|ℓ), and its marginal is Σ_o β(o) Q(y|o) = Σ_ℓ m_ℓ Q(y|ℓ), that of the kernel on leaves
    under the masses m. Hence the lift of o is Σ_ℓ f_ℓ(o) ρ_y(ℓ), a mean of lifts of leaves: within [e^-ε, e^ε] if
    theirs are, for every o in X^w, in or out of the support. ∎
    """

    batch: Batch
    weights: Floats  # (M, w, n): φ

    @cached_property
    def ahead(self) -> Floats:
        """α_t(s) = E[Π_{u≤t} φ_u; state_t = s], (w, M, S)."""
        return forward(self.batch.model, self.batch.states, self.batch.length, self._boxes)

    def behind(self, later: Floats) -> Floats:
        """b_t(s) = E[Π_{u>t} φ_u · later(state_w) | state_t = s], (w, M, S)."""
        return backward(self.batch.model, later, self.batch.length, self._boxes)

    @property
    def _boxes(self) -> dict[int, Floats]:
        return dict(enumerate(self.weights.transpose(1, 0, 2)))

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
        symbols = filtering.symbols_of_streams(model, states)
        symbols = np.where(self.mass[:, None, None] > 0, symbols, symbols.sum(0))
        return symbols / symbols.sum(2, keepdims=True)

    @cached_property
    def least_costs(self) -> Floats:
        """m_ℓ times the expected cost of the leaf's best reproduction, (M,); masses as they are."""
        return self.ahead[-1].sum(1) * self._costs.min(2).sum(1)

    def row(self, codes: Ints, coins: Coins) -> int:
        """A leaf drawn by f_ℓ(o), as integers that sum to 2**62."""
        return int(np.searchsorted(np.cumsum(self.shares(codes)), coins.draw(1), side="right")[0])

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

    def last_states(self, lifts: Floats) -> Floats:
        """(S,) law of the state at the last symbol after a release with these lifts, one for each leaf."""
        law: Floats = lifts @ self.ahead[-1]
        return law / law.sum()

    def smooth(self, lifts: Floats, later: Floats) -> tuple[Floats, Floats]:
        """Laws of the w symbols and the likelihood of the first state; see `Sent.smooth`."""
        model, behind = self.batch.model, self.behind(later)
        states = np.einsum("m,tms,tms->ts", lifts, self.ahead, behind)
        laws = filtering.symbols(model, states)
        first = self.weights[:, 0, model.newest] * behind[0]
        return laws / laws.sum(1, keepdims=True), lifts @ first


def grow(batch: Batch, count: int) -> Leaves:
    """At most `count` boxes that partition X^w, by cutting again and again the box whose best cut gains most.

    A box is cut at one position, between symbols in order of place (of likelihood where they have none). The gain is
    exact: the drop of the expected cost of the best reproduction, over all positions. A cut that gains nothing is not
    made, so a box that holds one possible batch stays whole.

    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> grow(Batch(model, model.initial, 3, 1.0, hamming()), 2).weights[:, 1].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    number = itertools.count()
    root = np.ones((batch.length, batch.model.n))
    whole: list[Floats] = []
    growing = [_entry(batch, root, next(number))]
    while growing and len(whole) + len(growing) < count:
        gain, _, box, children = heapq.heappop(growing)
        if gain == 0.0:
            whole.append(box)
            continue
        for child in children:
            heapq.heappush(growing, _entry(batch, child, next(number)))
    return Leaves(batch, np.array([*whole, *(box for _, _, box, _ in growing)]))


def _entry(batch: Batch, box: Floats, number: int) -> tuple[float, int, Floats, Floats]:
    gain, children = _best_cut(batch, box)
    return -gain, number, box, children  # numbers differ, so arrays are never compared


def _best_cut(batch: Batch, box: Floats) -> tuple[float, Floats]:
    """The gain of the best cut of a box and the two boxes (2, w, n) it leaves; 0 where no cut gains."""
    leaf = Leaves(batch, box[None])
    pairs = [pair for t in range(batch.length) for pair in _cuts(box, t, leaf.laws[0, t], batch.distortion)]
    if not pairs:
        return 0.0, box[None]
    costs = Leaves(batch, np.concatenate(pairs)).least_costs.reshape(-1, 2).sum(1)
    gains = np.round(leaf.least_costs[0] - costs, DIGITS)
    best = int(gains.argmax())
    return max(0.0, float(gains[best])), pairs[best]


def _cuts(box: Floats, position: int, law: Floats, distortion: Distortion) -> Iterator[Floats]:
    """Cuts at one position, between symbols that may occur there; one that may not goes with those it lies between."""
    points = distortion.points
    scales = [-law] if points is None else list(np.reshape(points, (len(law), -1)).T)
    for scale in scales:
        order = np.argsort(scale, kind="stable")
        mass = np.cumsum(law[order])
        borders = np.flatnonzero(law[order])[:-1]  # the last symbol on the left of each border
        if len(borders) > CUTS:
            near = np.searchsorted(mass[borders], np.arange(1, CUTS + 1) / (CUTS + 1))
            borders = np.unique(borders[np.minimum(near, len(borders) - 1)])
        for border in borders:
            left = np.zeros(len(law))
            left[order[: border + 1]] = 1.0
            pair = np.stack((box, box))
            pair[:, position] *= (left, 1.0 - left)
            yield pair


def refine(fine: Leaves) -> Codebook:
    """The kernel on leaves of least expected cost, sound at ε, with the best reproduction for each output."""
    count, length, n = fine.weights.shape
    if n**length * count <= MOST_LABELS:
        labels = every_batch(n, length)
    else:  # the best reproduction of each leaf and of all together
        labels = np.unique(fine.guesses(np.vstack((np.eye(count), fine.mass))), axis=0)
    return best_codebook(fine, fine.batch.epsilon - fine.drift, labels)


def _better(batch: Batch, kept: bool) -> Codebook | None:
    """What the program on the leaves gives; None where the tree alone is cheaper, or the leaves are too many.

    The choice rests on the expected cost under the public belief, so reading a release makes the same one.
    """
    cells = 1.0 + math.exp(batch.epsilon)
    count = min(MOST, max(FEWEST, math.ceil(FINER * cells)))
    if count < cells or count * batch.length * batch.model.size > MOST_NUMBERS:
        return None
    refined, alone = refine(grow(batch, count)), tree(batch).expected
    return refined if alone is None or refined.expected <= alone else None


better = RuleCache(_better)


def tree_refined(batch: Batch) -> Rule:
    """The cheaper of the program on leaves and the tree.

    >>> from seqveil.core.coins import coins
    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> rule = tree_refined(Batch(sticky, sticky.initial, 30, 3.0, hamming()))  # 10^9 batches
    >>> sent = rule.draw(np.repeat([0, 1], 15), coins(seed=1))
    >>> sent.most <= 3.0, rule.read(sent.path).codes.tolist() == sent.codes.tolist()
    (True, True)
    """
    return better(batch) or tree(batch)
