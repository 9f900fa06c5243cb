"""Who fills which slot of the optimal timetable: the optimum leaves it open, and the stream gains by the choice.

The optimum of `_hamming` fixes how much mass of unlabelled symbols fills each label's slot, not which symbols. Filling
every slot with all of them alike tells a receiver nothing about them; giving each symbol a slot of its own, as far as
masses allow, costs nothing now and sharpens the belief for later releases (MSNBC, ε = 1: .48 wrong instead of .55).
Symbols fill the slots in the order of their codes; one on the border of two slots is split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms._hamming import Timetable, columns, timetable, top

NARROW = 128  # symbols up to which comparing all with all borders is quicker than a search for each user


@dataclass(frozen=True)
class Solution:
    """Optimal kernels of B users: Q(outputs[y] | x) = table[rows[x], y]."""

    outputs: Ints  # (B, K) the likeliest symbols, in that order
    table: Floats  # (B, R, K)
    rows: Ints  # (B, n)
    bound: Floats  # (B,) no sound kernel errs less (the dual value)


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
