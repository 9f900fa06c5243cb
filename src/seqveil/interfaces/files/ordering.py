"""The order in which rows happened: which columns give it, and how their fields are read as times or numbers.

Times as text are ISO 8601, or dates as people write them (``02.04.2012 13:00``, ``4/2/2012``); numbers are read by
their size (`seqveil.core.times`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from seqveil.core import times as clock
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.kernel import Floats

TIMES = ("time", "timestamp", "datetime", "ts", "date")  # names that say that a column is the time of its row
ORDERS = ("seq", *TIMES)
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_EPOCH = 1e8  # seconds since 1970: a first time beyond it is one of a calendar, in whichever unit
_ISO = ("%FT%T%.f%#z", "%FT%T%.f", "%FT%H:%M%#z", "%FT%H:%M", "%F", "%a %b %d %T %z %Y")
_DOTS, _SLASHES = r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", r"^(\d{1,2})/(\d{1,2})/(\d{4})"
_CLOCK = r"^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?$"
_PARTS = {"ns": 1e9, "us": 1e6, "ms": 1e3}
Row = Callable[[int], int]  # the row of a file that an entry came from


def text_times(text: pl.Series) -> pl.Series:
    """Text as times, null where it is none; without a zone it is UTC.

    Dates with slashes are read as day or month first, whichever makes sense of all of them; where both do, as neither.

    >>> import polars as pl
    >>> [str(time)[:16] for time in text_times(pl.Series(["2012-04-02 13:00", "2.4.2012 13:00", "12/31/2024"]))]
    ['2012-04-02 13:00', '2012-04-02 13:00', '2024-12-31 00:00']
    """
    plain = pl.lit(text).str.replace(_DOTS, "${3}-${2}-${1}")
    first, second = (text.str.extract(_SLASHES, k).cast(pl.Int64, strict=False) for k in (1, 2))
    if (first > 12).any() != (second > 12).any():
        day, month = (1, 2) if (first > 12).any() else (2, 1)
        plain = plain.str.replace(_SLASHES, f"${{3}}-${{{month}}}-${{{day}}}")
    plain = plain.str.replace(r"^(\d+-\d+-\d+) ", "${1}T")
    found = pl.Series([None] * text.len(), dtype=pl.Datetime("us", "UTC"))
    for form in _ISO:
        if not found.null_count():
            break
        read = plain.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False)
        found = pl.select(pl.coalesce(pl.lit(found), read)).to_series()
    return found


def order_keys(order: pl.Series, row: Row, name: str) -> list[pl.Series]:
    """An order column, or each of several, as numbers: what it holds, or microseconds since 1970 for text.

    Of several columns a time of day (10:30) may be one.
    """
    if order.dtype != pl.Struct:
        return [_order_key(order, row, name)]
    keys = []
    for part in order.struct.unnest().get_columns():
        if part.dtype == pl.String and part.str.contains(_CLOCK).all():
            hours, minutes, seconds = (part.str.extract(_CLOCK, k).cast(pl.Float64) for k in (1, 2, 3))
            keys.append(hours * 3600 + minutes * 60 + seconds.fill_null(0.0))
        else:
            keys.append(_order_key(part, row, name))
    return keys


def _order_key(order: pl.Series, row: Row, name: str) -> pl.Series:
    if order.dtype != pl.String:
        return order.to_physical()
    found, numbers = text_times(order), order.str.contains(DECIMAL)
    mixed = numbers != numbers[0]
    if mixed.any():
        bad = row(int(mixed.arg_max() or 0))
        kinds = "something else" if numbers[0] else "numbers"
        raise DataError(f"{name}: row {bad}: column {order.name!r} mixes times with {kinds}; write all of one kind")
    if found.null_count():
        bad = row(int(found.is_null().arg_max() or 0))
        raise DataError(
            f"{name}: row {bad}: column {order.name!r} must hold numbers or times; write it as 2024-05-01T10:00:00Z or "
            f"01.05.2024 10:00, or name date and clock apart, as in {option('time', 'date,hour')}"
        )
    return found.to_physical()


def seconds(order: pl.Series | None, keys: list[pl.Series], counts: bool, row: Row, name: str) -> Floats:
    """The order column in seconds, given its keys: numbers by their size (`seqveil.core.times`), others since 1970."""
    if order is None or counts or order.dtype == pl.Struct:
        several = order is not None and not counts
        what = "times in one column; name it" if several else "a column of times; add one, or name it"
        raise DataError(f"{name}: slots and budgets per seconds need {what} with {option('time')}")
    numbers = np.asarray(keys[0].to_numpy(), np.float64)
    if order.dtype == pl.String or order.dtype.is_temporal():  # as floats: in a finer unit far times would wrap around
        unit = "us" if order.dtype == pl.String else getattr(order.dtype, "time_unit", "ns")
        numbers = numbers * clock.DAY if order.dtype == pl.Date else numbers / _PARTS[unit]
        wrong = ~(np.abs(numbers) < clock.LATEST)
        if wrong.any():
            bad = row(int(wrong.argmax()))
            raise DataError(f"{name}: row {bad}: column {order.name!r} must hold times before the year 5138; mend it")
        return numbers
    try:
        found = clock.seconds(order.to_numpy())
    except InputError as error:
        bad, said = row(int(error.position)), str(error).partition(": ")[2]
        raise DataError(f"{name}: row {bad}: {said}") from None
    if clock.says_milliseconds(order.name) and np.abs(numbers).max(initial=0) < clock.LATEST:
        raise DataError(
            f"{name}: column {order.name!r} is in milliseconds by its name, and numbers this small are read as "
            "seconds; divide them by 1000 and rename the column, or count them from 1970"
        )
    return found


def holds_no_times(order: pl.Series) -> bool:
    """Whether a column of text holds neither numbers nor times, whatever it is called."""
    if order.dtype != pl.String:
        return False
    text = order.drop_nulls()
    return not (text.str.contains(DECIMAL).any() or text_times(text).is_not_null().any())


def unit_of(order: pl.Series, name: str) -> str:
    """What one order column was read as, in words; numbers that are no times are refused where it is called as times.

    All numbers of such a column must be in one unit, and none absurd.
    """
    if not order.dtype.is_numeric():
        return _said_of_text(order)
    numbers = order.cast(pl.Float64).to_numpy()
    if order.name.strip().lower() not in TIMES and not since_1970(numbers):
        return ""
    powers = clock.powers(numbers)
    unit = int(powers[0]) if numbers[0] >= _EPOCH else -1
    wrong = powers >= len(clock.UNITS)
    if unit >= 0:
        wrong |= (powers != unit) | (numbers < 0)
    said = "numbers, from the least to the greatest" if unit < 0 else "seconds since 1970"
    said = clock.UNITS[unit] if 0 < unit < len(clock.UNITS) else said
    if wrong.any():
        known = 0 <= unit < len(clock.UNITS)
        expected = f"{said} like that of row 1" if known else "seconds, or in milli-, micro- or nanoseconds since 1970,"
        raise DataError(
            f"{name}: row {int(wrong.argmax()) + 1}: expected a time in {expected} in column {order.name!r}; mend the "
            f"row, or name the column that gives the order with {option('time')}"
        )
    return said


def since_1970(numbers: Floats) -> bool:
    """Whether numbers are times of a calendar whatever they are called: from 2001 to 2065, all in one unit.

    >>> [since_1970(np.array(numbers)) for numbers in ([1.7e12, 1.8e12], [1.7e9, 1.7e12], [1, 2])]
    [True, False, False]
    """
    return any(
        bool((numbers >= 1e9 * unit).all() and (numbers < 3e9 * unit).all()) for unit in 10.0 ** (3 * np.arange(4))
    )


def _said_of_text(order: pl.Series) -> str:
    """What a column of dates or times holds, in words."""
    if order.dtype != pl.String:
        return clock.CALENDAR if order.dtype.is_temporal() else ""
    if order.str.contains(_DOTS).any():
        return "dates as day.month.year, taken for UTC"
    if order.str.contains(_SLASHES).any():
        first = bool((order.str.extract(_SLASHES, 1).cast(pl.Int64, strict=False) > 12).any())
        return f"dates as {'day/month' if first else 'month/day'}/year, taken for UTC"
    if not order.str.contains(r"[T ]\d{1,2}:\d{2}").any():
        return "ISO 8601 dates"
    zoned = order.str.contains(r":\d{2}.*([zZ]|[+-]\d{2}:?\d{2})( \d{4})?$")
    return "ISO 8601 times" if zoned.all() else "ISO 8601 times, those without a zone as UTC"
