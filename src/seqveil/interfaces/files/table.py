"""Reading a table: delimited text, JSON lines or Parquet, plain or compressed, standard input, or a frame in memory.

What separates the fields of a CSV is determined from its first lines. Only the columns asked for are kept. All rows are
held: whatever is fitted, released or decoded needs them together, because the order of rows must reveal nothing.

*Guarantee.* No message holds a field of the file: a problem is named by its row (the first row of data is row 1), and
what a parser says about it is never passed on, because parsers quote what they choke on.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import select
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from seqveil.core.errors import FILES, DataError, InputError, needs_extra

if TYPE_CHECKING:
    import polars as pl

FilePath = str | os.PathLike[str]
Pick = Callable[[Sequence[str]], Sequence[str]]

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FORMS = {"csv": "CSV", "tsv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
FRAME = "the frame"  # what a message calls a frame
BLOCK_BYTES = 4 << 20  # of text that are parsed together: what is wrong in one is looked for in it alone
RECORD_BYTES = 16 << 20  # a longer record is a quote that was never closed


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file or a frame; the repr shows no data."""

    name: str  # what messages call it
    form: str  # in words: "CSV with semicolons, compressed"
    frame: pl.DataFrame = field(repr=False)
    text: bool = False  # whether every field is text, as in a CSV, whatever it stands for


def read_table(
    data: FilePath | pl.DataFrame, pick: Pick | None = None, format: str | None = None, wanted: Sequence[str] = ()
) -> Table:
    """Read a file, standard input for ``-``, or a polars frame.

    Parameters:
        data: a .csv, .tsv, .jsonl, .ndjson or .parquet file, ``.gz`` behind it where it is compressed, or ``-`` (CSV
            unless `format` says otherwise).
        pick: which of the columns that there are to keep; all of them by default.
        wanted: columns that decide between two separators that both fit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "walk.csv")
    ...     _ = path.write_text("user;value;note\\n007;3;a\\n008;4;b\\n")
    ...     found = read_table(path, lambda names: ["user", "value"])
    >>> found.form, found.frame.rows()
    ('CSV with semicolons', [('007', '3'), ('008', '4')])
    """
    with needs_extra(*FILES):
        import polars  # noqa: F401 -- what reads uses it
    if not isinstance(data, str | os.PathLike):
        found = Table(FRAME, "a frame", data if pick is None else data.select(pick(data.columns)))
    elif (kind := format_of(data, format)) == "parquet":
        found = _Reader(file_name(data), kind, pick).parquet(data)
    else:
        reader = _Reader(file_name(data), kind, pick, wanted)
        found = reader.table(_content(data), os.fspath(data) != "-" and compressed(data))
    if not found.frame.height:
        raise DataError(f"{found.name}: holds no rows of data; pass a file with at least one")
    return found


def table_of_bytes(content: bytes, name: str, format: str | None = None) -> Table:
    """All rows and columns of a file that is in memory, of the format that its name gives."""
    with needs_extra(*FILES):
        import polars  # noqa: F401 -- what reads uses it
    kind = format_of(name, format)
    reader = _Reader(file_name(name), kind)
    if kind == "parquet":
        return reader.parquet(io.BytesIO(content))
    found = reader.table(content, compressed(name))
    if reader.width > found.frame.width:
        reader.refuse("two columns have the same name; rename one of them")
    return found


