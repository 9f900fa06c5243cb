"""Slots of time in a bridge: one release for each slot of every stream, whether something happened in it or not.

The bridge's own clock decides in which slot a message is. When a slot ends, one symbol of each stream is released: that
of the slot's messages, or where there are none `nothing` among names, and the value before among numbers and places.
All streams of a slot are released in one transaction with the number of the slot, so a slot is drawn once, whatever is
cut. Slots that ended while nobody was there are drawn as unknown values, or with `gaps="skip"` given up.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.core.times import MICRO, NOTHING, Slots
from seqveil.engine.calls import MOST_SKIPPED, MOST_WATCHED
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.bridge.payloads import PayloadEvent, Payloads, Refusal

if TYPE_CHECKING:
    from seqveil.interfaces.bridge.core import Core, Message, Outcome

NO_MEAN = "the bridge knows cells of values alone, which have no mean; fit with --slot last or --slot most"
NO_SLOTS = "the state file was begun without slots of time; begin a new one, which spends anew"
NUMBERED = "the state file was begun in slots of time, which bring no numbers; go on without --payload seqveil"
WENT_BACK = "the clock is behind the last slot that was drawn, and nothing is released until it catches up; set it"
LEEWAY = 1.0  # seconds that a clock may be set back and nobody need know
HELD = 8  # messages that are left with the broker until their slot ends; it may send no more than some 20 before


def slots_of(payloads: Payloads) -> Slots | None:
    """The slots in which events of these payloads are released; None where each event is released by itself."""
    slots = None if payloads.form.own else payloads.setting.model.alphabet.slots
    if slots is not None and slots.rule == "mean":
        raise InputError(NO_MEAN)
    return slots


class SlotStreams:
    """Streams of a bridge that are released in slots.

    *Guarantee*: each slot of each stream is drawn once and charged once, and when it is drawn, in which order and what
    its payload looks like depend on the clock and the names of streams alone.
    """

    def __init__(self, core: Core, slots: Slots, clock: Callable[[], float]) -> None:
        self._core, self._slots, self._clock = core, slots, clock
        store, alphabet = core.store, core.store.setting.model.alphabet
        # the code of a slot without messages; None where the value before goes on
        self._nothing = int(alphabet.encode([NOTHING])[0]) if isinstance(alphabet, Alphabet) else None
        limit = MOST_SKIPPED if store.setting.trackers is None else MOST_WATCHED
        self._skips = limit if store.gaps == "skip" else 0  # slots that may be given up at once
        users = [user for user in store.names() if type(user) is str]
        self._next = dict(zip(users, core.next_seqs(users), strict=True))  # the number of each stream's next release
        self._since = self._now()  # of slots before it nobody here knows what happened
        kept = store.position(_place(core))
        if kept is None and users:
            raise InputError(NO_SLOTS)
        self._last = self._since - 1 if kept is None else int(kept)  # the last slot that was drawn
        self._came: list[tuple[int, PayloadEvent]] = []  # and counts in a slot that was not drawn
        self._held: deque[tuple[int, Message]] = deque()  # the latest messages, by slot
        self._values: dict[str, int] = {}  # the last code of each stream, in memory only
        self._stamps: dict[str, float] = {}  # the last time that a payload of each stream brought, in memory only

    @classmethod
    def of(cls, core: Core, clock: Callable[[], float]) -> SlotStreams | None:
        """The streams of a bridge, where it releases in slots; refuses a state file that was begun otherwise."""
        slots = slots_of(core.payloads) if core.link.slotted else None
        if slots is not None:
            return cls(core, slots, clock)
        if core.store.position(_place(core)) is not None:
            raise InputError(NUMBERED)
        return None

    def _now(self) -> int:
        return math.floor(self._clock() * MICRO) // self._slots.step

    def _begin(self, slot: int) -> float:
        return slot * self._slots.step / MICRO

    @property
    def remaining(self) -> float:
        """Seconds until a slot is to be released; 0 where one has ended."""
        return max(0.0, self._begin(self._last + 2) - self._clock())

    def take(self, message: Message, event: PayloadEvent) -> None:
        """Count a message in the slot of now, which it waits for, unless it was counted in one that was drawn."""
        if self._core.numbers.of(event) is not None:
            return
        slot = max(self._now(), self._last + 1)
        if not (event.again and any(each.ident == event.ident for _, each in self._came)):
            if event.stamp is not None and event.stamp <= self._stamps.get(event.user, -math.inf):
                raise Refusal("late")
            if event.stamp is not None:
                self._stamps[event.user] = event.stamp
            if event.user not in self._next:
                self._next[event.user] = self._core.next_seqs([event.user])[0]
            self._came.append((slot, event))
        message.waits += 1
        self._held.append((slot, message))
        if len(self._held) > HELD:
            self._held.popleft()[1].waits -= 1

    def state(self, event: PayloadEvent) -> None:
        """Take a message that the broker had kept for what is the case; it begins no stream."""
        self._values.setdefault(event.user, event.code)

    def repeated(self) -> list[tuple[str, Outcome]]:
        """The releases of the last slot once more: it is not known that all of them were published."""
        begin = self._begin(self._last)
        begun = [user for user in sorted(self._next) if self._next[user]]
        events = [PayloadEvent(user, self._next[user] - 1, UNKNOWN, begin, slot=begin) for user in begun]
        return list(zip(begun, self._core.release(events), strict=True))

    def draw(self) -> list[tuple[str, Outcome]]:
        """Release the slot that ended, or the next one of several; nothing where none has."""
        ended = self._now() - 1
        if self.remaining - self._slots.seconds > LEEWAY:
            self._core.warn(WENT_BACK)
        if ended <= self._last:
            return []
        slot = min(self._last + self._skips + 1, ended)
        came: dict[str, list[PayloadEvent]] = {}
        for number, event in sorted(self._came, key=lambda each: each[0]):
            if number <= slot:
                came.setdefault(event.user, []).append(event)
        self._came = [each for each in self._came if each[0] > slot]
        users = [user for user in sorted(self._next) if self._next[user] or user in came]
        begin, missed, events = self._begin(slot), slot - self._last - 1, []
        for user in users:
            own = [event.code for event in came.get(user, ())]
            code = self._code(user, own) if own or slot >= self._since else UNKNOWN
            seq = self._next[user] + missed if self._next[user] else 0
            events.append(PayloadEvent(user, seq, code, begin, slot=begin))
        for event in events:
            for each in came.get(event.user, ()):
                self._core.numbers.add(each, event.seq or 0)
        outcomes = self._core.release(events, {_place(self._core): slot}) if events else []
        self._last = slot
        for event, outcome in zip(events, outcomes, strict=True):
            if not isinstance(outcome, Refusal):
                self._next[event.user] = (event.seq or 0) + 1
        while self._held and self._held[0][0] <= slot:
            self._held.popleft()[1].waits -= 1
        return list(zip(users, outcomes, strict=True))

    def _code(self, user: str, codes: list[int]) -> int:
        """What stands for a slot: of its messages, or for none."""
        if not codes:
            return self._values.get(user, UNKNOWN) if self._nothing is None else self._nothing
        code = codes[-1]
        if self._slots.rule == "most":
            often = Counter(codes)
            code = max(reversed(codes), key=lambda each: often[each])
        self._values[user] = code
        return code


def _place(core: Core) -> str:
    """The position that has the last slot that was drawn."""
    return f"{core.link.name}:slots"
