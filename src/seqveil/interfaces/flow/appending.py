"""An output file that grows by whole transactions, and that is checked before anything is added to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING

from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.files import same_file, taken
from seqveil.interfaces.files.reading import FilePath, file_name, format_of

if TYPE_CHECKING:
    import polars as pl

BLOCK = 1 << 20


class Appended:
    """A CSV, TSV or JSON lines file to append to.

    What it must hold before the next text is known from the state file, by length and digest. Less, other or more than
    that is refused: it would mean that somebody else wrote to it, or that the state file is older than the output, so
    that going on would draw rows again that are out already. `beside` are files that come with a finished output: one
    that is there before the first row is of an earlier release.
    """

    def __init__(self, path: FilePath, inputs: Sequence[FilePath] = (), beside: Sequence[FilePath] = ()) -> None:
        self._path, self._name, self._beside = os.fspath(path), file_name(path), beside
        if self._path == "-":
            raise InputError("standard output cannot be gone on with after a stop; name an output file beside --state")
        self._format = format_of(path, None)
        if self._format == "parquet":
            raise InputError(f"{self._name}: Parquet cannot be appended to; write .csv or .jsonl and convert it then")
        if any(same_file(path, other) for other in inputs):
            raise DataError(f"{self._name}: is read and written at once; choose another output")
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Appended:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def digest(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()

    def begin(self) -> None:
        """Start an output of which the state file knows nothing yet."""
        for path in filter(taken, (self._path, *self._beside)):
            raise DataError(
                f"{file_name(path)}: is there already, and the state file does not know it: a second release of the "
                "same data is a second spend; name the state file of its run, or another output"
            )

    def resume(self, size: int, digest: str, text: bytes) -> None:
        """Go on with an output that held so much, with this digest, when `text` was committed to be added to it."""
        if size == 0 and not os.path.exists(self._path):
            return self.append(text)  # stopped before the file was made, and all of it is known
        if not os.path.isfile(self._path):
            raise DataError(f"{self._name}: the output of the earlier run is missing; put it back under this name")
        self._file = self._opened("rb+")
        while self.size < size and (block := self._file.read(min(BLOCK, size - self.size))):
            self._digest.update(block)
            self.size += len(block)
        rest = self._file.read(len(text) + 1)
        if self.size < size or self.digest != digest or not text.startswith(rest):
            raise DataError(
                f"{self._name}: is not what the state file says was written; put back the output of the earlier run, "
                "or, where the state file is the older one, its newer copy"
            )
        self._file.seek(size)
        return self.append(text)

    def append(self, text: bytes) -> None:
        if self._file is None:
            self._file = self._opened("ab")
            folder = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
            try:
                os.fsync(folder)  # or a power cut could take the file's name away
            finally:
                os.close(folder)
        self._file.write(text)
        self._file.flush()
        self._digest.update(text)
        self.size += len(text)

    def sync(self) -> None:
        """Wait until all of it is on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def text(self, frame: pl.DataFrame) -> bytes:
        """The rows as they will stand in the file."""
        if self._format == "jsonl":
            return frame.write_ndjson().encode()
        separator = "\t" if self._format == "tsv" else ","
        return frame.write_csv(include_header=self.size == 0, separator=separator).encode()

    def _opened(self, mode: str) -> IO[bytes]:
        try:
            return open(self._path, mode)
        except OSError as error:
            raise DataError(f"{self._name}: cannot be opened ({error.strerror}); check the path") from None
