"""Frames of polars, pandas and Arrow: read as polars has them, and frames of their kind given back.

pandas and pyarrow are never imported before a frame of theirs came: that can only be from somebody who did.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import FILES, InputError, needs_extra
from seqveil.core.model import MarkovModel
from seqveil.interfaces.files.table import FilePath, Table

if TYPE_CHECKING:
    import polars as pl


def kind_of(data: Any) -> str:
    """Which library's frame it is: "polars", "pandas", "arrow", or "path" for a file; anything else is refused."""
    with needs_extra(*FILES):
        import polars as pl

    if isinstance(data, str | os.PathLike | Table):
        return "path"
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return "polars"
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return "pandas"
    if arrow is not None and isinstance(data, arrow.Table | arrow.RecordBatch):
        return "arrow"
    raise InputError(f"expected a file, or a polars, pandas or Arrow frame; got {type(data).__name__}")


def as_polars(data: Any) -> FilePath | pl.DataFrame | Table:
    """A file's path, or a table that was read, as it is; a frame of any kind as polars has it, rows in their order."""
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

    kind, made = kind_of(data), made.select(_own(column) for column in made)
    if kind == "pandas":
        import pandas as pd

        labels = {str(label): label for label in data.columns if type(label) is int}
        return pd.DataFrame({labels.get(name, name): _pandas_values(made[name]) for name in made.columns})
    if kind == "arrow":
        import pyarrow as pa

        table = made.to_arrow()
        return table if isinstance(data, pa.Table) else _one_batch(table)
    return made.lazy() if isinstance(data, pl.LazyFrame) else made


def _own(column: pl.Series) -> pl.Series:
    """The column in memory of its own.

    Gathered text is views into the memory of the rows that came, which holds all of them, in the order they came in;
    an Arrow file or a pickle of the frame would carry it along.
    """
    import polars as pl

    return pl.Series(column.name, column.to_list(), dtype=column.dtype) if column.dtype == pl.String else column


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


def chain_of(model: Any) -> MarkovModel:
    """A model, as it is or from a file."""
    if isinstance(model, MarkovModel):
        return model
    if isinstance(model, str | os.PathLike):
        return MarkovModel.load(model)
    raise InputError(f"expected a model, as fit gives it, or the path of one; got {type(model).__name__}")
