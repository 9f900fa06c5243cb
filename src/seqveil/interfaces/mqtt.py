"""The MQTT bridge: raw topics in, released topics out, each event released once. Needs `paho-mqtt` (extra `mqtt`).

An event goes this way: it arrives, is released durably (in one transaction with all that wait beside it), its release
is published, the broker confirms that, and only then is the raw message acknowledged. Cut anywhere, the broker sends
the raw message again; the store then gives the same release back, and the same payload is published again.

In:  `{"seq": 0, "value": "b"}`, with `"time"` where the budget counts in seconds (see `seqveil.core.times`);
     `{"seq": 0, "values": [...]}` where releases are batches. Other members are ignored. A value outside the alphabet,
     null and NaN among them, is released like any other, by a draw from what everyone expects there: nobody who gets
     releases can tell.
Out: `{"seq": 0, "value": "a", "epsilon": 1.0}`; for batches `"values"` and `"path"`. The value is null where nothing
     was released: the budget is spent, or the event came after its place was given up.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from seqveil.core.alphabet import OnUnknown
from seqveil.core.errors import BudgetSpent, DataError, InputError
from seqveil.core.times import check_clock, seconds
from seqveil.interfaces.broker import (
    Arrived,
    Broker,
    BrokerError,
    Changed,
    Confirmed,
    Failed,
    Happening,
    Link,
    Stop,
    address,
)
from seqveil.interfaces.events import Job, Wording, release_together
from seqveil.release.batches import encode_path
from seqveil.release.setting import refuse_restarts
from seqveil.release.stream import UNKNOWN, Setting
from seqveil.release.streams import OutOfOrder, Releases, Streams

__all__ = ["REASONS", "Bridge", "Broker", "BrokerError", "Counts", "Link", "Payloads", "Topics", "address"]

GROUP = 1000  # events of a transaction, at most
IDLE = 1.0  # seconds between looks at the network thread
REPORT = 60.0  # seconds between lines about progress
FINISH = 10.0  # seconds for what was accepted, after being asked to end

USER = "{user}"
MOST_BYTES = 64 << 10  # of a raw payload
MOST_NAME = 256  # bytes of a user's name
MOST_SEQ = 2**62

REASONS = {
    "retained": "raw data must not be retained; publish it without the retain flag",
    "topic": f"the topic holds no user of 1 to {MOST_NAME} bytes that begins with no $",
    "size": f"the payload is longer than {MOST_BYTES} bytes",
    "json": "the payload is not a JSON object",
    "seq": "expected seq, a whole number that counts from 0",
    "shape": "expected value (or values, a list, where releases are batches)",
    "time": "expected time, in seconds, in ms, µs or ns since 1970, or as ISO 8601 text, at most a day ahead of now",
    "order": "events before this one are missing; send those first, from next on",
    "budget": "the budget is spent",
    "event": "the event cannot be released as it is",
    "load": "more messages at QoS 0 than can be held; publish with QoS 1",
}


class Refusal(Exception):
    """An event that is not released: why, and where it stood; never what it held."""

    def __init__(self, reason: str, seq: int | None = None, upcoming: int | None = None) -> None:
        super().__init__(REASONS[reason])
        self.reason, self.seq = reason, seq
        self.upcoming = upcoming  # the sequence number that the user's next event must have

    def payload(self) -> bytes:
        """What the device is told."""
        said = {"seq": self.seq, "reason": self.reason, "detail": str(self)}
        return _text(said if self.upcoming is None else said | {"next": self.upcoming})


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

    def user_of(self, topic: str) -> str:
        """The user of a raw topic."""
        place, levels = self.raw.split("/").index(USER), topic.split("/")
        user = levels[place] if place < len(levels) else ""
        if self.raw.replace(USER, user) != topic or not 0 < len(user.encode()) <= MOST_NAME or user.startswith("$"):
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


@dataclass(frozen=True)
class Event:
    """One event to be released. Its symbols are in no repr."""

    user: str = field(repr=False)
    seq: int
    codes: tuple[int, ...] = field(repr=False)  # one, or those of a batch
    time: float = 0.0


class Payloads:
    """Reads raw payloads and writes released ones, for one setting.

    >>> from seqveil.core.model import MarkovModel
    >>> payloads = Payloads(Setting.of(MarkovModel.fit([["a", "b", "a"]]), epsilon=1.0))
    >>> payloads.read("ann", b'{"seq": 3, "value": "b"}').codes
    (1,)
    >>> payloads.write(3, [0], 1.0, (0,))
    b'{"seq":3,"value":"a","epsilon":1.0}'
    """

    def __init__(self, setting: Setting, on_unknown: OnUnknown | None = None) -> None:
        refuse_restarts(setting, "the bridge")
        self._setting, self._wording = setting, Wording(setting.model.alphabet, on_unknown)

    def read(self, user: str, payload: bytes) -> Event:
        """The event in a payload; raises `Refusal`."""
        if len(payload) > MOST_BYTES:
            raise Refusal("size")
        try:
            content = json.loads(payload)  # NaN and infinities too: that is how a sensor says that it has failed
        except (ValueError, RecursionError):
            raise Refusal("json") from None
        if not isinstance(content, dict):
            raise Refusal("json")
        seq = content.get("seq")
        if type(seq) is not int or not 0 <= seq < MOST_SEQ:
            raise Refusal("seq")
        return Event(user, seq, self._codes(seq, content), self._time(seq, content.get("time")))

    def _codes(self, seq: int, content: dict[str, Any]) -> tuple[int, ...]:
        batched, values = self._setting.in_batches, content.get("values")
        if ("value" in content) == batched or ("values" in content) != batched:
            raise Refusal("shape", seq)
        if not batched:
            values = [content["value"]]
        elif not isinstance(values, list) or not 1 <= len(values) <= self._setting.batch:
            raise Refusal("shape", seq)
        return tuple(self._wording.encode(values).tolist())

    def _time(self, seq: int, time: Any) -> float:
        if not self._setting.timed:
            return 0.0
        try:
            stamps = seconds([time])
            check_clock(stamps)
        except InputError:
            raise Refusal("time", seq) from None
        return float(stamps[0])

    def write(self, seq: int, codes: Sequence[int], epsilon: float, path: tuple[int, ...] | None) -> bytes:
        """The release of one event; without a path nothing was released."""
        words = None if path is None else [self._wording.shown[code] for code in codes]
        used = None if self._setting.unbounded else epsilon  # null: nothing is promised about the whole sequence
        if not self._setting.in_batches:
            return _text({"seq": seq, "value": words[0] if words else None, "epsilon": used})
        turns = None if path is None else encode_path(path)
        return _text({"seq": seq, "values": words, "epsilon": used, "path": turns})


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


OnRefused = Literal["report", "stop"]
Kind = Literal["release", "report", "clearing"]  # of a message of ours
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


class Bridge:
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
        self._under_way: dict[int, tuple[Kind, _Pending]] = {}  # our messages, by number
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
        """Released payloads, committed, and what was refused."""
        batches = self._store.setting.in_batches
        jobs = [Job([e.user], [e.seq], [e.codes if batches else e.codes[0]], [e.time]) for e in events]
        release_together(self._store, jobs)
        return [self._told(event, job.outcome) for event, job in zip(events, jobs, strict=True)]

    def _told(self, event: Event, made: Releases | Exception | None) -> bytes | Refusal:
        if isinstance(made, OutOfOrder):
            return Refusal("order", event.seq, made.upcoming)
        if isinstance(made, InputError | BudgetSpent):
            return Refusal("budget" if isinstance(made, BudgetSpent) else "event", event.seq)
        if not isinstance(made, Releases):  # the disk's trouble, say: the broker keeps the raw messages
            raise made or DataError("an event came back without its release; start the bridge again")
        if made.replayed[0]:
            self.counts.repeated += 1
        else:
            self.counts.released += 1
            self.counts.unknown += event.codes.count(UNKNOWN)
        return self._payloads.write(event.seq, made.symbols[0].tolist(), float(made.epsilons[0]), made.paths[0])

    def _refuse(self, pending: _Pending, user: str | None, refusal: Refusal) -> None:
        self._refusals[refusal.reason] += 1
        if self._on_refused == "stop" and refusal.reason != "retained":
            raise DataError(f"message {self.counts.received} was refused and left with the broker: {refusal}")
        topic = None if user is None else self._topics.errors_to(user)
        if topic is not None:
            self._send("report", pending, topic, refusal.payload())

    def _send(self, kind: Kind, pending: _Pending, topic: str, payload: bytes) -> None:
        pending.waits += 1
        self._under_way[self._link.publish(topic, payload, retain=kind == "clearing")] = kind, pending

    def _confirm(self, confirmed: Confirmed) -> None:
        kind, pending = self._under_way.pop(confirmed.mid)
        if confirmed.refused is not None and kind == "release":
            raise BrokerError(f"the broker refuses a release ({confirmed.refused}); check its ACL and limits")
        pending.waits -= 1
        if confirmed.refused is not None:
            self._warn(f"the broker refuses a {kind} ({confirmed.refused}); check its ACL")
        elif kind == "clearing":
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
