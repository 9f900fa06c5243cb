"""Cells of symbols that lie together, by halving: for blocks where a wrong symbol costs by its distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints


def neighbours(belief: Floats, points: Floats, least: float) -> tuple[Ints, Floats]:
    """Cells of symbols that lie together, each of at least this belief: the cell of each symbol, and their masses.

    Halved again and again, across where they are widest, as evenly as each half keeps its mass; the likeliest first.

    >>> neighbours(np.array([0.3, 0.3, 0.2, 0.2]), np.arange(4.0)[:, None], 0.25)
    (array([2, 1, 0, 0]), array([0.4, 0.3, 0.3]))
    """
    whole, done = [np.arange(len(belief))], []
    while whole:
        cell = whole.pop()
        halves = _halved(belief[cell], points[cell], least) if belief[cell].sum() >= 2 * least else None
        if halves is None:
            done.append(cell)
        else:
            whole += [cell[halves], cell[~halves]]
    masses = np.array([belief[cell].sum() for cell in done])
    order, cells = np.argsort(-masses, kind="stable"), np.empty(len(belief), np.int64)
    for label, place in enumerate(order.tolist()):
        cells[done[place]] = label
    return cells, masses[order]


def _halved(belief: Floats, points: Floats, least: float) -> NDArray[np.bool_] | None:
    """Which symbols of a cell go into its first half; None where no cut leaves both halves their mass."""
    centre = (belief[:, None] * points).sum(0) / belief.sum()
    widths = (belief[:, None] * (points - centre) ** 2).sum(0)
    for axis in np.argsort(-widths, kind="stable").tolist():
        values, places = np.unique(points[:, axis], return_inverse=True)
        below = np.cumsum(np.bincount(places, belief))[:-1]
        total = belief.sum()
        fits = (below >= least) & (total - below >= least)
        if fits.any():
            cut = np.where(fits, np.abs(below - total / 2), np.inf).argmin()
            return np.asarray(points[:, axis] <= values[cut])
    return None


def centres(belief: Floats, points: Floats, cells: Ints, count: int) -> Ints:
    """Of each cell the symbol nearest to its mean."""
    masses = np.bincount(cells, belief, count)
    means = np.stack([np.bincount(cells, belief * line, count) / masses for line in points.T], axis=1)
    far = ((points - means[cells]) ** 2).sum(1)
    order = np.lexsort((far, cells))
    return order[np.searchsorted(cells[order], np.arange(count))]
