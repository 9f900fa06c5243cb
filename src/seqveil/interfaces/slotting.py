"""Slots of time in a bridge: one release for each slot of every stream, whether something happened in it or not.

A model that was fitted in slots (`--every-seconds`) says how long they are. The bridge's own clock decides in which
slot a message is, by when it is taken; the clock of a device, or a time in a payload, does not. When a slot ends, one
symbol of each stream is released: that of the slot's messages, or where there are none the symbol `nothing` among
names, and among numbers and places the value that was there before. All streams of a slot are released in one
transaction with the number of the slot, so a slot is drawn once, whatever is cut. A stream begins with the slot of its
first message, and then never ends.

**After a time away.** Slots that ended while nobody was there are drawn one by one, as values that nobody knows, or
with `gaps="skip"` given up. What was released and may not have been published is published again, byte for byte.
"""

from __future__ import annotations

import json
import math
from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.core.slots import MICRO, NOTHING, Slots
from seqveil.engine.calls import MOST_SKIPPED, MOST_WATCHED
from seqveil.engine.coded import CodeStreams
from seqveil.engine.stream import UNKNOWN, Terms
from seqveil.interfaces.bridge import BridgeResult, Core, Outcome
from seqveil.interfaces.payloads import PayloadEvent, Refusal

NO_MEAN = (
    "the bridge knows the cell of a value and not the value, so it has no mean; fit with --slot last or --slot most"
)
NO_SLOTS = "the state file was begun without slots of time; begin a new one, which spends anew"
NUMBERED = "the state file was begun in slots of time, which bring no numbers; go on without --payload seqveil"

WENT_BACK = (
    "the clock is behind the last slot that was drawn, and nothing is released until it has caught up; set the clock, "
    "and do not begin a new state file, which would spend anew"
)
MANY_ENDED = (
    "several slots have ended since the last one that was drawn; they are drawn now, each at its ε, or given up with "
    "--gaps skip. If that is because the clock jumped ahead, stop the bridge and set the clock first"
)
LEEWAY = 1.0  # seconds that a clock may be set back and nobody need know

Item = TypeVar("Item")  # the source's own for a message


@dataclass(eq=False)
class _Slot(Generic[Item]):
    """What came of one stream in the slot of now. The codes are in no repr."""

    codes: list[int] = field(default_factory=list, repr=False)
    items: list[Item] = field(default_factory=list)
    idents: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Drawn(Generic[Item]):
    """The releases of one slot, and the messages that are settled by them."""

    slot: int
    releases: list[tuple[str, Outcome]]
    items: list[Item]


