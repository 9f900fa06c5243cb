"""Fitting on Spark: SQL counts what follows what, and the driver turns the counts into the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.alphabet import Alphabet, Codes, Symbols
from seqveil.core.errors import DataError, InputError, ModelError, UnknownSymbol
from seqveil.core.filtering import log_likelihoods
from seqveil.core.fitting import SMOOTHING, RunCounts
from seqveil.core.mixture import COMPARED, LEAST_PEOPLE, SWITCH, SWITCHES
from seqveil.core.model import Counts, MarkovModel, TypeCounts
from seqveil.core.states import checked_order
from seqveil.interfaces.choosing import LONGEST, Choice, Context, choose
from seqveil.interfaces.files.cuts import MOST_SYMBOLS
from seqveil.interfaces.spark.frames import FrameColumns
from seqveil.interfaces.spark.sessions import disclosed, guarded, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOLE, TIE = 1, 2  # what is wrong with a row


def fit(
    frame: DataFrame,
    order: int = 1,
    alphabet: Symbols | Sequence[Any] | None = None,
    smoothing: float = SMOOTHING,
    prior: str | ArrayLike = "data",
    columns: FrameColumns | None = None,
    *,
    types: int | None = None,
    seed: int = 0,
    switch: float | str = SWITCH,
    least_people: int = LEAST_PEOPLE,
) -> MarkovModel:
    """The model of a frame's streams, equal to the last count to what `MarkovModel.fit` makes of the same rows.

    One pass counts the runs x_{t-m}..x_t, with holes where a stream is shorter; every shorter run is a sum over them.
    With `types` they are counted for each user, the counts go to the driver, and the mixture is found there. The fit
    itself is **not** private.

    Parameters: as for `MarkovModel.fit`; without an alphabet it is what occurs, at most 100,000 values, which takes one
    pass more. `columns.seq` orders each user's events and must tell any two of them apart: Spark keeps no other order.
    """
    if types is None:
        symbols, counts = counted(frame, order, alphabet, columns)
        return counts.model(symbols, smoothing, prior)
    names = _checked_columns(frame, columns)
    with disclosed():
        symbols = _alphabet(frame, alphabet, names)
    people, distribution = CountedPeople(frame, symbols, names), (smoothing, prior, seed, least_people)
    return people.mixture(Context(order, types, switch), symbols, np.zeros(0, np.int64), *distribution)


def counted(
    frame: DataFrame,
    order: int = 1,
    alphabet: Symbols | Sequence[Any] | None = None,
    columns: FrameColumns | None = None,
) -> tuple[Symbols, RunsCounted]:
    """The alphabet of a frame's streams and their counts, from which `fit` makes the model."""
    names = _checked_columns(frame, columns)
    with disclosed():
        symbols = _alphabet(frame, alphabet, names)
        counts = RunsCounted(symbols.n, checked_order(order, symbols.n))
        found = _table(frame, symbols.strict, counts.order, names)
        counts.take(found.runs, found.counts)
    return symbols, counts


def chosen(
    frame: DataFrame,
    context: str,
    alphabet: Symbols | Sequence[Any] | None = None,
    smoothing: float = SMOOTHING,
    prior: str | ArrayLike = "data",
    columns: FrameColumns | None = None,
) -> tuple[Choice, CountedPeople]:
    """A context compared on people held out, as `seqveil fit --context` does it, and the people who were counted."""
    names = _checked_columns(frame, columns)
    if context != "auto":
        Context.parse(context)  # refused before anything is read
    with disclosed():
        symbols = _alphabet(frame, alphabet, names)
    people = CountedPeople(frame, symbols, names)
    return choose(people, symbols, context, smoothing=smoothing, prior=prior), people


def _checked_columns(frame: DataFrame, columns: FrameColumns | None) -> FrameColumns:
    needs_spark()
    names = columns or FrameColumns()
    if frame.isStreaming:
        raise InputError("a fit needs a frame that ends; read the same source with spark.read")
    names.refuse_missing(frame)
    return names


def _alphabet(frame: DataFrame, given: Symbols | Sequence[Any] | None, names: FrameColumns) -> Symbols:
    if given is not None:
        symbols = given if isinstance(given, Symbols) else Alphabet(given)
    elif len(names.values) == 2:
        raise InputError("two value columns need a Grid, or Cells of the map; pass it as alphabet=")
    else:
        found = frame.select(f"`{names.values[0]}`").distinct().limit(MOST_SYMBOLS + 2).toArrow().column(0).to_pylist()
        values = [value for value in found if value is not None]  # a missing one is refused below
        if len(values) > MOST_SYMBOLS:
            raise DataError(f"the values differ in more than {MOST_SYMBOLS} ways; cut numbers with alphabet=Bins(…)")
        if not found:
            raise DataError("there is nothing to fit: the frame has no rows")
        symbols = Alphabet.of(values or [0])
    if len(names.values) != symbols.width:
        raise InputError("two value columns go with a Grid or Cells; pass both")
    return symbols


