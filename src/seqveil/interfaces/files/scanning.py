"""What finds the alphabet of a file: the values that occur, cuts of numbers and points, or cells of the map."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core import geography
from seqveil.core.alphabet import MISSING, OTHER, Alphabet, Bins, Grid, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats
from seqveil.core.slots import NOTHING
from seqveil.interfaces.files.ordering import NO_SYMBOL
from seqveil.interfaces.files.placing import cells_over
from seqveil.interfaces.files.reading import Chunk
from seqveil.interfaces.files.rows import Source
from seqveil.interfaces.files.slots import NO_MEAN

if TYPE_CHECKING:
    from seqveil.interfaces.files.words import FitWords

MOST_SYMBOLS = 100_000
SAMPLE = 2_000_000  # numbers kept to find quantiles
AUTO, AUTO_BINS, AUTO_CELLS = "auto", 20, 10  # about how many bins, or cells each way, "auto" cuts
LARGEST = 1e150  # beyond it nothing is data, and differences of quantiles could overflow
STRANGE = 0.01  # share of rows that are no places at all, beyond which the columns are doubted
TAIL, FENCE, MARGIN = 0.005, 10.0, 0.1  # the bulk: within these quantiles, so many quartile ranges, and a margin


def scanner(source: Source, words: FitWords) -> Distinct | _Width | _Levels | _Plane | _Bulk | _Map:
    """What finds the alphabet of a file: the values that occur, or cuts of numbers."""
    bins, levels, grid, cell_metres, other = words.bins, words.levels, words.grid, words.cell_metres, words.other
    cut = bool(words.ways)
    if cut and other is not None:
        raise InputError("--other pools values that are names, and numbers that are cut have bins; leave one out")
    if cut and source.missing == "symbol":
        raise InputError(NO_SYMBOL)
    if len(words.ways) > 1:
        raise InputError("expected at most one of bins, levels, grid and cell-metres; they are ways to cut numbers")
    pairs = len(source.columns.value_columns) == 2
    if cell_metres is not None:
        if not pairs:
            raise InputError("cells on the map need two columns; name them with --latitude and --longitude")
        return _Map(cell_metres, source.name)
    if pairs and not cut:
        raise InputError(
            "two value columns need cells; pass --cell-metres 500 for places on the map, or --grid auto for points"
        )
    if pairs != (grid is not None):
        raise InputError("a grid and two value columns go together; pass both, as in --grid 10x10 --value-column x,y")
    if AUTO in (bins, grid):
        return _Bulk()
    if grid is not None:
        return _Plane(*cells(grid))
    if bins is not None:
        return _Width(width_of(bins))
    if levels is not None:
        if levels < 1 or levels > MOST_SYMBOLS:
            raise InputError(f"expected a number of levels from 1 to {MOST_SYMBOLS}, got {levels}")
        return _Levels(levels)
    if source.slots is not None and source.slots.rule == "mean":
        raise InputError(NO_MEAN)
    nothing = source.slots is not None and source.slots.empty != "hold"
    return Distinct(source.name, other, source.missing == "symbol", nothing)


def width_of(bins: float | str) -> float:
    """The width of bins as a number.

    >>> width_of("2.5")
    2.5
    """
    try:
        width = float(bins)
    except ValueError:
        raise InputError(f"expected --bins as a width or auto, as in --bins 5; got {bins!r}") from None
    if not (width > 0 and math.isfinite(width)):
        raise InputError(f"expected a bin width that is a finite number above 0, got {bins}")
    return width


def cells(grid: str) -> tuple[int, int]:
    """10x10 as numbers.

    >>> cells("20x10")
    (20, 10)
    """
    parts = grid.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected a grid such as 10x10, or auto; got {grid!r}")
    x, y = (int(part) for part in parts)
    if x * y > MOST_SYMBOLS:
        raise InputError(f"a grid of {x * y} cells is more than the {MOST_SYMBOLS} a model may have; use fewer")
    return x, y


@dataclass
class Distinct:
    """The values that occur; with `other`, those that fewer people have are one, and `missing` is one more."""

    name: str
    other: int | None = None
    missing: bool = False
    nothing: bool = False  # whether slots without events are one more
    seen: set[Hashable] = field(default_factory=set)
    people: dict[Hashable, set[Hashable]] = field(default_factory=dict, repr=False)  # who has a value, few of them

    def __post_init__(self) -> None:
        if self.other is not None and self.other < 1:
            raise InputError(f"expected --other as a number of people, at least 1; got {self.other}")

    def add(self, chunk: Chunk) -> None:
        """Take in the values of a chunk; too many different ones are refused."""
        assert not isinstance(chunk.values, np.ndarray)  # one column, or the scanner would be a grid
        self.seen.update(chunk.values.unique().to_list())
        if self.other is not None:
            self._count(chunk)
        if len(self.seen) > MOST_SYMBOLS:
            raise DataError(
                f"{self.name}: the values differ in more than {MOST_SYMBOLS} ways; cut numbers with --bins or --levels"
            )

    def _count(self, chunk: Chunk) -> None:
        import polars as pl

        assert self.other is not None
        pairs = pl.DataFrame({"value": chunk.values, "user": chunk.users}).unique()
        for value, user in pairs.iter_rows():
            known = self.people.setdefault(value, set())
            if len(known) < self.other:
                known.add(user)

    @property
    def pooled(self) -> int:
        """How many values were taken together."""
        return sum(value not in (OTHER, MISSING, NOTHING) for value in self._rare)

    @property
    def _rare(self) -> set[Hashable]:
        return {value for value, people in self.people.items() if len(people) < (self.other or 0)}

    def alphabet(self) -> Symbols:
        """The alphabet of all values that were seen."""
        kept = self.seen - self._rare if self.other is not None else self.seen
        kept = kept | ({OTHER} if self.other is not None else set()) | ({MISSING} if self.missing else set())
        kept = kept | ({NOTHING} if self.nothing else set())
        return Alphabet.of(kept)


class _Numbers:
    """The least and the greatest number of each value column."""

    def __init__(self) -> None:
        self.low: Floats = np.array(np.inf)
        self.high: Floats = np.array(-np.inf)

    def add(self, chunk: Chunk) -> None:
        numbers = np.asarray(chunk.values, np.float64)
        self.low, self.high = np.minimum(self.low, numbers.min(0)), np.maximum(self.high, numbers.max(0))


class _Width(_Numbers):
    """Bins of one width, with edges at multiples of it."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def alphabet(self) -> Symbols:
        low, high, width = float(self.low), float(self.high), self.width
        first = math.floor(low / width)
        last = max(first + 1, math.ceil(high / width))
        first -= first * width > low  # the division may have rounded past the number
        last += last * width < high
        if last - first > MOST_SYMBOLS:
            raise InputError(f"bins this narrow cut the data into {last - first}, more than {MOST_SYMBOLS}; widen them")
        return Bins.of_width(first * width, last * width, width)


