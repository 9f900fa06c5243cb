"""Fitting on Spark: SQL counts what follows what, and the driver turns the counts into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Codes, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import SMOOTHING, RunCounts
from seqveil.core.mixture import SWITCH, answers_among, one_answer_each, side_by_side
from seqveil.core.model import Counts, MarkovModel, TypeCounts
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
        if types == 1 and trait is None:
            runs = _ChainCounts(symbols.n, order)
            runs.take(_counted(rows, symbols, order, columns.seq))
            return Fitted(runs.model(symbols, smoothing), runs.events, runs.users, smoothing=smoothing)
        whole = _MixtureCounts(symbols.n, order, switch)
        table = _counted(rows, symbols, order, columns.seq, whole.piece)
        labels = {} if trait is None else _labels(frame, columns, trait)
    whole.take_people(table)
    if trait is None:
        return Fitted(whole.model(types, symbols, smoothing), whole.events, whole.users, smoothing=smoothing)
    answers, of_person = answers_among([labels.get(str(name)) for name in table.names], len(table.names))
    parts = []  # the mixture of each answer, from the counts of its people
    for number in range(len(answers)):
        counts = _MixtureCounts(symbols.n, order, switch)
        counts.take_people(table.of(of_person == number))
        parts.append(counts.model(types, symbols, smoothing))
    model = side_by_side(trait, answers, of_person, parts)
    return Fitted(model, whole.events, whole.users, smoothing=smoothing)


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


class _Table(NamedTuple):
    """Runs of codes, oldest first (-1 before the start of a stream), and how often each occurs, perhaps by person."""

    runs: list[Codes]
    counts: Codes
    person: Codes
    piece: Codes
    names: Sequence[Any] = ()  # of the people

    def of(self, people: NDArray[np.bool_]) -> _Table:
        """The runs of some people."""
        at = people[self.person]
        return _Table([codes[at] for codes in self.runs], self.counts[at], self.person[at], self.piece[at])


def _counted(rows: DataFrame, symbols: Symbols, order: int, named: str, piece: int | None = None) -> _Table:
    """Runs counted over all people; with `piece`, for each person and each piece of so many events (0: one piece)."""
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
    found = [table.column(f"x{back}").to_numpy().astype(np.int64) for back in range(order, -1, -1)]
    if piece is None:
        return _Table(found, counts, np.zeros(0, np.int64), np.zeros(0, np.int64))
    # people in the order of their names, as in a file
    names, people = np.unique(np.array(table.column(USER).to_pylist(), object), return_inverse=True)
    pieces = table.column("piece").to_numpy().astype(np.int64)
    return _Table(found, counts, people.astype(np.int64), pieces, names.tolist())


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


class _Taken(RunCounts):
    """Counts that were made elsewhere."""

    users = 0

    def take(self, table: _Table) -> None:
        """Runs of order+1 codes, oldest first, and their counts: all shorter runs are among their ends."""
        runs, counts = table.runs, table.counts
        self.events = int(counts.sum())
        number, inside = np.zeros(counts.size, np.int64), np.ones(counts.size, bool)
        for back in range(self.order + 1):
            codes = runs[self.order - back]
            if back == 1:
                starts = codes < 0  # nothing before: the first symbol of a stream
                np.add.at(self._first, runs[-1][starts], counts[starts])
                self.users = int(counts[starts].sum())
            inside = inside & (codes >= 0)
            number = number + np.where(inside, codes, 0) * self.n**back
            self._runs[back].waiting.append((number[inside], counts[inside]))


class _ChainCounts(_Taken, Counts):
    """Those of a chain."""


class _MixtureCounts(_Taken, TypeCounts):
    """Those of a mixture, made for each person."""

    def take_people(self, table: _Table) -> None:
        """Runs of order+1 codes by person and piece. The first events of a stream have runs of their own length."""
        self.take(table)
        back = (np.stack(table.runs) >= 0).sum(0) - 1
        number = sum(
            np.where(codes >= 0, codes, 0) * self.n ** (self.order - place) for place, codes in enumerate(table.runs)
        )
        self._parts.append((table.person, table.piece, self._offsets[back] + number, table.counts))
