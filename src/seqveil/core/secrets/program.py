"""The least expected cost under any linear bounds on the labels: a linear program, with a bound on what it misses.

    minimise Σ_x,y β(x) D(x,y) Q(y|x)   over row-stochastic Q with   Σ_x rows(i, x) Q(y|x) ≤ 0   for all y and i.

A secret with weights σ and box [lo, hi] has the rows β(x)(σ(x) - hi) and β(x)(lo - σ(x)); a joint secret one row for
every pair of its values; another observer's belief gives further rows of the same form. A symbol whose own rows are all
at most 0 is *free*: told as it is, it breaks nothing, and it enters the program only where it may cover others.

- **Bounds as they are broken.** The program starts with the rows that some symbol, told as it is, breaks most, and
  takes in those that a table it found breaks, until none is.
- **Pairs as they are asked for.** It starts with few pairs (x, y) and takes in those whose reduced cost is negative,
  until none is.
- **Bound.** For any prices λ(i, y) ≥ 0, Σ_x min_y [β(x) D(x,y) + Σ_i λ(i, y) rows(i, x)] is at most the optimum:
  `Solution.bound` is that figure for the prices found, over all labels, so it does not rest on the solver's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqveil.core.kernel import Floats

TOLERANCE = 1e-9
WHOLE = 500  # pairs that the program starts with
MORE = 300  # pairs taken in at a time
ROWS = 12  # bounds taken in at a time
# Presolve may take a program that just has a solution for one that has none, and a program whose vertices nearly fall
# together may be solved no better than to 1e-7: then the table is mixed until its integers keep what is promised.
ATTEMPTS = (("on", 1e-10), ("off", 1e-9), ("off", 1e-8), ("off", 1e-7))
ITERATIONS = 10  # of the simplex for each row and column; some programs would otherwise never end


class Unsolved(Exception):
    """The solver gave up; whoever asked says nothing instead, which keeps every bound."""


@dataclass(frozen=True, eq=False)
class Solution:
    """A table over some labels for some symbols, what it costs, and what no table can go below."""

    table: Floats  # (X, Y) Q(y|x)
    error: float
    bound: float


def solve(mass: Floats, cost: Floats, rows: Floats) -> Solution:
    """The program over X symbols and Y labels: mass (X,) = β(x), cost (X, Y) = D(x,y), rows (I, X).

    >>> mass, cost = np.array([0.5, 0.5]), 1.0 - np.eye(2)
    >>> weights = np.array([0.19, 1.0])
    >>> rows = mass * np.stack([weights - 0.754355, 0.360886 - weights])
    >>> found = solve(mass, cost, rows)
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
        chosen[broken[np.argsort(-worst[broken], kind="stable")[:ROWS]]] = True
    bound = float((priced + rows[chosen].T @ prices).min(1).sum())
    return Solution(table, float((priced * table).sum()), bound)


