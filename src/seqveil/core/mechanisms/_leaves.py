"""X^w cut into few boxes, most where it pays most: the rows of a program over cells."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil.core import filtering
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints
from seqveil.core.mechanisms._base import parts
from seqveil.core.mechanisms._batch import Batch

CUTS = 8  # borders tried for each position and ordering
DIGITS = 12  # of a gain: what lies beyond is rounding, and ties go to the first


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
            restart = (value[:, model.base_state] * model.base).sum(1)
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

    @cached_property
    def least_costs(self) -> Floats:
        """m_ℓ times the expected cost of the leaf's best reproduction, (M,); masses as they are."""
        return self.ahead[-1].sum(1) * self._costs.min(2).sum(1)

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