@dataclass(frozen=True, eq=False)
class _RunTable:
    """Runs of codes, oldest first (-1 before the start of a stream), and how often each occurs, perhaps by person."""

    runs: list[Codes]
    counts: Codes
    users: Any = None  # the names of the people in order
    person: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    piece: Codes = field(default_factory=lambda: np.zeros(0, np.int64))

    def without(self, people: Codes) -> _RunTable:
        """The runs of all other people."""
        kept = ~np.isin(self.person, people)
        parts = {"person": self.person[kept], "piece": self.piece[kept], "counts": self.counts[kept]}
        return replace(self, runs=[codes[kept] for codes in self.runs], **parts)


def _rows(frame: DataFrame, symbols: Symbols, names: FrameColumns) -> tuple[DataFrame, bool]:
    """User, order and value under names of our own, and whether the value is a code already."""
    from pyspark.sql import functions as F

    coded = not isinstance(symbols, Alphabet) or symbols.on_unknown != "error"
    user, when = F.col(f"`{names.user}`"), F.col(f"`{names.seq}`")
    held = [F.col(f"`{name}`") for name in names.values]
    value = _encoder(symbols)(F.struct(*held)) if coded else held[0]
    hole = user.isNull() | when.isNull()
    for column in held:
        hole = hole | column.isNull()
    return frame.select(user.alias("u"), when.alias("w"), value.alias("x0"), hole.alias("hole")), coded


def _table(frame: DataFrame, symbols: Symbols, order: int, names: FrameColumns, piece: int | None = None) -> _RunTable:
    """Runs counted over all people; with `piece`, for each person and each piece of so many events (0: one piece)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rows, coded = _rows(frame, symbols, names)
    by = Window.partitionBy("u").orderBy("w")
    wrong = F.when(F.col("hole"), HOLE).when(F.lag("w").over(by) == F.col("w"), TIE).otherwise(0)
    before: list[Column] = [F.lag("x0", back).over(by).alias(f"x{back}") for back in range(order, 0, -1)]
    apart: list[Column] = []
    if piece is not None:
        place = F.floor((F.row_number().over(by) - 1) / piece) if piece else F.lit(0)
        apart = [F.col("u"), place.cast("bigint").alias("piece")]
    runs = rows.select(*apart, *before, "x0", wrong.alias("wrong"))
    table = runs.groupBy(*runs.columns).count().toArrow()
    counts = table.column("count").to_numpy().astype(np.int64)
    _refuse(table.column("wrong").to_numpy(), counts, names)
    columns = [table.column(f"x{back}") for back in range(order, -1, -1)]
    found = [_codes(column, None if coded else symbols) for column in columns]
    if piece is None:
        return _RunTable(found, counts)
    users, person = _numbered(table.column("u"))
    return _RunTable(found, counts, users, person, table.column("piece").to_numpy().astype(np.int64))


def _numbered(column: Any) -> tuple[Any, Codes]:
    """The different names of a column in order, and the place of each row's name among them."""
    distinguished = column.combine_chunks().dictionary_encode()
    names, place = np.unique(np.array(distinguished.dictionary.to_pylist(), object), return_inverse=True)
    return names, place[distinguished.indices.to_numpy(zero_copy_only=False)].astype(np.int64)


