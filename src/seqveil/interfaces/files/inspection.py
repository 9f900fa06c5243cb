"""A look at somebody's own file before anything is fitted: what its columns may be, what is odd, and what to type.

Columns are guessed by what they are called, else by what stands in their first rows. Every guess keeps its reason, and
where several columns could be meant the others are named, so that whoever knows the file can say better.

It shows counts, and of the values only those that at least ten people share. It is for whoever has the raw file: what
it says is not private.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqveil.core import geography
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.kernel import Ints
from seqveil.core.model import Names, Reading
from seqveil.core.words import Line, Result, count
from seqveil.interfaces.files.cuts import AUTO, around, fitting_size
from seqveil.interfaces.files.events import PLACE, Events, coordinates_in, order_in, read_events
from seqveil.interfaces.files.ordering import DECIMAL, ORDERS, since_1970, text_times
from seqveil.interfaces.files.table import as_polars, read_table

SHARED = 10  # people who must have a value before it is shown, and below which it is rare
SHOWN = 8  # values shown at most
HEAD = 10_000  # rows from which columns are guessed
MOST_NUMBERS = 30  # different numbers beyond which they are to be cut
CELLS = 1_000  # of the map that are proposed, at most
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


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """What was found in a file. `lines` says it in words, `command` is what to type next."""

    roles: list[Role]
    reading: dict[str, Any]
    read: str
    users: int
    events: int
    shortest: int  # events of a stream
    typical: int
    longest: int
    values: int  # different ones
    numbers: bool  # whether they are numbers
    rare: int  # values that fewer than ten people have
    rare_events: int
    shared: list[tuple[str, int]]  # values that at least ten people have, and how often they come
    questions: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  # of `fit`, by their names in Python
    command: str = ""

    def lines(self) -> list[Line]:
        """What was found, a line for each part."""
        said = [
            ("column", f"{role.column!r}: {role.role} ({role.why})") for role in self.roles if role.role != "not used"
        ]
        unused = [repr(role.column) for role in self.roles if role.role == "not used"]
        more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
        said += [("column", f"not used: {', '.join(unused[:SHOWN])}{more}")] if unused else []
        length = f"{count(self.shortest, 'event')} each"
        if self.shortest < self.longest:
            length = f"{self.shortest} to {self.longest} events each, median {self.typical}"
        said += [
            ("read", self.read),
            ("people", f"{count(self.users, 'person', 'people')}, {count(self.events, 'event')}; {length}"),
        ]
        different = count(self.values, "different number" if self.numbers else "different value")
        said.append(("values", f"{different}, {count(self.reading['missing'], 'row')} without one"))
        if not self.numbers:
            few = f"{count(self.rare, 'value')} that fewer than {SHARED} people have"
            said.append(("rare", f"{few}, in {count(self.rare_events, 'event')}"))
            shown = ", ".join(f"{value!r} {many:,}" for value, many in self.shared)
            said += [("shared", shown)] if shown else []
        said += [("question", text) for text in self.questions]
        return [*said, ("next", self.command)]


def inspect(
    data: Any,
    *,
    user: Names = None,
    value: Names = None,
    time: str | None = None,
    format: str | None = None,
) -> Inspection:
    """Look at a file or a frame (polars, pandas, Arrow) and say what is in it and what to type next.

    Parameters:
        data: the file, or the frame.
        user, value, time: columns that are known; others are guessed from names and values.
        format: of a file whose name does not tell.

    >>> import polars as pl
    >>> rows = {"person": [k // 4 for k in range(80)], "page": ["news", "news", "sport", "news"] * 20}
    >>> found = inspect(pl.DataFrame(rows))
    >>> found.users, found.events, found.command
    (20, 80, 'seqveil fit DATA -o DATA.model --user-column person --value-column page')
    """
    source = as_polars(data)
    if isinstance(source, str | os.PathLike) and os.fspath(source) == "-":
        raise InputError("a look at a file reads it more than once, so it cannot come from a pipe; name a file")
    table = read_table(source, None, format)
    guess = Guess(table.frame.head(HEAD), Reading().but(user, value, time), table.name)
    events = read_events(table, guess.reading, missing="drop")
    order = next((role.why for role in guess.roles if role.role == "order"), events.taken.why)
    taken, (people, who) = replace(events.taken, why=order, dropped=0), events.people
    lengths = np.bincount(who)
    found = Inspection(
        roles=guess.roles,
        reading=asdict(taken),
        read=replace(taken, missing=0).sentence,  # which are counted with the values
        users=len(people),
        events=int(who.size),
        shortest=int(lengths.min()),
        typical=int(np.median(lengths)),
        longest=int(lengths.max()),
        **_about_values(events, who),
    )
    options = _options(found, events)
    title, model = "DATA", "DATA.model"
    if isinstance(source, str | os.PathLike):
        title, model = os.fspath(source), f"{Path(source).name.split('.')[0] or 'data'}.model"
    command = f"seqveil fit {shlex.quote(title)} -o {shlex.quote(model)}{option_words(options)}"
    asked = list(guess.questions)  # what whoever knows the file should be asked
    if found.users < SHARED:
        few = f"{count(found.users, 'person', 'people')} {'is' if found.users == 1 else 'are'} few"
        asked.append(f"{few}: a model of them shows how they behave. Is the user column right?")
    elif found.longest == 1:
        asked.append("each person has one event, so nothing follows upon anything. Is the user column right?")
    return replace(found, questions=asked, options=options, command=command)


def _about_values(events: Events, who: Ints) -> dict[str, Any]:
    """How many values there are, whether they are numbers, and which of them few people have."""
    series = events.values
    if isinstance(series, np.ndarray):
        many = len(np.unique(series, axis=0))
        return {"values": many, "numbers": True, "rare": 0, "rare_events": 0, "shared": []}
    table = (
        pl.DataFrame({"v": series, "who": who})
        .group_by("v", maintain_order=True)
        .agg(pl.len().alias("events"), pl.col("who").n_unique().alias("people"))
        .sort("events", descending=True, maintain_order=True)
    )
    numbers = series.dtype.is_float() or (series.dtype.is_integer() and table.height > MOST_NUMBERS)
    few, common = table.filter(pl.col("people") < SHARED), table.filter(pl.col("people") >= SHARED)
    return {
        "values": table.height,
        "numbers": numbers,
        "rare": few.height,
        "rare_events": int(few["events"].sum()),
        "shared": [] if numbers else [(str(value), many) for value, many, _ in common.head(SHOWN).rows()],
    }


def _options(found: Inspection, events: Events) -> dict[str, Any]:
    """How `fit` is to read this file, by the names that it has for it, where that is not what it does anyway."""
    usual, series = Reading().to_dict(), events.values
    options: dict[str, Any] = {role: name for role, name in events.reading.to_dict().items() if name != usual[role]}
    cut = found.numbers and (isinstance(series, np.ndarray) or found.values > MOST_NUMBERS)
    if events.taken.missing:
        options["missing"] = "hold" if cut else "symbol"
    if coordinates_in(events.reading.value_columns) == events.reading.value_columns:
        good = np.asarray(series)[geography.possible(np.asarray(series))]
        options["cell_metres"] = fitting_size(around(good), CELLS) if len(good) else 500.0
    elif isinstance(series, np.ndarray):
        options["grid"] = AUTO
    elif cut:
        options["bins"] = AUTO
    pools = found.rare > 0 and found.users >= 2 * SHARED and found.values - found.rare >= 2
    return options | ({"other": SHARED} if pools and not found.numbers and not cut else {})


def option_words(options: Mapping[str, Any]) -> str:
    """Options of `fit` by their names in Python, as one types them after a command."""
    words = ""
    for name, value in options.items():
        text = f"{value:g}" if isinstance(value, int | float) else shlex.quote(value)
        words += f" --{name.replace('_', '-')}{'-column' * (name in ('user', 'value', 'time'))} {text}"
    return words


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
