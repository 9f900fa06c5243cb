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

from seqveil.core.bulk import compiled, reals, wholes

STEPS = 100  # for each source: beyond, the program is left to another solver
MOST = 8  # bounds that hold exactly, for each source, likewise
BROKEN = 1e-14  # of all mass: what counts as broken
EXACT = 5e-15  # what a bound that holds exactly may be off
REFINED = 4  # times in a row that masses are corrected by what they are off
PIVOT = 1e-8  # numbers below which nothing is divided by
LOOSE = 1e-7  # of a symbol: by how much a step may overshoot a price to avoid a small divisor
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
            room[i] -= mass[z] * rows[i * size + z]
    for i in range(count):
        chosen, best, has = -1, -1.0, room[i]
        for k in range(max(0, kept - LATEST), kept):
            least = share * max(has, room[k])
            if has > 0.0 and least <= min(has, room[k]):
                left = 0.0
                for z in range(size):
                    left -= mass[z] * max(rows[i * size + z], rows[k * size + z])
                if left >= least and left > best:
                    chosen, best = k, left
        if chosen < 0:
            for z in range(size):
                rows[kept * size + z] = rows[i * size + z]
            room[kept] = has
            kept += 1
        else:
            room[chosen] = max(room[chosen], has)
            for z in range(size):
                rows[chosen * size + z] = max(rows[chosen * size + z], rows[i * size + z])
    return kept


@compiled
def least_for_all(mass: Any, own: Any, rows: Any, n: int, size: int, count: int, table: Any) -> bool:
    """Fill in q(z,y) (Z, n) of the least cost; False where it is given up. The rows come out in another order.

    Parameters:
      mass, own: β(z) > 0 and the symbol of each source.
      rows: α_i(z), (I, Z), none of them much larger than 1, the mean of each at most 0.
    """
    most = MOST * size + 2
    key, labels, sources, tight, bounds = wholes(size), wholes(most), wholes(most), wholes(most), wholes(most)
    inverse, held, price, along = reals(most * most), reals(most), reals(most), reals(most)
    moved, total, sums = reals(size), reals(n), reals(n * count)
    costs, changes, used, names = reals(n * size), reals(n * size), wholes(n), wholes(n + 2)
    reached, rates, lefts = wholes((n + 2) * size), reals((n + 2) * size), reals((n + 2) * size)
    basis, asked, refined = 0, 0, 0
    for z in range(size):
        key[z] = own[z]
        for y in range(n):
            costs[y * size + z] = 0.0 if y == own[z] else 1.0
    for _ in range(STEPS * size):
        for z in range(size):
            moved[z] = mass[z]
        for j in range(basis):
            moved[sources[j]] -= held[j]
        _sum_up(rows, n, size, 0, asked, key, labels, sources, basis, held, moved, sums)
        if refined < REFINED and _corrected(n, tight, bounds, basis, inverse, most, held, sums):
            refined += 1
            continue
        refined = 0
        for r in range(basis):  # what they are off by now is rounding
            sums[bounds[r] * n + tight[r]] = 0.0
        kind, who, bound, worst = 0, -1, -1, BROKEN
        for j in range(basis):
            if -held[j] > worst:
                kind, who, worst = 1, j, -held[j]
        for z in range(size):
            if -moved[z] > worst:
                kind, who, worst = 2, z, -moved[z]
        for k in range(n * asked):
            if sums[k] > worst:
                kind, who, bound, worst = 3, k % n, k // n, sums[k]
        if kind == 0:
            _sum_up(rows, n, size, asked, count, key, labels, sources, basis, held, moved, sums)
            more = _asked_for(rows, n, size, asked, count, sums)
            if more == asked:
                return _written(n, size, key, labels, sources, basis, held, moved, table)
            asked = more
            continue
        if kind == 2:
            who = _rekeyed(who, key, labels, sources, basis, inverse, most, held, moved)
        elif kind == 3 and basis < most:
            basis = _joined(
                rows, n, size, who, bound, key, labels, sources, tight, bounds, basis, inverse, most, held, price, sums
            )
            who = basis - 1
        elif kind == 3:
            return False
        for y in range(n):
            used[y], total[y] = 0, 0.0
        for z in range(size):
            total[key[z]] += moved[z]
        for j in range(basis):
            total[labels[j]] += held[j]
            used[tight[j]] = 1
        priced = 0
        for y in range(n):
            names[priced] = y
            priced += used[y]
            for z in range(size if used[y] else 0):
                changes[y * size + z] = 0.0
        for r in range(basis):
            at, row, more = tight[r] * size, bounds[r] * size, inverse[who * most + r]
            for z in range(size):
                changes[at + z] += more * rows[row + z]
        enters, source, length = _entering(
            n, size, own, key, used, names, priced, total, costs, changes, price, inverse, who * most, basis, reached,
            rates, lefts,
        )  # fmt: skip
        if enters < 0:
            return False
        for k in range(priced):
            at = names[k] * size
            for z in range(size):
                costs[at + z] += length * changes[at + z]
        for r in range(basis):
            price[r] += length * inverse[who * most + r]
        for j in range(basis):
            along[j] = inverse[j * most + enters] if source < 0 else 0.0
        for r in range(basis if source >= 0 else 0):
            number = _part(rows, size, bounds[r], source, tight[r], enters, key[source])
            if number != 0.0:
                for j in range(basis):
                    along[j] += number * inverse[j * most + r]
        _pivot(who, along, basis, inverse, most, held)
        if source >= 0:
            labels[who], sources[who] = enters, source
        else:  # its bound holds no more
            basis -= 1
            _left_out(who, enters, labels, sources, tight, bounds, basis, inverse, most, held, price)
    return False


