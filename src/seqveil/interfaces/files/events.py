"""A table as people's events in the order in which they happened: the one way from a file or a frame to codes.

Rows are put in order by their times or numbers, ties as they stand; what was chosen for missing values is done; and
where a model takes slots of time, each slot is one event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import MISSING, WITHHELD, Alphabet, Symbols
from seqveil.core.alphabet import OnMissing as Missing
from seqveil.core.errors import DataError, InputError, UnknownSymbol, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.reading import Reading
from seqveil.core.slots import Slots
from seqveil.interfaces.files import ordering
from seqveil.interfaces.files.slots import resampled
from seqveil.interfaces.files.table import FRAME, FilePath, Table, file_name, read_table

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[int], None]
ValueType = Literal["auto", "text", "number"]
Holes = Literal["none", "empty", "any"]  # values that may be missing: none, those of empty fields, any unreadable one

LATITUDES, LONGITUDES = ("latitude", "lat"), ("longitude", "lon", "lng")
UNKNOWN_VALUE = "check the value column, release with {option}, or refit the model with it"
OTHER_RELEASE = "check the value column, and that the model is the one of the release"
_WHOLE, _PADDED = r"^[+-]?(0|[1-9]\d{0,17}|[1-8]\d{18})$", r"^[+-]?0\d"
_FIELD = re.compile(r"((?:\\.|[^\\,])*)(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class Taken:
    """How a file was read and ordered: what each column was taken for and why, and what happened to rows.

    Nothing in it is a value of the file. `sorted`, `ties`, `missing`, `dropped` and `held` are for whoever has the raw
    file: they are never published.
    """

    form: str  # in words: "CSV with semicolons, compressed"
    user: str
    value: str
    order: str | None = None
    why: str = ""  # the order was taken so
    unit: str = ""  # what the order was read as
    slots: str = ""  # one row for each of them
    sorted: bool = False
    rows: int = 0
    ties: int = 0  # rows at the same place in the order as the row before of their user
    missing: int = 0  # rows without a value
    dropped: int = 0  # of them, those left out
    held: int = 0  # of them, those that got the value before

    @property
    def public(self) -> str:
        """In one line, without what follows from values or from how the raw rows stood in the file."""
        by = f"rows in the order of the file ({self.why})"
        if self.order is not None:
            by = f"in the order of {_quoted(self.order)} ({self.why}{f', {self.unit}' if self.unit else ''})"
        slots = f"; one row for each of {self.slots}" if self.slots else ""
        return f"{self.form}: user {_quoted(self.user)}, value {_quoted(self.value)}; {by}{slots}"

    @property
    def holes(self) -> str:
        """How many rows had no value, and what was done with them; empty where all had one."""
        kept = self.missing - self.dropped - self.held
        parts = [f"{self.dropped:,} dropped"] * bool(self.dropped) + [f"{self.held:,} held"] * bool(self.held)
        parts += [f"{kept:,} kept as such"] * bool(kept)
        return f"{self.missing:,} rows without a value: {', '.join(parts)}" if self.missing else ""

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        tied = f"{self.ties:,} {'tie' if self.ties == 1 else 'ties'}, in the order of the file"
        stood = ", ".join(["rows sorted first"] * self.sorted + [tied] * bool(self.ties))
        return "; ".join(filter(None, (self.public, stood, self.holes)))

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Events:
    """Events in their order. The frame has the columns user, value (or value0 and value1), row, and perhaps order and
    further ones; rows are those of the file, counted from 1. The repr shows no data.
    """

    name: str  # what messages call the file
    reading: Reading  # the columns that were taken
    frame: pl.DataFrame = field(repr=False)
    taken: Taken
    counts: bool = False  # whether the order counts events: a column seq that nobody named as times

    @property
    def n(self) -> int:
        """How many there are."""
        return self.frame.height

    @property
    def users(self) -> pl.Series:
        """Whose each event is."""
        return self.frame["user"]

    @property
    def values(self) -> pl.Series | NDArray[np.float64]:
        """The values: a series, or an array (T, 2) for two columns."""
        return (
            self.frame["value"] if "value" in self.frame.columns else self.frame.select("value0", "value1").to_numpy()
        )

    @property
    def order(self) -> pl.Series | None:
        """The order column under its own name; of several a struct."""
        return self.frame["order"].rename(self.taken.order or "") if "order" in self.frame.columns else None

    @cached_property
    def people(self) -> tuple[list[Any], Ints]:
        """The users there are, in the order they come, and which of them each event is of."""
        names = self.users.unique(maintain_order=True)
        numbers = self.users.to_frame().join(names.to_frame().with_row_index("n"), on="user", maintain_order="left")
        return names.to_list(), np.asarray(numbers["n"].to_numpy(), np.int64)

    def row(self, i: int) -> int:
        """The row of the file, counted from 1, that entry ``i`` came from."""
        return int(self.frame["row"][i])

    def seconds(self) -> Floats:
        """When each event was."""
        return ordering.seconds(self.order, self.counts, self.row, self.name)

    def at(self, places: Ints | slice) -> Events:
        """Some of them."""
        return replace(self, frame=self.frame[places])

    def in_public_order(self, together: bool = False) -> Events:
        """In an order that reveals nothing of the file they came from.

        By time or number where there is one, then by user; else, and where what is released `together` must stay so,
        user by user. Each user's events keep their sequence.
        """
        users = self.users.to_frame().with_row_index("place")
        places = users.sort("user", maintain_order=True)["place"].to_numpy().astype(np.int64)
        if self.order is not None and not together:
            keys = ordering.order_keys(self.order, self.row, self.name)
            places = places[np.lexsort([key.to_numpy()[places] for key in keys[::-1]])]
        return self.at(places)

    def codes(self, alphabet: Symbols, remedy: str = UNKNOWN_VALUE) -> Ints:
        """The code of each value; one outside the alphabet is hidden, or refused by its row, never with the value."""
        if len(self.reading.value_columns) != alphabet.width:
            wanted = f"two columns, as in {option('value', 'x,y')}" if alphabet.width == 2 else "one column"
            raise InputError(f"the model is for values in {wanted}; name the right ones")
        try:
            return alphabet.encode(self.values)
        except UnknownSymbol as error:
            row, choice = self.row(int(vars(error)["position"])), "hide" if alphabet.points is None else "nearest"
            raise DataError(
                f"{self.name}: row {row}: the value is not in the model's alphabet ({alphabet.n} symbols); "
                f"{remedy.format(option=option('on_unknown', choice))}"
            ) from None

    def streams(self, alphabet: Symbols) -> dict[Any, Ints]:
        """The codes of each person's events, people in the order they come."""
        names, who = self.people
        parts = np.split(self.codes(alphabet)[np.argsort(who, kind="stable")], np.cumsum(np.bincount(who))[:-1])
        return dict(zip(names, parts, strict=True))

    def codes_or_withheld(self, alphabet: Symbols) -> Ints:
        """The codes of released values, where an empty one says that nothing was released: WITHHELD."""
        values = self.values
        empty = np.isnan(values) if isinstance(values, np.ndarray) else values.is_null().to_numpy()[:, None]
        blank = empty.all(1)
        half = empty.any(1) & ~blank
        if half.any():
            row = self.row(int(half.argmax()))
            raise DataError(f"{self.name}: row {row}: one coordinate is empty and the other is not; mend the row")
        codes, said = np.full(self.n, WITHHELD, np.int64), np.flatnonzero(~blank)
        if said.size:
            codes[said] = self.at(said).codes(alphabet, OTHER_RELEASE)
        return codes


