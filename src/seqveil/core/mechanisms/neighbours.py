"""Cells of symbols that lie together, by halving: for blocks where a wrong symbol costs by its distance.

One source, plain or compiled (`compiled`), in the form that `closed_form.table` gives its cells: each symbol has a
class, which is its cell, and each class one entry, on its own label. Along every axis the symbols of a cell stand in
order, side by side, and a cut keeps that order: nothing is ever sorted again.
"""

from __future__ import annotations

import math

from seqveil.core.compiled import compiled, reals, wholes
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms.closed_form import Row

ROUNDING = 1e-6  # of the least mass: more than running sums can be off
ONE = float(DENOMINATOR)


@compiled
def near_table(
    belief: Row, points: Row, ranks: Row, cap: float, first: float, labels: Row, base: Row, classes: Row, masses: Row,
    owners: Row, places: Row, extras: Row,
) -> tuple[int, float]:  # fmt: skip
    """Cells of neighbours, each of at least `cap` of the belief, the likeliest first; how many, and the whole belief.

    `points` (d·n,) are the coordinates, axis by axis, and `ranks` (d·n,) the symbols in their order along each. With
    probability `first` any symbol passes for the likeliest label. Fills in what `closed_form.table` does.

    >>> labels, base, classes, masses, owners, places, extras = ([0] * 4 for _ in range(7))
    >>> made = labels, base, classes, masses, owners, places, extras
    >>> near_table([0.3, 0.3, 0.2, 0.2], [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3], 0.25, 0.0, *made)
    (3, 1.0)
    >>> classes, labels[:3], [round(mass, 9) for mass in masses[:3]]
    ([1, 2, 0, 0], [2, 0, 1], [0.4, 0.3, 0.3])
    """
    n, everything = len(belief), 0.0
    for x in range(n):
        everything += belief[x]
    order, spare, gone = wholes(len(points)), wholes(n), wholes(n)
    begins, ends = wholes(len(labels)), wholes(len(labels))
    for k in range(len(points)):
        order[k] = ranks[k]
    begins[0], ends[0], count, cell = 0, n, 1, 0
    while cell < count:
        kept = begins[cell]
        if count < len(labels):
            least = cap * everything * (1.0 + ROUNDING)
            kept = halve(belief, points, order, begins[cell], ends[cell], least, gone, spare)
        if kept == begins[cell]:
            cell += 1
        else:
            begins[count], ends[count], ends[cell] = kept, ends[cell], kept
            count += 1
    return name(
        belief, points, order, begins, ends, count, first, labels, base, classes, masses, owners, places, extras
    ), everything


@compiled
def halve(
    belief: Row, points: Row, order: Row, begin: int, end: int, least: float, gone: Row, spare: Row
) -> int:  # fmt: skip
    """Cut a cell across where it is widest, as evenly as both halves keep their mass, else across its next widest side.

    The cell is what stands in `order` from begin to end, along each axis. Returns where its second half begins now, or
    `begin` where no cut leaves both halves their mass.
    """
    n = len(belief)
    axes = len(points) // n
    widths, mass = reals(axes), 0.0
    for k in range(begin, end):
        mass += belief[order[k]]
    if mass < 2.0 * least:
        return begin
    for axis in range(axes):
        mean = 0.0
        for k in range(begin, end):
            x = order[k]
            mean += belief[x] * points[axis * n + x]
        mean /= mass
        widths[axis] = 0.0
        for k in range(begin, end):
            x = order[k]
            away = points[axis * n + x] - mean
            widths[axis] += belief[x] * away * away
    for _ in range(axes):
        widest = 0
        for axis in range(axes):
            if widths[axis] > widths[widest]:
                widest = axis
        widths[widest] = -1.0
        at = even_cut(belief, points, order, widest * n, begin, end, mass, least)
        if at > begin:
            part(order, n, axes, widest, begin, at, end, gone, spare)
            return at
    return begin


@compiled
def even_cut(
    belief: Row, points: Row, order: Row, axis: int, begin: int, end: int, mass: float, least: float
) -> int:  # fmt: skip
    """Where along an axis the cell is cut most evenly, between two places that differ; `begin` for nowhere."""
    below, best, at = 0.0, math.inf, begin
    for k in range(begin, end - 1):
        x, after = order[axis + k], order[axis + k + 1]
        below += belief[x]
        uneven = abs(below - mass / 2.0)
        apart = points[axis + after] > points[axis + x]
        if apart and below >= least and mass - below >= least and uneven < best:
            best, at = uneven, k + 1
    return at


@compiled
def part(order: Row, n: int, axes: int, widest: int, begin: int, at: int, end: int, gone: Row, spare: Row) -> None:
    """Put those behind the cut behind the others along every axis, both in the order that they had."""
    for k in range(begin, end):
        gone[order[widest * n + k]] = int(k >= at)
    for axis in range(axes):
        kept, moved = axis * n + begin, 0
        for k in range(axis * n + begin, axis * n + end):
            x = order[k]
            if gone[x]:
                spare[moved] = x
                moved += 1
            else:
                order[kept] = x
                kept += 1
        for k in range(moved):
            order[kept + k] = spare[k]


@compiled
def name(
    belief: Row, points: Row, order: Row, begins: Row, ends: Row, count: int, first: float, labels: Row, base: Row,
    classes: Row, masses: Row, owners: Row, places: Row, extras: Row,
) -> int:  # fmt: skip
    """Number the cells, the likeliest first, and say how many; the label of each is its symbol nearest to its mean."""
    shared = int(first * ONE)
    for cell in range(count):
        mass = 0.0
        for k in range(begins[cell], ends[cell]):
            mass += belief[order[k]]
        at = cell
        while at > 0 and masses[at - 1] < mass:
            masses[at], owners[at] = masses[at - 1], owners[at - 1]
            at -= 1
        masses[at], owners[at] = mass, cell
    for k in range(len(labels)):
        base[k] = shared if k == 0 else 0
    for k in range(count):
        cell = owners[k]
        labels[k] = nearest(belief, points, order, begins[cell], ends[cell], masses[k])
        for i in range(begins[cell], ends[cell]):
            classes[order[i]] = k
    for k in range(count):
        owners[k], places[k], extras[k] = k, k, DENOMINATOR - shared
    return count


@compiled
def nearest(belief: Row, points: Row, order: Row, begin: int, end: int, mass: float) -> int:
    """Of a cell the symbol nearest to its mean; of several the first."""
    n = len(belief)
    best, least = order[begin], math.inf
    for k in range(begin, end):
        best = min(best, order[k])
    if mass <= 0.0:
        return best
    axes = len(points) // n
    mean = reals(axes)
    for axis in range(axes):
        mean[axis] = 0.0
        for k in range(begin, end):
            mean[axis] += belief[order[k]] * points[axis * n + order[k]]
        mean[axis] /= mass
    for k in range(begin, end):
        far, x = 0.0, order[k]
        for axis in range(axes):
            away = points[axis * n + x] - mean[axis]
            far += away * away
        if far < least or (far == least and x < best):
            best, least = x, far
    return best
