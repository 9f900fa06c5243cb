"""The core of all bridges: *link → Streams → link*. One loop takes messages, releases what they hold, and publishes it.

A link (`mqtt`, `kafka`) is a source and a sink. It says whose a message is, what its broker calls it and whether it may
have come before; it publishes what comes back, and settles messages when the broker has that for good. What a message
holds is never compared: that would mean to write down something computed from it.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.engine.calls import OutOfOrder
from seqveil.engine.store import LATEST, NUMBERS, Damaged, Erased, Position, Releases
from seqveil.engine.stream import UNKNOWN
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.payloads import NoEvent, PayloadEvent, Payloads, Refusal
from seqveil.interfaces.bridge.slots import SlotStreams
from seqveil.interfaces.events import EventJob, release_together
from seqveil.interfaces.logs import log

if TYPE_CHECKING:
    from seqveil.interfaces.bridge.kafka import KafkaLink
    from seqveil.interfaces.bridge.mqtt import MqttLink

    Link: TypeAlias = KafkaLink | MqttLink

GROUP = 1000  # events of a transaction, at most
KEPT = 4 * GROUP  # events that notes are kept of: a broker that was restarted sends more again than it had under way
IDLE = 1.0  # seconds that a link waits for messages
OPEN = -1  # in place of the number of an event that nothing was decided about

Outcome = bytes | Refusal | None  # what is to be published of an event; None: nothing


class BrokerError(SeqveilError):
    """The broker does not let the bridge work; nothing that it has not acknowledged is lost."""


@dataclass
class BridgeCounts:
    """What the bridge did since it started, for its operator."""

    received: int = 0  # messages that were looked at, each time they came
    released: int = 0  # events drawn
    repeated: int = 0  # events that had been released before
    acknowledged: int = 0
    states: int = 0  # messages that said what was the case, and were no event
    refused: Counter[str] = field(default_factory=Counter)  # by reason


@dataclass(slots=True, eq=False)  # not frozen: that takes longer, and there is one for each message
class Message:
    """A raw message, or a slot's releases under way. What it holds is in no repr."""

    user: str | None = field(default=None, repr=False)  # None: it names nobody
    payload: bytes = field(default=b"", repr=False)
    time: float | None = None  # when it was sent, where the broker says it
    ident: str | None = None  # what the broker calls it, the same when it comes again; None: it cannot come again
    again: bool = False  # the broker says that it may have come before
    retained: bool = False  # the broker had kept it
    waits: int = 0  # what must happen before it is settled
    handle: Any = field(default=None, repr=False)  # the link's own


class Numbers:
    """What became of events, by what the broker calls them: their numbers, or why they were refused; the latest `KEPT`
    ones, each kept in the transaction of its round. Cut anywhere, an event that comes again has the same outcome."""

    def __init__(self, store: CodeStreams, name: str) -> None:
        self._store, self._name, self._known = store, name, dict[str, int | list[Any]]()
        self._count = int(store.position(f"{name}:numbered") or 0)  # so far; the next one takes the oldest one's place
        self._unsaved: dict[str, Position] = {}
        for count in range(max(0, self._count - KEPT), self._count):
            for ident, note in json.loads(str(store.position(self._place(count)) or "{}")).items():
                self._remember(ident, note)

    def of(self, event: PayloadEvent) -> int | Refusal | None:
        """What became of an event when it came before; None where it is new, as far as is known."""
        note = self._known.get(event.ident) if event.again and event.ident is not None else None
        return Refusal(*note) if isinstance(note, list) else note

    def add(self, event: PayloadEvent, outcome: int | Refusal) -> None:
        """Note what became of an event that is new; a name that the broker uses anew is that of the new one."""
        note = [outcome.reason, outcome.seq, outcome.upcoming] if isinstance(outcome, Refusal) else outcome
        if event.ident is not None and self.of(event) is None and self._known.get(event.ident) != note:
            self._remember(event.ident, note)
            self._unsaved[self._place(self._count)] = json.dumps({event.ident: note})
            self._count += 1

    def unsaved(self) -> dict[str, Position]:
        """What is to be kept with the next transaction."""
        return self._unsaved | {f"{self._name}:numbered": self._count} if self._unsaved else {}

    def saved(self) -> None:
        """A transaction has kept them."""
        self._unsaved = {}

    def forget(self) -> None:
        """The broker has forgotten what it sent: nothing of that comes again."""
        if self._known:
            self._known, self._unsaved, self._count = {}, {}, 0
            self._store.release([], [], [], None, {f"{self._name}:numbered": 0})

    def _remember(self, ident: str, note: int | list[Any]) -> None:
        self._known.pop(ident, None)
        self._known[ident] = note
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    def _place(self, count: int) -> str:
        return f"{self._name}:{count % KEPT}{NUMBERS}"


