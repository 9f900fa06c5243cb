"""Raw topics in, released topics out, through the store.

An event goes this way: it arrives, is released durably (in one transaction with all that wait beside it), its release
is published, the broker confirms that, and only then is the raw message acknowledged. Cut anywhere, the broker sends
the raw message again; the store then gives the same release back, and the same payload is published again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from seqveil.core.alphabet import OnUnknown
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.mqtt.link import Arrived, BrokerError, Changed, Confirmed, Failed, Happening, Link, Stop
from seqveil.interfaces.mqtt.messages import Event, Payloads, Refusal, Topics
from seqveil.release.stream import UNKNOWN
from seqveil.release.streams import OutOfOrder, Streams, taken

GROUP = 1000  # events of a transaction, at most
IDLE = 1.0  # seconds between looks at the network thread
REPORT = 60.0  # seconds between lines about progress
FINISH = 10.0  # seconds for what was accepted, after being asked to end

OnRefused = Literal["report", "stop"]
Log = Callable[[str, dict[str, object]], None]


@dataclass
class Counts:
    """What the bridge did since it started, for its operator."""

    received: int = 0  # messages that were looked at, each time they came
    released: int = 0  # events drawn
    repeated: int = 0  # events that had been released before, published again
    acknowledged: int = 0
    unreliable: int = 0  # came at QoS 0, so they may get lost on the way
    cleared: int = 0  # retained raw messages taken off the broker
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    unknown: int = 0  # values outside the alphabet in events drawn; in no release, and for the operator alone


@dataclass(eq=False)
class _Pending:
    """A raw message and how many messages of ours the broker must confirm before it is acknowledged."""

    message: Arrived
    waits: int = 0


@dataclass(frozen=True)
class _Sent:
    """A message of ours that is under way."""

    kind: Literal["release", "report", "clearing"]
    of: _Pending


class Bridge:
    """Releases what arrives on the raw topics of a broker.

    *Guarantee*: each event (a user and a sequence number) that reaches the bridge is drawn once and charged once. Its
    release is on the disk before it is published, and the raw message is acknowledged only after the broker has the
    release. Receivers may get a release more than once, always with the same payload.

    Parameters: the store, whose setting says what is released and how; the link to the broker; the topics; `on_unknown`
    in place of the model's policy, whose "error" means "hide" here; `on_refused`: "report" drops an event that cannot
    be released and reports it, "stop" ends the bridge and leaves it with the broker; `log` takes an event's name and
    details, never data or users.
    """

    def __init__(
        self,
        store: Streams,
        link: Link,
        topics: Topics,
        *,
        on_unknown: OnUnknown | None = None,
        on_refused: OnRefused = "report",
        log: Log = lambda event, details: None,
    ) -> None:
        if on_refused not in ("report", "stop"):
            raise InputError('expected on_refused to be "report" or "stop"')
        self.counts = Counts()
        self._store, self._link, self._topics, self._log = store, link, topics, log
        self._payloads, self._on_refused = Payloads(store.setting, on_unknown), on_refused
        self._waiting: deque[Arrived] = deque()
        self._unacknowledged: deque[_Pending] = deque()  # in the order they came, in which they must be acknowledged
        self._under_way: dict[int, _Sent] = {}
        self._most = 2 * link.broker.in_flight  # messages under way, and waiting at QoS 0
        self._deadline: float | None = None
        self._refusals: Counter[str] = Counter()  # of this turn
        self._warned: set[str] = set()
        self._reported = (time.monotonic(), 0)

    def run(self) -> Counts:
        """Work until `stop`, or until there is no point in going on."""
        self._link.open()
        try:
            while not self._finished():
                ready = self._waiting and len(self._under_way) < self._most
                self._turn(self._link.take(GROUP, 0.0 if ready else IDLE))
        finally:
            self._link.close()
        self._report()
        self._log("stopped", asdict(self.counts) | {"left with the broker": len(self._unacknowledged)})
        return self.counts

    def stop(self) -> None:
        """Finish what was accepted and end; may be called from a signal handler."""
        self._link.put(Stop())

    def _finished(self) -> bool:
        if self._deadline is None:
            return False
        idle = not (self._waiting or self._under_way or self._unacknowledged)
        return idle or time.monotonic() > self._deadline

    def _turn(self, happenings: list[Happening]) -> None:
        if not happenings and not self._link.alive:
            raise BrokerError("the connection to the broker ended unexpectedly; start the bridge again")
        for happening in happenings:
            self._note(happening)
        if self._waiting and len(self._under_way) < self._most:
            self._release([self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))])
        self._acknowledge()
        self._report()

    def _note(self, happening: Happening) -> None:
        if isinstance(happening, Arrived):
            self._accept(happening)
        elif isinstance(happening, Confirmed):
            self._confirm(happening)
        elif isinstance(happening, Changed):
            self._log(happening.event, happening.detail)
        elif isinstance(happening, Failed):
            raise BrokerError(happening.why)
        elif self._deadline is None:
            self._deadline = time.monotonic() + FINISH
            self._log("stopping", {"waiting": len(self._waiting), "under way": len(self._under_way)})

    def _accept(self, message: Arrived) -> None:
        if self._deadline is not None:
            return  # not acknowledged, so it comes again next time
        if not message.reliable:
            self.counts.unreliable += 1
            self._warn("messages at QoS 0 may get lost on the way; devices should publish with QoS 1")
            if len(self._waiting) >= self._most:
                self._refusals["load"] += 1
                return
        self._waiting.append(message)

    def _release(self, messages: list[Arrived]) -> None:
        """Release what these messages hold and publish it."""
        readable: list[tuple[_Pending, Event]] = []
        for message in messages:
            if message.reliable and message.connection != self._link.connection:
                continue  # the broker sends it again
            pending = _Pending(message)
            self.counts.received += 1
            if message.reliable:
                self._unacknowledged.append(pending)
            if not message.payload:
                continue  # that is how a retained message is cleared
            event = self._read(pending)
            if event is not None:
                readable.append((pending, event))
        for (pending, event), made in zip(readable, self._made([event for _, event in readable]), strict=True):
            if isinstance(made, Refusal):
                self._refuse(pending, event.user, made)
            else:
                self._send("release", pending, self._topics.released_to(event.user), made)

    def _read(self, pending: _Pending) -> Event | None:
        message, user = pending.message, None
        try:
            user = self._topics.user_of(message.topic)
            if message.retained:
                raise Refusal("retained")
            return self._payloads.read(user, message.payload)
        except Refusal as refusal:
            self._refuse(pending, user, refusal)
        if message.retained:
            self._send("clearing", pending, message.topic, b"")
        return None

    def _made(self, events: list[Event]) -> list[bytes | Refusal]:
        """Released payloads, committed. Before it draws the store refuses a call that cannot be: it goes in halves."""
        if not events:
            return []
        try:
            return self._committed(events)
        except InputError as error:
            if len(events) == 1:
                return [self._refusal(events[0], error)]
        half = len(events) // 2
        return self._made(events[:half]) + self._made(events[half:])

    def _committed(self, events: list[Event]) -> list[bytes | Refusal]:
        users, seqs = [event.user for event in events], [event.seq for event in events]
        times, write = [event.time for event in events], self._payloads
        out: list[bytes | Refusal] = []
        in_batches = self._store.setting.in_batches
        raw: list[Any] = [event.codes if in_batches else event.codes[0] for event in events]
        made = taken(lambda: self._store.release(users, raw, seqs, times))
        replayed, refused, epsilons = made.replayed.tolist(), made.refused.tolist(), made.epsilons.tolist()
        paths, symbols = (made.paths, made.symbols) if in_batches else ([], [])
        for k, seq in enumerate(seqs):
            if in_batches:
                out.append(write.batch(seq, symbols[k].tolist(), epsilons[k], paths[k]))
            else:
                out.append(write.symbol(seq, int(made.codes[k]), epsilons[k]))
        self.counts.repeated += sum(replayed)
        self.counts.released += len(events) - sum(replayed) - sum(refused)
        drawn = (event.codes for event, *no in zip(events, replayed, refused, strict=True) if not any(no))
        self.counts.unknown += sum(codes.count(UNKNOWN) for codes in drawn)
        return [Refusal("budget", seq) if no else told for seq, no, told in zip(seqs, refused, out, strict=True)]

    def _refusal(self, event: Event, error: Exception) -> Refusal:
        if isinstance(error, OutOfOrder):
            refusal = Refusal("order", event.seq)
            refusal.upcoming = int(self._store.next_seqs([event.user])[0])
            return refusal
        return Refusal("event", event.seq)

    def _refuse(self, pending: _Pending, user: str | None, refusal: Refusal) -> None:
        self._refusals[refusal.reason] += 1
        if self._on_refused == "stop" and refusal.reason != "retained":
            raise DataError(f"message {self.counts.received} was refused and left with the broker: {refusal}")
        topic = None if user is None else self._topics.errors_to(user)
        if topic is not None:
            self._send("report", pending, topic, refusal.payload())

    def _send(
        self, kind: Literal["release", "report", "clearing"], pending: _Pending, topic: str, payload: bytes
    ) -> None:
        pending.waits += 1
        self._under_way[self._link.publish(topic, payload, retain=kind == "clearing")] = _Sent(kind, pending)

    def _confirm(self, confirmed: Confirmed) -> None:
        sent = self._under_way.pop(confirmed.mid)
        if confirmed.refused is not None and sent.kind == "release":
            raise BrokerError(f"the broker refuses a release ({confirmed.refused}); check its ACL and limits")
        sent.of.waits -= 1
        if confirmed.refused is not None:
            self._warn(f"the broker refuses a {sent.kind} ({confirmed.refused}); check its ACL")
        elif sent.kind == "clearing":
            self.counts.cleared += 1
            self._warn("a retained raw message was taken off the broker; devices must publish without retain")

    def _warn(self, text: str) -> None:
        """Log a warning, once: what repeats is in the counts."""
        if text not in self._warned:
            self._warned.add(text)
            self._log("warning", {"reason": text})

    def _acknowledge(self) -> None:
        while self._unacknowledged and not self._unacknowledged[0].waits:
            self.counts.acknowledged += self._link.acknowledge(self._unacknowledged.popleft().message)

    def _report(self) -> None:
        if self._refusals:
            self._log("refused", {"reasons": dict(self._refusals), "messages so far": self.counts.received})
            self.counts.refused = dict(self._refusals + Counter(self.counts.refused))
            self._refusals.clear()
        now = time.monotonic()
        if now - self._reported[0] > REPORT and self.counts.received > self._reported[1]:
            self._reported = (now, self.counts.received)
            self._log("progress", asdict(self.counts))
