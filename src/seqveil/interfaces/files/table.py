"""Tables: delimited text, JSON lines or Parquet, plain or compressed, standard input, and frames of three libraries.

What separates the fields of a CSV is determined from its first lines. Only the columns asked for are kept. All rows are
held: whatever is fitted, released or decoded needs them together, because the order of rows must reveal nothing.

*Guarantee.* No message holds a field of the file: a problem is named by its row (the first row of data is row 1), and
what a parser says about it is never passed on, because parsers quote what they choke on. pandas and pyarrow are never
imported before a frame of theirs came: that can only be from somebody who did.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import polars as pl

from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.events import from_json

FilePath = str | os.PathLike[str]
Pick = Callable[[Sequence[str]], Sequence[str]]

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
FRAMES = {"polars": ("DataFrame", "LazyFrame"), "pandas": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
FRAME = "the frame"  # what a message calls a frame


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file or a frame; the repr shows no data."""

    name: str  # what messages call it
    form: str  # in words: "CSV with semicolons, compressed"
    frame: pl.DataFrame = field(repr=False)
    text: bool = False  # whether every field is text, as in a CSV, whatever it stands for


def read_table(
    data: FilePath | pl.DataFrame | Table,
    pick: Pick | None = None,
    format: str | None = None,
) -> Table:
    """Read a file, standard input for ``-``, or a polars frame; of a table that was read before take some columns.

    `pick` says which of the columns that there are to keep.
    """
    if isinstance(data, str | os.PathLike):
        kind = format_of(data, format)
        return table_of_bytes(_content(data), data, pick, kind)
    found = data if isinstance(data, Table) else Table(FRAME, "a frame", data)
    return _with_rows(found if pick is None else replace(found, frame=found.frame.select(pick(found.frame.columns))))


def table_of_bytes(content: bytes, path: FilePath, pick: Pick | None = None, format: str | None = None) -> Table:
    """The rows of a file that is in memory, of the format that its name gives; else as `read_table`."""
    name, kind = file_name(path), format_of(path, format)
    if kind == "parquet":
        return _with_rows(Table(name, "Parquet", _parquet(content, name, pick)))
    packed = compressed(path)
    try:
        plain = gzip.decompress(content) if packed else content
    except (gzip.BadGzipFile, zlib.error, EOFError):
        _refuse(name, "cannot be read as gzip; check that it is whole, or name it for the format it has")
    plain = plain.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    if not plain.strip():
        _refuse(name, "is empty; pass a file with at least one row")
    if kind == "jsonl":
        found, form = _json(plain, name, pick), "JSON lines"
    else:
        separator = separator_of(plain, "\t" if kind == "tsv" else ",")
        if separator is None:
            _refuse(name, "its fields can be cut in two ways; quote fields that hold a comma, semicolon, tab or bar")
        found, form = _csv(plain.rstrip(b"\r\n"), name, separator), f"CSV with {SEPARATORS[separator]}"
        found = found if pick is None else found.select(pick(found.columns))
    return _with_rows(Table(name, form + ", compressed" * packed, found, kind != "jsonl"))


def _with_rows(found: Table) -> Table:
    if not found.frame.height:
        _refuse(found.name, "holds no rows of data; pass a file with at least one")
    return found


def _refuse(name: str, problem: str) -> NoReturn:
    """Say what is wrong with a file."""
    raise DataError(f"{name}: {problem}") from None


def _content(path: FilePath) -> bytes:
    """The bytes of a file or of standard input."""
    if os.fspath(path) == "-":
        return _piped()
    if os.path.isdir(path):
        _refuse(file_name(path), "is a folder; name a file in it")
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        _refuse(file_name(path), "no such file; check the path")
    except OSError as error:
        _refuse(file_name(path), f"cannot be opened ({error.strerror}); check its permissions")


def _piped() -> bytes:
    """Standard input to its end. A signal may reach another thread than this one, so none is waited for for long."""
    try:
        number = sys.stdin.fileno()
    except OSError:  # not a file, as in a test
        return sys.stdin.buffer.read()
    content = bytearray()
    while True:
        if select.select([number], [], [], 0.2)[0]:
            block = os.read(number, 1 << 16)
            if not block:
                return bytes(content)
            content += block


def file_name(data: FilePath | pl.DataFrame | Table) -> str:
    """What messages call a file: the last part of its path."""
    if isinstance(data, Table):
        return data.name
    return os.path.basename(os.path.normpath(data)) if isinstance(data, str | os.PathLike) else FRAME


