"""Which columns of a file are what: a model keeps those that it was fitted with, for every file that comes later."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from seqveil.core.errors import InputError


@dataclass(frozen=True)
class Reading:
    """The names of the columns that hold the user, the value (``"x,y"`` for two coordinates) and the order.

    Without ``time`` a column ``seq``, or else one that is called as times are, gives the order where a file has one.
    User and order may be several columns: ``"firm,badge"`` names a person, ``"week,hour"`` is the hour within the week.

    >>> Reading("firm,badge").user_columns, Reading(time="week,hour").time_columns
    (('firm', 'badge'), ('week', 'hour'))
    """

    user: str = "user"
    value: str = "value"
    time: str | None = None

    def __post_init__(self) -> None:
        names = [*self.user_columns, *self.value_columns, *self.time_columns]
        if len(self.value_columns) > 2 or not all(names) or len(set(names)) < len(names):
            raise InputError(f"expected different names for user, value (one, or two as in x,y) and time; got {names}")

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

    def but(self, user: str | None = None, value: str | None = None, time: str | None = None) -> Reading:
        """The same with other names where some are given: what differs in another file.

        >>> Reading("who", "page").but(value="url")
        Reading(user='who', value='url', time=None)
        """
        given = {"user": user, "value": value, "time": time}
        return replace(self, **{name: text for name, text in given.items() if text is not None})

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, which `Reading(**…)` takes back."""
        return asdict(self)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))
