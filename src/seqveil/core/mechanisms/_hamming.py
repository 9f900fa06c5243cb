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

from seqveil.core.kernel import Floats, Ints

BLOCK = 32  # symbols whose maximum stands for them in a search for the likeliest


@dataclass(frozen=True)
class Timetable:
    """Who is present where: the optimum before it is written out as a table. K labels, the likeliest first."""

    labelled: NDArray[np.bool_]  # (B, K): symbols with a label of their own
    last: NDArray[np.bool_]  # (B, K): one-hot, the symbol z; all False where it gets no label
    kept: Floats  # (B, K): time a labelled symbol spends under its own label, 1 - tφ
    share: Floats  # (B, K): φ, the part of z's slot for which a labelled symbol is there
    filling: Floats  # (B, K): tail mass under each label
    marginal: Floats  # (B, K)
    tail: Floats  # (B, 1): R
    time: Floats  # (B, 1): t, how long z's slot lasts
    value: Floats  # (B,): the dual value, so no sound kernel has Pr(Y = X) above it


def columns(n: int, epsilon: float) -> int:
    """How many symbols an optimum needs: min(n, ⌈1+e^ε⌉).

    >>> columns(17, 1.0), columns(3, 1.0), columns(100, math.log(3.0))
    (4, 3, 4)
    """
    if epsilon >= math.log(n):
        return n
    return min(n, math.ceil((1.0 + math.exp(epsilon)) * (1.0 - 1e-14)))


def top(beliefs: Floats, count: int) -> Ints:
    """Codes of the `count` likeliest symbols of each belief, likeliest first, ties by code.

    >>> top(np.array([[0.1, 0.4, 0.1, 0.4]]), 3).tolist()
    [[1, 3, 0]]
    """
    if count >= beliefs.shape[1] or beliefs.shape[1] <= 64:
        return np.argsort(-beliefs, axis=1, kind="stable")[:, :count]
    return np.stack([top_one(belief, count) for belief in beliefs])


def top_one(belief: Floats, count: int) -> Ints:
    """The same for one belief, without sorting all of it.

    The `count` largest of the maxima of small blocks bound the `count` largest values from below.

    >>> top_one(np.array([0.1, 0.4, 0.1, 0.4]), 3).tolist()
    [1, 3, 0]
    """
    blocks = belief.size // BLOCK
    if blocks <= 2 * count:
        return np.argsort(-belief, kind="stable")[:count]
    largest = belief[: blocks * BLOCK].reshape(blocks, BLOCK).max(1)
    least = np.partition(largest, blocks - count)[blocks - count]
    chosen = np.flatnonzero(belief >= least)
    return chosen[np.argsort(-belief[chosen], kind="stable")[:count]]


def timetable(top: Floats, rest: Floats, epsilon: float) -> Timetable:
    """The optimal timetable for B beliefs; see the module for the problem, the solution and the proof.

    `top` (B, K) holds the K ≥ columns(n, epsilon) largest beliefs in descending order, `rest` (B,) the mass of all
    others. A user's result does not depend, bit for bit, on who else is in the call.

    >>> round(1.0 - timetable(np.array([[0.8, 0.2]]), np.zeros(1), 1.0).value.item(), 4)
    0.1765
    """
    a, gain = math.exp(-epsilon), -math.expm1(-epsilon)
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
    marginal = kept * top + filling + time * kappa * last
    value = _sum(worth) + (price * left)[:, 0]
    return Timetable(labelled, last, kept, share, filling, marginal, tail, time, value)


def _sum(values: Floats) -> Floats:
    """Sum along the last axis, strictly left to right, so that a row's sum never depends on the shape of the batch."""
    totals: Floats = np.cumsum(values, axis=-1)[..., -1]
    return totals
