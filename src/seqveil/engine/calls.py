"""One call: which of its events are new, what is drawn for them, and what comes of it for the caller and the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.mechanisms import Sent
from seqveil.core.randomness import KeyedRandomness, Randomness, User, rows
from seqveil.engine import batches, stream
from seqveil.engine.blocks import ReleasedInBlocks
from seqveil.engine.live import Live, Slots
from seqveil.engine.releases import EARLIER, InBlocks, Path, Releases
from seqveil.engine.state import Private, State
from seqveil.engine.state import rounds as rounds_of
from seqveil.engine.step import Made, observe, step
from seqveil.engine.store import ERASED, GAP, Entry, StateStore, Stored, batch_text, with_gaps
from seqveil.engine.stream import NOTHING, REFUSED, Terms, allowance

Gaps = Literal["refuse", "skip"]
Places = NDArray[np.intp]
MOST_SKIPPED = 10_000  # events that one event may leave out
MOST_WATCHED = 500  # the same with declared secrets, whose accounts move step by step
TOO_MANY = "a declared secret was promised for streams of at most {limit} events, and a user has more; {beyond}"
NEXT = -1  # in place of sequence numbers that the caller leaves out


class OutOfOrder(InputError):
    """A sequence number that leaves others out, under the policy that refuses this.

    `position` is the event's place in the call, `upcoming` the number that its user's event there had to have.
    """

    def __init__(self, position: int, message: str, upcoming: int | None = None) -> None:
        super().__init__(message)
        self.position, self.upcoming = position, upcoming


class BeyondSecrets(InputError):
    """More events of a stream than its declared secrets were promised for, or more left out than they can pass over.

    The message holds public figures alone.
    """


@dataclass(frozen=True, eq=False)
class CallPlan:
    """What to do with each event of a group, by its place in it."""

    fresh: Places  # to be drawn, in this order
    rounds: list[Places]  # the same by number, in rounds that hold each user once
    skips: Ints | None  # for each of them, events of its user to give up first; None: nowhere any
    old: list[int]  # released in an earlier call
    twice: list[tuple[int, int]]  # and the place of the same event earlier in this call
    late: list[int]  # given up a moment ago, for a later event of this call


def plan_of(users: Places, seqs: Ints, upcoming: Ints, gaps: Gaps) -> CallPlan:
    """Sort the events of a group out; `upcoming` is the next sequence number of each event's user, before the call.

    Sequence numbers that are NEXT are filled in: each is the next one of its user.

    >>> plan = plan_of(np.array([0, 1, 0, 1]), np.array([5, 2, 6, 2]), np.array([5, 3, 5, 3]), "refuse")
    >>> plan.fresh.tolist(), plan.old
    ([0, 2], [1, 3])
    """
    rounds = rounds_of(users)
    if seqs.size == 1 and seqs[0] == upcoming[0]:
        return CallPlan(rounds[0], rounds, None, [], [], [])
    if seqs.size and seqs[0] == NEXT:
        for turn, at in enumerate(rounds):
            seqs[at] = upcoming[at] + turn
        return CallPlan(np.arange(users.size), rounds, None, [], [], [])
    if all((seqs[at] == upcoming[at] + turn).all() for turn, at in enumerate(rounds)):
        return CallPlan(np.arange(users.size), rounds, None, [], [], [])
    return _sorted_out(users, seqs, upcoming, gaps)


def _sorted_out(users: Places, seqs: Ints, upcoming: Ints, gaps: Gaps) -> CallPlan:
    ahead: dict[int, int] = {}
    first: dict[tuple[int, int], int] = {}
    fresh: list[int] = []
    old: list[int] = []
    twice: list[tuple[int, int]] = []
    late: list[int] = []
    skips = np.zeros(users.size, np.int64)
    for k, (user, seq, known) in enumerate(zip(users.tolist(), seqs.tolist(), upcoming.tolist(), strict=True)):
        expected = ahead.get(user, known)
        if (user, seq) in first:
            twice.append((k, first[user, seq]))
        elif seq < known:
            old.append(k)
        elif seq < expected:
            late.append(k)
        else:
            if seq != expected:
                _check_gap(k, seq, expected, gaps)
                skips[k] = seq - expected
            ahead[user] = seq + 1
            first[user, seq] = k
            fresh.append(k)
    chosen = np.array(fresh, np.intp)
    return CallPlan(chosen, rounds_of(users[chosen]), skips[chosen] if skips.any() else None, old, twice, late)


def first_gap(users: Sequence[User], seqs: Sequence[int], upcoming: dict[User, int], gaps: Gaps) -> OutOfOrder | None:
    """What is wrong with the order of a call's events, if anything; else `upcoming` moves on behind them."""
    after: dict[User, int] = {}
    for k, (user, seq) in enumerate(zip(users, seqs, strict=True)):
        expected = after.get(user, upcoming.get(user, 0))
        if seq > expected:
            try:
                _check_gap(k, seq, expected, gaps)
            except OutOfOrder as error:
                return error
        if seq >= expected:
            after[user] = seq + 1
    upcoming.update(after)
    return None


