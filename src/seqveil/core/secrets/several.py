"""The least error for several windows at once, and wrong symbols: a dual simplex method over the bounds that bind.

With q(z,y) for the mass of source z that is released as y, and a row of numbers α_i(z) for each bound,

    min Σ_z Σ_{y ≠ symbol of z} q(z,y)    such that    Σ_y q(z,y) = β(z),    Σ_z α_i(z) q(z,y) ≤ 0   for all y and i.

At first every source is released as it is: that costs nothing and breaks bounds. Then, step by step, the bound (y, i)
that is broken most, or the mass that is below zero, is put right at the least price, until nothing is amiss; then the
prices prove that no table costs less. Each source has one *key* label that takes what its other labels leave, so that
only these others and the bounds that hold exactly, as many of the one as of the other, make the matrix to invert.

*Alike.* Bounds of windows that lie far ahead differ by next to nothing. One that is the largest of several, number by
number, stands for them all where that takes next to nothing of the room that each leaves.

One source, compiled where numba is loaded and plain Python where not, the same numbers from both.
"""

from __future__ import annotations

from typing import Any

from seqveil.core.bulk import compiled, reals, wholes

STEPS = 40  # for each source and bound that binds: beyond, the program is left to another solver
BROKEN = 1e-14  # of all mass: what counts as broken
EXACT = 1e-15  # what a bound that holds exactly may be off
REFINED = 4  # times that masses are corrected by what they are off
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
    """Fill in q(z,y) (Z, n) of the least cost; False where it is given up.

    Parameters:
      mass, own: β(z) > 0 and the symbol of each source.
      rows: α_i(z), (I, Z), none of them much larger than 1, the mean of each at most 0.
    """
    most = 2 * (size + count)
    key, labels, sources, tight, bounds = wholes(size), wholes(most), wholes(most), wholes(most), wholes(most)
    inverse, held, moved, price, change = reals(most * most), reals(most), reals(size), reals(most), reals(most)
    sums, total, along = reals(n * count), reals(n), reals(most)
    costs, changes, used, reached, rates = (
        reals(n * size),
        reals(n * size),
        wholes(n),
        wholes(n * size),
        reals(n * size),
    )
    lefts, names, base, fresh = reals(n * size), wholes(n), reals(n * count), True
    basis = 0
    for z in range(size):
        key[z] = own[z]
    for _ in range(STEPS * (size + count)):
        if not _settled(
            mass, rows, n, size, count, key, labels, sources, tight, bounds, basis, inverse, most, held, moved, sums,
            total, price, base, fresh,
        ):  # fmt: skip
            return False
        fresh = False
        kind, who, bound, worst = 0, -1, -1, BROKEN
        for j in range(basis):
            if -held[j] > worst:
                kind, who, worst = 1, j, -held[j]
        for z in range(size):
            if -moved[z] > worst:
                kind, who, worst = 2, z, -moved[z]
        for k in range(n * count):
            if sums[k] > worst:
                kind, who, bound, worst = 3, k % n, k // n, sums[k]
        if kind == 0:
            return _written(n, size, key, labels, sources, basis, held, moved, table)
        if kind == 2:
            who = _rekeyed(who, key, labels, sources, basis, inverse, most, held)
            fresh = True
            if who < 0:
                return False
        for r in range(basis):
            price[r], change[r] = 0.0, inverse[who * most + r] if kind < 3 else 0.0
        for j in range(basis):
            z = sources[j]
            dearer = (0.0 if key[z] == own[z] else 1.0) - (0.0 if labels[j] == own[z] else 1.0)
            if dearer != 0.0:
                for r in range(basis):
                    price[r] += dearer * inverse[j * most + r]
            if kind == 3:
                number = _part(rows, size, bound, z, who, labels[j], key[z])
                if number != 0.0:
                    for r in range(basis):
                        change[r] -= number * inverse[j * most + r]
        for y in range(n):
            used[y] = 1 if kind == 3 and y == who else 0
        for r in range(basis):
            used[tight[r]] = 1
        priced = 0
        for y in range(n):
            names[priced] = y
            priced += used[y]
            for z in range(size if used[y] else 0):
                costs[y * size + z] = 0.0 if y == own[z] else 1.0
                changes[y * size + z] = rows[bound * size + z] if kind == 3 and y == who else 0.0
        for r in range(basis):
            at, row, by, more = tight[r] * size, bounds[r] * size, price[r], change[r]
            for z in range(size):
                costs[at + z] += by * rows[row + z]
                changes[at + z] += more * rows[row + z]
        enters, source = _entering(
            n, size, own, key, used, names, priced, total, costs, changes, price, change, basis, reached, rates, lefts
        )
        if enters < 0 or (kind == 3 and source >= 0 and basis >= most - 1):
            return False
        basis = _pivoted(
            rows, size, kind, who, bound, enters, source, key, labels, sources, tight, bounds, basis, inverse, most,
            change, along,
        )  # fmt: skip
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
def _settled(
    mass: Any, rows: Any, n: int, size: int, count: int, key: Any, labels: Any, sources: Any, tight: Any, bounds: Any,
    basis: int, inverse: Any, most: int, held: Any, moved: Any, sums: Any, total: Any, off: Any, base: Any, fresh: bool,
) -> bool:  # fmt: skip
    """The masses of the basis, `held` of its labels and `moved` of the keys, and the bounds' sums; False where the
    inverse has drifted so far that those that hold exactly do not. `base` are the sums with all mass at the keys, to
    be made anew where these have changed (`fresh`)."""
    for k in range(n * count):
        base[k] = 0.0 if fresh else base[k]
    for i in range(count if fresh else 0):
        for z in range(size):
            base[i * n + key[z]] += mass[z] * rows[i * size + z]
    for k in range(n * count):
        sums[k] = base[k]
    for y in range(n):
        total[y] = 0.0
    for z in range(size):
        moved[z] = mass[z]
    for j in range(basis):
        held[j] = 0.0
    for attempt in range(REFINED):
        amiss = 0.0
        for r in range(basis):
            amiss = max(amiss, abs(sums[bounds[r] * n + tight[r]]))
        if amiss <= EXACT:
            break
        if attempt == REFINED - 1:
            return False
        for r in range(basis):
            off[r] = sums[bounds[r] * n + tight[r]]
        for j in range(basis):
            more, z = 0.0, sources[j]
            for r in range(basis):
                more -= inverse[j * most + r] * off[r]
            held[j] += more
            for i in range(count):
                added = more * rows[i * size + z]
                sums[i * n + labels[j]] += added
                sums[i * n + key[z]] -= added
    for j in range(basis):
        moved[sources[j]] -= held[j]
        total[labels[j]] += held[j]
    for z in range(size):
        total[key[z]] += moved[z]
    return True


