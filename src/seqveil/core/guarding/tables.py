"""From what must hold of a release to an integer table of which it holds.

*What must hold* are linear bounds on every label (`bounds.Bounds`). The table is solved for bounds a little tighter
than those promised, rounded to integers that sum to 2**62, and checked from these integers, every rounding going
outward. A table that does not pass is mixed with its own marginal, which draws every label towards the average of all,
and that average is inside. Mixed wholly it is the constant release, whose columns say nothing: it always passes, so
there is always something to release.

A solver may leave labels of next to no mass that keep to nothing; once drawn, such a label would break any promise.
They are dropped first, and what they held is spread as the rest of its row is.

*With an ε for every release as well* the table is mixed with its marginal until every lift is within ε; beside it the
table that is best for ε alone is mixed until the secrets are kept, and the better of the two is taken. Both mixtures
keep both promises; neither is the optimum of the two together. Where all that is dearer than one constant release, that
is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import Distortion
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.guarding import program
from seqveil.core.guarding.bounds import Bounds
from seqveil.core.guarding.pools import pooled
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, mix, usable
from seqveil.core.mechanisms import optimal

NEGLIGIBLE = 1e-7  # mass below which a label that others are told as is dropped
MIXES = (1e-9, 1e-7, 1e-5, 1e-3, 0.03)
SMALL = 160  # symbols up to which the program is over all of them
TINY = 1e-300
WRITABLE = 25_000_000  # numbers of a table that is written out in full


@dataclass(frozen=True, eq=False)
class Table:
    """An integer table over the labels in use: a few weights a row, each row summing to 2**62."""

    outputs: Ints  # (K,) codes, WITHHELD among them where that is allowed
    rows: Ints  # (n,) the row of each symbol
    weights: Any  # sparse (R, K)
    error: float  # expected cost under the belief
    bound: float  # what no table of these bounds can go below; -inf where it was not computed

    def pick(self, code: int, coin: int) -> int:
        """Index of the output that a coin, an integer in [0, 2**62), picks for a symbol."""
        begin, end = self.weights.indptr[self.rows[code] : self.rows[code] + 2]
        place = int(np.searchsorted(np.cumsum(self.weights.data[begin:end]), coin, side="right"))
        return int(self.weights.indices[begin + place])

    def column(self, index: int) -> Ints:
        """Weights (n,) that each symbol puts on an output."""
        return np.asarray(self.weights[:, [index]].toarray()[:, 0][self.rows], np.int64)

    def kernels(self) -> Kernels:
        """The same as a stack of one kernel, written out."""
        if self.weights.shape[0] * self.weights.shape[1] > WRITABLE:
            raise InputError(
                f"a table of {self.weights.shape[0]} × {self.weights.shape[1]} weights is too large to write out; "
                "release without looking at it"
            )
        outputs, extra = self.outputs[None], self.weights.toarray()[None].astype(np.int64)
        return Kernels(self.rows.size, outputs, np.zeros_like(outputs), extra, None, self.rows[None])


def guarded(
    bounds: Bounds,
    distortion: Distortion,
    blank: float | None = None,
    lies: bool = True,
    epsilon: float | None = None,
) -> Table:
    """The table of least expected cost whose every label keeps to the bounds, checked from its integers.

    Parameters:

    - `blank`: the price of a release that says nothing; none: not allowed;
    - `lies`: whether a wrong symbol may be released at all; without, it is the truth or nothing;
    - `epsilon`: what every lift has to be within as well; none: no such bound.

    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.secrets import Guarded
    >>> weights, belief = np.array([[[0.81, 0.0], [0.19, 1.0]]]), np.array([0.5, 0.5])
    >>> secret = Guarded(np.array([0]), weights, np.array([[0.405, 0.595]]), 0.5, "both", 0.0)
    >>> made = guarded(Bounds.of_guarded([(belief, secret)], belief), hamming())
    >>> round(made.error, 4), made.outputs.tolist(), (made.weights.toarray()[made.rows] / 2**62).round(4).tolist()
    (0.3543, [0, 1], [[0.6225, 0.3775], [0.331, 0.669]])
    """
    if epsilon is not None and bounds.belief.size**2 > WRITABLE:
        raise InputError(
            f"an ε for every release beside declared secrets is for at most {int(WRITABLE**0.5)} symbols, got "
            f"{bounds.belief.size}; leave epsilon out, or use a coarser alphabet"
        )
    drafts = [_solved(bounds, distortion, blank, lies), _constant(bounds, distortion, lies)]
    if epsilon is not None and lies:
        drafts.append(_best_for(epsilon, bounds, distortion))
    made = []
    for draft in drafts:
        weights, rows = _checked(bounds, draft, epsilon)
        cost = _cost(distortion, draft.outputs, weights, rows, bounds.belief, blank)
        made.append(Table(draft.outputs, rows, weights, cost, drafts[0].least))
    best = min(made, key=lambda one: one.error)
    return replace(best, bound=min(best.bound, best.error))


@dataclass(frozen=True, eq=False)
class _Draft:
    """A table in floats: its labels, the row of each symbol, the rows, what no table can go below, and towards which
    law of labels it is mixed where it does not pass."""

    outputs: Ints  # (K,)
    rows: Ints  # (n,)
    table: Any  # sparse (R, K)
    least: float
    towards: Floats  # (K,)


def _solved(bounds: Bounds, distortion: Distortion, blank: float | None, lies: bool) -> _Draft:
    if not lies:
        return _truth_or_nothing(bounds, 1.0 if blank is None else blank)
    bounds = bounds.told_apart()
    if not len(bounds.aimed) or (bounds.box is not None and distortion.is_hamming and blank is None):
        return _without_residue(bounds, *_in_closed_form(bounds))
    try:
        return _without_residue(bounds, *_programmed(bounds, distortion, blank))
    except program.Unsolved:
        return _constant(bounds, distortion, lies)


def _in_closed_form(bounds: Bounds) -> tuple[Ints, Any, float]:
    from scipy import sparse

    belief = bounds.belief
    joint = sparse.diags_array(belief).tocsr()
    if bounds.box is not None:
        joint = pooled(belief, *bounds.box).joint()
    shares = np.divide(1.0, belief, out=np.zeros_like(belief), where=belief > 0)
    return np.arange(belief.size), sparse.diags_array(shares) @ joint, float(1.0 - joint.trace())


def _programmed(bounds: Bounds, distortion: Distortion, blank: float | None) -> tuple[Ints, Any, float]:
    """The program over all symbols of a small alphabet; else over those that are not free and their likeliest cover."""
    from scipy import sparse

    belief, free, n = bounds.belief, bounds.free(), bounds.belief.size
    symbols = np.flatnonzero(bounds.possible)
    whole = symbols.size <= SMALL
    if not whole:
        symbols = _not_free_and_cover(bounds, free)
    labels = symbols
    if labels.size > SMALL:
        labels = np.sort(labels[np.argsort(-belief[labels], kind="stable")[:SMALL]])
    cost = distortion.between(symbols[:, None], labels[None, :])
    if blank is not None:
        cost = np.column_stack([cost, np.full(symbols.size, blank)])
    outside = np.flatnonzero(bounds.possible & free & ~np.isin(np.arange(n), symbols))
    found = program.solve(belief[symbols], cost, bounds.aimed[:, symbols])
    outputs = np.concatenate([labels, np.zeros(0, np.int64) if blank is None else [WITHHELD], outside]).astype(np.int64)
    size, wide = len(found.table), found.table.shape[1]
    x, y = np.nonzero(found.table)
    at = np.concatenate([symbols[x], outside]), np.concatenate([y, wide + np.arange(outside.size)])
    values = np.concatenate([found.table[x, y], np.ones(outside.size)])
    table = sparse.csr_array((values, at), shape=(n, outputs.size))
    return outputs, table, found.bound if whole and size else -np.inf


def _not_free_and_cover(bounds: Bounds, free: NDArray[np.bool_]) -> Ints:
    """Symbols that are not free, and the likeliest free ones: so many that saying nothing of all these is allowed."""
    needed, cover = np.flatnonzero(~free & bounds.possible), np.flatnonzero(free & bounds.possible)
    cover = cover[np.argsort(-bounds.belief[cover], kind="stable")]
    helped = bounds.aimed[:, needed].sum(1)[:, None] + np.cumsum(bounds.aimed[:, cover], axis=1)
    enough = np.flatnonzero((helped <= 0.0).all(0))
    count = max(SMALL, int(enough[0]) + 1 if enough.size else cover.size)
    return np.union1d(needed, cover[:count])


def _truth_or_nothing(bounds: Bounds, price: float) -> _Draft:
    """Free symbols told, all others withheld, and the least free mass withheld with them that keeps the bounds."""
    from scipy import sparse

    belief, free = bounds.belief, bounds.free() & bounds.possible
    hidden = np.where(free, 0.0, 1.0)
    if (bounds.aimed @ hidden > 0.0).any():
        hidden[free] = _least_cover(belief[free], bounds.aimed[:, free], bounds.aimed @ hidden)
    if hidden.any() and belief @ hidden == 0.0:
        hidden[free] = (
            NEGLIGIBLE  # a symbol that cannot come: if it does, nothing is said, which must not be a surprise
        )
    told, kept = np.flatnonzero(free & (hidden < 1.0)), np.flatnonzero(hidden)
    at = np.concatenate([told, kept]), np.concatenate([np.arange(told.size), np.full(kept.size, told.size)])
    values = np.concatenate([1.0 - hidden[told], hidden[kept]])
    table = sparse.csr_array((values, at), shape=(belief.size, told.size + 1))
    towards = np.append(np.zeros(told.size), 1.0)
    return _Draft(np.append(told, WITHHELD), np.arange(belief.size), table, price * float(belief @ hidden), towards)


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
        if (excess + rows @ share <= 0.0)[np.arange(len(excess)) != over[0]].all():
            return share
    if not mass.size:
        return mass
    from scipy.optimize import linprog

    scale = np.maximum(np.abs(rows).max(1), np.abs(excess)) + TINY
    found = linprog(mass, rows / scale[:, None], -excess / scale, bounds=(0.0, 1.0), method="highs")
    return np.ones_like(mass) if found.x is None else np.clip(found.x, 0.0, 1.0)


def _best_for(epsilon: float, bounds: Bounds, distortion: Distortion) -> _Draft:
    """The table that is best for ε alone, mixed with its marginal until the secrets are kept."""
    from scipy import sparse

    belief = bounds.belief / bounds.belief.sum()
    made = optimal.kernels(belief[None], epsilon, distortion).one(0)
    table = made.probabilities
    marginal = belief @ table
    moved, still = bounds.aimed @ table, np.multiply.outer(bounds.aimed.sum(1), marginal)
    share = np.where(moved > 0.0, moved / np.maximum(moved - still, TINY), 0.0).max(initial=0.0)
    mixed = (1.0 - share) * table + share * marginal
    return _Draft(made.codes, np.arange(belief.size), sparse.csr_array(mixed), -np.inf, marginal)


def _constant(bounds: Bounds, distortion: Distortion, lies: bool) -> _Draft:
    """The same release whatever the truth is: the best guess, or nothing."""
    from scipy import sparse

    guess = int(distortion.best_guess(np.where(bounds.possible, bounds.belief, 0.0)[None])[0]) if lies else WITHHELD
    rows = np.zeros(bounds.belief.size, np.int64)
    return _Draft(np.array([guess]), rows, sparse.csr_array(np.ones((1, 1))), -np.inf, np.ones(1))


def _without_residue(bounds: Bounds, outputs: Ints, table: Any, least: float) -> _Draft:
    """Labels of negligible mass dropped, what they held spread as the rest is; symbols left with nothing, and those
    that are not told at all, share one more row: the marginal."""
    from scipy import sparse

    belief = bounds.belief
    marginal = np.asarray(belief @ table)
    alone = np.asarray((table != 0).sum(0)).ravel() == 1
    own = np.isin(outputs, np.flatnonzero(bounds.free() & bounds.possible))
    kept = (marginal >= NEGLIGIBLE) | (alone & own & (marginal > 0.0))
    outputs, table = outputs[kept], table[:, np.flatnonzero(kept)]
    marginal = marginal[kept] / marginal[kept].sum()
    left = np.asarray(table.sum(1)).ravel()
    told = bounds.possible & (left > 0.5)
    rows = np.full(belief.size, np.count_nonzero(told))
    rows[told] = np.arange(np.count_nonzero(told))
    scaled = sparse.diags_array(1.0 / left[told]) @ table[np.flatnonzero(told)]
    whole = sparse.vstack([scaled, sparse.csr_array(marginal[None])], format="csr")
    return _Draft(outputs, rows, whole, least, marginal)


def _checked(bounds: Bounds, draft: _Draft, epsilon: float | None) -> tuple[Any, Ints]:
    """The table in integers that keep to what is promised, mixed as much as it takes, and the row of each symbol."""
    for mixed, rows in _mixtures(bounds, draft, epsilon):
        weights = _to_weights(mixed)
        if _keeps(bounds, rows, weights) and (epsilon is None or _within(epsilon, bounds, rows, weights)):
            return weights, rows
    raise GuaranteeError(
        "no release keeps to the declared secrets, not even one that says nothing; nothing was released; please report "
        "the model and the secrets"
    )


def _mixtures(bounds: Bounds, draft: _Draft, epsilon: float | None) -> Iterator[tuple[Any, Ints]]:
    """The table mixed more and more with one row for all, and at last that row alone."""
    from scipy import sparse

    table, rows, n = draft.table, draft.rows, bounds.belief.size
    if epsilon is not None:
        full, law = table.toarray()[rows], bounds.belief / bounds.belief.sum()
        mixed = mix(full[None], law[None], usable(epsilon, n) * (1 - 1e-9))[0]
        table, rows = sparse.csr_array(mixed), np.arange(n)
    yield table, rows
    if table.shape[0] * table.shape[1] <= WRITABLE:
        full = table.toarray()
        for share in MIXES:
            yield sparse.csr_array((1.0 - share) * full + share * draft.towards), rows
    yield sparse.csr_array(draft.towards[None]), np.zeros_like(rows)


def _to_weights(table: Any) -> Any:
    """Sparse rows of probabilities as integers that sum to 2**62; what rounding leaves goes to the largest entry."""
    from scipy import sparse

    table.eliminate_zeros()
    data = (table.data * float(DENOMINATOR)).astype(np.int64)
    counts = np.diff(table.indptr)
    where = np.repeat(np.arange(counts.size), counts)
    largest = np.lexsort((data, where))[table.indptr[1:] - 1]
    data[largest] += DENOMINATOR - np.add.reduceat(data, table.indptr[:-1])
    return sparse.csr_array((data, table.indices, table.indptr), shape=table.shape)


def _keeps(bounds: Bounds, rows: Ints, weights: Any) -> bool:
    """Whether every label keeps to every bound, from the integers, rounded outward."""
    if weights.shape[0] == 1:
        return True  # the same whatever the truth is: nothing moves
    by_row, scaled = _grouping(rows, weights.shape[0]), weights.astype(np.float64)
    sums, doubts = ((by_row @ numbers.T).T @ scaled for numbers in (bounds.promised, bounds.doubt))
    return bool((sums + doubts <= 0.0).all())


def _grouping(rows: Ints, count: int) -> Any:
    """1 where a symbol (column) has a row of the table (row)."""
    from scipy import sparse

    return sparse.csr_array((np.ones(rows.size), (rows, np.arange(rows.size))), shape=(count, rows.size))


def _within(epsilon: float, bounds: Bounds, rows: Ints, weights: Any) -> bool:
    """Whether every lift over the whole alphabet is within ε, and the table 2ε-LDP, from the integers."""
    outputs = np.arange(weights.shape[1])[None]
    made = Kernels(rows.size, outputs, np.zeros_like(outputs), weights.toarray()[None], None, rows[None])
    return bool(made.leakage(bounds.belief[None], True)[0] <= epsilon and made.ldp()[0] <= 2 * epsilon)


def _cost(
    distortion: Distortion, outputs: Ints, weights: Any, rows: Ints, belief: Floats, blank: float | None
) -> float:
    """The expected cost of an integer table."""
    present = np.flatnonzero(belief)
    entries = weights[rows[present]].tocoo()
    x, y = present[entries.coords[0]], entries.coords[1]
    cost = distortion.between(x, np.maximum(outputs, 0)[y])
    cost = np.where(outputs[y] == WITHHELD, 1.0 if blank is None else blank, cost)
    return float((belief[x] * (entries.data / DENOMINATOR) * cost).sum())
