"""When rows happened: which numbers order them, which seconds they are, and one event for each slot of time.

Times as text are ISO 8601, or dates as people write them (``02.04.2012 13:00``, ``4/2/2012``); numbers are read by
their size (`seqveil.core.times`), and as milliseconds where the column is called so.

What is in a slot depends on the events of its stream alone, and a slot without any is a row like the others: from the
first slot of a stream to its last, nobody can see from the rows when events happened, or how many.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from seqveil.core import times as clock
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.times import NOTHING, Slots

TIMES = ("time", "timestamp", "datetime", "ts", "date")  # names that say that a column is the time of its row
ORDERS = ("seq", *TIMES)
IN_ORDER = "numbers, from the least to the greatest"
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
MOST_ROWS = 50_000_000  # slots of all streams together: they are held in memory
_EPOCH = 1e8  # seconds since 1970: a first time beyond it is one of a calendar, in whichever unit
_ISO = ("%FT%T%.f%#z", "%FT%T%.f", "%FT%H:%M%#z", "%FT%H:%M", "%F", "%G-W%V-%u", "%a %b %d %T %z %Y")
_DOTS, _SLASHES = r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", r"^(\d{1,2})/(\d{1,2})/(\d{4})"
_PARTS = {"ns": 1e9, "us": 1e6, "ms": 1e3}
KEY = "\x00key"  # what the column is called that holds the order in numbers
Row = Callable[[int], int]  # the row of a file that an entry came from


def text_times(text: pl.Series) -> pl.Series:
    """Text as times, null where it is none; without a zone it is UTC. A week stands for its Monday.

    Dates with slashes are read as day or month first, whichever makes sense of all of them; where both do, as neither.

    >>> import polars as pl
    >>> [str(time)[:16] for time in text_times(pl.Series(["2012-04-02 13:00", "2.4.2012 13:00", "12/31/2024"]))]
    ['2012-04-02 13:00', '2012-04-02 13:00', '2024-12-31 00:00']
    >>> text_times(pl.Series(["2024-W10"])).to_list()[0].isoformat()
    '2024-03-04T00:00:00+00:00'
    """
    plain = pl.lit(text).str.replace(_DOTS, "${3}-${2}-${1}")
    first, second = (text.str.extract(_SLASHES, k).cast(pl.Int64, strict=False) for k in (1, 2))
    if (first > 12).any() != (second > 12).any():
        day, month = (1, 2) if (first > 12).any() else (2, 1)
        plain = plain.str.replace(_SLASHES, f"${{3}}-${{{month}}}-${{{day}}}")
    plain = plain.str.replace(r"^(\d+-\d+-\d+) ", "${1}T").str.replace(r"^(\d{4}-W\d{2})$", "${1}-1")
    found = pl.Series([None] * text.len(), dtype=pl.Datetime("us", "UTC"))
    for form in _ISO:
        if not found.null_count():
            break
        read = plain.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False)
        found = pl.select(pl.coalesce(pl.lit(found), read)).to_series()
    return found


def order_key(order: pl.Series, name: str) -> pl.Series:
    """The order column of a file as numbers: what it holds, or microseconds since 1970 for text."""
    if order.dtype != pl.String:
        return order.to_physical().rename(KEY)
    found, numbers = text_times(order), order.str.contains(DECIMAL)
    mixed = numbers != numbers[0]
    if mixed.any():
        bad = int(mixed.arg_max() or 0) + 1
        kinds = "something else" if numbers[0] else "numbers"
        raise DataError(f"{name}: row {bad}: column {order.name!r} mixes times with {kinds}; write all of one kind")
    if found.null_count():
        bad = int(found.is_null().arg_max() or 0) + 1
        raise DataError(
            f"{name}: row {bad}: column {order.name!r} must hold numbers or times; write it as 2024-05-01T10:00:00Z or "
            f"01.05.2024 10:00, rename it, or name another column with {option('time')}"
        )
    return found.to_physical().rename(KEY)


def seconds(order: pl.Series | None, key: pl.Series | None, counts: bool, row: Row, name: str) -> Floats:
    """The order column in seconds, given its key: numbers by their size or name, others since 1970."""
    if order is None or key is None or counts:
        named = option("time")
        raise DataError(
            f"{name}: slots and budgets per seconds need a column of times; add one, or name it with {named}"
        )
    if order.dtype == pl.String or order.dtype.is_temporal():  # as floats: in a finer unit far times would wrap around
        numbers = np.asarray(key.to_numpy(), np.float64)
        unit = "us" if order.dtype == pl.String else getattr(order.dtype, "time_unit", "ns")
        numbers = numbers * clock.DAY if order.dtype == pl.Date else numbers / _PARTS[unit]
        wrong = ~(np.abs(numbers) < clock.LATEST)
        if wrong.any():
            bad = row(int(wrong.argmax()))
            raise DataError(f"{name}: row {bad}: column {order.name!r} must hold times before the year 5138; mend it")
        return numbers
    numbers = order.to_numpy() / (1000.0 if clock.says_milliseconds(order.name) else 1.0)
    try:
        found = clock.seconds(numbers)
    except InputError as error:
        bad, said = row(int(error.position)), str(error).partition(": ")[2]
        raise DataError(f"{name}: row {bad}: {said}") from None
    return found


def _power(order: pl.Series) -> int:
    """Which power of a thousandth of a second numbers are in since 1970; -1 for milliseconds since anything, which a
    column says by its name alone: no one row decides how all others are read."""
    if clock.says_milliseconds(order.name):
        return -1
    return int(clock.powers(np.abs(order.cast(pl.Float64).to_numpy()).max(keepdims=True))[0])


def unit_of(order: pl.Series, name: str, needed: bool) -> str:
    """What one order column was read as, in words; numbers that are no times are refused where it is called as times.

    All numbers of such a column must be in one unit, and none absurd. `needed`, whether it is seconds that count, and
    not the order alone.
    """
    if not order.dtype.is_numeric():
        return _said_of_text(order)
    numbers = order.cast(pl.Float64).to_numpy()
    if _power(order) == -1:
        return "milliseconds, by its name"
    if order.name.strip().lower() not in TIMES and not since_1970(numbers):
        return clock.UNITS[0] if needed else ""
    powers, small = clock.powers(numbers), numbers[0] < _EPOCH
    since = ("seconds since 1970", *clock.UNITS[1:], "seconds, or in milli-, micro- or nanoseconds since 1970,")
    unit = clock.UNITS[0] if small else since[powers[0]]
    wrong = powers >= len(clock.UNITS)
    if not small:
        wrong |= (powers != powers[0]) | (numbers < 0)
    if wrong.any():
        raise DataError(
            f"{name}: row {int(wrong.argmax()) + 1}: expected a time in {unit} in column {order.name!r}; mend the row, "
            f"or name the column that gives the order with {option('time')}"
        )
    return IN_ORDER if small and not needed else unit


def since_1970(numbers: Floats) -> bool:
    """Whether numbers are times of a calendar whatever they are called: from 2001 to 2065, all in one unit."""
    low, high = numbers.min(), numbers.max()
    return any(low >= 1e9 * unit and high < 3e9 * unit for unit in (1.0, 1e3, 1e6, 1e9))


def _said_of_text(order: pl.Series) -> str:
    """What a column of dates or times holds, in words."""
    if order.dtype != pl.String:
        return clock.CALENDAR if order.dtype.is_temporal() else ""
    if order.str.contains(_DOTS).any():
        return "dates as day.month.year, taken for UTC"
    if order.str.contains(_SLASHES).any():
        first = bool((order.str.extract(_SLASHES, 1).cast(pl.Int64, strict=False) > 12).any())
        return f"dates as {'day/month' if first else 'month/day'}/year, taken for UTC"
    return "ISO 8601 times, those without a zone as UTC"


def resampled(events: pl.DataFrame, order: pl.Series, times: Floats, slots: Slots, name: str) -> pl.DataFrame:
    """One row for each slot of each stream, in the order of time; `order` and `times` are those of the events.

    Within a slot users go by their names: the order of their events does not show. A slot without events says
    `NOTHING`, or where values are numbers, or are to be held, goes on with the last one (before the first one of a
    padded stream: with the first).
    """
    values = [column for column in events.columns if column.startswith("value")]
    table = events.select("user", pl.Series("slot", slots.numbers(times)), *values, "row")
    found = _disclosed(table, values, slots.rule, name).sort("user", "slot")
    rows = _all_slots(found, slots, name).join(found, on=["user", "slot"], how="left", maintain_order="left")
    if rows[values[0]].dtype == pl.String and slots.empty != "hold":
        rows, values = rows.with_columns(pl.col(values[0]).fill_null(NOTHING)), []
    rows = rows.with_columns(pl.col(*values, "row").forward_fill().backward_fill().over("user")).sort("slot", "user")
    stamps = _stamps(rows["slot"].to_numpy() * slots.step, order)
    return rows.drop("slot").with_columns(stamps.rename("order"), order_key(stamps, name))


def _disclosed(table: pl.DataFrame, values: list[str], rule: str, name: str) -> pl.DataFrame:
    """What stands for the events of each slot that has some."""
    place = ["user", "slot"]
    if rule == "mean":
        if not all(table[value].dtype.is_numeric() for value in values):
            raise DataError(
                f"{name}: the mean of a slot needs numbers that are cut ({option('bins')} or {option('grid')}); choose "
                f"{option('slot', 'last')} or {option('slot', 'most')}"
            )
        return table.group_by(place).agg(pl.col(*values).mean(), pl.col("row").last())
    if rule == "most":  # of several that are as frequent the one that came last
        often = table.with_row_index("at").group_by([*place, *values])
        table = often.agg(pl.len().alias("often"), pl.col("at").max(), pl.col("row").last()).sort("often", "at")
    return table.group_by(place, maintain_order=True).agg(pl.col(*values, "row").last())


def _all_slots(found: pl.DataFrame, slots: Slots, name: str) -> pl.DataFrame:
    """Every slot of every stream from its first to its last, or with `pad` from the first of all to the last of all."""
    spans = found.group_by("user", maintain_order=True).agg(first=pl.col("slot").min(), last=pl.col("slot").max())
    if slots.pad:
        spans = spans.with_columns(pl.col("first").min(), pl.col("last").max())
    total = float((spans["last"] - spans["first"] + 1).cast(pl.Float64).sum())
    if total > MOST_ROWS:
        raise InputError(
            f"{name}: slots of {slots.seconds:g} s would be {total:,.0f} rows, more than {MOST_ROWS:,}; take longer "
            "slots, or check that times are in seconds"
        )
    return spans.select("user", slot=pl.int_ranges("first", pl.col("last") + 1)).explode("slot")


def _stamps(micros: Ints, like: pl.Series) -> pl.Series:
    """The beginnings of slots in the form in which the times of the file came."""
    times = pl.Series(like.name, micros)
    if like.dtype == pl.String:
        return times.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")
    if like.dtype == pl.Date:
        return times.cast(pl.Datetime("us"))
    if like.dtype.is_temporal():
        parts = {"ns": times * 1000, "us": times, "ms": times // 1000}
        return parts[getattr(like.dtype, "time_unit", "ns")].cast(like.dtype)
    power = abs(_power(like))
    if power == 3:
        return times * 1000
    parts_of = 10 ** (6 - 3 * power)
    return times / parts_of if (micros % parts_of).any() else times // parts_of