@compiled
def _part(rows: Any, size: int, bound: int, z: int, y: int, label: int, key: int) -> float:
    """What a unit of mass of a source adds to a bound of label y where it goes to a label and not to its key."""
    number = 0.0
    if label == y:
        number += rows[bound * size + z]
    if key == y:
        number -= rows[bound * size + z]
    return number


@compiled
def _sum_up(
    rows: Any, n: int, size: int, begin: int, end: int, key: Any, labels: Any, sources: Any, basis: int, held: Any,
    moved: Any, sums: Any,
) -> None:  # fmt: skip
    """The sums of some of the bounds for all labels."""
    for i in range(begin, end):
        at, row = i * n, i * size
        for y in range(n):
            sums[at + y] = 0.0
        for z in range(size):
            sums[at + key[z]] += moved[z] * rows[row + z]
        for j in range(basis):
            sums[at + labels[j]] += held[j] * rows[row + sources[j]]


@compiled
def _corrected(n: int, tight: Any, bounds: Any, basis: int, inverse: Any, most: int, held: Any, sums: Any) -> bool:
    """Whether bounds that hold exactly did not; then the masses are corrected by what they were off."""
    amiss = 0.0
    for r in range(basis):
        amiss = max(amiss, abs(sums[bounds[r] * n + tight[r]]))
    for j in range(basis if amiss > EXACT else 0):
        for r in range(basis):
            held[j] -= inverse[j * most + r] * sums[bounds[r] * n + tight[r]]
    return amiss > EXACT


@compiled
def _asked_for(rows: Any, n: int, size: int, asked: int, count: int, sums: Any) -> int:
    """Put the bound that each label breaks most after those that are asked for; how many these are then."""
    for y in range(n):
        worst, chosen = BROKEN, -1
        for i in range(count):
            if sums[i * n + y] > worst:
                worst, chosen = sums[i * n + y], i
        if chosen >= asked:
            for z in range(size):
                one, two = chosen * size + z, asked * size + z
                rows[one], rows[two] = rows[two], rows[one]
            for k in range(n):
                one, two = chosen * n + k, asked * n + k
                sums[one], sums[two] = sums[two], sums[one]
            asked += 1
    return asked


@compiled
def _rekeyed(
    z: int, key: Any, labels: Any, sources: Any, basis: int, inverse: Any, most: int, held: Any, moved: Any
) -> int:
    """Make the label with most of a source its key; the place of what was the key."""
    best = -1
    for j in range(basis):
        if sources[j] == z and (best < 0 or held[j] > held[best]):
            best = j
    for r in range(basis):
        number = 0.0
        for j in range(basis):
            if sources[j] == z:
                number += inverse[j * most + r]
        inverse[best * most + r] = 0.0 - number
    key[z], labels[best] = labels[best], key[z]
    moved[z], held[best] = held[best], moved[z]
    return best


