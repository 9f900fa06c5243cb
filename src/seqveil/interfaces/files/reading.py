"""Reading data files: delimited text, JSON lines and Parquet, plain or compressed, in chunks.

A text file is cut into blocks of whole records, so memory stays bounded whatever the file's size, and standard input
works like a file. What separates the fields of a CSV is determined from its first lines. Only the
columns asked for are kept; the others are dropped before anything else happens. `ordering` puts the rows in order.

*Guarantee.* No message holds a field of the file: a problem is named by its row (the first row of data is row 1), and
what a parser says about it is never passed on, because parsers quote what they choke on.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import OnMissing as Missing
from seqveil.core.errors import FILES, DataError, InputError, needs_extra
from seqveil.interfaces.files.columns import (
    SEPARATORS,
    Columns,
    Holes,
    Taken,
    Types,
    ValueType,
    coordinates_in,
    joined,
    order_in,
    separator_of,
)

if TYPE_CHECKING:
    import polars as pl

FilePath = str | os.PathLike[str]

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FORMS = {"csv": "CSV", "tsv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet", "frame": "a frame"}
FRAME = "the frame"  # what a message calls a frame
BLOCK_BYTES = 4 << 20
RECORD_BYTES = 16 << 20  # a longer record is a quote that was never closed
SLICE_ROWS = 1_000_000


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows. ``values`` is a series, or a (T, 2) array for two value columns; the repr shows no data."""

    users: pl.Series = field(repr=False)
    values: pl.Series | NDArray[np.float64] = field(repr=False)
    order: pl.Series | None = field(repr=False)
    rows: NDArray[np.int64] = field(repr=False)  # of the file, counted from 1, that each entry came from
    counts: bool = False  # whether the order counts events: a column seq that nobody named as times

    @property
    def n(self) -> int:
        """How many events it has."""
        return len(self.users)

    def row(self, i: int) -> int:
        """The row of the file, counted from 1, that entry ``i`` came from."""
        return int(self.rows[i])

    def take(self, at: slice | NDArray[np.intp]) -> Chunk:
        """Some of the rows."""
        order = None if self.order is None else self.order[at]
        return Chunk(self.users[at], self.values[at], order, self.rows[at], self.counts)


def read(
    path: FilePath | pl.DataFrame,
    columns: Columns | None = None,
    chunk: int = 200_000,
    format: str | None = None,
    value_type: ValueType = "auto",
    live: bool = False,
    holes: Holes = "none",
    missing: Missing | None = None,
    taken: Taken | None = None,
) -> Iterator[Chunk]:
    """Read a file, standard input for ``-``, or a polars frame, as chunks of at most ``chunk`` rows.

    Parameters
    ----------
    path: a .csv, .tsv, .jsonl, .ndjson or .parquet file, ``.gz`` behind it where it is compressed, or ``-`` (CSV
        unless ``format`` says otherwise).
    value_type: "text", "number" (decimal), or "auto": the file's own type; in a CSV what the first 4 MB look like,
        where a leading zero makes text. Users in a CSV are always text.
    live: give what has arrived without waiting for a full chunk.
    holes: "any": a value that is missing or cannot be read is null (NaN in an array); "empty": one that is missing
        alone; "none": both are refused.
    missing: what will be done with values that are missing: they are null then, and what cannot be read is refused.
    taken: a record to fill in with what the columns were taken for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "walk.csv")
    ...     _ = path.write_text("user;value;note\\n007;3;a\\n007;4;b\\n008;3;c\\n")
    ...     [(c.row(0), c.users.to_list(), c.values.to_list()) for c in read(path, chunk=2)]
    [(1, ['007', '007'], [3, 4]), (3, ['008'], [3])]
    """
    if chunk < 1 or value_type not in ("auto", "text", "number"):
        raise InputError(f'expected chunk >= 1 and value_type "auto", "text" or "number"; got {chunk}, {value_type!r}')
    how: dict[str, Any] = {"value_type": value_type, "live": live, "holes": holes, "missing": missing}
    reader = _Reader.of(path, format, columns=columns or Columns(), taken=Taken() if taken is None else taken, **how)
    return reader.chunks(chunk)


