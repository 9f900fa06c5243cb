"""The hot path of a release, compiled: by blocks of users, without an array for every intermediate result.

Each function does what a numpy function does, operation by operation and in the same order, so that its results are the
same to the last bit (`fast` makes sure of it before it uses them, and tests/test_fast.py over random chains). Rows that
the quick way does not cover are left undone and marked, for numpy to do.

Most goes by blocks of users, a lane each: the innermost loops run over lanes and have no branches, so that the compiler
turns them into vector instructions. Arrays of blocks are (…, lanes).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from seqveil.core.kernel import DENOMINATOR, DROP, EVEN, UNIT

LANES = 64  # users that go side by side
BLOCK = 128  # values that numpy sums without halving
ONE = float(DENOMINATOR)
LARGEST_WEIGHT = np.iinfo(np.int64).max
DONE, LEFT, IMPOSSIBLE = 0, 1, 2  # what became of a row: released; not covered here; no such release can have been made

# No fast-math: reordered sums or fused products would give other last bits.
compiled: Any = njit(cache=True, nogil=True, error_model="numpy")


@compiled
def _block(values, begin, count):
    """Sum of up to 128 values in eight running sums, as numpy takes it."""
    part = values[begin : begin + count]
    if count < 8:
        running = 0.0
        for k in range(count):
            running += part[k]
        return running
    r0, r1, r2, r3, r4, r5, r6, r7 = part[0], part[1], part[2], part[3], part[4], part[5], part[6], part[7]
    whole = count - count % 8
    for k in range(8, whole, 8):
        r0 += part[k]
        r1 += part[k + 1]
        r2 += part[k + 2]
        r3 += part[k + 3]
        r4 += part[k + 4]
        r5 += part[k + 5]
        r6 += part[k + 6]
        r7 += part[k + 7]
    running = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for k in range(whole, count):
        running += part[k]
    return running


@compiled
def halves(count):
    """How numpy sums so many values: blocks in their order, each as where it begins and how many it has.

    Where it has -1 instead, the last two sums that were found are added: halves of halves.
    """
    steps, begins, counts = np.empty((count // 16 + 3, 2), np.int64), np.zeros(64, np.int64), np.zeros(64, np.int64)
    counts[0] = count
    waiting, made = 1, 0
    while waiting:  # no recursion: numba's cache cannot hold it
        waiting -= 1
        begin, many = begins[waiting], counts[waiting]
        if many <= BLOCK:
            steps[made, 0], steps[made, 1] = begin, many
            made += 1
            continue
        half = many // 2
        half -= half % 8
        counts[waiting] = -1  # both halves wait before it
        begins[waiting + 1], counts[waiting + 1] = begin + half, many - half
        begins[waiting + 2], counts[waiting + 2] = begin, half
        waiting += 3
    return steps[:made]


@compiled
def total(values, count):
    """Sum of the first values as numpy sums a contiguous axis: blocks, added by halves of halves."""
    if count <= BLOCK:
        return _block(values, 0, count)
    sums, found = np.empty(64), 0
    for begin, many in halves(count):
        if many < 0:
            found -= 1
            sums[found - 1] += sums[found]
        else:
            sums[found] = _block(values, begin, many)
            found += 1
    return sums[0]


@compiled
def _lane_block(values, out):
    """`_block` down the first axis (…, lanes), lane by lane."""
    count, lanes = values.shape
    whole = count - count % 8
    if count < 8:
        out[:] = 0.0
        whole = 0
    else:
        parts = values[:8].copy()
        for k in range(8, whole):
            for u in range(lanes):
                parts[k % 8, u] += values[k, u]
        for u in range(lanes):
            out[u] = ((parts[0, u] + parts[1, u]) + (parts[2, u] + parts[3, u])) + (
                (parts[4, u] + parts[5, u]) + (parts[6, u] + parts[7, u])
            )
    for k in range(whole, count):
        for u in range(lanes):
            out[u] += values[k, u]


@compiled
def lane_sums(values, out):
    """`total` down the first axis (…, lanes), lane by lane."""
    count, lanes = values.shape
    if count <= BLOCK:
        _lane_block(values, out)
        return
    sums, found = np.empty((64, lanes)), 0
    for begin, many in halves(count):
        if many < 0:
            found -= 1
            for u in range(lanes):
                sums[found - 1, u] += sums[found, u]
        else:
            _lane_block(values[begin : begin + many], sums[found])
            found += 1
    out[:] = sums[0]


@compiled
def _likeliest(belief, labels, top, left):
    """The likeliest symbols in descending order, ties by code (`optimum.top`), and their beliefs."""
    lanes = belief.shape[1]
    left[:] = belief
    for k in range(labels.shape[0]):
        best, which = top[k], labels[k]
        best[:], which[:] = left[0], 0
        for x in range(1, belief.shape[0]):
            for u in range(lanes):
                larger = left[x, u] > best[u]
                best[u] = left[x, u] if larger else best[u]
                which[u] = x if larger else which[u]
        for u in range(lanes):
            left[which[u], u] = -1.0


@compiled
def timetable(top, rest, numbers, after, share, filling, kept, marginal, lane, count):
    """`optimum.timetable`: `lane` holds, a row each, whether a last label follows (1 or 0), its time, and the tail."""
    a, gain, kappa = numbers
    wide, lanes = top.shape
    has_last, time, tail, needed, held, priced, head = lane[0], lane[1], lane[2], lane[3], lane[4], lane[5], lane[6]
    tail[:] = rest
    for k in range(wide - 1, -1, -1):
        for u in range(lanes):
            after[k, u] = tail[u]  # mass of all that are less likely
            tail[u] += top[k, u]
    needed[:], held[:], priced[:], head[:], has_last[:], count[:] = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for k in range(wide):
        for u in range(lanes):
            worth_it = top[k, u] > a * a * top[0, u]
            need = max(kappa - top[k, u], 0.0)
            first = count[u] == k and worth_it
            labelled = first and after[k, u] >= needed[u] + need
            last = first and not labelled
            has_last[u] = 1.0 if last else has_last[u]
            head[u] = top[k, u] if last else head[u]
            needed[u] += need if labelled else 0.0
            count[u] += 1 if labelled else 0
            tail[u] = after[k, u] if labelled else tail[u]
            part = min(max((kappa - after[k, u]) / (top[k, u] if labelled else 1.0), 0.0), 1.0)
            share[k, u] = part if labelled else 0.0
            held[u] += share[k, u] * (need if labelled else 0.0)
            priced[u] += share[k, u] * (top[k, u] * (a * max(top[k, u], kappa) + gain))
    for u in range(lanes):
        left = max(tail[u] - needed[u], 0.0)
        slope = min(tail[u], kappa) - held[u]
        opened = has_last[u] > 0.0 and (kappa / a) * head[u] - priced[u] > a * top[0, u] * slope and left > 0.0
        time[u] = min(left / (slope if slope > 0.0 else 1.0), 1.0) if opened else 0.0
        has_last[u] = 1.0 if opened else 0.0
        needed[u] = 0.0 if opened else left
    for k in range(wide):
        for u in range(lanes):
            labelled = k < count[u]
            kept[k, u] = 1.0 - time[u] * share[k, u] if labelled else 0.0
            filling[k, u] = kept[k, u] * (max(kappa - top[k, u], 0.0) if labelled else 0.0)
            filling[k, u] += needed[u] if k == 0 else 0.0
            here = has_last[u] if k == count[u] else 0.0
            marginal[k, u] = kept[k, u] * top[k, u] + filling[k, u] + time[u] * kappa * here


@compiled
def _last_slot(belief, labels, place, lane, count, kappa, holds):
    """`optimum._last_slot`: the share of its time in the last slot for which each unlabelled symbol is there."""
    has_last, tail, end, room = lane[0], lane[2], lane[3], lane[4]
    wide, lanes = labels.shape
    head = np.empty(lanes, np.int64)
    for u in range(lanes):
        end[u] = 0.0
        head[u] = labels[min(count[u], wide - 1), u]
        room[u] = kappa - belief[head[u], u]
    for x in range(belief.shape[0]):
        for u in range(lanes):
            mass = belief[x, u] if place[x, u] < 0 and x != head[u] else 0.0
            end[u] += mass
            before = end[u] - mass
            part = min(max((room[u] - before) / (mass if mass > 0.0 else 1.0), 0.0), 1.0)
            part = part if mass > 0.0 else (1.0 if before < room[u] else 0.0)
            part = 1.0 if x == head[u] or tail[u] < kappa else part
            holds[x, u] = part if has_last[u] > 0.0 else 0.0


@compiled
def _presence(x, place, count, lane, kept, share, filling, marginal, borders, final, inside, presence):
    """Time symbol x spends under each label; `inside` holds where its filling starts and ends, and its last slot's."""
    wide, lanes = borders.shape
    start, end, first, past = inside[0], inside[1], inside[3], inside[4]
    first[:], past[:] = 0.0, 0.0
    for k in range(wide):
        for u in range(lanes):
            first[u] += 1.0 if borders[k, u] <= start[u] else 0.0
            past[u] += 1.0 if borders[k, u] < end[u] else 0.0
    for u in range(lanes):
        first[u] = min(first[u], final[u])
        past[u] = max(min(past[u], final[u]), first[u])
    spend(place[x], count, lane, kept, share, filling, marginal, borders, inside, presence)