@compiled
def _joined(
    rows: Any, n: int, size: int, y: int, bound: int, key: Any, labels: Any, sources: Any, tight: Any, bounds: Any,
    basis: int, inverse: Any, most: int, held: Any, price: Any, sums: Any,
) -> int:  # fmt: skip
    """Take a broken bound into the matrix, with what it lacks as one more mass, below zero; how large it is then."""
    for r in range(basis + 1):
        inverse[basis * most + r], inverse[r * most + basis] = 0.0, 0.0
    for j in range(basis):
        number = _part(rows, size, bound, sources[j], y, labels[j], key[sources[j]])
        if number != 0.0:
            for r in range(basis):
                inverse[basis * most + r] -= number * inverse[j * most + r]
    inverse[basis * most + basis] = 1.0
    labels[basis], sources[basis], tight[basis], bounds[basis] = y, -1, y, bound
    held[basis], price[basis] = 0.0 - sums[bound * n + y], 0.0
    return basis + 1


@compiled
def _entering(
    n: int, size: int, own: Any, key: Any, used: Any, names: Any, priced: int, total: Any, costs: Any, changes: Any,
    price: Any, inverse: Any, row: int, basis: int, reached: Any, rates: Any, lefts: Any,
) -> tuple[int, int, float]:  # fmt: skip
    """What the step ends with, and how long it is: a label and a source that goes there from now on, or a bound that
    costs nothing any more and no source (-1); (-1, -1): none. Of those that the step reaches first the one that it
    reaches fastest.

    Labels whose bounds cost nothing are alike, so that of these only the likeliest is looked at. `costs` and `changes`
    (n, Z) are what each source costs at each label, and how fast that grows.
    """
    least, spare, count = 1e300, -1, 0
    for y in range(n):
        if not used[y] and (spare < 0 or total[y] > total[spare]):
            spare = y
    for r in range(basis):
        rate = 0.0 - inverse[row + r]
        if rate > PIVOT and max(0.0, price[r]) + LOOSE < rate * least:
            least = (max(0.0, price[r]) + LOOSE) / rate
    names[priced] = spare
    for z in range(size):
        at = key[z] * size + z
        now, here = changes[at] if used[key[z]] else 0.0, costs[at]
        names[priced + 1] = own[z]
        for k in range(priced + 2):
            y = names[k]
            if y >= 0 and y != key[z]:
                rate = now - changes[y * size + z] if used[y] else now
                if rate > PIVOT:
                    left = max(0.0, costs[y * size + z] - here)
                    if left <= rate * least:
                        reached[count], rates[count], lefts[count] = y * size + z, rate, left
                        count += 1
                        if left + LOOSE < rate * least:
                            least = (left + LOOSE) / rate
    enters, source, fastest, length = -1, -1, 0.0, 0.0
    for r in range(basis):
        rate = 0.0 - inverse[row + r]
        if rate > PIVOT and max(0.0, price[r]) <= rate * least and rate > fastest:
            enters, fastest, length = r, rate, max(0.0, price[r]) / rate
    for c in range(count):
        y, z, rate = reached[c] // size, reached[c] % size, rates[c]
        better = rate > fastest or (rate == fastest and source >= 0 and total[y] > total[enters])
        if better and lefts[c] <= rate * least:
            enters, source, fastest, length = y, z, rate, lefts[c] / rate
    return enters, source, length


@compiled
def _pivot(who: int, along: Any, basis: int, inverse: Any, most: int, held: Any) -> None:
    """Change the inverse and the masses where one of these gives way to another, on which they depend by `along`."""
    divisor = along[who]
    held[who] /= divisor
    for r in range(basis):
        inverse[who * most + r] /= divisor
    for j in range(basis):
        if j != who:
            held[j] -= along[j] * held[who]
            for r in range(basis):
                inverse[j * most + r] -= along[j] * inverse[who * most + r]


@compiled
def _left_out(
    who: int, row: int, labels: Any, sources: Any, tight: Any, bounds: Any, last: int, inverse: Any, most: int,
    held: Any, price: Any,
) -> None:  # fmt: skip
    """Take a mass and a bound out of the matrix: the last ones come to their places."""
    labels[who], sources[who], held[who] = labels[last], sources[last], held[last]
    tight[row], bounds[row], price[row] = tight[last], bounds[last], price[last]
    for r in range(last + 1):
        inverse[who * most + r] = inverse[last * most + r]
    for j in range(last):
        inverse[j * most + row] = inverse[j * most + last]


@compiled
def _written(
    n: int, size: int, key: Any, labels: Any, sources: Any, basis: int, held: Any, moved: Any, table: Any
) -> bool:
    """Fill in the masses of the basis."""
    for k in range(n * size):
        table[k] = 0.0
    for z in range(size):
        table[z * n + key[z]] = max(0.0, moved[z])
    for j in range(basis):
        table[sources[j] * n + labels[j]] += max(0.0, held[j])
    return True
