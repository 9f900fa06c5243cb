"""The MQTT bridge: raw topics in, released topics out, each event released once. Needs `paho-mqtt` (extra `mqtt`).

An event goes this way: it arrives, is released durably (in one transaction with all that wait beside it), its release
is published, the broker confirms that, and only then is the raw message acknowledged. Cut anywhere, the broker sends
the raw message again; the store then gives the same release back, and the same payload is published again.

A message without a number of its own is known by the number that the broker gave it (its packet identifier, the same
when it comes again) and its user. A message that the broker sends again under both is the same event; in doubt that is
assumed, because a second draw would tell more. An acknowledgement may get lost, so that is kept of as many messages as
the broker has under way at most, and longer where no newer ones came. What a message holds is never compared: that
would mean to write down something computed from it.

`seqveil.interfaces.payloads` has the shapes of payloads, `seqveil.interfaces.bridge` the core.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from seqveil.core.alphabet import OnUnknown
from seqveil.core.errors import InputError
from seqveil.engine.coded import CodeStreams
from seqveil.interfaces.bridge import GROUP, BridgeCounts, BridgeResult, BrokerError, Core, Log, OnRefused, Outcome
from seqveil.interfaces.broker import Arrived, Broker, Changed, Confirmed, Failed, Happening, Link, Stop, address
from seqveil.interfaces.homeassistant import Discovery
from seqveil.interfaces.payloads import MOST_NAME, REASONS, Form, NoEvent, PayloadEvent, Payloads, Refusal
from seqveil.interfaces.slotting import SlotStreams, refuse_slots

__all__ = [
    "REASONS",
    "BridgeCounts",
    "Broker",
    "BrokerError",
    "Form",
    "Link",
    "MqttBridge",
    "PayloadEvent",
    "Payloads",
    "Refusal",
    "Topics",
    "address",
]

IDLE = 1.0  # seconds between looks at the network thread
FINISH = 10.0  # seconds for what was accepted, after being asked to end

IN_SLOT = 8  # messages that are left with the broker until their slot ends; it may send no more than some 20 before

USER = "{user}"


@dataclass(frozen=True)
class Topics:
    """Where raw events come from and releases go to; each pattern has `{user}` as one whole level.

    >>> topics = Topics("home/{user}/raw", "released/{user}")
    >>> topics.subscription, topics.user_of("home/ann/raw"), topics.released_to("ann")
    ('home/+/raw', 'ann', 'released/ann')
    """

    raw: str
    released: str
    errors: str | None = None

    def __post_init__(self) -> None:
        patterns = {"raw": self.raw, "released": self.released, "errors": self.errors}
        given = {name: pattern for name, pattern in patterns.items() if pattern is not None}
        for name, pattern in given.items():
            _check_pattern(name, pattern)
        for (one, pattern), (other, against) in itertools.combinations(given.items(), 2):
            if _may_meet(pattern, against):
                raise InputError(f"the {one} and {other} topics could be the same for some user; tell them apart")

    @property
    def subscription(self) -> str:
        """The topic filter that takes in the raw events of all users."""
        return self.raw.replace(USER, "+")

    @cached_property
    def _around(self) -> tuple[str, str]:
        """What stands before and after the user in a raw topic."""
        before, _, after = self.raw.partition(USER)
        return before, after

    def user_of(self, topic: str) -> str:
        """The user of a raw topic."""
        before, after = self._around
        user = topic[len(before) : len(topic) - len(after)]
        fits = len(topic) > len(before) + len(after) and topic.startswith(before) and topic.endswith(after)
        if not fits or "/" in user or user.startswith("$") or len(user.encode()) > MOST_NAME:
            raise Refusal("topic")
        return user

    def released_to(self, user: str) -> str:
        """Where the releases of a user are published."""
        return self.released.replace(USER, user)

    def errors_to(self, user: str) -> str | None:
        """Where refusals of a user's events are published; None where they are not."""
        return None if self.errors is None else self.errors.replace(USER, user)


