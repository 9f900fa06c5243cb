"""Rows in memory: frames of polars, pandas and Arrow are read as polars has them, released and given back as they came.

`release_rows` makes of them what `release` writes to a file and its side file, a frame and a dictionary; nothing is
written to a disk, neither raw rows nor released ones. pandas and pyarrow are never imported by these functions before a
frame of theirs came: that can only be from somebody who did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import OnMissing, OnUnknown
from seqveil.core.errors import FILES, BudgetSpent, InputError, needs_extra
from seqveil.core.kernel import Ints
from seqveil.engine.stream import Setting
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.ordering import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.release import (
    BATCH_ROWS,
    MEMORY,
    Choices,
    Released,
    Whole,
    left_out,
    raw_alphabet,
    source_for,
    streams_in_memory,
)
from seqveil.interfaces.files.rows import CHUNK_ROWS, Progress, Rows
from seqveil.interfaces.files.writing import BATCH, PATH, Digest, Held, Meta

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class HeldRelease:
    """Released rows in the order of the rows they came from, with what the side file of a release would say."""

    frame: pl.DataFrame = field(repr=False)
    rows: Ints = field(repr=False)  # the row of the data, from 0, that each one was released from; of slots none
    account: Released
    meta: Meta = field(repr=False)


def release_rows(
    data: FilePath | pl.DataFrame,
    setting: Setting,
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
    the same seed. Where a budget whose policy is "error" is spent, BudgetSpent is raised and what was drawn before is
    in its `made`; so it is with any other error that ends the run early.

    Parameters: as in `release_file`. With `sort` left out, rows that go back in time are put in order for the release.
    """
    size = BATCH_ROWS if setting.in_batches else CHUNK_ROWS
    source = source_for(data, setting, columns, format, sort, missing, chunk=size)
    choices: Choices = {}
    streams = streams_in_memory(setting, seed, memory, choices)
    run = _InMemory(source, setting, raw_alphabet(setting, on_unknown), streams, seed, choices)
    run.go(progress)
    account = run.account()
    found = HeldRelease(run.made, run.places, account, run.facts(account))
    if run.failure is not None:
        run.failure.made = found
        raise run.failure
    if account.refused:
        raise BudgetSpent(left_out(setting, account), found)
    return found