class SlotStreams(Generic[Item]):
    """Streams of a bridge that are released in slots.

    *Guarantee*: each slot of each stream is drawn once and charged once, and when it is drawn, in which order and what
    its payload looks like depend on the clock and the names of streams alone.

    Parameters:
        core: of the bridge, which releases and counts.
        store: of the same bridge.
        slots: how long they are, and what stands for several messages of one.
        name: of the source, under which slots are kept in the store.
        clock: tells the seconds since 1970.
        most: messages that the source may send again.
    """

    def __init__(
        self,
        core: Core,
        store: CodeStreams,
        slots: Slots,
        name: str,
        clock: Callable[[], float],
        most: int = 1000,
    ) -> None:
        if slots.rule == "mean":
            raise InputError(NO_MEAN)
        self._most = most
        self._core, self._slots, self._name, self._clock = core, slots, f"{name}:slots", clock
        self._nothing = _nothing(store.setting)
        limit = MOST_SKIPPED if store.setting.trackers is None else MOST_WATCHED
        self._skips = limit if store.gaps == "skip" else 0  # slots that may be given up at once
        self._users: list[str] = sorted(user for user in store.names() if type(user) is str)
        self._next = dict(zip(self._users, core.next_seqs(self._users), strict=True))
        kept: dict[str, Any] | None = _kept(store, self._name)
        if kept is None and self._users:
            raise InputError(NO_SLOTS)
        self.last = self._now() - 1 if kept is None else int(kept["last"])  # the last slot that was drawn
        self.published = self.last if kept is None else int(kept["published"])  # slots up to this one are out
        self._odd: str | None = None  # what is wrong with the clock, as it was last said
        self._since = self._now()  # of slots before it nobody here knows what happened
        self._came: dict[int, dict[str, _Slot[Item]]] = {}  # by slot and stream
        self._values: dict[str, int] = {}  # the last code of each stream, in memory only
        self._stamps: dict[str, float] = {}  # the last time that a payload of each stream brought, in memory only

    def _now(self) -> int:
        return math.floor(self._clock() * MICRO) // self._slots.step

    def _begin(self, slot: int) -> float:
        return slot * self._slots.step / MICRO

    @property
    def remaining(self) -> float:
        """Seconds until a slot is to be released; 0 where one has ended."""
        return max(0.0, self._begin(self.last + 2) - self._clock())

    def take(self, item: Item | None, event: PayloadEvent) -> bool:
        """Count a message in the slot of now; False where it was counted in a slot that was drawn.

        Raises `Refusal` for one whose payload says that it is no newer than one before it.

        Parameters:
            item: the source's own for it, given back when its slot is drawn.
            event: what it holds.
        """
        if event.ident is not None:
            if event.again and event.ident in self._core.numbers:
                return False
            self._core.numbers.pop(event.ident, None)  # the source has taken an old name for a new message
        own = self._came.setdefault(max(self._now(), self.last + 1), {}).setdefault(event.user, _Slot())
        if item is not None:
            own.items.append(item)
        if event.again and event.ident in own.idents:
            return True  # it is counted
        if event.stamp is not None:
            if event.stamp <= self._stamps.get(event.user, -math.inf):
                raise Refusal("late")
            self._stamps[event.user] = event.stamp
        self._begin_stream(event.user)
        own.codes.append(event.codes[0])
        if event.ident is not None:
            own.idents.append(event.ident)
        return True

    def _begin_stream(self, user: str) -> None:
        if user not in self._next:
            self._next[user] = self._core.next_seqs([user])[0]  # who was erased and comes back has one
            insort(self._users, user)

    def state(self, event: PayloadEvent) -> None:
        """Take a message that the broker had kept for what is the case; it begins no stream."""
        self._values.setdefault(event.user, event.codes[0])

    def unpublished(self) -> list[tuple[str, Outcome]]:
        """The releases of the last slot once more, where it is not known that they were published."""
        if self.published == self.last:
            return []
        begin = self._begin(self.last)
        events = [
            PayloadEvent(user, self._next[user] - 1, (UNKNOWN,), begin, slot=begin)
            for user in self._users
            if self._next[user]
        ]
        return list(zip((event.user for event in events), self._core.release(events), strict=True))

    def draw(self) -> Drawn[Item] | None:
        """Release the slot that ended, or the next one of several; None where none has."""
        ended = self._now() - 1
        self._look_at_clock(ended - self.last)
        if ended <= self.last:
            return None
        slot = min(self.last + self._skips + 1, ended)
        came = self._until(slot)
        users = [user for user in self._users if self._next[user] or user in came]
        events = [self._event(user, slot, came.get(user)) for user in users]
        for event in events:
            for ident in came[event.user].idents if event.user in came else ():
                self._core.numbers[ident] = event.seq or 0
        self._core.keep(self._most)
        kept = {self._name: json.dumps({"last": slot, "published": self.published})}
        outcomes = self._core.release(events, kept) if events else []
        self.last = slot
        if not events:
            self.published = slot
        for event, outcome in zip(events, outcomes, strict=True):
            if isinstance(outcome, BridgeResult) and event.seq is not None:
                self._next[event.user] = event.seq + 1
        items = [item for own in came.values() for item in own.items]
        return Drawn(slot, [(event.user, out) for event, out in zip(events, outcomes, strict=True)], items)

    def _look_at_clock(self, ended: int) -> None:
        """Say once that the clock went back, so that releases wait, or that several slots are to be drawn at once.

        Parameters:
            ended: slots that ended since the last one that was drawn.
        """
        late = self.remaining - self._slots.seconds
        odd = "back" if late > LEEWAY else "ahead" if ended > 1 else None
        if odd == "back" != self._odd:
            self._core.log("warning", {"reason": WENT_BACK, "seconds": math.ceil(late)})
        elif odd == "ahead" != self._odd:
            self._core.log("warning", {"reason": MANY_ENDED, "slots": ended})
        self._odd = odd

    def _until(self, slot: int) -> dict[str, _Slot[Item]]:
        """What came of each stream up to the end of a slot, and was not counted in one before it."""
        found: dict[str, _Slot[Item]] = {}
        for number in sorted(number for number in self._came if number <= slot):
            for user, own in self._came.pop(number).items():
                whole = found.setdefault(user, _Slot())
                whole.codes += own.codes
                whole.items += own.items
                whole.idents += own.idents
        return found

    def _event(self, user: str, slot: int, own: _Slot[Item] | None) -> PayloadEvent:
        begun, begin, missed = self._next[user], self._begin(slot), slot - self.last - 1
        tracked = own is not None or slot >= self._since
        code = self._code(user, own) if tracked else UNKNOWN
        return PayloadEvent(user, begun + missed if begun else 0, (code,), begin, slot=begin)

    def _code(self, user: str, own: _Slot[Item] | None) -> int:
        """What stands for a slot: of its messages, or for none."""
        if own is None or not own.codes:
            return self._values.get(user, UNKNOWN) if self._nothing is None else self._nothing
        code = own.codes[-1]
        if self._slots.rule == "most":
            often = Counter(own.codes)
            code = max(reversed(own.codes), key=lambda each: often[each])
        self._values[user] = code
        return code


def _nothing(setting: Terms) -> int | None:
    """The code of a slot without messages; None where the value before goes on."""
    alphabet = setting.model.alphabet
    return int(alphabet.encode([NOTHING])[0]) if isinstance(alphabet, Alphabet) else None


def _kept(store: CodeStreams, name: str) -> dict[str, Any] | None:
    kept = store.position(name)
    return None if kept is None else json.loads(str(kept))


def refuse_slots(store: CodeStreams, name: str) -> None:
    """Refuse a state file in slots where messages are to be released one by one."""
    if store.position(f"{name}:slots") is not None:
        raise InputError(NUMBERED)
