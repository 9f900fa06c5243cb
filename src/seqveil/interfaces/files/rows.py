"""Rows of a file as events to release, and releases as rows of a file.

What waits of a batch, at most `batch` - 1 raw symbols a user, waits in memory and is never written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.alphabet import WITHHELD, Alphabet, Bins, Grid, Symbols
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.files.reading import (
    Chunk,
    Columns,
    FilePath,
    Holes,
    OrderCheck,
    ValueType,
    file_name,
    order_key,
    read,
    sorted_chunks,
)
from seqveil.interfaces.files.writing import BATCH, EVENT, PATH, SAME_PATH
from seqveil.release.batches import encode_path
from seqveil.release.releases import Releases
from seqveil.release.stream import Setting

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[int], None]

CHUNK_ROWS = 200_000


@dataclass(frozen=True, eq=False)
class Coded:
    """Consecutive rows with the code of each value, and its time in seconds where times count."""

    chunk: Chunk
    codes: Ints = field(repr=False)
    times: Floats | None

    @property
    def n(self) -> int:
        """How many events it has."""
        return self.chunk.n

    def take(self, at: slice | NDArray[np.intp]) -> Coded:
        """Some of the rows."""
        times = None if self.times is None else self.times[at]
        return Coded(self.chunk.take(at), self.codes[at], times)


@dataclass(frozen=True)
class Source:
    """A file to read as streams: where it is, what its columns are called, and whether to sort it first."""

    path: FilePath
    columns: Columns = field(default_factory=Columns)
    format: str | None = None
    sort: bool = False
    chunk: int = CHUNK_ROWS

    @property
    def name(self) -> str:
        """What messages call the file."""
        return file_name(self.path)

    @property
    def piped(self) -> bool:
        """Whether the events come through standard input."""
        return os.fspath(self.path) == "-"

    def chunks(
        self,
        value_type: ValueType = "auto",
        progress: Progress | None = None,
        again: bool = False,
        holes: Holes = "none",
    ) -> Iterator[Chunk]:
        """The rows in the order of their release; rows of one user that go back in time are refused.

        `again` skips that check, for a second reading of the file; `holes` lets values be missing (`reading.read`).
        """
        order = OrderCheck(self.path, self.columns.clock)
        if self.sort:
            rows = sorted_chunks(self.path, self.columns, self.chunk, self.format, value_type, holes)
        else:
            rows = read(self.path, self.columns, self.chunk, self.format, value_type, self.piped, holes)
        for chunk in rows:
            if not again:
                order.check(chunk)
            yield chunk
            if progress is not None:
                progress(chunk.n)

    def coded(self, alphabet: Symbols, progress: Progress | None = None, blanks: bool = False) -> Iterator[Coded]:
        """The chunks with the code of every value; one outside the alphabet is UNKNOWN, or refused by its row alone.

        Times are there where the columns are read as times (`Columns.clock`). With `blanks` an empty value says that
        nothing was released, and its code is WITHHELD.
        """
        pairs = len(self.columns.value_columns) == 2
        if pairs != isinstance(alphabet, Grid):
            wanted = "two, as in --value-column x,y" if isinstance(alphabet, Grid) else "one"
            raise InputError(
                f"the model is for values in {wanted} column{'s' * (wanted != 'one')}; name the right ones"
            )
        holes: Holes = "empty" if blanks else "any" if alphabet.hides else "none"
        for chunk in self.chunks(value_type_of(alphabet), progress, holes=holes):
            codes = (encode_with_blanks if blanks else encode)(chunk, alphabet, self.name)
            yield Coded(chunk, codes, seconds(chunk, self.name) if self.columns.clock else None)


def value_type_of(alphabet: Symbols) -> ValueType:
    """How to read a value column so that its values compare with the alphabet's."""
    if isinstance(alphabet, Alphabet) and all(type(value) is str for value in alphabet.values):
        return "text"
    points = alphabet.points
    exact = points is not None and float(np.abs(points).max()) < 2.0**53
    return "number" if exact else "auto"


def encode(chunk: Chunk, alphabet: Symbols, name: str) -> Ints:
    """Codes of a chunk's values; one that is not in the alphabet is refused with its row, never with the value."""
    try:
        return alphabet.encode(chunk.values)
    except UnknownSymbol as error:
        row = chunk.row(int(vars(error)["position"]))
        choice = "hide" if alphabet.points is None else "hide or nearest"
        remedy = f"check the value column, pass --on-unknown {choice}, or refit the model with it"
        raise DataError(
            f"{name}: row {row}: the value is not in the model's alphabet ({alphabet.n} symbols); {remedy}"
        ) from None


