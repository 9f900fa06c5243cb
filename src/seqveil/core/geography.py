"""Places on the globe: distances in metres, a flat map of those that lie together, and `Cells` of equal size.

The earth is a sphere of its mean radius, which is right to about half a percent everywhere. All distances are along
great circles, so that neither the date line nor a pole is a border.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.alphabet import Codes, Floats, OnUnknown, Symbols, pair_array
from seqveil.core.errors import InputError

EARTH = 6_371_008.8  # mean radius in metres
DEGREE = EARTH * np.pi / 180.0  # metres of a degree of latitude
LEAST = 10.0  # metres of a cell: centres are rounded to a metre, and phones know no better
LARGEST = 5_000_000.0
MOST_CELLS = 100_000
DECIMALS = 5  # of a cell's centre: about a metre


def checked(points: ArrayLike) -> Floats:
    """Latitudes and longitudes in degrees, (n, 2); longitudes come back between -180 and 180.

    >>> checked([(34.05, 241.75)]).tolist()
    [[34.05, -118.25]]
    """
    found = pair_array(points)
    if not len(found) or not possible(found).all():
        raise InputError(
            "expected pairs of a latitude from -90 to 90 and a longitude from -180 to 180; check which of them is which"
        )
    found[:, 1] = np.where(np.abs(found[:, 1]) <= 180.0, found[:, 1], np.round(wrapped(found[:, 1]), 9))
    return found


def possible(points: Floats) -> Any:
    """Which pairs (latitude, longitude) are places at all; longitudes may also run from 0 to 360."""
    with np.errstate(invalid="ignore"):
        return (np.abs(points[:, 0]) <= 90.0) & (points[:, 1] >= -180.0) & (points[:, 1] <= 360.0)


def wrapped(longitudes: Any) -> Any:
    """Longitudes between -180 and 180, without 180 itself."""
    return (longitudes + 180.0) % 360.0 - 180.0


def sphere(points: Floats) -> Floats:
    """Where the places lie in space, in metres from the middle of the earth: (n, 3)."""
    lat, lon = np.radians(points).T
    return EARTH * np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=1)


def along(chords: Floats) -> Floats:
    """Metres along the ground for straight lines through the earth.

    >>> paris, louvre = sphere(np.array([(48.8566, 2.3522), (48.8606, 2.3376)]))
    >>> along(np.sqrt(((paris - louvre) ** 2).sum())).round().item()
    1157.0
    """
    return np.asarray(2.0 * EARTH * np.arcsin(np.minimum(chords / (2.0 * EARTH), 1.0)))


def plane(points: Floats) -> Floats:
    """The places on a flat map around their middle, in metres to the east and north: (n, 2).

    Distances and directions from the middle are right (an azimuthal equidistant map); others are nearly so where the
    places lie together. For searches, never for costs.
    """
    space = sphere(points) / EARTH
    up = space.mean(0)
    size = float(np.sqrt((up**2).sum()))
    up = up / size if size > 1e-9 else np.array([1.0, 0.0, 0.0])  # they are all around the globe: any middle will do
    east = np.cross([0.0, 0.0, 1.0], up)
    length = float(np.sqrt((east**2).sum()))
    east = east / length if length > 1e-9 else np.array([0.0, 1.0, 0.0])  # at a pole every way is as good
    flat = np.stack(((space * east).sum(1), (space * np.cross(up, east)).sum(1)), axis=1)
    across = np.sqrt((flat**2).sum(1))
    away = np.arctan2(across, (space * up).sum(1))
    return flat * (EARTH * np.where(across > 1e-12, away / np.maximum(across, 1e-12), 1.0))[:, None]


def to_box(point: tuple[float, float], south: Floats, north: Floats, west: Floats, east: Floats) -> Floats:
    """Metres from a point to the nearest point of each box of latitudes and longitudes; 0 inside.

    The nearest longitude of a box is at its side, or the point's own. Along that meridian the distance has one least
    point, at tan φ = tan φ₀ / cos Δλ, so the nearest latitude is there or at an end.
    """
    lat, lon = point
    into, width = (lon - west) % 360.0, (east - west) % 360.0
    width = np.where((width == 0.0) & (east != west), 360.0, width)
    beyond = np.maximum(into - width, 0.0)
    away = np.where(beyond > 0.0, np.minimum(beyond, 360.0 - into), 0.0)
    turn, rise = np.radians(away), np.radians(lat)
    best = np.degrees(np.arctan2(np.sin(rise), np.cos(rise) * np.cos(turn)))
    tried = [np.clip(best, south, north), south, north]
    here = sphere(np.array([[lat, 0.0]]))
    chords = [np.sqrt(((sphere(np.stack((at, away), -1)) - here) ** 2).sum(-1)) for at in tried]
    return along(np.minimum.reduce(chords))


class Cells(Symbols):
    """The map cut into cells of equal size in metres; the value of a cell is its centre (latitude, longitude).

    The globe is cut into rows of equal height, and each row into cells of equal width, so many that they are as wide
    as high at the row's middle latitude: degrees of longitude shrink with its cosine. The cut depends on the size of
    the cells alone, so that two models with one size share their cells wherever they overlap. An alphabet has those
    cells of the whole that touch its bounds. Codes run from south to north, and within a row from west to east; a row
    may cross the date line.

    Parameters:
        metres: how wide and high a cell is, about, at least 10.
        bounds: (south, north, west, east) in degrees; east < west crosses the date line.
        on_unknown: "nearest" takes points outside to the nearest end of the nearest row.

    >>> paris = Cells(500, (48.80, 48.90, 2.25, 2.42))
    >>> paris.encode([(48.8566, 2.3522), (48.8570, 2.3530)]).tolist()
    [350, 350]
    >>> paris.decode([350])
    [(48.85811, 2.35448)]
    """

    on_map = True
    width = 2
    metres: float
    _around: int  # rows of cells from pole to pole
    _south: int  # the first of them that is here
    _rows: Codes  # of each row here: how many cells go around the globe, the first one here, and how many there are
    _offsets: Codes  # the first code of each row

    def __init__(
        self, metres: float, bounds: tuple[float, float, float, float], on_unknown: OnUnknown = "error"
    ) -> None:
        self._adopt(_size(metres), *_laid_out(metres, bounds), on_unknown)

    @classmethod
    def from_rows(
        cls, metres: float, around: int, south: int, rows: Sequence[Sequence[int]], on_unknown: OnUnknown = "error"
    ) -> Cells:
        """The alphabet that was saved: how many rows the globe has, the first one here, and of each row how many cells
        go around the globe, the first one here, and how many there are."""
        table = np.array(rows).reshape(-1, 3)
        whole, first, count = table.T
        known = type(around) is type(south) is int and table.dtype == np.int64
        inside = known and 0 <= south < south + len(table) <= around
        if not inside or not ((count >= 1) & (count <= whole) & (first >= 0) & (first < whole)).all():
            raise ValueError("rows of cells are whole numbers within the globe, and each has cells of its own")
        made = cls.__new__(cls)
        made._adopt(_size(metres), around, south, table, on_unknown)
        return made

    def _adopt(self, metres: float, around: int, south: int, rows: Codes, on_unknown: OnUnknown) -> None:
        n = int(rows[:, 2].sum())
        if n > MOST_CELLS:
            raise InputError(f"{n:,} cells are more than the {MOST_CELLS:,} a model may have; take larger ones")
        offsets = np.concatenate(([0], np.cumsum(rows[:, 2])))
        self.__dict__.update(n=n, metres=metres, _around=around, _south=south, _rows=rows, _offsets=offsets)
        self._set_policy(on_unknown)

    def _found(self, values: Any) -> Codes:
        points = pair_array(values)
        lost = ~np.isfinite(points).all(1)
        points[lost] = 0.0
        lost |= ~possible(points) & (self.on_unknown != "nearest")
        row = np.floor((np.clip(points[:, 0], -90.0, 90.0) + 90.0) * (self._around / 180.0)).astype(np.int64)
        row = np.minimum(row, self._around - 1) - self._south
        inside = np.clip(row, 0, len(self._rows) - 1)
        around, first, count = self._rows[inside].T
        turned = (points[:, 1] + 180.0) % 360.0 / 360.0
        column = (np.minimum((turned * around).astype(np.int64), around - 1) - first) % around
        outside = (row != inside) | (column >= count)
        column = np.where(column < count, column, np.where(column - (count - 1) <= around - column, count - 1, 0))
        codes = self._offsets[inside] + column
        return np.where(lost | (outside & (self.on_unknown != "nearest")), -1, codes)

    @cached_property
    def points(self) -> Floats:
        """The centre of every cell, (n, 2): latitude and longitude, rounded to about a metre."""
        south, north, west, east = self.boxes
        centres = np.stack(((south + north) / 2.0, wrapped((west + east) / 2.0)), axis=1).round(DECIMALS)
        centres.flags.writeable = False
        return centres

    @property
    def boxes(self) -> tuple[Floats, Floats, Floats, Floats]:
        """South, north, west and east of every cell, (n,) each; east is beyond 180 across the date line."""
        row, column = self._places
        around, first, _ = self._rows[row].T
        high, wide = 180.0 / self._around, 360.0 / around
        south = np.asarray((self._south + row) * high - 90.0, np.float64)
        west = (first + column) % around * wide - 180.0
        return south, np.asarray(south + high, np.float64), west, west + wide

    @property
    def _places(self) -> tuple[Codes, Codes]:
        """Row and column of every cell among those that are here, (n,) each."""
        row = np.repeat(np.arange(len(self._rows)), self._rows[:, 2])
        return row, np.arange(self.n) - self._offsets[row]

    def within(self, centre: tuple[float, float], metres: float) -> Codes:
        """The cells of which some part lies within so many metres of a point; none where all of the zone is outside.

        Whoever is outside counts to the cell at the edge ("nearest"), so what counts to a cell is a part of it here.
        """
        most, (south, north, west, east) = metres + 1e-6, self.boxes  # no rounding may leave a cell out
        if not (to_box(centre, south, north, west, east) <= most).any():
            return np.zeros(0, np.int64)
        row, column = self._places
        around, _, count = self._rows[row].T
        beyond = (around + count - 1) // 2 - (count - 1)  # columns that go to the eastern end, as in `encode`
        before = around - count - beyond
        east = np.where(column == count - 1, east + beyond * (360.0 / around), east)
        west = np.where(column == 0, west - before * (360.0 / around), west)
        west, east = np.where(count == 1, -180.0, west), np.where(count == 1, 180.0, east)
        south, north = np.where(row == 0, -90.0, south), np.where(row == row[-1], 90.0, north)
        return np.flatnonzero(to_box(centre, south, north, west, east) <= most).astype(np.int64)

    def _content(self) -> dict[str, Any]:
        rows = self._rows.tolist()
        return {"kind": "cells", "metres": self.metres, "around": self._around, "south": self._south, "rows": rows}


def _laid_out(metres: float, bounds: tuple[float, float, float, float]) -> tuple[int, int, Codes]:
    """How many rows the globe has, the first that touches the bounds, and those rows as `Cells` keeps them."""
    south, north, west, east = _bounds(bounds)
    around = max(1, round(180.0 * DEGREE / metres))
    begin, end = (min(int((edge + 90.0) * around / 180.0), around - 1) for edge in (south, north))
    middle = np.radians((np.arange(begin, end + 1) + 0.5) * (180.0 / around) - 90.0)
    whole = np.maximum(1, np.rint(360.0 * DEGREE * np.cos(middle) / metres)).astype(np.int64)
    starts, span = (west + 180.0) % 360.0, east - west if east >= west else east - west + 360.0
    first = np.minimum((starts / 360.0 * whole).astype(np.int64), whole - 1)
    last = np.floor((starts + span) / 360.0 * whole).astype(np.int64)
    return around, begin, np.stack((whole, first, np.minimum(last - first + 1, whole)), axis=1)


def count_cells(metres: float, bounds: tuple[float, float, float, float]) -> int:
    """How many cells of this size touch the bounds; nothing is held for each of them."""
    return int(_laid_out(_size(metres), bounds)[2][:, 2].sum())


def _size(metres: Any) -> float:
    number = isinstance(metres, int | float) and not isinstance(metres, bool)
    if not number or not LEAST <= metres <= LARGEST:
        raise InputError(
            f"expected the size of cells as {LEAST:g} to {LARGEST:,.0f} metres, as in 500; got something else"
        )
    return float(metres)


def _bounds(bounds: Any) -> tuple[float, float, float, float]:
    """South, north, west and east; a span of 360 degrees or more is the whole circle."""
    try:
        south, north, west, east = map(float, bounds)
    except (TypeError, ValueError):
        raise InputError("expected bounds (south, north, west, east) in degrees; got something else") from None
    fits = -90.0 <= south <= north <= 90.0 and math.isfinite(west) and math.isfinite(east)
    if not fits or west < -540.0 or east > 540.0:
        raise InputError("expected bounds (south, north, west, east) in degrees, south up to north; check their order")
    if east - west >= 360.0:
        return south, north, -180.0, 180.0 - 1e-9
    west, east = float(wrapped(west)), float(wrapped(east))
    return south, north, west, east