class Sampled(_Numbers):
    """A uniform sample of the numbers where there are very many, else all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[Floats] = []
        self._keys = np.zeros(0)
        self._draw = np.random.default_rng(0)  # thins a sample; no privacy rests on it

    def add(self, chunk: Chunk) -> None:
        """Take some rows into the sample."""
        super().add(chunk)
        self._parts.append(np.asarray(chunk.values, np.float64))
        self._keys = np.concatenate([self._keys, self._draw.random(chunk.n)])
        if len(self._keys) > SAMPLE:
            kept = np.argpartition(self._keys, SAMPLE)[:SAMPLE]
            self._parts, self._keys = [self.numbers[kept]], self._keys[kept]

    @property
    def numbers(self) -> Floats:
        """The sample."""
        return np.concatenate(self._parts)


class _Levels(Sampled):
    """Bins of about equal count."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def alphabet(self) -> Symbols:
        return Bins.quantiles(np.concatenate([self.numbers, [self.low, self.high]]), self.count)


class _Bulk(Sampled):
    """Even bins, or an even grid, over the bulk of the numbers; whatever lies outside goes to the cells at the edge."""

    def alphabet(self) -> Symbols:
        numbers = np.clip(self.numbers, -LARGEST, LARGEST)
        if numbers.ndim == 1:
            return Bins(_round_edges(numbers, AUTO_BINS), "nearest")
        x, y = (_round_edges(numbers[:, axis], AUTO_CELLS) for axis in (0, 1))
        return Grid(x, y, "nearest")