def _check_gap(place: int, seq: int, expected: int, gaps: Gaps) -> None:
    if gaps == "refuse":
        message = f"event {place} has sequence number {seq}, and {expected} is next; send the missing events first"
        raise OutOfOrder(place, message, expected)
    if seq - expected > MOST_SKIPPED:
        message = f"event {place} leaves {seq - expected} events out, of at most {MOST_SKIPPED}; check the numbers"
        raise OutOfOrder(place, message, expected)


class SentBatch(NamedTuple):
    """A batch that was taken: the state before it, what was sent (None: nothing), and its ε."""

    before: State
    sent: Sent | None
    epsilon: float


Seen = Callable[[list[User], Made | SentBatch], None]


class Fresh(NamedTuple):
    """The new events of a group: their places in the call, the slots of their users, and what each gives up first."""

    at: Places
    who: Slots
    skips: Ints | None

    def take(self, some: Places) -> Fresh:
        """Some of them."""
        return Fresh(self.at[some], self.who[some], None if self.skips is None else self.skips[some])


def nothing_yet(setting: Terms, seqs: Ints) -> Releases:
    """Releases of events with these numbers before any is made."""
    codes, leakages = np.empty(seqs.size, np.int64), np.empty(seqs.size)
    codes.fill(REFUSED)
    leakages.fill(np.nan)
    sent: list[tuple[Path, Ints] | None] | None = [None] * seqs.size if setting.in_batches else None
    nowhere, blocks = np.full(seqs.size, -1), None
    if setting.in_blocks:
        blocks = InBlocks(nowhere, nowhere.copy(), np.zeros(seqs.size))
    return Releases(codes, seqs, np.zeros(seqs.size), np.zeros(seqs.size, bool), leakages, sent, None, blocks)


