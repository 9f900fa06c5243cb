"""A window for events that overtook others: they wait, not acknowledged, until those before them have come.

Events of a user are numbered, so an event that comes too early can be told. It is held in memory until the missing ones
have come, until too many wait, or until it has waited for too long; then the policy for gaps decides. What is held is
the source's still: it was neither drawn nor acknowledged, so a process that is killed gets it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from seqveil.core.errors import InputError
from seqveil.interfaces.payloads import Event

MOST_HELD = 10_000  # events of one stream that may wait
MOST_WAIT = 3600.0  # seconds

Item = TypeVar("Item")
Upcoming = Callable[[Iterable[str]], Mapping[str, int]]  # the next number of each of these users, at least


@dataclass(frozen=True)
class Reorder:
    """How long, and how many, events may wait for those before them.

    Parameters:
        most: events of one stream that may wait; 0 holds none back.
        wait: seconds that one may wait.
        total: events of all streams that may wait.
    """

    most: int = 0
    wait: float = 2.0
    total: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.most <= MOST_HELD:
            raise InputError(f"expected a window of 0 to {MOST_HELD} events for those out of order; got {self.most}")
        if not 0 < self.wait <= MOST_WAIT:
            raise InputError(f"expected to wait above 0 and up to {MOST_WAIT:g} seconds for events that are missing")


class _Held(NamedTuple, Generic[Item]):
    item: Item
    event: Event
    since: float


@dataclass(eq=False)
class Sorted(Generic[Item]):
    """What came of some arrivals."""

    ready: list[tuple[Item, Event]] = field(default_factory=list)  # to be released now, in this order
    replaced: list[Item] = field(default_factory=list)  # held until the same event came again, which is held instead


class Window(Generic[Item]):
    """Holds events back that came before those they follow, each with the source's own item for it.

    >>> window = Window(Reorder(most=2, wait=5.0))
    >>> late, early = Event("ann", 0, (1,)), Event("ann", 1, (0,))
    >>> upcoming = lambda users: {"ann": 0}
    >>> window.sort([("first", early)], upcoming, now=0.0).ready, len(window)
    ([], 1)
    >>> [item for item, _ in window.sort([("second", late)], upcoming, now=1.0).ready]
    ['second', 'first']
    """

    def __init__(self, limits: Reorder) -> None:
        self.limits = limits
        self.stalled: set[str] = set()  # users for whose missing events nobody waits any more
        self._held: dict[str, dict[int, _Held[Item]]] = {}
        self._size = 0
        self.early = 0  # events that were ever held back

    def __len__(self) -> int:
        return self._size

    @property
    def due(self) -> float:
        """When the first of those that wait has waited for too long; infinity where none does."""
        if not self.stalled.isdisjoint(self._held):
            return -math.inf
        found = (one.since for events in self._held.values() for one in events.values())
        return min(found, default=math.inf) + self.limits.wait

    def sort(
        self, arrivals: Sequence[tuple[Item, Event]], upcoming: Upcoming, now: float, hurry: bool = False
    ) -> Sorted[Item]:
        """What of these, and of those that waited, is to be released now; the rest waits.

        Parameters:
            arrivals: in the order they came.
            upcoming: tells the next number of users.
            now: on a clock that never goes back.
            hurry: the one that has waited longest must not wait any more.
        """
        out: Sorted[Item] = Sorted()
        if not self.limits.most:
            out.ready += arrivals
            return out
        numbers = upcoming(event.user for _, event in arrivals if event.seq is not None) if arrivals else {}
        ahead: dict[str, int] = {}
        for item, event in arrivals:
            seq, user = event.seq, event.user
            if seq is None:
                out.ready.append((item, event))
            elif seq > (expected := ahead.get(user, numbers[user])) and user not in self.stalled:
                self._hold(item, event, seq, now, out)
                if len(self._held[user]) > self.limits.most:
                    ahead[user] = self._let_go(user, out)
            else:
                out.ready.append((item, event))
                ahead[user] = max(expected, seq + 1)
                if user in self._held and seq >= expected:
                    ahead[user] = self._follow(user, ahead[user], out)
        self._end_waits(out, now, hurry)
        return out

    def _hold(self, item: Item, event: Event, seq: int, now: float, out: Sorted[Item]) -> None:
        waiting = self._held.setdefault(event.user, {})
        before = waiting.get(seq)
        if before is not None:
            out.replaced.append(before.item)
            now = before.since  # the event has waited since then
        else:
            self._size += 1
            self.early += 1
        waiting[seq] = _Held(item, event, now)

    def _end_waits(self, out: Sorted[Item], now: float, hurry: bool) -> None:
        """Let go of what waited for too long, or is too much; of stalled users whatever they have here."""
        if not self._held:
            return
        for user in list(self._held):
            while user in self._held and (
                user in self.stalled or min(one.since for one in self._held[user].values()) + self.limits.wait <= now
            ):
                self._let_go(user, out)
        while self._held and (hurry or self._size > self.limits.total):
            oldest = min(self._held, key=lambda user: min(one.since for one in self._held[user].values()))
            self._let_go(oldest, out)
            hurry = False

    def _let_go(self, user: str, out: Sorted[Item]) -> int:
        """Wait no more for what is missing before a user's first held event; it goes, and those that follow it."""
        return self._follow(user, min(self._held[user]), out)

    def _follow(self, user: str, seq: int, out: Sorted[Item]) -> int:
        """Let those go that come next, from this number on; the number after the last of them."""
        waiting = self._held[user]
        for passed in [number for number in waiting if number < seq]:  # given up before it
            self._take(waiting, passed, out)
        while seq in waiting:
            self._take(waiting, seq, out)
            seq += 1
        if not waiting:
            del self._held[user]
        return seq

    def _take(self, waiting: dict[int, _Held[Item]], seq: int, out: Sorted[Item]) -> None:
        one = waiting.pop(seq)
        self._size -= 1
        out.ready.append((one.item, one.event))
