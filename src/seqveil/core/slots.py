"""Streams in slots of equal length: one symbol for each slot, whether something happened in it or not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError

Rule = Literal["last", "mean", "most"]
Empty = Literal["nothing", "hold"]
NOTHING = "nothing"  # the symbol of a slot in which nothing happened
MICRO = 1_000_000  # times are compared in microseconds, which no rounding moves
DAY = 86_400 * MICRO
MONDAY = 4  # of January 1970, counted from its first day


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
        if DAY % self.step or shift % self.step:
            raise InputError(
                f"slots of {self.seconds:g} s do not begin at midnight each day (UTC{self.utc_offset:+g} h), as secrets"
                " that follow the clock need it; take slots that divide an hour, such as 1800 s"
            )
        return DAY // self.step

    def numbers(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """The slot that each time in seconds lies in, counted from 1970."""
        return np.asarray(np.round(times * MICRO).astype(np.int64) // self.step)

    def place(self, number: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Which slot of its week each slot is, from Monday's midnight by the clock of `utc_offset`."""
        ahead = round(self.utc_offset * 3600 * MICRO) // self.step - MONDAY * self.per_day
        return np.asarray((number + ahead) % (7 * self.per_day))

    def since_midnight(self, place: int) -> float:
        """A time in seconds at which slot number `place` begins, counted from a Monday's midnight by the clock."""
        return place * self.seconds - 3600.0 * self.utc_offset + MONDAY * DAY / MICRO

    def describe(self) -> str:
        """The slots in words."""
        held = ", empty ones hold the last value" * (self.empty == "hold")
        return f"slots of {self.seconds:g} s ({self.rule}{', padded' * self.pad}{held})"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `Slots(**…)` takes back."""
        unsaid = {"empty": None, "utc_offset": 0.0}
        return {name: value for name, value in asdict(self).items() if name not in unsaid or value != unsaid[name]}
