"""Fitting on Spark: SQL counts what follows what, and the driver turns the counts into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.alphabet import Alphabet, Codes, Grid, Symbols
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.model import Counts, MarkovModel
from seqveil.core.states import checked_order
from seqveil.interfaces.files.fit import MOST_SYMBOLS
from seqveil.interfaces.spark.frames import Columns
from seqveil.interfaces.spark.sessions import guarded, needs_spark, told

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOLE, TIE = 1, 2  # what is wrong with a row


def fit(
    frame: DataFrame,
    order: int = 1,
    alphabet: Symbols | Sequence[Any] | None = None,
    smoothing: float = 0.0,
    prior: str | ArrayLike = "data",
    columns: Columns | None = None,
) -> MarkovModel:
    """The model of a frame's streams, equal to the last count to what `MarkovModel.fit` makes of the same rows.

    One pass counts the runs x_{t-m}..x_t, with holes where a stream is shorter; every shorter run is a sum over them.
    The fit itself is **not** private.

    Parameters: as for `MarkovModel.fit`; without an alphabet it is what occurs, at most 100,000 values, which takes one
    pass more. `columns.seq` orders each user's events and must tell any two of them apart: Spark keeps no other order.
    """
    symbols, counts = counted(frame, order, alphabet, columns)
    return counts.model(symbols, smoothing, prior)


def counted(
    frame: DataFrame,
    order: int = 1,
    alphabet: Symbols | Sequence[Any] | None = None,
    columns: Columns | None = None,
) -> tuple[Symbols, RunsCounted]:
    """The alphabet of a frame's streams and their counts, from which `fit` makes the model."""
    needs_spark()
    names = columns or Columns()
    if frame.isStreaming:
        raise InputError("a fit needs a frame that ends; read the same source with spark.read")
    for name in (names.user, names.seq, *names.values):
        if name not in frame.columns:
            raise DataError(f"the frame has no column {name!r}; name the columns with columns=Columns(…)")
    with told():
        symbols = _alphabet(frame, alphabet, names)
        counts = RunsCounted(symbols.n, checked_order(order, symbols.n))
        counts.take(*_runs(frame, symbols.strict, counts.order, names))
    return symbols, counts


def _alphabet(frame: DataFrame, given: Symbols | Sequence[Any] | None, names: Columns) -> Symbols:
    if given is not None:
        symbols = given if isinstance(given, Symbols) else Alphabet(given)
    elif len(names.values) == 2:
        raise InputError("two value columns need a Grid; pass it as alphabet=")
    else:
        found = frame.select(f"`{names.values[0]}`").distinct().limit(MOST_SYMBOLS + 2).toArrow().column(0).to_pylist()
        values = [value for value in found if value is not None]  # a missing one is refused below
        if len(values) > MOST_SYMBOLS:
            raise DataError(f"the values differ in more than {MOST_SYMBOLS} ways; cut numbers with alphabet=Bins(…)")
        if not found:
            raise DataError("there is nothing to fit: the frame has no rows")
        symbols = Alphabet.of(values or [0])
    if (len(names.values) == 2) != isinstance(symbols, Grid):
        raise InputError("two value columns and a Grid go together; pass both")
    return symbols