@compiled
def spend(own, count, lane, kept, share, filling, marginal, borders, inside, presence):
    """Time a symbol spends under each label, once `inside` also says which slots its filling begins and ends in.

    `own` is the place of its own label in each lane, -1 where it has none.
    """
    wide, lanes = borders.shape
    has_last, time = lane[0], lane[1]
    start, end, in_last, first, past, across = inside[0], inside[1], inside[2], inside[3], inside[4], inside[5]
    left = inside[6]
    across[:] = 0.0
    for k in range(wide):
        for u in range(lanes):
            overlap = min(end[u], borders[k, u]) - max(start[u], borders[k, u] - filling[k, u])
            overlap = max(overlap, 0.0) if first[u] <= k and k <= past[u] else 0.0
            overlap = (1.0 if k == first[u] else 0.0) if first[u] == past[u] else overlap
            overlap = marginal[k, u] if borders[wide - 1, u] <= 0.0 else overlap  # nobody fills
            presence[k, u] = overlap
            across[u] += overlap
    for u in range(lanes):
        across[u] = (1.0 - in_last[u]) / across[u]
        left[u] = time[u] * share[max(own[u], 0), u]
    for k in range(wide):
        for u in range(lanes):
            here = has_last[u] if k == count[u] else 0.0
            labelled = (kept[k, u] if k == own[u] else 0.0) + left[u] * here
            presence[k, u] = labelled if own[u] >= 0 else presence[k, u] * across[u] + in_last[u] * here