def encode_with_blanks(chunk: Chunk, alphabet: Symbols, name: str) -> Ints:
    """The same where an empty value says that nothing was released."""
    values = chunk.values
    empty = np.isnan(values) if isinstance(values, np.ndarray) else values.is_null().to_numpy()[:, None]
    blank = empty.all(1)
    half = empty.any(1) & ~blank
    if half.any():
        row = chunk.row(int(half.argmax()))
        raise DataError(f"{name}: row {row}: one coordinate is empty and the other is not; mend the row")
    codes, said = np.full(chunk.n, WITHHELD, np.int64), np.flatnonzero(~blank)
    if said.size:
        codes[said] = encode(chunk if said.size == chunk.n else chunk.take(said), alphabet, name)
    return codes


def columns_for(setting: Setting, columns: Columns | None) -> Columns:
    """The columns to read for this setting: where events need times, the order must be times."""
    return replace(columns or Columns(), clock=setting.timed)


def seconds(chunk: Chunk, name: str) -> Floats:
    """The order column in seconds: numbers by their size (`seqveil.core.times`), dates and times since 1970."""
    import polars as pl

    order = chunk.order
    if order is None or chunk.counts:
        raise DataError(
            f"{name}: a budget per seconds, or hours of the day, need a time column; add time, or name --time-column"
        )
    if order.dtype == pl.String:
        return np.asarray(order_key(order, chunk.row, name).to_numpy(), np.float64) / 1e9
    if order.dtype.is_temporal():
        stamps = _calendar(order)
        wrong = ~(np.abs(stamps) < clock.LATEST)
        if wrong.any():
            row = chunk.row(int(wrong.argmax()))
            raise DataError(f"{name}: row {row}: column {order.name!r} must hold times before the year 5138; mend it")
        return stamps
    try:
        return clock.seconds(order.to_numpy())
    except InputError as error:
        row, said = chunk.row(int(vars(error)["position"])), str(error).partition(": ")[2]
        raise DataError(f"{name}: row {row}: {said}") from None


def _calendar(order: pl.Series) -> Floats:
    """Dates and times in seconds; as floats, because in a finer unit far ones would wrap around."""
    import polars as pl

    numbers = np.asarray(order.to_physical().to_numpy(), np.float64)
    if order.dtype == pl.Date:
        return numbers * clock.DAY
    parts = {"ns": 1e9, "us": 1e6, "ms": 1e3}
    return numbers / parts[getattr(order.dtype, "time_unit", "ns")]


def times_read_as(chunk: Chunk) -> str | None:
    """What the order column was taken for by `seconds`, and its name."""
    order = chunk.order
    if order is None:
        return None
    unit = clock.unit_of(order.to_numpy()) if order.dtype.is_numeric() else clock.CALENDAR
    return f"{unit} (column {order.name!r})"


@dataclass(frozen=True, eq=False)
class Events:
    """What one call releases: rows one by one, or batches that are full."""

    users: pl.Series = field(repr=False)
    raw: Ints | list[Ints] = field(repr=False)  # the code of each event, or the codes of each batch
    times: Floats | None
    sizes: Ints  # rows of each event
    places: Ints  # of the row that made each event whole, among those read with it; -1: it was read before
    order: pl.Series | None = field(repr=False)  # of all rows, event by event

    def __len__(self) -> int:
        return len(self.users)


class OneByOne:
    """Each row is an event."""

    def take(self, part: Coded) -> Events:
        """The events that these rows make whole."""
        sizes, places = np.ones(part.n, np.int64), np.arange(part.n)
        return Events(part.chunk.users, part.codes, part.times, sizes, places, part.chunk.order)

    def rest(self, at: int, most: int | None = None) -> Events | None:
        """Events that go out unfinished at the end, from the one at `at` on; None where there are no more."""
        return None

    def drop(self, users: Iterable[Hashable]) -> int:
        """Forget what waits of these users; how many rows that were."""
        return 0


@dataclass
class _Waiting:
    """The rows of a user whose batch is not full."""

    user: Any
    codes: list[int] = field(default_factory=list, repr=False)
    order: list[Any] = field(default_factory=list, repr=False)
    time: float | None = None  # of the last one
    place: int = -1


