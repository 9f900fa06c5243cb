"""The exact optimum: least expected distortion of all sound kernels. For Hamming in closed form, else by a program.

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

**Who fills which slot.** The optimum fixes how much mass of unlabelled symbols fills each label's slot, not which
symbols. Filling every slot with all of them alike tells a receiver nothing about them; giving each symbol a slot of its
own, as far as masses allow, costs nothing now and sharpens the belief for later releases (MSNBC, ε = 1: .48 wrong
instead of .55). Symbols fill the slots in the order of their codes; one on the border of two slots is split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core import programs
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels, usable
from seqveil.core.mechanisms.base import stack

WIDEST = 1024  # outputs a table may have
QUICK = 40  # symbols up to which the program for any distortion takes some hundredths of a second
BLOCK = 32  # symbols whose maximum stands for them in a search for the likeliest
NARROW = 128  # symbols up to which comparing all with all borders is quicker than a search for each user


def fits(n: int, epsilon: float) -> bool:
    """Whether the closed form's table for Hamming distortion is of a sensible width."""
    return columns(n, epsilon) <= WIDEST


def optimal(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) D(x, y) over row-stochastic Q with e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y) for every x and y.

    Hamming: an optimum releases only the ⌈1+e^ε⌉ likeliest symbols, in closed form (the module has the proof); among
    all optima we take one that tells the other symbols apart as far as that is free. Any other distortion: a linear
    program with a certified gap.

    *Guarantee*: ε-SIP on both sides, 2ε-LDP without trusting the model; never worse than the best constant release.

    >>> from seqveil.core import mechanisms
    >>> from seqveil.core.distortion import hamming
    >>> kernel = mechanisms.optimal.kernels(np.array([[0.2, 0.8]]), 1.0).one(0)
    >>> round(kernel.error([0.2, 0.8], hamming()), 4)
    0.1765

    Reference: docs/theory.md, section 5.
    """
    n = beliefs.shape[1]
    aim = usable(epsilon, n)
    if not distortion.is_hamming:
        programs.check_size(n, n)  # before n² distances are made
        costs = distortion.matrix(n)
        return stack([_by_program(belief, aim, costs) for belief in beliefs])
    if not fits(n, aim):
        raise InputError(
            f"the optimum for ε={epsilon:g} over {n} symbols needs more than {WIDEST} columns; "
            'use mechanism="balanced", mechanism="tree" or a smaller epsilon'
        )
    return solve(beliefs, aim).kernels(beliefs)


def _by_program(belief: Floats, aim: float, costs: Floats) -> Kernels:
    found = programs.sound(belief, aim, costs)
    return Kernels.from_tables(found.outputs[None, :], found.table[None], None, belief[None])


@dataclass(frozen=True)
class Solution:
    """Optimal kernels of B users: Q(outputs[y] | x) = table[rows[x], y]."""

    outputs: Ints  # (B, K) the likeliest symbols, in that order
    table: Floats  # (B, R, K)
    rows: Ints  # (B, n)
    bound: Floats  # (B,) no sound kernel errs less (the dual value)

    def kernels(self, beliefs: Floats) -> Kernels:
        """The same in integers, up to rounding."""
        return Kernels.from_tables(self.outputs, self.table, self.rows, beliefs)


def solve(beliefs: Floats, epsilon: float) -> Solution:
    """The exact optimum for Hamming distortion, sound at ε up to rounding.

    >>> solution = solve(np.array([[0.2, 0.8]]), 1.0)
    >>> solution.outputs.tolist(), solution.table[0, solution.rows[0]].round(3).tolist()
    ([[1, 0]], [[0.269, 0.731], [0.847, 0.153]])
    """
    width = columns(beliefs.shape[1], epsilon)
    outputs = top(beliefs, width)
    likely = np.take_along_axis(beliefs, outputs, axis=1)
    rest = np.zeros(len(beliefs))
    if width < beliefs.shape[1]:
        rest = np.maximum(0.0, beliefs.sum(1) - np.cumsum(likely, axis=1)[:, -1])
    plan = timetable(likely, rest, epsilon)
    table, rows = tables(beliefs, outputs, plan, math.exp(-epsilon))
    return Solution(outputs, table, rows, 1.0 - plan.value)


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


def tables(beliefs: Floats, outputs: Ints, plan: Timetable, a: float) -> tuple[Floats, Ints]:
    """Q (B, R, K) and the row of each symbol (B, n) for labels `outputs` (B, K) and their timetable; a = e^-ε.

    Symbols that fill the same slot share a row, so R ≤ 4K+1 whatever n is.
    """
    users, n = beliefs.shape
    labels = outputs.shape[1]
    place = _places(n, outputs, plan.labelled)
    holds = _last_slot(beliefs, place, outputs, plan, a / (1.0 + a))
    in_last = plan.time * holds
    mass = np.where(place < 0, beliefs * (1.0 - in_last), 0.0)
    end = np.cumsum(mass, axis=1)
    start, borders = end - mass, np.cumsum(plan.filling, axis=1)
    final = (borders < borders[:, -1:]).sum(1)[:, None]
    first = np.minimum(_count(borders, start, at_them=True), final)
    past = np.maximum(np.minimum(_count(borders, end, at_them=False), final), first)
    whole = (first == past) & ((holds == 0.0) | (holds == 1.0))

    classes = min(n, 4 * labels + 1)
    rows, symbols = np.broadcast_to(np.arange(n), (users, n)), [place, in_last, start, end, first, past]
    if classes < n:
        rows = np.where(place >= 0, place, labels + first + labels * (holds == 1.0))
        user, symbol = np.nonzero((place < 0) & ~whole)  # on a border: at most one for each, and a row for each
        rows[user, symbol] = 3 * labels + np.arange(user.size) - np.searchsorted(user, user)
        example = np.zeros((users, classes), np.int64)
        np.put_along_axis(example, rows, np.broadcast_to(np.arange(n), (users, n)), axis=1)
        symbols = [np.take_along_axis(v, example, axis=1) for v in symbols]
    place, in_last, start, end, first, past = (v[:, :, None] for v in symbols)
    slots = np.arange(labels)
    overlap = np.minimum(end, borders[:, None, :]) - np.maximum(start, (borders - plan.filling)[:, None, :])
    overlap = np.where((slots >= first) & (slots <= past), np.maximum(overlap, 0.0), 0.0)
    overlap = np.where(first == past, slots == first, overlap)
    nobody_fills = (borders[:, -1:] <= 0.0)[:, :, None]  # then any sound row will do: the marginal
    overlap = np.where(nobody_fills, plan.marginal[:, None, :], overlap)
    presence = overlap * ((1.0 - in_last) / _across(overlap)[:, :, None])
    presence += in_last * plan.last[:, None, :]
    left = np.take_along_axis(plan.time * plan.share, np.maximum(place[:, :, 0], 0), axis=1)[:, :, None]
    own = (slots == place) * plan.kept[:, None, :] + left * plan.last[:, None, :]
    presence = np.where(place >= 0, own, presence)
    return a * plan.marginal[:, None, :] + (1.0 - a) * presence, rows


def _across(values: Floats) -> Floats:
    """Sum along the last axis, from left to right; quick where it is short."""
    total = values[..., 0].copy()
    for place in range(1, values.shape[-1]):
        total += values[..., place]
    return total


def _places(n: int, outputs: Ints, labelled: NDArray[np.bool_]) -> Ints:
    """Column of each symbol that has a label of its own, -1 for the others: (B, n)."""
    place = np.full((len(outputs), n), -1, np.int64)
    np.put_along_axis(place, outputs, np.where(labelled, np.arange(outputs.shape[1]), -1), axis=1)
    return place


def _last_slot(beliefs: Floats, place: Ints, outputs: Ints, plan: Timetable, kappa: float) -> Floats:
    """Share of its time in the last slot for which each unlabelled symbol is there: the label itself, then by code."""
    opened = plan.last.any(1)
    head = np.take_along_axis(outputs, plan.last.argmax(1)[:, None], axis=1)
    room = kappa - np.take_along_axis(beliefs, head, axis=1)
    mass = np.where(place < 0, beliefs, 0.0)
    np.put_along_axis(mass, head, 0.0, axis=1)
    end = np.cumsum(mass, axis=1)
    if beliefs.shape[1] <= NARROW:
        before = end - mass
        share = np.where(
            mass > 0.0, np.clip((room - before) / np.where(mass > 0.0, mass, 1.0), 0.0, 1.0), before < room
        )
    else:
        share = np.zeros(beliefs.shape)
        for user in np.flatnonzero(opened):
            full = int(np.searchsorted(end[user], room[user, 0]))
            share[user, :full] = 1.0
            if full < mass.shape[1]:
                share[user, full] = 1.0 - (end[user, full] - room[user, 0]) / mass[user, full]
    np.put_along_axis(share, head, 1.0, axis=1)
    share[plan.tail[:, 0] < kappa] = 1.0
    share[~opened] = 0.0
    return share


def _count(borders: Floats, values: Floats, at_them: bool) -> Ints:
    """How many borders lie below each value, or at it where `at_them`; both ascend along a row."""
    if values.shape[1] <= NARROW:
        counted = np.zeros(values.shape, np.int64)
        for border in borders.T:  # few: summing along a short axis is slow
            counted += (border[:, None] <= values) if at_them else (border[:, None] < values)
        return counted
    found = np.empty(values.shape, np.int64)
    for user, row in enumerate(values):
        passed = np.searchsorted(row, borders[user], "left" if at_them else "right")
        steps = np.diff(np.concatenate(([0], passed, [row.size])))
        found[user] = np.repeat(np.arange(steps.size), steps)
    return found