@compiled
def weigh(x, presence, marginal, a, table, lane, count, doubtful):
    """Rows of the tables as integers: `Kernels.from_tables` and `to_weights` of a·p + (1-a)·presence."""
    lanes, norm, most = lane.shape[1], lane[3], lane[4]
    norm[:], most[:] = 0.0, -1.0
    for k in range(presence.shape[0]):
        for u in range(lanes):
            presence[k, u] = max(a * marginal[k, u] + (1.0 - a) * presence[k, u], 0.0)
            norm[u] += presence[k, u]
    left, largest = count[1], count[2]
    left[:], largest[:] = DENOMINATOR, 0
    for k in range(presence.shape[0]):
        for u in range(lanes):
            weight = np.int64(presence[k, u] * ONE)
            table[x, k, u] = weight
            left[u] -= weight
            larger = float(weight) > most[u]
            largest[u] = k if larger else largest[u]
            most[u] = float(weight) if larger else most[u]
    for u in range(lanes):
        table[x, largest[u], u] += left[u]
        doubtful[u] = doubtful[u] or abs(norm[u] - 1.0) > EVEN


@compiled
def doubt(belief, table, bounds, lane, doubtful):
    """Marks users whose lifts or LDP level are not well inside their bounds: numpy's exact check must look."""
    ceiling, floor, ldp = bounds
    lanes, low, high, mean = lane.shape[1], lane[3], lane[4], lane[5]
    for k in range(table.shape[1]):
        low[:], high[:], mean[:] = np.inf, 0.0, 0.0
        for x in range(table.shape[0]):
            for u in range(lanes):
                weight = float(table[x, k, u])
                low[u] = weight if weight < low[u] else low[u]
                high[u] = weight if weight > high[u] else high[u]
                mean[u] += belief[x, u] * weight
        for u in range(lanes):
            inside = high[u] <= ceiling * mean[u] and low[u] >= floor * mean[u] and high[u] <= ldp * low[u]
            doubtful[u] = doubtful[u] or (high[u] > 0.0 and not (inside and mean[u] > 4.0 * DROP * ONE))


