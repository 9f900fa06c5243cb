"""The mechanism `optimal` compiled for many symbols: a row of the table for each class of symbols, not for each symbol.

It does what `mechanisms.optimum` does beyond `NARROW` symbols, operation by operation, so that the integers are the
same. Symbols fill the slots in the order of their codes, so a class is a run of codes but for the few symbols that have
a label: all that grows with the alphabet are some passes over the belief. Sums that have to be taken one after another
run for `SIDE` users side by side, and tables, which have at most 4K+1 rows, are made for `TOGETHER` users at a time.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled import (
    DONE,
    IMPOSSIBLE,
    LEFT,
    compiled,
    doubt,
    pick,
    spend,
    timetable,
    total,
    weigh,
)
from seqveil.core.kernel import EVEN

SIDE = 8  # users whose running sums are taken side by side; `_run` names each of them
TOGETHER = 32  # users whose tables are made together: enough for vector instructions, and few enough to stay at hand
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
def _classes(n, labels, count, order, marks, u, share, found, edges, begins, rows, example):
    """The runs of codes that have one row of the table: where each begins, and its row; how many, or -1: no room.

    `found` are the codes at which a filling passes each border, with its start and with its end. `edges` gets, in its
    last two rows, the first and the last slot of each class's filling, `example` a symbol of each class (-1: none).
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
            edges[3, row, u], edges[4, row, u] = first, past
        begins[runs], rows[runs], example[row, u] = x, row, upto - 1
        runs += 1
        x = min(upto, n)
    begins[runs] = n
    return runs


@compiled
def _summed(values):
    """A sum in four parts."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = values.size // 4 * 4
    for x in range(0, whole, 4):
        a += values[x]
        b += values[x + 1]
        c += values[x + 2]
        d += values[x + 3]
    for x in range(whole, values.size):
        a += values[x]
    return (a + b) + (c + d)


@compiled
def _plan(beliefs, labels, wide, lane, count, numbers, marks):
    """The timetables of a block: who has a label, how much fills each slot, and where the fillings end."""
    width, lanes = labels.shape
    names, top = np.empty(width, np.int64), np.empty(width)
    for u in range(lanes):
        _likeliest(beliefs[u], names, top)
        running = 0.0
        for k in range(width):
            wide[0, k, u], labels[k, u] = top[k], names[k]
            running += top[k]
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
def _sort_users(beliefs, labels, wide, lane, count, kappa, marks, mass, ends, edges, example, runs, begins, rows):
    """The classes of each user, and for each class where a filling of it starts and ends, and its last slot's time.

    `mass` and `ends` have room for the symbols of the users who go side by side.
    """
    users, n = beliefs.shape
    width, side = labels.shape[0], mass.shape[0]
    names, order, borders = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width)
    found, shares = np.zeros((2, width), np.int64), np.empty(side)
    for first in range(0, users, side):
        some = min(side, users - first)
        for v in range(some):
            names[:] = labels[:, first + v]
            shares[v] = _fill(beliefs[first + v], names, count[0, first + v], lane, first + v, kappa, mass[v], marks)
        _run(mass, ends)
        for v in range(some):
            u, share = first + v, shares[v]
            borders[:], names[:] = wide[6, :, u], labels[:, u]
            _passed(ends[v], mass[v], borders, True, found[0])
            _passed(ends[v], mass[v], borders, False, found[1])
            runs[u] = _classes(
                n, names, count[0, u], order, marks, u, share, found, edges, begins[u], rows[u], example
            )  # fmt: skip
            for row in range(example.shape[0]):
                x = example[row, u]
                if x >= 0:
                    inside = x < marks[FULL, u] or x == marks[HEAD, u]
                    holds = 1.0 if inside else (share if x == marks[FULL, u] else 0.0)
                    edges[0, row, u], edges[1, row, u] = ends[v, x] - mass[v, x], ends[v, x]
                    edges[2, row, u] = lane[1, u] * holds


@compiled
def _table(example, edges, wide, lane, count, a, table, places, doubtful):
    """The integer rows of all classes that some symbol is in, and how many; `places` says where each is."""
    classes, width, lanes = table.shape
    inside, own, made = np.empty((7, lanes)), np.empty(lanes, np.int64), 0
    for row in range(classes):
        places[row] = -1
        for u in range(lanes):
            places[row] = made if example[row, u] >= 0 else places[row]
        if places[row] < 0:
            continue
        for u in range(lanes):
            here = row
            while example[here, u] < 0:  # nobody looks at this row: any other does as well
                here = (here + 1) % classes
            own[u] = here if here < width else -1
            for k in range(5):
                inside[k, u] = edges[k, here, u]
        spend(own, count[0], lane, wide[4], wide[2], wide[3], wide[5], wide[6], inside, wide[7])
        weigh(made, wide[7], wide[5], a, table, lane, count, doubtful)
        for u in range(lanes):
            doubtful[u] = doubtful[u] or abs(lane[3, u] - 1.0) > EVEN / 2
        made += 1
    return made


@compiled
def _tell(table, labels, u, runs, begins, rows, truth, coin, given, column):
    """Draw a user's release, or take the one given, and fill in its column; the code, and what became of the row."""
    of_truth = 0
    for run in range(runs):
        of_truth = rows[run] if begins[run] <= truth else of_truth
    drawn, become = pick(table, labels, u, of_truth, coin, given), IMPOSSIBLE
    if drawn < 0:
        return 0, become
    for run in range(runs):
        weight = table[rows[run], drawn, u]
        become = DONE if weight > 0 else become
        column[begins[run] : begins[run + 1]] = weight
    return labels[drawn, u], become


