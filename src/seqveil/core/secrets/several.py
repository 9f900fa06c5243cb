"""The least error for several windows at once, and wrong symbols: a dual simplex method over the bounds that bind.

With q(z,y) for the mass of source z that is released as y, and a row of numbers α_i(z) for each bound,

    min Σ_z Σ_{y ≠ symbol of z} q(z,y)    such that    Σ_y q(z,y) = β(z),    Σ_z α_i(z) q(z,y) ≤ 0   for all y and i.

At first every source is released as it is: that costs nothing and breaks bounds. Then, step by step, the bound (y, i)
that is broken most, or the mass that is below zero, is put right at the least price, until nothing is amiss; then the
prices prove that no table costs less. Each source has one *key* label that takes what its other labels leave, so that
only these others and the bounds that hold exactly, as many of the one as of the other, make the matrix to invert.

*Alike.* Bounds of windows that lie far ahead differ by next to nothing. One that is the largest of several, number by
number, stands for them all where that takes next to nothing of the room that each leaves; what it takes is left for
later events. Of the others most never bind, so the steps look at those alone that were broken once.

One source, compiled where numba is loaded and plain Python where not, the same numbers from both.
"""

from __future__ import annotations

from typing import Any

from seqveil.core.bulk import compiled, grid, reals, wholes

STEPS = 100  # for each source: beyond, the program is left to another solver
MOST = 8  # bounds that hold exactly, for each source, likewise
BROKEN = 1e-14  # of all mass: what counts as broken
EXACT = 5e-15  # what a bound that holds exactly may be off
REFINED = 4  # times in a row that masses are corrected by what they are off
PIVOT = 1e-8  # numbers below which nothing is divided by
LOOSE = 1e-7  # of a symbol: by how much a step may overshoot a price to avoid a small divisor
FAR = 1e300
FEW = 8  # bounds that are not made fewer
ALIKE = 0.0025  # share of its room, for each bound there is, that a bound may lose to one that stands for several
MOST_ALIKE = 0.3  # and the most that it may lose
LATEST = 12  # of the bounds left with which one more is compared


@compiled
def fewer(mass: Any, rows: Any, size: int, count: int) -> int:
    """Join rows (I, Z) that are alike, in place; how many are left."""
    if count <= FEW:
        return count
    room, kept, share = reals(count), 0, 1.0 - min(MOST_ALIKE, ALIKE * count)
    for i in range(count):
        room[i] = 0.0
        for z in range(size):
            room[i] -= mass[z] * rows[i, z]
    for i in range(count):
        chosen, best, has = -1, -1.0, room[i]
        for k in range(max(0, kept - LATEST), kept):
            least = share * max(has, room[k])
            if has > 0.0 and least <= min(has, room[k]):
                left = 0.0
                for z in range(size):
                    left -= mass[z] * max(rows[i, z], rows[k, z])
                if left >= least and left > best:
                    chosen, best = k, left
        for z in range(size):
            rows[kept if chosen < 0 else chosen, z] = rows[i, z] if chosen < 0 else max(rows[chosen, z], rows[i, z])
        if chosen < 0:
            room[kept] = has
            kept += 1
        else:
            room[chosen] = max(room[chosen], has)
    return kept


