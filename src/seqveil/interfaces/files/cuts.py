"""How values become symbols: the values that occur, or cuts of numbers, points and places.

Cuts go over the bulk of the numbers: a few bad rows, a sensor that says 65535, do not squeeze all events into one
cell. What lies outside counts to the cells at the edge.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqveil.core import geography
from seqveil.core.alphabet import MISSING, OTHER, Alphabet, Bins, Grid, Symbols
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.geography import LEAST, MOST_CELLS, Cells, count_cells
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel
from seqveil.core.times import NOTHING, Slots

MOST_SYMBOLS = 100_000
AUTO, AUTO_BINS, AUTO_CELLS = "auto", 20, 10  # about how many bins, or cells each way, "auto" cuts
LARGEST = 1e150  # beyond it nothing is data, and differences of quantiles could overflow
STRANGE = 0.01  # share of rows that are no places at all, beyond which the columns are doubted
TAIL, FENCE, MARGIN = 0.005, 10.0, 0.1  # the bulk: within these quantiles, so many quartile ranges, and a margin


def distinct(values: pl.Series, users: pl.Series, name: str, other: int | None = None) -> tuple[set[object], int]:
    """The values that occur, and with `other` how many that fewer people have were left out."""
    if other is not None and other < 1:
        raise InputError(f"expected {option('other')} as a number of people, at least 1; got {other}")
    seen = set(values.unique().to_list())
    if len(seen) > MOST_SYMBOLS:
        raise DataError(
            f"{name}: the values differ in more than {MOST_SYMBOLS} ways; cut numbers with {option('bins')}"
        )
    if other is None:
        return seen, 0
    people = pl.DataFrame({"value": values, "user": users}).group_by("value").agg(pl.col("user").n_unique())
    rare = set(people.filter(pl.col("user") < other)["value"].to_list())
    return (seen - rare) | {OTHER}, sum(value not in (OTHER, MISSING, NOTHING) for value in rare)


def cut(way: str, size: Any, numbers: Floats | None, span: str | None = None, name: str = "") -> Symbols:
    """The cells of one way to cut numbers (T,) or points (T, 2); what lies outside counts to those at the edge.

    They are cut over a range that is named, without a look at the data, or over the bulk of the numbers.
    """
    data = np.zeros(0) if numbers is None else np.clip(numbers, -LARGEST, LARGEST)
    if way == "cell_metres":
        box = around(_places(data, name)) if span is None else _numbers(span, 4, "SOUTH,NORTH,WEST,EAST")
        return cells_over(size, (box[0], box[1], box[2], box[3])).with_policy("nearest")
    if way == "grid":
        x, y = (AUTO_CELLS,) * 2 if size == AUTO else sides_of(size)
        if span is not None:
            x0, x1, y0, y1 = _numbers(span, 4, "X0,X1,Y0,Y1")
            return Grid.regular(x, y, (x0, x1, y0, y1), "nearest")
        if size == AUTO:
            return Grid(_edges(data[:, 0], x), _edges(data[:, 1], y), "nearest")
        (x0, *_, x1), (y0, *_, y1) = (_edges(data[:, axis], AUTO_BINS).tolist() for axis in (0, 1))
        return Grid.regular(x, y, (x0, x1, y0, y1), "nearest")
    width = None if size == AUTO else width_of(size)
    if span is None:
        return Bins(_edges(data, AUTO_BINS, width), "nearest")
    low, high = _numbers(span, 2, "LO,HI")
    if width is None:
        return Bins(np.linspace(low, high, AUTO_BINS + 1), "nearest")
    if (high - low) / width > MOST_SYMBOLS:
        raise InputError(f"expected a bin width that cuts the range into at most {MOST_SYMBOLS} bins, got {width:g}")
    return Bins.of_width(low, high, width, "nearest")


def _places(points: Floats, name: str) -> Floats:
    """The points that are places on the map; where many are none, the columns are doubted."""
    good = geography.possible(points)
    if good.mean() < 1.0 - STRANGE:
        raise DataError(
            f"{name}: {int((~good).sum()):,} rows are no places: expected latitudes from -90 to 90 and longitudes from "
            f"-180 to 180 degrees; check that {option('value')} names them in this order"
        )
    return points[good]


def _edges(numbers: Floats, count: int, width: float | None = None) -> Floats:
    """Edges of bins over the bulk of the numbers, at multiples of their width.

    Without one it has one digit, so that about `count` bins come of it: rounding leaves little in the edges of the data
    they come from.

    >>> _edges(np.linspace(41.3, 98.7, 200), 5)
    array([ 40.,  50.,  60.,  70.,  80.,  90., 100.])
    """
    low, high = bulk(numbers)
    width = width or round_near((high / count - low / count) or max(abs(low), 1.0))
    first = math.floor(low / width)
    last = max(first + 1, math.ceil(high / width))
    first -= first * width > low  # the division may have rounded past the number
    last += last * width < high
    if last - first > MOST_SYMBOLS:
        raise InputError(f"bins this narrow cut the data into {last - first}, more than {MOST_SYMBOLS}; widen them")
    edges = np.arange(first, last + 1, dtype=np.float64) * width
    if (np.diff(edges) <= 0).any():
        raise InputError("the numbers are too close together to be cut, given their size; subtract what they share")
    return edges


def width_of(bins: float | str) -> float:
    """The width of bins as a number."""
    try:
        width = float(bins)
    except ValueError:
        raise InputError(f"expected {option('bins')} as a width or auto, as in 5; got {bins!r}") from None
    if not (width > 0 and math.isfinite(width)):
        raise InputError(f"expected a bin width that is a finite number above 0, got {bins}")
    return width


def sides_of(grid: str) -> tuple[int, int]:
    """10x10 as numbers."""
    parts = grid.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected a grid such as 10x10, or auto; got {grid!r}")
    x, y = (int(part) for part in parts)
    if x * y > MOST_SYMBOLS:
        raise InputError(f"a grid of {x * y} cells is more than the {MOST_SYMBOLS} a model may have; use fewer")
    return x, y


def bulk(numbers: Floats) -> tuple[float, float]:
    """Where nearly all of the numbers lie: few that are far away, or fewer than a hundredth, do not count.

    The ends are round numbers, about a twentieth of the way apart: a model is public, and must not show the extremes.

    >>> bulk(np.array([*range(3, 1000), 1e9, -1e9]))
    (0.0, 1000.0)
    """
    least, low, quarter, most, high, greatest = np.quantile(numbers, [0, TAIL, 0.25, 0.75, 1 - TAIL, 1])
    if least == greatest:
        return float(least), float(least)
    if quarter == most:  # mostly one number: the others say how far to look
        low, high = bulk(numbers[numbers != quarter])
        low, high = min(low, quarter), max(high, quarter)
    else:
        reach = FENCE * (most - quarter)
        low, high = max(low, quarter - reach), min(high, most + reach)
        margin = MARGIN * (high - low)
        inside = numbers[(numbers >= low - margin) & (numbers <= high + margin)]
        low, high = inside.min(), inside.max()
    step = round_near(high / AUTO_BINS - low / AUTO_BINS)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def around(points: Floats) -> tuple[float, float, float, float]:
    """South, north, west and east of the bulk of places; west may be beyond -180 where they cross the date line.

    >>> around(np.array([(-17.0, 179.5), (-17.5, -179.5), (-18.0, 179.0)]))
    (-18.0, -17.0, 179.0, 180.5)
    """
    turn = np.radians(points[:, 1])
    middle = math.degrees(math.atan2(np.sin(turn).mean(), np.cos(turn).mean()))
    middle = round(middle, 3) % 360.0 if abs(middle) > 90.0 else round(middle, 3)
    south, north = bulk(points[:, 0])
    west, east = bulk((middle + geography.wrapped(points[:, 1] - middle)).round(7))
    return south, north, west, east


def round_near(size: float) -> float:
    """The nearest of 1, 2, 5, 10, 20, 50 …"""
    unit = 10.0 ** math.floor(math.log10(size))
    return min((step * unit for step in (1.0, 2.0, 5.0, 10.0)), key=lambda near: abs(near - size))


def fitting_size(bounds: tuple[float, float, float, float], most: int) -> float:
    """A round size of cells of which at most so many touch the bounds."""
    sizes = (step * 10.0**power for power in itertools.count(round(math.log10(LEAST))) for step in (1, 2, 5))
    return next(size for size in sizes if count_cells(size, bounds) <= most)


def cells_over(metres: float, bounds: tuple[float, float, float, float]) -> Cells:
    """Cells of this size that touch the bounds; where they are too many, one line says which size fits."""
    found = count_cells(metres, bounds)
    if found > MOST_CELLS:
        raise InputError(
            f"cells of {metres:g} m would be {found:,} over the bulk of the data, more than {MOST_CELLS:,}; take "
            f"{option('cell_metres', f'{fitting_size(bounds, MOST_CELLS):g}')} or larger, or fit a part of the map"
        )
    return Cells(metres, bounds)


def in_slots(alphabet: Symbols, slots: Slots | None) -> Symbols:
    """The alphabet with what slots need: among names a symbol for nothing."""
    if slots is None or not isinstance(alphabet, Alphabet):
        return alphabet
    if not all(type(value) is str for value in alphabet.values):
        cuts = f"{option('bins')} or {option('grid')}"
        raise InputError(f"slots take names, or numbers that are cut; name the values as text, or add {cuts}")
    named = list(alphabet.values)
    return alphabet if NOTHING in named or slots.empty == "hold" else Alphabet([*named, NOTHING])


def named_alphabet(given: object) -> Symbols:
    """The alphabet that somebody names: a list of values, an alphabet, a model, or a file of one of them.

    A text file has a value a line. Lines that are all whole numbers are numbers.
    """
    if not isinstance(given, str | Path):
        return given if isinstance(given, Symbols) else Alphabet(list(given))  # type: ignore[call-overload]
    file = Path(given)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file.name}: the alphabet cannot be read ({error.strerror}); check the path") from None
    if content.startswith(b"PK"):
        return MarkovModel.load(file).alphabet
    try:
        values = [line for line in content.decode("utf-8-sig").splitlines() if line]
        numbers = all(re.fullmatch(r"0|-?[1-9]\d*", value) for value in values)
        return Alphabet([int(value) for value in values] if numbers else values)
    except ValueError as error:
        why = f" ({error})" if isinstance(error, InputError) else ""
        raise DataError(f"{file.name}: expected distinct values, one a line{why}") from None


def _numbers(span: str | None, count: int, form: str) -> list[float]:
    """The numbers of a range, so many as its form names."""
    try:
        found = [float(part) for part in (span or "").split(",")]
    except ValueError:
        found = []
    rising = all(low < high for low, high in zip(found[::2], found[1::2], strict=False))
    if len(found) != count or not all(map(math.isfinite, found)) or not rising:
        raise InputError(
            f"expected {option('range')} as {form}, the public range of the values, low before high; got {span!r}"
        )
    return found
