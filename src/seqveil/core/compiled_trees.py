"""What a tree of batches takes the most time for, compiled: its sampled batches, what questions gain, best guesses.

Each function does what one in `mechanisms.samples` or `distortion` does. Sums over a sample are sums of whole numbers,
or of whole numbers over a power of two, exact in any order; every other operation comes in numpy's order, so that
trees and estimates are the same to the last bit (`fast.trees` makes sure of it before they are used).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from seqveil.core.compiled import compiled, total

LANES = 8  # batches that are led on side by side
FEW_LEVELS = 512  # of an order, up to which a middle is found by counting


@compiled
def scatter(law, pointers, targets, chances, out):
    """law · P for rows of a sparse P: as scipy adds it up, and states without weight add nothing."""
    for s in range(law.size):
        here = law[s]
        if here != 0.0:
            for k in range(pointers[s], pointers[s + 1]):
                out[targets[k]] += chances[k] * here


@compiled
def gather(value, pointers, targets, chances, out):
    """P · value for rows of a sparse P, as scipy adds it up."""
    for s in range(out.size):
        seen = 0.0
        for k in range(pointers[s], pointers[s + 1]):
            seen += chances[k] * value[targets[k]]
        out[s] = seen


@compiled
def walk(states, values, coins, targets, chances, backoff, base, base_state, found):
    """`samples._step` from position to position: the states (w, sample) of sampled batches, the first ones given."""
    running, again = np.empty((targets.shape[1], LANES)), np.empty(base.size)
    found[0], chain = states, (targets, chances, backoff, base_state)
    for t in range(1, len(values)):
        everything = 0.0
        if backoff.size:
            for k in range(base.size):
                again[k] = base[k] * values[t, base_state[k]]
            everything = total(again, base.size)
            for k in range(1, base.size):
                again[k] += again[k - 1]
        for begin in range(0, states.size, LANES):
            some = slice(begin, min(begin + LANES, states.size))
            _next(found[t - 1, some], values[t], coins[t - 1, some], chain, everything, again, running, found[t, some])


@compiled
def begin(law, coins, found):
    """Where a sample begins: places in a law, one for each of as many equal parts of it, by a coin each."""
    everything, count = 0.0, coins.size
    for s in range(law.size):
        everything += law[s]
    place, running = 0, law[0]
    for i in range(count):
        aim = (i + coins[i]) / count * everything
        while running <= aim and place < law.size - 1:
            place += 1
            running += law[place]
        found[i] = place


@compiled
def sums(level, law, out):
    """`np.bincount` by weight."""
    for x in range(law.size):
        out[level[x]] += law[x]


@compiled
def _next(before, value, coins, chain, everything, again, running, after):
    """One step of a few batches, towards states in proportion to transition × value."""
    targets, chances, backoff, base_state = chain
    width, inside = targets.shape[1], np.zeros(LANES)
    for k in range(width):
        for u in range(before.size):  # side by side, as each sum waits for its own last term
            inside[u] += chances[before[u], k] * value[targets[before[u], k]]
            running[k, u] = inside[u]
    for u in range(before.size):
        restart, place = backoff[before[u]] * everything if backoff.size else 0.0, 0
        aim = coins[u] * (inside[u] + restart)
        if restart > 0.0 and aim >= inside[u]:
            share = (aim - inside[u]) / restart * again[again.size - 1]
            after[u] = base_state[min(np.searchsorted(again, share, side="right"), again.size - 1)]
            continue
        while place < width - 1 and running[place, u] <= aim:
            place += 1
        after[u] = targets[before[u], place]


@compiled
def rank(codes, n, most, ranks, slots, kept, middle, totals):
    """Rank of each symbol among those of its position, the most frequent first, ties by code.

    Fills in the ranks (sample, w); where in `totals` each symbol is counted, those past the first `most` of a position
    in its last column; how many symbols of each position count; how many of the first make half of the sample; and how
    often each of them occurs (w, most + 1).
    """
    count, length = codes.shape
    times, place, keys = np.zeros(n, np.int64), np.empty(n, np.int64), np.empty(count, np.int64)
    for t in range(length):
        distinct = 0
        for i in range(count):
            code = codes[i, t]
            if times[code] == 0:
                place[distinct] = code
                distinct += 1
            times[code] += 1
        for k in range(distinct):
            keys[k] = (count - times[place[k]]) * n + place[k]
            times[place[k]] = 0
        keys[:distinct].sort()
        kept[t], middle[t], reached = min(distinct, most), 1, 0
        for k in range(distinct):
            often = count - keys[k] // n
            reached += often
            middle[t] += 2 * reached < count
            place[keys[k] % n] = k
            totals[t, min(k, most)] = often
        for i in range(count):
            ranks[i, t] = place[codes[i, t]]
            slots[i, t] = t * (most + 1) + min(ranks[i, t], most)


@compiled
def _middle_key(keys, levels, often, ordered):
    """The key in the middle, were they in order: by counting where there are few levels."""
    count = keys.size
    if levels > often.size:
        ordered[:] = keys
        ordered.sort()
        return ordered[count // 2]
    often[:levels] = 0
    for i in range(count):
        often[keys[i]] += 1
    level, passed = 0, often[0]
    while passed <= count // 2:
        level += 1
        passed += often[level]
    return level


@compiled
def _lower_half(keys, levels, often, ordered, chosen):
    """`samples._halves` for one order and position: who is in the lower half."""
    count = keys.size
    middle = _middle_key(keys, levels, often, ordered)
    strict, loose = 0, 0
    for i in range(count):
        strict += keys[i] < middle
        loose += keys[i] <= middle
    nearer = abs(2 * strict - count) <= abs(2 * loose - count)
    for i in range(count):
        chosen[i] = keys[i] < middle or (keys[i] == middle and not nearer)


@compiled
def _count_chosen(slots, chosen, found):
    """Count the chosen batches' symbols."""
    count, length = slots.shape
    flat = found.ravel()
    for i in range(count):
        if chosen[i]:
            for t in range(length):
                flat[slots[i, t]] += 1


