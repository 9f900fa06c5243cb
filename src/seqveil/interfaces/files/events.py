"""A table as people's events in the order in which they happened: the one way from a file or a frame to codes.

Rows are put in order by their times or numbers, ties as they stand; what was chosen for missing values is done; and
where a model takes slots of time, each slot is one event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seqveil.core.alphabet import MISSING, WITHHELD, Alphabet, Symbols
from seqveil.core.alphabet import OnMissing as Missing
from seqveil.core.errors import DataError, InputError, UnknownSymbol, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import Reading
from seqveil.core.times import Slots
from seqveil.interfaces.files import ordering
from seqveil.interfaces.files.table import FRAME, FilePath, Table, file_name, known_format, read_table

Progress = Callable[..., None]  # called with how many more rows are done, and how many there are
ValueType = Literal["auto", "text", "number", "whole", "truth"]
TRUTH = {"true": True, "false": False}
Holes = Literal["none", "empty", "any"]  # values that may be missing: none, those of empty fields, any unreadable one

PLACE = (("latitude", "lat"), ("longitude", "lon", "lng"))  # what the columns of places are called
UNKNOWN_VALUE = "check the value column, release with {option}, or refit the model with it"
OTHER_RELEASE = "check the value column, and that the model is the one of the release"
_WHOLE, _PADDED = r"^[+-]?(0|[1-9]\d{0,17}|[1-8]\d{18})$", r"^[+-]?0\d"
_COMMA = r"^[+-]?\d+,\d+$"


def silent(*_: int) -> None:
    """Where nobody asks how far it is."""


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
        names = Reading(self.user, self.value, self.order)
        user, value = (", ".join(map(repr, own)) for own in (names.user_columns, names.value_columns))
        if self.order:
            by = f"in the order of {self.order!r} ({self.why}{f', {self.unit}' if self.unit else ''})"
        slots = f"; one row for each of {self.slots}" if self.slots else ""
        return f"{self.form}: user {user}, value {value}; {by}{slots}"

    @property
    def holes(self) -> str:
        """How many rows had no value, and what was done with them; empty where all had one."""
        ways = {"dropped": self.dropped, "held": self.held, "kept as such": self.missing - self.dropped - self.held}
        parts = [f"{rows:,} {way}" for way, rows in ways.items() if rows]
        return f"{self.missing:,} rows without a value: {', '.join(parts)}" if self.missing else ""

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        tied = f"{self.ties:,} {'tie' if self.ties == 1 else 'ties'}, in the order of the file"
        stood = ", ".join(["rows sorted first"] * self.sorted + [tied] * bool(self.ties))
        return "; ".join(filter(None, (self.public, stood, self.holes)))


@dataclass(frozen=True, eq=False)
class Events:
    """Events in their order. The frame has the columns user, value (or value0 and value1), row, and perhaps order and
    further ones; rows are those of the file, counted from 1. The repr shows no data.
    """

    name: str  # what messages call the file
    reading: Reading  # the columns that were taken
    frame: pl.DataFrame = field(repr=False)
    taken: Taken

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
        one = "value" in self.frame.columns
        return self.frame["value"] if one else self.frame.select("value0", "value1").to_numpy()

    @property
    def order(self) -> pl.Series | None:
        """The order column under its own name."""
        return self.frame["order"].rename(self.taken.order or "") if "order" in self.frame.columns else None

    @property
    def key(self) -> pl.Series | None:
        """The order in numbers."""
        return self.frame[ordering.KEY] if "order" in self.frame.columns else None

    @property
    def counts(self) -> bool:
        """Whether the order counts events: a column seq that nobody named as times."""
        return self.reading.time is None and self.taken.order == "seq"

    @cached_property
    def people(self) -> tuple[list[Any], Ints]:
        """The users there are, in the order they come, and which of them each event is of."""
        names = self.users.unique(maintain_order=True)
        return names.to_list(), self._numbered(names)

    def _numbered(self, names: pl.Series) -> Ints:
        """The place of each event's user among these names."""
        numbers = self.users.to_frame().join(names.to_frame().with_row_index("n"), on="user", maintain_order="left")
        return np.asarray(numbers["n"].to_numpy(), np.int64)

    def row(self, i: int) -> int:
        """The row of the file, counted from 1, that entry ``i`` came from."""
        return int(self.frame["row"][i])

    def lacking(self, which: Callable[[pl.Expr], pl.Expr] = pl.any_horizontal) -> NDArray[np.bool_]:
        """The events without a value; of two columns those where any is missing, or all are."""
        return np.asarray(self.frame.select(which(pl.col("^value.?$").is_null())).to_series().to_numpy())

    def seconds(self) -> Floats:
        """When each event was."""
        return ordering.seconds(self.order, self.key, self.counts, self.row, self.name)

    def at(self, places: Ints | slice) -> Events:
        """Some of them."""
        return replace(self, frame=self.frame[places])

    def in_public_order(self, together: bool = False) -> Events:
        """In an order that reveals nothing of the file they came from.

        By time or number where there is one, then by user; else, and where what is released `together` must stay so,
        user by user. Each user's events keep their sequence.
        """
        users, key = self._numbered(self.users.unique().sort()), self.key
        return self.at(np.lexsort([users] if together or key is None else [users, key.to_numpy()]))

    def codes(self, alphabet: Symbols, remedy: str = UNKNOWN_VALUE) -> Ints:
        """The code of each value; one outside the alphabet is hidden, or refused by its row, never with the value."""
        if len(self.reading.value_columns) != alphabet.width:
            wanted = f"two columns, as in {option('value', 'x,y')}" if alphabet.width == 2 else "one column"
            raise InputError(f"the model is for values in {wanted}; got {self.reading.value!r}, name the right ones")
        try:
            return alphabet.encode(self.values)
        except UnknownSymbol as error:
            choice = "hide" if alphabet.points is None else "nearest"
            raise DataError(
                f"{self.name}: row {self.row(int(error.position))}: the value is not in the model's alphabet "
                f"({alphabet.n} symbols); {remedy.format(option=option('on_unknown', choice))}"
            ) from None

    def streams(self, alphabet: Symbols) -> dict[Any, Ints]:
        """The codes of each person's events, people in the order they come."""
        names, who = self.people
        parts = np.split(self.codes(alphabet)[np.argsort(who, kind="stable")], np.cumsum(np.bincount(who))[:-1])
        return dict(zip(names, parts, strict=True))

    def codes_or_withheld(self, alphabet: Symbols) -> Ints:
        """The codes of released values, where an empty one says that nothing was released: WITHHELD."""
        codes, said = np.full(self.n, WITHHELD, np.int64), np.flatnonzero(~self.lacking(pl.all_horizontal))
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
        kind: how values are read: "text", "number" (decimal), or "auto": the file's own type; in a CSV what all fields
            look like, where a leading zero makes text. Users in a CSV are always text.
        missing: leave rows without a value out ("drop"), go on with the last value of their stream ("hold"), or take
            that for a symbol of its own ("symbol"); None refuses them.
        clock: whether the order must be times.
        on_map: whether values are latitude and longitude: columns that are called so need no name.
        beside: further columns that are kept where there are some.
    """
    if missing not in (None, "drop", "hold", "symbol"):
        raise InputError(f"expected missing values to be drop, hold or symbol, got {missing!r}")
    if missing == "symbol" and (kind not in ("auto", "text") or len(reading.value_columns) == 2):
        raise InputError(
            "a missing value can be a symbol of its own where values are names, not numbers that are cut; choose "
            f"{option('missing', 'drop')} or {option('missing', 'hold')}"
        )
    chosen = EventColumns(file_name(data), reading, clock or slots is not None, on_map, tuple(beside))
    table = read_table(data, chosen.pick, format)
    kind = "text" if missing == "symbol" else kind
    found = _filled(_in_order(chosen.events(table, kind, missing, holes)), missing)
    if slots is None:
        return found
    times, order = found.seconds(), found.frame["order"].rename(found.taken.order or "")
    frame = ordering.resampled(found.frame, order, times, slots, found.name)
    return replace(found, frame=frame, taken=replace(found.taken, slots=slots.describe()))


def symbol_events(
    data: FilePath | pl.DataFrame | Table, alphabet: Symbols, reading: Reading | None, **how: Any
) -> Events:
    """The events of raw data as the alphabet of a model says that they are read; `how` takes the place of it."""
    said: dict[str, Any] = {"missing": alphabet.missing, "slots": alphabet.slots, "on_map": alphabet.on_map}
    return read_events(data, reading or Reading(), value_type_of(alphabet), **said | how)


def value_type_of(alphabet: Symbols) -> ValueType:
    """How to read a value column so that its values compare with the alphabet's."""
    kinds = {type(value) for value in alphabet.values} if isinstance(alphabet, Alphabet) else set()
    if kinds in ({str}, {bool}):
        return "text" if kinds == {str} else "truth"
    points = alphabet.points
    if points is not None and float(np.abs(points).max()) < 2.0**53:
        return "number"
    return "whole" if kinds == {int} else "auto"