def read_events(
    data: FilePath | pl.DataFrame | Table,
    reading: Reading,
    kind: ValueType = "auto",
    *,
    format: str | None = None,
    missing: Missing | None = None,
    slots: Slots | None = None,
    clock: bool = False,
    holes: Holes = "none",
    on_map: bool = False,
    beside: Sequence[str] = (),
) -> Events:
    """The events of a file, of standard input for ``-``, of a polars frame, or of a table that was read before.

    Parameters:
        reading: what the columns are called.
        kind: how values are read: "text", "number" (decimal), or "auto": the file's own type; in a CSV what all fields
            look like, where a leading zero makes text. Users in a CSV are always text.
        format: of a file whose name does not tell.
        missing: what to do with rows without a value: leave them out ("drop"), go on with the last value of their
            stream ("hold"), or take that for a symbol of its own ("symbol"); None refuses them.
        slots: take one event for each slot of time.
        clock: whether the order must be times.
        holes: whether values may be null in what comes back.
        on_map: whether values are latitude and longitude: columns that are called so need no name.
        beside: further columns that are kept where there are some.
    """
    if missing not in (None, "drop", "hold", "symbol"):
        raise InputError(f"expected missing values to be drop, hold or symbol, got {missing!r}")
    name = data.name if isinstance(data, Table) else file_name(data)
    chosen = _Columns(name, reading, clock or slots is not None, on_map, tuple(beside))
    if isinstance(data, Table):
        table = replace(data, frame=data.frame.select(chosen.pick(data.frame.columns)))
    else:
        wanted = (*reading.user_columns, *reading.value_columns, *reading.time_columns)
        table = read_table(data, chosen.pick, format, wanted)
    kind = "text" if missing == "symbol" and kind == "auto" else kind
    found = chosen.settled(table).events(kind, missing, holes)
    found = _filled(_in_order(found), missing)
    if slots is None:
        return found
    frame = resampled(found.frame, found.seconds(), slots, found.name)
    return replace(found, frame=frame, taken=replace(found.taken, slots=slots.describe()))


