"""Writing data files and what lies beside them: whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.files.reading import FilePath, file_name, format_of

if TYPE_CHECKING:
    import polars as pl

PART_ROWS = 250_000


def same_file(a: FilePath, b: FilePath) -> bool:
    """Whether two paths lead to one file, by name, link or hard link. ``-`` is never a file."""
    if "-" in (os.fspath(a), os.fspath(b)):
        return False
    both = os.path.exists(a) and os.path.exists(b)
    return os.path.samefile(a, b) if both else os.path.realpath(a) == os.path.realpath(b)


def taken(path: FilePath) -> bool:
    """Whether something stands under this name already; an empty file is nothing, and so is ``-``."""
    return os.fspath(path) != "-" and os.path.exists(path) and not (os.path.isfile(path) and not os.path.getsize(path))


@contextmanager
def _replacing(path: FilePath) -> Iterator[Path]:
    """A hidden file beside the target: it takes the target's place when the block ends well, else it is removed."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise DataError(f"{file_name(path)}: is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise DataError(f"{file_name(path)}: is not a regular file; use - to write to standard output")
    if not target.parent.is_dir():
        raise DataError(f"{file_name(path)}: its folder does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise DataError(f"{file_name(path)}: its folder cannot be written to; choose another")
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        yield part
        for place in (part, target.parent):  # the folder too, or a power cut could undo the renaming
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if place == part:
                os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


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
        self._path, self._format = path, format_of(path, format)
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
        separator = "\t" if self._format == "tsv" else ","
        json_lines = self._format == "jsonl"
        text = frame.write_ndjson() if json_lines else frame.write_csv(include_header=first, separator=separator)
        self._out.write(text.encode())
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


def write_text(path: FilePath, text: str) -> None:
    """Write a small file whole or not at all."""
    with _replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def save_meta(path: FilePath, meta: Mapping[str, Any]) -> None:
    """Write what is public about a released file beside it, as ``<path>.meta.json``."""
    write_text(f"{os.fspath(path)}.meta.json", json.dumps(meta, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def load_meta(path: FilePath) -> dict[str, Any] | None:
    """What ``save_meta`` wrote beside the file, or None where there is nothing."""
    side = Path(f"{os.fspath(path)}.meta.json")
    try:
        meta = json.loads(side.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        meta = None
    if not isinstance(meta, dict):
        raise DataError(f"{side.name}: cannot be read as a JSON object; write the released file again, or remove this")
    return meta
