"""From what must hold of a release to an integer table of which it holds.

*What must hold* are linear bounds on every label, Σ_x rows(i, x) Q(y|x) ≤ 0 (`Bounds`). The table is solved for bounds
a little tighter than those promised, rounded to integers that sum to 2**62, and checked from these integers, every
rounding going outward. A table that does not pass is mixed with its own marginal, which draws every label towards the
average of all, and that average is inside. Mixed wholly it is the constant release, whose columns say nothing: it
always passes, so there is always something to release.

A solver may leave labels of next to no mass that keep to nothing; once drawn, such a label would break any promise.
They are dropped first, and what they held is spread as the rest of its row is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import GuaranteeError
from seqveil.core.guarding import program
from seqveil.core.guarding.pools import pooled
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, slack, to_weights

NEGLIGIBLE = 1e-7  # mass below which a label is dropped
MIXES = (0.0, 1e-9, 1e-7, 1e-5, 1e-3, 0.03, 1.0)
SMALL = 160  # symbols up to which the program is over all of them
WITHHELD = -5  # the code of a release that says that nothing is said


@dataclass(frozen=True, eq=False)
class Bounds:
    """Σ_x rows(i, x) Q(y|x) ≤ 0 for every label y: as promised, and as aimed at (a little tighter).

    `box` is there for a single secret under a single model: its weights and the box aimed at.
    """

    promised: Floats  # (I, n)
    aimed: Floats  # (I, n)
    box: tuple[Floats, float, float] | None = None

    @classmethod
    def of_box(
        cls, belief: Floats, weights: Floats, promised: tuple[float, float], aimed: tuple[float, float]
    ) -> Bounds:
        """Of one secret: its weights σ(x) stay within the box in every label's average."""
        mean = float(belief @ weights)
        lo, hi = min(aimed[0], mean), max(aimed[1], mean)  # where the last release came to rest on the edge
        rows = [belief * np.stack([weights - high, low - weights]) for low, high in (promised, (lo, hi))]
        return cls(rows[0], rows[1], (weights, lo, hi))

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(np.concatenate([self.promised, other.promised]), np.concatenate([self.aimed, other.aimed]), None)

    def free(self) -> np.ndarray:
        """Symbols that may be told as they are: alone on their label they keep every bound."""
        return np.asarray((self.aimed <= 0.0).all(0))


@dataclass(frozen=True, eq=False)
class Table:
    """An integer table over the labels in use: weights (n, K), each row summing to 2**62."""

    outputs: Ints  # (K,) codes, WITHHELD among them where that is allowed
    weights: Ints  # (n, K)
    error: float  # expected cost under the belief
    bound: float  # what no table of these bounds can go below; -inf where it was not computed


def guarded(
    belief: Floats, bounds: Bounds, distortion: Distortion, blank: float | None = None, lies: bool = True
) -> Table:
    """The table of least expected cost whose every label keeps to the bounds, checked from its integers.

    Parameters: `blank`, the price of a release that says nothing (none: not allowed); `lies`: whether a wrong symbol
    may be released at all; without, it is the truth or nothing.

    >>> from seqveil.core.distortion import hamming
    >>> belief, weights = np.array([0.5, 0.5]), np.array([0.19, 1.0])
    >>> box = (0.360886, 0.754355)
    >>> made = guarded(belief, Bounds.of_box(belief, weights, box, box), hamming())
    >>> round(made.error, 4), made.outputs.tolist(), (made.weights / 2**62).round(4).tolist()
    (0.2659, [0, 1], [[0.6391, 0.3609], [0.1709, 0.8291]])
    """
    if not lies:
        outputs, table, least = _truth_or_nothing(belief, bounds, blank or 1.0)
    elif bounds.box is not None and distortion.is_hamming and blank is None:
        made = pooled(belief, *bounds.box)
        joint = made.joint()
        outputs, table, least = np.arange(belief.size), joint, float(1.0 - np.trace(joint))
        table = np.divide(joint, belief[:, None], out=np.zeros_like(joint), where=belief[:, None] > 0)
    else:
        outputs, table, least = _programmed(belief, bounds, distortion, blank)
    outputs, table = _without_residue(belief, outputs, table)
    weights = checked(belief, bounds, table)
    error = float((belief[:, None] * (weights / DENOMINATOR) * _costs(distortion, outputs, belief.size, blank)).sum())
    return Table(outputs, weights, error, min(least, error))


def checked(belief: Floats, bounds: Bounds, table: Floats) -> Ints:
    """The table in integers that keep to what is promised, mixed with its marginal as much as it takes."""
    marginal = belief @ table
    for share in MIXES:
        weights = to_weights((1.0 - share) * table + share * (marginal / marginal.sum()))
        if keeps(bounds.promised, weights):
            return weights
    raise GuaranteeError(
        "no release keeps to the declared secrets, not even one that says nothing; nothing was released; please report "
        "the model and the secrets"
    )


