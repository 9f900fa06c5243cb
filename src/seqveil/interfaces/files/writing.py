"""Writing data files and the side file of a release, whole or not at all.

The side file (`OUT.meta.json`) holds everything public that a receiver needs besides the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqveil.core.alphabet import Bins, OnMissing, Symbols
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.files import Reading, replacing
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.terms import Terms
from seqveil.interfaces.files.events import parted
from seqveil.interfaces.files.released import Meta
from seqveil.interfaces.files.table import FORMATS, FilePath, compressed, file_name, format_of

FORMAT, EDITION = "seqveil-release", 1
EPSILON, EVENT, CONFIDENCE = "epsilon", "event", "confidence"  # the columns that the commands add
BATCH, PATH = "batch", "path"  # those of a release in batches
SAME_PATH = "-"  # on the rows of a batch after its first: an empty field would look like a damaged one


def same_file(a: FilePath, b: FilePath) -> bool:
    """Whether two paths lead to one file, by name, link or hard link. ``-`` is never a file."""
    if "-" in (os.fspath(a), os.fspath(b)):
        return False
    both = os.path.exists(a) and os.path.exists(b)
    return os.path.samefile(a, b) if both else os.path.realpath(a) == os.path.realpath(b)


def taken(path: FilePath) -> bool:
    """Whether something stands under this name already; an empty file is nothing, and so is ``-``."""
    return os.fspath(path) != "-" and os.path.exists(path) and not (os.path.isfile(path) and not os.path.getsize(path))


def output_format(path: FilePath, format: str | None = None) -> str:
    """The format of a file to write."""
    if os.fspath(path) != "-" and compressed(path):
        raise DataError(f"{file_name(path)}: is written as {', '.join(FORMATS)}; name one, and convert it then")
    return format_of(path, format)


def check_place(path: FilePath, inputs: Sequence[Any] = (), format: str | None = None) -> None:
    """Refuse a place where no file can be written, or where one stands that is read, before anything is done."""
    output_format(path, format)
    if any(same_file(path, other) for other in inputs if isinstance(other, str | os.PathLike)):
        raise DataError(f"{file_name(path)}: is read and written at once; choose another output")
    if os.fspath(path) != "-":
        _target(path)


def _target(path: FilePath) -> Path:
    """Where a file goes, once it is clear that it can stand there; a link stays, and what it leads to is replaced."""
    target = Path(os.path.realpath(path))
    problems = {
        "is a folder; name a file in it": target.is_dir(),
        "is not a regular file; use - to write to standard output": target.exists() and not target.is_file(),
        "its folder does not exist; create it first": not target.parent.is_dir(),
        "its folder cannot be written to; choose another": not os.access(target.parent, os.W_OK),
    }
    for problem, is_so in problems.items():
        if is_so:
            raise DataError(f"{file_name(path)}: {problem}")
    return target


def as_text(frame: pl.DataFrame, format: str, header: bool = True) -> bytes:
    """Rows as they stand in a CSV, TSV or JSON lines file."""
    if format == "jsonl":
        return frame.write_ndjson().encode()
    return frame.write_csv(include_header=header, separator="\t" if format == "tsv" else ",").encode()


def write_frame(
    path: FilePath,
    frame: pl.DataFrame,
    format: str | None = None,
    meta: Mapping[str, Any] | None = None,
    side: FilePath | None = None,
) -> None:
    """Write a table, and its side file where there is one; both appear whole or not at all. ``-``: standard output.

    *Guarantee.* After any exception, KeyboardInterrupt included, the target is as it was and nothing lies beside it.

    >>> import polars as pl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_frame(Path(folder, "out.csv"), pl.DataFrame({"user": ["007"], "value": [3]}))
    ...     Path(folder, "out.csv").read_text()
    'user,value\\n007,3\\n'
    """
    kind = output_format(path, format)
    if os.fspath(path) == "-":
        if meta is not None and side is not None:
            write_text(side, as_json(meta))
        sys.stdout.buffer.write(as_text(frame, kind))
        sys.stdout.buffer.flush()
        return
    with replacing(_target(path)) as part:
        if kind == "parquet":
            frame.write_parquet(part)
        else:
            part.write_bytes(as_text(frame, kind))
        if meta is not None:
            write_text(side_of(path, side), as_json(meta))


def write_text(path: FilePath, text: str) -> None:
    """Write a small file whole or not at all."""
    with replacing(_target(path)) as part:
        part.write_text(text, encoding="utf-8")


def as_json(meta: Mapping[str, Any]) -> str:
    """A side file as text."""
    return json.dumps(meta, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def refuse_second(out: FilePath, side: FilePath | None) -> None:
    """Refuse to draw again where an earlier release stands, by its rows or its side file.

    Whoever saw the first release and sees the second learns from both, and each spent the whole budget.
    """
    for path in (out, side_of(out, side)):
        if taken(path):
            raise InputError(
                f"{os.path.basename(path)}: is there already, and a second release of the same data is a second spend; "
                f"name another file, or pass {option('force', True)} if nobody was ever shown the first"
            )


def side_of(out: FilePath, side: FilePath | None = None) -> FilePath:
    """Where the side file of a release is: under its own name, or beside the rows; ``-`` for nowhere."""
    return side if side is not None else out if os.fspath(out) == "-" else f"{os.fspath(out)}.meta.json"


def load_meta(released: Any, named: FilePath | Mapping[str, Any] | None = None) -> Meta | None:
    """The side file of a released file, or None where there is none; another kind of side file is refused."""
    if named is None and not isinstance(released, str | os.PathLike):
        return None  # beside a frame there is nothing
    meta: Any = named
    name = "meta"
    if not isinstance(named, Mapping):
        side = Path(side_of(released, named))
        name = side.name
        try:
            meta = json.loads(side.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if named is None:
                return None
            raise DataError(f"{name}: no such file; check the path") from None
        except (OSError, ValueError):
            meta = None
    if not isinstance(meta, Mapping):
        raise DataError(f"{name}: cannot be read as a JSON object; name the side file that release wrote")
    if meta.get("format") != FORMAT or meta.get("version") != EDITION:
        raise DataError(f"{name}: expected a side file of format {FORMAT} {EDITION}; release the data again")
    return dict(meta)


def header(setting: Terms, reading: Reading, order: str | None, missing: OnMissing | None, seed: int | None) -> Meta:
    """The part of the side file that is known before the first row."""
    from seqveil import __version__

    alphabet = setting.model.alphabet
    return {
        "format": FORMAT,
        "version": EDITION,
        "seqveil": __version__,
        "setting": setting.to_dict(),
        "model": setting.model.fingerprint,
        "alphabet": alphabet.with_missing(missing or alphabet.missing).to_json(),
        "columns": {"user": reading.user, "value": reading.value, "order": order},
        "seed": seed,
        "private": seed is None,
    }


def stored_reading(meta: Meta) -> Reading:
    """The columns that a side file names."""
    try:
        saved = meta["columns"]
        return Reading(saved["user"], saved["value"], saved["order"])
    except (KeyError, TypeError):
        raise DataError("the side file lacks the column names; release the data again") from None


def digest(*columns: pl.Series | Floats | Ints) -> str:
    """A digest of columns, each of its own. It follows the content, not the file: other formats of it have the same."""
    parts = (hashlib.sha256(part).digest() for column in columns for part in _as_bytes(column))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _as_bytes(column: pl.Series | Floats | Ints) -> tuple[bytes, ...]:
    """A column in bytes; of text also the length of each entry: without it "a", "bc" would look like "ab", "c"."""
    if isinstance(column, np.ndarray):
        return (np.ascontiguousarray(column, "<f8" if column.dtype.kind == "f" else "<i8").tobytes(),)
    text = column.struct.json_encode() if column.dtype == pl.Struct else column.cast(pl.String)
    return "".join(text.to_list()).encode(), text.str.len_bytes().to_numpy().astype("<i8").tobytes()


def rows_frame(
    reading: Reading,
    users: pl.Series,
    order: pl.Series | None,
    alphabet: Symbols,
    codes: Ints,
    more: Mapping[str, Any],
) -> pl.DataFrame:
    """Rows to write: the user, the order where there is one, the value(s) of the codes, and further columns.

    Of a code below 0 nothing was said.
    """
    public = parted(users, reading.user_columns)
    if order is not None:
        public += order.struct.unnest().get_columns() if order.dtype == pl.Struct else [order]
    places = pl.Series(codes, dtype=pl.Int64)
    if (codes < 0).any():
        places = pl.select(pl.when(places >= 0).then(places)).to_series()
    series = [*public, *(values.gather(places) for values in symbol_columns(alphabet, reading.value_columns))]
    clash = {column.name for column in series} & set(more)
    if clash:
        raise InputError(f"a column is named {min(clash)!r}, which is what the output adds; rename it in the file")
    return pl.DataFrame([*series, *(pl.Series(name, values) for name, values in more.items())])


def symbol_columns(alphabet: Symbols, names: tuple[str, ...]) -> list[pl.Series]:
    """The alphabet's values as columns, one entry a code: two columns for points of a grid or the map."""
    if alphabet.width == 2 and alphabet.points is not None:
        return [pl.Series(name, alphabet.points[:, axis]) for axis, name in enumerate(names)]
    values = alphabet.points if isinstance(alphabet, Bins) else alphabet.decode(np.arange(alphabet.n))
    return [pl.Series(names[0], values, strict=False)]


def symbols_frame(alphabet: Symbols, reading: Reading, figures: Mapping[str, Any]) -> pl.DataFrame:
    """Figures about each symbol beside its value."""
    columns = symbol_columns(alphabet, reading.value_columns)
    return pl.DataFrame([*columns, *(pl.Series(name, numbers) for name, numbers in figures.items())])