@compiled
def _plan(belief, labels, wide, lane, count, spare, numbers):
    """The timetable of a block: who has a label, how much fills each slot, and where the fillings end."""
    n, lanes = belief.shape
    width = labels.shape[0]
    top, after, share, filling, kept, marginal, borders = wide[0], wide[1], wide[2], wide[3], wide[4], wide[5], wide[6]
    running, rest, final = lane[5], lane[6], lane[7]
    _likeliest(belief, labels, top, spare)
    lane_sums(belief, rest)
    running[:] = 0.0
    for k in range(width):
        for u in range(lanes):
            running[u] += top[k, u]
    for u in range(lanes):
        final[u] = max(0.0, rest[u] - running[u]) if width < n else 0.0
    timetable(top, final, numbers, after, share, filling, kept, marginal, lane, count)
    running[:], final[:] = 0.0, 0.0
    for k in range(width):
        for u in range(lanes):
            running[u] += filling[k, u]
            borders[k, u] = running[u]
    for k in range(width):
        for u in range(lanes):
            final[u] += 1.0 if borders[k, u] < running[u] else 0.0


@compiled
def _tables(belief, labels, wide, lane, inside, count, place, holds, numbers, table, doubtful):
    """The integer tables of a block from its timetable, row by row."""
    n, lanes = belief.shape
    a, _, kappa = numbers
    share, filling, kept, marginal, borders, presence = wide[2], wide[3], wide[4], wide[5], wide[6], wide[7]
    time, final, start, end, in_last = lane[1], lane[7], inside[0], inside[1], inside[2]
    place[:] = -1
    for k in range(labels.shape[0]):
        for u in range(lanes):
            if k < count[0, u]:
                place[labels[k, u], u] = k
    _last_slot(belief, labels, place, lane, count[0], kappa, holds)
    end[:], doubtful[:] = 0.0, False
    for x in range(n):
        for u in range(lanes):
            in_last[u] = time[u] * holds[x, u]
            mass = belief[x, u] * (1.0 - in_last[u]) if place[x, u] < 0 else 0.0
            end[u] += mass
            start[u] = end[u] - mass
        _presence(x, place, count[0], lane, kept, share, filling, marginal, borders, final, inside, presence)
        weigh(x, presence, marginal, a, table, lane, count, doubtful)


@compiled
def pick(table, labels, u, truth, coin, given):
    """Which label of a user's table the coin picks for the truth, or is the one given (-1: none)."""
    width, drawn = labels.shape[0], -1
    if given >= 0:
        for k in range(width):
            drawn = k if labels[k, u] == given else drawn
        return drawn
    drawn, reached = 0, table[truth, 0, u]
    while drawn < width - 1 and reached <= coin:
        drawn += 1
        reached += table[truth, drawn, u]
    return drawn


@compiled
def optimal(beliefs, width, numbers, bounds, truths, coins, given, codes, columns, state):
    """`optimal` for Hamming distortion: the table of each user, a draw from it (or the release given), and its column.

    `truths` and `coins` (B,) are used where `given` is empty; else `given` (B,) are releases whose columns are wanted.
    `numbers` are e^-ε, 1-e^-ε and 1/(1+e^ε); `bounds` largest and least lift and largest ratio. Fills in released
    codes (B,), weights of each symbol (B, n), and what became of each row (B,).
    """
    users, n = beliefs.shape
    lanes = min(users, LANES)
    belief, spare, holds = np.empty((n, lanes)), np.empty((n, lanes)), np.empty((n, lanes))
    labels, place = np.empty((width, lanes), np.int64), np.empty((n, lanes), np.int64)
    wide, count = np.empty((8, width, lanes)), np.empty((3, lanes), np.int64)
    lane, inside = np.empty((8, lanes)), np.empty((7, lanes))
    table, doubtful = np.empty((n, width, lanes), np.int64), np.empty(lanes, np.bool_)
    for begin in range(0, users, lanes):
        for u in range(lanes):
            row = beliefs[min(begin + u, users - 1)]
            for x in range(n):
                belief[x, u] = row[x]
        _plan(belief, labels, wide, lane, count[0], spare, numbers)
        _tables(belief, labels, wide, lane, inside, count, place, holds, numbers, table, doubtful)
        doubt(belief, table, bounds, lane, doubtful)
        for u in range(min(lanes, users - begin)):
            user = begin + u
            if doubtful[u]:
                state[user] = LEFT
                continue
            if given.size:
                drawn = pick(table, labels, u, 0, 0, given[user])
            else:
                drawn = pick(table, labels, u, truths[user], coins[user], -1)
            state[user] = IMPOSSIBLE
            if drawn >= 0:
                codes[user] = labels[drawn, u]
                for x in range(n):
                    columns[user, x] = table[x, drawn, u]
                    if columns[user, x] > 0:
                        state[user] = DONE


