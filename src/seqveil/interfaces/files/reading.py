"""Reading data files: CSV, JSON lines and Parquet, in chunks, in the order the rows happened.

A text file is cut into blocks of whole records, so memory stays bounded whatever the file's size, and standard input
works like a file. Only the columns asked for are kept; the others are dropped before anything else happens.

*Guarantee.* No message holds a field of the file: a problem is named by its row (the first row of data is row 1), and
what a parser says about it is never passed on, because parsers quote what they choke on.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import DataError, InputError

if TYPE_CHECKING:
    import polars as pl

FilePath = str | os.PathLike[str]
ValueType = Literal["auto", "text", "number"]
Holes = Literal["none", "empty", "any"]  # values that may be missing: none, those of empty fields, any unreadable one

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
BLOCK_BYTES = 4 << 20
RECORD_BYTES = 16 << 20  # a longer record is a quote that was never closed
SLICE_ROWS = 1_000_000
_WHOLE, _PADDED = r"^[+-]?(0|[1-9]\d{0,17})$", r"^[+-]?0\d"
_DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_TIMES = ("%FT%T%.f%#z", "%FT%T%.f", "%FT%H:%M%#z", "%FT%H:%M", "%F")
_YEARS = (1678, 2261)  # that 64 bits of nanoseconds reach


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the user, the value (``"x,y"`` for two coordinates) and the order.

    Without ``time`` a column ``seq``, or else ``time``, gives the order where the file has one. With ``clock`` the
    order is read as times, so ``time`` alone can give it, and events of one moment keep the order of the file.

    >>> Columns(value="lon,lat").value_columns
    ('lon', 'lat')
    """

    user: str = "user"
    value: str = "value"
    time: str | None = None
    clock: bool = False

    def __post_init__(self) -> None:
        names = [self.user, *self.value_columns, *([] if self.time is None else [self.time])]
        if len(self.value_columns) > 2 or not all(names) or len(set(names)) < len(names):
            raise InputError(f"expected different names for user, value (one, or two as in x,y) and time; got {names}")

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns of the value: one, or two for places in a plane."""
        return tuple(name.strip() for name in self.value.split(","))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows. ``values`` is a series, or a (T, 2) array for two value columns; the repr shows no data."""

    users: pl.Series = field(repr=False)
    values: pl.Series | NDArray[np.float64] = field(repr=False)
    order: pl.Series | None = field(repr=False)
    first_row: int
    rows: NDArray[np.int64] | None = field(default=None, repr=False)  # set where rows no longer follow the file
    counts: bool = False  # whether the order counts events: a column seq that nobody named as times

    @property
    def n(self) -> int:
        """How many events it has."""
        return len(self.users)

    def row(self, i: int) -> int:
        """The row of the file, counted from 1, that entry ``i`` came from."""
        return self.first_row + i if self.rows is None else int(self.rows[i])

    def take(self, at: slice | NDArray[np.intp]) -> Chunk:
        """Some of the rows."""
        rows = np.arange(self.first_row, self.first_row + self.n) if self.rows is None else self.rows
        order = None if self.order is None else self.order[at]
        return Chunk(self.users[at], self.values[at], order, self.first_row, rows[at], self.counts)


def read(
    path: FilePath,
    columns: Columns | None = None,
    chunk: int = 200_000,
    format: str | None = None,
    value_type: ValueType = "auto",
    live: bool = False,
    holes: Holes = "none",
) -> Iterator[Chunk]:
    """Read a file, or standard input for ``-``, as chunks of at most ``chunk`` rows.

    Parameters
    ----------
    path: a .csv, .tsv, .jsonl, .ndjson or .parquet file, or ``-`` (CSV unless ``format`` says otherwise).
    value_type: "text", "number" (decimal), or "auto": the file's own type; in a CSV what the first 4 MB look like,
        where a leading zero makes text. Users in a CSV are always text.
    live: give what has arrived without waiting for a full chunk.
    holes: "any": a value that is missing or cannot be read is null (NaN in an array); "empty": one that is missing
        alone; "none": both are refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "walk.csv")
    ...     _ = path.write_text("user,value,note\\n007,3,a\\n007,4,b\\n008,3,c\\n")
    ...     [(c.first_row, c.users.to_list(), c.values.to_list()) for c in read(path, chunk=2)]
    [(1, ['007', '007'], [3, 4]), (3, ['008'], [3])]
    """
    if chunk < 1 or value_type not in ("auto", "text", "number"):
        raise InputError(f'expected chunk >= 1 and value_type "auto", "text" or "number"; got {chunk}, {value_type!r}')
    reader = _Reader(os.fspath(path), format_of(path, format), columns or Columns(), value_type, live, holes)
    if reader.path != "-" and os.path.isdir(reader.path):
        reader.refuse("is a folder; name a file in it")
    if reader.path != "-" and not os.path.exists(reader.path):
        reader.refuse("no such file; check the path")
    return reader.chunks(chunk)