@compiled
def _right_guesses(found, totals, kept):
    """How many symbols on both sides are the most frequent of their side and position."""
    most = 0
    for t in range(kept.size):
        left, right = np.int32(0), np.int32(0)
        for k in range(kept[t]):
            left, right = max(left, found[t, k]), max(right, np.int32(totals[t, k] - found[t, k]))
        most += int(left) + int(right)
    return most


@compiled
def count_gains(codes, levels, ranks, slots, kept, middle, totals, gains, positions, orders):
    """What each question of `samples._Counts` gains, and its position and order; says how many there are.

    What a side costs is its size less the right guesses, and both sizes together are the sample's: so a question gains
    by how much it makes more guesses right.
    """
    count, length = codes.shape
    found, often = np.zeros(totals.shape, np.int32), np.empty(FEW_LEVELS, np.int64)
    keys, ordered, chosen = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_)
    before, asked = _right_guesses(found, totals, kept), 0
    if before == count * length:
        return 0
    for which in range(levels.shape[0]):
        for t in range(length):
            for i in range(count):
                keys[i] = levels[which, codes[i, t]]
            _lower_half(keys, levels.shape[1], often, ordered, chosen)
            found[:] = 0
            _count_chosen(slots, chosen, found)
            gains[asked] = _right_guesses(found, totals, kept) - before
            positions[asked], orders[asked] = t, which
            asked += 1
    for t in range(length):
        found[:] = 0
        known, half = 0, middle[t]
        for many in (1, max(1, half - 1), half):
            if many == known:
                continue
            for i in range(count):
                chosen[i] = known <= ranks[i, t] < many
            known = many
            _count_chosen(slots, chosen, found)
            gains[asked] = _right_guesses(found, totals, kept) - before
            positions[asked], orders[asked] = t, -1
            asked += 1
    return asked


@compiled
def count_costs(weight, slots, kept, totals, out):
    """`samples._Counts.both`: the cost of each side (C, 2), for weights (C, sample) of the left one."""
    count, length = slots.shape
    found = np.empty(totals.shape)
    flat = found.ravel()
    for c in range(weight.shape[0]):
        found[:] = 0.0
        mass = 0.0
        for i in range(count):
            here = weight[c, i]
            mass += here
            if here > 0.0:
                for t in range(length):
                    flat[slots[i, t]] += here
        left, right = mass * length, (count - mass) * length
        for t in range(length):
            high, low = 0.0, 0.0
            for k in range(kept[t]):
                high, low = max(high, found[t, k]), max(low, totals[t, k] - found[t, k])
            left -= high
            right -= low
        out[c, 0], out[c, 1] = left, right


