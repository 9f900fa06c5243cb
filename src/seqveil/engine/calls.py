"""The users at work, as many as fit, and one call: which events are new, what is drawn for them, what is kept of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.randomness import KeyedRandomness, Randomness, rows
from seqveil.core.secrets import SecretTrackers
from seqveil.engine import blocks, packing, stream
from seqveil.engine.store import (
    EARLIER,
    NEW,
    NONE,
    Entry,
    Erased,
    Releases,
    StateStore,
    Stored,
    UserRow,
    batch_text,
    with_gaps,
)
from seqveil.engine.stream import NOTHING, REFUSED, Done, Rows, State, Terms, allowance, rounds, skipped

Gaps = Literal["refuse", "skip"]
MOST_SKIPPED = 10_000  # events that one event may leave out
MOST_WATCHED = 500  # the same with declared secrets, whose accounts move step by step
NEXT = -1  # in place of sequence numbers that the caller leaves out
BESIDE = 600  # bytes a live user takes beside its state
GROWTH = 3  # times as much as it is at the start, and while it is copied
LARGE = 1 << 26  # bytes of the states that take a step at once, which makes many times as many
TOGETHER = 1000  # users that are replayed side by side


# the users at work


class Live:
    """Live states of users by name. What is here and what a durable store says are the same, or the user is forgotten.

    Parameters:
        history: the terms of all users, after those that they had with earlier models.
        store: where they wait.
        memory: bytes that live states may take, where the store is not memory itself; those of one call always fit.
    """

    def __init__(self, history: Sequence[Terms], store: StateStore, memory: int) -> None:
        self._history, self._setting, self._store = history, history[-1], store
        start, self._epoch, self._room = State.start(self._setting), 0.0, sys.maxsize
        if store.durable:
            self._epoch = packing.epoch_of(store.salt)
            self._room = max(1, memory // (GROWTH * len(packing.pack(start, 0.0)) + BESIDE))
        self.together = max(1, LARGE // start.nbytes)  # users who take a step at once
        self.state = State.start(self._setting, 0)
        self._ids, self._released = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._names: list[str] = []  # of each slot that is taken
        self._slot: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._slot)

    def enter(self, names: Sequence[str]) -> Rows:
        """The slots of these users, made live where they are not."""
        new = [name for name in dict.fromkeys(names) if name not in self._slot]
        if new and len(self._names) + len(new) > self._room:  # all leave, and come back one by one
            self._slot, self._names, new = {}, [], list(dict.fromkeys(names))
        if new:
            self._admit(new)
        return np.array([self._slot[name] for name in names], np.intp)

    def undo(self, names: Sequence[str]) -> None:
        """After a call that failed: what is live may be ahead of a durable store, which is then read again."""
        for name in names if self._store.durable else ():
            self._slot.pop(name, None)

    def _admit(self, names: list[str]) -> None:
        """Make users live, each at the start, or where the store says that it stands."""
        try:
            "".join(names).encode()
        except UnicodeEncodeError:
            raise InputError("expected users that are UTF-8 text or whole numbers; name them so") from None
        rows = self._store.find(names)
        if gone := [name for name, row in zip(names, rows, strict=True) if row is not None and row.erased]:
            raise Erased(gone)
        slots = range(len(self._names), len(self._names) + len(names))
        self._make_room(slots.stop)
        self.state.put(np.array(slots), State.start(self._setting, len(names)))
        back: dict[int, list[tuple[int, UserRow]]] = {}  # by the size of the state: how far windows look back differs
        for slot, row in zip(slots, rows, strict=True):
            self._ids[slot] = NEW if row is None else row.id
            self._released[slot] = 0 if row is None else row.releases
            if row is not None and row.events:
                back.setdefault(len(row.state), []).append((slot, row))
        for group in back.values():
            at, known = np.array([slot for slot, _ in group], np.intp), [row for _, row in group]
            self.state.put(at, packing.unpack(self._setting, known))
            for slot, row in group:
                self._find_private(slot, names[slot - slots.start], row)
        self._names += names
        self._slot.update(zip(names, slots, strict=True))

    def _find_private(self, slot: int, name: str, row: UserRow) -> None:
        """Open what is private of a user who comes back; a block of another epoch has lost its bit, and is cut."""
        sealing, memory, at = self._store.sealing, self.state.private.memory, np.array([slot])
        if memory is not None:
            assert sealing is not None
            assert row.sealed is not None
            memory[slot] = sealing.open(name, row.events, row.sealed)
        if self._setting.in_blocks and np.frombuffer(row.state[-8:], "<f8")[0] != self._epoch:
            self.state.put(at, blocks.cut(self._setting, self.state.take(at)))

    def _make_room(self, slots: int) -> None:
        size = len(self.state)
        if slots > size:
            more = max(slots - size, min(self._room - size, max(size, 64)))
            self.state = self.state.grown(self._setting, size + more)
            self._ids, self._released = (np.pad(each, (0, more)) for each in (self._ids, self._released))

    # what calls do with them

    def move(self, slots: Rows, act: Callable[[State], tuple[Done, State]], skips: Ints) -> Done:
        """Let these users, each once, take a step, and first give up so many events of each; what the step made."""
        if not skips.any():
            made, self.state = self.state.move(slots, act)
            return made
        part = self.state.take(slots)
        for count in np.unique(skips[skips > 0]).tolist():
            waiting = np.flatnonzero(skips == count)
            part.put(waiting, skipped(self._setting, part.take(waiting), count))
        made, after = act(part)
        self.state.put(slots, after)
        return made

    def trackers(self, name: str) -> SecretTrackers | None:
        """The accounts of declared secrets of a user whom the store knows; None where no secret is declared."""
        slot = self.enter([name])[0]  # which may bring other arrays
        return None if self.state.trackers is None else self.state.trackers[slot]

    def keep(self, slots: Rows, seqs: Ints, skips: Ints, codes: Ints, *more: Any) -> None:
        """Have the store keep what a call left: the users at `slots` took events; what more an `Entry` has of them."""
        np.add.at(self._released, slots[codes >= 0], 1)
        places = {slot: place for place, slot in enumerate(dict.fromkeys(slots.tolist()))}
        touched, owners = np.array(list(places), np.intp), np.array([places[slot] for slot in slots.tolist()])
        names, steps = [self._names[slot] for slot in places], self.state.steps[touched].tolist()
        packed = packing.pack(self.state.take(touched), self._epoch) if self._store.durable else b""
        sealed: list[bytes | None] | None = None
        memory, sealing = self.state.private.memory, self._store.sealing
        if memory is not None and sealing is not None:
            sealed = [sealing.close(*each) for each in zip(names, steps, memory[touched], strict=True)]
        ledger = _ledger(self.state, touched, self._released[touched])
        kept = names, self._ids[touched], ledger, packed, sealed, len(self._history) - 1
        self._ids[touched] = self._store.append(Entry(*kept, owners, seqs, skips, codes, *more))

    def adopted(self, names: Sequence[str]) -> Iterator[Entry]:
        """What the store has to keep of these users so that the last terms of the history are theirs."""
        for at in range(0, len(names), TOGETHER):
            some = list(names[at : at + TOGETHER])
            known = [row for row in self._store.find(some) if row is not None]
            state = replayed(self._history, [list(self._store.releases(row)) for row in known])
            state = replace(
                state, spent=np.array([row.spent for row in known]), ldp=np.array([row.ldp for row in known])
            )
            ids, released = np.array([(row.id, row.releases) for row in known]).T
            ledger, packed = _ledger(state, slice(None), released), packing.pack(state, self._epoch)
            yield Entry(some, ids, ledger, packed, [row.sealed for row in known])


def _ledger(state: State, rows: Rows | slice, released: Ints) -> Floats:
    """Where some users stand, as an `Entry` has it."""
    most, least = state.account.most[rows], state.account.least[rows]
    return np.column_stack([state.steps[rows], released, state.spent[rows], most, least, state.ldp[rows]])


def replayed(history: Sequence[Terms], streams: Sequence[Sequence[Stored]]) -> State:
    """The states under the last of these terms that releases imply, one row a stream: each release is taken in by the
    column of the kernel that it was drawn from, that of the terms it was made on, at the state that they had come to.
    """
    states = [State.start(terms, len(streams)) for terms in history]
    for turn in range(max(map(len, streams), default=0)):
        alike: dict[tuple[int, int], list[int]] = {}
        for row, kept in enumerate(streams):
            if turn < len(kept):
                alike.setdefault((kept[turn].model, kept[turn].skipped), []).append(row)
        for (model, gap), those in alike.items():
            at, made = np.array(those, np.intp), [streams[row][turn] for row in those]
            codes, epsilons = np.array([each.code for each in made]), np.array([each.epsilon for each in made])
            times = None if made[0].time is None else np.array([each.time for each in made])
            for k in range(model, len(history)):
                terms, part = history[k], states[k].take(at)
                part = stream.located(terms, skipped(terms, part, gap) if gap else part, times)
                if k == model:
                    seen, after = stream.observe(terms, part, codes, times, epsilons)
                else:
                    columns = seen.remembered if terms.remembered else seen.columns
                    after = stream.take_in(terms, part, columns, epsilons, times)[1]
                states[k].put(at, after)
    return states[-1]


# one call


class OutOfOrder(InputError):
    """A sequence number that leaves others out: of the event at `position` in the call, which had to have the number
    `upcoming`. `all` are the errors of every such event of the call, this one first."""

    def __init__(self, position: int, message: str, upcoming: int | None = None) -> None:
        super().__init__(message)
        self.position, self.upcoming, self.all = position, upcoming, [self]


class BeyondSecrets(InputError):
    """More events of a stream than its declared secrets were promised for, or more left out than they can pass over."""


def plan_of(users: Rows, seqs: Ints, upcoming: Ints, gaps: Gaps) -> tuple[Rows, list[int], Ints]:
    """Sort the events of a call out: the places of those to be drawn and of those that were taken before, or are given
    up by an earlier event of the call; and how many numbers before each event are given up first.

    `upcoming` is the next sequence number of each event's user, before the call. Sequence numbers that are NEXT are
    filled in: each is the next one of its user.

    >>> fresh, again, _ = plan_of(np.array([0, 1, 0, 1]), np.array([5, 2, 6, 2]), np.array([5, 3, 5, 3]), "refuse")
    >>> fresh.tolist(), again
    ([0, 2], [1, 3])
    """
    following = upcoming.copy()
    for turn, at in enumerate(rounds(users)):
        following[at] += turn
    if seqs.size and seqs[0] == NEXT:
        seqs[:] = following
    skips = np.zeros(users.size, np.int64)
    if (seqs == following).all():
        return np.arange(users.size), [], skips
    ahead: dict[int, int] = {}
    fresh, again, wrong = list[int](), list[int](), list[OutOfOrder]()
    for k, (user, seq, known) in enumerate(zip(users.tolist(), seqs.tolist(), upcoming.tolist(), strict=True)):
        expected = ahead.get(user, known)
        if seq < expected:
            again.append(k)
        elif seq - expected > (MOST_SKIPPED if gaps == "skip" else 0):
            said = f"event {k} has sequence number {seq}, and {expected} is next; send the missing events first"
            if gaps == "skip":
                said = f"event {k} leaves {seq - expected} events out, of at most {MOST_SKIPPED}; check the numbers"
            wrong.append(OutOfOrder(k, said, expected))
        else:
            ahead[user] = seq + 1
            fresh.append(k)
            skips[k] = seq - expected
    if wrong:
        wrong[0].all = wrong
        raise wrong[0]
    return np.array(fresh, np.intp), again, skips


@dataclass(eq=False)
class Call:
    """Events of one call to release. The raw codes stay here and are in no repr."""

    setting: Terms
    names: list[str] = field(repr=False)
    times: Floats | None
    made: Releases
    raw: Ints | list[Ints] = field(repr=False)  # a code for each event, or the codes of each batch
    slots: Rows = field(init=False, repr=False)  # of the user of each event, once it is played
    skips: Ints = field(init=False, repr=False)  # and how many numbers before it are given up

    def play(
        self, live: Live, store: StateStore, randomness: Randomness | KeyedRandomness, gaps: Gaps
    ) -> BaseException | None:
        """Make the new events, and give back those released before; why it ended early, if it did (what was drawn till
        then stands)."""
        made, self.slots = self.made, live.enter(self.names)
        fresh, again, self.skips = plan_of(self.slots, made.seqs, live.state.steps[self.slots], gaps)
        failure = self._fails(fresh, live) or self._draw(fresh, live, randomness)
        done = fresh[made.codes[fresh] != REFUSED]
        if done.size:
            times, texts = None if self.times is None else self.times[done], None
            if made.sent is not None:
                texts = [batch_text(self.raw[k].size, *(made.sent[k] or (None, NONE))) for k in done.tolist()]
            columns = made.seqs[done], self.skips[done], made.codes[done], made.epsilons[done], times, texts
            live.keep(self.slots[done], *columns)
        self._give_back([k for k in again if made.seqs[k] < live.state.steps[self.slots[k]]], store)
        return failure

    def _give_back(self, again: Sequence[int], store: StateStore) -> None:
        """Say what became of events that were taken before, as far as the store keeps it."""
        events, made = dict[str, dict[int, int]](), self.made
        for k in again:
            made.replayed[k], made.codes[k], made.epsilons[k] = True, EARLIER, np.nan
            events.setdefault(self.names[k], {})[k] = int(made.seqs[k])
        if not (events and store.keeps_releases):
            return
        for row, wanted in zip(store.find(list(events)), events.values(), strict=True):
            assert row is not None
            first, behind = min(wanted.values()), max(wanted.values()) + 1
            found = {stored.seq: stored for stored in with_gaps(store.releases(row, first, behind), first)}
            for k, stored in ((k, found.get(seq)) for k, seq in wanted.items()):
                if stored is not None:
                    made.codes[k], made.epsilons[k] = stored.code, stored.epsilon
                    if made.sent is not None and stored.path is not None:
                        made.sent[k] = stored.path, np.array(stored.codes, np.int64)

    def _draw(self, fresh: Rows, live: Live, randomness: Randomness | KeyedRandomness) -> Exception | None:
        """Make the new events, in rounds, batches one by one. What fails ends it, and takes back nothing before it."""
        source = randomness.of(self.names, self.made.seqs) if isinstance(randomness, KeyedRandomness) else randomness
        if self.setting.in_batches:
            turns = [fresh[k : k + 1] for k in range(fresh.size)]
        else:
            turns = [fresh[turn] for turn in rounds(self.slots[fresh])]
        for turn in turns:
            for at in range(0, turn.size, live.together):
                try:
                    self._turn(turn[at : at + live.together], live, source)
                except Exception as error:
                    return error
        return None

    def _turn(self, at: Rows, live: Live, source: Randomness) -> None:
        """Make one event of each of these users, or a batch of one; the states move first, so that what is noted is
        charged."""
        noted, own, times = self.made, rows(source, at), None if self.times is None else self.times[at]

        def take_step(state: State) -> tuple[Any, State]:
            """What was made of a symbol of each user; or of a batch, after its ε."""
            if not isinstance(self.raw, list):
                return stream.step(self.setting, state, self.raw[at], own, times)
            epsilons = allowance(self.setting, state, times)[0]
            sent, after = stream.step(self.setting, state, self.raw[at[0]], own, times)
            return (epsilons, sent), after

        made = live.move(self.slots[at], take_step, self.skips[at])
        if noted.sent is None:
            noted.codes[at], noted.epsilons[at] = made.codes, made.epsilons
            return
        noted.epsilons[at], sent = made
        noted.codes[at] = NOTHING if sent is None else 0
        if sent is not None:
            noted.sent[at[0]] = sent.path, np.asarray(sent.codes, np.int64)
            noted.leakages[at] = larger_side(sent.most, sent.least)

    def _fails(self, fresh: Rows, live: Live) -> InputError | None:
        """What is wrong with the new events, before any of them is drawn: their times, or how many they are."""
        try:
            if fresh.size:
                self._check_room(fresh, self._check_times(fresh, live), live)
        except InputError as error:
            if error.position is not None:
                error.position = int(fresh[error.position])
            return error
        return None

    def _check_times(self, fresh: Rows, live: Live) -> Ints | None:
        """Refuse times that go back, and new events that do not lie in their slots; where secrets follow the clock, the
        slots in which their streams began."""
        if self.times is None:
            return None
        who, seqs, times = self.slots[fresh], self.made.seqs[fresh], self.times[fresh]
        self.setting.budget.check_times(who, times, live.state.window.take(who).latest)
        if not self.setting.clocked:
            return None
        if ((self.skips[fresh] == seqs) & (seqs > 0)).any():
            raise InputError("secrets that follow the clock need the first event of each stream; send it first")
        slots = self.setting.slots.numbers(times)
        _, first, whose = np.unique(who, return_index=True, return_inverse=True)
        begun = np.where(live.state.steps[who] > 0, live.state.first[who], (slots - seqs)[first][whose])
        stream.check_slots(begun, seqs, slots)
        return begun

    def _check_room(self, fresh: Rows, slots: Ints | None, live: Live) -> None:
        """Refuse more events of a user than declared secrets were promised for, or more left out than they can pass."""
        skips, begun = self.skips[fresh], [self.setting.trackers]
        if self.setting.trackers is not None and skips.max() > MOST_WATCHED:
            raise BeyondSecrets(
                f"an event leaves {skips.max()} others out, and with declared secrets at most {MOST_WATCHED} can be "
                "given up at once; send the missing events, or check the numbers"
            )
        if slots is not None:  # whole days are promised, of which the first one has begun
            begun = [self.setting.trackers_from(slot) for slot in np.unique(slots).tolist()]
        limits = {each.limit: each.beyond for each in begun if each is not None and each.limit is not None}
        if not limits:
            return
        who, place = np.unique(self.slots[fresh], return_inverse=True)
        if (live.state.steps[who] + np.bincount(place, 1 + skips) > min(limits)).any():
            raise BeyondSecrets(
                f"a declared secret was promised for streams of at most {min(limits)} events, and a user has more; "
                f"{limits[min(limits)]}"
            )
