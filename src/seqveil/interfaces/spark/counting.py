"""Fitting on Spark: SQL counts what follows what, and the driver turns the counts into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import Alphabet, Codes, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import RunCounts
from seqveil.core.model import SMOOTHING, MarkovModel
from seqveil.core.states import checked_order
from seqveil.interfaces.files.cuts import MOST_SYMBOLS
from seqveil.interfaces.files.fit import Fitted
from seqveil.interfaces.spark.failures import driver_errors, worker_errors
from seqveil.interfaces.spark.frames import SEQ, USER, FrameColumns, needed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOLE, TIE = 1, 2  # what is wrong with a row


def fit(frame: DataFrame, *, columns: FrameColumns | None = None, **how: Any) -> MarkovModel:
    """The model of a frame's streams, equal to the last count to what `MarkovModel.fit` makes of the same rows.

    One pass counts the runs x_{t-m}..x_t, with holes where a stream is shorter; every shorter run is a sum over them.
    The fit itself is **not** private.

    Parameters: `alphabet`, `order` and `smoothing` as for `MarkovModel.fit`; without an alphabet it is what occurs, in
    one pass more. `columns.seq` must tell any two events of a user apart: Spark keeps no other order.
    """
    return fitted(frame, columns or FrameColumns(), **how).model


def fitted(
    frame: DataFrame,
    columns: FrameColumns,
    alphabet: Symbols | Sequence[Any] | None = None,
    *,
    order: int = 1,
    smoothing: float = SMOOTHING,
) -> Fitted:
    """The same with the numbers of events and users."""
    if frame.isStreaming:
        raise InputError("a fit needs a frame that ends; read the same source with spark.read")
    with driver_errors():
        symbols = _alphabet(frame, alphabet, columns)
        rows = needed(frame, columns, symbols)
        runs = _counted(rows, symbols, checked_order(order, symbols.n), columns.seq)
    model = MarkovModel._of(runs.states(smoothing), symbols)
    return Fitted(model, runs.events, int(runs.first.sum()), smoothing=smoothing)


def _alphabet(frame: DataFrame, given: Symbols | Sequence[Any] | None, columns: FrameColumns) -> Symbols:
    if given is not None:
        return given if isinstance(given, Symbols) else Alphabet(given)
    if len(columns.values) == 2:
        raise InputError("two value columns need a Grid, or Cells of the map; pass it as alphabet=")
    if columns.values[0] not in frame.columns:
        raise DataError(f"the frame has no column {columns.values[0]!r}; name the columns with columns=FrameColumns(…)")
    found = frame.select(f"`{columns.values[0]}`").distinct().limit(MOST_SYMBOLS + 2).toArrow().column(0).to_pylist()
    values = [value for value in found if value is not None]
    if len(values) > MOST_SYMBOLS:
        raise DataError(f"the values differ in more than {MOST_SYMBOLS} ways; cut numbers with alphabet=Bins(…)")
    return Alphabet.of(values or [0])  # of no rows, or of holes alone, which are refused as well


def _counted(rows: DataFrame, symbols: Symbols, order: int, named: str) -> RunCounts:
    """Runs counted over all people."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    held = [F.col(name) for name in rows.columns if name not in (USER, SEQ)]
    by = Window.partitionBy(USER).orderBy(SEQ)
    hole = F.greatest(*(F.col(name).isNull() for name in rows.columns))
    coded = rows.select(USER, SEQ, _encoder(symbols.strict)(F.struct(*held)).alias("x0"), hole.alias("hole"))
    wrong = F.when(F.col("hole"), HOLE).when(F.lag(SEQ).over(by) == F.col(SEQ), TIE).otherwise(0)
    runs = [F.lag("x0", back, -1).over(by).alias(f"x{back}") for back in range(order, 0, -1)]
    spread = coded.select(*runs, "x0", wrong.alias("wrong"))
    table = spread.groupBy(*spread.columns).count().toArrow()
    counts = table.column("count").to_numpy().astype(np.int64)
    _refuse(table.column("wrong").to_numpy(), counts, named)
    back, number = np.full(counts.size, -1), np.zeros(counts.size, np.int64)
    for ago in range(order + 1):  # -1 stands before the start of a stream
        codes = table.column(f"x{ago}").to_numpy().astype(np.int64)
        back, number = back + (codes >= 0), number + np.maximum(codes, 0) * symbols.n**ago
    nobody = np.zeros(counts.size, np.int64)
    return RunCounts(symbols.n, order, back, number, counts, nobody, nobody)


def _encoder(symbols: Symbols) -> Any:
    """The alphabet as a function of a row of values; one that is missing counts as a hole, whatever its code."""
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def encode(rows):  # type: ignore[no-untyped-def]
        """A row with a missing value gets 0, which nobody may count."""
        with worker_errors():
            whole = rows.notna().all(axis=1).to_numpy()
            values = rows.to_numpy(np.float64) if rows.shape[1] == 2 else rows.iloc[:, 0].to_numpy()
            codes = np.zeros(len(whole), np.int64)
            codes[whole] = symbols.encode(values[whole])
        return pd.Series(codes)

    encode.__annotations__ = {"rows": pd.DataFrame, "return": pd.Series}  # how Spark knows what it takes
    return pandas_udf(encode, "bigint")  # type: ignore[call-overload]


def _refuse(wrong: Any, counts: Codes, named: str) -> None:
    if not counts.size:
        raise DataError("there is nothing to fit: the frame has no rows")
    if holes := int(counts[wrong == HOLE].sum()):
        raise DataError(f"{holes} rows have no user, order or value; fill them or drop the rows")
    if ties := int(counts[wrong == TIE].sum()):
        raise DataError(f"{ties} events have the same {named!r} as another of their user; number them in their order")