def coordinates_in(found: Sequence[str], pair: Sequence[Sequence[str]] = PLACE) -> tuple[str, str] | None:
    """The columns that are called as two coordinates are, whatever the case, or so after a word such as gps_."""
    plain = {name.strip().lower().rsplit("_", 1)[-1]: name for name in reversed(found)}
    plain |= {name.strip().lower(): name for name in reversed(found)}
    first, second = (next((plain[name] for name in names if name in plain), None) for names in pair)
    return None if first is None or second is None else (first, second)


def order_in(found: Sequence[str], reading: Reading, clock: bool = False) -> tuple[str | None, str]:
    """The column that gives the order among those found, and why it is taken; with `clock` it must be times."""
    if reading.time is not None:
        return reading.time, "as named"
    taken = {*reading.user_columns, *reading.value_columns}
    free = [name for name in found if name not in taken]
    for usual in ordering.TIMES if clock else ordering.ORDERS:
        alike = [name for name in free if name == usual] or [name for name in free if name.strip().lower() == usual]
        if len(alike) == 1:
            return alike[0], "by its name"
    return None, "no column is called " + ", ".join(ordering.ORDERS)


@dataclass
class EventColumns:
    """The columns of one table by their roles."""

    name: str
    reading: Reading
    clock: bool
    on_map: bool
    beside: tuple[str, ...]
    order: str | None = None
    why: str = ""

    def pick(self, found: Sequence[str]) -> list[str]:
        """The columns to keep; which of them gives the order is noted, and why."""
        pair = coordinates_in(found)
        named = self.reading.value != Reading().value and set(self.reading.value_columns) <= set(found)
        if self.on_map and pair is not None and named and self.reading.value_columns == pair[::-1]:
            raise InputError(
                f"expected the latitude before the longitude in {option('value')}; got {pair[1]},{pair[0]}"
            )
        if self.on_map and pair is not None and not named:
            self.reading = self.reading.but(value=",".join(pair))
        self.order, self.why = order_in(found, self.reading, self.clock)
        names = self.reading
        wanted = [*names.user_columns, *names.value_columns, *([] if self.order is None else [self.order])]
        lacking = [name for name in wanted if name not in found]
        if lacking:
            self._refuse_lacking(found, lacking, len(lacking) == len(wanted))
        return [*wanted, *(name for name in self.beside if name in found and name not in wanted)]

    def _refuse_lacking(self, found: Sequence[str], lacking: list[str], all_of_them: bool) -> NoReturn:
        # a CSV with none of the names may have no header at all: its first line is then somebody's data
        hide = all_of_them and self.name != FRAME
        what = " and no column ".join(map(repr, lacking))
        other = "its rows have other keys" if known_format(self.name) == "jsonl" else "its first line must be a header"
        has = other if hide else f"it has {', '.join(map(repr, found))}"
        roles = {"user": self.reading.user_columns, "value": self.reading.value_columns, "time": {self.order}}
        names = " and ".join(option(role) for role, own in roles.items() if set(own) & set(lacking))
        look = "" if self.name in ("-", FRAME) else ", or see what `inspect` finds in it"
        raise DataError(f"{self.name}: no column {what} ({has}); name yours with {names}{look}")

    def events(self, table: Table, kind: ValueType, missing: Missing | None, holes: Holes) -> Events:
        """The rows as they stand in the table, each column with its type."""
        names, frame, pairs = self.reading, table.frame, len(self.reading.value_columns) == 2
        made, unit = [joined([self._typed(frame[name]) for name in names.user_columns]).rename("user")], ""
        for k, name in enumerate(names.value_columns):
            column = self._value(frame[name], kind, table.text, missing, holes if missing is None else "empty")
            made.append(column.rename(f"value{k}" if pairs else "value"))
        if self.order is not None:
            order = self._typed(frame[self.order])
            unit = ordering.unit_of(order, self.name, self.clock)
            made += [order.rename("order"), ordering.order_key(order, self.name)]
        made.append(pl.Series("row", np.arange(frame.height) + 1))
        made += [frame[name] for name in self.beside if name in frame.columns]
        taken = Taken(table.form, names.user, names.value, self.order, self.why, unit, rows=frame.height)
        return Events(self.name, names, pl.DataFrame(made), taken)

    def _typed(self, series: pl.Series) -> pl.Series:
        """A column of users or of the order, none of it empty."""
        self._refuse_odd(series)
        empty = _empty(series)
        if empty.any():
            self._refuse(empty, f"column {series.name!r} is empty; fill it in or remove the row")
        if series.dtype in (pl.Categorical, pl.Enum):
            return series.cast(pl.String)
        if series.dtype.is_decimal():
            return series.cast(pl.Float64)
        if series.dtype == pl.String and series.name == self.order and series.str.contains(ordering.DECIMAL).all():
            return series.cast(pl.Int64 if series.str.contains(_WHOLE).all() else pl.Float64)
        return series

    def _value(
        self, series: pl.Series, kind: ValueType, text: bool, missing: Missing | None, holes: Holes
    ) -> pl.Series:
        """A column of values, null where `holes` lets them be missing or unreadable; `text`, whether all fields are."""
        self._refuse_odd(series)
        kind, empty = "number" if len(self.reading.value_columns) == 2 else kind, _empty(series)
        if holes != "any" and series.dtype == pl.String and kind in ("auto", "number"):
            filled = series.filter(~empty)
            found = filled.str.contains(_COMMA)
            if found.any() and (kind == "number" or (found | filled.str.contains(ordering.DECIMAL)).all()):
                commas = "holds numbers with decimal commas (12,5); write them with points (12.5)"
                raise DataError(f"{self.name}: column {series.name!r} {commas}")
        column = _read_as(kind, series, empty, text)
        if column.dtype.is_float() and (missing is not None or holes == "none"):
            empty |= column.is_nan().fill_null(False)
        if holes == "none" and empty.any():
            ways = ("drop", "hold") if kind == "number" else ("drop", "hold", "symbol")
            said = " or ".join(option("missing", way) for way in ways)
            self._refuse(empty, f"column {series.name!r} is empty; fit the model with {said}")
        bad = column.is_null() | (~column.is_finite() if column.dtype.is_float() else False)
        if holes == "any":
            empty = bad
        elif (bad & ~empty).any():
            what = "must hold finite numbers; mend the row, or check that this is the value column"
            self._refuse(bad & ~empty, f"column {series.name!r} {what} and the model is this file's")
        return pl.select(pl.when(~empty).then(column)).to_series().alias(series.name) if empty.any() else column

    def _refuse_odd(self, series: pl.Series) -> None:
        if series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object):
            raise DataError(
                f"{self.name}: column {series.name!r} must hold text or numbers; unpack it into plain columns"
            )

    def _refuse(self, where: pl.Series, problem: str) -> NoReturn:
        raise DataError(f"{self.name}: row {int(where.arg_max() or 0) + 1}: {problem}")