def compressed(path: FilePath) -> bool:
    """Whether a file is compressed, by its name."""
    return Path(path).suffix.lower() == ".gz"  # which - has not


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


def _csv(content: bytes, name: str, separator: str) -> pl.DataFrame:
    """Every field of a named column as text. Blank lines are skipped; a row too long or too short is refused."""
    end = content.find(b"\n") + 1 or len(content)
    while content.count(b'"', 0, end) % 2 and end < len(content):
        end = content.find(b"\n", end) + 1 or len(content)
    titles = [title.strip() for title in _rows(content[:end], name, separator, "the header")[0]]
    named = [title for title in titles if title]
    if len(set(named)) < len(named):
        _refuse(name, "a column appears twice in the header; rename one of the two")
    columns, block = [f"c{i}" for i in range(len(titles))], content[end:]
    try:
        head = separator.join(columns).encode()
        frame = pl.read_csv(head + b"\n" + block, separator=separator, infer_schema=False)
    except (Exception, pl.exceptions.PanicException):
        frame = pl.DataFrame()
    # polars refuses a long row but fills up a short one: then separators are missing from the count.
    inside = 0
    if b'"' in block and frame.height:
        inside = sum(frame.select(pl.all().str.count_matches(separator, literal=True).sum()).row(0))
    if not frame.width or block.count(separator.encode()) != frame.height * (len(columns) - 1) + inside:
        rows = list(filter(None, _rows(block, name, separator)))  # slow and strict: the first wrong row is named
        wrong = next((i for i, row in enumerate(rows) if len(row) != len(columns)), None)
        if wrong is not None:
            fields = f"{len(rows[wrong])} fields, the header {len(columns)}"
            _refuse(name, f"row {wrong + 1} has {fields}; mend or quote it")
        frame = pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row")
    return frame.select(pl.col(column).alias(title) for column, title in zip(columns, titles, strict=True) if title)


def _rows(block: bytes, name: str, separator: str, where: str = "") -> list[list[str]]:
    """The fields of each row, by the slow and strict parser."""
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader(io.StringIO(block.decode(), newline=""), delimiter=separator, strict=True))
    except UnicodeDecodeError as error:
        lines = block.count(b"\n", 0, error.start)
        row = where or f"row {lines + 1}"
        _refuse(name, f"{row} is not UTF-8 text; save the file as UTF-8, or name it for the format it has")
    except csv.Error:
        row = where or f"row {sum(map(bool, rows)) + 1}"
        _refuse(name, f"{row} cannot be read as CSV; close its quotes and double those inside a field")
    return rows


def _json(content: bytes, name: str, pick: Pick | None) -> pl.DataFrame:
    """An object a line; a column of several types is text, and NaN is no value."""
    rows: list[dict[str, Any]] = []
    for row, line in enumerate((line for line in content.splitlines() if line.strip()), 1):
        try:
            found = from_json(line)
            if b"\\u" in line:  # half a character would be the same in all names that have one
                json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            _refuse(
                name, f"row {row} is not a JSON object of UTF-8 text, each name in it once; mend or remove the line"
            )
        rows.append(found)
    there = list(dict.fromkeys(chain.from_iterable(rows)))
    return pl.DataFrame([_json_column(key, [row.get(key) for row in rows]) for key in (pick(there) if pick else there)])


def _json_column(name: str, values: list[Any]) -> pl.Series:
    """A column in the type of its values; of lists and objects only that they are some."""
    values = [None if value != value else value for value in values]  # NaN
    kinds = {type(value) for value in values} - {type(None)}
    if kinds & {list, dict}:
        return pl.Series(name, [[]] * len(values), pl.List(pl.String))
    exact = 53 if float in kinds else 63  # bits of a whole number that its column keeps
    mixed = len(kinds) > 1 and kinds != {int, float}
    if mixed or any(type(each) is int and abs(each) >> exact for each in values):
        return pl.Series(name, list(map(_json_text, values)), pl.String)
    return pl.Series(name, values, strict=False)


