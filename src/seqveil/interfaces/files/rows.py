"""Rows of a file as events to release, and releases as rows of a file.

What waits of a batch, at most `batch` - 1 raw symbols a user, waits in memory and is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.alphabet import WITHHELD, Alphabet, Bins, Symbols
from seqveil.core.alphabet import OnMissing as Missing
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Floats, Ints
from seqveil.core.slots import Slots
from seqveil.engine.batches import encode_path
from seqveil.engine.releases import Releases
from seqveil.engine.stream import Terms
from seqveil.interfaces.files.columns import Columns, Holes, Taken, ValueType, parted
from seqveil.interfaces.files.ordering import Filled, OrderCheck, goes_back, order_keys, seconds, sorted_chunks
from seqveil.interfaces.files.reading import Chunk, FilePath, file_name, read
from seqveil.interfaces.files.slots import resampled
from seqveil.interfaces.files.writing import BATCH, EVENT, PATH, SAME_PATH

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[int], None]

CHUNK_ROWS = 200_000
UNKNOWN_VALUE = "check the value column, pass --on-unknown {choice} to release, or refit the model with it"
OTHER_RELEASE = "check the value column, and that the model is the one of the release"


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
    """A file, or a polars frame, to read as streams.

    Parameters:
        path: where it is; a frame is read as if it were a file.
        columns: what its columns are called.
        format: where its name does not tell.
        sort: whether to sort it first.
        chunk: rows read at a time.
        missing: what to do with rows without a value: leave them out ("drop"), go on with the last value of their
            stream ("hold"), or take that for a symbol of its own ("symbol"); None refuses them.
        slots: take one symbol for each slot of time; None takes every row for an event.
        taken: the record of how it was read, filled in on the way.
    """

    path: FilePath | pl.DataFrame
    columns: Columns = field(default_factory=Columns)
    format: str | None = None
    sort: bool = False
    chunk: int = CHUNK_ROWS
    missing: Missing | None = None
    slots: Slots | None = None
    taken: Taken = field(default_factory=Taken, compare=False)

    def __post_init__(self) -> None:
        if self.missing not in (None, "drop", "hold", "symbol"):
            raise InputError(f"expected missing values to be drop, hold or symbol, got {self.missing!r}")

    @classmethod
    def released(
        cls,
        path: FilePath | pl.DataFrame,
        columns: Columns,
        format: str | None = None,
        missing: Missing | None = None,
        slots: Slots | None = None,
    ) -> Source:
        """The raw file of a release; where it goes back in time, it was released sorted and is read so."""
        piped = isinstance(path, str) and path == "-"
        return cls(path, columns, format, not piped and goes_back(path, columns, format), missing=missing, slots=slots)

    @property
    def name(self) -> str:
        """What messages call the file."""
        return file_name(self.path)

    @property
    def piped(self) -> bool:
        """Whether the events come through standard input."""
        return isinstance(self.path, str) and self.path == "-"

    def chunks(
        self,
        value_type: ValueType = "auto",
        progress: Progress | None = None,
        again: bool = False,
        holes: Holes = "none",
    ) -> Iterator[Chunk]:
        """The rows in the order of their release; rows of one stream that go back in time are refused.

        `again` is for a second reading of the file, which neither checks nor counts; `holes` lets values be missing
        (`reading.read`), where nothing else was said about them.
        """
        kind: ValueType = "text" if self.missing == "symbol" and value_type == "auto" else value_type
        record = Taken() if again else self.taken
        parts = self._in_order(self._rows(kind, holes if self.missing is None else "none", record), record, again)
        if self.slots is not None:
            timed = ((part, seconds(part, self.name)) for part in parts)
            parts = resampled(timed, self.slots, self.name, self.chunk)
        for chunk in parts:
            yield chunk
            if progress is not None:
                progress(chunk.n)
        if self.slots is not None:
            record.note(f"one row for each of {self.slots.describe()}")

    def _rows(self, kind: ValueType, holes: Holes, record: Taken) -> Iterator[Chunk]:
        """The rows as they stand in the file, or sorted."""
        columns = self.columns if self.slots is None else replace(self.columns, clock=True)
        where = (self.path, columns, self.chunk, self.format, kind)
        if self.sort:
            return sorted_chunks(*where, holes, self.missing, record)
        return read(*where, self.piped and self.slots is None, holes, self.missing, record)

    def _in_order(self, rows: Iterator[Chunk], record: Taken, again: bool) -> Iterator[Chunk]:
        """The rows with what was chosen for missing values done; those that go back in time are refused at once."""
        record.begin()
        record.sorted = self.sort
        check = filled = None
        empty = True
        for part in rows:
            record.rows += part.n
            if part.order is not None and not again:  # of a second reading everything was said before
                check = check or OrderCheck(self.path, record)
                check.check(part)
            if self.missing is not None:
                filled = filled or Filled(self.missing, record)
                part = filled.fill(part)
            if part.n:
                empty = False
                yield part
        if empty and record.rows:
            raise DataError(f"{self.name}: no row has a value; check that this is the value column")

    def coded(
        self,
        alphabet: Symbols,
        progress: Progress | None = None,
        remedy: str = UNKNOWN_VALUE,
        blanks: bool = False,
    ) -> Iterator[Coded]:
        """The chunks with the code of every value; one outside the alphabet is UNKNOWN, or refused by its row alone.

        Times are there where the columns are read as times (`Columns.clock`). `remedy` says what helps against a value
        outside the alphabet. With `blanks` an empty value says that nothing was released, and its code is WITHHELD.
        """
        self.check_width(alphabet)
        holes: Holes = "empty" if blanks else "any" if alphabet.hides else "none"
        for chunk in self.chunks(value_type_of(alphabet), progress, holes=holes):
            codes = (encode_with_blanks if blanks else encode)(chunk, alphabet, self.name, remedy)
            yield Coded(chunk, codes, seconds(chunk, self.name) if self.columns.clock else None)

    def check_width(self, alphabet: Symbols) -> None:
        """Refuse value columns that are more or fewer than the alphabet takes."""
        if len(self.columns.value_columns) == alphabet.width:
            return
        wanted = "two columns, as in --value-column x,y" if alphabet.width == 2 else "one column"
        if alphabet.on_map:
            wanted = "two columns, named with --latitude and --longitude"
        raise InputError(f"the model is for values in {wanted}; name the right ones")


def value_type_of(alphabet: Symbols) -> ValueType:
    """How to read a value column so that its values compare with the alphabet's."""
    if isinstance(alphabet, Alphabet) and all(type(value) is str for value in alphabet.values):
        return "text"
    points = alphabet.points
    exact = points is not None and float(np.abs(points).max()) < 2.0**53
    return "number" if exact else "auto"