def model_events(
    data: FilePath | pl.DataFrame | Table, model: MarkovModel, reading: Reading | None = None, **how: Any
) -> Events:
    """The events of raw data as a model says that they are read; `how` takes the place of what it says."""
    alphabet = model.alphabet
    said: dict[str, Any] = {"missing": alphabet.missing, "slots": alphabet.slots, "on_map": alphabet.on_map}
    return read_events(data, reading or model.reading or Reading(), value_type_of(alphabet), **said | how)


def value_type_of(alphabet: Symbols) -> ValueType:
    """How to read a value column so that its values compare with the alphabet's."""
    if isinstance(alphabet, Alphabet) and all(type(value) is str for value in alphabet.values):
        return "text"
    points = alphabet.points
    exact = points is not None and float(np.abs(points).max()) < 2.0**53
    return "number" if exact else "auto"


def coordinates_in(found: Sequence[str]) -> tuple[str, str] | None:
    """The columns that are called as latitude and longitude are, whatever the case, or so after a word such as gps_.

    >>> coordinates_in(["user", "Lng", "Lat"])
    ('Lat', 'Lng')
    """
    plain = {name.strip().lower().rsplit("_", 1)[-1]: name for name in reversed(found)}
    plain |= {name.strip().lower(): name for name in reversed(found)}
    lat, lon = (next((plain[name] for name in names if name in plain), None) for names in (LATITUDES, LONGITUDES))
    return None if lat is None or lon is None else (lat, lon)


