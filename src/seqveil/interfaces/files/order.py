"""Rows in the order they happened: checking it chunk by chunk, or sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from seqveil.core.errors import DataError
from seqveil.interfaces.files.reading import Chunk, Columns, FilePath, ValueType, file_name, read

if TYPE_CHECKING:
    import polars as pl

_TIMES = ("%FT%T%.f%#z", "%FT%T%.f", "%FT%H:%M%#z", "%FT%H:%M", "%F")
_YEARS = (1678, 2261)  # that 64 bits of nanoseconds reach


def order_key(order: pl.Series, row: Callable[[int], int], name: str) -> pl.Series:
    """The order column as numbers: what it holds, or nanoseconds since 1970 for a time; text must be ISO 8601."""
    import polars as pl

    if order.dtype == pl.String:
        text = pl.lit(order).str.replace(r"^(\S{10}) ", "${1}T")
        fine, coarse = (_parsed(text, unit) for unit in ("ns", "us"))
        wrong = coarse.is_null() | ~coarse.dt.year().is_between(*_YEARS)  # in nanoseconds other years would wrap around
        if wrong.any():
            bad = row(int(wrong.arg_max() or 0))
            raise DataError(
                f"{name}: row {bad}: column {order.name!r} must hold numbers or ISO 8601 times of the years "
                f"{_YEARS[0]} to {_YEARS[1]}; write it so, as in 2024-05-01T10:00:00Z"
            )
        order = fine
    return order.to_physical()


def _parsed(text: pl.Expr, unit: Literal["ns", "us"]) -> pl.Series:
    import polars as pl

    times = [text.str.to_datetime(form, time_unit=unit, time_zone="UTC", strict=False) for form in _TIMES]
    return pl.select(pl.coalesce(times)).to_series()


class OrderCheck:
    """Refuses rows of one user that go back in time or repeat a time, across all chunks shown to it.

    With `ties` a time may be repeated. Memory is one entry per user. Without an order column there is nothing to check.

    >>> import polars as pl
    >>> check = OrderCheck("walk.csv")
    >>> check.check(Chunk(pl.Series(["a", "b"]), pl.Series([0, 0]), pl.Series("seq", [5, 1]), first_row=1))
    >>> check.check(Chunk(pl.Series(["b", "a"]), pl.Series([0, 0]), pl.Series("seq", [2, 5]), first_row=3))
    Traceback (most recent call last):
    seqveil.core.errors.DataError: walk.csv: rows 1 and 4 hold the same user and 'seq'; remove one of them
    """

    def __init__(self, path: FilePath = "data", ties: bool = False) -> None:
        self._name, self._ties = file_name(path), ties
        self._last: dict[Any, tuple[float, int]] = {}

    def check(self, chunk: Chunk) -> None:
        import polars as pl

        if chunk.order is None:
            return
        rows = np.arange(chunk.first_row, chunk.first_row + chunk.n) if chunk.rows is None else chunk.rows
        keys = order_key(chunk.order, chunk.row, self._name)
        frame = pl.DataFrame({"user": chunk.users, "key": keys, "row": rows})
        seen = [(user, *self._last[user]) for user in chunk.users.unique() if user in self._last]
        before = pl.DataFrame(seen, schema=frame.schema, orient="row")
        previous = pl.col("key", "row").shift(1).over("user").name.prefix("previous_")
        key, earlier = pl.col("key"), pl.col("previous_key")
        back = key < earlier if self._ties else key <= earlier
        wrong = pl.concat([before, frame]).with_columns(previous).filter(back)
        if wrong.height:
            first = wrong.row(0, named=True)
            low, high = sorted((first["row"], first["previous_row"]))
            same = f"rows {low} and {high} hold the same user and {chunk.order.name!r}; remove one of them"
            what = f"row {first['row']} lies before row {first['previous_row']} of its user by {chunk.order.name!r}"
            remedy = f"{what}; sort the file by it, or pass --sort"
            raise DataError(f"{self._name}: {same if first['key'] == first['previous_key'] else remedy}")
        self._last |= {user: (at, row) for user, at, row in frame.unique("user", keep="last").iter_rows()}


def sorted_chunks(
    path: FilePath,
    columns: Columns | None = None,
    chunk: int = 200_000,
    format: str | None = None,
    value_type: ValueType = "auto",
    holes: bool = False,
) -> Iterator[Chunk]:
    """Like ``read``, with all rows sorted by the order column; equal times keep the file's order. Held in memory."""
    import polars as pl

    parts = list(read(path, columns, chunk, format, value_type, holes=holes))
    orders = [part.order for part in parts if part.order is not None]
    if not orders:
        raise DataError(
            f"{file_name(path)}: has no column to sort by; add seq or time, or name yours with --time-column"
        )
    order, users = pl.concat(orders), pl.concat([part.users for part in parts])
    arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
    values = np.concatenate(arrays) if arrays else pl.concat([cast("pl.Series", part.values) for part in parts])
    places = np.argsort(order_key(order, lambda i: i + 1, file_name(path)).to_numpy(), kind="stable")
    for start in range(0, len(places), chunk):
        take = places[start : start + chunk]
        yield Chunk(users[take], values[take], order[take], start + 1, take + 1, parts[0].counts)
