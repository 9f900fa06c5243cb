"""Cells of symbols that lie together: for blocks where a wrong symbol costs by its distance.

A public line visits every symbol once and mostly goes from neighbour to neighbour. A cell is a piece of the line, as
short as its mass allows, in the form that `closed_form.table` gives its cells: each symbol has a class, which is its
cell, and each class one entry, on its own label.
"""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.bulk import compiled, reals
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.mechanisms.closed_form import ONE, Row, Rows

BITS = 10  # to which coordinates are taken
ROUNDING = 1e-6  # of the least mass: more than running sums can be off


def line(points: Floats) -> Ints:
    """The order of points (n, d) along Hilbert's curve, whose pieces lie together; of points in a row, their own.

    >>> line(np.array([[3.0], [0.0], [2.0], [1.0]])).tolist()
    [1, 3, 2, 0]
    >>> line(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])).tolist()
    [0, 1, 3, 2]

    Reference: Skilling, *Programming the Hilbert curve*, AIP Conference Proceedings 707, 2004.
    """
    spread = float(np.ptp(points, axis=0).max()) or 1.0
    at = ((points - points.min(0)) / spread * ((1 << BITS) - 1)).round().astype(np.int64).T
    for bit in range(BITS - 1, 0, -1):
        low = (1 << bit) - 1
        for axis in at:
            upper = axis >> bit & 1 == 1
            swapped = np.where(upper, 0, (at[0] ^ axis) & low)
            at[0] ^= np.where(upper, low, swapped)
            axis ^= swapped
    at = np.bitwise_xor.accumulate(at, axis=0)
    at ^= np.bitwise_xor.reduce([(at[-1] >> bit & 1) * ((1 << bit) - 1) for bit in range(1, BITS)], axis=0)
    return np.lexsort([axis >> bit & 1 for bit in range(BITS) for axis in at[::-1]])


@compiled
def near_table(
    belief: Row, points: Row, order: Row, cap: float, first: float, rows: Rows, entries: Rows
) -> tuple[int, float]:
    """Cells of neighbours, each of at least `cap` of the belief; how many, and the whole belief.

    `points` (d·n,) are the coordinates, axis by axis, and `order` (n,) the symbols along the line. With probability
    `first` any symbol passes for the likeliest label. Fills in what `closed_form.table` does.

    >>> from seqveil.core.mechanisms.closed_form import room_for
    >>> rows, entries, _ = room_for(4, 4)
    >>> near_table([0.3, 0.3, 0.2, 0.2], [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3], 0.25, 0.0, rows, entries)
    (3, 1.0)
    >>> labels, _, classes, masses = rows
    >>> classes, labels[:3], [round(mass, 9) for mass in masses[:3]]
    ([0, 1, 2, 2], [0, 1, 2], [0.3, 0.3, 0.4])
    """
    (labels, base, classes, masses), (owners, places, extras, _) = rows, entries
    everything, n = 0.0, len(belief)
    for x in range(n):
        everything += belief[x]
    least, left, shared = cap * everything * (1.0 + ROUNDING), everything, int(first * ONE)
    count, begin, mass = 0, 0, 0.0
    for k in range(n):
        mass, left = mass + belief[order[k]], left - belief[order[k]]
        full = mass >= least and left >= least and count + 1 < len(labels)
        if full or k + 1 == n:
            labels[count] = nearest(belief, points, order, begin, k + 1, mass)
            for i in range(begin, k + 1):
                classes[order[i]] = count
            masses[count], owners[count], places[count], extras[count] = mass, count, count, DENOMINATOR - shared
            count, begin, mass = count + 1, k + 1, 0.0
    likeliest = 0
    for k in range(len(labels)):
        base[k] = 0
        likeliest = k if k < count and masses[k] > masses[likeliest] else likeliest
    base[likeliest] = shared
    return count, everything


@compiled
def nearest(belief: Row, points: Row, order: Row, begin: int, end: int, mass: float) -> int:
    """Of a cell the symbol nearest to its mean; of several the first."""
    n = len(belief)
    axes, best, least = len(points) // n, order[begin], math.inf
    mean = reals(axes)
    for axis in range(axes):
        mean[axis] = 0.0
        for k in range(begin, end):
            mean[axis] += belief[order[k]] * points[axis * n + order[k]]
        mean[axis] /= mass if mass > 0.0 else 1.0
    for k in range(begin, end):
        far, x = 0.0, order[k]
        for axis in range(axes):
            away = points[axis * n + x] - mean[axis]
            far += away * away
        if far < least or (far == least and x < best):
            best, least = x, far
    return best