class _InMemory(Whole):
    """Keeps the rows, each with its place in the data."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._held, self._rows = Held(), list[Rows]()

    @property
    def in_slots(self) -> bool:
        """Whether a row is released for each slot of time, and not for each row of the data."""
        return self.source.slots is not None

    def keep(self, rows: Rows) -> None:
        """Keep these rows."""
        self._held.write(self.frame(rows))
        self._rows.append(rows)

    @property
    def _arranged(self) -> Ints:
        """Where the released rows stand in the order of the data; slots keep their own, which tells of no event."""
        if self.in_slots:
            return np.arange(self._read.size)
        return np.argsort(self._read, kind="stable")

    @property
    def _read(self) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *(part.rows for part in self._rows if part.rows is not None)])

    @property
    def places(self) -> Ints:
        """The row of the data that each released one came from; of slots none."""
        return np.zeros(0, np.int64) if self.in_slots else self._read[self._arranged]

    @property
    def made(self) -> pl.DataFrame:
        """The released rows in the order of the data."""
        return self._held.frame[self._arranged]

    def digest(self) -> Digest:
        """Of the rows as an audit of the frame reads them, which is not always the order of their release."""
        import polars as pl

        found, order = Digest(), self._arranged
        if not order.size:
            return found
        frame = self._held.frame[order]
        if goes_back(frame, self.source.columns):
            order = order[in_order(frame, self.source.columns)]
        users = pl.concat([part.users for part in self._rows])[order]
        codes, spent = (np.concatenate([getattr(part, name) for part in self._rows]) for name in ("codes", "epsilons"))
        paths = None
        if PATH in self._rows[0].more:
            more = [np.concatenate([part.more[name] for part in self._rows])[order].tolist() for name in (BATCH, PATH)]
            paths = zip(*more, strict=True)
        found.add(users, codes[order], spent[order], paths)
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


def like(data: Any, table: Any, made: pl.DataFrame, rows: Ints | None, kept: Sequence[str]) -> Any:
    """The rows `made` from the rows of `data` that are named, as a frame of the kind of `data`.

    `table` is what `as_polars` made of `data`. `kept` are columns that are taken from `data` as they are there; pandas
    keeps its index as well. Without `rows` nothing but the kind is the data's.
    """
    import polars as pl

    kind = kind_of(data)
    if kind == "path":
        return made
    if kind == "pandas":
        return _like_pandas(data, made, rows, kept)
    if kind == "arrow":
        return _like_arrow(data, made, rows, kept)
    columns = [
        table[name][rows] if rows is not None and name in kept else _typed(made[name], table) for name in made.columns
    ]
    frame = pl.DataFrame(columns)
    return frame.lazy() if isinstance(data, pl.LazyFrame) else frame


def _typed(column: pl.Series, data: pl.DataFrame) -> pl.Series:
    """A released column as categories, where that is what came."""
    import polars as pl

    own = data.schema.get(column.name)
    if column.dtype != pl.String or own is None:
        return column
    if isinstance(own, pl.Enum) and not set(column.drop_nulls().unique()) <= set(own.categories):
        return column
    return column.cast(own) if isinstance(own, pl.Categorical | pl.Enum) else column


def _like_pandas(data: Any, made: pl.DataFrame, rows: Ints | None, kept: Sequence[str]) -> Any:
    import pandas as pd

    labels = {str(label): label for label in data.columns}
    part = pd.DataFrame(index=range(made.height)) if rows is None else data.iloc[rows]
    columns = {}
    for name in made.columns:
        if name in kept:
            columns[labels[name]] = part[labels[name]]
        else:
            own = data[labels[name]].dtype if name in labels else None
            columns[labels.get(name, name)] = pd.Series(_pandas_values(made[name], own), index=part.index)
    return pd.DataFrame(columns, index=part.index)


def _pandas_values(column: pl.Series, own: Any) -> Any:
    """The entries of a released column, in the type that it had where they fit into it."""
    import pandas as pd
    import polars as pl

    listed, text = column.to_list(), column.dtype == pl.String
    if isinstance(own, pd.CategoricalDtype):
        if set(listed) - {None} <= set(own.categories):
            return pd.Categorical(listed, dtype=own)
    elif own is not None and pd.api.types.is_extension_array_dtype(own):
        same = (text, column.dtype.is_integer(), column.dtype.is_float())
        types = pd.api.types
        if (types.is_string_dtype(own), types.is_integer_dtype(own), types.is_float_dtype(own)) == same:
            return pd.array(listed, dtype=own)
    if text or column.dtype == pl.Boolean:
        return listed if listed else pd.array([], dtype=object if text else bool)
    if column.dtype.is_integer() and column.null_count():
        return pd.array(listed, dtype="Int64")  # as floats they would be other values
    return column.to_numpy()


def _like_arrow(data: Any, made: pl.DataFrame, rows: Ints | None, kept: Sequence[str]) -> Any:
    import pyarrow as pa

    part, columns = data if rows is None else data.take(pa.array(rows)), []
    for name in made.columns:
        column = part.column(name) if name in kept else made[name].to_arrow()
        own = data.schema.field(name).type if name in data.schema.names else None
        if name not in kept and own is not None and pa.types.is_string(own):
            column = column.cast(own)  # polars has long strings
        columns.append(column)
    table = pa.table(columns, names=made.columns)
    return table if isinstance(data, pa.Table) else _one_batch(table)


def _one_batch(table: Any) -> Any:
    """A table as the one record batch that it is."""
    import pyarrow as pa

    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=table.schema)


__all__ = ["HeldRelease", "as_polars", "goes_back", "in_order", "kind_of", "like", "release_rows"]
