"""Every linear program, solved and certified in one place.

`Program` hands rows and columns to HiGHS, with one policy for tolerances, presolve and the number of iterations.
Nothing that is promised rests on the solver's word: a bound on what a table misses follows from any prices, and every
table is checked from its integers before anything is drawn from it. Two problems are solved here.

**Sound at ε**, for any distortion matrix (`sound`), in the form of docs/theory.md, section 12: Q = a p + (1-a) I with
a = e^-ε and κ = 1/(1+e^ε). With c(x,y) = a Σ_x' β(x') D(x',y) + (1-a) D(x,y),

    minimise Σ β(x) I(y|x) c(x,y)   over row-stochastic I with  I(y|x) ≤ p(y)/κ,   p = β I.

One cap per cell, with two non-zeros, instead of two dense ones: HiGHS solves it far quicker than the problem as stated.
An optimum uses few labels, so a large problem is solved over some of them, and labels are added as the dual asks.

- *Closed form.* If sending every x to its cheapest y gives each label used a mass of at least κ, that is the optimum.
- *Rows.* Symbols with equal rows of D need not be distinguished (average their rows), so they are merged. A symbol of
  belief zero constrains nothing, as p itself is a sound row for it; it gets its cheapest sound row.
- *Dual bound.* Prices u(x) bound the cost by Σ β u if for each y the least value of Σ β(x) φ(x) (c(x,y) - u(x)) over
  φ ∈ [0,1]^n with Σ β φ = κ, a fractional knapsack, is not negative. Any u becomes feasible by adding a constant.

**Under linear bounds on the labels** (`bounded`):

    minimise Σ_x,y β(x) D(x,y) Q(y|x)   over row-stochastic Q with   Σ_x rows(i, x) Q(y|x) ≤ 0   for all y and i.

A secret with weights σ and box [lo, hi] has the rows β(x)(σ(x) - hi) and β(x)(lo - σ(x)). Bounds are taken in as a
table breaks them, and pairs (x, y) as their reduced cost asks for them. *Dual bound*: for any prices λ(i, y) ≥ 0,
Σ_x min_y [β(x) D(x,y) + Σ_i λ(i, y) rows(i, x)] is at most the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.kernel import DROP, Floats, Ints

# Presolve may take a program that just has a solution for one that has none, and a program whose vertices nearly fall
# together may be solved no better than to 1e-7: then the table is mixed until its integers keep what is promised.
ATTEMPTS = (("on", 1e-10), ("off", 1e-9), ("off", 1e-8), ("off", 1e-7))
ITERATIONS = 10  # of the simplex for each row and column; some programs would otherwise never end
UNSEEN = 1e-12  # HiGHS takes smaller coefficients for zero
TOLERANCE = 1e-9  # how much a bound may be broken, a reduced cost be negative or an optimum be missed

CELLS_AT_MOST = 160_000  # symbols × outputs: 400 × 400 takes seconds to minutes
CELLS_AT_ONCE = 2_500  # a program up to this size is solved whole, a larger one label by label
LABELS_AT_ONCE = 16
FIRST_PAIRS, MORE_PAIRS = 500, 300  # pairs that a bounded program starts with, and takes in at a time
MORE_ROWS = 12  # bounds taken in at a time


class Unsolved(GuaranteeError):
    """The solver gave up. Whoever can say nothing instead does so, which keeps every bound."""


class Program:
    """min cost·v over 0 ≤ v ≤ most with lower ≤ A v ≤ upper, whose columns come in one go or as they are asked for.

    >>> from scipy import sparse
    >>> program = Program(np.array([1.0]), np.array([1.0]))
    >>> program.add(np.array([2.0, 1.0]), sparse.csc_array(np.ones((1, 2))))
    >>> found, duals = program.run()
    >>> found.tolist(), duals.tolist()
    ([0.0, 1.0], [1.0])
    """

    def __init__(self, lower: Floats, upper: Floats) -> None:
        import highspy

        self._solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._solver.silent()
        self._solver.setOptionValue("small_matrix_value", UNSEEN)  # dropped entries make the just feasible infeasible
        self._solver.addRows(lower.size, lower, upper, 0, np.zeros(lower.size, np.int32), [], [])

    def add(self, cost: Floats, matrix: Any, most: float = math.inf) -> None:
        """Columns, sparse; further ones leave what was found feasible, so the primal simplex goes on from there."""
        if self._solver.getNumCol():
            self._solver.setOptionValue("simplex_strategy", 4)
        entries = matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32), matrix.data
        self._solver.addCols(cost.size, cost, np.zeros(cost.size), np.full(cost.size, most), matrix.nnz, *entries)

    def run(self) -> tuple[Floats, Floats]:
        """v, what the solver leaves below zero rounded away, and the duals of the rows."""
        import highspy

        solver = self._solver
        solver.setOptionValue("simplex_iteration_limit", ITERATIONS * (solver.getNumRow() + solver.getNumCol()))
        for presolve, tolerance in ATTEMPTS:
            solver.setOptionValue("presolve", presolve)
            solver.setOptionValue("primal_feasibility_tolerance", tolerance)
            solver.setOptionValue("dual_feasibility_tolerance", tolerance)
            solver.run()
            if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
                solution = solver.getSolution()
                return np.maximum(np.array(solution.col_value), 0.0), np.array(solution.row_dual)
            solver.clearSolver()
        raise Unsolved(
            f"a linear program of {solver.getNumCol()} variables was not solved ({solver.getModelStatus().name}); "
            'use mechanism="balanced" or "randomized_response", which need no solver'
        )


@dataclass(frozen=True)
class Solution:
    """The best kernel over the outputs it uses, what it costs, and a bound that no kernel can beat."""

    outputs: Ints  # (k,): columns of the distortion matrix
    table: Floats  # (n, k): Q(y|x)
    error: float  # expected distortion
    bound: float  # certified: error - bound ≥ 0 is the most that could be gained


def check_size(symbols: int, outputs: int) -> None:
    """Refuse a program that would take hours."""
    if symbols * outputs > CELLS_AT_MOST:
        raise InputError(
            f"the exact optimum takes at most {CELLS_AT_MOST} cells (symbols × outputs), got {symbols} × {outputs}; "
            'use mechanism="tree" or mechanism="balanced" for alphabets this large'
        )


def sound(belief: Floats, epsilon: float, distortion: Floats) -> Solution:
    """The kernel of least expected distortion among those sound at ε.

    *Guarantee*: the table is sound at ε up to the solver's tolerance, for symbols of belief zero too, and its cost is
    within `error - bound` of the least possible. `Kernels.made_sound` takes the tolerance away.

    belief: (n,) sums to one. distortion: (n, m), a row per symbol and a column per possible output.

    >>> distance = np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0)))
    >>> optimum = sound(np.array([0.2, 0.5, 0.3]), 1.0, distance)
    >>> round(optimum.error, 4), optimum.error - optimum.bound < 1e-9
    (0.331, True)
    """
    check_size(*distortion.shape)
    kinds, kind_of = np.unique(distortion, axis=0, return_inverse=True)
    kind_of = kind_of.reshape(-1)
    weight: Floats = np.bincount(kind_of, weights=belief / belief.sum(), minlength=len(kinds)).astype(np.float64)
    seen = weight > UNSEEN
    a, gain = math.exp(-epsilon), -math.expm1(-epsilon)
    kappa = a / (1.0 + a)
    mean_cost = weight @ kinds
    channel, bound = _generate_labels(weight[seen], a * mean_cost + gain * kinds[seen], kappa)

    outputs = np.flatnonzero(weight[seen] @ channel >= DROP)
    channel = channel[:, outputs] / channel[:, outputs].sum(axis=1, keepdims=True)
    rows = np.empty((len(kinds), len(outputs)))
    rows[seen] = channel
    rows[~seen] = cheapest_rows(kinds[~seen][:, outputs], weight[seen] @ channel / kappa)
    table = a * (weight @ rows) + gain * rows
    error = float(np.sum(weight[:, None] * table * kinds[:, outputs]))

    constant = int(mean_cost.argmin())
    if mean_cost[constant] <= error:
        outputs, table, error = np.array([constant]), np.ones((len(kinds), 1)), float(mean_cost[constant])
    return Solution(outputs, table[kind_of], error, min(bound, error))


def _generate_labels(weight: Floats, cost: Floats, kappa: float) -> tuple[Floats, float]:
    """The optimal I, (n, m), up to the solver's tolerance, and a certified lower bound on Σ β I c.

    Solve for some of the labels, price the others by the dual, add the most promising, until the gap closes.
    """
    cheapest, channel = cost.argmin(axis=1), np.zeros_like(cost)
    cells = np.bincount(cheapest, weights=weight, minlength=cost.shape[1])
    if np.all((cells == 0.0) | (cells >= kappa)):  # in closed form
        channel[np.arange(len(weight)), cheapest] = 1.0
        return channel, float(weight @ cost.min(axis=1))
    spread = float(np.ptp(cost)) or 1.0
    used = _first_labels(weight, cost, kappa)
    bound, previous = -math.inf, math.inf
    while True:
        part, prices = _run_highs(weight, (cost[:, used] - cost.min()) / spread, kappa)
        prices = prices / weight * spread + cost.min()
        # A rare symbol's price is its dual over its belief, noise and all; kept within the row's costs it does no harm.
        tamed = np.clip(prices, cost.min(axis=1), cost.max(axis=1))
        reduced = _reduced_costs(weight, cost, kappa, prices)
        for guess, least in ((prices, reduced.min()), (tamed, _reduced_costs(weight, cost, kappa, tamed).min())):
            bound = max(bound, float(weight @ guess + least))
        value = float(np.sum(weight[:, None] * part * cost[:, used]))
        reduced[used] = 0.0
        promising = np.argsort(reduced, kind="stable")[:LABELS_AT_ONCE]
        promising = promising[reduced[promising] < -TOLERANCE * spread]
        if value - bound <= TOLERANCE * spread or not len(promising):
            channel[:, used] = part
            return channel, bound
        if value < previous - TOLERANCE * spread:  # progress, so forgetting idle labels cannot make it cycle
            used = used[weight @ part > 0.0]
        used, previous = np.concatenate((used, promising)), value


def _first_labels(weight: Floats, cost: Floats, kappa: float) -> Ints:
    """All labels of a small program, else about 2/κ that one after the other lower Σ β min_y c(x,y) most."""
    if cost.size <= CELLS_AT_ONCE:
        return np.arange(cost.shape[1])
    chosen: list[int] = []
    nearest = cost.max(axis=1)
    while len(chosen) < min(2 * math.ceil(1.0 / kappa), max(1, CELLS_AT_ONCE // len(weight))):
        best = int(np.argmin(weight @ np.minimum(cost, nearest[:, None])))
        if best in chosen:
            break
        chosen.append(best)
        nearest = np.minimum(nearest, cost[:, best])
    return np.array(chosen)


def _run_highs(weight: Floats, cost: Floats, kappa: float) -> tuple[Floats, Floats]:
    """Variables I(y|x) and p(y); rows: I(y|x) ≤ p(y)/κ, Σ_y I(y|x) = 1 (their duals are the prices), Σ_x β I = p."""
    from scipy import sparse

    n, m = cost.shape
    cell, label, ones = np.arange(n * m), np.arange(m), np.ones(n * m)
    x, y = np.divmod(cell, m)
    upper = np.concatenate((np.zeros(n * m), np.ones(n), np.zeros(m)))
    program = Program(np.concatenate((np.full(n * m, -np.inf), upper[n * m :])), upper)
    places = np.concatenate((cell, n * m + x, n * m + n + y, cell, n * m + n + label))
    columns = np.concatenate((cell, cell, cell, n * m + y, n * m + label))
    values = np.concatenate((ones, ones, weight[x], -ones / kappa, -np.ones(m)))
    costs = np.concatenate(((weight[:, None] * cost).ravel(), np.zeros(m)))
    program.add(costs, sparse.csc_array((values, (places, columns))))
    found, duals = program.run()
    return found[: n * m].reshape(n, m), duals[n * m : n * m + n]


def _reduced_costs(weight: Floats, cost: Floats, kappa: float, prices: Floats) -> Floats:
    """For each label the value of its knapsack per unit of mass; prices plus the least of them are dual feasible."""
    reduced = cost - prices[:, None]
    order = np.argsort(reduced, axis=0)
    mass = weight[order]
    before = np.cumsum(mass, axis=0) - mass
    held = np.clip(kappa - before, 0.0, mass)
    return np.sum(held * np.take_along_axis(reduced, order, axis=0), axis=0) / kappa


def cheapest_rows(cost: Floats, caps: Floats) -> Floats:
    """For each row the masses under the caps, 1 in all, of least cost: fill the cheapest outputs first.

    >>> cheapest_rows(np.array([[2.0, 0.0, 1.0]]), np.array([0.5, 0.7, 0.7])).round(9).tolist()
    [[0.0, 0.7, 0.3]]
    """
    order = np.argsort(cost, axis=1, kind="stable")
    sorted_caps = caps[order]
    before = np.cumsum(sorted_caps, axis=1) - sorted_caps
    rows = np.empty_like(cost)
    np.put_along_axis(rows, order, np.clip(1.0 - before, 0.0, sorted_caps), axis=1)
    return rows


def bounded(mass: Floats, cost: Floats, rows: Floats) -> Solution:
    """The best table over X symbols and Y labels: mass (X,) = β(x), cost (X, Y) = D(x,y), and bounds, rows (I, X).

    >>> mass, cost = np.array([0.5, 0.5]), 1.0 - np.eye(2)
    >>> weights = np.array([0.19, 1.0])
    >>> rows = mass * np.stack([weights - 0.754355, 0.360886 - weights])
    >>> found = bounded(mass, cost, rows)
    >>> round(found.error, 5), round(found.bound, 5)
    (0.26589, 0.26589)
    """
    scale = np.abs(rows).max(1, keepdims=True)
    rows = np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)  # HiGHS drops what is too small
    priced = mass[:, None] * cost
    pairs = _first_pairs(priced, rows)
    chosen = np.zeros(len(rows), bool)
    chosen[np.unique(rows.argmax(0))] = True
    while True:
        table, prices = _over_pairs(pairs, priced, rows[chosen])
        worst = (rows @ table).max(1)
        worst[chosen] = 0.0
        broken = np.flatnonzero(worst > TOLERANCE)
        if not broken.size:
            break
        chosen[broken[np.argsort(-worst[broken], kind="stable")[:MORE_ROWS]]] = True
    bound = float((priced + rows[chosen].T @ prices).min(1).sum())
    return Solution(np.arange(cost.shape[1]), table, float((priced * table).sum()), bound)


def _over_pairs(pairs: Any, priced: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """The best table, and prices (I, Y) ≥ 0 of the bounds, over as many pairs as are asked for; `pairs` keeps them."""
    (size, labels), count = priced.shape, len(rows)
    upper = np.concatenate([np.ones(size), np.zeros(count * labels)])
    program = Program(np.concatenate([np.ones(size), np.full(count * labels, -np.inf)]), upper)
    x, y = np.nonzero(pairs)
    program.add(priced[x, y], _pair_columns(x, y, priced.shape, rows))
    while True:
        found, duals = program.run()
        prices = np.maximum(-duals[size:].reshape(count, labels), 0.0)
        reduced = priced - duals[:size, None] + rows.T @ prices
        reduced[pairs] = 0.0
        wanted = np.flatnonzero(reduced.ravel() < -TOLERANCE * max(1.0, float(priced.max())))
        if not wanted.size:
            table = np.zeros(priced.shape)
            table[x, y] = found
            return table / table.sum(1, keepdims=True), prices
        best = np.sort(wanted[np.argsort(reduced.ravel()[wanted], kind="stable")[:MORE_PAIRS]])
        pairs.ravel()[best] = True
        more = np.divmod(best, labels)
        program.add(priced[more], _pair_columns(*more, priced.shape, rows))
        x, y = np.concatenate([x, more[0]]), np.concatenate([y, more[1]])


def _pair_columns(x: Ints, y: Ints, shape: tuple[int, ...], rows: Floats) -> Any:
    """The column of each pair: a one in the row of its symbol, and its part in the bounds of its label."""
    from scipy import sparse

    at = np.stack([x, *(shape[0] + i * shape[1] + y for i in range(len(rows)))], axis=1)
    values = np.concatenate([np.ones((1, x.size)), rows[:, x]]).T
    pair, place = np.nonzero(values)
    return sparse.csc_array((values[pair, place], (at[pair, place], pair)), shape=(at.max() + 1, x.size))


def _first_pairs(priced: Floats, rows: Floats) -> Any:
    """All pairs of a small program; else each symbol with its cheapest labels, and all with the few likeliest ones."""
    if priced.size <= FIRST_PAIRS:
        return np.ones(priced.shape, bool)
    pairs = np.zeros(priced.shape, bool)
    nearest = np.argsort(priced, axis=1, kind="stable")[:, : max(4, FIRST_PAIRS // (2 * len(priced)))]
    np.put_along_axis(pairs, nearest, True, axis=1)
    everyone = np.argsort(-np.abs(rows).sum(0))[: max(1, FIRST_PAIRS // (4 * priced.shape[1]))]
    pairs[everyone] = True
    # one label that everybody may go to keeps the program feasible: the constant release
    pairs[:, int(priced.sum(0).argmin())] = True
    return pairs