@dataclass
class _Columns:
    """The columns of one table by their roles."""

    name: str
    reading: Reading
    clock: bool
    on_map: bool
    beside: tuple[str, ...]
    order: tuple[str, ...] = ()
    why: str = ""
    table: Table = field(init=False, repr=False)

    def pick(self, found: Sequence[str]) -> list[str]:
        """The columns to keep; which of them give the order is noted, and why."""
        pair = coordinates_in(found)
        if (self.on_map and pair is not None and not set(self.reading.value_columns) <= set(found)) or (
            self.on_map and pair is not None and self.reading.value == Reading().value
        ):
            self.reading = self.reading.but(value=",".join(pair))
        self.order, self.why = ordering.order_in(found, self.reading, self.clock)
        names = self.reading
        wanted = list(dict.fromkeys([*names.user_columns, *names.value_columns, *self.order]))
        lacking = [name for name in wanted if name not in found]
        if lacking:
            self._refuse_lacking(found, lacking, pair, len(lacking) == len(wanted))
        return [*wanted, *(name for name in self.beside if name in found and name not in wanted)]

    def _refuse_lacking(
        self, found: Sequence[str], lacking: list[str], pair: tuple[str, str] | None, all_of_them: bool
    ) -> NoReturn:
        # a CSV with none of the names may have no header at all: its first line is then somebody's data
        hide = all_of_them and self.name != FRAME
        what = " and no column ".join(map(repr, lacking))
        if pair is not None and not hide and set(lacking) <= set(self.reading.value_columns):
            raise DataError(
                f"{self.name}: no column {what}, but {pair[0]!r} and {pair[1]!r}, which are places; name the value "
                f"with {option('value')}, or fit a model of places with {option('cell_metres', 500)}"
            )
        has = "its first line must be a header" if hide else f"it has {', '.join(map(repr, found))}"
        roles = {"user": self.reading.user_columns, "value": self.reading.value_columns, "time": self.order}
        names = " and ".join(option(role) for role, own in roles.items() if set(own) & set(lacking))
        look = "" if self.name in ("-", FRAME) else f", or see `seqveil inspect {self.name}`"
        raise DataError(f"{self.name}: no column {what} ({has}); name yours with {names}{look}")

    def settled(self, table: Table) -> _Columns:
        """The same with the table; a column that was taken for the time by its name alone, and holds none, let go."""
        self.table = table
        guessed = self.reading.time is None and bool(self.order) and self.order[0] not in ("seq", "time")
        if guessed and ordering.holds_no_times(table.frame[self.order[0]]):
            self.why, self.order = f"column {self.order[0]!r} holds no times", ()
        return self

    def events(self, kind: ValueType, missing: Missing | None, holes: Holes) -> Events:
        """The rows as they stand in the table, each column with its type."""
        import polars as pl

        names, frame, pairs = self.reading, self.table.frame, len(self.reading.value_columns) == 2
        typed = {name: self._typed(frame[name]) for name in (*names.user_columns, *self.order)}
        users = joined([typed[name] for name in names.user_columns]).rename("user")
        allowed: Holes = holes if missing is None else "empty"
        own = [self._value(frame[name], kind, pairs, missing, allowed) for name in names.value_columns]
        made = [users, *(column.rename(f"value{k}" if pairs else "value") for k, column in enumerate(own))]
        unit = ""
        if self.order:
            order = typed[self.order[0]]
            unit = ordering.unit_of(order, self.name) if len(self.order) == 1 else ""
            if len(self.order) > 1:
                order = pl.DataFrame([typed[name] for name in self.order]).to_struct()
            made.append(order.rename("order"))
        made.append(pl.Series("row", np.arange(1, frame.height + 1)))
        made += [frame[name] for name in self.beside if name in frame.columns]
        order_name = ",".join(self.order) or None
        taken = Taken(self.table.form, names.user, names.value, order_name, self.why, unit, rows=frame.height)
        return Events(self.name, names, pl.DataFrame(made), taken, names.time is None and self.order == ("seq",))

    def _typed(self, series: pl.Series) -> pl.Series:
        """A column of users or of the order, none of it empty."""
        import polars as pl

        empty = _empty(series)
        if empty.any():
            self._refuse(empty, f"column {series.name!r} is empty; fill it in or remove the row")
        self._refuse_odd(series)
        if series.dtype in (pl.Categorical, pl.Enum):
            return series.cast(pl.String)
        if series.dtype.is_decimal():
            return series.cast(pl.Float64)
        if (
            series.dtype != pl.String
            or series.name not in self.order
            or not series.str.contains(ordering.DECIMAL).all()
        ):
            return series
        return series.cast(pl.Int64 if series.str.contains(_WHOLE).all() else pl.Float64)

    def _value(
        self, series: pl.Series, kind: ValueType, pairs: bool, missing: Missing | None, holes: Holes
    ) -> pl.Series:
        """A column of values, null where `holes` lets them be missing or unreadable."""
        import polars as pl

        empty = _empty(series)
        if missing is not None and series.dtype.is_float():
            empty |= series.is_nan().fill_null(False)
        if holes == "none" and empty.any():
            ways = ("drop", "hold") if pairs or kind == "number" else ("drop", "hold", "symbol")
            said = " or ".join(option("missing", way) for way in ways)
            self._refuse(empty, f"column {series.name!r} is empty; say what to do with {said}")
        self._refuse_odd(series)
        wanted = self._kind(series.filter(~empty), "number" if pairs else kind)
        column = series if wanted is None else series.cast(wanted, strict=False)
        bad = column.is_null() | (~column.is_finite() if column.dtype.is_float() else False)
        if holes == "any":
            return pl.select(pl.when(~bad).then(column)).to_series().alias(series.name)
        if (bad & ~empty).any():
            what = "must hold finite numbers; mend the row, or check that this is the value column"
            self._refuse(bad & ~empty, f"column {series.name!r} {what} and the model is this file's")
        return pl.select(pl.when(~empty).then(column)).to_series().alias(series.name) if empty.any() else column

    def _kind(self, filled: pl.Series, kind: ValueType) -> Any:
        """What to read values as; None for the type that the file gives them."""
        import polars as pl

        if filled.dtype == pl.Boolean:
            return None  # true is no number
        if kind == "number":
            return pl.Float64
        if kind == "text" or filled.dtype in (pl.Categorical, pl.Enum):
            return pl.String
        if not self.table.text:
            return pl.Float64 if filled.dtype.is_decimal() else None
        if filled.str.contains(_PADDED).any() or not filled.str.contains(ordering.DECIMAL).all():
            return pl.String
        return pl.Int64 if filled.str.contains(_WHOLE).all() else pl.Float64

    def _refuse_odd(self, series: pl.Series) -> None:
        import polars as pl

        if series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object):
            raise DataError(
                f"{self.name}: column {series.name!r} must hold text or numbers; unpack it into plain columns"
            )

    def _refuse(self, where: pl.Series, problem: str) -> NoReturn:
        raise DataError(f"{self.name}: row {int(where.arg_max() or 0) + 1}: {problem}")