@compiled
def _rekeyed(z: int, key: Any, labels: Any, sources: Any, basis: int, inverse: Any, most: int, held: Any) -> int:
    """Make the label with most of a source its key; the place of what was the key, or -1."""
    best = -1
    for j in range(basis):
        if sources[j] == z and (best < 0 or held[j] > held[best]):
            best = j
    if best < 0:
        return -1
    key[z], labels[best] = labels[best], key[z]
    for r in range(basis):
        number = 0.0
        for j in range(basis):
            if sources[j] == z:
                number += inverse[j * most + r]
        inverse[best * most + r] = 0.0 - number
    return best


@compiled
def _entering(
    n: int, size: int, own: Any, key: Any, used: Any, names: Any, priced: int, total: Any, costs: Any, changes: Any,
    price: Any, change: Any, basis: int, reached: Any, rates: Any, lefts: Any,
) -> tuple[int, int]:  # fmt: skip
    """What the step ends with: a label and a source that goes there from now on, or a bound that costs nothing any more
    and no source (-1); (-1, -1): none. Of those that the step reaches first the one that it reaches fastest.

    Labels whose bounds cost nothing are alike, so that of these only the likeliest is looked at. `costs` and `changes`
    (n, Z) are what each source costs at the labels whose bounds do, and how fast that grows.
    """
    least, spare, count = 1e300, -1, 0
    for y in range(n):
        if not used[y] and (spare < 0 or total[y] > total[spare]):
            spare = y
    for r in range(basis):
        if -change[r] > PIVOT and max(0.0, price[r]) + LOOSE < -change[r] * least:
            least = (max(0.0, price[r]) + LOOSE) / -change[r]
    for z in range(size):
        k, here, now = key[z], 0.0 if key[z] == own[z] else 1.0, 0.0
        if used[k]:
            here, now = costs[k * size + z], changes[k * size + z]
        for at in range(priced + 2):
            if at < priced:
                y = names[at]
                rate, left = now - changes[y * size + z], max(0.0, costs[y * size + z] - here)
            else:
                y = own[z] if at == priced else spare
                if y < 0 or used[y] or (at > priced and y == own[z]):
                    continue
                rate, left = now, max(0.0, (0.0 if at == priced else 1.0) - here)
            if rate > PIVOT and left <= rate * least and y != k:
                reached[count], rates[count], lefts[count] = y * size + z, rate, left
                count += 1
                if left + LOOSE < rate * least:
                    least = (left + LOOSE) / rate
    enters, source, fastest = -1, -1, 0.0
    for r in range(basis):
        if -change[r] > PIVOT and max(0.0, price[r]) <= -change[r] * least and -change[r] > fastest:
            enters, fastest = r, -change[r]
    for c in range(count):
        y, z, rate = reached[c] // size, reached[c] % size, rates[c]
        better = rate > fastest or (rate == fastest and source >= 0 and total[y] > total[enters])
        if better and lefts[c] <= rate * least:
            enters, source, fastest = y, z, rate
    return enters, source