def _read_as(kind: ValueType, series: pl.Series, empty: pl.Series, text: bool) -> pl.Series:
    """A column of values as an alphabet has them, null for what is none.

    But for "auto", which is for files that no model says how to read, nobody's value decides how another is read.
    """
    if kind == "truth":
        return _spelled(series).str.to_lowercase().replace_strict(TRUTH, default=None, return_dtype=pl.Boolean)
    if kind == "whole":
        return _spelled(series).cast(pl.Int64, strict=False)
    if kind == "text":
        return _spelled(series)
    wanted = _type_of(series.filter(~empty), kind, text)
    return series if wanted is None else series.cast(wanted, strict=False)


def _spelled(series: pl.Series) -> pl.Series:
    """Values as text, whole numbers without a point: beside one of 2.5 the others are floats as well."""
    if not series.dtype.is_float():
        return series.cast(pl.String)
    whole = series.cast(pl.Int64, strict=False)
    text = pl.when(whole.cast(pl.Float64) == series).then(whole.cast(pl.String)).otherwise(series.cast(pl.String))
    return pl.select(text.alias(series.name)).to_series()


def _type_of(filled: pl.Series, kind: ValueType, text: bool) -> Any:
    """What to read values as; None for the type that the file gives them."""
    if filled.dtype == pl.Boolean:
        return None  # true is no number
    if kind == "number":
        return pl.Float64
    if filled.dtype in (pl.Categorical, pl.Enum):
        return pl.String
    if not text:
        return pl.Float64 if filled.dtype.is_decimal() else None
    said = filled.filter(filled.str.to_lowercase() != "nan")
    if filled.str.contains(_PADDED).any() or not said.str.contains(ordering.DECIMAL).all():
        return pl.String
    return pl.Int64 if filled.str.contains(_WHOLE).all() else pl.Float64