def _empty(series: pl.Series) -> pl.Series:
    import polars as pl

    return series.is_null() | ((series == "").fill_null(True) if series.dtype == pl.String else False)


def _in_order(events: Events) -> Events:
    """The events put in order where a user's go back in time: all by the order column, ties as they stand."""
    import polars as pl

    if events.order is None:
        return events
    keys = ordering.order_keys(events.order, events.row, events.name)
    frame = pl.DataFrame([events.users, *(key.rename(f"key{k}") for k, key in enumerate(keys))])
    earlier = frame.select(pl.exclude("user").shift(1).over("user"))
    back, same = pl.Series([False]), pl.Series([True])
    for name in earlier.columns:
        back = back | (same & (frame[name] < earlier[name]).fill_null(False))
        same = same & (frame[name] == earlier[name]).fill_null(False)
    if not back.any():
        return replace(events, taken=replace(events.taken, ties=int(same.sum())))
    places = np.lexsort([key.to_numpy() for key in keys[::-1]])
    in_time = frame[places].select(pl.struct(pl.all()) == pl.struct(pl.all()).shift(1).over("user")).to_series()
    taken = replace(events.taken, sorted=True, ties=int(in_time.fill_null(False).sum()))
    return replace(events.at(places), taken=taken)


NO_SYMBOL = "a missing value can be a symbol of its own where values are names, not numbers that are cut; choose {}"


def no_symbol() -> str:
    """What to do about missing values that cannot be a symbol."""
    return NO_SYMBOL.format(" or ".join(option("missing", way) for way in ("drop", "hold")))


def _filled(events: Events, missing: Missing | None) -> Events:
    """The events with what was chosen for rows without a value done."""
    import polars as pl

    if missing is None:
        return events
    values = [name for name in events.frame.columns if name.startswith("value")]
    lost = events.frame.select(pl.any_horizontal(pl.col(*values).is_null())).to_series()
    taken, frame = replace(events.taken, missing=int(lost.sum())), events.frame
    if missing == "symbol":
        if len(values) > 1 or frame["value"].dtype not in (pl.String, pl.Null):
            raise DataError(f"{events.name}: {no_symbol()}")
        return replace(
            events, frame=frame.with_columns(pl.col("value").cast(pl.String).fill_null(MISSING)), taken=taken
        )
    if missing == "hold":
        kept = frame.with_columns(pl.when(~lost).then(pl.col(*values)))
        frame = kept.with_columns(pl.col(*values).forward_fill().over("user"))
    left = ~frame.select(pl.any_horizontal(pl.col(*values).is_null())).to_series()
    dropped = int((~left).sum())
    if not left.any():
        raise DataError(f"{events.name}: no row has a value; check that this is the value column")
    taken = replace(taken, dropped=dropped, held=taken.missing - dropped)
    return replace(events, frame=frame.filter(left), taken=taken)


def _quoted(names: str) -> str:
    return ", ".join(repr(name.strip()) for name in names.split(","))


def joined(parts: Sequence[pl.Series]) -> pl.Series:
    """Several columns as one column of keys; of one column the column itself."""
    import polars as pl

    if len(parts) == 1:
        return parts[0]
    texts = [
        part.cast(pl.String).str.replace_all("\\", "\\\\", literal=True).str.replace_all(",", "\\,", literal=True)
        for part in parts
    ]
    return pl.select(pl.concat_str([pl.lit(text) for text in texts], separator=",")).to_series()


def parted(keys: pl.Series, names: Sequence[str]) -> list[pl.Series]:
    """The columns that `joined` put together.

    >>> import polars as pl
    >>> keys = joined([pl.Series("a", ["x,y", "z"]), pl.Series("b", [1, 2])])
    >>> [part.to_list() for part in parted(keys, ["a", "b"])]
    [['x,y', 'z'], ['1', '2']]
    """
    import polars as pl

    if len(names) == 1:
        return [keys.rename(names[0])]
    rows = [
        [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in _FIELD.findall(key)[: len(names)]]
        for key in keys.to_list()
    ]
    return [pl.Series(name, [row[k] for row in rows], dtype=pl.String) for k, name in enumerate(names)]