@compiled
def truth_or_draw(base, told, truths, coins, given, codes, columns):
    """The truth with weight `told`, else a draw by the weights `base` (B or 1, n): crr and randomised response."""
    n = base.shape[1]
    for user in range(codes.size):
        row = base[user if base.shape[0] > 1 else 0]
        if given.size:
            drawn = given[user]
        elif coins[user] < told:
            drawn = truths[user]
        else:
            drawn, rest = 0, coins[user] - told
            reached = row[0]
            while reached <= rest:
                drawn += 1
                reached += row[drawn]
        codes[user] = drawn
        for x in range(n):
            columns[user, x] = row[drawn]
        columns[user, drawn] += told


@compiled
def parts(laws, whole, shares):
    """`mechanisms.base.parts` with one total for all users."""
    users, n = laws.shape
    for user in range(users):
        largest, left = 0, whole
        for x in range(n):
            shares[user, x] = np.int64(np.ceil(laws[user, x] * float(whole)))
            left -= shares[user, x]
            if shares[user, x] > shares[user, largest]:
                largest = x
        shares[user, largest] += left


@compiled
def _update_lanes(
    states, columns, newest, dense, pointers, targets, chances, backoff, base_state, base,
    ahead, marginal, low, high,
):  # fmt: skip
    """`update` of all whole blocks of so many users, a lane each; whether a release was ruled out."""
    users, size = states.shape
    lanes = LANES
    post, row, sums = np.empty((size, lanes)), np.empty((size, lanes)), np.empty(lanes)
    least, most, again = np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes)
    for begin in range(0, users - users % lanes, lanes):
        least[:], most[:], again[:], row[:] = LARGEST_WEIGHT, 0, 0.0, 0.0
        for u in range(lanes):
            for s in range(size):
                weight = columns[begin + u, newest[s]]
                here = states[begin + u, s]
                post[s, u] = here * float(weight)
                least[u] = min(least[u], weight) if here > 0.0 else least[u]
                most[u] = max(most[u], weight) if here > 0.0 else most[u]
        lane_sums(post, sums)
        for u in range(lanes):
            if not sums[u] > 0.0:
                return True
            marginal[begin + u], low[begin + u], high[begin + u] = sums[u], least[u], most[u]
        for s in range(size):
            for u in range(lanes):
                post[s, u] /= sums[u]
        for s in range(size):
            if dense.size:
                for t in range(size):
                    for u in range(lanes):
                        row[t, u] += dense[s, t] * post[s, u]
            else:
                for k in range(pointers[s], pointers[s + 1]):
                    target, chance = row[targets[k]], chances[k]
                    for u in range(lanes):
                        target[u] += chance * post[s, u]
        if backoff.size:
            for s in range(size):
                for u in range(lanes):
                    again[u] += backoff[s] * post[s, u]
            for k in range(base_state.size):
                for u in range(lanes):
                    row[base_state[k], u] += again[u] * base[k]
        lane_sums(row, sums)
        for u in range(lanes):
            for s in range(size):
                ahead[begin + u, s] = row[s, u] / sums[u]
    return False


