"""Rows in the order in which they happened: by their times or numbers, ties as they stand in the file.

`rows.Source` reads rows for every command, and takes from here what a file needs: sorting, a refusal of rows that go
back in time, and what was chosen for missing values; all of it is noted in `columns.Taken`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.alphabet import MISSING
from seqveil.core.alphabet import OnMissing as Missing
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.files.columns import DECIMAL, Columns, Holes, Taken, ValueType, iso_times
from seqveil.interfaces.files.reading import Chunk, FilePath, file_name, read

if TYPE_CHECKING:
    import polars as pl

_CLOCK = r"^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?$"
_YEARS = (1678, 2261)  # that 64 bits of nanoseconds reach


class Filled:
    """Does what was chosen for rows without a value."""

    def __init__(self, policy: Missing, record: Taken) -> None:
        self._policy, self._record = policy, record
        self._last: dict[Hashable, Any] = {}  # of each user, to be held

    def fill(self, part: Chunk) -> Chunk:
        """The rows that are left, each with a value."""
        import polars as pl

        values = part.values
        empty = np.isnan(values).any(1) if isinstance(values, np.ndarray) else values.is_null().to_numpy()
        lost = np.asarray(empty, bool)
        self._record.missing += int(lost.sum())
        if self._policy == "symbol":
            if isinstance(values, np.ndarray) or values.dtype not in (pl.String, pl.Null):
                raise DataError(f"{self._record.file}: {NO_SYMBOL}")
            return replace(part, values=values.cast(pl.String).fill_null(MISSING)) if lost.any() else part
        if self._policy == "hold":
            part, lost = self._hold(part, lost)
        if not lost.any():
            return part
        self._record.dropped += int(lost.sum())
        return part.take(np.flatnonzero(~lost))

    def _hold(self, part: Chunk, lost: NDArray[np.bool_]) -> tuple[Chunk, NDArray[np.bool_]]:
        """The rows with the last value of their user where one is missing, and those that have none before them."""
        held = part.values.tolist() if isinstance(part.values, np.ndarray) else part.values.to_list()
        still = lost.copy()
        for k, user in enumerate(part.users.to_list()):
            if not lost[k]:
                self._last[user] = held[k]
            elif user in self._last:
                held[k], still[k] = self._last[user], False
        self._record.held += int(lost.sum() - still.sum())
        return replace(part, values=_like(part.values, held)) if lost.any() else part, still


def _like(values: pl.Series | NDArray[np.float64], listed: list[Any]) -> pl.Series | NDArray[np.float64]:
    import polars as pl

    if isinstance(values, np.ndarray):
        return np.array(listed, np.float64)
    return pl.Series(values.name, listed, dtype=None if values.dtype == pl.Null else values.dtype)


NO_SYMBOL = (
    "a missing value can be a symbol of its own where values are names, not numbers that are cut; pass --missing drop "
    "or --missing hold"
)


def order_key(order: pl.Series, row: Callable[[int], int], name: str) -> pl.Series:
    """The order column as numbers: what it holds, or nanoseconds since 1970 for a time; text must be ISO 8601."""
    import polars as pl

    if order.dtype == pl.String:
        fine, coarse = (iso_times(order, unit) for unit in ("ns", "us"))
        wrong = coarse.is_null() | ~coarse.dt.year().is_between(*_YEARS)  # in nanoseconds other years would wrap around
        numbers = order.str.contains(DECIMAL)
        mixed = numbers != numbers[0]
        if numbers.any() and mixed.any():
            bad = row(int(mixed.arg_max() or 0))
            kinds = "something else" if numbers[0] else "numbers"
            raise DataError(f"{name}: row {bad}: column {order.name!r} mixes times with {kinds}; write all of one kind")
        if wrong.any():
            bad = row(int(wrong.arg_max() or 0))
            raise DataError(
                f"{name}: row {bad}: column {order.name!r} must hold numbers or ISO 8601 times of the years "
                f"{_YEARS[0]} to {_YEARS[1]}; write it so, as in 2024-05-01T10:00:00Z, or name date and clock apart, "
                "as in --time-column date,hour"
            )
        order = fine
    return order.to_physical()


def order_keys(order: pl.Series, row: Callable[[int], int], name: str) -> list[pl.Series]:
    """The order column, or each of several, as numbers; of several a time of day (10:30) may be one."""
    import polars as pl

    if order.dtype != pl.Struct:
        return [order_key(order, row, name)]
    keys = []
    for part in order.struct.unnest().get_columns():
        if part.dtype == pl.String and part.str.contains(_CLOCK).all():
            hours, minutes, seconds = (part.str.extract(_CLOCK, k).cast(pl.Float64) for k in (1, 2, 3))
            keys.append(hours * 3600 + minutes * 60 + seconds.fill_null(0.0))
        else:
            keys.append(order_key(part, row, name))
    return keys


def seconds(chunk: Chunk, name: str) -> Floats:
    """The order column in seconds: numbers by their size (`seqveil.core.times`), dates and times since 1970."""
    import polars as pl

    order = chunk.order
    if order is not None and order.dtype == pl.Struct:
        raise DataError(f"{name}: slots and budgets per seconds need times in one column; name --time-column")
    if order is None or chunk.counts:
        raise DataError(f"{name}: slots and budgets per seconds need a column of times; add one, or --time-column")
    if order.dtype == pl.String:
        return np.asarray(order_key(order, chunk.row, name).to_numpy(), np.float64) / 1e9
    if order.dtype.is_temporal():
        stamps = _calendar(order)
        wrong = ~(np.abs(stamps) < clock.LATEST)
        if wrong.any():
            row = chunk.row(int(wrong.argmax()))
            raise DataError(f"{name}: row {row}: column {order.name!r} must hold times before the year 5138; mend it")
        return stamps
    try:
        found = clock.seconds(order.to_numpy())
    except InputError as error:
        row, said = chunk.row(int(vars(error)["position"])), str(error).partition(": ")[2]
        raise DataError(f"{name}: row {row}: {said}") from None
    if (
        clock.says_milliseconds(order.name)
        and np.abs(np.asarray(order.to_numpy(), np.float64)).max(initial=0) < clock.LATEST
    ):
        raise DataError(
            f"{name}: column {order.name!r} is in milliseconds by its name, and numbers this small are read as "
            "seconds; divide them by 1000 and rename the column, or count them from 1970"
        )
    return found


def _calendar(order: pl.Series) -> Floats:
    """Dates and times in seconds; as floats, because in a finer unit far ones would wrap around."""
    import polars as pl

    numbers = np.asarray(order.to_physical().to_numpy(), np.float64)
    if order.dtype == pl.Date:
        return numbers * clock.DAY
    parts = {"ns": 1e9, "us": 1e6, "ms": 1e3}
    return numbers / parts[getattr(order.dtype, "time_unit", "ns")]


class OrderCheck:
    """Refuses rows of a user that go back in time, across all chunks shown to it, and counts ties.

    Rows at the same place in the order keep that of the file. Memory is one entry a user. Without an order column
    there is nothing to check.

    >>> import polars as pl
    >>> check = OrderCheck("walk.csv")
    >>> check.check(Chunk(pl.Series(["a", "b"]), pl.Series([0, 0]), pl.Series("seq", [5, 1]), np.array([1, 2])))
    >>> check.check(Chunk(pl.Series(["b", "a"]), pl.Series([0, 0]), pl.Series("seq", [2, 5]), np.array([3, 4])))
    >>> check.taken.ties
    1
    >>> check.check(Chunk(pl.Series(["a"]), pl.Series([0]), pl.Series("seq", [4]), np.array([5])))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    seqveil.core.errors.DataError: walk.csv: row 5 lies before row 4 of its user by 'seq'; sort the file by it, or ...
    """

    def __init__(self, path: FilePath | pl.DataFrame = "data", taken: Taken | None = None) -> None:
        self._name, self.taken = file_name(path), Taken() if taken is None else taken
        self._last: dict[Any, tuple[Any, ...]] = {}

    def check(self, chunk: Chunk) -> None:
        """Refuse a chunk with a row that comes before one its user had already, and name both."""
        back = self.back(chunk)
        if back is not None:
            assert chunk.order is not None
            by = ", ".join(map(repr, chunk.order.name.split(",")))
            raise DataError(
                f"{self._name}: row {back[0]} lies before row {back[1]} of its user by {by}; "
                "sort the file by it, or pass --sort to fit, release or compare"
            )

    def back(self, chunk: Chunk) -> tuple[int, int] | None:
        """The first row of a chunk that comes before one its user had already, and that one; None where none does."""
        import polars as pl

        if chunk.order is None:
            return None
        keys = order_keys(chunk.order, chunk.row, self._name)
        names = [f"key{k}" for k in range(len(keys))]
        frame = pl.DataFrame({"user": chunk.users, **dict(zip(names, keys, strict=True)), "row": chunk.rows})
        seen = [(user, *self._last[user]) for user in frame["user"].unique() if user in self._last]
        before = pl.DataFrame(seen, schema=frame.schema, orient="row")
        previous = pl.col(*names, "row").shift(1).over("user").name.prefix("previous_")
        both = pl.concat([before, frame]).with_columns(previous)
        back, same = pl.lit(False), pl.lit(True)
        for name in names:
            now, earlier = pl.col(name), pl.col(f"previous_{name}")
            back, same = back | (same & (now < earlier)), same & (now == earlier)
        wrong = both.filter(back)
        if wrong.height:
            return wrong["row"][0], wrong["previous_row"][0]
        self.taken.ties += both.filter(same).height
        self._last |= {user: tuple(rest) for user, *rest in frame.unique("user", keep="last").iter_rows()}
        return None


def sorted_chunks(
    path: FilePath | pl.DataFrame,
    columns: Columns | None = None,
    chunk: int = 200_000,
    format: str | None = None,
    value_type: ValueType = "auto",
    holes: Holes = "none",
    missing: Missing | None = None,
    taken: Taken | None = None,
) -> Iterator[Chunk]:
    """Like ``read``, with all rows sorted by the order column; equal times keep the file's order. Held in memory."""
    import polars as pl

    parts = list(read(path, columns, chunk, format, value_type, holes=holes, missing=missing, taken=taken))
    orders = [part.order for part in parts if part.order is not None]
    if not orders:
        raise DataError(
            f"{file_name(path)}: has no column to sort by; add seq or time, or name yours with --time-column"
        )
    order, users = pl.concat(orders), pl.concat([part.users for part in parts])
    arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
    values = np.concatenate(arrays) if arrays else _stacked([cast("pl.Series", part.values) for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    keys = order_keys(order, lambda i: int(rows[i]), file_name(path))
    places = np.lexsort([key.to_numpy() for key in keys[::-1]])
    for start in range(0, len(places), chunk):
        take = places[start : start + chunk]
        yield Chunk(users[take], values[take], order[take], rows[take], parts[0].counts)


def _stacked(values: list[pl.Series]) -> pl.Series:
    """Columns one behind another; one without any value has no type of its own."""
    import polars as pl

    return pl.concat([value.to_frame() for value in values], how="vertical_relaxed").to_series()


def goes_back(data: FilePath | pl.DataFrame, columns: Columns, format: str | None = None) -> bool:
    """Whether rows go back in time, so that they need to be put in order."""
    check = OrderCheck(data)
    for part in read(data, columns, format=format, value_type=plain_type(columns), holes="any"):
        if part.order is None:
            return False
        if check.back(part) is not None:
            return True
    return False


def in_order(data: pl.DataFrame, columns: Columns) -> Ints:
    """The rows of a frame, counted from 0, in the order in which they happened; ties as they stand."""
    parts = sorted_chunks(data, columns, value_type=plain_type(columns), holes="any")
    return np.concatenate([part.rows for part in parts]) - 1


def plain_type(columns: Columns) -> ValueType:
    """How to read values that are not looked at."""
    return "number" if len(columns.value_columns) == 2 else "text"