@compiled
def least_for_all(mass: Any, own: Any, rows: Any, n: int, size: int, count: int, table: Any) -> bool:
    """Fill in q(z,y) (Z, n) of the least cost; False where it is given up. The rows come out in another order.

    Parameters:
      mass, own: β(z) > 0 and the symbol of each source.
      rows: α_i(z), (I, Z), none of them much larger than 1, the mean of each at most 0.
    """
    most = MOST * size + 2
    key, moved, total, along, inverse = wholes(size), reals(size), reals(n), reals(most), grid(most, most)
    others = wholes(most), wholes(most), reals(most)  # labels, sources and masses, besides those of keys
    exact = wholes(most), wholes(most), reals(most)  # labels, bounds that hold exactly there, and prices
    sums, across, costs, changes = grid(n, count), grid(size, count), grid(n, size), grid(n, size)
    room, prices = (reals(size), reals(size), reals(size), reals(size), wholes(size)), (costs, changes)
    vertex = key, moved, others, exact, inverse
    basis, asked, refined = 0, 0, 0
    for z in range(size):
        key[z] = own[z]
        for y in range(n):
            costs[y, z] = 0.0 if y == own[z] else 1.0
        for i in range(count):
            across[z, i] = rows[i, z]
    for _ in range(STEPS * size):
        _sum_up(mass, across, n, size, asked, vertex, basis, sums)
        if refined < REFINED and _corrected(vertex, basis, sums):
            refined += 1
            continue
        refined = 0
        kind, who, bound = _worst(n, size, asked, vertex, basis, sums)
        if kind == 0:
            _sum_up(mass, across, n, size, count, vertex, basis, sums)
            more = _asked_for(rows, across, n, size, asked, count, sums)
            if more == asked:
                return _written(n, size, vertex, basis, table)
            asked = more
            continue
        if kind == 2:
            who = _rekeyed(who, vertex, basis)
        elif kind == 3:
            if basis == most:
                return False
            _joined(rows, who, bound, vertex, basis, sums)
            who, basis = basis, basis + 1
        _directed(rows, n, size, who, vertex, basis, total, changes)
        enters, source, length = _entering(n, size, who, vertex, basis, total, prices, room)
        if enters < 0:
            return False
        for y in range(n):
            for z in range(size):
                costs[y, z] += length * changes[y, z]
        for r in range(basis):
            exact[2][r] += length * inverse[who, r]
        _depending(rows, enters, source, vertex, basis, along)
        _pivot(who, along, basis, inverse, others[2])
        if source >= 0:
            others[0][who], others[1][who] = enters, source
        else:  # its bound holds exactly no more
            basis -= 1
            _left_out(who, enters, vertex, basis)
    return False


@compiled
def _part(rows: Any, bound: int, z: int, y: int, label: int, key: int) -> float:
    """What a unit of mass of a source adds to a bound of label y where it goes to a label and not to its key."""
    return (rows[bound, z] if label == y else 0.0) - (rows[bound, z] if key == y else 0.0)


@compiled
def _sum_up(mass: Any, across: Any, n: int, size: int, asked: int, vertex: Any, basis: int, sums: Any) -> None:
    """What is left of each source to its key, and the sums (n, I) of the bounds that are asked for."""
    key, moved, (labels, sources, held), _, _ = vertex
    for z in range(size):
        moved[z] = mass[z]
    for y in range(n):
        for i in range(asked):
            sums[y, i] = 0.0
    for j in range(basis):
        moved[sources[j]] -= held[j]
        y, z, some = labels[j], sources[j], held[j]
        for i in range(asked):
            sums[y, i] += some * across[z, i]
    for z in range(size):
        y, some = key[z], moved[z]
        for i in range(asked):
            sums[y, i] += some * across[z, i]


@compiled
def _corrected(vertex: Any, basis: int, sums: Any) -> bool:
    """Whether bounds that hold exactly did not; then the masses are corrected by what they were off. What they are off
    at last is rounding."""
    _, _, (_, _, held), (tight, bounds, _), inverse = vertex
    amiss = 0.0
    for r in range(basis):
        amiss = max(amiss, abs(sums[tight[r], bounds[r]]))
    for j in range(basis if amiss > EXACT else 0):
        for r in range(basis):
            held[j] -= inverse[j, r] * sums[tight[r], bounds[r]]
    return amiss > EXACT


@compiled
def _worst(n: int, size: int, asked: int, vertex: Any, basis: int, sums: Any) -> tuple[int, int, int]:
    """What is most amiss: a mass below zero (1), what is left to a key (2), a bound of a label (3), nothing (0)."""
    _, moved, (_, _, held), (tight, bounds, _), _ = vertex
    kind, who, bound, worst = 0, -1, -1, BROKEN
    for r in range(basis):
        sums[tight[r], bounds[r]] = 0.0
    for j in range(basis):
        if -held[j] > worst:
            kind, who, worst = 1, j, -held[j]
    for z in range(size):
        if -moved[z] > worst:
            kind, who, worst = 2, z, -moved[z]
    for y in range(n):
        for i in range(asked):
            if sums[y, i] > worst:
                kind, who, bound, worst = 3, y, i, sums[y, i]
    return kind, who, bound


