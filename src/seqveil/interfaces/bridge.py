"""The core that all bridges share: events of some source, released durably, and what its sink is to hear.

A bridge is *source → Streams → sink*. The source says who an event belongs to, what it calls it, and whether it may
have come before; the sink publishes what comes back and confirms it. Everything between is here: numbers for events
that bring none, each event once, refusals that block nothing, counts, and the log.

**Numbers.** An event without a sequence number gets its user's next one. The number is kept, under what the source
calls the event, in the same transaction as its release, until the sink has confirmed it. Cut anywhere, an event that
comes again finds its number, and with it its release.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.engine.coded import EARLIER, CodeStreams, OutOfOrder, Releases, StoreError
from seqveil.engine.store import LATEST, MOST_POSITION, NUMBERS, Damaged, Erased, Position
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.events import EventJob, Noted, release_together
from seqveil.interfaces.payloads import PayloadEvent, Payloads, Refusal

GROUP = 1000  # events of a transaction, at most
MOST_NEEDED = 4  # times as many names of events as may be under way, at most
KNOWN = 200_000  # users whose next number is kept in memory
REPORT = 60.0  # seconds between lines about progress

STALLED = (
    "events are missing before those that came, and later ones are refused; let the devices send from the number on "
    "that the error topic names as next, or start the bridge with --gaps skip, which gives the missing ones up"
)

DROPPED = (
    "an event came again whose release was erased from the state file; it is not drawn a second "
    "time, and nothing is published of it"
)

SET_APART = (
    "records of some users are damaged, so nothing of these users is released; all others go on. `seqveil state "
    "verify` lists what is damaged; restore it from a backup"
)

OnRefused = Literal["report", "stop"]
Log = Callable[[str, dict[str, object]], None]


class BrokerError(SeqveilError):
    """The broker does not let the bridge work; nothing that it has not acknowledged is lost."""


@dataclass
class BridgeCounts:
    """What the bridge did since it started, for its operator."""

    received: int = 0  # messages that were looked at, each time they came
    released: int = 0  # events drawn
    repeated: int = 0  # events that had been released before
    acknowledged: int = 0
    unreliable: int = 0  # came at QoS 0, so they may get lost on the way
    cleared: int = 0  # retained raw messages taken off the broker
    states: int = 0  # messages that said what was the case, and were no event
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    stalled: int = 0  # streams that wait now for events which did not come


class BridgeResult(NamedTuple):
    """What is to be published of an event."""

    payload: bytes
    repeated: bool  # whether it had been released before


Outcomes = Releases | Exception | None
Outcome = BridgeResult | Refusal | None  # None: nothing is to be published


class Core:
    """Releases the events of one source.

    *Guarantee*: each event is drawn once and charged once. What `release` returns is on the disk; asked again before
    it was confirmed, also after a crash, the same event gives the same payload. Whether something is published of an
    event does not depend on its value.

    Parameters:
        store: where events are released; its setting says how.
        payloads: reads and writes them.
        name: of the source, under which its numbers are kept in the store.
        on_refused: "report" drops an event that cannot be released and reports it, "stop" ends the bridge and leaves
            it with the broker.
        log: takes an event's name and details, never data or users.
    """

    def __init__(
        self,
        store: CodeStreams,
        payloads: Payloads,
        name: str,
        on_refused: OnRefused = "report",
        log: Log | None = None,
    ) -> None:
        if on_refused not in ("report", "stop"):
            raise InputError('expected on_refused to be "report" or "stop"')
        self.counts, self.payloads, self.log = BridgeCounts(), payloads, log or (lambda event, details: None)
        self._store, self._name, self._on_refused = store, name, on_refused
        self.hidden = 0  # values outside the alphabet; follows from raw data, so it is in no log and no metric
        self.numbers: dict[str, int] = {}  # of events not confirmed yet
        self._parts = 0  # positions that they are kept in
        while (kept := store.position(self._place(self._parts))) is not None:
            self.numbers |= json.loads(str(kept))
            self._parts += 1
        self._kept = dict(self.numbers)
        self._latest: dict[str, float] = {}
        self._upcoming: dict[str, int] = {}  # the next number of users, as the store has it
        self._stalled: set[str] = set()  # users whose later events are refused until the missing ones come
        self._stalls = 0  # streams that were found stalled since the last line about them
        self._refusals: Counter[str] = Counter()  # since the last line about them
        self._warned: set[str] = set()
        self._reported = (time.monotonic(), 0)

    def release(self, events: Sequence[PayloadEvent], positions: Mapping[str, Position] | None = None) -> list[Outcome]:
        """Release events, in the order they came, and say what is to be published of each.

        Parameters:
            events: those without a number get the next one of their user.
            positions: kept in the store with them.
        """
        outcomes: dict[int, Outcome] = {}
        moved: dict[str, Position] = {}
        left = self._taken(events, outcomes, moved)
        written = False

        def noted(made: Releases | None) -> Mapping[str, Position]:
            nonlocal written
            written = True
            return self._positions() | moved | dict(positions or {})

        while left:
            numbered = self._numbered([events[k] for k in left])
            moved_up = []
            for k, (event, seq), (made, at) in zip(left, numbered, self._drawn(numbered, noted), strict=True):
                if not isinstance(made, Releases):
                    self._upcoming.pop(event.user, None)  # as the store has it
                elif event.seq is not None and event.user in self._upcoming:
                    self._upcoming[event.user] = max(self._upcoming[event.user], seq + 1)
                if event.seq is None and isinstance(made, OutOfOrder):
                    moved_up.append(k)  # one before it was refused, whose number is free now
                else:
                    outcomes[k] = self._disclosed(event, seq, made, at)
            if len(moved_up) == len(left):
                raise DataError("events could not be numbered; start the bridge again")
            left = moved_up
        if not written and (positions or moved):
            self._store.release([], [], [], None, noted(None))
        return [outcomes[k] for k in range(len(events))]

    def _drawn(self, numbered: Sequence[tuple[PayloadEvent, int]], noted: Noted) -> Iterable[tuple[Outcomes, int]]:
        """What each event was released as, and its place in there, or why it was not.

        All are released in one call, which refuses before it draws; only where it does are they looked at one by one.
        """
        batches, timed = self._store.setting.in_batches, self._store.setting.timed
        raw: list[Any] = [event.codes if batches else event.codes[0] for event, _ in numbered]
        users, seqs = [event.user for event, _ in numbered], [seq for _, seq in numbered]
        times = [event.time for event, _ in numbered]
        try:
            made = self._store.release(users, raw, seqs, times if timed else None, noted)
        except (InputError, StoreError) as error:
            if error.made is not None and not error.made.refused.all():  # what was drawn stands
                # the numbers were not kept, without which nothing goes out
                self._store.release([], [], [], None, noted(error.made))
                refused = error.made.refused.tolist()
                return [(error if out else error.made, k) for k, out in enumerate(refused)]
        else:
            return [(made, k) for k in range(len(numbered))]
        jobs = [
            EventJob([user], [seq], [codes], [at]) for user, seq, codes, at in zip(users, seqs, raw, times, strict=True)
        ]
        release_together(self._store, jobs, noted)
        return [(job.outcome, 0) for job in jobs]

    def confirmed(self, idents: Iterable[str | None]) -> None:
        """The sink has these events for good: they do not come again."""
        for ident in idents:
            if ident is not None:
                self.numbers.pop(ident, None)

    def keep(self, most: int, needed: Callable[[str], bool] = lambda ident: False) -> None:
        """Only the latest so many events can still come again, and those that are needed; of them not without end."""
        extra = len(self.numbers) - most
        for ident in list(self.numbers) if extra > 0 else ():
            if extra <= 0:
                break
            if len(self.numbers) > MOST_NEEDED * most or not needed(ident):
                del self.numbers[ident]
                extra -= 1

    def forget(self) -> None:
        """The source has forgotten what it sent: nothing of that comes again."""
        self.numbers.clear()

    def close(self) -> None:
        """Write down what was confirmed since the last release. A process may as well be killed before."""
        if self.numbers != self._kept:
            self._store.release([], [], [], None, self._positions())

    def _taken(
        self, events: Sequence[PayloadEvent], outcomes: dict[int, Outcome], moved: dict[str, Position]
    ) -> list[int]:
        """The places of what is to be released: nothing that comes late."""
        left = []
        if len(self._latest) > KNOWN:
            self._latest.clear()  # the store has them
        for k, event in enumerate(events):
            if event.ident is not None and not event.again:
                self.numbers.pop(event.ident, None)  # the source has taken an old name for a new event
            if event.stamp is not None:
                if event.stamp > self._latest_of(event.user):
                    self._latest[event.user] = event.stamp
                    moved[f"{self._name}{LATEST}{event.user}"] = repr(event.stamp)
                elif event.ident is None or event.ident not in self.numbers:
                    outcomes[k] = Refusal("late")
                    continue
            left.append(k)
        return left

    def _latest_of(self, user: str) -> float:
        if user not in self._latest:
            kept = self._store.position(f"{self._name}{LATEST}{user}")
            self._latest[user] = -float("inf") if kept is None else float(kept)
        return self._latest[user]

    def _numbered(self, events: Sequence[PayloadEvent]) -> list[tuple[PayloadEvent, int]]:
        upcoming = self._upcoming_of(event.user for event in events if event.seq is None)
        out = []
        for event in events:
            if event.seq is not None:
                if event.seq == upcoming.get(event.user):
                    upcoming[event.user] += 1  # one after it may have no number
                out.append((event, event.seq))
                continue
            seq = upcoming[event.user]
            if event.again and event.ident is not None:
                seq = min(self.numbers.get(event.ident, seq), seq)  # never one that leaves others out
            upcoming[event.user] = max(upcoming[event.user], seq + 1)
            if event.ident is not None:
                self.numbers[event.ident] = seq
            out.append((event, seq))
        return out

    def _upcoming_of(self, users: Iterable[str]) -> dict[str, int]:
        """The next number of each user at least: what is known from before need not be looked up."""
        if len(self._upcoming) > KNOWN:
            self._upcoming.clear()
        new = [user for user in dict.fromkeys(users) if user not in self._upcoming]
        if new:
            self._upcoming.update(zip(new, self.next_seqs(new), strict=True))
        return self._upcoming

    def next_seqs(self, users: Sequence[str]) -> list[int]:
        """The next number of each user as the store has it; 0 for one whose records are damaged, who is refused."""
        try:
            return [int(seq) for seq in self._store.next_seqs(users)]
        except Damaged:
            if len(users) == 1:
                self.warn(SET_APART)
                return [0]
            return [seq for user in users for seq in self.next_seqs([user])]

    def _positions(self) -> dict[str, Position]:
        if not self.numbers and not self._kept:
            return {}
        self._kept = dict(self.numbers)
        parts = _in_parts(self.numbers)
        parts += ["{}"] * (self._parts - len(parts))
        self._parts = len(parts)
        return {self._place(part): text for part, text in enumerate(parts)}

    def _place(self, part: int) -> str:
        """The position that has a part of the numbers; all but a very large bridge need one alone."""
        return f"{self._name}:{part}{NUMBERS}" if part else f"{self._name}{NUMBERS}"

    def _disclosed(self, event: PayloadEvent, seq: int, made: Outcomes, at: int) -> Outcome:
        if isinstance(made, OutOfOrder):
            self._stall(event.user)
            return Refusal("order", seq, made.upcoming)
        if isinstance(made, InputError):
            timed = self._store.setting.budget.seconds is not None  # then times that go back are all it can be
            return Refusal("late" if timed else "event", seq)
        if isinstance(made, Damaged) and event.user in made.users:  # all others go on
            self.confirmed([event.ident])
            return Refusal("erased" if isinstance(made, Erased) else "damaged", event.seq)
        if not isinstance(made, Releases):  # the disk's trouble, say: the broker keeps the raw messages
            raise made or DataError("an event came back without its release; start the bridge again")
        repeated = bool(made.replayed[at])
        if repeated:
            self.counts.repeated += 1
        else:
            self.counts.released += 1
            self.hidden += event.codes.count(UNKNOWN)
            if event.user in self._stalled:
                self._stalled.discard(event.user)
                self.counts.stalled -= 1
        if made.codes[at] == EARLIER:
            self.warn(DROPPED)
            return None
        codes, path = made.disclosed(at)
        disclosed = self.payloads.write(seq, codes, float(made.epsilons[at]), path, event.user, event.stamp, event.slot)
        return BridgeResult(disclosed, repeated)

    def _stall(self, user: str) -> None:
        """A stream waits for events that did not come."""
        if user not in self._stalled and len(self._stalled) < KNOWN:
            self._stalled.add(user)
            self.counts.stalled += 1
            self._stalls += 1

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal; ends the bridge where it is to end there."""
        self._refusals[refusal.reason] += 1
        if self._on_refused == "stop" and refusal.reason not in ("retained", "load"):
            raise DataError(f"message {self.counts.received} was refused and left with the broker: {refusal}")

    def warn(self, text: str) -> None:
        """Log a warning, once: what repeats is in the counts."""
        if text not in self._warned:
            self._warned.add(text)
            self.log("warning", {"reason": text})

    def report(self) -> None:
        """Log what was refused since the last time, and now and then how far it has come."""
        if self._refusals:
            self.log("refused", {"reasons": dict(self._refusals), "messages so far": self.counts.received})
            self.counts.refused = dict(self._refusals + Counter(self.counts.refused))
            self._refusals.clear()
        if self._stalls:
            self.log("stalled", {"streams": self._stalls, "stalled now": self.counts.stalled, "reason": STALLED})
            self._stalls = 0
        now = time.monotonic()
        if now - self._reported[0] > REPORT and self.counts.received > self._reported[1]:
            self._reported = (now, self.counts.received)
            self.log("progress", asdict(self.counts))


def _in_parts(numbers: Mapping[str, int]) -> list[str]:
    """Numbers of events as text, in as many parts as a position can hold."""
    text = json.dumps(numbers, separators=(",", ":"))
    if len(text) <= MOST_POSITION or len(numbers) < 2:
        return [text]
    items, half = list(numbers.items()), len(numbers) // 2
    return _in_parts(dict(items[:half])) + _in_parts(dict(items[half:]))