@dataclass(frozen=True, eq=False)
class Call:
    """Events of one call to release, or to observe. The raw codes stay here and are in no repr."""

    setting: Terms
    names: list[User] = field(repr=False)
    times: Floats | None
    made: Releases
    raw: Ints | list[Ints] = field(repr=False)  # a code for each event, or the codes of each batch
    observed: bool = False  # whether `raw` are releases to take in, as a receiver does
    claimed: Floats | None = None  # of releases to take in, the ε that the record has: where blocks begin
    paths: list[Path | None] | None = None  # of the batches to take in; the codes of each then only say how many
    seen: Seen | None = None  # sees whatever is made: whose it is, and what anyone knows of it

    def play(
        self, group: Places, live: Live, store: StateStore, randomness: Randomness | KeyedRandomness, gaps: Gaps
    ) -> tuple[bool, Exception | None]:
        """Make the events of a group, whose users can all be live; those released before are given back.

        Whether anything was drawn, which then stands, and why it ended early, if it did.
        """
        slots, plan, fresh = self._plan(group, live, gaps)
        self._find_old(plan.old, group, store)
        failure = self._fails(fresh, live) or self._draw(fresh, plan.rounds, live, randomness)
        done = fresh if failure is None else fresh.take(np.flatnonzero(self.made.codes[fresh.at] != REFUSED))
        if done.at.size:
            store.append(self._entry(done, live))
        following = live.next_seqs(slots)
        for k in plan.late:
            seq = int(self.made.seqs[group[k]])
            if seq < following[k]:
                self._give_back(int(group[k]), Stored(seq, GAP, 0.0, None, None, ()))
        for k, first in plan.twice:
            self._copy(int(group[k]), int(group[first]))
        return done.at.size > 0, failure

    def _plan(self, group: Places, live: Live, gaps: Gaps) -> tuple[Slots, CallPlan, Fresh]:
        """Have the users of a group live, and sort its events out."""
        slots = live.enter([self.names[k] for k in group.tolist()])
        numbers = self.made.seqs[group]
        plan = plan_of(slots, numbers, live.next_seqs(slots), gaps)
        self.made.seqs[group] = numbers
        return slots, plan, Fresh(group[plan.fresh], slots[plan.fresh], plan.skips)

    def _find_old(self, old: list[int], group: Places, store: StateStore) -> None:
        """Give back what was released before, as far as the store keeps it."""
        events: dict[User, dict[int, int]] = {}
        for k in (int(group[place]) for place in old):
            self._give_back(k, None)
            events.setdefault(self.names[k], {})[k] = int(self.made.seqs[k])
        for row, wanted in zip(store.find(list(events)) if store.keeps_releases else (), events.values(), strict=False):
            assert row is not None
            first, count = min(wanted.values()), max(wanted.values()) - min(wanted.values()) + 1
            found = {stored.seq: stored for stored in islice(with_gaps(store.releases(row, first), first), count)}
            for k, seq in wanted.items():
                if seq in found and found[seq].code != ERASED:
                    self._give_back(k, found[seq])

    def check(self, group: Places, live: Live, gaps: Gaps) -> None:
        """Refuse wrong times of a group, or more events than were promised for, before any group is drawn."""
        failure = self._fails(self._plan(group, live, gaps)[2], live)
        if failure is not None:
            raise failure

    def _give_back(self, k: int, stored: Stored | None) -> None:
        made = self.made
        made.replayed[k] = True
        made.codes[k], made.epsilons[k] = (EARLIER, np.nan) if stored is None else (stored.code, stored.epsilon)
        if made.sent is not None and stored is not None and stored.path is not None:
            made.sent[k] = stored.path, np.array(stored.codes, np.int64)

    def _copy(self, k: int, first: int) -> None:
        made = self.made
        made.codes[k], made.epsilons[k], made.leakages[k] = made.codes[first], made.epsilons[first], np.nan
        made.replayed[k] = not made.refused[first]
        if made.sent is not None:
            made.sent[k] = made.sent[first]

    def _draw(
        self, fresh: Fresh, rounds: list[Places], live: Live, randomness: Randomness | KeyedRandomness
    ) -> Exception | None:
        """Make the new events, in rounds, batches one by one. What fails ends it, and takes back nothing before it."""
        source = randomness.of(self.names, self.made.seqs) if isinstance(randomness, KeyedRandomness) else randomness
        if self.setting.in_batches:
            rounds = [np.array([k]) for k in range(fresh.at.size)]
        for some in rounds:
            try:
                self._turn(fresh.take(some), live, source)
            except Exception as error:
                return error
        return None

    def _turn(self, some: Fresh, live: Live, source: Randomness) -> None:
        """Make one event of each of these users.

        The states move first: what is noted as released is then charged, whatever fails.
        """
        at, own, noted = some.at, rows(source, some.at), self.made
        act = self._batch if self.setting.in_batches else self._symbols
        made = live.move(some.who, lambda public, private: act(public, private, at, own), some.skips)
        if isinstance(made, SentBatch):
            self._note_batch(int(at[0]), made)
        else:
            noted.codes[at], noted.epsilons[at] = made.codes, made.epsilons
            if self.observed:
                noted.leakages[at] = made.costs
            if noted.blocks is not None and isinstance(made, ReleasedInBlocks):
                here = noted.blocks
                here.numbers[at], here.places[at], here.levels[at] = made.numbers, made.places, made.levels
        if self.seen is not None:
            self.seen([self.names[k] for k in at.tolist()], made)

    def _symbols(
        self, state: State, private: Private, at: Places, randomness: Randomness
    ) -> tuple[Made | SentBatch, State, Private]:
        """One symbol of each of these users."""
        assert isinstance(self.raw, np.ndarray)
        setting, times = self.setting, None if self.times is None else self.times[at]
        if self.observed:
            claimed = None if self.claimed is None else self.claimed[at]
            return *observe(setting, state, self.raw[at], times, claimed), private
        return step(setting, state, private, self.raw[at], randomness, times)

    def _batch(
        self, state: State, private: Private, at: Places, randomness: Randomness
    ) -> tuple[Made | SentBatch, State, Private]:
        """One batch of one user."""
        k = int(at[0])
        setting, time = self.setting, None if self.times is None else float(self.times[k])
        epsilon = float(allowance(setting, state, None if time is None else np.array([time]))[0][0])
        if self.paths is not None:
            sent, after = batches.observe(setting, state, self.paths[k], self.raw[k].size, time)
        else:
            sent, after = batches.step(setting, state, self.raw[k], randomness, time)
        return SentBatch(state, sent, epsilon), after, private

    def _note_batch(self, k: int, disclosed: SentBatch) -> None:
        made, sent = self.made, disclosed.sent
        made.codes[k], made.epsilons[k] = NOTHING if sent is None else 0, disclosed.epsilon
        if sent is not None and made.sent is not None:
            made.sent[k] = sent.path, np.asarray(sent.codes, np.int64)
            made.leakages[k] = larger_side(sent.most, sent.least)

    def _fails(self, fresh: Fresh, live: Live) -> InputError | None:
        """What is wrong with the new events, before any of them is drawn."""
        if not fresh.at.size:
            return None
        return self._times_fail(fresh, live) or self._too_many(fresh, live)

    def _too_many(self, fresh: Fresh, live: Live) -> InputError | None:
        """More events of a user than declared secrets were promised for, or more left out than they can pass over."""
        trackers, skips = self.setting.trackers, fresh.skips
        if trackers is None:
            return None
        if skips is not None and skips.max() > MOST_WATCHED:
            return BeyondSecrets(
                f"an event leaves {skips.max()} others out, and with declared secrets at most {MOST_WATCHED} can be "
                "given up at once; send the missing events, or check the numbers"
            )
        limit = trackers.limit if not self.setting.clocked else self._least_limit(fresh, live)
        if limit is None:
            return None
        who, place = np.unique(fresh.who, return_inverse=True)
        more = np.bincount(place) if skips is None else np.bincount(place, 1 + skips)
        if (live.next_seqs(who) + more <= limit).all():
            return None
        return BeyondSecrets(TOO_MANY.format(limit=limit, beyond=trackers.beyond))

    def _least_limit(self, fresh: Fresh, live: Live) -> int | None:
        """The least that is promised for any of these users: whole days, of which the first one has begun."""
        begun = np.unique(self._first_slots(fresh, live)).tolist()
        limits = [self.setting.trackers_from(slot).limit for slot in begun]
        return min((limit for limit in limits if limit is not None), default=None)

    def _first_slots(self, fresh: Fresh, live: Live) -> Ints:
        """The slot of time in which the stream of each of these new events began, or begins with it."""
        assert self.times is not None
        here = self.setting.slots.numbers(self.times[fresh.at]) - self.made.seqs[fresh.at]
        return np.where(live.next_seqs(fresh.who) > 0, live.state.first[fresh.who], here)

    def _times_fail(self, fresh: Fresh, live: Live) -> InputError | None:
        """What is wrong with the times of the new events, before any of them is drawn."""
        if not self.setting.timed:
            return None
        try:
            times = None if self.times is None else self.times[fresh.at]
            stream.check_times(self.setting, fresh.who, times, live.state.window.take(fresh.who).latest)
            if self.setting.clocked and times is not None:
                self._check_slots(fresh, live, times)
        except InputError as error:
            if error.position is not None:
                error.position = int(fresh.at[error.position])
            return error
        return None

    def _check_slots(self, fresh: Fresh, live: Live, times: Floats) -> None:
        """Refuse new events that do not lie in their slots, the first one of a stream and those after it."""
        seqs = self.made.seqs[fresh.at]
        if fresh.skips is not None and ((fresh.skips == seqs) & (seqs > 0)).any():
            raise InputError("secrets that follow the clock need the first event of each stream; send it first")
        _, first, whose = np.unique(fresh.who, return_index=True, return_inverse=True)
        began = self._first_slots(fresh.take(first), live)
        stream.check_slots(began[whose], seqs, self.setting.slots.numbers(times))

    def _entry(self, done: Fresh, live: Live) -> Entry:
        """What the store is to keep of these events."""
        made, at, batches = self.made, done.at, None
        if made.sent is not None:
            sent = [made.sent[k] or (None, np.zeros(0, np.int64)) for k in at.tolist()]
            batches = [batch_text(self.raw[k].size, *each) for k, each in zip(at.tolist(), sent, strict=True)]
        skips = np.zeros(at.size, np.int64) if done.skips is None else done.skips
        times = None if self.times is None else self.times[at]
        columns = (made.seqs[at], skips, made.codes[at], made.epsilons[at], times, batches)
        return live.entry(done.who, done.who[made.codes[at] >= 0], *columns)