def _runs(frame: DataFrame, symbols: Symbols, order: int, names: Columns) -> tuple[list[Codes], Codes]:
    """The codes x_{t-m}, …, x_t of every run that occurs (-1 before the start of a stream), and how often it does."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    coded = not isinstance(symbols, Alphabet) or symbols.on_unknown != "error"
    user, when = F.col(f"`{names.user}`"), F.col(f"`{names.seq}`")
    held = [F.col(f"`{name}`") for name in names.values]
    value = _encoder(symbols)(F.struct(*held)) if coded else held[0]
    hole = user.isNull() | when.isNull()
    for column in held:
        hole = hole | column.isNull()
    rows = frame.select(user.alias("u"), when.alias("w"), value.alias("x0"), hole.alias("hole"))
    by = Window.partitionBy("u").orderBy("w")
    wrong = F.when(F.col("hole"), HOLE).when(F.lag("w").over(by) == F.col("w"), TIE).otherwise(0)
    before: list[Column] = [F.lag("x0", back).over(by).alias(f"x{back}") for back in range(order, 0, -1)]
    runs = rows.select(*before, "x0", wrong.alias("wrong"))
    table = runs.groupBy(*runs.columns).count().toArrow()
    counts = table.column("count").to_numpy().astype(np.int64)
    _refuse(table.column("wrong").to_numpy(), counts, names)
    columns = [table.column(f"x{back}") for back in range(order, -1, -1)]
    return [_codes(column, None if coded else symbols) for column in columns], counts


def _encoder(symbols: Symbols) -> Any:
    """The alphabet as a function of a row of values; one that is missing counts as a hole, whatever its code."""
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def encode(rows):  # type: ignore[no-untyped-def]
        with guarded():
            whole = rows.notna().all(axis=1).to_numpy()
            values = rows.to_numpy(np.float64) if isinstance(symbols, Grid) else rows.iloc[:, 0].to_numpy()
            codes = np.zeros(len(whole), np.int64)
            codes[whole] = symbols.encode(values[whole])
        return pd.Series(codes)

    encode.__annotations__ = {"rows": pd.DataFrame, "return": pd.Series}  # how Spark knows what it takes
    return pandas_udf(encode, "bigint")  # type: ignore[call-overload]


def _refuse(wrong: NDArray[Any], counts: Codes, names: Columns) -> None:
    if not counts.size:
        raise DataError("there is nothing to fit: the frame has no rows")
    if holes := int(counts[wrong == HOLE].sum()):
        raise DataError(f"{holes} rows have no user, order or value; fill them or drop the rows")
    if ties := int(counts[wrong == TIE].sum()):
        raise DataError(
            f"{ties} events have the same {names.seq!r} as another of their user, so which came first is not known; "
            "number them"
        )


def _codes(column: Any, symbols: Symbols | None) -> Codes:
    """A column of values as codes, -1 where there is none."""
    import pyarrow.compute as pc

    if symbols is None:
        return np.asarray(pc.fill_null(column, -1).to_numpy(), np.int64)
    told_apart = column.combine_chunks().dictionary_encode()
    values = told_apart.dictionary.to_pylist()
    try:
        known = symbols.encode(values) if values else np.zeros(0, np.int64)
    except UnknownSymbol:
        raise UnknownSymbol(
            f"a value is not in the alphabet ({symbols.n} symbols); check the value column, or leave alphabet= out"
        ) from None
    places = np.asarray(pc.fill_null(told_apart.indices, len(values)).to_numpy(zero_copy_only=False), np.int64)
    return np.append(known, -1)[places]


class RunsCounted(Counts):
    """Counts that were made elsewhere."""

    users = 0

    def take(self, runs: list[Codes], counts: Codes) -> None:
        """Runs of order+1 codes, oldest first, and their counts: all shorter runs are among their ends."""
        self.events = int(counts.sum())
        number = np.zeros(counts.size, np.int64)
        inside = np.ones(counts.size, bool)
        for back in range(self.order + 1):
            codes = runs[self.order - back]
            if back == 1:
                starts = codes < 0  # nothing before: the first symbol of a stream
                self._first = _summed(runs[-1][starts], counts[starts], self.n)
                self.users = int(counts[starts].sum())
            inside = inside & (codes >= 0)
            number = number + np.where(inside, codes, 0) * self.n**back
            numbers, place = np.unique(number[inside], return_inverse=True)
            self._runs[back].waiting.append((numbers, _summed(place, counts[inside], numbers.size)))


def _summed(places: Codes, counts: Codes, size: int) -> Codes:
    """Whole sums; a bincount with weights would round."""
    total = np.zeros(size, np.int64)
    np.add.at(total, places, counts)
    return total
