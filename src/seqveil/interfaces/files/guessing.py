"""What the columns of somebody's own file may be: by what they are called, else by what stands in their first rows.

Every guess keeps its reason, and where several columns could be meant the others are named, so that whoever knows the
file can say better.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from seqveil.core.errors import DataError, option
from seqveil.core.model import Reading
from seqveil.interfaces.files.events import PLACE, coordinates_in, order_in
from seqveil.interfaces.files.ordering import DECIMAL, ORDERS, since_1970, text_times

PEOPLE = (
    *("user", "person", "people", "participant", "subject", "customer", "client", "patient", "member", "household"),
    *("driver", "rider", "player", "student", "visitor", "employee", "worker", "resident", "tracker", "phone"),
    *("device", "account", "vehicle", "house", "uid", "id", "name"),
)
VALUES = (
    *("value", "category", "symbol", "page", "event", "state", "label", "place", "venue", "activity", "item", "action"),
    *("posture", "mode", "status", "room", "location", "url", "product", "song", "app", "bpm", "heart_rate", "pulse"),
    *("steps", "speed", "temperature", "power", "kwh", "wh", "watts", "load", "consumption", "intensity", "glucose"),
)
CALENDAR = ("year", "month", "week", "day", "weekday", "hour", "minute", "second")  # never what people share
POINTS = (("x",), ("y",))
DATA = re.compile(r"[-+]?\d[\d.,:/ TZ+-]*")  # a number or a time, which no column is called
OTHERS = 3  # columns that are named at most beside one that was guessed


@dataclass(frozen=True)
class Role:
    """What a column is taken for, and why."""

    column: str
    role: str
    why: str


class Guess:
    """What each column is taken for: what was named, else by names, else by what it holds.

    Each has at most one role, the surest roles first. `reading` follows from them, `questions` should be asked.
    """

    def __init__(self, head: pl.DataFrame, given: Reading, file: str) -> None:
        self.head, self.file = head.select(name for name, kind in head.schema.items() if not kind.is_nested()), file
        self._refuse_no_header(given)
        self.questions: list[str] = []
        self._taken: dict[str, Role] = {}
        usual = Reading()
        user = None if given.user == usual.user else given.user
        value = None if given.value == usual.value else given.value
        for role, names in (("user", user), ("value", value), ("order", given.time)):
            self._take([name.strip() for name in (names or "").split(",")], role, "as named")
        user = user or self._user()
        order = given.time if given.time is not None else self._order(user)
        self.reading = Reading(user, value or self._value(), order)
        self.roles = [self._taken.get(name, Role(name, "not used", "nothing else is needed")) for name in head.columns]

    def _refuse_no_header(self, given: Reading) -> None:
        """Where a CSV has no header its names are somebody's row, which nothing may show."""
        names, named = self.head.columns, {*given.user_columns, *given.value_columns, given.time}
        data = [name for name in names if DATA.fullmatch(name) or (self.head[name].cast(pl.String) == name).any()]
        known = _by_name(names, (*PEOPLE, *VALUES, *ORDERS, *CALENDAR, "x", "y")) or coordinates_in(names)
        if data and not named & {*names} and not known:
            raise DataError(
                f"{self.file}: the first line must be a header and looks like data, so its names are not shown; add "
                "one, such as user,time,value"
            )

    def _take(self, names: Sequence[str], role: str, why: str) -> str:
        self._taken.update({name: Role(name, role, why) for name in names if name in self.head.columns})
        return ",".join(names)

    def _free(self) -> list[str]:
        return [name for name in self.head.columns if name not in self._taken]

    def _user(self) -> str:
        person = _by_name(self._free(), PEOPLE)
        if person is not None:
            return self._take([person], "user", "by its name")
        people = _repeating(self.head.select(self._free()))
        if not people or _timely(self.head[people[0]]):
            raise DataError(
                f"{self.file}: no column could be a user's name: none is called as people are, and in none do values "
                f"come again; name it with {option('user')}"
            )
        self._ask("the person", people, "user")
        return self._take(people[:1], "user", "its values come again")

    def _ask(self, what: str, columns: Sequence[str], name: str) -> None:
        """Ask whether the first of some columns is what it is taken for."""
        others = f"; {', '.join(map(repr, columns[1 : 1 + OTHERS]))} could be, too" if columns[1:] else ""
        self.questions.append(f"is {columns[0]!r} {what}? It is a guess{others}. Name yours with {option(name)}")

    def _order(self, user: str) -> str | None:
        free = self._free()
        name, why = order_in(free, Reading(user=user, value="\x00"))
        if name is not None:
            self._take([name], "order", why)
            return None  # `fit` finds it by its name
        dated = [name for name in free if _dated(self.head[name])]
        if not dated:
            return None
        finest = max(dated, key=lambda name: self.head[name].n_unique())
        return self._take([finest], "order", "it holds times")

    def _value(self) -> str:
        free = self._free()
        named = _by_name(free, VALUES)
        if named is not None:
            return self._take([named], "value", "by its name")
        for pair, what in ((PLACE, "a place on the map"), (POINTS, "a point")):
            found = coordinates_in(free, pair)
            if found is not None:
                return self._take(found, f"value, {what}", "by their names")
        alike = _alike(self.head.select(free))
        if not alike:
            raise DataError(f"{self.file}: no column is left that could be the value; name it with {option('value')}")
        if len(alike) > 1:
            self._ask("the value", alike, "value")
        return self._take(alike[:1], "value", "its values repeat among people")