def file_name(path: FilePath) -> str:
    """The last part of a path, which is what messages call a file."""
    return os.path.basename(os.path.normpath(path))


def format_of(path: FilePath, format: str | None) -> str:
    """The format of a file, as it was asked for or by its extension."""
    guess = "csv" if os.fspath(path) == "-" else FORMATS.get(Path(path).suffix.lower())
    chosen = guess if format is None else FORMATS.get(f".{format}")
    if chosen is None and format is not None:
        raise InputError(f"expected a format csv, tsv, jsonl or parquet; got {format!r}")
    if chosen is None:
        raise DataError(
            f"{file_name(path)}: expected an extension {', '.join(FORMATS)}; convert the file or pass a format"
        )
    if chosen == "parquet" and os.fspath(path) == "-":
        raise DataError("-: Parquet cannot pass through a pipe; name a file, or use csv or jsonl")
    return chosen


@dataclass
class _Reader:
    """One pass over one file. What the first rows settle (columns, types) and the next row's number are kept here."""

    path: str
    format: str
    columns: Columns
    value_type: ValueType
    live: bool
    holes: Holes = "none"
    row: int = 1
    width: int = 0
    keep: dict[str, Any] = field(default_factory=dict)  # CSV: position to name; JSON: name to type
    kinds: dict[str, str] = field(default_factory=dict)

    def refuse(self, problem: str) -> NoReturn:
        raise DataError(f"{file_name(self.path)}: {problem}") from None

    def chunks(self, size: int) -> Iterator[Chunk]:
        import polars as pl

        held, first_row = pl.DataFrame(), 1
        for frame in self.frames():
            typed = self.typed(frame)
            self.row += frame.height
            held = pl.concat([held, typed]) if held.height else typed
            while held.height >= size or (self.live and held.height):
                yield self.chunk(held[:size], first_row)
                first_row += min(size, held.height)
                held = held[size:]
        if held.height:
            yield self.chunk(held, first_row)
        elif first_row == 1:
            self.refuse("holds no rows of data; pass a file with at least one")

    def chunk(self, frame: pl.DataFrame, first_row: int) -> Chunk:
        width = 1 + len(self.columns.value_columns)
        series = frame.rechunk().get_columns()
        values = series[1] if width == 2 else np.column_stack([column.to_numpy() for column in series[1:width]])
        order = series[width] if len(series) > width else None
        counts = order is not None and self.columns.time is None and order.name == "seq"
        return Chunk(series[0], values, order, first_row, counts=counts)

    def frames(self) -> Iterator[pl.DataFrame]:
        """Frames with the columns user, value(s) and perhaps order, as the file has them."""
        if self.format == "parquet":
            yield from self.parquet()
            return
        parse = self.json if self.format == "jsonl" else self.csv
        with ExitStack() as stack:
            try:
                stream = sys.stdin.buffer if self.path == "-" else stack.enter_context(open(self.path, "rb"))
            except OSError as error:
                self.refuse(f"cannot be opened ({error.strerror}); check its permissions")
            yield from map(parse, self.blocks(cast(io.BufferedReader, stream)))

    def blocks(self, stream: io.BufferedReader) -> Iterator[bytes]:
        """The stream in blocks that end just behind a newline outside quotes: an even number of quotes lies before."""
        held, first = b"", True
        while piece := stream.read1(BLOCK_BYTES) if self.live else stream.read(BLOCK_BYTES):
            held = (held + piece).removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n") if first else held + piece
            end = held.rfind(b"\n")
            while self.format != "jsonl" and end >= 0 and held.count(b'"', 0, end) % 2:
                end = held.rfind(b"\n", 0, held.rfind(b'"', 0, end))
            if end >= 0:
                yield held[: end + 1]
                held, first = held[end + 1 :], False
            elif len(held) > RECORD_BYTES:
                self.refuse(f"a record exceeds {RECORD_BYTES >> 20} MB; look for a quote that is never closed")
        if held.strip():
            yield held
        elif first:
            self.refuse("is empty; pass a file with at least one row")

    def select(self, found: Sequence[str]) -> list[str]:
        """The columns to keep, in the order user, value(s), order."""
        wanted = [self.columns.user, *self.columns.value_columns]
        usual = ("time",) if self.columns.clock else ("seq", "time")
        order = [name for name in usual if name in found and name not in wanted][:1]
        wanted += order if self.columns.time is None else [self.columns.time]
        missing = [name for name in wanted if name not in found]
        if missing:
            # A CSV with none of the names may have no header at all: its first line is then somebody's data.
            hide = len(missing) == len(wanted) and self.format in ("csv", "tsv")
            has = "its first line must be a header" if hide else f"it has {', '.join(map(repr, found))}"
            what = " and no column ".join(map(repr, missing))
            options = "--time-column" if missing == [self.columns.time] else "--user-column and --value-column"
            self.refuse(f"no column {what} ({has}); name yours with {options}")
        if any(found.count(name) > 1 for name in wanted):
            self.refuse("a column that is needed appears twice in the header; rename one of the two")
        return wanted

    def csv(self, block: bytes) -> pl.DataFrame:
        """Every kept field as text. A row with a field too many or too few is refused, a blank line skipped."""
        import polars as pl

        separator = "\t" if self.format == "tsv" else ","
        if not self.width:
            end = block.find(b"\n") + 1 or len(block)
            while block.count(b'"', 0, end) % 2 and end < len(block):
                end = block.find(b"\n", end) + 1 or len(block)
            found = [name.strip() for name in self.csv_rows(block[:end], separator)[0]]
            self.keep = {f"c{found.index(name)}": name for name in self.select(found)}
            self.width, block = len(found), block[end:]
        try:
            header = separator.join(f"c{i}" for i in range(self.width))
            frame = pl.read_csv(header.encode() + b"\n" + block, separator=separator, infer_schema=False)
        except (Exception, pl.exceptions.PanicException):
            frame = pl.DataFrame()
        # polars refuses a long row but fills up a short one: then separators are missing from the count.
        inside = 0
        if b'"' in block and frame.height:
            inside = sum(frame.select(pl.all().str.count_matches(separator, literal=True).sum()).row(0))
        if not frame.width or block.count(separator.encode()) != frame.height * (self.width - 1) + inside:
            frame = frame.filter(self.filled_rows(block, separator, frame.height))
        return frame.select(list(self.keep)).rename(self.keep)

    def filled_rows(self, block: bytes, separator: str, height: int) -> pl.Series:
        """Which rows of a doubtful block are not blank, by a slow reading that refuses the first wrong row."""
        import polars as pl

        rows = self.csv_rows(block, separator)
        widths = [len(row) for row in rows if row]
        for i, width in enumerate(widths):
            if width != self.width:
                self.refuse(f"row {self.row + i} has {width} fields, the header {self.width}; mend or quote it")
        if height != len(rows):
            span = f"rows {self.row} to {self.row + len(widths) - 1}"
            self.refuse(f"{span} cannot be read as CSV; quote fields that hold a quote or a newline")
        return pl.Series([bool(row) for row in rows], dtype=pl.Boolean)

    def csv_rows(self, block: bytes, separator: str) -> list[list[str]]:
        rows: list[list[str]] = []
        try:
            rows.extend(csv.reader(io.StringIO(block.decode(), newline=""), delimiter=separator, strict=True))
        except UnicodeDecodeError as error:
            lines = block.count(b"\n", 0, error.start)
            where = f"row {self.row + lines}" if self.width else "the header"
            self.refuse(f"{where} is not UTF-8 text; save the file as UTF-8, or name it for the format it has")
        except csv.Error:
            where = f"row {self.row + sum(map(bool, rows))}" if self.width else "the header"
            self.refuse(f"{where} cannot be read as CSV; close its quotes and double those inside a field")
        return rows

    def json(self, block: bytes) -> pl.DataFrame:
        import polars as pl

        def parse(text: bytes) -> pl.DataFrame | None:
            try:
                schema, loose = self.keep or None, self.holes == "any" and bool(self.keep)
                return pl.read_ndjson(text, schema=schema, infer_schema_length=None, ignore_errors=loose)
            except (Exception, pl.exceptions.PanicException):
                return None

        frame = parse(block)
        if frame is None:
            lines = [line for line in block.splitlines(keepends=True) if line.strip()]
            bad = bisect_left(range(1, len(lines)), True, key=lambda n: parse(b"".join(lines[:n])) is None)
            try:
                known = isinstance(json.loads(lines[bad]), dict)
            except ValueError:
                known = False
            remedy = (
                "holds another type than the rows before; write one type" if known else "is not a JSON object; mend"
            )
            self.refuse(f"row {self.row + bad} {remedy} or remove the line")
        if not self.keep:
            self.keep = {name: frame.schema[name] for name in self.select(frame.columns)}
            if self.value_type != "auto":
                kind = pl.String if self.value_type == "text" else pl.Float64
                self.keep |= dict.fromkeys(self.columns.value_columns, kind)
            return self.json(block)
        return frame

    def parquet(self) -> Iterator[pl.DataFrame]:
        import polars as pl

        def attempt(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except (Exception, pl.exceptions.PanicException):
                self.refuse("cannot be read as Parquet; check that it is whole, or name it for the format it has")

        scan = pl.scan_parquet(self.path, glob=False, hive_partitioning=False)
        keep = self.select(list(attempt(scan.collect_schema)))
        while (frame := attempt(scan.select(keep).slice(self.row - 1, SLICE_ROWS).collect)).height:
            yield frame

    def typed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with every column of the type that the first rows settled, and no field empty but for `holes`."""
        import polars as pl

        casts = {"text": pl.String, "whole": pl.Int64, "number": pl.Float64}
        columns = []
        for series in frame.get_columns():
            holes = self.holes if series.name in self.columns.value_columns else "none"
            empty = series.is_null() | (series == "" if series.dtype == pl.String else False)
            if holes == "none" and empty.any():
                row = self.row + int(empty.arg_max() or 0)
                self.refuse(f"row {row}: column {series.name!r} is empty; fill it in or remove the row")
            if series.name not in self.kinds and series.len():
                self.kinds[series.name] = self.kind(series)
            kind = self.kinds.get(series.name, "text")
            column = series.cast(casts[kind], strict=False) if kind in casts else series
            bad = column.is_null() | (~column.is_finite() if column.dtype.is_float() else False)
            if holes == "empty":
                column, bad = pl.select(pl.when(~empty).then(column)).to_series().alias(series.name), bad & ~empty
            if holes != "any" and bad.any():
                expected = "whole numbers like the first rows" if kind == "whole" else "finite numbers"
                row = self.row + int(bad.arg_max() or 0)
                remedy = "mend the row, or check that this is the value column and the model is this file's"
                self.refuse(f"row {row}: column {series.name!r} must hold {expected}; {remedy}")
            columns.append(column)
        return pl.DataFrame(columns)

    def kind(self, series: pl.Series) -> str:
        """How to read a column: "text", "whole", "number", or "own" for the type that the file gives it."""
        import polars as pl

        values = self.columns.value_columns
        if series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object):
            self.refuse(f"column {series.name!r} must hold text or numbers; unpack it into plain columns")
        if series.name in values and series.dtype == pl.Boolean:
            return "own"  # true is no number
        if series.name in values and (len(values) == 2 or self.value_type == "number"):
            return "number"
        if series.dtype in (pl.Categorical, pl.Enum) or (series.name in values and self.value_type == "text"):
            return "text"
        if self.format not in ("csv", "tsv"):
            return "number" if series.dtype.is_decimal() else "own"
        padded = series.name in values and series.str.contains(_PADDED).any()
        if series.name == self.columns.user or padded or not series.str.contains(_DECIMAL).all():
            return "text"
        return "whole" if series.str.contains(_WHOLE).all() else "number"


def count_rows(path: FilePath, format: str | None = None) -> int | None:
    """About how many rows a file holds, for a progress bar: lines of text, exact for Parquet; None where unknown.

    A newline inside quotes counts as a row, so a CSV may hold fewer.
    """
    import polars as pl

    if not os.path.isfile(path):
        return None
    kind = format_of(path, format)
    if kind == "parquet":
        try:
            return int(pl.scan_parquet(Path(path), glob=False).select(pl.len()).collect().item())
        except (Exception, pl.exceptions.PanicException):
            return None
    lines, last = 0, b"\n"
    with open(path, "rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return max(0, lines + (last != b"\n") - (kind != "jsonl"))


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
        """Refuse a chunk with an event that comes before one its user had already, and name its row."""
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
    holes: Holes = "none",
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