@compiled
def _release(beliefs, width, numbers, bounds, truths, coins, given, codes, columns, state, mass, ends):
    """`optimal_wide` for users whose tables are made together, each a lane."""
    users = beliefs.shape[0]
    classes, most = 4 * width + 1, 5 * width + 16
    labels, wide = np.zeros((width, users), np.int64), np.zeros((8, width, users))
    lane, count, marks = np.zeros((8, users)), np.empty((3, users), np.int64), np.zeros((3, users), np.int64)
    _plan(beliefs, labels, wide, lane, count, numbers, marks)
    edges, example, runs = np.zeros((5, classes, users)), np.full((classes, users), -1), np.zeros(users, np.int64)
    begins, rows = np.empty((users, most), np.int64), np.empty((users, most), np.int64)
    chart = (labels, wide, lane, count, numbers[2], marks)
    _sort_users(beliefs, *chart, mass, ends, edges, example, runs, begins, rows)
    table, places = np.empty((classes, width, users), np.int64), np.empty(classes, np.int64)
    masses, doubtful = np.zeros((classes, users)), runs < 0
    made = _table(example, edges, wide, lane, count, numbers[0], table, places, doubtful)
    for u in range(users):
        for run in range(runs[u]):
            rows[u, run] = places[rows[u, run]]
            masses[rows[u, run], u] += _summed(beliefs[u, begins[u, run] : begins[u, run + 1]])
    doubt(masses[:made], table[:made], bounds, lane, doubtful)
    for u in range(users):
        state[u] = LEFT
        if not doubtful[u]:
            asked = (0, 0, given[u]) if given.size else (truths[u], coins[u], -1)
            codes[u], state[u] = _tell(table, labels, u, runs[u], begins[u], rows[u], *asked, columns[u])


@compiled
def optimal_wide(beliefs, width, numbers, bounds, truths, coins, given, codes, columns, state):
    """`compiled.optimal` for alphabets with more symbols than four for each label."""
    users, n = beliefs.shape
    side = 1 if users == 1 else SIDE
    mass, ends = np.zeros((side, n)), np.empty((side, n))
    for begin in range(0, users, TOGETHER):
        end = begin + TOGETHER
        asked, filled = (truths[begin:end], coins[begin:end], given[begin:end]), (codes[begin:end], columns[begin:end])
        _release(beliefs[begin:end], width, numbers, bounds, *asked, *filled, state[begin:end], mass, ends)
