"""Places in files: columns of coordinates, cells of the map, and lists of places."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core import geography
from seqveil.core.alphabet import Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.places import LEAST, MOST_CELLS, Cells, Places, count_cells
from seqveil.interfaces.files.columns import Columns, coordinates_in
from seqveil.interfaces.files.reading import FilePath, file_name, first_rows

if TYPE_CHECKING:
    import polars as pl

NAMES = ("name", "place", "venue", "poi", "station", "location", "id")  # what a column of names may be called


def located(
    data: FilePath | pl.DataFrame, columns: Columns, format: str | None = None, widths: tuple[int, ...] = (1, 2)
) -> Columns:
    """The columns, with those of latitude and longitude for the value where none was named.

    A column that is called `value` goes first, unless a value must have two columns (`widths`). Standard input is read
    once only, so there they must be named.
    """
    if columns.value != Columns().value or (isinstance(data, str) and data == "-"):
        return columns
    found = first_rows(data, format).columns
    pair = coordinates_in(found)
    if pair is None or (columns.value in found and 1 in widths):
        return columns
    return replace(columns, value=",".join(pair))


def round_up(size: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 … that is not smaller.

    >>> round_up(130.0), round_up(2000.0)
    (200.0, 2000.0)
    """
    unit = 10.0 ** math.floor(math.log10(size))
    return next(step * unit for step in (1.0, 2.0, 5.0, 10.0) if step * unit >= size * (1 - 1e-12))


def round_near(size: float) -> float:
    """The nearest of 1, 2, 5, 10, 20, 50 …

    >>> round_near(130.0), round_near(0.04)
    (100.0, 0.05)
    """
    unit = 10.0 ** math.floor(math.log10(size))
    return min((step * unit for step in (1.0, 2.0, 5.0, 10.0)), key=lambda near: abs(near - size))


def cells_over(metres: float, bounds: tuple[float, float, float, float]) -> Cells:
    """Cells of this size that touch the bounds; where they are too many, one line says which size fits."""
    if isinstance(metres, int | float) and math.isfinite(metres) and metres >= LEAST:
        found = count_cells(metres, bounds)
        if found > MOST_CELLS:
            size = round_up(metres * math.sqrt(found / MOST_CELLS))
            while count_cells(size, bounds) > MOST_CELLS:
                size = round_up(size * 1.01)
            raise InputError(
                f"cells of {metres:g} m would be {found:,} over the bulk of the data, more than {MOST_CELLS:,}; pass "
                f"--cell-metres {size:g} or larger, or fit a part of the map"
            )
    return Cells(metres, bounds)


def places_in(points: Any, names: str | None = None) -> Places:
    """A list of places: a file or a frame with columns of name, latitude and longitude, or `Places` as they are.

    Parameters:
        points: the file, the frame (polars, pandas, Arrow), or `Places`.
        names: the three columns, as in "venue,y,x", where they are not called as usual.
    """
    from seqveil.interfaces.files.in_memory import as_polars  # which imports what reads places

    if isinstance(points, Places):
        return points
    data = as_polars(points)
    if isinstance(data, str | os.PathLike) and os.fspath(data) == "-":
        raise InputError("a list of places is a file of its own; name it with --points FILE")
    title = file_name(data) if isinstance(data, str | os.PathLike) else "points"
    table = first_rows(data, whole=True)
    name, lat, lon = _three(table.columns, names, title)
    where = np.stack([_degrees(table[column], title) for column in (lat, lon)], axis=1)
    good = geography.possible(where)
    if not good.all():
        row = int((~good).argmax()) + 1
        raise DataError(
            f"{title}: row {row}: expected a latitude from -90 to 90 in {lat!r} and a longitude from -180 to 180 in "
            f"{lon!r}; mend the row, or name the columns with --points-columns NAME,LAT,LON"
        )
    return _distinct(_texts(table[name], title), where, title)


def _three(found: list[str], names: str | None, title: str) -> tuple[str, str, str]:
    """The columns of name, latitude and longitude."""
    if names is not None:
        given = [part.strip() for part in names.split(",")]
        if len(given) != 3 or not all(given) or len(set(given)) < 3:
            raise InputError(f"expected --points-columns NAME,LAT,LON, three columns; got {len(given)}")
        lost = next((name for name in given if name not in found), None)
        if lost is not None:
            raise DataError(f"{title}: has no column {lost!r}; it has {', '.join(map(repr, found))}")
        return given[0], given[1], given[2]
    pair = coordinates_in(found)
    plain = {column.strip().lower().removesuffix("_id").removesuffix("_name"): column for column in reversed(found)}
    name = next((plain[word] for word in NAMES if word in plain), None)
    if name is None or pair is None:
        raise DataError(
            f"{title}: expected columns name, lat and lon; it has {', '.join(map(repr, found))}: say which they are "
            "with --points-columns NAME,LAT,LON"
        )
    return name, *pair


def _degrees(column: pl.Series, title: str) -> Floats:
    import polars as pl

    numbers = column.cast(pl.Float64, strict=False)
    bad = numbers.is_null() | ~numbers.is_finite()
    if bad.any():
        row = int(bad.arg_max() or 0) + 1
        raise DataError(f"{title}: row {row}: column {column.name!r} must hold degrees as numbers; mend the row")
    return np.asarray(numbers.to_numpy(), np.float64)


def _texts(column: pl.Series, title: str) -> list[str]:
    import polars as pl

    text = column.cast(pl.String, strict=False)
    empty = text.is_null() | (text == "")
    if empty.any():
        row = int(empty.arg_max() or 0) + 1
        raise DataError(f"{title}: row {row}: the place has no name in column {column.name!r}; name it")
    return list(text.to_list())


def _distinct(names: list[str], where: Floats, title: str) -> Places:
    """Each place once; the same place twice is one, and one name at two places is refused."""
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        known = first.setdefault(name, row)
        if known != row and not np.array_equal(where[known], where[row]):
            raise DataError(
                f"{title}: row {row + 1} has the name of row {known + 1} and other coordinates; give each place a name "
                "of its own"
            )
    kept = list(first.values())
    return Places(list(first), where[kept])


@dataclass
class Spread:
    """How far rows with coordinates are from the places that stand for them."""

    parts: list[Floats] = field(default_factory=list, repr=False)

    def add(self, values: Floats, alphabet: Symbols, codes: Ints) -> None:
        """Take in rows with their places."""
        assert alphabet.points is not None
        known = codes >= 0
        self.parts.append(geography.haversine(values[known], alphabet.points[codes[known]]))

    @property
    def sentence(self) -> str:
        """The distances in words; empty where no row had coordinates."""
        away = np.concatenate([np.zeros(0), *self.parts])
        if not away.size:
            return ""
        middle, most = (geography.size_of(float(each)) for each in (np.median(away), away.max()))
        return f"each event is at the nearest place: {middle} away in the middle, {most} at most"


__all__ = ["Spread", "cells_over", "located", "places_in", "round_near", "round_up"]