def encode(chunk: Chunk, alphabet: Symbols, name: str, remedy: str = UNKNOWN_VALUE) -> Ints:
    """Codes of a chunk's values; one that is not in the alphabet is refused with its row, never with the value."""
    try:
        return alphabet.encode(chunk.values)
    except UnknownSymbol as error:
        row = chunk.row(int(vars(error)["position"]))
        choice = "hide" if alphabet.points is None else "hide or nearest"
        raise DataError(
            f"{name}: row {row}: the value is not in the model's alphabet ({alphabet.n} symbols); "
            f"{remedy.format(choice=choice)}"
        ) from None


def encode_with_blanks(chunk: Chunk, alphabet: Symbols, name: str, remedy: str) -> Ints:
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
        codes[said] = encode(chunk if said.size == chunk.n else chunk.take(said), alphabet, name, remedy)
    return codes


def columns_for(setting: Terms, columns: Columns | None) -> Columns:
    """The columns to read for this setting: where events need times, the order must be times."""
    return replace(columns or Columns(), clock=setting.timed)


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
    order: pl.Series | None = field(repr=False)  # of all rows, event by event

    def __len__(self) -> int:
        return len(self.users)


class OneByOne:
    """Each row is an event."""

    def take(self, part: Coded) -> Events:
        """The events that these rows make whole."""
        chunk, sizes = part.chunk, np.ones(part.n, np.int64)
        return Events(chunk.users, part.codes, part.times, sizes, chunk.order)

    def rest(self, at: int, most: int | None = None) -> Events | None:
        """Events that go out unfinished at the end, from the one at `at` on; None where there are no more."""
        return None