@compiled
def _spread(mass, first, second, squared, room):
    """`samples._Moments._cost` of one side."""
    length = second.size
    wide = first.size // length
    for t in range(length):
        around = 0.0
        for d in range(t * wide, (t + 1) * wide):
            around += first[d] * first[d]
        spread = max(mass * second[t] - around, 0.0)
        room[t] = spread / max(mass, 1.0) if squared else np.sqrt(spread)
    return total(room, length)


@compiled
def _add_moments(weight, places, squares, first, second):
    """Weighted sums of the rows; says the sum of the weights."""
    first[:], second[:] = 0.0, 0.0
    mass = 0.0
    for i in range(weight.size):
        here = weight[i]
        mass += here
        if here > 0.0:
            for j in range(first.size):
                first[j] += here * places[i, j]
            for j in range(second.size):
                second[j] += here * squares[i, j]
    return mass


@compiled
def moment_costs(weight, places, squares, squared, out):
    """`samples._Moments.both`: the cost of each side (C, 2), for weights (C, sample) of the left one."""
    count, length = squares.shape
    first, second, room = np.empty(places.shape[1]), np.empty(length), np.empty(length)
    all_first, all_second = np.empty(places.shape[1]), np.empty(length)
    _add_moments(np.ones(count), places, squares, all_first, all_second)
    for c in range(weight.shape[0]):
        mass = _add_moments(weight[c], places, squares, first, second)
        out[c, 0] = _spread(mass, first, second, squared, room)
        for j in range(first.size):
            first[j] = all_first[j] - first[j]
        for j in range(length):
            second[j] = all_second[j] - second[j]
        out[c, 1] = _spread(count - mass, first, second, squared, room)


@compiled
def moment_gains(keys, levels, places, squares, squared, gains):
    """What each half of an order and position gains; says whether there is anything to gain."""
    orders, count, length = keys.shape
    column, ordered, chosen = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_)
    often, sides, costs = (
        np.empty(FEW_LEVELS, np.int64),
        np.ones((1 + gains.size, count)),
        np.empty((1 + gains.size, 2)),
    )
    for which in range(orders):
        for t in range(length):
            for i in range(count):
                column[i] = keys[which, i, t]
            _lower_half(column, levels, often, ordered, chosen)
            for i in range(count):
                sides[1 + which * length + t, i] = 1.0 if chosen[i] else 0.0
    moment_costs(sides, places, squares, squared, costs)
    for k in range(gains.size):
        gains[k] = (costs[0, 0] + costs[0, 1]) - (costs[k + 1, 0] + costs[k + 1, 1])
    return costs[0, 0] + costs[0, 1] > 0.0


@compiled
def places_of(codes, points, scale, places, squares):
    """Coordinates of a sample as whole numbers up to `scale`, (sample, w·d), and their squares' sums (sample, w)."""
    count, length = codes.shape
    wide = points.shape[1]
    low, high = points[codes[0, 0]].copy(), points[codes[0, 0]].copy()
    for i in range(count):
        for t in range(length):
            for d in range(wide):
                here = points[codes[i, t], d]
                low[d], high[d] = min(low[d], here), max(high[d], here)
    span = 0.0
    for d in range(wide):
        span = max(span, high[d] - low[d])
    factor = scale / (span if span != 0.0 else 1.0)
    for i in range(count):
        for t in range(length):
            squares[i, t] = 0.0
            for d in range(wide):
                here = np.rint((points[codes[i, t], d] - low[d]) * factor)
                places[i, t * wide + d] = here
                squares[i, t] += here * here


@compiled
def _away(centre, places, out):
    """`distortion._apart`."""
    out[:] = 0.0
    for d in range(places.shape[0]):
        for k in range(out.size):
            away = places[d, k] - centre[d]
            out[k] += away * away
    for k in range(out.size):
        out[k] = np.sqrt(out[k])