def _empty(series: pl.Series) -> pl.Series:
    return series.is_null() | ((series == "").fill_null(True) if series.dtype == pl.String else False)


def _in_order(events: Events) -> Events:
    """The events put in order where a user's go back in time: all by the order column, ties as they stand."""
    frame, key = events.frame, events.key
    if key is None:
        return events
    before = frame.select(pl.col(key.name).shift(1).over("user")).to_series()  # of the same user
    back, ties = bool((key < before).any()), int((key == before).sum())
    if back:
        frame = frame.sort(key.name, maintain_order=True)
        ties = frame.height - frame.select("user", key.name).n_unique()
    return replace(events, frame=frame, taken=replace(events.taken, sorted=back, ties=ties))


def _filled(events: Events, missing: Missing | None) -> Events:
    """The events with what was chosen for rows without a value done."""
    if missing is None:
        return events
    frame, values, lacks = events.frame, pl.col("^value.?$"), pl.Series(events.lacking())
    taken = replace(events.taken, missing=int(lacks.sum()))
    if missing == "symbol":
        frame = frame.with_columns(pl.col("value").cast(pl.String).fill_null(MISSING))
        return replace(events, frame=frame, taken=taken)
    if missing == "hold":  # a point of which half is missing is held whole
        frame = frame.with_columns(pl.when(~lacks).then(values)).with_columns(values.forward_fill().over("user"))
        lacks = pl.Series(replace(events, frame=frame).lacking())
    if lacks.all():
        raise DataError(f"{events.name}: no row has a value; check that this is the value column")
    dropped = int(lacks.sum())
    return replace(
        events, frame=frame.filter(~lacks), taken=replace(taken, dropped=dropped, held=taken.missing - dropped)
    )


def ranks(*keys: Ints) -> Ints:
    """How many rows with the same keys come before each."""
    rows = pl.DataFrame({f"{k}": key for k, key in enumerate(keys)})
    return np.asarray(rows.select(pl.int_range(pl.len(), dtype=pl.Int64).over(rows.columns)).to_series().to_numpy())


def joined(parts: Sequence[pl.Series]) -> pl.Series:
    """Several columns as one column of keys; of one column the column itself."""
    if len(parts) == 1:
        return parts[0]
    texts = [part.cast(pl.String).str.replace_all(r"([\\,])", r"\${1}") for part in parts]
    return pl.select(pl.concat_str([pl.lit(text) for text in texts], separator=",")).to_series()


def parted(keys: pl.Series, names: Sequence[str]) -> list[pl.Series]:
    """The columns that `joined` put together, none of them empty."""
    if len(names) == 1:
        return [keys.rename(names[0])]
    parts = keys.str.extract_all(r"(?s)(?:\\.|[^\\,])+")
    return [parts.list.get(k).str.replace_all(r"(?s)\\(.)", "${1}").rename(name) for k, name in enumerate(names)]