def _check_pattern(name: str, pattern: str) -> None:
    levels = pattern.split("/")
    if levels.count(USER) != 1 or any(sign in pattern.replace(USER, "", 1) for sign in "+#{}\0"):
        raise InputError(f"expected a {name} topic with {USER} as one level and no wildcards, as in {name}/{USER}")
    if pattern.startswith("$") or not 0 < len(pattern.encode()) <= 1024:
        raise InputError(f"expected a {name} topic of at most 1024 bytes that does not begin with $")


def _may_meet(one: str, other: str) -> bool:
    """Whether two patterns can name the same topic, with any two users."""
    levels, others = one.split("/"), other.split("/")
    pairs = zip(levels, others, strict=False)
    return len(levels) == len(others) and all(a == b or USER in (a, b) for a, b in pairs)


Kind = Literal["release", "report", "clearing", "announcement"]  # of a message of ours


@dataclass(eq=False)
class _Pending:
    """A raw message (none for a slot) and how many messages of ours the broker must confirm before it is settled."""

    message: Arrived | None = None
    waits: int = 0
    ident: str | None = None  # the broker's name for the event, where it has no number
    in_slot: bool = False  # whether its slot of time is still to be released


class MqttBridge:
    """Releases what arrives on the raw topics of a broker.

    *Guarantee*: each event (a user and a sequence number) that reaches the bridge is drawn once and charged once. Its
    release is on the disk before it is published, and the raw message is acknowledged only after the broker has the
    release. Receivers may get a release more than once, always with the same payload.

    Parameters:
        store: where events are released; its setting says how.
        link: to the broker.
        topics: to read and to write.
        on_unknown: in place of the model's policy, whose "error" means "hide" here.
        on_refused: "report" drops an event that cannot be released and reports it, "stop" ends the bridge and leaves
            it with the broker.
        log: takes an event's name and details, never data or users.
        form: of the payloads.
        discovery: tells Home Assistant of released entities.
        clock: tells the seconds since 1970.

    A model in slots of time, and payloads without numbers: then each stream is released once a slot (`slotting`).
    """

    def __init__(
        self,
        store: CodeStreams,
        link: Link,
        topics: Topics,
        *,
        on_unknown: OnUnknown | None = None,
        on_refused: OnRefused = "report",
        log: Log = lambda event, details: None,
        form: Form | None = None,
        discovery: Discovery | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if discovery is not None and any(_may_meet(topics.raw, topic) for topic in discovery.topics):
            raise InputError("the raw topics could be those of discovery; tell them apart")
        slots, form = store.setting.model.alphabet.slots, form or Form()
        payloads = Payloads(store.setting, on_unknown, form)
        self._core = Core(store, payloads, "mqtt", on_refused, log)
        self.counts: BridgeCounts = self._core.counts
        self._slots: SlotStreams[_Pending] | None = None
        if slots is not None and not form.numbered:
            self._slots = SlotStreams(self._core, store, slots, "mqtt", clock, link.broker.in_flight)
        else:
            refuse_slots(store, "mqtt")
        self._slot, self._slot_sent = _Pending(), 0  # what was published of the last slot, and its number
        self._link, self._topics, self._log, self._discovery = link, topics, log, discovery
        self._clock, self._arrival = clock, -math.inf  # when messages came last, which never goes back
        self._waiting: deque[Arrived] = deque()
        self._unacknowledged: deque[_Pending] = deque()  # in the order they came, in which they must be acknowledged
        self._under_way: dict[int, tuple[Kind, _Pending]] = {}  # our messages, by number
        self._most = 2 * link.broker.in_flight  # messages under way, and waiting at QoS 0
        self._deadline: float | None = None
        self._expected: dict[str, set[str]] = {}  # names of a user's events that have not come again yet
        self._open: set[str] = set()  # names of events that are not acknowledged

    @property
    def waiting(self) -> int:
        """Messages that came and are not released yet."""
        return len(self._waiting)

    @property
    def hidden(self) -> int:
        """Values outside the alphabet in what was released, for the operator alone."""
        return self._core.hidden

    def run(self) -> BridgeCounts:
        """Work until `stop`, or until there is no point in going on."""
        self._link.open()
        if self._slots is not None:
            self._slot_sent = self._slots.last
            self._publish_slot(self._slots.unpublished())
        try:
            while not self._finished():
                ready = self._waiting and len(self._under_way) < self._most
                self._turn(self._link.take(GROUP, 0.0 if ready else self._pause()))
            self._core.close()
        finally:
            self._link.close()
        self._core.report()
        self._log("stopped", asdict(self.counts) | {"left with the broker": len(self._unacknowledged)})
        return self.counts

    def stop(self) -> None:
        """Finish what was accepted and end; may be called from a signal handler."""
        self._link.put(Stop())

    def _pause(self) -> float:
        """Seconds to wait for something to happen: no longer than a slot lasts."""
        return IDLE if self._slots is None or self._slot.waits else min(IDLE, self._slots.remaining)

    def _finished(self) -> bool:
        if self._deadline is None:
            return False
        # what waits for its slot stays with the broker, and what came after it
        idle = not (self._waiting or self._under_way or (self._unacknowledged and self._slots is None))
        return idle or time.monotonic() > self._deadline

    def _turn(self, happenings: list[Happening]) -> None:
        if not happenings and not self._link.alive:
            raise BrokerError("the connection to the broker ended unexpectedly; start the bridge again")
        for happening in happenings:
            self._note(happening)
        self._end_slot()
        if self._waiting and len(self._under_way) < self._most:
            self._release([self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))])
        self._acknowledge()
        self._core.report()

    def _end_slot(self) -> None:
        """Release a slot that has ended, once all of the one before is at the broker."""
        if self._slots is None or self._slot.waits or self._deadline is not None:
            return
        self._slots.published = self._slot_sent
        drawn = self._slots.draw()
        if drawn is None:
            return
        for pending in drawn.items:
            pending.in_slot = False
        self._slot_sent = drawn.slot
        self._publish_slot(drawn.releases)

    def _publish_slot(self, releases: list[tuple[str, Outcome]]) -> None:
        for user, outcome in releases:
            if isinstance(outcome, Refusal):
                self._refuse(self._slot, user, outcome)
            elif outcome is not None:
                self._publish(self._slot, user, outcome)

    def _note(self, happening: Happening) -> None:
        if isinstance(happening, Arrived):
            self._accept(happening)
        elif isinstance(happening, Confirmed):
            self._confirm(happening)
        elif isinstance(happening, Changed):
            self._log(happening.event, happening.detail)
            if happening.event == "connected":
                self._expect(happening.detail.get("session") == "new")
        elif isinstance(happening, Failed):
            raise BrokerError(happening.why)
        elif self._deadline is None:
            self._deadline = time.monotonic() + FINISH
            self._log("stopping", {"waiting": len(self._waiting), "under way": len(self._under_way)})

    def _expect(self, new: bool) -> None:
        """A connection begins: what was not acknowledged before comes again first, unless the session is new."""
        if new:
            self._core.forget()
        self._expected, self._open = {}, set()
        for ident in self._core.numbers:
            self._expected.setdefault(ident.partition("/")[2], set()).add(ident)

    def _named(self, event: PayloadEvent, message: Arrived) -> PayloadEvent:
        """The event under the broker's name for it.

        The broker sends what was not acknowledged again before anything new of the same topic. So with a user's first
        new message, whatever of theirs has not come again was acknowledged, and its name is free.
        """
        ident = f"{message.mid}/{event.user}"
        if message.again:
            self._expected.get(event.user, set()).discard(ident)
        else:
            self._core.confirmed(self._expected.pop(event.user, ()))
        event.ident, event.again = ident, message.again
        return event

    def _accept(self, message: Arrived) -> None:
        if self._deadline is not None:
            return  # not acknowledged, so it comes again next time
        if not message.reliable:
            self.counts.unreliable += 1
            self._core.warn("messages at QoS 0 may get lost on the way; devices should publish with QoS 1")
            if len(self._waiting) >= self._most:
                self._core.refuse(Refusal("load"))
                return
        self._waiting.append(message)

    def _release(self, messages: list[Arrived]) -> None:
        """Release what these messages hold and publish it."""
        readable: list[tuple[_Pending, PayloadEvent]] = []
        arrival = self._arrival = max(self._arrival, self._clock())
        for message in messages:
            if message.reliable and message.connection != self._link.connection:
                continue  # the broker sends it again
            pending = _Pending(message)
            self.counts.received += 1
            if message.reliable:
                self._unacknowledged.append(pending)
            if not message.payload:
                continue  # that is how a retained message is cleared
            event = self._read(pending, message, arrival)
            if event is not None:
                readable.append((pending, event))
        if self._slots is not None:
            self._take(readable, self._slots)
            return
        made = self._core.release([event for _, event in readable])
        self._core.keep(self._link.broker.in_flight, self._may_come)
        for (pending, event), outcome in zip(readable, made, strict=True):
            if isinstance(outcome, Refusal):
                self._refuse(pending, event.user, outcome)
            elif outcome is not None:
                self._publish(pending, event.user, outcome)

    def _may_come(self, ident: str) -> bool:
        """Whether a message was not acknowledged, or not since the connection began, so that it may come again.

        No more than `in_flight` should, but Mosquitto sends more after it was restarted.
        """
        return ident in self._open or ident in self._expected.get(ident.partition("/")[2], ())

    def _take(self, readable: list[tuple[_Pending, PayloadEvent]], slots: SlotStreams[_Pending]) -> None:
        """Count messages in their slot, with which they are settled."""
        for pending, event in readable:
            try:
                pending.in_slot = slots.take(pending, event)
            except Refusal as refusal:
                self._refuse(pending, event.user, refusal)

    def _read(self, pending: _Pending, message: Arrived, arrival: float) -> PayloadEvent | None:
        user = None
        kept, form = message.retained, self._core.payloads.form
        try:
            user = self._topics.user_of(message.topic)
            if kept and form.retained == "refuse":
                raise Refusal("retained")
            event = self._core.payloads.read(user, message.payload, None if form.numbered else arrival)
        except Refusal as refusal:
            self._refuse(pending, user, refusal)
            if refusal.reason == "retained":
                self._send("clearing", pending, message.topic, b"")
            return None
        except NoEvent:
            self.counts.states += 1
            return None
        if kept and form.retained == "state":
            self.counts.states += 1
            if self._slots is not None:
                self._slots.state(event)
            return None
        if form.numbered or not message.reliable:
            return event
        event = self._named(event, message)
        pending.ident = event.ident
        self._open.add(event.ident or "")
        return event

    def _publish(self, pending: _Pending, user: str, made: BridgeResult) -> None:
        topic = self._topics.released_to(user)
        found = None if self._discovery is None else self._discovery.announcement(user, topic)
        if found is not None:
            self._send("announcement", pending, *found)
        self._send("release", pending, topic, made.payload)

    def _refuse(self, pending: _Pending, user: str | None, refusal: Refusal) -> None:
        self._core.refuse(refusal)
        topic = None if user is None else self._topics.errors_to(user)
        if topic is not None:
            self._send("report", pending, topic, refusal.payload())

    def _send(self, kind: Kind, pending: _Pending, topic: str, payload: bytes) -> None:
        pending.waits += 1
        retain = kind in ("clearing", "announcement")
        self._under_way[self._link.publish(topic, payload, retain=retain)] = kind, pending

    def _confirm(self, confirmed: Confirmed) -> None:
        kind, pending = self._under_way.pop(confirmed.mid)
        if confirmed.refused is not None and kind == "release":
            raise BrokerError(f"the broker refuses a release ({confirmed.refused}); check its ACL and limits")
        pending.waits -= 1
        if confirmed.refused is not None:
            self._core.warn(f"the broker refuses a {kind} ({confirmed.refused}); check its ACL")
        elif kind == "clearing":
            self.counts.cleared += 1
            self._core.warn("a retained raw message was taken off the broker; devices must publish without retain")

    def _acknowledge(self) -> None:
        while self._unacknowledged and not self._unacknowledged[0].waits:
            if self._unacknowledged[0].in_slot and len(self._unacknowledged) <= IN_SLOT:
                break
            first = self._unacknowledged.popleft()
            if first.message is not None and self._link.acknowledge(first.message):
                self.counts.acknowledged += 1
                self._open.discard(first.ident or "")