def first_rows(path: FilePath | pl.DataFrame, format: str | None = None) -> pl.DataFrame:
    """The first rows of a file with all columns, those of a text file as text: for a look at them."""
    reader = _Reader.of(path, format, everything=True)
    found = next(reader.frames(), None)
    if found is None or not found.height:
        reader.refuse("holds no rows of data; pass a file with at least one")
    return found


def whole_table(text: bytes, format: str, name: str) -> pl.DataFrame:
    """All rows and columns of a text file that is in memory, those of a delimited one as text; messages name it so."""
    with needs_extra(*FILES):
        import polars as pl

    reader, parts = _Reader(name, format, everything=True), []
    for part in reader.text(io.BytesIO(text)):
        parts.append(part)
        reader.row += part.height
    if not reader.row > 1:
        reader.refuse("holds no rows of data; pass a file with at least one")
    if reader.width > parts[0].width:
        reader.refuse("two columns have the same name; rename one of them")
    return pl.concat(parts, how="vertical_relaxed")


def file_name(path: FilePath | pl.DataFrame) -> str:
    """The last part of a path, which is what messages call a file."""
    return os.path.basename(os.path.normpath(path)) if isinstance(path, str | os.PathLike) else FRAME


def compressed(path: FilePath) -> bool:
    """Whether a file is compressed, by its name."""
    return Path(path).suffix.lower() == ".gz"


def is_data(path: FilePath) -> bool:
    """Whether a file is one of data, by its name."""
    return os.fspath(path) == "-" or _known(path) is not None


def _known(path: FilePath) -> str | None:
    plain = Path(path).with_suffix("") if compressed(path) else Path(path)
    found = FORMATS.get(plain.suffix.lower())
    return None if compressed(path) and found == "parquet" else found


def format_of(path: FilePath, format: str | None) -> str:
    """The format of a file to read, by its name unless it is given."""
    guess = "csv" if os.fspath(path) == "-" else _known(path)
    chosen = guess if format is None else FORMATS.get(f".{format}")
    if chosen is None and format is not None:
        raise InputError(f"expected a format csv, tsv, jsonl or parquet; got {format!r}")
    if chosen is None:
        raise DataError(
            f"{file_name(path)}: expected an extension {', '.join(FORMATS)} (text also with .gz behind); convert the "
            "file or pass a format"
        )
    if chosen == "parquet" and os.fspath(path) == "-":
        raise DataError("-: Parquet cannot pass through a pipe; name a file, or use csv or jsonl")
    return chosen


def output_format(path: FilePath, format: str | None) -> str:
    """The format of a file to write: those that can be written row by row."""
    chosen = format_of(path, format)
    if os.fspath(path) != "-" and compressed(path):
        raise DataError(f"{file_name(path)}: is written as {', '.join(FORMATS)}; name one, and convert it then")
    return chosen


