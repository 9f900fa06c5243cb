"""What the columns of somebody's file may be: by what they are called, else by what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqveil.interfaces.files.columns import TIMES, Columns, coordinates_in, order_in
from seqveil.interfaces.files.ordering import iso_times
from seqveil.interfaces.files.reading import DECIMAL

if TYPE_CHECKING:
    import polars as pl

PEOPLE = ("user", "person", "participant", "subject", "customer", "client", "patient", "member", "device", "account")
STREAMS = ("session", "trip", "visit", "trial", "recording", "run", "tour", "episode")
VALUES = (
    "value",
    "category",
    "symbol",
    "page",
    "event",
    "state",
    "label",
    "place",
    "venue",
    "activity",
    "item",
    "action",
)
PAIRS = (("x", "y"),)


@dataclass(frozen=True)
class Role:
    """What a column is taken for, and why."""

    column: str
    role: str
    why: str


def guessed(head: pl.DataFrame, columns: Columns | None) -> tuple[list[Role], Columns]:
    """What each column is taken for: what was named, else by names, else by what it holds."""
    given = columns or Columns()
    found = head.columns
    roles: dict[str, Role] = {}

    def take(names: Sequence[str], role: str, why: str) -> str:
        roles.update({name: Role(name, role, why) for name in names})
        return ",".join(names)

    def free() -> list[str]:
        return [name for name in found if name not in roles]

    named = Columns()
    for role, names, asked in (
        ("user", given.user_columns, given.user != named.user),
        ("value", given.value_columns, given.value != named.value),
        ("stream", given.stream_columns, given.stream is not None),
        ("order", given.time_columns, given.time is not None),
    ):
        if asked:
            take([name for name in names if name not in roles], role, "as named")
    stream = given.stream
    user = given.user if given.user != named.user else None
    if user is None:
        person = _by_name(free(), PEOPLE) or _by_name(free(), ("uid", "id", "name"))
        why = "by its name" if person else "its values come again"
        person = person or _repeating(head.select(free()))
        user = take([person], "user", why) if person else "user"
    order = given.time
    if order is None:
        names, why = order_in(free(), Columns(user=user, value="\x00"))
        if names and names[0] != "seq" and not _timely(head[names[0]]):
            names = ()
        if not names:
            names, why = tuple(name for name in free() if _dated(head[name]))[:1], "it holds times"
        order = take(names, "order", why) if names else None
        if order is not None and order.strip().lower() in ("seq", *TIMES):
            order = None  # `fit` takes it by itself
    value = given.value if given.value != named.value else None
    if value is None:
        pair = next(([a, b] for one in PAIRS for a, b in [_pair(free(), one)] if a and b), None)
        place = coordinates_in(free())
        single = _by_name(free(), VALUES)
        if single is None and place is not None:
            value = take(place, "value, a place on the map", "by their names")
        elif single is None and pair is not None:
            value = take(pair, "value, a point", "by their names")
        else:
            why = "by its name" if single else "its values repeat among people"
            single = single or _alike(head.select(free()))
            value = take([single], "value", why) if single else "value"
    if stream is None:
        session = _by_name(free(), STREAMS)
        stream = take([session], "stream", "by its name") if session else None
    told = [roles[name] if name in roles else Role(name, "not used", "nothing else is needed") for name in found]
    return told, Columns(user, value, order, stream=stream)


def _by_name(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The column that is called so, or so with a suffix such as _id."""
    plain = {name: name.strip().lower().replace(" ", "_").replace("-", "_") for name in names}
    for word in known:
        for name, text in plain.items():
            if text in (word, f"{word}_id", f"{word}id", f"{word}_name", f"{word}_category", f"{word}s"):
                return name
    return None


def _pair(names: Sequence[str], pair: tuple[str, str]) -> tuple[str | None, str | None]:
    plain = {name.strip().lower(): name for name in names}
    return plain.get(pair[0]), plain.get(pair[1])


def _repeating(head: pl.DataFrame) -> str | None:
    """The column with the most different values that come several times each."""
    counts = {name: head[name].n_unique() for name in head.columns if not _timely(head[name])}
    fit = {name: n for name, n in counts.items() if 1 < n <= head.height / 2}
    return max(fit, key=lambda name: fit[name]) if fit else None


def _alike(head: pl.DataFrame) -> str | None:
    """The column with the fewest values, more than one: what people have in common."""
    counts = {name: head[name].n_unique() for name in head.columns if not _dated(head[name])}
    fit = {name: n for name, n in counts.items() if n > 1}
    return min(fit, key=lambda name: fit[name]) if fit else None


def _timely(column: pl.Series) -> bool:
    """Whether a column can be read as times or numbers of an order."""
    import polars as pl

    if column.dtype != pl.String:
        return column.dtype.is_numeric() or column.dtype.is_temporal()
    text = column.drop_nulls()
    return bool(text.len() and (text.str.contains(DECIMAL).all() or iso_times(text).is_not_null().all()))


def _dated(column: pl.Series) -> bool:
    """Whether a column holds calendar times, whatever it is called: ISO 8601, or numbers since 1970 in some unit."""
    import polars as pl

    if column.dtype.is_temporal():
        return True
    if not _timely(column):
        return False
    numbers = column.cast(pl.Float64, strict=False).drop_nulls()
    if not numbers.len():
        return column.dtype == pl.String
    low, high = float(numbers.min() or 0), float(numbers.max() or 0)  # type: ignore[arg-type]
    return any(1e9 * 10.0 ** (3 * k) <= low and high < 3e9 * 10.0 ** (3 * k) for k in range(4))


__all__ = ["Role", "guessed"]
