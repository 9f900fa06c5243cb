"""The exact optimum for Hamming distortion in closed form, for many beliefs at once.

    minimise Σ_x β(x) (1 - Q(x|x))   over row-stochastic Q with  e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y),   p = β Q

Put κ = 1/(1+e^ε), a = e^-ε. By the structure theorem Q = a p + (1-a) I, where I(y|x) is a channel with the same
marginal p and I(y|x) ≤ p(y)/κ. Read I as a timetable: time runs for 1/κ, every instant carries a label y and holds
rows of total belief exactly κ, each row x is present for time 1 in all, I(y|x) = time x spends under label y.

**The optimum.** Order the symbols from most to least likely.

1. Every symbol with β ≥ κ has its label to itself. The next ones, while whole slots of length 1 are left and
   β > a² max β, get a slot each: they are present throughout, less likely rows fill the slot up to κ.
   Let R be the mass of the symbols without a label yet (the tail), H the filling they gave, f = R - H ≥ 0 what is left.
2. The left-over f goes either to the most likely symbol's label, or to a last label z, the most likely of the tail.
   If R ≥ κ the slot of z holds z and tail rows. If R < κ it holds the κ *least likely mass* of all: the tail and, from
   the least likely upwards, a share φ_i of labelled symbols, which leave their own slots for as long.
   The slot lasts t = f / (min(R, κ) - Σ φ_i (κ-β_i)^+) ≤ 1.

**Proof.** Primal: rows and instants add up by construction, and t, φ ≤ 1.
Dual: prices u(x) bound Pr(Y=X) by Σ β u if every label y has Σ_x β(x) φ(x) (a β(y) + (1-a)[x=y] - u(x)) ≤ 0 for all
φ ∈ [0,1]^n with Σ β φ = κ. Give the tail the price r and a labelled symbol u_i = c_i - r (κ-β_i)^+ / β_i, where
c_i = a max(β_i, κ) + 1 - a ≥ e^ε κ. If a max β ≤ r ≤ u_i for all i, each label is best served by its own symbol with
the tail as filling (the cheapest rows), and earns exactly nothing; only z still needs W(r) ≥ e^ε κ β(z), W(r) being the
least price of mass κ. A less likely symbol is never dearer, whatever r is, so that is the least likely mass, and W is
linear with slope f/t > 0. At r = e^ε β(z) all prices are at least r, hence W(r) ≥ κ r: the root r₀ of
W(r) = e^ε κ β(z) has r₀ ≤ e^ε β(z) ≤ u_i. So r = max(a max β, r₀) is feasible, with value Σ β_i c_i + r f, which the
timetable attains. ∎

So at most ⌈1+e^ε⌉ symbols are ever released, always the most likely ones.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEGLIGIBLE = 1e-12  # a label less likely than this is merged into the most likely one


@dataclass(frozen=True)
class Solution:
    """Optimal kernels of B users over their K most likely symbols; row K of a table stands for every other symbol."""

    table: Floats  # (B, K+1, K): Q(y|x)
    marginal: Floats  # (B, K): p(y)
    error: Floats  # (B,): probability of a wrong release
    bound: Floats  # (B,): no sound kernel errs less (the dual value)
    exact: NDArray[np.bool_]  # (B,): error and bound agree to 1e-12


@dataclass(frozen=True)
class Timetable:
    """Who is present where: the optimum before it is written out as a table."""

    labelled: NDArray[np.bool_]  # (B, K): symbols with a label of their own
    last: NDArray[np.bool_]  # (B, K): one-hot, the symbol z; all False where it gets no label
    kept: Floats  # (B, K): time a labelled symbol spends under its own label, 1 - tφ
    filling: Floats  # (B, K): tail mass under each label
    marginal: Floats  # (B, K)
    tail: Floats  # (B, 1): R
    in_last: Floats  # (B, K+1): time under the label z, by row
    value: Floats  # (B,): dual value, the best possible Pr(Y = X)


def columns(n: int, epsilon: float) -> int:
    """How many symbols an optimum needs: min(n, ⌈1+e^ε⌉).

    >>> columns(17, 1.0), columns(3, 1.0), columns(100, math.log(3.0))
    (4, 3, 4)
    """
    if epsilon >= math.log(n):
        return n
    return min(n, math.ceil((1.0 + math.exp(epsilon)) * (1.0 - 1e-14)))


def solve(top: Floats, rest: Floats, epsilon: float, rest_exists: bool) -> Solution:
    """Optimal kernels for B beliefs; see the module for the problem, the solution and the proof.

    *Guarantee*: every table is sound at ε up to rounding, for row K too, and its error is the least possible.
    A user's result does not depend, bit for bit, on who else is in the call.

    top: (B, K) the K largest beliefs of each user in descending order, K ≥ columns(n, epsilon).
    rest: (B,) total belief of all other symbols.
    rest_exists: whether there are other symbols; if not, `rest` is ignored and row K is one more sound row.

    >>> solution = solve(np.array([[0.8, 0.2]]), np.zeros(1), 1.0, rest_exists=False)
    >>> solution.error.round(4), solution.exact
    (array([0.1765]), array([ True]))
    """
    rest = np.array(rest, dtype=np.float64) if rest_exists else np.zeros(len(top))
    total = _sum(top) + rest
    top, rest = top / total[:, None], rest / total
    a, gain = math.exp(-epsilon), -math.expm1(-epsilon)
    plan = _timetable(top, rest, a, gain)
    table = a * plan.marginal[:, None, :] + gain * _presence(a / (1.0 + a), plan)
    marginal = _merge_negligible(table, plan.marginal)
    diagonal = np.arange(top.shape[1])
    error = 1.0 - _sum(top * table[:, diagonal, diagonal])
    bound = 1.0 - plan.value
    return Solution(table, marginal, error, np.minimum(bound, error), np.abs(error - bound) <= 1e-12)


def _timetable(top: Floats, rest: Floats, a: float, gain: float) -> Timetable:
    kappa = a / (1.0 + a)
    from_here = np.cumsum(np.column_stack((rest, top[:, ::-1])), axis=1)[:, ::-1]  # mass of i and all less likely
    after = from_here[:, 1:]
    need = np.maximum(kappa - top, 0.0)
    largest = top[:, :1]

    worth_it = top > a * a * largest
    labelled = np.logical_and.accumulate(worth_it & (after >= np.cumsum(need, axis=1)), axis=1)
    count = labelled.sum(axis=1)[:, None]
    need = np.where(labelled, need, 0.0)
    tail = np.take_along_axis(from_here, count, axis=1)
    left = np.maximum(tail - _sum(need)[:, None], 0.0)

    # The slot of the last label: whom it holds, and whether its price r₀ beats a·max β.
    last = (np.arange(top.shape[1]) == count) & worth_it
    share = np.where(labelled, np.clip((kappa - after) / np.where(labelled, top, 1.0), 0.0, 1.0), 0.0)
    slope = np.minimum(tail, kappa) - _sum(share * need)[:, None]
    worth = np.where(labelled, top * (a * np.maximum(top, kappa) + gain), 0.0)
    head = _sum(np.where(last, top, 0.0))[:, None]
    advantage = (kappa / a) * head - _sum(share * worth)[:, None]
    open_last = last.any(axis=1)[:, None] & (advantage > a * largest * slope) & (left > 0.0)
    last &= open_last
    slope = np.where(slope > 0.0, slope, 1.0)
    time = np.where(open_last, np.minimum(left / slope, 1.0), 0.0)
    price = np.where(open_last, advantage / slope, a * largest)

    kept = np.where(labelled, 1.0 - time * share, 0.0)
    filling = kept * need
    filling[:, :1] += np.where(open_last, 0.0, left)
    thin = np.clip((kappa - head) / np.where(tail > head, tail - head, 1.0), 0.0, 1.0)  # tail rows under z if R ≥ κ
    thin = np.where(tail < kappa, 1.0, thin)
    in_last = time * np.column_stack((np.where(labelled, share, np.where(last, 1.0, thin)), thin))
    marginal = kept * top + filling + time * kappa * last
    value = _sum(worth) + (price * left)[:, 0]
    return Timetable(labelled, last, kept, filling, marginal, tail, in_last, value)


def _presence(kappa: float, plan: Timetable) -> Floats:
    """I(y|x), (B, K+1, K): a labelled row is under its own label and z's, a tail row under z's and in the fillings."""
    users, width = plan.kept.shape
    own = np.zeros((users, width + 1, width))
    diagonal = np.arange(width)
    own[:, diagonal, diagonal] = plan.kept
    # Where R < κ every tail row fills alike, and filling / R is accurate even if both are tiny.
    # Where R ≥ κ, z is longer under its own label and fills less than the others.
    filled = _sum(plan.filling)[:, None]
    alike = (plan.tail < kappa) | ~plan.last.any(axis=1, keepdims=True)
    unit = np.where(alike, plan.tail, filled)
    scale = np.where(alike, 1.0, 1.0 - plan.in_last) / np.where(unit > 0.0, unit, 1.0)
    scale[:, :width][plan.labelled] = 0.0
    pattern = np.where(plan.tail > 0.0, plan.filling, plan.marginal)  # nobody in the tail: any sound row will do
    own += scale[:, :, None] * pattern[:, None, :]
    own += plan.in_last[:, :, None] * plan.last[:, None, :]
    return own


def _merge_negligible(table: Floats, marginal: Floats) -> Floats:
    """Release the most likely symbol instead of a negligible one: merging two labels never raises a lift. In place."""
    small = (marginal > 0.0) & (marginal < NEGLIGIBLE)
    small[:, 0] = False
    for user in np.flatnonzero(small.any(axis=1)):
        for label in np.flatnonzero(small[user]):
            table[user, :, 0] += table[user, :, label]
            marginal[user, 0] += marginal[user, label]
            table[user, :, label] = marginal[user, label] = 0.0
    return marginal


def _sum(values: Floats) -> Floats:
    """Sum along the last axis, strictly left to right, so that a row's sum never depends on the shape of the batch."""
    totals: Floats = np.cumsum(values, axis=-1)[..., -1]
    return totals
