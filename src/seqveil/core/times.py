"""Times of events in seconds, from whatever form they come in: one rule for sessions, files, services and Spark.

A number is read by its size: below 10¹¹ it is in seconds, of whatever beginning (as seconds since 1970 that is the year
5138); from there on it is since 1970, in milliseconds below 10¹⁴, in microseconds below 10¹⁷, in nanoseconds below
10²⁰. Text is ISO 8601, and a time without a zone is UTC. Anything else is refused: a window that looks back from it
would be empty, and its user could never come back to the present.

`Slots` cut streams into slots of equal length: one symbol for each slot, whether something happened in it or not.
"""

from __future__ import annotations

import contextlib
import math
import re
import time as clock
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError

Floats = NDArray[np.float64]
Time = float | str | datetime
Rule = Literal["last", "mean", "most"]
Empty = Literal["nothing", "hold"]

LATEST = 1e11  # seconds; three more digits are the next smaller unit
UNITS = ("seconds", "milliseconds since 1970", "microseconds since 1970", "nanoseconds since 1970")
CALENDAR = "dates and times"
DAY = 86_400.0
NOTHING = "nothing"  # the symbol of a slot in which nothing happened
MICRO = 1_000_000  # times are compared in microseconds, which no rounding moves
DAY_MICRO = 86_400 * MICRO
MONDAY = 4  # of January 1970, counted from its first day
FINE = 1e-6  # of a window: how coarse the numbers may be that lie in it
_MILLIS = re.compile(r"((?i:(^|[^a-z])(ms|msecs?|millis|milliseconds?))|[a-z](Ms|Millis|Milliseconds))[^A-Za-z]*$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_EXPECTED = "expected a time in seconds, in milli-, micro- or nanoseconds since 1970, or as ISO 8601 text"


def seconds(times: Iterable[Time] | NDArray[Any]) -> Floats:
    """Times as seconds; what has been read once stays as it is.

    >>> seconds([1.5, 1_700_000_000_000, 1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"]).tolist()
    [1.5, 1700000000.0, 1700000000.0, 1700000000.0]
    """
    kind = times.dtype.kind if isinstance(times, np.ndarray) else "O"
    if kind == "M":
        given = np.asarray(times)
        days = given.astype("datetime64[D]").astype(np.float64)  # a coarse unit: in a finer one far dates wrap around
        far = ~(np.abs(days) < LATEST // DAY)  # nor is what is no date
        if far.any():  # as numbers they would be taken for milliseconds
            raise _refused(int(far.argmax()))
        return np.asarray(given.astype("datetime64[us]").astype(np.int64) / 1e6)
    numbers = np.asarray(times if kind in "iuf" else [_number(k, each) for k, each in enumerate(times)], np.float64)
    found = powers(numbers)
    wrong = found == len(UNITS)  # infinite ones and NaN among them
    if wrong.any():
        raise _refused(int(wrong.argmax()))
    return numbers / 10.0 ** (3 * found) if found.any() else numbers


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
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool):
            return float(given)
        if isinstance(given, str) and _DATE.match(given):
            given = datetime.fromisoformat(given)
        if isinstance(given, datetime):
            stamp = (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp()
            if abs(stamp) < LATEST:  # as a number it would be taken for milliseconds
                return stamp
    raise _refused(place)


def _refused(place: int) -> InputError:
    return InputError(f"event {place}: {_EXPECTED}; check its unit", place)


@dataclass(frozen=True)
class Slots:
    """How events at irregular times become one symbol for each slot.

    Parameters:
        seconds: the length of a slot, at least a microsecond; slots begin at its multiples.
        rule: what stands for several events of a slot: the last one, their mean, or the most frequent one.
        empty: what stands in a slot without events: the symbol "nothing", or the last value, held. None takes the
            symbol where values are names, and holds numbers and places, which have none.
        pad: whether all streams begin and end together, at the first and the last slot of the file.
        utc_offset: hours by which the clock that secrets go by (`during`, days and weeks) is ahead of UTC, the same all
            year. Times without a zone are taken for UTC: where they are those of a clock on the wall, it is 0.

    >>> Slots(0.5).describe()
    'slots of 0.5 s (last)'
    >>> berlin = Slots(1800, utc_offset=1)
    >>> berlin.per_day, berlin.place(berlin.numbers(np.array([0.0, 82_800.0]))).tolist()
    (48, [146, 192])
    """

    seconds: float
    rule: Rule = "last"
    pad: bool = False
    empty: Empty | None = None
    utc_offset: float = 0.0

    def __post_init__(self) -> None:
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not number or not math.isfinite(self.seconds) or not 1 <= self.seconds * MICRO <= 1e15:
            raise InputError(f"expected the length of a slot as seconds above 0, as in 0.5; got {self.seconds!r}")
        if self.rule not in get_args(Rule):
            raise InputError(f"expected the rule of a slot as last, mean or most; got {self.rule!r}")
        if self.empty not in (None, *get_args(Empty)):
            raise InputError(f"expected what stands in an empty slot as nothing or hold; got {self.empty!r}")
        offset = self.utc_offset
        if isinstance(offset, bool) or not isinstance(offset, int | float) or not abs(offset) <= 14:
            raise InputError(f"expected utc_offset as hours from -14 to 14, as in 2; got {offset!r}")
        object.__setattr__(self, "utc_offset", float(offset))
        object.__setattr__(self, "seconds", round(self.seconds * MICRO) / MICRO)
        object.__setattr__(self, "pad", bool(self.pad))

    @property
    def step(self) -> int:
        """The length of a slot in microseconds."""
        return round(self.seconds * MICRO)

    @property
    def per_day(self) -> int:
        """How many slots a day has; refused where midnight, by the clock of `utc_offset`, is no slot's beginning."""
        shift = round(self.utc_offset * 3600 * MICRO)
        if DAY_MICRO % self.step or shift % self.step:
            raise InputError(
                f"slots of {self.seconds:g} s do not begin at midnight each day (UTC{self.utc_offset:+g} h), as secrets"
                " that follow the clock need it; take slots that divide an hour, such as 1800 s"
            )
        return DAY_MICRO // self.step

    def numbers(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """The slot that each time in seconds lies in, counted from 1970."""
        return np.asarray(np.round(times * MICRO).astype(np.int64) // self.step)

    def place(self, number: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Which slot of its week each slot is, from Monday's midnight by the clock of `utc_offset`."""
        ahead = round(self.utc_offset * 3600 * MICRO) // self.step - MONDAY * self.per_day
        return np.asarray((number + ahead) % (7 * self.per_day))

    def since_midnight(self, place: int) -> float:
        """A time in seconds at which slot number `place` begins, counted from a Monday's midnight by the clock."""
        return place * self.seconds - 3600.0 * self.utc_offset + MONDAY * DAY

    def describe(self) -> str:
        """The slots in words."""
        held = ", empty ones hold the last value" * (self.empty == "hold")
        return f"slots of {self.seconds:g} s ({self.rule}{', padded' * self.pad}{held})"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `Slots(**…)` takes back."""
        unsaid = {"empty": None, "utc_offset": 0.0}
        return {name: value for name, value in asdict(self).items() if name not in unsaid or value != unsaid[name]}
