"""The mechanism `optimal` compiled for many symbols: a row of the table for each class of symbols, not for each symbol.

It does what `mechanisms.optimum` does beyond `NARROW` symbols, operation by operation, so that the integers are the
same. Symbols fill the slots in the order of their codes, so a class is a run of codes but for the few symbols that have
a label: all that grows with the alphabet are some passes over the belief. Sums that have to be taken one after another
run for `SIDE` users side by side, and so do the tables, which have at most 4K+1 rows.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled import (
    DONE,
    IMPOSSIBLE,
    LEFT,
    ONE,
    compiled,
    pick,
    spend,
    timetable,
    total,
    weigh,
)
from seqveil.core.kernel import DROP, EVEN

SIDE = 8  # users that go side by side; `_run` names each of them
HEAD, FULL, FINAL = 0, 1, 2  # of a user: the code of the last label (-1: none), of the slot's last symbol, last slot


@compiled
def _likeliest(belief, labels, top):
    """The likeliest symbols in descending order, ties by code (`optimum.top`), and their beliefs."""
    width, held, least = labels.size, 0, -1.0
    for x in range(belief.size):
        here = belief[x]
        if not here > least:
            continue
        at = min(held, width - 1)
        while at > 0 and top[at - 1] < here:
            top[at], labels[at] = top[at - 1], labels[at - 1]
            at -= 1
        top[at], labels[at] = here, x
        held = min(held + 1, width)
        least = top[width - 1] if held == width else -1.0


@compiled
def _last_slot(belief, mass, head, room):
    """`optimum._last_slot` where the slot is full: the code of the last symbol in it, and the share that it has.

    `mass` are the beliefs of symbols without a label, and 0 for the others.
    """
    end = 0.0
    for x in range(belief.size):
        here = mass[x] if x != head else 0.0
        end += here
        if end >= room:
            return x, 1.0 - (end - room) / here
    return belief.size, 0.0


@compiled
def _fill(belief, labels, count, lane, u, kappa, mass, marks):
    """The mass that each symbol fills slots with, and who is in the last slot; says the share of the last one there.

    All symbols before `marks[FULL, u]` are in it for all of its time, and so is the last label itself; the rest is not.
    """
    n = belief.size
    mass[:] = belief
    for k in range(count):
        mass[labels[k]] = 0.0
    head, full, share = -1, 0, 0.0
    if lane[0, u] > 0.0:
        head, full = labels[count], n
        if not lane[2, u] < kappa:
            full, share = _last_slot(belief, mass, head, kappa - belief[head])
    time = lane[1, u]
    for x in range(full):
        mass[x] *= 1.0 - time
    if full < n:
        mass[full] *= 1.0 - time * (share if full != head else 1.0)
    if head > full:
        mass[head] *= 1.0 - time
    marks[HEAD, u], marks[FULL, u] = head, full
    return share


@compiled
def _run(mass, ends):
    """Running sums of the rows of `SIDE` users, each from left to right; of the first alone where there is one."""
    if mass.shape[0] == 1:
        end = 0.0
        for x in range(mass.shape[1]):
            end += mass[0, x]
            ends[0, x] = end
        return
    e0, e1, e2, e3, e4, e5, e6, e7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for x in range(mass.shape[1]):
        e0 += mass[0, x]
        e1 += mass[1, x]
        e2 += mass[2, x]
        e3 += mass[3, x]
        e4 += mass[4, x]
        e5 += mass[5, x]
        e6 += mass[6, x]
        e7 += mass[7, x]
        ends[0, x], ends[1, x], ends[2, x], ends[3, x] = e0, e1, e2, e3
        ends[4, x], ends[5, x], ends[6, x], ends[7, x] = e4, e5, e6, e7


@compiled
def _passed(ends, mass, borders, at_them, found):
    """`np.searchsorted` of the borders among starts or ends of fillings, step by step as numpy searches.

    `at_them`: among the starts, a border's own place counts as passed; else among the ends.
    """
    low, high, before = 0, ends.size, borders[0]
    for k in range(borders.size):
        border = borders[k]
        if before < border if at_them else before <= border:
            high = ends.size
        else:
            low = 0
            high = min(high + 1, ends.size)
        before = border
        while low < high:
            middle = low + ((high - low) >> 1)
            below = ends[middle] - mass[middle] < border if at_them else ends[middle] <= border
            if below:
                low = middle + 1
            else:
                high = middle
        found[k] = low


@compiled
def _sorted(labels, count, order):
    """Places of the labelled symbols in the order of their codes."""
    for k in range(count):
        at = k
        while at > 0 and labels[order[at - 1]] > labels[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k


@compiled
def _classes(n, labels, count, order, marks, u, share, found, slots, begins, rows, example):
    """The runs of codes that have one row of the table: where each begins, and its row; how many, or -1: no room.

    `found` are the codes at which a filling passes each border, with its start and with its end. `slots` gets the first
    and the last slot of each class's filling, `example` a symbol of each class (-1: it has none).
    """
    width, runs, borderline, begun, ended, labelled, x = labels.size, 0, 0, 0, 0, 0, 0
    head, full, final = marks[HEAD, u], marks[FULL, u], marks[FINAL, u]
    _sorted(labels, count, order)
    while x < n:
        while begun < width and found[0, begun] <= x:
            begun += 1
        while ended < width and found[1, ended] <= x:
            ended += 1
        upto = found[0, begun] if begun < width else n
        upto = min(upto, found[1, ended]) if ended < width else upto
        upto = min(upto, labels[order[labelled]]) if labelled < count else upto
        if labelled < count and labels[order[labelled]] == x:
            row, upto = order[labelled], x + 1
            labelled += 1
        else:
            holds = 1.0 if x < full or x == head else (share if x == full else 0.0)
            upto = min(upto, x + 1 if x in (head, full) else (full if x < full else n))
            upto = min(upto, head) if head > x else upto
            first = min(begun, final)
            past = max(min(ended, final), first)
            if first == past and (holds == 0.0 or holds == 1.0):
                row = width + first + (width if holds == 1.0 else 0)
            else:  # on a border: a row of its own
                row, upto = 3 * width + borderline, x + 1
                borderline += 1
                if row >= example.shape[0]:
                    return -1
            slots[0, row, u], slots[1, row, u] = first, past
        begins[runs], rows[runs], example[row, u] = x, row, upto - 1
        runs += 1
        x = min(upto, n)
    begins[runs] = n
    return runs


@compiled
def _summed(values, begin, end):
    """A sum in four parts."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = begin + (end - begin) // 4 * 4
    for x in range(begin, whole, 4):
        a += values[x]
        b += values[x + 1]
        c += values[x + 2]
        d += values[x + 3]
    for x in range(whole, end):
        a += values[x]
    return (a + b) + (c + d)


