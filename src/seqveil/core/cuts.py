"""Numbers and points as symbols: `Bins` cuts a number line, `Grid` a plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.arrays import Codes, Floats, float_array, pair_array
from seqveil.core.errors import InputError
from seqveil.core.symbols import OnUnknown, Symbols


class Bins(Symbols):
    """Numbers cut at `edges` into len(edges)-1 bins [a, b), the last one closed; decoding gives the midpoint.

    Parameters: `edges` increase strictly; `on_unknown="nearest"` puts numbers outside the range into the end bins.
    NaN is in no bin.

    >>> heart = Bins([40, 60, 80, 120])
    >>> heart.encode([59.9, 60, 120])
    array([0, 1, 2])
    >>> heart.decode([0, 2])
    [50.0, 100.0]
    """

    edges: Floats

    def __init__(self, edges: ArrayLike, on_unknown: OnUnknown = "error") -> None:
        line = np.array(float_array(edges))
        if line.ndim != 1 or len(line) < 2 or not np.isfinite(line).all() or (line[1:] <= line[:-1]).any():
            raise InputError(f"edges must be 2 or more finite numbers that increase; got shape {line.shape}, sort them")
        middles = line[:-1] / 2 + line[1:] / 2  # halves first: the sum of two edges may overflow
        if ((middles < line[:-1]) | (middles >= line[1:])).any():
            raise InputError("two edges are too close to have a midpoint between them; widen the bins")
        line.flags.writeable = middles.flags.writeable = False
        self.__dict__.update(n=len(middles), edges=line, _middles=middles)
        self._set_policy(on_unknown)

    @classmethod
    def of_width(cls, lo: float, hi: float, width: float, on_unknown: OnUnknown = "error") -> Bins:
        """Equal bins from `lo` on that cover `hi`; the last may reach past `hi` where `width` does not divide."""
        if not (math.isfinite(lo) and math.isfinite(hi) and math.isfinite(width) and lo < hi and width > 0):
            raise InputError("bins of one width need finite lo < hi and width > 0; check the three numbers")
        count = max(1, math.ceil((hi - lo) / width - 1e-9))
        edges = lo + width * np.arange(count + 1)
        edges[-1] = max(edges[-1], hi)
        return cls(edges, on_unknown)

    @classmethod
    def quantiles(cls, values: ArrayLike, n: int, on_unknown: OnUnknown = "error") -> Bins:
        """At most `n` bins of about equal count. The edges show the data they came from: treat them as public."""
        data = np.asarray(values, dtype=np.float64).ravel()
        if n < 1 or data.size == 0 or not np.isfinite(data).all():
            raise InputError("quantile bins need n >= 1 and finite numbers; drop missing values first")
        edges = np.unique(np.quantile(data, np.linspace(0, 1, n + 1)))
        if len(edges) < 2:
            raise InputError("all numbers are equal, so there is nothing to cut; use Bins with edges of your own")
        return cls(edges, on_unknown)

    def encode(self, values: Any) -> Codes:
        """Codes of the bins that the numbers fall into; one outside all bins is treated as `on_unknown` says."""
        return self._settle(self._cells(float_array(values)))

    def _values_of(self, codes: Codes) -> list[Any]:
        return list(self.points[codes].tolist())

    @property
    def points(self) -> Floats:
        """The middle of every bin, (n,)."""
        middles: Floats = self.__dict__["_middles"]
        return middles

    def _cells(self, numbers: Floats) -> Codes:
        """Bin of every number, -1 where the policy has none."""
        codes = np.clip(np.searchsorted(self.edges, numbers, side="right") - 1, 0, self.n - 1).astype(np.int64)
        outside = np.isnan(numbers)
        if self.on_unknown != "nearest":
            outside |= (numbers < self.edges[0]) | (numbers > self.edges[-1])
        codes[outside] = -1
        return codes

    def _content(self) -> dict[str, Any]:
        return {"kind": "bins", "edges": self.edges.tolist()}


class Grid(Symbols):
    """Points (x, y) on a grid of nx × ny cells; the code of a cell is ix * ny + iy, its value the cell's centre.

    Parameters: edges as in `Bins`; `on_unknown="nearest"` moves points outside to the border cells.

    >>> room = Grid.regular(4, 2, bounds=(0, 4, 0, 2))
    >>> room.encode([(0.1, 0.1), (3.9, 1.5)])
    array([0, 7])
    >>> room.decode([7])
    [(3.5, 1.5)]
    """

    x: Bins
    y: Bins
    widths = (2,)

    def __init__(self, x_edges: ArrayLike, y_edges: ArrayLike, on_unknown: OnUnknown = "error") -> None:
        x, y = Bins(x_edges, on_unknown), Bins(y_edges, on_unknown)
        centres = np.stack([np.repeat(x.points, y.n), np.tile(y.points, x.n)], axis=1)
        centres.flags.writeable = False
        self.__dict__.update(n=x.n * y.n, x=x, y=y, _centres=centres)
        self._set_policy(on_unknown)

    @classmethod
    def regular(
        cls, nx: int, ny: int, bounds: tuple[float, float, float, float], on_unknown: OnUnknown = "error"
    ) -> Grid:
        """nx × ny equal cells over bounds (x0, x1, y0, y1)."""
        if nx < 1 or ny < 1:
            raise InputError(f"a grid needs at least one cell each way; got {nx} by {ny}")
        x0, x1, y0, y1 = bounds
        return cls(np.linspace(x0, x1, nx + 1), np.linspace(y0, y1, ny + 1), on_unknown)

    def encode(self, values: Any) -> Codes:
        """Codes of the cells that the pairs (x, y) fall into; one outside is treated as `on_unknown` says."""
        array = pair_array(values, self.hides)
        ix, iy = self.x._cells(array[:, 0]), self.y._cells(array[:, 1])
        return self._settle(np.where((ix < 0) | (iy < 0), -1, ix * self.y.n + iy))

    def _values_of(self, codes: Codes) -> list[Any]:
        return list(map(tuple, self.points[codes].tolist()))

    @property
    def points(self) -> Floats:
        """The centre of every cell, (n, 2)."""
        centres: Floats = self.__dict__["_centres"]
        return centres

    def _set_policy(self, on_unknown: OnUnknown) -> None:
        super()._set_policy(on_unknown)
        self.__dict__.update(x=self.x.with_policy(on_unknown), y=self.y.with_policy(on_unknown))

    def _content(self) -> dict[str, Any]:
        return {"kind": "grid", "x_edges": self.x.edges.tolist(), "y_edges": self.y.edges.tolist()}


__all__ = ["Bins", "Grid"]
