"""Streams in slots of equal length: one symbol for each slot, whether something happened in it or not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from seqveil.core.errors import InputError

Rule = Literal["last", "mean", "most"]
Empty = Literal["nothing", "hold"]
NOTHING = "nothing"  # the symbol of a slot in which nothing happened
MICRO = 1_000_000  # times are compared in microseconds, which no rounding moves


@dataclass(frozen=True)
class Slots:
    """How events at irregular times become one symbol for each slot.

    Parameters:
        seconds: the length of a slot, at least a microsecond; slots begin at its multiples.
        rule: what stands for several events of a slot: the last one, their mean, or the most frequent one.
        empty: what stands in a slot without events: the symbol "nothing", or the last value, held. None takes the
            symbol where values are names, and holds numbers and places, which have none.
        pad: whether all streams begin and end together, at the first and the last slot of the file.

    >>> Slots(0.5).describe()
    'slots of 0.5 s (last)'
    """

    seconds: float
    rule: Rule = "last"
    pad: bool = False
    empty: Empty | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not number or not math.isfinite(self.seconds) or not 1 <= self.seconds * MICRO <= 1e15:
            raise InputError(f"expected the length of a slot as seconds above 0, as in 0.5; got {self.seconds!r}")
        if self.rule not in get_args(Rule):
            raise InputError(f"expected the rule of a slot as last, mean or most; got {self.rule!r}")
        if self.empty not in (None, *get_args(Empty)):
            raise InputError(f"expected what stands in an empty slot as nothing or hold; got {self.empty!r}")
        object.__setattr__(self, "seconds", round(self.seconds * MICRO) / MICRO)
        object.__setattr__(self, "pad", bool(self.pad))

    @property
    def step(self) -> int:
        """The length of a slot in microseconds."""
        return round(self.seconds * MICRO)

    def describe(self) -> str:
        """The slots in words."""
        held = ", empty ones hold the last value" * (self.empty == "hold")
        return f"slots of {self.seconds:g} s ({self.rule}{', padded' * self.pad}{held})"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `Slots(**…)` takes back."""
        return {name: value for name, value in asdict(self).items() if name != "empty" or value is not None}


__all__ = ["MICRO", "NOTHING", "Empty", "Rule", "Slots"]