def _over_pairs(pairs: Any, priced: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """The best table, and the prices of the bounds, over as many pairs as are asked for; `pairs` keeps them."""
    program = _Program(pairs, priced, rows)
    while True:
        table, prices, duals = program.run()
        reduced = priced - duals[:, None] + rows.T @ prices
        reduced[pairs] = 0.0
        wanted = np.flatnonzero(reduced.ravel() < -TOLERANCE * max(1.0, float(priced.max())))
        if not wanted.size:
            return table, prices
        best = np.sort(wanted[np.argsort(reduced.ravel()[wanted], kind="stable")[:MORE]])
        pairs.ravel()[best] = True
        program.take_in(*np.divmod(best, priced.shape[1]))


def _first_pairs(priced: Floats, rows: Floats) -> Any:
    """All pairs of a small program; else each symbol with its cheapest labels, and all with the few likeliest ones."""
    if priced.size <= WHOLE:
        return np.ones(priced.shape, bool)
    pairs = np.zeros(priced.shape, bool)
    nearest = np.argsort(priced, axis=1, kind="stable")[:, : max(4, WHOLE // (2 * len(priced)))]
    np.put_along_axis(pairs, nearest, True, axis=1)
    everyone = np.argsort(-np.abs(rows).sum(0))[: max(1, WHOLE // (4 * priced.shape[1]))]
    pairs[everyone] = True
    # one label that everybody may go to keeps the program feasible: the constant release
    pairs[:, int(priced.sum(0).argmin())] = True
    return pairs


class _Program:
    """The program over some pairs; what is taken in later goes on from the solution found before."""

    def __init__(self, pairs: Any, priced: Floats, rows: Floats) -> None:
        import highspy

        self.priced, self.rows = priced, rows
        (size, labels), count = priced.shape, len(rows)
        self.x, self.y = np.nonzero(pairs)
        matrix = self._columns(self.x, self.y)
        infinity = highspy.kHighsInf
        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = size + count * labels, self.x.size
        program.col_cost_ = priced[self.x, self.y]
        program.col_lower_, program.col_upper_ = np.zeros(self.x.size), np.full(self.x.size, infinity)
        program.row_lower_ = np.concatenate([np.ones(size), np.full(count * labels, -infinity)])
        program.row_upper_ = np.concatenate([np.ones(size), np.zeros(count * labels)])
        program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        program.a_matrix_.start_, program.a_matrix_.index_, program.a_matrix_.value_ = matrix
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.solver.silent()
        self.solver.setOptionValue("small_matrix_value", 1e-12)  # dropped entries make the just feasible infeasible
        self.solver.passModel(program)

    def _columns(self, x: Any, y: Any) -> tuple[Any, Any, Floats]:
        """Where each pair's column begins, the rows it has entries in, and the entries."""
        (size, labels), count = self.priced.shape, len(self.rows)
        at = np.column_stack([x, *(size + i * labels + y for i in range(count))])
        values = np.column_stack([np.ones(x.size), *(self.rows[i, x] for i in range(count))])
        there = values != 0.0
        starts = np.concatenate([[0], np.cumsum(there.sum(1))])
        return starts.astype(np.int32), at[there].astype(np.int32), values[there]

    def take_in(self, x: Any, y: Any) -> None:
        """Further pairs. They leave what was found feasible, so the primal simplex goes on from there."""
        import highspy

        starts, at, values = self._columns(x, y)
        zeros, most = np.zeros(x.size), np.full(x.size, highspy.kHighsInf)
        self.solver.addCols(x.size, self.priced[x, y], zeros, most, values.size, starts[:-1], at, values)
        self.solver.setOptionValue("simplex_strategy", 4)
        self.x, self.y = np.concatenate([self.x, x]), np.concatenate([self.y, y])

    def run(self) -> tuple[Floats, Floats, Floats]:
        """Q over the pairs, prices (I, Y) ≥ 0 of the bounds, and the duals (X,) of the rows that sum to one."""
        import highspy

        (size, labels), count = self.priced.shape, len(self.rows)
        most = ITERATIONS * (size + count * labels + self.x.size)
        self.solver.setOptionValue("simplex_iteration_limit", most)
        for presolve, tolerance in ATTEMPTS:
            self.solver.setOptionValue("presolve", presolve)
            self.solver.setOptionValue("primal_feasibility_tolerance", tolerance)
            self.solver.setOptionValue("dual_feasibility_tolerance", tolerance)
            self.solver.run()
            if self.solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
                break
            self.solver.clearSolver()
        else:
            raise Unsolved(self.solver.getModelStatus().name)
        solution = self.solver.getSolution()
        table = np.zeros(self.priced.shape)
        table[self.x, self.y] = np.maximum(np.array(solution.col_value), 0.0)
        table /= table.sum(1, keepdims=True)
        duals = np.array(solution.row_dual)
        return table, np.maximum(-duals[size:].reshape(count, labels), 0.0), duals[:size]
