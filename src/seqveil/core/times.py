"""Times of events in seconds, from whatever form they come in: one rule for sessions, files, services and Spark.

A number is read by its size, because no clock leaves a doubt: below 10¹¹ it is in seconds, of whatever beginning (as
seconds since 1970 that is the year 5138); from there on it is since 1970, in milliseconds below 10¹⁴, in microseconds
below 10¹⁷, in nanoseconds below 10²⁰. Text is ISO 8601, and a time without a zone is UTC. Anything else is no time: a
window that looks back from it would be empty, and its user could never come back to the present.
"""

from __future__ import annotations

import re
import time as clock
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError

Floats = NDArray[np.float64]
Time = float | str | datetime

LATEST = 1e11  # seconds; three more digits are the next smaller unit
UNITS = ("seconds", "milliseconds since 1970", "microseconds since 1970", "nanoseconds since 1970")
CALENDAR = "dates and times"
DAY = 86_400.0
FINE = 1e-6  # of a window: how coarse the numbers may be that lie in it
_MILLIS = re.compile(r"((?i:(^|[^a-z])(ms|msecs?|millis|milliseconds?))|[a-z](Ms|Millis|Milliseconds))[^A-Za-z]*$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_EXPECTED = "expected a time in seconds, in milli-, micro- or nanoseconds since 1970, or as ISO 8601 text"


def seconds(times: Iterable[Time] | NDArray[Any]) -> Floats:
    """Times as seconds; what has been read once stays as it is.

    >>> seconds([1.5, 1_700_000_000_000, 1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"]).tolist()
    [1.5, 1700000000.0, 1700000000.0, 1700000000.0]
    """
    given = times if isinstance(times, np.ndarray) else list(times)
    if isinstance(given, np.ndarray) and given.dtype.kind == "M":
        days = given.astype("datetime64[D]").astype(np.float64)  # a coarse unit: in a finer one far dates wrap around
        far = np.isnat(given) | ~(np.abs(days) < LATEST // DAY)
        if far.any():  # as numbers they would be taken for milliseconds
            raise _refused(int(far.argmax()))
        stamps: Floats = given.astype("datetime64[us]").astype(np.int64) / 1e6
        return stamps
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "iuf":
        given = np.array([_number(k, each) for k, each in enumerate(given)], np.float64)
    numbers = np.asarray(given, np.float64)
    found = powers(numbers)
    wrong = ~(np.isfinite(numbers) & (found < len(UNITS)))
    if wrong.any():
        raise _refused(int(wrong.argmax()))
    return numbers / 10.0 ** (3 * found) if found.any() else numbers


def unit_of(numbers: NDArray[Any]) -> str:
    """What the size of these numbers says they are.

    >>> unit_of(np.array([3.0])), unit_of(np.array([1_700_000_000_000]))
    ('seconds', 'milliseconds since 1970')
    """
    found = np.unique(powers(np.asarray(numbers, np.float64)))
    return " and ".join(UNITS[k] for k in found.tolist() if k < len(UNITS))


def says_milliseconds(name: str) -> bool:
    """Whether a column is called as milliseconds are.

    >>> [says_milliseconds(name) for name in ("t_ms", "time (ms)", "sinceStartMs", "millis", "items", "systems")]
    [True, True, True, True, False, False]
    """
    return _MILLIS.search(name.strip()) is not None


def check(times: Floats, window: float) -> None:
    """Refuse times in seconds that no clock shows, or that are too coarse for what happens within the window."""
    if not (np.abs(times) <= LATEST).all():  # NaN among them
        raise InputError("expected the times of releases to be finite and before the year 5138; check their unit")
    if (np.spacing(np.abs(times)) > FINE * window).any():
        raise InputError(
            f"times as large as these cannot be distinguished in a window of {window:g} seconds; count from a later "
            "beginning, or take a longer window"
        )


def check_clock(times: Floats) -> None:
    """Refuse times that are more than a day ahead of this machine's clock: their user could not come back from them."""
    ahead = times > clock.time() + DAY
    if ahead.any():
        place = int(ahead.argmax())
        raise InputError(
            f"event {place}: expected a time at most a day ahead of this machine's clock; set the sender's", place
        )


def powers(numbers: Floats) -> NDArray[np.int64]:
    """How many thousandths of a second each is in; past the last unit for what is no time."""
    return np.searchsorted(LATEST * 10.0 ** (3 * np.arange(len(UNITS))), np.abs(numbers), side="right")


def _number(place: int, given: object) -> float:
    if isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool):
        try:
            return float(given)
        except OverflowError:
            raise _refused(place) from None
    if isinstance(given, str) and _DATE.match(given):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            raise _refused(place) from None
    if not isinstance(given, datetime):
        raise _refused(place)
    stamp = (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp()
    if abs(stamp) >= LATEST:  # as a number it would be taken for milliseconds
        raise _refused(place)
    return stamp


def _refused(place: int) -> InputError:
    return InputError(f"event {place}: {_EXPECTED}; check its unit", place)