class CountedPeople:
    """People whose runs Spark counts, for fits of mixtures and for the choice of a context (`choosing.People`).

    The driver holds an entry for each different run of each person, and the streams of people held out.
    """

    def __init__(self, frame: DataFrame, symbols: Symbols, names: FrameColumns) -> None:
        self._frame, self._symbols, self._names = frame, symbols.strict, names
        self._tables: dict[tuple[int, int], _RunTable] = {}

    @property
    def events(self) -> int:
        """Events of all people."""
        return int(self._counted(1, 0).counts.sum())

    @property
    def count(self) -> int:
        """How many people there are."""
        return len(self._counted(1, 0).users)

    def _counted(self, order: int, piece: int) -> _RunTable:
        if (order, piece) not in self._tables:
            with disclosed():
                made = _table(self._frame, self._symbols, checked_order(order, self._symbols.n), self._names, piece)
            self._tables[order, piece] = made
        return self._tables[order, piece]

    def fit(self, context: Context, alphabet: Symbols, without: Codes, **distribution: Any) -> MarkovModel:
        """The model of a context, fitted to everyone but these people."""
        smoothing, prior, _ = (
            distribution.pop("smoothing"),
            distribution.pop("prior"),
            distribution.pop("progress", None),
        )
        if context.types > 1:
            return self.mixture(context, alphabet, without, smoothing, prior, **distribution)
        kept, counts = self._counted(context.order, 0).without(without), RunsCounted(alphabet.n, context.order)
        counts.take(kept.runs, kept.counts)
        return counts.model(alphabet, smoothing, prior)

    def mixture(
        self,
        context: Context,
        alphabet: Symbols,
        without: Codes,
        smoothing: float,
        prior: str | ArrayLike,
        seed: int,
        least_people: int = LEAST_PEOPLE,
    ) -> MarkovModel:
        """The mixture of `core.model.fit_mixture`, from counts by person and piece."""
        switch = context.switch
        if isinstance(switch, str) and switch != "estimate":
            raise ModelError(f'switch must be a probability a step or "estimate"; got {switch!r}')
        tried = SWITCHES if isinstance(switch, str) else (switch,)
        longest = self._longest(without) if len(tried) > 1 else 0
        made = []
        for each in tried:
            if each == tried[0] or each * longest >= 2:
                counts = TypesCounted(alphabet.n, context.order, each)
                counts.take_people(self._counted(context.order, counts.piece).without(without))
                made.append(counts.model(context.types, alphabet, smoothing, prior, seed, least_people))
        if len(made) == 1:
            return made[0]
        some = np.setdiff1d(np.arange(self.count), without)[:COMPARED]
        streams = self._streams(some, None)
        return max(made, key=lambda model: log_likelihoods(model, *streams).sum())

    def _longest(self, without: Codes) -> int:
        kept = self._counted(1, 0).without(without)
        return int(np.bincount(kept.person, kept.counts).max(initial=0))

    def streams(self, chosen: Codes) -> tuple[Codes, Codes]:
        """Who and which code, event by event, of these people: one after another, the first LONGEST events of each."""
        return self._streams(chosen, LONGEST)

    def _streams(self, chosen: Codes, longest: int | None) -> tuple[Codes, Codes]:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        with disclosed():
            rows, coded = _rows(self._frame, self._symbols, self._names)
            kind = rows.schema["u"].dataType
            names = [(name,) for name in self._counted(1, 0).users[np.sort(chosen)].tolist()]
            wanted = self._frame.sparkSession.createDataFrame(names, f"u {kind.simpleString()}")
            by = Window.partitionBy("u").orderBy("w")
            seen = rows.join(F.broadcast(wanted), "u").select("u", "x0", F.row_number().over(by).alias("place"))
            table = (seen if longest is None else seen.where(F.col("place") <= longest)).toArrow()
            codes = _codes(table.column("x0"), None if coded else self._symbols)
        person = _numbered(table.column("u"))[1]
        order = np.lexsort((table.column("place").to_numpy(), person))
        return np.sort(chosen)[person[order]], codes[order]


def _encoder(symbols: Symbols) -> Any:
    """The alphabet as a function of a row of values; one that is missing counts as a hole, whatever its code."""
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def encode(rows):  # type: ignore[no-untyped-def]
        with guarded():
            whole = rows.notna().all(axis=1).to_numpy()
            values = rows.to_numpy(np.float64) if rows.shape[1] == 2 else rows.iloc[:, 0].to_numpy()
            codes = np.zeros(len(whole), np.int64)
            codes[whole] = symbols.encode(values[whole])
        return pd.Series(codes)

    encode.__annotations__ = {"rows": pd.DataFrame, "return": pd.Series}  # how Spark knows what it takes
    return pandas_udf(encode, "bigint")  # type: ignore[call-overload]


def _refuse(wrong: NDArray[Any], counts: Codes, names: FrameColumns) -> None:
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
    distinguished = column.combine_chunks().dictionary_encode()
    values = distinguished.dictionary.to_pylist()
    try:
        known = symbols.encode(values) if values else np.zeros(0, np.int64)
    except UnknownSymbol:
        raise UnknownSymbol(
            f"a value is not in the alphabet ({symbols.n} symbols); check the value column, or leave alphabet= out"
        ) from None
    places = np.asarray(pc.fill_null(distinguished.indices, len(values)).to_numpy(zero_copy_only=False), np.int64)
    return np.append(known, -1)[places]


class _Taken(RunCounts):
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


class RunsCounted(_Taken, Counts):
    """A chain's counts, made elsewhere."""


class TypesCounted(_Taken, TypeCounts):
    """A mixture's counts, made elsewhere for each person."""

    def take_people(self, table: _RunTable) -> None:
        """Runs of order+1 codes by person and piece. The first events of a stream have runs of their own length."""
        self.take(table.runs, table.counts)
        back = (np.stack(table.runs) >= 0).sum(0) - 1
        number = sum(
            np.where(codes >= 0, codes, 0) * self.n ** (self.order - place) for place, codes in enumerate(table.runs)
        )
        self._parts.append((table.person, table.piece, self._offsets[back] + number, table.counts))


def _summed(places: Codes, counts: Codes, size: int) -> Codes:
    """Whole sums; a bincount with weights would round."""
    total = np.zeros(size, np.int64)
    np.add.at(total, places, counts)
    return total