@compiled
def _pivoted(
    rows: Any, size: int, kind: int, who: int, bound: int, enters: int, source: int, key: Any, labels: Any,
    sources: Any, tight: Any, bounds: Any, basis: int, inverse: Any, most: int, change: Any, along: Any,
) -> int:  # fmt: skip
    """Change the basis and its inverse by one step; how large the basis is then.

    With a bound (who, bound) that holds exactly from now on (`kind` 3) the matrix gets a row, else it loses the column
    of `who`; with a source it gets a column, else it loses the row of the bound `enters`.
    """
    last = basis - 1
    if source >= 0:
        for j in range(basis):
            along[j] = 0.0
        for r in range(basis):
            number = _part(rows, size, bounds[r], source, tight[r], enters, key[source])
            if number != 0.0:
                for j in range(basis):
                    along[j] += number * inverse[j * most + r]
    if kind == 3 and source >= 0:
        divisor = _part(rows, size, bound, source, who, enters, key[source])
        for r in range(basis):
            divisor += change[r] * _part(rows, size, bounds[r], source, tight[r], enters, key[source])
        for j in range(basis):
            share = along[j] / divisor
            for r in range(basis):
                inverse[j * most + r] -= share * change[r]
            inverse[j * most + basis] = 0.0 - share
        for r in range(basis):
            inverse[basis * most + r] = change[r] / divisor
        inverse[basis * most + basis] = 1.0 / divisor
        labels[basis], sources[basis], tight[basis], bounds[basis] = enters, source, who, bound
        return basis + 1
    if kind == 3:
        for j in range(basis):
            share = inverse[j * most + enters] / change[enters]
            for r in range(basis):
                inverse[j * most + r] -= share * change[r]
            inverse[j * most + enters] = 0.0 - share
        tight[enters], bounds[enters] = who, bound
        return basis
    if source >= 0:
        divisor = along[who]
        for r in range(basis):
            inverse[who * most + r] /= divisor
        for j in range(basis):
            if j != who:
                for r in range(basis):
                    inverse[j * most + r] -= along[j] * inverse[who * most + r]
        labels[who], sources[who] = enters, source
        return basis
    divisor = inverse[who * most + enters]
    for j in range(basis):
        if j != who:
            share = inverse[j * most + enters] / divisor
            for r in range(basis):
                inverse[j * most + r] -= share * inverse[who * most + r]
    for r in range(basis):
        inverse[who * most + r] = inverse[last * most + r]
    for j in range(last):
        inverse[j * most + enters] = inverse[j * most + last]
    labels[who], sources[who] = labels[last], sources[last]
    tight[enters], bounds[enters] = tight[last], bounds[last]
    return last


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