@compiled
def median(start, places, weights, steps, close):
    """`distortion._centre`: a centre led towards the geometric median by Weiszfeld's steps."""
    wide, count = places.shape
    near, room, apart = np.empty(count), np.empty(count), np.empty(count)
    centre, before = start.copy(), np.empty(wide)
    for _ in range(steps):
        _away(centre, places, apart)
        for k in range(count):
            near[k] = weights[k] / max(apart[k], 1e-6)
        everything, moved = total(near, count), 0.0
        for d in range(wide):
            for k in range(count):
                room[k] = places[d, k] * near[k]
            before[d] = centre[d]
            centre[d] = total(room, count) / everything
            moved = max(moved, abs(centre[d] - before[d]))
        if moved < close:
            break
    return centre


@compiled
def costs_around(centres, places, weights, out):
    """Expected distance from each of a few centres (C, d)."""
    count = weights.size
    room = np.empty(count)
    for c in range(len(centres)):
        _away(centres[c], places, room)
        for k in range(count):
            room[k] *= weights[k]
        out[c] = total(room, count)


@compiled
def cut(masses, mass, least, count, aims, everywhere, soft, steps, hair, place, theta, left, right):
    """`questions.cut`: fills in where to cut, how much of the level at the cut goes left, and the masses of both sides.

    With `everywhere` a cut is tried at every level, else near the aims; `soft` says up to how many cells a cut may be
    inside a level. Says how many cuts there are.
    """
    levels, enough = masses.size, least * (1 - hair)
    running, beyond = np.empty(levels + 1), np.zeros(levels + 2)
    running[0] = 0.0
    for k in range(levels):
        running[k + 1] = running[k] + masses[k]
    for k in range(levels - 1, -1, -1):
        beyond[k] = beyond[k + 1] + masses[k]
    tried, any_fits = np.zeros(levels + 1, np.bool_), False
    if everywhere:
        tried[1:levels] = True
    else:
        for aim in aims:
            near = np.searchsorted(running, aim * mass)
            tried[min(max(near, 1), max(1, levels - 1))] = True
            tried[min(max(near - 1, 1), max(1, levels - 1))] = True
    found = 0
    for k in range(1, levels + 1):
        if tried[k]:
            place[found], theta[found] = k, 0.0
            found += 1
            any_fits = any_fits or (running[k] >= enough and beyond[k] >= enough)
    if count <= soft or not any_fits:
        whole = np.empty(2 * found + 2)
        whole[0], whole[1] = count // 2, (count + 1) // 2
        for k in range(found):
            where = running[place[k]] * (count / mass)
            whole[2 * k + 2], whole[2 * k + 3] = np.floor(where), np.ceil(where)
        whole.sort()
        for k in range(whole.size):
            if 1 <= whole[k] <= count - 1 and (k == 0 or whole[k] > whole[k - 1]):
                target = whole[k] * (mass / count)
                at = min(max(np.searchsorted(running, target, side="right") - 1, 0), levels - 1)
                inside = (target - running[at]) / max(masses[at], 1e-300) if masses[at] > 0 else 0.0
                place[found], theta[found] = at, min(max(inside, 0.0), 1.0)
                found += 1
    kept = 0
    for k in range(found):
        share = np.rint(theta[k] * steps) / steps
        inside = masses[place[k]] if place[k] < levels else 0.0
        one, other = running[place[k]] + share * inside, beyond[place[k] + 1] + (1.0 - share) * inside
        if one >= enough and other >= enough:
            place[kept], theta[kept], left[kept], right[kept] = place[k], share, one, other
            kept += 1
    return kept


@compiled
def split(law, by_level, level, whole, left, share):
    """`questions.Cuts.split`: each symbol's integer weight and share for the left side, and both sides' masses."""
    room, shares = np.empty(law.size), by_level / whole
    for x in range(law.size):
        left[x], share[x] = by_level[level[x]], shares[level[x]]
    for x in range(law.size):
        room[x] = law[x] * share[x]
    mass = total(room, law.size)
    for x in range(law.size):
        room[x] = law[x] * (1.0 - share[x])
    return mass, total(room, law.size)