def bulk(numbers: Floats) -> tuple[float, float]:
    """Where nearly all of the numbers lie: few that are far away, or fewer than a hundredth, do not count.

    >>> bulk(np.array([*range(1000), 1e9, -1e9]))
    (0.0, 999.0)
    """
    least, low, quarter, most, high, greatest = np.quantile(numbers, [0, TAIL, 0.25, 0.75, 1 - TAIL, 1])
    if low == high and least < greatest:  # mostly one number: the others say how far to look
        apart = numbers[numbers != low]
        return min(float(low), bulk(apart)[0]), max(float(high), bulk(apart)[1])
    reach = FENCE * (most - quarter) if most > quarter else math.inf
    low, high = max(low, quarter - reach), min(high, most + reach)
    margin = MARGIN * (high - low)
    inside = numbers[(numbers >= low - margin) & (numbers <= high + margin)]
    return float(inside.min()), float(inside.max())


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


def _round_edges(numbers: Floats, count: int) -> Floats:
    """About `count` bins over the bulk of the numbers: their width has one digit, and edges are multiples of it.

    Rounding leaves little in the edges of the data they come from.

    >>> _round_edges(np.linspace(41.3, 98.7, 200), 5)
    array([ 40.,  50.,  60.,  70.,  80.,  90., 100.])
    """
    low, high = bulk(numbers)
    raw = (high / count - low / count) or max(abs(low), 1.0)
    unit = 10.0 ** math.floor(math.log10(raw))
    width = min((step * unit for step in (1, 2, 5, 10)), key=lambda near: abs(near - raw))
    first, last = math.floor(low / width), math.ceil(high / width)
    edges = np.arange(first, max(last, first + 1) + 1, dtype=np.float64) * width
    if (np.diff(edges) <= 0).any():
        raise InputError("the numbers are too close together for auto, given their size; subtract what they share")
    return edges


class _Map(Sampled):
    """Cells of the map around the bulk of latitudes and longitudes."""

    def __init__(self, metres: float, name: str) -> None:
        super().__init__()
        self.metres, self.name = metres, name

    def alphabet(self) -> Symbols:
        points, good = self.numbers, geography.possible(self.numbers)
        if good.mean() < 1.0 - STRANGE:
            raise DataError(
                f"{self.name}: {int((~good).sum()):,} rows are no places: expected latitudes from -90 to 90 and "
                "longitudes from -180 to 180 degrees; check that --latitude and --longitude are not swapped"
            )
        return cells_over(self.metres, around(points[good])).with_policy("nearest")


class _Plane(_Numbers):
    """A regular grid over the box that the points fill."""

    def __init__(self, x_cells: int, y_cells: int) -> None:
        super().__init__()
        self.cells = (x_cells, y_cells)

    def alphabet(self) -> Symbols:
        (x0, y0), (x1, y1) = self.low.tolist(), np.where(self.high > self.low, self.high, self.low + 1).tolist()
        return Grid.regular(*self.cells, (x0, x1, y0, y1))


__all__ = ["AUTO", "AUTO_BINS", "AUTO_CELLS", "MOST_SYMBOLS", "Distinct", "around", "cells", "scanner", "width_of"]
