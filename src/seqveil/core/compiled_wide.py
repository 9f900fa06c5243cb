"""The mechanism `optimal` compiled for many symbols: user by user, and a row of the table for each class of symbols.

It does what `mechanisms.optimum` does beyond `NARROW` symbols, operation by operation, so that the integers are the
same. All that grows with the alphabet are a few passes over the belief; the tables have at most 4K+1 rows.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled import DONE, IMPOSSIBLE, LEFT, ONE, compiled, pick, spend, timetable, total, weigh
from seqveil.core.kernel import DROP, EVEN


@compiled
def _likeliest(belief, labels, top):
    """The likeliest symbols in descending order, ties by code (`optimum.top`), and their beliefs."""
    width, held = labels.size, 0
    for x in range(belief.size):
        here = belief[x]
        if held == width and not here > top[width - 1]:
            continue
        at = min(held, width - 1)
        while at > 0 and top[at - 1] < here:
            top[at], labels[at] = top[at - 1], labels[at - 1]
            at -= 1
        top[at], labels[at] = here, x
        held = min(held + 1, width)


@compiled
def _passed(values, borders, at_them, found):
    """`np.searchsorted` of the borders among values that ascend, step by step as numpy searches: left if `at_them`."""
    low, high, before = 0, values.size, borders[0]
    for k in range(borders.size):
        border = borders[k]
        if before < border if at_them else before <= border:
            high = values.size
        else:
            low = 0
            high = min(high + 1, values.size)
        before = border
        while low < high:
            middle = low + ((high - low) >> 1)
            if values[middle] < border if at_them else values[middle] <= border:
                low = middle + 1
            else:
                high = middle
        found[k] = low


@compiled
def _last_slot(belief, labels, place, lane, count, kappa, holds):
    """`optimum._last_slot`: the share of its time in the last slot for which each unlabelled symbol is there."""
    holds[:] = 0.0
    if not lane[0, 0] > 0.0:
        return
    if lane[2, 0] < kappa:
        holds[:] = 1.0
        return
    head = labels[count]
    room, end = kappa - belief[head], 0.0
    for x in range(belief.size):
        mass = belief[x] if place[x, 0] < 0 and x != head else 0.0
        end += mass
        if end >= room:
            holds[x] = 1.0 - (end - room) / mass
            break
        holds[x] = 1.0
    holds[head] = 1.0


@compiled
def _classes(belief, place, holds, time, borders, final, starts, ends, found, rows, example):
    """The class of each symbol, a symbol of each class (-1: it has none), and the slots where fillings begin and end.

    `found` (4, …) has room for the borders passed by the starts and the ends, and holds in its last rows the first and
    the last slot of a class's filling. Says whether there was room for all.
    """
    width, end, borderline = borders.size, 0.0, 0
    for x in range(belief.size):
        mass = belief[x] * (1.0 - time * holds[x]) if place[x, 0] < 0 else 0.0
        end += mass
        starts[x], ends[x] = end - mass, end
    _passed(starts, borders, True, found[0])
    _passed(ends, borders, False, found[1])
    example[:] = -1
    begun, ended = 0, 0
    for x in range(belief.size):
        while begun < width and found[0, begun] <= x:
            begun += 1
        while ended < width and found[1, ended] <= x:
            ended += 1
        if place[x, 0] >= 0:
            row = place[x, 0]
        else:
            first = min(begun, final)
            past = max(min(ended, final), first)
            if first == past and (holds[x] == 0.0 or holds[x] == 1.0):
                row = width + first + (width if holds[x] == 1.0 else 0)
            else:
                row = 3 * width + borderline
                borderline += 1
                if row >= example.size:
                    return False
            found[2, row], found[3, row] = first, past
        rows[x], example[row] = row, x
    return True


@compiled
def _in_doubt(masses, table, example, bounds):
    """Whether a lift or the LDP level is not well inside its bounds, so that numpy's exact check must look."""
    ceiling, floor, ldp = bounds
    for k in range(table.shape[1]):
        low, high, mean = np.inf, 0.0, 0.0
        for row in range(masses.size):
            if example[row] >= 0:
                weight = float(table[row, k, 0])
                low, high = min(low, weight), max(high, weight)
                mean += masses[row] * weight
        inside = high <= ceiling * mean and low >= floor * mean and high <= ldp * low
        if high > 0.0 and not (inside and mean > 4.0 * DROP * ONE):
            return True
    return False