@compiled
def _asked_for(rows: Any, across: Any, n: int, size: int, asked: int, count: int, sums: Any) -> int:
    """Put the bound that each label breaks most after those that are asked for; how many these are then."""
    for y in range(n):
        worst, chosen = BROKEN, -1
        for i in range(count):
            if sums[y, i] > worst:
                worst, chosen = sums[y, i], i
        if chosen >= asked:
            for z in range(size):
                rows[chosen, z], rows[asked, z] = rows[asked, z], rows[chosen, z]
                across[z, chosen], across[z, asked] = across[z, asked], across[z, chosen]
            for k in range(n):
                sums[k, chosen], sums[k, asked] = sums[k, asked], sums[k, chosen]
            asked += 1
    return asked


@compiled
def _rekeyed(z: int, vertex: Any, basis: int) -> int:
    """Make the label with most of a source its key; the place of what was the key."""
    key, moved, (labels, sources, held), _, inverse = vertex
    best = -1
    for j in range(basis):
        if sources[j] == z and (best < 0 or held[j] > held[best]):
            best = j
    for j in range(basis):
        if sources[j] == z and j != best:
            for r in range(basis):
                inverse[best, r] += inverse[j, r]
    for r in range(basis):
        inverse[best, r] = 0.0 - inverse[best, r]
    key[z], labels[best] = labels[best], key[z]
    moved[z], held[best] = held[best], moved[z]
    return best


@compiled
def _joined(rows: Any, y: int, bound: int, vertex: Any, basis: int, sums: Any) -> None:
    """Take a broken bound into the matrix, with what it lacks as one more mass, below zero."""
    key, _, (labels, sources, held), (tight, bounds, price), inverse = vertex
    for r in range(basis + 1):
        inverse[basis, r], inverse[r, basis] = 0.0, 0.0
    for j in range(basis):
        number = _part(rows, bound, sources[j], y, labels[j], key[sources[j]])
        if number != 0.0:
            for r in range(basis):
                inverse[basis, r] -= number * inverse[j, r]
    inverse[basis, basis] = 1.0
    labels[basis], sources[basis], tight[basis], bounds[basis] = y, -1, y, bound
    held[basis], price[basis] = 0.0 - sums[y, bound], 0.0


@compiled
def _directed(rows: Any, n: int, size: int, who: int, vertex: Any, basis: int, total: Any, changes: Any) -> None:
    """How fast the cost of each source at each label grows (n, Z) as a mass gets dearer; and how much each label
    gets."""
    key, moved, (labels, _, held), (tight, bounds, _), inverse = vertex
    for y in range(n):
        total[y] = 0.0
        for z in range(size):
            changes[y, z] = 0.0
    for z in range(size):
        total[key[z]] += moved[z]
    for j in range(basis):
        total[labels[j]] += held[j]
    for r in range(basis):
        y, i, more = tight[r], bounds[r], inverse[who, r]
        for z in range(size):
            changes[y, z] += more * rows[i, z]


