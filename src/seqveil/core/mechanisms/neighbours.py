"""Cells of symbols that lie together, by halving: for blocks where a wrong symbol costs by its distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints

ROUNDING = 1e-6  # of the least mass: more than running sums can be off
TINY = 1e-300


def neighbours(belief: Floats, points: Floats, least: float) -> tuple[Ints, Floats]:
    """Cells of symbols that lie together, each of at least this belief: the cell of each symbol, and their masses.

    Halved again and again, across where they are widest, as evenly as each half keeps its mass; the likeliest first.

    >>> neighbours(np.array([0.3, 0.3, 0.2, 0.2]), np.arange(4.0)[:, None], 0.25)
    (array([1, 2, 0, 0]), array([0.4, 0.3, 0.3]))
    """
    cells, least, open_to_halves = np.zeros(len(belief), np.int64), least * (1.0 + ROUNDING), True
    while open_to_halves:
        count = int(cells.max()) + 1
        halved = _second_halves(belief, points, cells, count, least)
        open_to_halves = bool(halved.any())
        _, cells = np.unique(cells + count * halved, return_inverse=True)
    masses = np.bincount(cells, belief).astype(np.float64, copy=False)
    order = np.argsort(-masses, kind="stable")
    return np.argsort(order, kind="stable")[cells].astype(np.int64), masses[order]


def _second_halves(belief: Floats, points: Floats, cells: Ints, count: int, least: float) -> NDArray[np.bool_]:
    """Which symbols leave their cell for a new one: all cells are halved at once, each across where it is widest.

    Where no cut there leaves both halves their mass, the next widest side is tried.
    """
    masses = np.bincount(cells, belief, count).astype(np.float64, copy=False)
    mass = np.maximum(masses, TINY)
    gone, decided = np.zeros(len(belief), bool), masses < 2 * least
    means = [np.bincount(cells, belief * line, count) / mass for line in points.T]
    widths = [
        np.bincount(cells, belief * (line - mean[cells]) ** 2, count)
        for line, mean in zip(points.T, means, strict=True)
    ]
    cuts = [_cuts(belief, line, cells, masses, least) for line in points.T]
    for axis in np.argsort(-np.array(widths), axis=0, kind="stable"):
        cut = np.array(cuts)[axis, np.arange(count)]
        now = ~decided & np.isfinite(cut)
        value = points[np.arange(len(belief)), axis[cells]]
        gone |= now[cells] & (value > cut[cells])
        decided |= now
    return gone


def _cuts(belief: Floats, line: Floats, cells: Ints, masses: Floats, least: float) -> Floats:
    """Where along a line each cell is cut most evenly, of the cuts that leave both halves their mass; inf for none."""
    order = np.lexsort((line, cells))
    cell, value, upto = cells[order], line[order], np.cumsum(belief[order])
    first = np.searchsorted(cell, np.arange(masses.size))
    below = upto - np.where(first > 0, upto[first - 1], 0.0)[cell]
    fits = (below >= least) & (masses[cell] - below >= least)
    fits[:-1] &= (cell[1:] == cell[:-1]) & (value[1:] > value[:-1])
    fits[-1] = False
    uneven = np.where(fits, np.abs(below - masses[cell] / 2), np.inf)
    best = np.minimum.reduceat(uneven, first)
    found = np.flatnonzero(fits & (uneven == best[cell]))[::-1]
    cuts = np.full(masses.size, np.inf)
    cuts[cell[found]] = value[found]
    return cuts


def centres(belief: Floats, points: Floats, cells: Ints, count: int) -> Ints:
    """Of each cell the symbol nearest to its mean."""
    masses = np.bincount(cells, belief, count)
    means = np.stack([np.bincount(cells, belief * line, count) / masses for line in points.T], axis=1)
    far = ((points - means[cells]) ** 2).sum(1)
    order = np.lexsort((far, cells))
    return order[np.searchsorted(cells[order], np.arange(count))]