@compiled
def update(
    states, columns, newest, dense, pointers, targets, chances, backoff, base_state, base, ahead, marginal, low, high
):
    """`filtering.condition` and `filtering.predict` of every user, and the extremes of the released column.

    The chain is `dense` (S, S) where that is not empty, else compressed rows. Fills in the next states (B, S), which
    come as zeros, the marginals (B,), and least and largest weight over the symbols of positive belief (B,); says
    whether a belief ruled its release out, which is left to numpy.
    """
    users, size = states.shape
    side_by_side = 0
    if users >= LANES:
        side_by_side = users - users % LANES
        chain = (dense, pointers, targets, chances, backoff, base_state, base)
        if _update_lanes(states, columns, newest, *chain, ahead, marginal, low, high):
            return True
    post = np.empty(size)
    for user in range(side_by_side, users):
        least, most = LARGEST_WEIGHT, 0
        for s in range(size):
            weight = columns[user, newest[s]]
            post[s] = states[user, s] * float(weight)
            if states[user, s] > 0.0:
                least, most = min(least, weight), max(most, weight)
        mean = total(post, size)
        if not mean > 0.0:
            return True
        marginal[user], low[user], high[user] = mean, least, most
        for s in range(size):
            post[s] /= mean
        row, again = ahead[user], 0.0
        for s in range(size):
            here = post[s]
            if dense.size:
                for t in range(size):
                    row[t] += dense[s, t] * here
            else:
                for k in range(pointers[s], pointers[s + 1]):
                    row[targets[k]] += chances[k] * here
            if backoff.size:
                again += backoff[s] * here
        if backoff.size:
            for k in range(base_state.size):
                row[base_state[k]] += again * base[k]
        everything = total(row, size)
        for s in range(size):
            row[s] /= everything
    return False


@compiled
def _outward(log, relative, sign, silent):
    """`kernel.outward` of one number, 0 for a release that tells nothing."""
    if silent:
        return 0.0
    return log if np.isinf(log) else log + sign * (relative + 8 * UNIT * abs(log))


@compiled
def _add(running, cost, sign):
    """`leakage._add` of two numbers: rounded outward, exact where the cost is 0."""
    both = running + cost
    return both if cost == 0.0 or np.isinf(both) else both + sign * (2 * UNIT) * abs(both)


@compiled
def charge_alike(logs, silent, ahead_most, ahead_least, relative, most, least):
    """`Leakages.charge` where anything can follow anything, from the least and largest log lift of a release (B, 2)."""
    for user in range(len(logs)):
        up = _outward(logs[user, 1], relative, 1.0, silent[user])
        down = _outward(logs[user, 0], relative, -1.0, silent[user])
        most[user, 0] = _add(ahead_most[user, 0], up, 1.0)
        least[user, 0] = _add(ahead_least[user, 0], down, -1.0)


@compiled
def charge(logs, columns, ahead, relative, newest, pointers, targets, backoff, base_state, base, most, least, further):
    """`Leakages.charge` for a chain in which not everything follows everything; `logs` (B, n) are of the lifts.

    `ahead` and `further` are pairs: the upper side (B, S) and the lower one.
    """
    ahead_most, ahead_least = ahead
    further, nearer = further
    users, size = ahead_most.shape
    n = columns.shape[1]
    ups, downs = np.empty(n), np.empty(n)
    for user in range(users):
        silent = True
        for x in range(1, n):
            silent = silent and columns[user, x] == columns[user, 0]
        for x in range(n):
            ups[x] = _outward(logs[user, x], relative, 1.0, silent)
            downs[x] = _outward(logs[user, x], relative, -1.0, silent)
        most[user], least[user], further[user], nearer[user] = -np.inf, np.inf, -np.inf, np.inf
        restart_most, restart_least = -np.inf, np.inf
        for s in range(size):
            up, down = ahead_most[user, s], ahead_least[user, s]
            up = up if up == -np.inf else _add(up, ups[newest[s]], 1.0)
            down = down if down == np.inf else _add(down, downs[newest[s]], -1.0)
            most[user], least[user] = max(most[user], up), min(least[user], down)
            for k in range(pointers[s], pointers[s + 1]):
                t = targets[k]
                further[user, t], nearer[user, t] = max(further[user, t], up), min(nearer[user, t], down)
            if backoff.size and backoff[s] > 0.0:
                restart_most, restart_least = max(restart_most, up), min(restart_least, down)
        if backoff.size:
            for k in range(base_state.size):
                if base[k] > 0.0:
                    t = base_state[k]
                    further[user, t] = max(further[user, t], restart_most)
                    nearer[user, t] = min(nearer[user, t], restart_least)