@compiled
def _entering(
    n: int, size: int, who: int, vertex: Any, basis: int, total: Any, prices: Any, room: Any
) -> tuple[int, int, float]:
    """What the step ends with, and how long it is: a label and a source that goes there from now on, or a bound that
    costs nothing any more and no source (-1); (-1, -1): none. Of those that the step reaches first the one that it
    reaches fastest; labels are looked at from the likeliest one on, since many are alike."""
    (costs, changes), (now, here, reached, fastest, which) = prices, room
    key, _, _, (_, _, price), inverse = vertex
    least, first = FAR, 0
    for y in range(n):
        first = y if total[y] > total[first] else first
    for r in range(basis):
        if -inverse[who, r] > PIVOT:
            least = min(least, (max(0.0, price[r]) + LOOSE) / -inverse[who, r])
    for z in range(size):
        now[z], here[z] = changes[key[z], z], costs[key[z], z]
        reached[z], fastest[z], which[z] = FAR, 0.0, -1
    for y in range(n):
        _reached(size, y, prices, room)
    for z in range(size):
        least = min(least, reached[z])
    for k in range(n):
        _fastest(size, (first + k) % n, least, prices, room)
    enters, source, best, length = -1, -1, 0.0, 0.0
    for r in range(basis):
        rate = 0.0 - inverse[who, r]
        if rate > PIVOT and max(0.0, price[r]) <= rate * least and rate > best:
            enters, best, length = r, rate, max(0.0, price[r]) / rate
    for z in range(size):
        if fastest[z] > best:
            enters, source, best = which[z], z, fastest[z]
    if source >= 0:
        length = max(0.0, costs[enters, source] - here[source]) / best
    return enters, source, length


@compiled
def _reached(size: int, y: int, prices: Any, room: Any) -> None:
    """How far the step may go until a source costs as little at a label as at its key, where that is less."""
    (costs, changes), (now, here, reached, _, _) = prices, room
    for z in range(size):
        rate, left = now[z] - changes[y, z], costs[y, z] - here[z]
        left = (left if left > 0.0 else 0.0) + LOOSE
        length = left / rate if rate > PIVOT else FAR
        reached[z] = length if length < reached[z] else reached[z]


@compiled
def _fastest(size: int, y: int, least: float, prices: Any, room: Any) -> None:
    """Which label each source comes to within the step, where it does so faster than to others."""
    (costs, changes), (now, here, _, fastest, which) = prices, room
    for z in range(size):
        rate, left = now[z] - changes[y, z], costs[y, z] - here[z]
        best, label = fastest[z], which[z]
        better = (rate > PIVOT) & (rate > best) & (left <= rate * least)
        fastest[z] = rate if better else best
        which[z] = y if better else label


@compiled
def _depending(rows: Any, enters: int, source: int, vertex: Any, basis: int, along: Any) -> None:
    """How the masses depend on what enters."""
    key, _, _, (tight, bounds, _), inverse = vertex
    for j in range(basis):
        along[j] = inverse[j, enters] if source < 0 else 0.0
    for r in range(basis if source >= 0 else 0):
        number = _part(rows, bounds[r], source, tight[r], enters, key[source])
        if number != 0.0:
            for j in range(basis):
                along[j] += number * inverse[j, r]


@compiled
def _pivot(who: int, along: Any, basis: int, inverse: Any, held: Any) -> None:
    """Change the inverse and the masses where one of these gives way to another, on which they depend by `along`."""
    divisor, last = along[who], reals(basis)
    held[who] /= divisor
    for r in range(basis):
        last[r] = inverse[who, r] / divisor
        inverse[who, r] = last[r]
    for j in range(basis):
        if j != who and along[j] != 0.0:
            some = along[j]
            held[j] -= some * held[who]
            for r in range(basis):
                inverse[j, r] -= some * last[r]


@compiled
def _left_out(who: int, row: int, vertex: Any, last: int) -> None:
    """Take a mass and a bound out of the matrix: the last ones come to their places."""
    _, _, (labels, sources, held), (tight, bounds, price), inverse = vertex
    labels[who], sources[who], held[who] = labels[last], sources[last], held[last]
    tight[row], bounds[row], price[row] = tight[last], bounds[last], price[last]
    for r in range(last + 1):
        inverse[who, r] = inverse[last, r]
    for j in range(last):
        inverse[j, row] = inverse[j, last]


@compiled
def _written(n: int, size: int, vertex: Any, basis: int, table: Any) -> bool:
    """Fill in the masses of a vertex."""
    key, moved, (labels, sources, held), _, _ = vertex
    for z in range(size):
        for y in range(n):
            table[z, y] = max(0.0, moved[z]) if y == key[z] else 0.0
    for j in range(basis):
        table[sources[j], labels[j]] += max(0.0, held[j])
    return True