def _json_text(value: Any) -> str | None:
    """A value as text, whole numbers without a point, whatever stands beside it."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _parquet(content: bytes, name: str, pick: Pick | None) -> pl.DataFrame:
    """The columns of a Parquet file, which has types of its own; of others nothing is read."""
    try:
        names = list(pl.read_parquet_schema(io.BytesIO(content)))
        kept = names if pick is None else list(pick(names))
        return pl.read_parquet(io.BytesIO(content), columns=kept).select(kept)
    except InputError:  # about the columns
        raise
    except (Exception, pl.exceptions.PanicException):
        _refuse(name, "cannot be read as Parquet; check that it is whole, or name it for the format it has")


def separator_of(block: bytes, usual: str) -> str | None:
    """What separates the fields of a text file whose first lines these are; None where two answers fit as well.

    A separator fits where it stands in the header and cuts the next rows into as many fields; where none does, one that
    stands in the header is enough.
    """
    text = block[: 1 << 16].decode("utf-8", errors="replace")
    if len(block) > 1 << 16:
        text = text.rpartition("\n")[0] or text
    fits: dict[str, bool] = {}  # whether all rows have as many fields as the header
    for separator in SEPARATORS:
        try:
            rows = list(islice(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator)), 20))
        except csv.Error:
            continue
        if rows and len(rows[0]) > 1:
            fits[separator] = all(len(row) == len(rows[0]) for row in rows)
    leading = [separator for separator in fits if fits[separator] == max(fits.values())]
    return leading[0] if len(leading) == 1 else None if leading else usual


def kind_of(data: Any) -> str:
    """Which library's frame it is: "polars", "pandas", "pyarrow", or "path" for a file; anything else is refused."""
    if isinstance(data, str | os.PathLike | Table):
        return "path"
    for base in type(data).__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ in FRAMES.get(library, ()):
            return library
    raise InputError(f"expected a file, or a polars, pandas or Arrow frame; got {type(data).__name__}")


def as_polars(data: Any) -> FilePath | pl.DataFrame | Table:
    """A file's path, or a table that was read, as it is; a frame of any kind as polars has it, rows in their order."""
    kind = kind_of(data)
    if kind == "path":
        return data
    if kind == "polars":
        return data.lazy().collect()
    names = [str(name) for name in (data.columns if kind == "pandas" else data.schema.names)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two columns of the frame are called {twice!r}; rename one of them")
    if kind == "pyarrow":
        return pl.DataFrame(pl.from_arrow(data))
    if type(data.index).__name__ == "DatetimeIndex":
        raise InputError("the index of the frame holds times, and no index is read; make it a column by reset_index()")
    return pl.DataFrame([_from_pandas(data.iloc[:, k], name) for k, name in enumerate(names)])


def _from_pandas(column: Any, name: str) -> pl.Series:
    """A column of pandas; one of mixed types stays as it is, and is refused where it is needed."""
    try:
        return pl.Series(name, pl.from_pandas(column))
    except ImportError:
        raise InputError("a pandas frame is read through pyarrow, which is missing; pip install pyarrow") from None
    except Exception:  # pyarrow's errors quote the value, and nobody's value may stand in an error
        return pl.Series(name, column.tolist(), dtype=pl.Object)


def as_kind(data: Any, made: pl.DataFrame) -> Any:
    """A table of its own in the kind of another frame, of which nothing else is taken: neither index nor types.

    Gathered text is views into the memory of the rows that came, which holds all of them, in the order they came in; an
    Arrow file or a pickle of the frame would carry it along. So text is written into memory of its own.
    """
    texts = [pl.Series(each.name, each.to_list(), pl.String) for each in made if each.dtype == pl.String]
    kind, made = kind_of(data), made.with_columns(texts)
    if kind == "pandas":
        import pandas as pd

        whole = {each.name: pd.array(each.to_list(), dtype="Int64") for each in made  # as floats they would be others
                 if each.dtype.is_integer() and each.null_count()}  # fmt: skip
        return pd.DataFrame({each.name: whole.get(each.name, each.to_pandas()) for each in made})
    if kind == "pyarrow":
        table = made.to_arrow()
        return table if type(data).__name__ == "Table" else table.combine_chunks().to_batches()[0]
    return made.lazy() if isinstance(data, pl.LazyFrame) else made


def chain_of(model: Any) -> MarkovModel:
    """A model, as it is or from a file."""
    if isinstance(model, MarkovModel):
        return model
    if isinstance(model, str | os.PathLike):
        return MarkovModel.load(model)
    raise InputError(f"expected a model, as fit gives it, or the path of one; got {type(model).__name__}")
