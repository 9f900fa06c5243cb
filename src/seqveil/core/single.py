"""The optimum for one belief in plain numbers: the table that numpy gives, to the last bit, in a fifth of the time.

Numpy takes about a microsecond for each operation on an array, however short it is. Where numba is not there and a
single symbol is released, as by a session, all of its operations together take longer than the arithmetic does in plain
Python. This is `mechanisms.optimum` for such a symbol, operation by operation and in the same order. Its table is
checked from its integers before the draw, with a margin; one that is not well inside its bounds is left to numpy, whose
check is exact and which mends it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np

from seqveil.core.kernel import DENOMINATOR, DROP, EVEN, UNIT, Floats

LARGEST_TABLE = 1500  # entries up to which plain numbers are quicker than numpy
ONE = float(DENOMINATOR)

Numbers = tuple[float, ...]
Row = list[int]


class Plan(NamedTuple):
    """A timetable (`optimum.Timetable`) of one user: K labels, the likeliest first."""

    labelled: int  # symbols with a label of their own
    opened: bool  # whether one more label follows them
    time: float  # how long its slot lasts
    tail: float
    share: list[float]
    kept: list[float]
    filling: list[float]
    marginal: list[float]


def optimal(
    belief: Floats, width: int, numbers: Numbers, bounds: Numbers, truth: int, coin: int, given: int = -1
) -> tuple[int, Row] | None:
    """What is released of one symbol, and its column of weights; None where numpy has to look at it.

    Parameters:
        belief: of one user, (n,).
        width: how many labels the optimum has.
        numbers: e^-ε, 1-e^-ε and 1/(1+e^ε), of the ε that is aimed at.
        bounds: the largest and the least lift, and the largest ratio of two weights, each with a margin.
        truth: the raw code.
        coin: a whole number in [0, 2**62).
        given: in place of the draw, the release whose column is wanted; -1 for none.
    """
    law = belief.tolist()
    labels = sorted(range(len(law)), key=law.__getitem__, reverse=True)[:width]  # ties by code: sorting is stable
    top = [law[x] for x in labels]
    rest = max(0.0, float(belief.sum()) - list(accumulate(top))[-1]) if width < len(law) else 0.0
    plan = timetable(top, rest, numbers)
    rows = _rows(law, labels, plan, numbers)
    if rows is None or not _inside(law, rows, bounds):
        return None
    drawn = _pick(rows[truth], coin) if given < 0 else (labels.index(given) if given in labels else -1)
    column = [row[drawn] for row in rows]
    return (labels[drawn], column) if drawn >= 0 and any(column) else None


def timetable(top: list[float], rest: float, numbers: Numbers) -> Plan:
    """`optimum.timetable` of one user.

    >>> import math
    >>> a = math.exp(-1.0)
    >>> timetable([0.8, 0.2], 0.0, (a, 1 - a, a / (1 + a))).labelled
    1
    """
    a, gain, kappa = numbers
    from_here = list(accumulate(reversed(top), initial=rest))[::-1]  # mass of each and of all less likely
    wide, least, needed, held, priced, count = len(top), a * a * top[0], 0.0, 0.0, 0.0, 0
    share, needs = [0.0] * wide, [0.0] * wide
    while count < wide and top[count] > least:
        here, after = top[count], from_here[count + 1]
        need = max(kappa - here, 0.0)
        if after < needed + need:
            break
        needs[count], share[count] = need, min(max((kappa - after) / here, 0.0), 1.0)
        needed += need
        held += share[count] * need
        priced += share[count] * (here * (a * max(here, kappa) + gain))
        count += 1
    tail = from_here[count]
    left, slope = max(tail - needed, 0.0), min(tail, kappa) - held
    follows = count < wide and top[count] > least
    opened = follows and (kappa / a) * top[count] - priced > a * top[0] * slope and left > 0.0
    time = min(left / (slope if slope > 0.0 else 1.0), 1.0) if opened else 0.0
    kept = [1.0 - time * share[k] if k < count else 0.0 for k in range(wide)]
    filling = [kept[k] * needs[k] for k in range(wide)]
    if not opened:
        filling[0] += left
    marginal = [kept[k] * top[k] + filling[k] for k in range(wide)]
    if opened:
        marginal[count] += time * kappa
    return Plan(count, opened, time, tail, share, kept, filling, marginal)


def _rows(law: list[float], labels: list[int], plan: Plan, numbers: Numbers) -> list[Row] | None:
    """`optimum.tables` in integers: the weights of each symbol; None where a row does not add up to one."""
    a, _, kappa = numbers
    again, told = [a * each for each in plan.marginal], 1.0 - a
    place = {labels[k]: k for k in range(plan.labelled)}
    holds = _last_slot(law, labels, place, plan, kappa) if plan.opened else None
    borders = list(accumulate(plan.filling))
    final = bisect_left(borders, borders[-1])
    rows: list[Row] = []
    known: dict[tuple[int, float], Row] = {}  # symbols that fill one slot alone have the same row
    end = 0.0
    for x, here in enumerate(law):
        own, in_last = place.get(x, -1), 0.0 if holds is None else plan.time * holds[x]
        mass = here * (1.0 - in_last) if own < 0 else 0.0
        end += mass
        start = end - mass
        first = min(bisect_right(borders, start), final)
        past = max(min(bisect_left(borders, end), final), first)
        alone = (first, in_last) if own < 0 and first == past else None
        row = None if alone is None else known.get(alone)
        if row is None:
            presence = _own(own, plan) if own >= 0 else _filling(start, end, first, past, in_last, borders, plan)
            row = None if presence is None else _weights([p + told * q for p, q in zip(again, presence, strict=True)])
            if row is None:
                return None
            if alone is not None:
                known[alone] = row
        rows.append(row)
    return rows


def _own(place: int, plan: Plan) -> list[float]:
    """Time that a symbol with a label spends under each label."""
    presence = [0.0] * len(plan.kept)
    presence[place] = plan.kept[place]
    if plan.opened:
        presence[plan.labelled] += plan.time * plan.share[place]
    return presence


def _filling(
    start: float, end: float, first: int, past: int, in_last: float, borders: list[float], plan: Plan
) -> list[float] | None:
    """Time that a symbol without a label spends under each label; None where it has none."""
    presence = [0.0] * len(borders)
    if borders[-1] > 0.0 and first == past:  # the usual case
        presence[first] = 1.0 - in_last
    else:
        if borders[-1] <= 0.0:  # nobody fills
            presence = plan.marginal
        else:
            for k in range(first, past + 1):
                presence[k] = max(min(end, borders[k]) - max(start, borders[k] - plan.filling[k]), 0.0)
        across = list(accumulate(presence))[-1]
        if across == 0.0:
            return None
        presence = [each * ((1.0 - in_last) / across) for each in presence]
    if plan.opened:
        presence[plan.labelled] += in_last
    return presence


def _last_slot(law: list[float], labels: list[int], place: dict[int, int], plan: Plan, kappa: float) -> list[float]:
    """`optimum._last_slot`: the share of its time in the last slot for which each unlabelled symbol is there."""
    if plan.tail < kappa:
        return [1.0] * len(law)
    head = labels[plan.labelled]
    room, end = kappa - law[head], 0.0
    holds = []
    for x, here in enumerate(law):
        mass = 0.0 if x == head or x in place else here
        end += mass
        before = end - mass
        part = min(max((room - before) / mass, 0.0), 1.0) if mass > 0.0 else float(before < room)
        holds.append(1.0 if x == head else part)
    return holds


def _weights(row: list[float]) -> Row | None:
    """`Kernels.from_tables` and `kernel.to_weights` of one row; None where it is not one in sum."""
    if abs(sum(row) - 1.0) > EVEN / 4 or min(row) < 0.0:
        return None
    weights = [int(each * ONE) for each in row]
    weights[weights.index(max(weights))] += DENOMINATOR - sum(weights)
    return weights


def _inside(law: list[float], rows: list[Row], bounds: Numbers) -> bool:
    """Whether all lifts, and the ratio of any two weights of a release, are well inside their bounds."""
    ceiling, floor, ratio = bounds
    for column in zip(*rows, strict=True):
        low, high, mean = min(column), max(column), sum(map(mul, law, column))
        within = high <= ceiling * mean and low >= floor * mean and high <= ratio * low
        if high > 0 and not (within and mean > 4.0 * DROP * ONE):
            return False
    return True


def _pick(row: Row, coin: int) -> int:
    """The label that a coin picks by the weights of a row."""
    return bisect_right(list(accumulate(row)), coin)


def charge(
    weights: tuple[int, int], marginal: float, before: tuple[float, float], relative: float
) -> tuple[float, float]:
    """`Account.charge` of one user whose chain lets anything follow anything: both sides of the leakage.

    Parameters:
        weights: the least and the largest weight of the release, both above 0.
        marginal: their mean under the belief.
        before: both sides before the release, the upper one first.
        relative: the error that the mean may have.
    """
    low, high = weights
    if low == high:  # it tells nothing
        return before
    least, most = np.log(np.array([low / marginal, high / marginal])).tolist()  # numpy's, as everywhere
    up = before[0] + (most + (relative + 8 * UNIT * abs(most)))
    down = before[1] + (least - (relative + 8 * UNIT * abs(least)))
    return up + 2 * UNIT * abs(up), down - 2 * UNIT * abs(down)
