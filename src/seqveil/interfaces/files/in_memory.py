"""Rows in memory: frames of polars, pandas and Arrow are read as polars has them, and frames of their kind come back.

`release_rows` makes of them what `release` writes to a file and its side file, a frame and a dictionary; nothing is
written to a disk, neither raw rows nor released ones. pandas and pyarrow are never imported by these functions before a
frame of theirs came: that can only be from somebody who did.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqveil.core.alphabet import OnMissing, OnUnknown
from seqveil.core.errors import FILES, InputError, needs_extra
from seqveil.engine.stream import Terms
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.ordering import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.release import (
    BATCH_ROWS,
    MEMORY,
    Choices,
    ReleasedFile,
    Whole,
    raw_alphabet,
    source_for,
    streams_in_memory,
)
from seqveil.interfaces.files.rows import CHUNK_ROWS, Progress
from seqveil.interfaces.files.writing import Held, Meta

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class HeldRelease:
    """Released rows in public order, with what the side file of a release would say."""

    frame: pl.DataFrame = field(repr=False)
    account: ReleasedFile
    meta: Meta = field(repr=False)


def release_rows(
    data: FilePath | pl.DataFrame,
    setting: Terms,
    *,
    seed: int | None = None,
    columns: Columns | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    sort: bool | None = None,
    missing: OnMissing | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> HeldRelease:
    """Release every row of a file or a frame, as `release_file` does, into memory.

    *Guarantee*: each user's stream is released as by a `Session` of its own, with the same draws as `release_file` from
    the same seed. Where an error ends the run early, what was drawn before is in its `made`.

    Parameters: as in `release_file`. With `sort` left out, rows that go back in time are put in order for the release.
    """
    size = BATCH_ROWS if setting.in_batches else CHUNK_ROWS
    source = source_for(data, setting, columns, format, sort, missing, chunk=size)
    choices: Choices = {}
    streams = streams_in_memory(setting, seed, memory, choices)
    run, held = Whole(source, setting, raw_alphabet(setting, on_unknown), streams, seed, choices), Held()
    run.writer = held
    run.go(progress)
    run.close()
    account = run.account()
    found = HeldRelease(held.frame, account, run.facts(account))
    if run.failure is not None:
        run.failure.made = found
        raise run.failure
    return found


def kind_of(data: Any) -> str:
    """Which library's frame it is: "polars", "pandas", "arrow", or "path" for a file; anything else is refused."""
    with needs_extra(*FILES):
        import polars as pl

    if isinstance(data, str | os.PathLike):
        return "path"
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return "polars"
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return "pandas"
    if arrow is not None and isinstance(data, arrow.Table | arrow.RecordBatch):
        return "arrow"
    raise InputError(f"expected a file, or a polars, pandas or Arrow frame; got {type(data).__name__}")


def as_polars(data: Any) -> FilePath | pl.DataFrame:
    """A file's path as it is, or a frame of any kind as polars has it, rows in their order."""
    kind = kind_of(data)
    import polars as pl

    if kind == "path":
        return data
    if kind == "polars":
        return data.collect() if isinstance(data, pl.LazyFrame) else data
    names = [str(name) for name in (data.columns if kind == "pandas" else data.schema.names)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two columns of the frame are called {twice!r}; rename one of them")
    if kind == "arrow":
        return pl.DataFrame(pl.from_arrow(data))
    return pl.DataFrame([_from_pandas(data.iloc[:, k], name) for k, name in enumerate(names)])


def _from_pandas(column: Any, name: str) -> pl.Series:
    """A column of pandas; one of mixed types stays as it is, and is refused where it is needed."""
    import polars as pl

    try:
        return pl.Series(name, pl.from_pandas(column))
    except ImportError:
        raise InputError("a pandas frame is read through pyarrow, which is missing; pip install pyarrow") from None
    except Exception:  # pyarrow's errors quote the value, and nobody's value may stand in an error
        return pl.Series(name, column.tolist(), dtype=pl.Object)


def as_kind(data: Any, made: pl.DataFrame) -> Any:
    """A table of its own in the kind of another frame, of which nothing else is taken: neither index nor types."""
    import polars as pl

    kind = kind_of(data)
    if kind == "pandas":
        import pandas as pd

        labels = {str(label): label for label in data.columns if type(label) is int}
        return pd.DataFrame({labels.get(name, name): _pandas_values(made[name]) for name in made.columns})
    if kind == "arrow":
        import pyarrow as pa

        table = made.to_arrow()
        return table if isinstance(data, pa.Table) else _one_batch(table)
    return made.lazy() if isinstance(data, pl.LazyFrame) else made


def _pandas_values(column: pl.Series) -> Any:
    import pandas as pd

    if column.dtype.is_integer() and column.null_count():
        return pd.array(column.to_list(), dtype="Int64")  # as floats they would be other values
    return column.to_pandas()


def _one_batch(table: Any) -> Any:
    """A table as the one record batch that it is."""
    import pyarrow as pa

    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=table.schema)


__all__ = ["HeldRelease", "as_kind", "as_polars", "goes_back", "in_order", "kind_of", "release_rows"]