def _content(path: FilePath) -> bytes:
    """The bytes of a file or of standard input."""
    if os.fspath(path) == "-":
        return _piped()
    _refuse_no_file(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{file_name(path)}: cannot be opened ({error.strerror}); check its permissions") from None


def _refuse_no_file(path: FilePath) -> None:
    if os.path.isdir(path):
        raise DataError(f"{file_name(path)}: is a folder; name a file in it")
    if not os.path.exists(path):
        raise DataError(f"{file_name(path)}: no such file; check the path")


def file_name(path: FilePath | pl.DataFrame) -> str:
    """The last part of a path, which is what messages call a file."""
    return os.path.basename(os.path.normpath(path)) if isinstance(path, str | os.PathLike) else FRAME


def compressed(path: FilePath) -> bool:
    """Whether a file is compressed, by its name."""
    return Path(path).suffix.lower() == ".gz"


def known_format(path: FilePath) -> str | None:
    """The format that the name of a file says; None where it says none that is read."""
    plain = Path(path).with_suffix("") if compressed(path) else Path(path)
    found = FORMATS.get(plain.suffix.lower())
    return None if compressed(path) and found == "parquet" else found


def format_of(path: FilePath, format: str | None) -> str:
    """The format of a file to read, by its name unless it is given."""
    guess = "csv" if os.fspath(path) == "-" else known_format(path)
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


@dataclass
class _Reader:
    """One pass over one file. What the first block settles and the number of the next row are kept here."""

    name: str
    format: str
    pick: Pick | None = None
    wanted: Sequence[str] = ()
    row: int = 1
    width: int = 0
    separator: str = ","
    keep: dict[str, str] = field(default_factory=dict)  # of a CSV: position to name

    def refuse(self, problem: str) -> NoReturn:
        raise DataError(f"{self.name}: {problem}") from None

    def chosen(self, found: Sequence[str]) -> list[str]:
        """The columns to keep."""
        if self.pick is None:
            return list(dict.fromkeys(found))
        kept = list(dict.fromkeys(self.pick(found)))
        if any(list(found).count(name) > 1 for name in kept):
            self.refuse("a column that is needed appears twice in the header; rename one of the two")
        return kept

    def table(self, content: bytes, packed: bool) -> Table:
        """The rows of a text file."""
        import polars as pl

        try:
            plain = gzip.decompress(content) if packed else content
        except (gzip.BadGzipFile, zlib.error, EOFError):
            self.refuse("cannot be read as gzip; check that it is whole, or name it for the format it has")
        plain = plain.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
        if not plain.strip():
            self.refuse("is empty; pass a file with at least one row")
        behind = ", compressed" * packed
        if self.format == "jsonl":
            return Table(self.name, FORMS[self.format] + behind, self.json(plain))
        frame = pl.concat([self.csv(block) for block in self.blocks(plain)])
        return Table(self.name, f"CSV with {SEPARATORS[self.separator]}{behind}", frame, text=True)

    def blocks(self, content: bytes) -> Iterator[bytes]:
        """Parts that end just behind a newline outside quotes: an even number of quotes lies before."""
        at, size = 0, BLOCK_BYTES
        while at < len(content):
            end = len(content) if at + size >= len(content) else content.rfind(b"\n", at, at + size) + 1
            while 0 < end < len(content) and content.count(b'"', at, end) % 2:
                end = content.rfind(b"\n", at, content.rfind(b'"', at, end)) + 1
            if end > at:
                yield content[at:end]
                at, size = end, BLOCK_BYTES
            elif size > RECORD_BYTES:
                self.refuse(f"a record exceeds {RECORD_BYTES >> 20} MB; look for a quote that is never closed")
            else:
                size *= 2

    def csv(self, block: bytes) -> pl.DataFrame:
        """Every kept field as text. A row with a field too many or too few is refused, a blank line skipped."""
        import polars as pl

        if not self.width:
            block = self.header(block)
        separator = self.separator
        try:
            head = separator.join(f"c{i}" for i in range(self.width)).encode()
            frame = pl.read_csv(head + b"\n" + block, separator=separator, infer_schema=False)
        except (Exception, pl.exceptions.PanicException):
            frame = pl.DataFrame()
        # polars refuses a long row but fills up a short one: then separators are missing from the count.
        inside = 0
        if b'"' in block and frame.height:
            inside = sum(frame.select(pl.all().str.count_matches(separator, literal=True).sum()).row(0))
        if not frame.width or block.count(separator.encode()) != frame.height * (self.width - 1) + inside:
            frame = frame.filter(self.filled_rows(block, frame.height))
        self.row += frame.height
        return frame.select(list(self.keep)).rename(self.keep)

    def header(self, block: bytes) -> bytes:
        """Take the first line off: which columns there are, and which of them are kept."""
        found = separator_of(block, self.wanted, "\t" if self.format == "tsv" else ",")
        if found is None:
            self.refuse("its fields can be cut in two ways; quote fields that hold a comma, semicolon, tab or bar")
        self.separator = found
        end = block.find(b"\n") + 1 or len(block)
        while block.count(b'"', 0, end) % 2 and end < len(block):
            end = block.find(b"\n", end) + 1 or len(block)
        names = [name.strip() for name in self.csv_rows(block[:end])[0]]
        self.keep = {f"c{names.index(name)}": name for name in self.chosen(names)}
        self.width = len(names)
        return block[end:]

    def filled_rows(self, block: bytes, height: int) -> pl.Series:
        """Which rows of a doubtful block are not blank, by a slow reading that refuses the first wrong row."""
        import polars as pl

        rows = self.csv_rows(block)
        widths = [len(row) for row in rows if row]
        for i, width in enumerate(widths):
            if width != self.width:
                self.refuse(f"row {self.row + i} has {width} fields, the header {self.width}; mend or quote it")
        if height != len(rows):
            span = f"rows {self.row} to {self.row + len(widths) - 1}"
            self.refuse(f"{span} cannot be read as CSV; quote fields that hold a quote or a newline")
        return pl.Series([bool(row) for row in rows], dtype=pl.Boolean)

    def csv_rows(self, block: bytes) -> list[list[str]]:
        rows: list[list[str]] = []
        try:
            rows.extend(csv.reader(io.StringIO(block.decode(), newline=""), delimiter=self.separator, strict=True))
        except UnicodeDecodeError as error:
            lines = block.count(b"\n", 0, error.start)
            where = f"row {self.row + lines}" if self.width else "the header"
            self.refuse(f"{where} is not UTF-8 text; save the file as UTF-8, or name it for the format it has")
        except csv.Error:
            where = f"row {self.row + sum(map(bool, rows))}" if self.width else "the header"
            self.refuse(f"{where} cannot be read as CSV; close its quotes and double those inside a field")
        return rows

    def json(self, content: bytes) -> pl.DataFrame:
        """An object a line; a column of several types is text."""
        import polars as pl

        def parse(text: bytes) -> pl.DataFrame | None:
            try:
                return pl.read_ndjson(text, infer_schema_length=None)
            except (Exception, pl.exceptions.PanicException):
                return None

        frame = parse(content)
        if frame is None:
            lines = [line for line in content.splitlines(keepends=True) if line.strip()]
            bad = bisect_left(range(1, len(lines)), True, key=lambda n: parse(b"".join(lines[:n])) is None)
            try:
                known = isinstance(json.loads(lines[bad]), dict)
            except ValueError:
                known = False
            what = "holds another type than the rows before; write one type" if known else "is not a JSON object; mend"
            self.refuse(f"row {bad + 1} {what} or remove the line")
        kept = frame.select(self.chosen(frame.columns))
        self.refuse_nested(kept, content)
        return kept

    def refuse_nested(self, frame: pl.DataFrame, content: bytes) -> None:
        """Refuse a list or an object where other rows have text: the parser writes it out as text, brackets and all."""
        import polars as pl

        lines = list[bytes]()
        for name in (name for name in frame.columns if self.pick is not None and frame.schema[name] == pl.String):
            for row in frame[name].str.contains(r"^[\[{]").fill_null(False).arg_true():
                lines = lines or [line for line in content.splitlines() if line.strip()]
                if isinstance(json.loads(lines[row]).get(name), list | dict):
                    self.refuse(
                        f"row {row + 1}: column {name!r} holds a list or an object where text is expected; write a row "
                        "for each event"
                    )

    def parquet(self, source: FilePath | io.BytesIO) -> Table:
        """The columns of a Parquet file, which has types of its own."""
        import polars as pl

        place = source if isinstance(source, io.BytesIO) else Path(source)
        if isinstance(place, Path):
            _refuse_no_file(place)

        def attempt(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except (Exception, pl.exceptions.PanicException):
                self.refuse("cannot be read as Parquet; check that it is whole, or name it for the format it has")

        scan = attempt(lambda: pl.scan_parquet(place, glob=False, hive_partitioning=False))
        keep = self.chosen(list(attempt(scan.collect_schema)))
        return Table(self.name, FORMS[self.format], attempt(scan.select(keep).collect))


def separator_of(block: bytes, wanted: Sequence[str], usual: str) -> str | None:
    """What separates the fields of a text file whose first lines these are; None where two answers fit as well.

    A separator fits where it stands in the header and cuts the next rows into as many fields. Of several that fit, the
    one is taken that finds more of the columns `wanted`.

    >>> names = ["user", "value"]
    >>> separator_of(b"user;value\\na;1,5\\n", names, ","), separator_of(b'user|value\\n"a,b"|x\\n', names, ",")
    (';', '|')
    """
    text = block[: 1 << 16].decode("utf-8", errors="replace")
    if len(block) > 1 << 16:
        text = text.rpartition("\n")[0] or text
    scores: dict[str, tuple[bool, int]] = {}
    for separator in SEPARATORS:
        rows: list[list[str]] = []
        try:
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
                if row:
                    rows.append(row)
                if len(rows) > 20:
                    break
        except csv.Error:
            continue
        if rows and len(rows[0]) > 1:
            found = sum(name.strip() in wanted for name in rows[0])
            scores[separator] = all(len(row) == len(rows[0]) for row in rows), found
    if not scores:
        return usual
    best = max(found for _, found in scores.values())
    leading = [separator for separator, (_, found) in scores.items() if found == best]
    if len(leading) > 1:
        leading = [separator for separator in leading if scores[separator][0]] or leading
    if len(leading) > 1 and best == 0:  # none of the names is there, which is said in its own words
        return usual if usual in leading else leading[0]
    return leading[0] if len(leading) == 1 else None


def count_rows(path: FilePath) -> int | None:
    """About how many rows a file holds, for a progress bar: lines of text, exact for Parquet; None where unknown."""
    import polars as pl

    kind = known_format(path) if os.path.isfile(path) and not compressed(path) else None
    if kind is None:
        return None
    if kind == "parquet":
        try:
            return int(pl.scan_parquet(Path(path), glob=False).select(pl.len()).collect().item())
        except (Exception, pl.exceptions.PanicException):
            return None
    with open(path, "rb") as stream:
        lines = sum(block.count(b"\n") for block in iter(lambda: stream.read(BLOCK_BYTES), b""))
    return max(0, lines - (kind != "jsonl"))


def _piped() -> bytes:
    """All of standard input. A signal may reach another thread than this one, so none is waited for without end."""
    try:
        number = sys.stdin.fileno()
    except OSError:  # not a file, as in a test
        return sys.stdin.buffer.read()
    parts = []
    while True:
        if select.select([number], [], [], 0.2)[0]:
            parts.append(os.read(number, 1 << 20))
            if not parts[-1]:
                return b"".join(parts)