class Core:
    """Releases the events of one link.

    *Guarantee*: each event is drawn once and charged once. What `release` returns is on the disk; asked again before
    it was settled, also after a crash, the same event gives the same payload. Whether something is published of an
    event does not depend on its value.

    The log takes an event's name and details, never data or users. With a model in slots of time, and payloads that are
    not seqveil's own, each stream is released once a slot (`slots`), where the link can do that.
    """

    def __init__(
        self,
        store: CodeStreams,
        payloads: Payloads,
        link: Link,
        log: Callable[..., None] = log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.payloads, self.link = store, payloads, link
        self.log = log
        self.counts, self.numbers = BridgeCounts(), Numbers(store, link.name)
        self.hidden = 0  # values outside the alphabet; follows from raw data, so it is in no log and no metric
        self._clock, self._arrival = clock, -math.inf  # when messages came last, which never goes back
        self._warned, self._said = set[str](), Counter[str]()  # warnings, and refusals by reason, that the log has
        self._slots, self._sent = SlotStreams.of(self, clock), Message()  # what is under way of the last slot

    def run(self) -> BridgeCounts:
        """Work until `stop`, or until there is no point in going on."""
        slots = self._slots
        try:
            self.link.open(self)
            self._publish_slot([] if slots is None else slots.repeated())
            while not self.link.finished:
                # no slot is drawn before the broker has all of the one before
                self.round(self.link.receive(IDLE if slots is None or self._sent.waits else min(IDLE, slots.remaining)))
                if slots is not None and not self._sent.waits:
                    self._publish_slot(slots.draw())
                    self.link.settle([])
                self.report()
        finally:
            self.link.close()
        self.log("stopped", **vars(self.counts))
        return self.counts

    def round(self, messages: Sequence[Message]) -> None:
        """Release what these messages hold, publish it, and settle them."""
        if not messages:
            return
        arrival = self._arrival = max(self._arrival, self._clock())
        self.counts.received += len(messages)
        read = [(message, self._read(message, arrival)) for message in messages]
        events = [(message, event) for message, event in read if event is not None]
        made = self.release([event for _, event in events], self.link.positions(messages))
        for (message, event), outcome in zip(events, made, strict=True):
            self._answer(message, event.user, outcome)
        self.link.settle(messages)

    def _read(self, message: Message, arrival: float) -> PayloadEvent | None:
        """The event in a message; None where there is none to be released now."""
        try:
            if message.user is None:
                raise Refusal(self.link.nobody)
            if message.retained and self.payloads.form.own:
                raise Refusal("retained")
            if not message.payload:  # that is how something kept is taken off
                raise NoEvent
            event = self.payloads.read(message.user, message.payload, message.time or arrival)
            if message.ident is not None:
                event.ident, event.again = f"{message.ident}/{event.user}", message.again
            if message.retained:  # it says what is the case
                if self._slots is not None:
                    self._slots.state(event)
                raise NoEvent
            if self._slots is not None:
                self._slots.take(message, event)
            elif self.link.certain and event.again and self.numbers.of(event) is None:
                self.counts.repeated += 1  # released and published before, or by another message
            else:
                return event
        except Refusal as refusal:
            self._answer(message, message.user, refusal)
        except NoEvent:
            self.counts.states += 1
        return None

    def _publish_slot(self, releases: Iterable[tuple[str, Outcome]]) -> None:
        for user, outcome in releases:
            self._answer(self._sent, user, outcome)

    def _answer(self, message: Message, user: str | None, outcome: Outcome) -> None:
        if isinstance(outcome, Refusal):
            self.counts.refused[outcome.reason] += 1
            self.link.refuse(message, user, outcome)
        elif outcome is not None and user is not None:
            self.link.release(message, user, outcome)

    def release(self, events: Sequence[PayloadEvent], positions: Mapping[str, Position] | None = None) -> list[Outcome]:
        """Release events, in the order they came; what is to be published of each. Positions are kept with them."""
        kept, saved = dict(positions or {}), dict[str, Position]()
        outcomes: list[Outcome] = [self._refused_before(event, kept) for event in events]
        left = [k for k, each in enumerate(outcomes) if each is None]

        def noted(jobs: Sequence[EventJob], made: Releases) -> Mapping[str, Position]:
            """What is saved in their transaction."""
            nonlocal saved
            self._note(turns, {id(job) for job, old in zip(jobs, made.replayed, strict=True) if not old})
            saved = kept | self.numbers.unsaved()
            return saved

        while left:
            turns = self._numbered([events[k] for k in left])
            # one that cannot be released holds up no other
            release_together(self.store, [job for _, job in turns], noted)
            self._note(turns, set())
            moved_up = []
            for k, (event, job) in zip(left, turns, strict=True):
                if event.seq is None and isinstance(job.outcome, OutOfOrder):
                    moved_up.append(k)  # one before it was refused, whose number is free now
                else:
                    outcomes[k] = self._refusal(event, job) or self._payload(event, job)
            if len(moved_up) == len(left):
                raise DataError("events could not be numbered; start the bridge again")
            left = moved_up
        if (unsaved := kept | self.numbers.unsaved()) != saved:
            self.store.release([], [], [], None, unsaved)
        self.numbers.saved()
        return outcomes

    def _refused_before(self, event: PayloadEvent, kept: dict[str, Position]) -> Refusal | None:
        """Why an event was refused when it came before, or that it is late; else its time is kept."""
        known = self.numbers.of(event)
        event.again = event.again and known != OPEN
        if event.stamp is None or known is not None:
            return known if isinstance(known, Refusal) else None
        place = f"{self.link.name}{LATEST}{event.user}"
        latest = kept.get(place) or self.store.position(place)
        if latest is not None and event.stamp <= float(latest):
            self.numbers.add(event, late := Refusal("late"))
            return late
        kept[place] = repr(event.stamp)
        return None

    def _note(self, turns: Sequence[tuple[PayloadEvent, EventJob]], drawn: set[int]) -> None:
        """Note what becomes of events, of which those with these jobs are being drawn: read again, each has the same
        outcome, whatever came after it. A number of its sender's says enough where it may be published again."""
        for event, job in turns:
            if (self.link.certain or event.seq is None) and not isinstance(job.outcome, Releases):
                self.numbers.add(event, job.seqs[0] if id(job) in drawn else self._refusal(event, job) or OPEN)

    def _numbered(self, events: Sequence[PayloadEvent]) -> list[tuple[PayloadEvent, EventJob]]:
        """The events with their numbers, each to be released by itself."""
        users = list(dict.fromkeys(event.user for event in events if event.seq is None))
        upcoming = dict(zip(users, self.next_seqs(users), strict=True))
        turns = []
        for event in events:
            following, known, seq = upcoming.get(event.user, 0), self.numbers.of(event), event.seq
            if seq is None:
                seq = min(known, following) if isinstance(known, int) else following  # never one that leaves others out
            if seq == following or (seq > following and self.store.gaps == "skip"):
                upcoming[event.user] = seq + 1
            turns.append((event, EventJob([event.user], [seq], [event.code], [event.time])))
        return turns

    def next_seqs(self, users: Sequence[str]) -> list[int]:
        """The next number of each user as the store has it; 0 for one whose records are damaged, who is refused."""
        try:
            return self.store.next_seqs(users).tolist() if users else []
        except Damaged:
            return [0] if len(users) == 1 else [seq for user in users for seq in self.next_seqs([user])]

    def _refusal(self, event: PayloadEvent, job: EventJob) -> Refusal | None:
        """Why an event is refused; None where it is not, or may be released under another number."""
        made, seq = job.outcome, job.seqs[0]
        if isinstance(made, OutOfOrder):
            return None if event.seq is None else Refusal("order", seq, made.upcoming)
        if isinstance(made, InputError):
            timed = self.store.setting.budget.seconds is not None  # then times that go back are all it can be
            return Refusal("late" if timed else "event", seq)
        if isinstance(made, Damaged) and event.user in made.users:  # all others go on
            return Refusal("erased" if isinstance(made, Erased) else "damaged", event.seq)
        return None

    def _payload(self, event: PayloadEvent, job: EventJob) -> bytes | None:
        made = job.outcome
        if not isinstance(made, Releases):  # the disk's trouble, say: the broker keeps the raw messages
            raise made or DataError("an event came back without its release; start the bridge again")
        repeated = bool(made.replayed[0])
        self.counts.repeated += repeated
        self.counts.released += not repeated
        self.hidden += not repeated and event.code == UNKNOWN
        if repeated and self.link.certain and not event.again:  # it was published, and the sender has sent it twice
            return None
        return self.payloads.write(job.seqs[0], int(made.codes[0]), float(made.epsilons[0]), event)

    def warn(self, text: str) -> None:
        """Log a warning, once: what repeats is in the counts."""
        if text not in self._warned:
            self._warned.add(text)
            self.log("warning", "warning", reason=text)

    def report(self) -> None:
        """Log what was refused since the last time."""
        refused = self.counts.refused - self._said
        if refused:
            self.log("refused", reasons=refused, received=self.counts.received)
            self._said = self.counts.refused.copy()
