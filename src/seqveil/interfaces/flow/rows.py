"""Rows of a file as codes of an alphabet, and codes as rows of a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.alphabet import Alphabet, Bins, Grid, Symbols
from seqveil.core.errors import DataError, InputError, UnknownSymbol
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.files import Chunk, Columns, OrderCheck, read, sorted_chunks
from seqveil.interfaces.files.order import order_key
from seqveil.release.stream import Setting, check_times

if TYPE_CHECKING:
    import polars as pl

FilePath = str | os.PathLike[str]
ValueType = Literal["auto", "text", "number"]
Progress = Callable[[int], None]

CHUNK_ROWS = 200_000


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
        return os.path.basename(os.path.normpath(self.path))

    @property
    def piped(self) -> bool:
        return os.fspath(self.path) == "-"

    def chunks(
        self,
        value_type: ValueType = "auto",
        progress: Progress | None = None,
        again: bool = False,
        holes: bool = False,
    ) -> Iterator[Chunk]:
        """The rows in the order of their release; rows of one user that go back in time are refused.

        `again` skips that check, for a second reading of the file; `holes` lets values be missing.
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

    def coded(self, alphabet: Symbols, progress: Progress | None = None) -> Iterator[tuple[Chunk, Ints]]:
        """The chunks with the code of every value; one outside the alphabet is UNKNOWN, or refused by its row alone."""
        pairs = len(self.columns.value_columns) == 2
        if pairs != isinstance(alphabet, Grid):
            wanted = "two, as in --value-column x,y" if isinstance(alphabet, Grid) else "one"
            raise InputError(
                f"the model is for values in {wanted} column{'s' * (wanted != 'one')}; name the right ones"
            )
        for chunk in self.chunks(value_type_of(alphabet), progress, holes=alphabet.hides):
            yield chunk, encode(chunk, alphabet, self.name)


def value_type_of(alphabet: Symbols) -> ValueType:
    """How to read a value column so that its values compare with the alphabet's."""
    if isinstance(alphabet, Alphabet) and all(type(value) is str for value in alphabet.values):
        return "text"
    points = alphabet.points
    exact = points is not None and float(np.abs(points).max()) < 2.0**53
    return "number" if exact else "auto"


def encode(chunk: Chunk, alphabet: Symbols, name: str) -> Ints:
    try:
        return alphabet.encode(chunk.values)
    except UnknownSymbol as error:
        row = chunk.row(int(vars(error)["position"]))
        choice = "hide" if alphabet.points is None else "hide or nearest"
        remedy = f"check the value column, pass --on-unknown {choice}, or refit the model with it"
        raise DataError(
            f"{name}: row {row}: the value is not in the model's alphabet ({alphabet.n} symbols); {remedy}"
        ) from None


def columns_for(setting: Setting, columns: Columns | None) -> Columns:
    """The columns to read for this setting: with a budget per seconds the order must be times."""
    return replace(columns or Columns(), clock=setting.budget.seconds is not None)


def seconds(chunk: Chunk, name: str) -> Floats:
    """The order column in seconds: numbers by their size (`seqveil.core.times`), dates and times since 1970."""
    import polars as pl

    order = chunk.order
    if order is None or chunk.counts:
        raise DataError(f"{name}: a budget per seconds needs a time column; add time, or name it with --time-column")
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


class Clock:
    """Checks the times of a file's rows before any of them is released: what is refused follows from them alone."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._numbers: dict[object, int] = {}
        self._latest: list[float] = []

    def check(self, users: list[object], times: Floats) -> None:
        """Refuse times that the window cannot use, or that go back, of users whose budget is spent as well."""
        ids = np.array([self._numbers.setdefault(user, len(self._numbers)) for user in users], np.intp)
        self._latest += [-np.inf] * (len(self._numbers) - len(self._latest))
        latest = np.array(self._latest)
        check_times(self._setting, ids, times, latest[ids])
        np.maximum.at(latest, ids, times)
        self._latest = latest.tolist()


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
class Rows:
    """Released rows in the order they are written; `more` are columns beside user, order, value and ε."""

    users: pl.Series = field(repr=False)
    order: pl.Series | None = field(repr=False)
    codes: Ints = field(repr=False)
    epsilons: Floats
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def chunk(self) -> Chunk:
        """The rows as a table wants them; what was read is not among them."""
        return Chunk(self.users, np.zeros((0, 2)), self.order, 1)


class Table:
    """Rows to write: the user, the order where there is one, the value(s) of given codes, and further columns."""

    def __init__(self, alphabet: Symbols, columns: Columns) -> None:
        self._columns = columns
        self._values = symbol_columns(alphabet, columns.value_columns)

    def frame(self, chunk: Chunk, codes: Ints, more: Mapping[str, NDArray[Any]]) -> pl.DataFrame:
        """One row for each of the chunk's rows, with the values of these codes."""
        import polars as pl

        users, order = chunk.users.rename(self._columns.user), chunk.order
        series = [users, *([] if order is None else [order]), *(values.gather(codes) for values in self._values)]
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
