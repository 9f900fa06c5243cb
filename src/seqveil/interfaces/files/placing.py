"""Places in files: columns of coordinates, and cells of the map."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from seqveil.core.errors import InputError
from seqveil.core.places import LEAST, MOST_CELLS, Cells, count_cells
from seqveil.interfaces.files.columns import Columns, coordinates_in
from seqveil.interfaces.files.reading import FilePath, first_rows

if TYPE_CHECKING:
    import polars as pl


def located(data: FilePath | pl.DataFrame, columns: Columns, format: str | None = None) -> Columns:
    """The columns, with those of latitude and longitude for the value where none was named.

    Standard input is read once only, so there they must be named.
    """
    if columns.value != Columns().value or (isinstance(data, str) and data == "-"):
        return columns
    pair = coordinates_in(first_rows(data, format).columns)
    return columns if pair is None else replace(columns, value=",".join(pair))


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


__all__ = ["cells_over", "located", "round_near", "round_up"]