@dataclass
class _Reader:
    """One pass over one file. What the first rows settle (columns, types) and the next row's number are kept here."""

    path: str
    format: str
    columns: Columns = field(default_factory=Columns)
    value_type: ValueType = "auto"
    live: bool = False
    holes: Holes = "none"
    missing: Missing | None = None
    frame: pl.DataFrame | None = None
    taken: Taken = field(default_factory=Taken)
    row: int = 1
    width: int = 0
    separator: str = ","
    keep: dict[str, Any] = field(default_factory=dict)  # CSV: position to name; JSON: name to type
    everything: bool = False  # whether to keep all columns

    def __post_init__(self) -> None:
        self.types = Types(self.columns, self.value_type, self.holes, self.missing, self.taken)

    def refuse(self, problem: str) -> NoReturn:
        raise DataError(f"{file_name(self.path)}: {problem}") from None

    @classmethod
    def of(cls, path: FilePath | pl.DataFrame, format: str | None, **how: Any) -> _Reader:
        """The reader of a file or a frame; a path that leads to no file is refused."""
        with needs_extra(*FILES):
            import polars  # noqa: F401 -- what reads uses it
        if not isinstance(path, str | os.PathLike):
            return cls(FRAME, "frame", frame=path, **how)
        reader = cls(os.fspath(path), format_of(path, format), **how)
        if reader.path != "-" and os.path.isdir(path):
            reader.refuse("is a folder; name a file in it")
        if reader.path != "-" and not os.path.exists(path):
            reader.refuse("no such file; check the path")
        return reader

    def chunks(self, size: int) -> Iterator[Chunk]:
        import polars as pl

        held, first_row = pl.DataFrame(), 1
        for frame in self.frames():
            try:
                typed = self.types.of(frame, self.row)
            except DataError as error:
                self.refuse(str(error))
            self.row += frame.height
            held = pl.concat([held, typed], how="vertical_relaxed") if held.height else typed
            while held.height >= size or (self.live and held.height):
                yield self.chunk(held[:size], first_row)
                first_row += min(size, held.height)
                held = held[size:]
        if held.height:
            yield self.chunk(held, first_row)
        elif first_row == 1:
            self.refuse("holds no rows of data; pass a file with at least one")

    def chunk(self, frame: pl.DataFrame, first_row: int) -> Chunk:
        names, held = self.columns, frame.rechunk()
        users = joined([held[name] for name in names.user_columns], names.user)
        pair = len(names.value_columns) == 2
        values = held.select(names.value_columns).to_numpy() if pair else held[names.value_columns[0]]
        given = self.types.order
        order = held[given[0]] if given else None
        if len(given) > 1:
            order = held.select(given).to_struct(",".join(given))
        counts = order is not None and names.time is None and order.name == "seq"
        rows = np.arange(first_row, first_row + held.height)
        return Chunk(users, values, order, rows, counts)

    def frames(self) -> Iterator[pl.DataFrame]:
        """Frames with the columns user, value(s) and perhaps order, as the file has them."""
        if self.format == "frame":
            yield from self.slices()
        elif self.format == "parquet":
            yield from self.parquet()
        else:
            with ExitStack() as stack:
                yield from self.text(self.opened(stack))

    def opened(self, stack: ExitStack) -> io.BufferedReader:
        """The bytes of a text file, whether it is compressed or not."""
        if self.path == "-":
            return cast(io.BufferedReader, sys.stdin.buffer)
        try:
            plain = stack.enter_context(open(self.path, "rb"))  # noqa: SIM115 -- the stack closes it
        except OSError as error:
            self.refuse(f"cannot be opened ({error.strerror}); check its permissions")
        return cast(io.BufferedReader, stack.enter_context(gzip.open(plain))) if compressed(self.path) else plain

    def text(self, stream: io.BufferedReader | io.BytesIO) -> Iterator[pl.DataFrame]:
        try:
            yield from map(self.json if self.format == "jsonl" else self.csv, self.blocks(stream))
        except (gzip.BadGzipFile, zlib.error, EOFError):
            self.refuse("cannot be read as gzip; check that it is whole, or name it for the format it has")

    def slices(self) -> Iterator[pl.DataFrame]:
        """The rows of a frame, which is in memory already."""
        assert self.frame is not None
        keep = self.select(self.frame.columns)
        while (part := self.frame.select(keep).slice(self.row - 1, SLICE_ROWS)).height:
            yield part

    def blocks(self, stream: io.BufferedReader | io.BytesIO) -> Iterator[bytes]:
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
        """The columns to keep; which of them give the order is noted, and why."""
        names = self.columns
        if self.everything:
            return list(found)
        order, why = order_in(found, names)
        wanted = list(dict.fromkeys([*names.user_columns, *names.value_columns, *order]))
        missing = [name for name in wanted if name not in found]
        if missing:
            # A CSV with none of the names may have no header at all: its first line is then somebody's data.
            hide = len(missing) == len(wanted) and self.format in ("csv", "tsv")
            has = "its first line must be a header" if hide else f"it has {', '.join(map(repr, found))}"
            what = " and no column ".join(map(repr, missing))
            options = "--user-column and --value-column"
            if set(missing) <= set(names.time_columns):
                options = "--time-column"
            pair = coordinates_in(found) if set(missing) <= set(names.value_columns) else None
            if pair is not None and not hide:
                self.refuse(
                    f"no column {what}, but {pair[0]!r} and {pair[1]!r}, which are places; name the value "
                    "with --value-column, or fit a model of places with --cell-metres 500"
                )
            look = "" if self.path in ("-", FRAME) else f", or see `seqveil inspect {file_name(self.path)}`"
            self.refuse(f"no column {what} ({has}); name yours with {options}{look}")
        if any(found.count(name) > 1 for name in wanted):
            self.refuse("a column that is needed appears twice in the header; rename one of the two")
        self.types.order = order
        self.types.separator = self.separator if self.format in ("csv", "tsv") else None
        self.note(why)
        return wanted

    def note(self, why: str) -> None:
        """Write down what was taken for what."""
        form = FORMS[self.format]
        form += f" with {SEPARATORS[self.separator]}" if form == "CSV" else ""
        form += ", compressed" if self.path != "-" and self.format != "frame" and compressed(self.path) else ""
        record, names = self.taken, self.columns
        record.file, record.form, record.user, record.value = file_name(self.path), form, names.user, names.value
        record.order, record.why, record.unit = ",".join(self.types.order) or None, why, ""

    def csv(self, block: bytes) -> pl.DataFrame:
        """Every kept field as text. A row with a field too many or too few is refused, a blank line skipped."""
        import polars as pl

        if not self.width:
            self.separator = self.sniffed(block)
        separator = self.separator
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

    def sniffed(self, block: bytes) -> str:
        """What separates the fields."""
        found = separator_of(block, self.columns, "\t" if self.format == "tsv" else ",")
        if found is None:
            self.refuse("its fields can be cut in two ways; quote fields that hold a comma, semicolon, tab or bar")
        return found

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
            self.keep = {name: self.json_type(name, frame.schema[name]) for name in self.select(frame.columns)}
            return self.json(block)
        unsettled = [name for name, kind in self.keep.items() if kind == pl.Null]
        if unsettled and self.row > 1:  # the rows before held nothing that tells the type
            found = pl.read_ndjson(block, infer_schema_length=None).schema
            kinds = {name: self.json_type(name, found[name]) for name in unsettled if name in found}
            if any(kinds[name] != self.keep[name] for name in kinds):
                self.keep |= kinds
                return self.json(block)
        self.refuse_nested(frame, block)
        return frame

    def json_type(self, name: str, found: pl.DataType) -> pl.DataType:
        """The type to read a column with: what stands in it, or for values what was asked for."""
        import polars as pl

        if name not in self.columns.value_columns or self.value_type == "auto" or found.is_nested():
            return found
        return pl.String() if self.value_type == "text" else pl.Float64()

    def refuse_nested(self, frame: pl.DataFrame, block: bytes) -> None:
        """Refuse a list or an object where other rows have text: the parser writes it out as text, brackets and all."""
        import polars as pl

        lines = list[bytes]()
        needed = (*self.columns.user_columns, *self.columns.value_columns)
        for name in (name for name in needed if frame.schema.get(name) == pl.String):
            for row in frame[name].str.contains(r"^[\[{]").fill_null(False).arg_true():
                lines = lines or [line for line in block.splitlines() if line.strip()]
                if isinstance(json.loads(lines[row]).get(name), list | dict):
                    self.refuse(
                        f"row {self.row + row}: column {name!r} holds a list or an object where text is expected; "
                        "write a row for each event"
                    )

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


def count_rows(path: FilePath) -> int | None:
    """About how many rows a file holds, for a progress bar: lines of text, exact for Parquet; None where unknown.

    A newline inside quotes counts as a row, so a CSV may hold fewer.
    """
    import polars as pl

    if not os.path.isfile(path):
        return None
    kind = format_of(path, None)
    if compressed(path):
        return None
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