@compiled
def _in_doubt(masses, table, example, u, bounds):
    """Whether a lift or the LDP level is not well inside its bounds, so that numpy's exact check must look."""
    ceiling, floor, ldp = bounds
    for k in range(table.shape[1]):
        low, high, mean = np.inf, 0.0, 0.0
        for row in range(masses.size):
            if example[row, u] >= 0:
                weight = float(table[row, k, u])
                low, high = min(low, weight), max(high, weight)
                mean += masses[row] * weight
        inside = high <= ceiling * mean and low >= floor * mean and high <= ldp * low
        if high > 0.0 and not (inside and mean > 4.0 * DROP * ONE):
            return True
    return False


@compiled
def _plan(beliefs, labels, wide, lane, count, numbers, marks, spare, names):
    """The timetables of a block: who has a label, how much fills each slot, and where the fillings end."""
    width, lanes = labels.shape
    for u in range(beliefs.shape[0]):
        _likeliest(beliefs[u], names, spare)
        running = 0.0
        for k in range(width):
            wide[0, k, u], labels[k, u] = spare[k], names[k]
            running += spare[k]
        lane[7, u] = max(0.0, total(beliefs[u], beliefs.shape[1]) - running)
    timetable(wide[0], lane[7], numbers, wide[1], wide[2], wide[3], wide[4], wide[5], lane, count[0])
    for u in range(lanes):
        running = 0.0
        for k in range(width):
            running += wide[3, k, u]
            wide[6, k, u] = running
        marks[FINAL, u] = 0
        for k in range(width):
            marks[FINAL, u] += 1 if wide[6, k, u] < running else 0


