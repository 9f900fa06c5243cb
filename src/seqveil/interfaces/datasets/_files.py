"""Where the files of a set are, and whether they are the ones the figures were measured on."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from seqveil.core.errors import DataError
from seqveil.interfaces.datasets._catalogue import FACTS

if TYPE_CHECKING:
    import polars as pl

VARIABLE = "SEQVEIL_DATA"


def folder_of(name: str, data: str | os.PathLike[str] | None) -> Path:
    """The folder given, or that of the environment; else one line that says what to do."""
    given = data or os.environ.get(VARIABLE)
    if not given:
        raise DataError(
            f"no data folder is named; pass --data FOLDER (data= in Python) or set {VARIABLE}. {_remedy(name)}"
        )
    return Path(given)


@dataclass(frozen=True)
class Folder:
    """The files of one set under a data folder."""

    root: Path
    name: str
    verify: bool = True

    def read(self, file: str) -> pl.DataFrame:
        """One Parquet file, once its sum is checked."""
        import polars as pl

        path = self.root / file
        if not path.is_file():
            raise DataError(
                f"{self.name} needs the file {file} in the data folder, and it is not there. {_remedy(self.name)}"
            )
        if self.verify:
            status = path.stat()
            found = _sum(path, status.st_size, status.st_mtime_ns)
            if found != FACTS[self.name].files[file]:
                raise DataError(
                    f"{file} is not the file our figures were measured on (its sha256 differs); copy it again, or pass "
                    "verify=False to read a copy of your own with the same columns"
                )
        return pl.read_parquet(path)


@lru_cache(maxsize=64)
def _sum(path: Path, size: int, changed: int) -> str:
    """SHA-256 of a file, computed once for as long as it does not change."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remedy(name: str) -> str:
    facts = FACTS[name]
    return f'{name} comes from {facts.source}; or use datasets.synthetic("{facts.stand_in}"), which needs no file'
