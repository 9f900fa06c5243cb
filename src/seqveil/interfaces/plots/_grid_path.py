"""A path on a grid: raw, as released, and as decoded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.plots._canvas import DECODED, RAW, RELEASED, blank, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from seqveil.core.alphabet import Grid


def grid_path(grid: Grid, raw: Ints, released: Ints, decoded: Ints, path: str | Path | None = None) -> Figure:
    """Three maps side by side: the raw path alone, under the released cells, and under the decoded path.

    All three are codes of `grid`'s cells, one an event (-1: nothing was released). Each panel says how far its path
    lies from the raw one on average. As private as the raw path.

    >>> from seqveil import Grid
    >>> room = Grid.regular(3, 3, bounds=(0, 3, 0, 3))
    >>> figure = grid_path(room, np.array([0, 1, 4]), np.array([0, 0, 4]), np.array([0, 1, 4]))
    >>> figure.axes[1].get_title(loc="left")
    'released: 0.33 off on average'
    """
    for name, codes in (("released", released), ("decoded", decoded)):
        if len(codes) != len(raw):
            raise InputError(f"expected {name} for {len(raw)} events, got {len(codes)}; draw one and the same stream")
    truth = grid.points[np.asarray(raw)]
    figure = blank((11, 4.1))
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, name, codes, colour in zip(
        panels, ("raw", "released", "decoded"), (raw, released, decoded), (RAW, RELEASED, DECODED), strict=True
    ):
        _map(axes, grid)
        axes.plot(*truth.T, color=RAW, lw=3, alpha=0.55, solid_capstyle="round", solid_joinstyle="round", zorder=1)
        if name == "raw":
            axes.plot(*truth[0], "o", color=RAW, ms=7, zorder=2)
            axes.set_title(f"raw: {len(truth)} events from the dot on", loc="left", fontsize=10)
        else:
            _overlay(axes, name, truth, grid, np.asarray(codes), colour)
    return finish(figure, path)


def _map(axes: Axes, grid: Grid) -> None:
    for edges, line in ((grid.x.edges, axes.axvline), (grid.y.edges, axes.axhline)):
        for edge in edges if len(edges) <= 45 else ():
            line(edge, color="#e6e9ec", lw=0.6, zorder=0)
    axes.set(xlim=grid.x.edges[[0, -1]], ylim=grid.y.edges[[0, -1]], aspect="equal")
    axes.locator_params(nbins=5)


def _overlay(axes: Axes, name: str, truth: Floats, grid: Grid, codes: Ints, colour: str) -> None:
    made = codes >= 0
    at = grid.points[codes[made]]
    axes.plot(*at.T, color=colour, lw=0.7, alpha=0.45, zorder=2)
    places, times = np.unique(codes[made], return_counts=True)  # a cell told often is a larger dot
    x, y = grid.points[places].T
    axes.scatter(x, y, s=10 + 5 * times, color=colour, alpha=0.8, lw=0, zorder=3)
    off = np.sqrt(((at - truth[made]) ** 2).sum(1)).mean()
    axes.set_title(f"{name}: {off:.2f} off on average", loc="left", fontsize=10)