def _by_name(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The column that is called so, or so with a suffix such as _id."""
    plain = {name: name.strip().lower().replace(" ", "_").replace("-", "_") for name in names}
    for word in known:
        for name, text in plain.items():
            if text in (word, f"{word}_id", f"{word}id", f"{word}_name", f"{word}_category", f"{word}s"):
                return name
    return None


def _repeating(head: pl.DataFrame) -> list[str]:
    """The columns whose values come several times each, words before numbers, those with the most values first."""
    full = [name for name in head.columns if not (head[name].null_count() or _dated(head[name]))]  # each is somebody's
    counts = {name: head[name].n_unique() for name in full}
    fit = [name for name, n in counts.items() if 1 < n <= head.height / 2]
    return sorted(fit, key=lambda name: (_timely(head[name]), -counts[name]))


def _alike(head: pl.DataFrame) -> list[str]:
    """The columns with more than one value, words before numbers, the fewest values first: what people share."""
    free = [name for name in head.columns if not (_by_name([name], CALENDAR) or _dated(head[name]))]
    counts = {name: head[name].n_unique() for name in free}
    text = (pl.String, pl.Categorical, pl.Enum)
    words = {name: head[name].dtype in text and not _timely(head[name]) for name in counts}
    own = {name: words[name] and n > head.height / 2 for name, n in counts.items()}  # a note in each row, say
    fit = [name for name, n in counts.items() if n > 1]
    return sorted(fit, key=lambda name: (own[name], not words[name], counts[name]))


def _timely(column: pl.Series) -> bool:
    """Whether a column can be read as times or numbers of an order."""
    if column.dtype != pl.String:
        return column.dtype.is_numeric() or column.dtype.is_temporal()
    text = column.filter(column.str.to_lowercase() != "nan")  # which leaves nulls out
    return bool(text.len() and (text.str.contains(DECIMAL).all() or text_times(text).is_not_null().all()))


def _dated(column: pl.Series) -> bool:
    """Whether a column holds calendar times, whatever it is called: text, or numbers since 1970 in some unit."""
    if column.dtype.is_temporal():
        return True
    if not _timely(column):
        return False
    numbers = column.cast(pl.Float64, strict=False).drop_nulls()
    return since_1970(numbers.to_numpy()) if numbers.len() else column.dtype == pl.String