class InBatches:
    """Rows of each user wait until they fill a batch; short ones go at the end of the file."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._waiting: dict[Hashable, _Waiting] = {}
        self._like: Chunk | None = None  # the last rows taken, for names and types of columns

    def take(self, part: Coded) -> Events:
        """The batches that these rows fill, in this order."""
        self._like, full = part.chunk, []
        order = None if part.chunk.order is None else part.chunk.order.to_physical().to_list()
        for k, user in enumerate(part.chunk.users.to_list()):
            held = self._waiting.setdefault(user, _Waiting(user))
            held.codes.append(int(part.codes[k]))
            if order is not None:
                held.order.append(order[k])
            held.time = None if part.times is None else float(part.times[k])
            if len(held.codes) == self._batch:
                held.place = k
                full.append(self._waiting.pop(user))
        return self._events(full)

    def rest(self, at: int, most: int | None = None) -> Events | None:
        """Short last batches, from the one at `at` on; None where there are no more."""
        left = list(self._waiting.values())[at:][:most]
        return self._events(left) if left else None

    def drop(self, users: Iterable[Hashable]) -> int:
        """Forget what waits of these users; how many rows that were."""
        return sum(len(self._waiting.pop(user).codes) for user in users if user in self._waiting)

    def _events(self, full: list[_Waiting]) -> Events:
        import polars as pl

        like, order = self._like, None
        assert like is not None  # a file without rows is refused before
        if like.order is not None:
            values = [value for held in full for value in held.order]
            kind = like.order.to_physical().dtype
            order = pl.Series(like.order.name, values, dtype=kind).cast(like.order.dtype)
        timed = bool(full) and full[0].time is not None
        return Events(
            users=pl.Series(like.users.name, [held.user for held in full], dtype=like.users.dtype),
            raw=[np.array(held.codes, np.int64) for held in full],
            times=np.array([held.time for held in full], np.float64) if timed else None,
            sizes=np.array([len(held.codes) for held in full], np.int64),
            places=np.array([held.place for held in full], np.int64),
            order=order,
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Released rows in the order they are written; `more` are columns beside user, order, value and ε."""

    users: pl.Series = field(repr=False)
    order: pl.Series | None = field(repr=False)
    codes: Ints = field(repr=False)
    epsilons: Floats
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Events, made: Releases, setting: Setting, upto: int | None = None) -> Rows:
        """What was released of the first `upto` events; the first row of a batch has its ε and path."""
        told = np.flatnonzero((made.codes[:upto] >= 0) | (made.codes[:upto] == WITHHELD))
        epsilons, seqs = made.epsilons[told], made.seqs[told]
        if made.sent is None:
            users, order = events.users, events.order
            if told.size < len(events):
                users, order = users.gather(told), None if order is None else order.gather(told)
            return cls(users, order, made.codes[told], epsilons, {EVENT: seqs} if gaps(setting) else {})
        sizes, sent = events.sizes[told], [each for each in made.sent[:upto] if each is not None]
        starts, count = np.cumsum(sizes) - sizes, int(sizes.sum())
        spent, texts = np.zeros(count), np.full(count, SAME_PATH, object)
        spent[starts], texts[starts] = epsilons, [encode_path(path) for path, _ in sent]
        codes = np.concatenate([np.zeros(0, np.int64), *(codes for _, codes in sent)])
        rows = np.flatnonzero(np.repeat(made.codes[:upto] >= 0, events.sizes[:upto]))
        order = None if events.order is None else events.order.gather(rows)
        more = {BATCH: np.repeat(seqs, sizes), PATH: texts.astype(np.str_)}
        return cls(events.users.gather(np.repeat(told, sizes)), order, codes, spent, more)


def may_be_empty(setting: Setting) -> bool:
    """Whether a release may say nothing, so that a row with an empty value is one of them."""
    return setting.withhold or setting.blank is not None


def gaps(setting: Setting) -> bool:
    """Whether events may go without a release, so that a receiver must be told of them."""
    return setting.budget.limited and setting.budget.when_spent == "stop"


class Table:
    """Rows to write: the user, the order where there is one, the value(s) of given codes, and further columns."""

    def __init__(self, alphabet: Symbols, columns: Columns) -> None:
        self._columns = columns
        self._values = symbol_columns(alphabet, columns.value_columns)

    def frame(
        self, users: pl.Series, order: pl.Series | None, codes: Ints, more: Mapping[str, NDArray[Any]]
    ) -> pl.DataFrame:
        """One row for each user named, with the value of its code; none where nothing was said."""
        import polars as pl

        named, places = users.rename(self._columns.user), pl.Series(codes, dtype=pl.Int64)
        if (codes < 0).any():
            places = pl.select(pl.when(places >= 0).then(places)).to_series()
        series = [named, *([] if order is None else [order]), *(values.gather(places) for values in self._values)]
        taken = {column.name for column in series} & set(more)
        if taken:
            raise InputError(f"a column is named {min(taken)!r}, which is what the output adds; rename it in the file")
        return pl.DataFrame([*series, *(pl.Series(name, values) for name, values in more.items())])


def symbol_columns(alphabet: Symbols, names: tuple[str, ...]) -> list[pl.Series]:
    """The alphabet's values as columns, one entry a code: two columns for a grid."""
    import polars as pl

    if isinstance(alphabet, Grid):
        return [pl.Series(name, alphabet.points[:, axis]) for axis, name in enumerate(names)]
    values = alphabet.points if isinstance(alphabet, Bins) else alphabet.decode(np.arange(alphabet.n))
    return [pl.Series(names[0], values, strict=False)]
