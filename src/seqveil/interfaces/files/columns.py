"""Which columns of a file are what, why, and one record of how its rows were read and ordered.

`Columns` is what somebody asked for, `chosen` finds it in a header, and `Taken` keeps what came of it: every command
that reads a file prints its lines, or keeps them, from there.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import InputError

if TYPE_CHECKING:
    import polars as pl

TIMES = ("time", "timestamp", "datetime", "ts", "date")  # names that say that a column is the time of its row
ORDERS = ("seq", *TIMES)
LATITUDES, LONGITUDES = ("latitude", "lat"), ("longitude", "lon", "lng")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_FIELD = re.compile(r"((?:\\.|[^\\,])*)(?:,|$)", re.DOTALL)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the user, the value (``"x,y"`` for two coordinates) and the order.

    Without ``time`` a column ``seq``, or else one that is called as times are (`TIMES`), gives the order where the file
    has one. With ``clock`` the order is read as times, so ``seq`` cannot give it. Events of one moment keep the order
    of the file. ``stream`` names what tells the streams of a user apart: the account is the user's, and the chain
    begins anew with each stream. User, stream and order may be several columns: ``"week,hour"`` is the hour within the
    week.

    >>> Columns(value="lon,lat").value_columns, Columns(time="week,hour").time_columns
    (('lon', 'lat'), ('week', 'hour'))
    >>> Columns(stream="user,week").stream_columns
    ('week',)
    """

    user: str = "user"
    value: str = "value"
    time: str | None = None
    clock: bool = False
    stream: str | None = None

    def __post_init__(self) -> None:
        names = [*self.user_columns, *self.value_columns, *self.time_columns]
        if len(self.value_columns) > 2 or not all(names) or len(set(names)) < len(names):
            raise InputError(f"expected different names for user, value (one, or two as in x,y) and time; got {names}")
        apart = self.stream_columns
        if self.stream is not None and (not apart or not all(apart) or len(set(apart)) < len(apart)):
            raise InputError(
                "expected the columns that tell the streams of a user apart, as in --stream-column session"
            )
        if set(apart) & set(self.value_columns):
            raise InputError("a column is named as value and as stream; name another one for --stream-column")

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

    @property
    def stream_columns(self) -> tuple[str, ...]:
        """What tells the streams of one user apart; the user's own columns go without saying."""
        named = () if self.stream is None else _names(self.stream)
        return tuple(name for name in named if name not in self.user_columns)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def order_in(found: Sequence[str], columns: Columns) -> tuple[tuple[str, ...], str]:
    """The columns that give the order among those found, and why they are taken.

    >>> order_in(["user", "Timestamp", "value"], Columns())
    (('Timestamp',), 'by its name')
    """
    if columns.time is not None:
        return columns.time_columns, "as named"
    taken = {*columns.user_columns, *columns.value_columns, *columns.stream_columns}
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
    file. `missing`, `dropped` and `held` are for whoever has the raw file: they are never published.
    """

    file: str = ""
    form: str = ""  # in words: "CSV with semicolons, compressed"
    user: str = ""
    value: str = ""
    stream: str | None = None
    order: str | None = None
    why: str = ""  # the order was taken so
    unit: str = ""  # what the order was read as
    sorted: bool = False
    rows: int = 0
    ties: int = 0  # rows at the same place in the order as the row before of their stream
    streams: int = 0
    missing: int = 0  # rows without a value
    dropped: int = 0  # of them, those left out
    held: int = 0  # of them, those that got the value before
    policy: str | None = None  # what was done with them
    notes: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Count from the start again."""
        self.rows = self.ties = self.streams = self.missing = self.dropped = self.held = 0

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
        where = "sorted by" if self.sorted else "in the order of"
        tied = f"; {self.ties:,} {'tie' if self.ties == 1 else 'ties'}, in the order of the file" if self.ties else ""
        return f"{where} {_quoted(self.order)} ({self.why}{unit}){tied}"

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        roles = f"user {_quoted(self.user)}, value {_quoted(self.value)}"
        roles += f", a stream for each {_quoted(self.stream)} of a user" if self.stream else ""
        said = [f"{self.form}: {roles}", self.by]
        if self.missing:
            kept = self.missing - self.dropped - self.held
            parts = [f"{self.dropped:,} dropped"] * bool(self.dropped) + [f"{self.held:,} held"] * bool(self.held)
            parts += [f"{kept:,} kept as such"] * bool(kept)
            said.append(f"{self.missing:,} rows without a value: {', '.join(parts)}")
        return "; ".join([*said, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


def _quoted(names: str) -> str:
    return ", ".join(repr(name) for name in _names(names))


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
    wanted = {*columns.user_columns, *columns.value_columns, *columns.time_columns, *columns.stream_columns}
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
