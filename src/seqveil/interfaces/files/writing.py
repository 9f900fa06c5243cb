"""Writing data files and the side file of a release, whole or not at all.

The side file (`OUT.meta.json`) holds everything public that a receiver needs besides the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.replacing import replacing
from seqveil.engine.terms import Terms
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.reading import FilePath, file_name, output_format

if TYPE_CHECKING:
    import polars as pl


PART_ROWS = 250_000
FORMAT, EDITION = "seqveil-release", 1
EPSILON, EVENT, CONFIDENCE = "epsilon", "event", "confidence"  # the columns that the commands add
BATCH, PATH = "batch", "path"  # those of a release in batches
SAME_PATH = "-"  # on the rows of a batch after its first: an empty field would look like a damaged one

Meta = dict[str, Any]


def same_file(a: FilePath, b: FilePath) -> bool:
    """Whether two paths lead to one file, by name, link or hard link. ``-`` is never a file."""
    if "-" in (os.fspath(a), os.fspath(b)):
        return False
    both = os.path.exists(a) and os.path.exists(b)
    return os.path.samefile(a, b) if both else os.path.realpath(a) == os.path.realpath(b)


def taken(path: FilePath) -> bool:
    """Whether something stands under this name already; an empty file is nothing, and so is ``-``."""
    return os.fspath(path) != "-" and os.path.exists(path) and not (os.path.isfile(path) and not os.path.getsize(path))


def _replacing(path: FilePath) -> AbstractContextManager[Path]:
    """`replacing`, once it is clear that a file can stand there; a link stays, and what it leads to is replaced."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise DataError(f"{file_name(path)}: is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise DataError(f"{file_name(path)}: is not a regular file; use - to write to standard output")
    if not target.parent.is_dir():
        raise DataError(f"{file_name(path)}: its folder does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise DataError(f"{file_name(path)}: its folder cannot be written to; choose another")
    return replacing(target)


def as_text(frame: pl.DataFrame, format: str, header: bool) -> bytes:
    """Rows as they stand in a CSV, TSV or JSON lines file."""
    if format == "jsonl":
        return frame.write_ndjson().encode()
    return frame.write_csv(include_header=header, separator="\t" if format == "tsv" else ",").encode()


class Writer:
    """Writes frames one after another; the target appears, whole, when the ``with`` block ends without an exception.

    *Guarantee.* After any exception, KeyboardInterrupt included, the target is as it was and nothing lies beside it.

    ``-`` writes to standard output and flushes each frame; a reader that has gone away is a BrokenPipeError, left to
    the caller. Parquet is gathered in parts beside the target, so memory stays bounded.

    Parameters
    ----------
    path: where to write; the extension gives the format, unless ``format`` does.
    inputs: files that are being read, which the target must not be.

    >>> import polars as pl, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Writer(Path(folder, "out.csv")) as out:
    ...         out.write(pl.DataFrame({"user": ["007"], "value": [3]}))
    ...     Path(folder, "out.csv").read_text()
    'user,value\\n007,3\\n'
    """

    def __init__(self, path: FilePath, format: str | None = None, inputs: Sequence[FilePath] = ()) -> None:
        self._path, self._format = path, output_format(path, format)
        if any(same_file(path, other) for other in inputs):
            raise DataError(f"{file_name(path)}: is read and written at once; choose another output")
        self._stack = ExitStack()
        self._out: IO[bytes] | None = None
        self._schema: pl.Schema | None = None
        self._held: list[pl.DataFrame] = []
        self._parts: list[Path] = []

    def __enter__(self) -> Writer:
        if os.fspath(self._path) == "-":
            self._out = sys.stdout.buffer
        else:
            with ExitStack() as stack:
                self._part = stack.enter_context(_replacing(self._path))
                self._folder = self._part.with_name(self._part.name + ".d")
                if self._format == "parquet":
                    stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
                    self._folder.mkdir()
                else:
                    self._out = stack.enter_context(open(self._part, "wb"))
                self._stack = stack.pop_all()
        return self

    def write(self, frame: pl.DataFrame) -> None:
        """Write the next rows, which have the columns of the first ones."""
        first, self._schema = self._schema is None, self._schema or frame.schema
        if frame.columns != list(self._schema) or (self._format == "parquet" and frame.schema != self._schema):
            raise InputError(
                f"every frame must have the columns of the first, {list(self._schema)}; got {frame.columns}"
            )
        if self._out is None:
            self._held.append(frame)
            if sum(held.height for held in self._held) >= PART_ROWS:
                self._flush_part()
            return
        self._out.write(as_text(frame, self._format, header=first))
        if os.fspath(self._path) == "-":
            self._out.flush()

    def _flush_part(self) -> None:
        import polars as pl

        self._parts.append(self._folder / f"{len(self._parts)}.parquet")
        (pl.concat(self._held) if self._held else pl.DataFrame()).write_parquet(self._parts[-1])
        self._held = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import polars as pl

        if error is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if self._format == "parquet":
                if self._held or not self._parts:
                    self._flush_part()
                pl.scan_parquet(self._parts, glob=False).sink_parquet(self._part)


class Held:
    """Takes the place of a `Writer` where rows are to stay in memory."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *ended: object) -> None:
        return None

    def write(self, frame: pl.DataFrame) -> None:
        """Keep the next rows."""
        self._frames.append(frame.select(_own(column) for column in frame))

    @property
    def frame(self) -> pl.DataFrame:
        """All rows so far."""
        import polars as pl

        return pl.concat(self._frames, how="vertical_relaxed") if self._frames else pl.DataFrame()


def _own(column: pl.Series) -> pl.Series:
    """The column in memory of its own.

    Gathered text is views into the memory of the rows that came, which holds all of them, in the order they came in;
    an Arrow file or a pickle of the frame would carry it along.
    """
    import polars as pl

    return pl.Series(column.name, column.to_list(), dtype=column.dtype) if column.dtype == pl.String else column


def write_text(path: FilePath, text: str) -> None:
    """Write a small file whole or not at all."""
    with _replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def refuse_second(out: FilePath, named: FilePath | None, force: bool) -> None:
    """Refuse to draw again where an earlier release stands, by its rows or its side file.

    Whoever saw the first release and sees the second learns from both, and each spent the whole budget.
    """
    for path in (out, place(out, named)):
        if not force and taken(path):
            raise InputError(
                f"{os.path.basename(path)}: is there already, and a second release of the same data is a second spend; "
                "name another file, or pass --force if nobody was ever shown the first"
            )


def place(out: FilePath, named: FilePath | None) -> FilePath:
    """Where the side file of a release is written: under its own name, or beside the rows; ``-`` for nowhere."""
    return named if named is not None else out if os.fspath(out) == "-" else f"{os.fspath(out)}.meta.json"


def save_meta(out: FilePath, meta: Mapping[str, Any], named: FilePath | None = None) -> None:
    """Write the side file under its own name, or beside a released file that is not standard output."""
    if named is not None or os.fspath(out) != "-":
        write_text(place(out, named), json.dumps(meta, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def load_meta(released: FilePath | pl.DataFrame, named: FilePath | Mapping[str, Any] | None = None) -> Meta | None:
    """What ``save_meta`` wrote, or None where nothing lies beside the file; beside a frame there is nothing."""
    if isinstance(named, Mapping):
        return dict(named)
    if named is None and not isinstance(released, str | os.PathLike):
        return None
    beside = f"{os.fspath(released)}.meta.json" if isinstance(released, str | os.PathLike) else ""
    side = Path(beside if named is None else named)
    try:
        meta = json.loads(side.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is None:
            return None
        raise DataError(f"{side.name}: no such file; check the path") from None
    except (OSError, ValueError):
        meta = None
    if not isinstance(meta, dict):
        again, other = "write the released file again, or remove this", "name the side file that release wrote"
        remedy = again if named is None else other
        raise DataError(f"{side.name}: cannot be read as a JSON object; {remedy}")
    return meta


def load_release_meta(
    released: FilePath | pl.DataFrame, named: FilePath | Mapping[str, Any] | None = None
) -> Meta | None:
    """The side file of a released file, or None where there is none; another kind of side file is refused."""
    meta = load_meta(released, named)
    if meta is not None and (meta.get("format") != FORMAT or meta.get("version") != EDITION):
        disclosed = isinstance(named, Mapping) or not isinstance(released, str | os.PathLike)
        name = "meta" if disclosed else os.path.basename(place(released, named))  # type: ignore[arg-type]
        raise DataError(f"{name}: expected a side file of format {FORMAT} {EDITION}; release the data again")
    return meta


class ColumnDigest:
    """A digest of columns, each of its own, so that it does not depend on how the rows were cut into parts."""

    def __init__(self, count: int = 4) -> None:
        self._parts = [hashlib.sha256() for _ in range(count)]

    def add(self, *columns: bytes) -> ColumnDigest:
        """Take in what the next rows add to the first of the columns."""
        for part, data in zip(self._parts, columns, strict=False):
            part.update(data)
        return self

    def hex(self, *more: ColumnDigest) -> str:
        """Of all columns so far, and those of others."""
        parts = [part for each in (self, *more) for part in each._parts]
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()


class Digest:
    """A digest of the rows released (who, what, at which ε), so that an audit sees whether they were changed since.

    For batches it covers their numbers and paths too.

    It follows the content, not the file: the same rows in another format have the same digest.
    """

    def __init__(self) -> None:
        self._rows, self._paths = ColumnDigest(), ColumnDigest(1)
        self._in_batches = False

    def add(
        self, users: pl.Series, codes: Ints, epsilons: Floats, batches: Iterable[tuple[int, str]] | None = None
    ) -> None:
        """Take in the next rows: the users, what was released and the ε, and the paths where they were batches."""
        self._rows.add(*text_bytes(users), _bytes(codes, "<i8"), _bytes(epsilons, "<f8"))
        if batches is not None:
            self._in_batches = True
            self._paths.add("".join(f"{number} {path}\n" for number, path in batches).encode())

    def hex(self) -> str:
        """The digest of all rows so far; it does not depend on how they were cut into parts."""
        return self._rows.hex(*([self._paths] if self._in_batches else []))


def text_bytes(column: pl.Series) -> tuple[bytes, bytes]:
    """A column as text, and the length of each entry: without it "a", "bc" would look like "ab", "c"."""
    import polars as pl

    text = column.struct.json_encode() if column.dtype == pl.Struct else column.cast(pl.String)
    return "".join(text.to_list()).encode(), _bytes(text.str.len_bytes().to_numpy(), "<i8")


def _bytes(numbers: Floats | Ints, kind: str) -> bytes:
    return np.ascontiguousarray(numbers, dtype=kind).tobytes()


def header(setting: Terms, columns: Columns, order: str | None, seed: int | None) -> Meta:
    """The part of the side file that is known before the first row."""
    from seqveil import __version__

    alphabet = setting.model.alphabet
    return {
        "format": FORMAT,
        "version": EDITION,
        "seqveil": __version__,
        "setting": setting.to_dict(),
        "model": setting.model.fingerprint,
        "alphabet": {"kind": alphabet.to_json()["kind"], "symbols": alphabet.n},
        "columns": {"user": columns.user, "value": columns.value, "order": order},
        "seed": seed,
        "private": seed is None,
    }


def unseeded(meta: Meta | None) -> bool | None:
    """Whether the side file says that no seed made the randomness; None where there is none."""
    return None if meta is None else meta.get("seed") is None and meta.get("private") is True


def stored_columns(meta: Meta | None) -> Columns:
    """The column names a side file gives, or the usual ones."""
    try:
        saved = {} if meta is None else meta["columns"]
        return Columns(saved.get("user", "user"), saved.get("value", "value"), saved.get("order"))
    except (KeyError, TypeError, AttributeError):
        raise DataError("the side file lacks the column names; release the data again") from None