@dataclass
class _Waiting:
    """The rows of a user whose batch is not full."""

    user: Any
    codes: list[int] = field(default_factory=list, repr=False)
    order: list[Any] = field(default_factory=list, repr=False)
    time: float | None = None  # of the last one


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
                full.append(self._waiting.pop(user))
        return self._events(full)

    def rest(self, at: int, most: int | None = None) -> Events | None:
        """Short last batches, from the one at `at` on; None where there are no more."""
        left = list(self._waiting.values())[at:][:most]
        return self._events(left) if left else None

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
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """All of them, one behind another."""
        import polars as pl

        orders = [part.order for part in parts if part.order is not None]
        return cls(
            pl.concat([part.users for part in parts]),
            pl.concat(orders) if orders else None,
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.epsilons for part in parts]),
            {name: np.concatenate([part.more[name] for part in parts]) for name in parts[0].more},
        )

    def take(self, places: Ints) -> Rows:
        """The rows at these places."""
        order = None if self.order is None else self.order.gather(places)
        more = {name: values[places] for name, values in self.more.items()}
        return Rows(self.users.gather(places), order, self.codes[places], self.epsilons[places], more)

    def in_public_order(self) -> Rows:
        """The rows in an order that reveals nothing of the file they came from.

        By time or number where there is one, then by user; else, and for batches, which stay together, user by user.
        Each user's rows keep their sequence.
        """
        users = self.users.to_frame("user").with_row_index("place")
        places = users.sort("user", maintain_order=True)["place"].to_numpy().astype(np.int64)
        if self.order is not None and BATCH not in self.more:
            keys = [key.gather(places).to_numpy() for key in order_keys(self.order, lambda k: k + 1, "released rows")]
            places = places[np.lexsort(keys[::-1])]
        return self.take(places)

    @classmethod
    def of(cls, events: Events, made: Releases, setting: Terms) -> Rows:
        """What was released of the events; the first row of a batch has its ε and path."""
        disclosed = np.flatnonzero((made.codes >= 0) | (made.codes == WITHHELD))
        epsilons, seqs = made.epsilons[disclosed], made.seqs[disclosed]
        if made.sent is None:
            users, order = events.users, events.order
            if disclosed.size < len(events):
                users, order = users.gather(disclosed), None if order is None else order.gather(disclosed)
            more = {EVENT: seqs} if gaps(setting) else {}
            return cls(users, order, made.codes[disclosed], epsilons, more)
        sizes, sent = events.sizes[disclosed], [each for each in made.sent if each is not None]
        starts, count = np.cumsum(sizes) - sizes, int(sizes.sum())
        spent, texts = np.zeros(count), np.full(count, SAME_PATH, object)
        spent[starts], texts[starts] = epsilons, [encode_path(path) for path, _ in sent]
        codes = np.concatenate([np.zeros(0, np.int64), *(codes for _, codes in sent)])
        rows = np.flatnonzero(np.repeat(made.codes >= 0, events.sizes))
        order = None if events.order is None else events.order.gather(rows)
        more = {BATCH: np.repeat(seqs, sizes), PATH: texts.astype(np.str_)}
        return cls(events.users.gather(np.repeat(disclosed, sizes)), order, codes, spent, more)


def gaps(setting: Terms) -> bool:
    """Whether events may go without a release, so that a receiver must hear of them."""
    return setting.budget.limited and setting.budget.when_spent == "stop"


class Table:
    """Rows to write: the user, the order where there is one, the value(s) of given codes, and further columns."""

    def __init__(self, alphabet: Symbols, columns: Columns) -> None:
        self._columns = columns
        self._values = symbol_columns(alphabet, columns.value_columns)

    def frame(
        self,
        users: pl.Series,
        order: pl.Series | None,
        codes: Ints,
        more: Mapping[str, NDArray[Any]],
    ) -> pl.DataFrame:
        """One row for each user named, with the value of its code; none where nothing was said."""
        import polars as pl

        public = parted(users, self._columns.user_columns)
        if order is not None:
            public += order.struct.unnest().get_columns() if order.dtype == pl.Struct else [order]
        places = pl.Series(codes, dtype=pl.Int64)
        if (codes < 0).any():
            places = pl.select(pl.when(places >= 0).then(places)).to_series()
        series = [*public, *(values.gather(places) for values in self._values)]
        taken = {column.name for column in series} & set(more)
        if taken:
            raise InputError(f"a column is named {min(taken)!r}, which is what the output adds; rename it in the file")
        return pl.DataFrame([*series, *(pl.Series(name, values) for name, values in more.items())])


def symbol_columns(alphabet: Symbols, names: tuple[str, ...]) -> list[pl.Series]:
    """The alphabet's values as columns, one entry a code: two columns for points of a grid or the map."""
    import polars as pl

    if alphabet.width == 2 and alphabet.points is not None:
        return [pl.Series(name, alphabet.points[:, axis]) for axis, name in enumerate(names)]
    values = alphabet.points if isinstance(alphabet, Bins) else alphabet.decode(np.arange(alphabet.n))
    return [pl.Series(names[0], values, strict=False)]