@compiled
def _plan(belief, labels, wide, lane, count, place, numbers):
    """The timetable of a user: who has a label, how much fills each slot, and where the fillings end."""
    width, running = labels.shape[0], 0.0
    _likeliest(belief, labels[:, 0], wide[0, :, 0])
    for k in range(width):
        running += wide[0, k, 0]
    lane[7, 0] = max(0.0, total(belief, belief.size) - running)
    timetable(wide[0], lane[7], numbers, wide[1], wide[2], wide[3], wide[4], wide[5], lane, count[0])
    running = 0.0
    for k in range(width):
        running += wide[3, k, 0]
        wide[6, k, 0] = running
    final = 0
    for k in range(width):
        final += 1 if wide[6, k, 0] < running else 0
    place[:] = -1
    for k in range(count[0, 0]):
        place[labels[k, 0], 0] = k
    return final


@compiled
def _table(example, place, holds, starts, ends, found, wide, lane, inside, count, a, table, doubtful):
    """The integer rows of all classes that some symbol is in."""
    for row in range(example.size):
        x = example[row]
        if x < 0:
            continue
        inside[0, 0], inside[1, 0], inside[2, 0] = starts[x], ends[x], lane[1, 0] * holds[x]
        inside[3, 0], inside[4, 0] = found[2, row], found[3, row]
        spend(x, place, count[0], lane, wide[4], wide[2], wide[3], wide[5], wide[6], inside, wide[7])
        weigh(row, wide[7], wide[5], a, table, lane, count, doubtful)
        doubtful[0] = doubtful[0] or abs(lane[3, 0] - 1.0) > EVEN / 2


@compiled
def optimal_wide(beliefs, width, numbers, bounds, truths, coins, given, codes, columns, state):
    """`compiled.optimal` for alphabets with more symbols than four for each label."""
    users, n = beliefs.shape
    classes = 4 * width + 1
    labels, place, rows = np.empty((width, 1), np.int64), np.empty((n, 1), np.int64), np.empty(n, np.int64)
    wide, count, found = np.empty((8, width, 1)), np.empty((3, 1), np.int64), np.zeros((4, classes), np.int64)
    lane, inside, doubtful = np.zeros((8, 1)), np.empty((7, 1)), np.empty(1, np.bool_)
    holds, starts, ends = np.empty(n), np.empty(n), np.empty(n)
    example, table = np.empty(classes, np.int64), np.empty((classes, width, 1), np.int64)
    masses = np.empty(classes)
    for user in range(users):
        belief = beliefs[user]
        final = _plan(belief, labels, wide, lane, count, place, numbers)
        _last_slot(belief, labels[:, 0], place, lane, count[0, 0], numbers[2], holds)
        state[user] = LEFT
        time, borders = lane[1, 0], wide[6, :, 0]
        if not _classes(belief, place, holds, time, borders, final, starts, ends, found, rows, example):
            continue
        doubtful[0] = False
        fillings = (place, holds, starts, ends, found)
        _table(example, *fillings, wide, lane, inside, count, numbers[0], table, doubtful)
        masses[:] = 0.0
        for x in range(n):
            masses[rows[x]] += belief[x]
        if doubtful[0] or _in_doubt(masses, table, example, bounds):
            continue
        if given.size:
            drawn = pick(table, labels, 0, 0, 0, given[user])
        else:
            drawn = pick(table, labels, 0, rows[truths[user]], coins[user], -1)
        state[user] = IMPOSSIBLE
        if drawn >= 0:
            codes[user] = labels[drawn, 0]
            for x in range(n):
                columns[user, x] = table[rows[x], drawn, 0]
                if columns[user, x] > 0:
                    state[user] = DONE