@compiled
def _table(example, marks, shares, mass, ends, slots, wide, lane, inside, own, count, a, table, doubtful):
    """The integer rows of all classes that some symbol is in."""
    classes, width, lanes = table.shape
    for row in range(classes):
        anybody = False
        for u in range(lanes):
            here = row
            while example[here, u] < 0:  # nobody looks at this row: any other does as well
                here = (here + 1) % classes
            anybody = anybody or here == row
            x, own[u] = example[here, u], here if here < width else -1
            in_slot = x < marks[FULL, u] or x == marks[HEAD, u]
            holds = 1.0 if in_slot else (shares[u] if x == marks[FULL, u] else 0.0)
            inside[0, u], inside[1, u], inside[2, u] = ends[u, x] - mass[u, x], ends[u, x], lane[1, u] * holds
            inside[3, u], inside[4, u] = slots[0, here, u], slots[1, here, u]
        if anybody:
            spend(own, count[0], lane, wide[4], wide[2], wide[3], wide[5], wide[6], inside, wide[7])
            weigh(row, wide[7], wide[5], a, table, lane, count, doubtful)
            for u in range(lanes):
                doubtful[u] = doubtful[u] or abs(lane[3, u] - 1.0) > EVEN / 2


@compiled
def _tell(belief, table, labels, u, runs, begins, rows, masses, example, bounds, truth, coin, given, column):
    """Draw a user's release, or take the one given, and fill in its column; the code, and what became of the row."""
    masses[:] = 0.0
    of_truth = 0
    for run in range(runs):
        masses[rows[run]] += _summed(belief, begins[run], begins[run + 1])
        of_truth = rows[run] if begins[run] <= truth else of_truth
    if _in_doubt(masses, table, example, u, bounds):
        return 0, LEFT
    drawn, become = pick(table, labels, u, of_truth, coin, given), IMPOSSIBLE
    if drawn < 0:
        return 0, become
    for run in range(runs):
        weight = table[rows[run], drawn, u]
        become = DONE if weight > 0 else become
        for x in range(begins[run], begins[run + 1]):
            column[x] = weight
    return labels[drawn, u], become


@compiled
def optimal_wide(beliefs, width, numbers, bounds, truths, coins, given, codes, columns, state):
    """`compiled.optimal` for alphabets with more symbols than four for each label."""
    users, n = beliefs.shape
    classes, most, lanes = 4 * width + 1, 5 * width + 16, min(users, SIDE)
    labels, order, names = np.zeros((width, lanes), np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    wide, count, spare = np.zeros((8, width, lanes)), np.empty((3, lanes), np.int64), np.empty(width)
    found, slots = np.zeros((2, width), np.int64), np.zeros((2, classes, lanes), np.int64)
    lane, inside, own = np.zeros((8, lanes)), np.empty((7, lanes)), np.empty(lanes, np.int64)
    doubtful, shares, marks = np.empty(lanes, np.bool_), np.zeros(lanes), np.zeros((3, lanes), np.int64)
    together = 1 if lanes == 1 else SIDE
    mass, ends = np.zeros((together, n)), np.empty((together, n))
    example, table = np.empty((classes, lanes), np.int64), np.empty((classes, width, lanes), np.int64)
    masses, runs = np.empty(classes), np.empty(lanes, np.int64)
    begins, rows = np.empty((SIDE, most), np.int64), np.empty((SIDE, most), np.int64)
    for begin in range(0, users, SIDE):
        block = beliefs[begin : begin + SIDE]  # the last one may be short: what its other lanes hold is not looked at
        _plan(block, labels, wide, lane, count, numbers, marks, spare, names)
        for u in range(len(block)):
            names[:] = labels[:, u]
            shares[u] = _fill(block[u], names, count[0, u], lane, u, numbers[2], mass[u], marks)
        _run(mass, ends)
        example[:], doubtful[:] = -1, False
        example[0, len(block) :] = 0
        for u in range(len(block)):
            spare[:], names[:] = wide[6, :, u], labels[:, u]
            _passed(ends[u], mass[u], spare, True, found[0])
            _passed(ends[u], mass[u], spare, False, found[1])
            edges = (found, slots, begins[u], rows[u], example)
            runs[u] = _classes(n, names, count[0, u], order, marks, u, shares[u], *edges)
            doubtful[u] = runs[u] < 0
        _table(example, marks, shares, mass, ends, slots, wide, lane, inside, own, count, numbers[0], table, doubtful)
        for u in range(len(block)):
            user = begin + u
            state[user] = LEFT
            if doubtful[u]:
                continue
            asked = (0, 0, given[user]) if given.size else (truths[user], coins[user], -1)
            runs_of = (runs[u], begins[u], rows[u])
            told = _tell(block[u], table, labels, u, *runs_of, masses, example, bounds, *asked, columns[user])
            codes[user], state[user] = told
