"""The closed form of the optimum, vectorised over users in numpy: what the scalar source is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms.closed_form import columns


@dataclass(frozen=True)
class Solution:
    """Optimal kernels of B users: Q(outputs[y] | x) = table[rows[x], y]."""

    outputs: Ints  # (B, K) the likeliest symbols, in that order
    table: Floats  # (B, R, K)
    rows: Ints  # (B, n)
    bound: Floats  # (B,) no sound kernel errs less (the dual value)


def solve(beliefs: Floats, epsilon: float) -> Solution:
    """The exact optimum for Hamming distortion, sound at ε up to rounding."""
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


def top(beliefs: Floats, count: int) -> Ints:
    """Codes of the `count` likeliest symbols of each belief, likeliest first, ties by code."""
    return np.argsort(-beliefs, axis=1, kind="stable")[:, :count]


def timetable(top: Floats, rest: Floats, epsilon: float) -> Timetable:
    """The optimal timetable for B beliefs; see the module for the problem, the solution and the proof.

    `top` (B, K) holds the K ≥ columns(n, epsilon) largest beliefs in descending order, `rest` (B,) the mass of all
    others. A user's result does not depend, bit for bit, on who else is in the call.
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
    before = end - mass
    part = np.clip((room - before) / np.where(mass > 0.0, mass, 1.0), 0.0, 1.0)
    share = np.where(mass > 0.0, part, before < room)
    np.put_along_axis(share, head, 1.0, axis=1)
    share[plan.tail[:, 0] < kappa] = 1.0
    share[~opened] = 0.0
    return share


def _count(borders: Floats, values: Floats, at_them: bool) -> Ints:
    """How many borders lie below each value, or at it where `at_them`; both ascend along a row."""
    counted = np.zeros(values.shape, np.int64)
    for border in borders.T:
        counted += (border[:, None] <= values) if at_them else (border[:, None] < values)
    return counted