def keeps(rows: Floats, weights: Ints) -> bool:
    """Whether every label keeps to every bound, from the integers, rounded outward."""
    if (weights == weights[:1]).all():
        return True  # the same whatever the truth is: nothing moves
    sums, sizes = rows @ weights.astype(np.float64), np.abs(rows) @ weights.astype(np.float64)
    return bool((sums + slack(len(weights)) * sizes <= 0.0).all())


def _costs(distortion: Distortion, outputs: Ints, n: int, blank: float | None) -> Floats:
    costs = distortion.between(np.arange(n)[:, None], np.maximum(outputs, 0)[None, :])
    return np.where(outputs == WITHHELD, 1.0 if blank is None else blank, costs)


def _programmed(
    belief: Floats, bounds: Bounds, distortion: Distortion, blank: float | None
) -> tuple[Ints, Floats, float]:
    """The program over all symbols of a small alphabet; else over those that are not free and their likeliest cover."""
    n, free = belief.size, bounds.free()
    symbols = np.flatnonzero(belief > 0.0)
    if symbols.size > SMALL:
        cover = np.flatnonzero(free & (belief > 0.0))
        cover = cover[np.argsort(-belief[cover], kind="stable")[:SMALL]]
        symbols = np.union1d(np.flatnonzero(~free & (belief > 0.0)), cover)
    labels = symbols
    if labels.size > SMALL:
        labels = np.sort(labels[np.argsort(-belief[labels], kind="stable")[:SMALL]])
    outputs = labels if blank is None else np.append(labels, WITHHELD)
    cost = _costs(distortion, outputs, n, blank)[symbols]
    found = program.solve(symbols, outputs, belief[symbols], cost, bounds.aimed[:, symbols])
    whole = np.union1d(np.arange(n)[free & ~np.isin(np.arange(n), symbols)], labels)
    codes = whole if blank is None else np.append(whole, WITHHELD)
    place = {int(code): k for k, code in enumerate(codes)}
    table = np.zeros((n, codes.size))
    columns = np.array([place[int(code)] for code in outputs])
    table[symbols[:, None], columns[None, :]] = found.table
    outside = np.setdiff1d(whole, labels)
    table[outside, [place[int(code)] for code in outside]] = 1.0
    return codes, table, found.bound if symbols.size == np.count_nonzero(belief) else -np.inf


def _truth_or_nothing(belief: Floats, bounds: Bounds, price: float) -> tuple[Ints, Floats, float]:
    """Free symbols told, all others withheld, and the least free mass withheld with them that keeps the bounds."""
    free = bounds.free() & (belief > 0.0)
    hidden = np.where(free, 0.0, 1.0)
    if (bounds.aimed @ hidden > 0.0).any():
        hidden[free] = _least_cover(belief[free], bounds.aimed[:, free], bounds.aimed @ hidden)
    outputs = np.append(np.flatnonzero(free), WITHHELD)
    table = np.zeros((belief.size, outputs.size))
    table[outputs[:-1], np.arange(outputs.size - 1)] = 1.0 - hidden[outputs[:-1]]
    table[:, -1] = hidden
    return outputs, table, price * float(belief @ hidden)


def _least_cover(mass: Floats, rows: Floats, excess: Floats) -> Floats:
    """Shares of free symbols to withhold: least Σ mass·share such that excess + rows·share ≤ 0, shares in [0, 1]."""
    over = np.flatnonzero(excess > 0.0)
    if over.size == 1:  # a fractional knapsack: the most help for its mass first
        help_ = -rows[over[0]]
        order = np.argsort(-help_ / mass, kind="stable")
        given = help_[order]
        share = np.zeros_like(mass)
        share[order] = np.clip((excess[over[0]] - (np.cumsum(given) - given)) / np.where(given > 0, given, 1.0), 0, 1)
        share[help_ <= 0.0] = 0.0
        if (excess + rows @ share <= slack(mass.size)).all():
            return share
    from scipy.optimize import linprog

    found = linprog(mass, rows, -excess, bounds=(0.0, 1.0), method="highs")
    return np.ones_like(mass) if found.x is None else np.clip(found.x, 0.0, 1.0)


def _without_residue(belief: Floats, outputs: Ints, table: Floats) -> tuple[Ints, Floats]:
    """Labels of negligible mass dropped, what they held spread as the rest is; unlikely symbols get the marginal."""
    marginal = belief @ table
    kept = marginal >= NEGLIGIBLE
    table = table[:, kept]
    left = table.sum(1)
    marginal = marginal[kept] / marginal[kept].sum()
    table = np.where((left > 0.5)[:, None], table / np.where(left > 0.5, left, 1.0)[:, None], marginal)
    return outputs[kept], table
