"""Fitting on Spark: SQL counts what follows what, and the driver turns the counts into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import Alphabet, Codes, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import RunCounts
from seqveil.core.mixture import answers_among, fit_types, one_answer_each, piece_of, side_by_side
from seqveil.core.model import SMOOTHING, SWITCH, MarkovModel
from seqveil.core.states import checked_order
from seqveil.interfaces.files.cuts import MOST_SYMBOLS
from seqveil.interfaces.files.fit import Fitted
from seqveil.interfaces.spark.failures import driver_errors, worker_errors
from seqveil.interfaces.spark.frames import SEQ, USER, FrameColumns, needed
from seqveil.interfaces.spark.sessions import needs_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOLE, TIE = 1, 2  # what is wrong with a row


def fit(frame: DataFrame, *, columns: FrameColumns | None = None, **how: Any) -> MarkovModel:
    """The model of a frame's streams, equal to the last count to what `MarkovModel.fit` makes of the same rows.

    One pass counts the runs x_{t-m}..x_t, with holes where a stream is shorter; every shorter run is a sum over them.
    With `types` they are counted for each user, and the driver, which holds these counts, finds the mixture. The fit
    itself is **not** private.

    Parameters: `alphabet`, `order`, `types`, `switch` and `smoothing` as for `MarkovModel.fit`; without an alphabet it
    is what occurs, at most 100,000 values, which takes one pass more. `trait` is a column with one label for each user;
    each label gets `types` types of its own. `columns.seq` orders each user's events and must tell any two of them
    apart: Spark keeps no other order.
    """
    return fitted(frame, columns or FrameColumns(), **how).model


def fitted(
    frame: DataFrame,
    columns: FrameColumns,
    alphabet: Symbols | Sequence[Any] | None = None,
    *,
    order: int = 1,
    types: int = 1,
    switch: float = SWITCH,
    trait: str | None = None,
    smoothing: float = SMOOTHING,
) -> Fitted:
    """The same with the numbers of events and users."""
    needs_spark()
    if frame.isStreaming:
        raise InputError("a fit needs a frame that ends; read the same source with spark.read")
    with driver_errors():
        symbols = _alphabet(frame, alphabet, columns)
        rows = needed(frame, columns, symbols)
        order = checked_order(order, symbols.n)
        by_person = types > 1 or trait is not None
        piece = piece_of(switch) if by_person else None
        runs, people = _counted(rows, symbols, order, columns.seq, piece)
        labels = {} if trait is None else _labels(frame, columns, trait)
    if not by_person:
        model = MarkovModel._of(runs.states(smoothing), symbols)
    elif trait is None:
        model = fit_types(runs, symbols, types, switch, smoothing)
    else:  # the mixture of each answer, from the runs of its people
        answers, of_person = answers_among([labels.get(str(name)) or "" for name in people], len(people))
        own = [runs.some(of_person == number) for number in range(len(answers))]
        parts = [fit_types(each, symbols, types, switch, smoothing) for each in own]
        model = side_by_side(trait, answers, of_person, parts)
    return Fitted(model, runs.events, int(runs.first.sum()), smoothing=smoothing)


def _alphabet(frame: DataFrame, given: Symbols | Sequence[Any] | None, columns: FrameColumns) -> Symbols:
    if given is not None:
        return given if isinstance(given, Symbols) else Alphabet(given)
    if len(columns.values) == 2:
        raise InputError("two value columns need a Grid, or Cells of the map; pass it as alphabet=")
    if columns.values[0] not in frame.columns:
        raise DataError(f"the frame has no column {columns.values[0]!r}; name the columns with columns=FrameColumns(…)")
    found = frame.select(f"`{columns.values[0]}`").distinct().limit(MOST_SYMBOLS + 2).toArrow().column(0).to_pylist()
    values = [value for value in found if value is not None]  # a missing one is refused below
    if len(values) > MOST_SYMBOLS:
        raise DataError(f"the values differ in more than {MOST_SYMBOLS} ways; cut numbers with alphabet=Bins(…)")
    if not found:
        raise DataError("there is nothing to fit: the frame has no rows")
    return Alphabet.of(values or [0])


def _counted(
    rows: DataFrame, symbols: Symbols, order: int, named: str, piece: int | None
) -> tuple[RunCounts, list[Any]]:
    """Runs counted over all people; with `piece`, for each person and each piece of so many events (0: one piece).

    The names of the people come with them, in the order of their numbers.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    held = [F.col(name) for name in rows.columns if name not in (USER, SEQ)]
    by = Window.partitionBy(USER).orderBy(SEQ)
    hole = F.greatest(*(F.col(name).isNull() for name in rows.columns))
    coded = rows.select(USER, SEQ, _encoder(symbols.strict)(F.struct(*held)).alias("x0"), hole.alias("hole"))
    wrong = F.when(F.col("hole"), HOLE).when(F.lag(SEQ).over(by) == F.col(SEQ), TIE).otherwise(0)
    runs = [F.lag("x0", back, -1).over(by).alias(f"x{back}") for back in range(order, 0, -1)]
    apart = []
    if piece is not None:
        place = F.floor((F.row_number().over(by) - 1) / piece) if piece else F.lit(0)
        apart = [F.col(USER), place.cast("bigint").alias("piece")]
    spread = coded.select(*apart, *runs, "x0", wrong.alias("wrong"))
    table = spread.groupBy(*spread.columns).count().toArrow()
    counts = table.column("count").to_numpy().astype(np.int64)
    _refuse(table.column("wrong").to_numpy(), counts, named)
    back, number = np.full(counts.size, -1), np.zeros(counts.size, np.int64)
    for ago in range(order + 1):  # -1 stands before the start of a stream
        codes = table.column(f"x{ago}").to_numpy().astype(np.int64)
        back, number = back + (codes >= 0), number + np.maximum(codes, 0) * symbols.n**ago
    if piece is None:
        nobody = np.zeros(counts.size, np.int64)
        return RunCounts(symbols.n, order, back, number, counts, nobody, nobody), []
    # people in the order of their names, as in a file
    names, people = np.unique(np.array(table.column(USER).to_pylist(), object), return_inverse=True)
    pieces = table.column("piece").to_numpy().astype(np.int64)
    return RunCounts(symbols.n, order, back, number, counts, people.astype(np.int64), pieces), names.tolist()


def _labels(frame: DataFrame, columns: FrameColumns, trait: str) -> dict[Any, str | None]:
    """Everybody's label, by the name as text; somebody with two is refused."""
    from pyspark.sql import functions as F

    if trait not in frame.columns:
        raise DataError(f"the frame has no column {trait!r}; name the one of the trait")
    label = F.trim(F.col(f"`{trait}`").cast("string"))
    known = F.when(~F.lower(label).isin("", "nan"), label)
    found = frame.select(F.col(f"`{columns.user}`").cast("string"), known).distinct().toArrow()
    return one_answer_each(found.column(0).to_pylist(), found.column(1).to_pylist())


def _encoder(symbols: Symbols) -> Any:
    """The alphabet as a function of a row of values; one that is missing counts as a hole, whatever its code."""
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def encode(rows):  # type: ignore[no-untyped-def]
        """The codes of a chunk of values; a row with a missing one gets 0, which nobody may count."""
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
        raise DataError(
            f"{ties} events have the same {named!r} as another of their user, so which came first is not known; "
            "number them"
        )
