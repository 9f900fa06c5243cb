"""Which columns of a file are what, of which type, and one record of how its rows were read and ordered.

`Columns` is what somebody asked for, `Types` reads their fields, and `Taken` keeps what came of it: every command that
reads a file prints its lines, or keeps them, from there.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from seqveil.core import times as clock
from seqveil.core.alphabet import OnMissing
from seqveil.core.errors import DataError, InputError

if TYPE_CHECKING:
    import polars as pl

TIMES = ("time", "timestamp", "datetime", "ts", "date")  # names that say that a column is the time of its row
ORDERS = ("seq", *TIMES)
LATITUDES, LONGITUDES = ("latitude", "lat"), ("longitude", "lon", "lng")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
ValueType = Literal["auto", "text", "number"]
Holes = Literal["none", "empty", "any"]  # values that may be missing: none, those of empty fields, any unreadable one
_WHOLE, _PADDED = r"^[+-]?(0|[1-9]\d{0,17}|[1-8]\d{18})$", r"^[+-]?0\d"
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_EPOCH = 1e8  # seconds since 1970: a first time beyond it is one of a calendar, in whichever unit
_ISO = ("%FT%T%.f%#z", "%FT%T%.f", "%FT%H:%M%#z", "%FT%H:%M", "%F")
_FIELD = re.compile(r"((?:\\.|[^\\,])*)(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the user, the value (``"x,y"`` for two coordinates) and the order.

    Without ``time`` a column ``seq``, or else one that is called as times are (`TIMES`), gives the order where the file
    has one. With ``clock`` the order is read as times, so ``seq`` cannot give it. Events of one moment keep the order
    of the file. User and order may be several columns: ``"firm,badge"`` names a person, ``"week,hour"`` is the hour
    within the week.

    >>> Columns("firm,badge").user_columns, Columns(time="week,hour").time_columns
    (('firm', 'badge'), ('week', 'hour'))
    """

    user: str = "user"
    value: str = "value"
    time: str | None = None
    clock: bool = False

    def __post_init__(self) -> None:
        names = [*self.user_columns, *self.value_columns, *self.time_columns]
        if len(self.value_columns) > 2 or not all(names) or len(set(names)) < len(names):
            raise InputError(f"expected different names for user, value (one, or two as in x,y) and time; got {names}")

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns of the value: one, or two for places in a plane."""
        return _names(self.value)

    @property
    def user_columns(self) -> tuple[str, ...]:
        """The columns that name the user together."""
        return _names(self.user)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns that were named for the order, the coarsest first."""
        return () if self.time is None else _names(self.time)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def order_in(found: Sequence[str], columns: Columns) -> tuple[tuple[str, ...], str]:
    """The columns that give the order among those found, and why they are taken.

    >>> order_in(["user", "Timestamp", "value"], Columns())
    (('Timestamp',), 'by its name')
    """
    if columns.time is not None:
        return columns.time_columns, "as named"
    taken = {*columns.user_columns, *columns.value_columns}
    free = [name for name in found if name not in taken]
    for usual in TIMES if columns.clock else ORDERS:
        alike = [name for name in free if name == usual] or [name for name in free if name.strip().lower() == usual]
        if len(alike) == 1:
            return (alike[0],), "by its name"
    return (), "no column is called " + ", ".join(ORDERS)


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
class Taken:
    """How a file was read and ordered: what each column was taken for and why, and what happened to rows.

    It is filled in while the rows are read (the first time, where they are read twice). Nothing in it is a value of the
    file. `sorted`, `ties`, `missing`, `dropped` and `held` are for whoever has the raw file: they are never published.
    """

    file: str = ""
    form: str = ""  # in words: "CSV with semicolons, compressed"
    user: str = ""
    value: str = ""
    order: str | None = None
    why: str = ""  # the order was taken so
    unit: str = ""  # what the order was read as
    sorted: bool = False
    rows: int = 0
    ties: int = 0  # rows at the same place in the order as the row before of their user
    missing: int = 0  # rows without a value
    dropped: int = 0  # of them, those left out
    held: int = 0  # of them, those that got the value before
    notes: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Count from the start again."""
        self.rows = self.ties = self.missing = self.dropped = self.held = 0

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def by(self) -> str:
        """How the rows were ordered, in words."""
        if self.order is None:
            return f"rows in the order of the file ({self.why})"
        unit = f", {self.unit}" if self.unit else ""
        return f"in the order of {_quoted(self.order)} ({self.why}{unit})"

    @property
    def public(self) -> str:
        """In one line, without what follows from values or from how the raw rows stood in the file."""
        roles = f"user {_quoted(self.user)}, value {_quoted(self.value)}"
        return "; ".join([f"{self.form}: {roles}", self.by, *self.notes])

    @property
    def stood(self) -> str:
        """How the raw rows stood in the file; empty where they stood in their order, one at a time."""
        tied = f"{self.ties:,} {'tie' if self.ties == 1 else 'ties'}, in the order of the file"
        return ", ".join(["sorted first"] * self.sorted + [tied] * bool(self.ties))

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
        return "; ".join(filter(None, (self.public, self.stood, self.holes)))

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


def _quoted(names: str) -> str:
    return ", ".join(repr(name) for name in _names(names))


class Types:
    """Of which type each column is, as the first rows settle it: text, whole numbers, numbers, times.

    `order` are the columns that give the order; one that was taken for it by its name alone is let go of where it holds
    no times. `separator` is what separates the fields of a delimited file, whose fields are all text at first.
    """

    def __init__(
        self, columns: Columns, value_type: ValueType, holes: Holes, missing: OnMissing | None, taken: Taken
    ) -> None:
        self.order: tuple[str, ...] = ()
        self.separator: str | None = None
        self._columns, self._value_type, self._holes, self._missing = columns, value_type, holes, missing
        self._taken, self._kinds = taken, dict[str, str]()
        self._row = 1  # of the file, where these rows begin
        self._unused: str | None = None  # a column that was thought to give the order
        self._unit: int | None = None  # of times as numbers since 1970: thousandths of a second, by powers

    def of(self, frame: pl.DataFrame, row: int) -> pl.DataFrame:
        """The rows from `row` on with every column of its type, and no field empty but for holes."""
        import polars as pl

        self._row = row
        if row == 1 and self.order:
            self._look_at_times(frame)
        if self._unused is not None and self._unused in frame.columns:
            frame = frame.drop(self._unused)
        casts = {"text": pl.String, "whole": pl.Int64, "number": pl.Float64}
        columns = []
        for series in frame.get_columns():
            value = series.name in self._columns.value_columns
            holes: Holes = "none" if not value else "empty" if self._missing is not None else self._holes
            if value and self._missing is not None and series.dtype == pl.String:
                series = series.replace("", None)
            if value and self._missing is not None and series.dtype.is_float():
                series = series.fill_nan(None)
            empty = series.is_null() | (series == "" if series.dtype == pl.String else False)
            if holes == "none" and empty.any():
                self._refuse_empty(series.name, value, self._row + int(empty.arg_max() or 0))
            if series.name not in self._kinds and (~empty).any():
                self._kinds[series.name] = self._kind(series.filter(~empty))
            elif series.name not in self._kinds and value:
                columns.append(pl.Series(series.name, [None] * series.len(), dtype=pl.Null))
                continue
            kind = self._kinds.get(series.name, "text")
            column = series.cast(casts[kind], strict=False) if kind in casts else series
            bad = column.is_null() | (~column.is_finite() if column.dtype.is_float() else False)
            if holes == "empty":
                column, bad = pl.select(pl.when(~empty).then(column)).to_series().alias(series.name), bad & ~empty
            if holes != "any" and bad.any():
                expected = "whole numbers like the first rows" if kind == "whole" else "finite numbers"
                row = self._row + int(bad.arg_max() or 0)
                remedy = "mend the row, or check that this is the value column and the model is this file's"
                _refuse(f"row {row}: column {series.name!r} must hold {expected}; {remedy}")
            columns.append(column)
        if self.order:
            self._check_times(next(column for column in columns if column.name == self.order[0]))
        return pl.DataFrame(columns)

    def _refuse_empty(self, name: str, value: bool, row: int) -> NoReturn:
        names = len(self._columns.value_columns) == 1 and self._value_type != "number"
        ways = "--missing drop, --missing hold or --missing symbol" if names else "--missing drop or --missing hold"
        remedy = f"say what to do with {ways}"
        _refuse(f"row {row}: column {name!r} is empty; {remedy if value else 'fill it in or remove the row'}")

    def _look_at_times(self, frame: pl.DataFrame) -> None:
        """Let go of a column that was taken for the time by its name alone, where the first rows of it hold none."""
        import polars as pl

        name = self.order[0]
        guessed = self._columns.time is None and name not in ("seq", "time")
        if not guessed or frame[name].dtype != pl.String:
            return
        text = frame[name].drop_nulls()
        if text.str.contains(DECIMAL).any() or iso_times(text).is_not_null().any():
            return
        self.order, self._unused, self._taken.order = (), name, None
        self._taken.why = f"column {name!r} holds no times"

    def _check_times(self, order: pl.Series) -> None:
        """Refuse numbers that are no times, in a column that is called as times are: all in one unit, none absurd."""
        import polars as pl

        if order.name.strip().lower() not in TIMES or len(self.order) > 1:
            self._taken.unit = self._taken.unit or ("" if order.dtype.is_numeric() else _unit_of(order))
            return
        if not order.dtype.is_numeric():
            self._taken.unit = _unit_of(order)
            return
        numbers = order.cast(pl.Float64).to_numpy()
        powers = clock.powers(numbers)
        if self._unit is None and numbers.size:
            self._unit = int(powers[0]) if numbers[0] >= _EPOCH else -1
        wrong = powers >= len(clock.UNITS)
        if self._unit is not None and self._unit >= 0:
            wrong |= (powers != self._unit) | (numbers < 0)
        if wrong.any():
            row = self._row + int(wrong.argmax())
            known = self._unit is not None and 0 <= self._unit < len(clock.UNITS)
            any_unit = "seconds, or in milli-, micro- or nanoseconds since 1970,"
            unit = f"{self._named_unit} like that of row 1" if known else any_unit
            remedy = "mend the row, or name the column that gives the order with --time-column"
            _refuse(f"row {row}: expected a time in {unit} in column {order.name!r}; {remedy}")
        self._taken.unit = self._named_unit

    @property
    def _named_unit(self) -> str:
        """What times as numbers are in."""
        if self._unit is None or self._unit < 0:
            return "numbers, from the least to the greatest"
        return clock.UNITS[self._unit] if self._unit else "seconds since 1970"

    def _kind(self, series: pl.Series) -> str:
        """How to read a column: "text", "whole", "number", or "own" for the type that the file gives it."""
        import polars as pl

        values = self._columns.value_columns
        if series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object):
            _refuse(f"column {series.name!r} must hold text or numbers; unpack it into plain columns")
        if series.name in values and series.dtype == pl.Boolean:
            return "own"  # true is no number
        if series.name in values and (len(values) == 2 or self._value_type == "number"):
            return "number"
        if series.dtype in (pl.Categorical, pl.Enum) or (series.name in values and self._value_type == "text"):
            return "text"
        digits = series.dtype == pl.String and series.name in self.order and series.str.contains(DECIMAL).all()
        if self.separator is None and not digits:
            return "number" if series.dtype.is_decimal() else "own"
        padded = series.name in values and series.str.contains(_PADDED).any()
        if series.name in self._columns.user_columns or padded or not series.str.contains(DECIMAL).all():
            return "text"
        return "whole" if series.str.contains(_WHOLE).all() else "number"


def lists_in(frame: pl.DataFrame) -> list[str]:
    """The columns that hold a list in each row."""
    import polars as pl

    return [name for name in frame.columns if isinstance(frame.schema[name], pl.List | pl.Array)]


def _refuse(problem: str) -> NoReturn:
    """Refuse what stands in a row; whoever reads the file puts its name before that."""
    raise DataError(problem) from None


def _unit_of(order: pl.Series) -> str:
    """What a column of dates or times holds, in words."""
    import polars as pl

    if order.dtype != pl.String:
        return clock.CALENDAR if order.dtype.is_temporal() else ""
    if order.str.contains(r"[T ]\d{1,2}:\d{2}").not_().all():
        return "ISO 8601 dates"
    zoned = order.str.contains(r":\d{2}.*([zZ]|[+-]\d{2}:?\d{2})$")
    return "ISO 8601 times" if zoned.all() else "ISO 8601 times, those without a zone as UTC"


def iso_times(text: pl.Series, unit: Literal["ns", "us"] = "us") -> pl.Series:
    """Text as times, null where it is none in ISO 8601; without a zone it is UTC."""
    import polars as pl

    plain = pl.lit(text).str.replace(r"^(\S{10}) ", "${1}T")
    times = [plain.str.to_datetime(form, time_unit=unit, time_zone="UTC", strict=False) for form in _ISO]
    return pl.select(pl.coalesce(times)).to_series()


def separator_of(block: bytes, columns: Columns, usual: str) -> str | None:
    """What separates the fields of a text file whose first lines these are; None where two answers fit as well.

    A separator fits where it stands in the header and cuts the next rows into as many fields. Of several that fit, the
    one is taken that finds more of the columns asked for.

    >>> separator_of(b"user;value\\na;1,5\\n", Columns(), ","), separator_of(b'user|value\\n"a,b"|x\\n', Columns(), ",")
    (';', '|')
    """
    text = block[: 1 << 16].decode("utf-8", errors="replace")
    if len(block) > 1 << 16:
        text = text.rpartition("\n")[0] or text
    wanted = {*columns.user_columns, *columns.value_columns, *columns.time_columns}
    scores: dict[str, tuple[bool, int]] = {}
    for separator in SEPARATORS:
        rows: list[list[str]] = []
        try:
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
                if row:
                    rows.append(row)
                if len(rows) > 20:
                    break
        except csv.Error:
            continue
        if rows and len(rows[0]) > 1:
            found = sum(name.strip() in wanted for name in rows[0])
            scores[separator] = all(len(row) == len(rows[0]) for row in rows), found
    if not scores:
        return usual
    best = max(found for _, found in scores.values())
    leading = [separator for separator, (_, found) in scores.items() if found == best]
    if len(leading) > 1:
        leading = [separator for separator in leading if scores[separator][0]] or leading
    if len(leading) > 1 and best == 0:  # none of the names is there, which is said in its own words
        return usual if usual in leading else leading[0]
    return leading[0] if len(leading) == 1 else None


def joined(parts: Sequence[pl.Series], name: str) -> pl.Series:
    """Several columns as one column of keys; of one column the column itself."""
    import polars as pl

    if len(parts) == 1:
        return parts[0]
    texts = [
        part.cast(pl.String).str.replace_all("\\", "\\\\", literal=True).str.replace_all(",", "\\,", literal=True)
        for part in parts
    ]
    return pl.select(pl.concat_str([pl.lit(text) for text in texts], separator=",")).to_series().alias(name)


def parted(keys: pl.Series, names: Sequence[str]) -> list[pl.Series]:
    """The columns that `joined` put together.

    >>> import polars as pl
    >>> keys = joined([pl.Series("a", ["x,y", "z"]), pl.Series("b", [1, 2])], "a,b")
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
