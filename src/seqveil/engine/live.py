"""The users at work: their states in arrays, one row each, as many as fit; the others wait in the store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.leakage import pass_over
from seqveil.core.randomness import User
from seqveil.core.secrets import SecretTrackers
from seqveil.engine import batches, blocks, packing, step, stream
from seqveil.engine.state import Made, Private, State
from seqveil.engine.store import ERASED, Entry, Erased, StateStore, Stored, UserRow
from seqveil.engine.stream import Terms

BESIDE = 600  # bytes a live user takes beside its state
LOST = -1  # what is remembered of a raw stream of which nothing is
TOGETHER = 1000  # users that are replayed side by side
NONE = np.zeros(0, np.int64)
NOTHING: tuple[Any, ...] = (NONE, NONE, NONE, NONE, np.zeros(0), None, None)  # the columns of no releases
Slots = NDArray[np.intp]
Act = Callable[[State, Private], tuple[Made, State, Private]]


class Live:
    """Live states of users by name. What is here and what a durable store says are the same, or the user is forgotten.

    Parameters:
        history: the terms of all users, after those that they had with earlier models.
        store: where they wait.
        memory: bytes that live states may take. Where the store is memory itself, small states all stay live.
    """

    def __init__(self, history: Sequence[Terms], store: StateStore, memory: int) -> None:
        self._history, self._setting, self._store = history, history[-1], store
        width, self._small = packing.width(self._setting), packing.small(self._setting)
        # as it is; else users come back by replay of their releases
        self._kept = self._small or not store.durable or not store.keeps_releases
        self._epoch = packing.epoch_of(store.salt)
        self._private: dict[User, Private] = {}  # of those who wait in memory
        self.room = max(1, memory // (2 * width + BESIDE if self._small else 4 * width))
        if self._small and not store.durable:
            self.room = sys.maxsize
        self._remembers = not store.durable or store.sealing is not None  # else kernels go by symbol, from the first on
        self.state, self.private = State.start(self._setting, 0), Private.start(self._setting, 0)
        self._ids, self._released, self._used = (np.zeros(0, np.int64) for _ in range(3))
        self._names: list[User] = []  # of each slot that was ever taken
        self._slot: dict[User, int] = {}
        self._free: list[int] = []
        self._now = 0

    def __len__(self) -> int:
        return len(self._slot)

    def enter(self, names: Sequence[User]) -> Slots:
        """The slots of these users, made live where they are not; at most `room` different ones."""
        self._now += 1
        slots = list(map(self._slot.get, names))
        if None in slots:
            known = np.array([slot for slot in slots if slot is not None], np.intp)
            self._used[known] = self._now  # not to be put aside now
            self._admit(list(dict.fromkeys(name for name, at in zip(names, slots, strict=True) if at is None)))
            slots = list(map(self._slot.get, names))
        found = np.array(slots, np.intp)
        self._used[found] = self._now
        return found

    def undo(self, names: Sequence[User]) -> None:
        """After a call that failed: what is here may be ahead of a durable store, which is then read again."""
        self._forget(names if self._store.durable else [n for n in names if self._store.find([n])[0] is None])

    def _forget(self, names: Sequence[User]) -> None:
        for name in names:
            slot = self._slot.pop(name, None)
            if slot is not None:
                self._free.append(slot)

    def _admit(self, names: list[User]) -> None:
        for name in names:
            _check_name(name)
        rows = self._store.find(names)
        new = [name for name, row in zip(names, rows, strict=True) if row is None]
        ids = iter(self._store.add(new)) if new else iter(())
        slots = self._claim(names)
        self.state.put(slots, State.start(self._setting, len(names)))
        self.private.put(slots, Private.start(self._setting, len(names)))
        if self.private.memory is not None and not self._remembers:
            self.private.memory[slots] = LOST
        back: dict[int, list[tuple[int, UserRow]]] = {}  # by the size of the state: how far windows look back differs
        for slot, row in zip(slots.tolist(), rows, strict=True):
            self._ids[slot] = next(ids) if row is None else row.id
            self._released[slot] = 0 if row is None else row.releases
            if row is not None and row.erased:
                self._return(slot, row)
            elif row is not None and row.events:
                back.setdefault(len(row.state), []).append((slot, row))
        for group in back.values():
            at, known = np.array([slot for slot, _ in group], np.intp), [row for _, row in group]
            self.state.put(at, self._restored(known))
            self._find_private(at.tolist(), known)

    def _find_private(self, slots: list[int], rows: list[UserRow]) -> None:
        """What is private of users who come back: from memory, or opened; the bit of a block follows from the key.

        A block that was begun in another epoch has lost its bit, and is cut.
        """
        for slot, row in zip(slots, rows, strict=True):
            at, waiting = np.array([slot], np.intp), self._private.pop(self._names[slot], None)
            if waiting is not None:
                self.private.put(at, waiting)
            elif self.private.memory is not None:
                self.private.memory[slot] = self._opened(self._names[slot], row)
            if self._setting.in_blocks and self._store.durable and not packing.of_epoch(row, self._epoch):
                self.state.put(at, blocks.cut(self._setting, self.state.take(at)))

    def _restored(self, rows: list[UserRow]) -> State:
        if self._kept:
            return packing.unpack(self._setting, rows)
        return replayed(self._history, [list(self._store.releases(row)) for row in rows], self._remembers)

    def _return(self, slot: int, row: UserRow) -> None:
        """Someone who was erased comes back: a new stream, whose budget goes on."""
        if self._setting.trackers is not None or not self._small:
            name = self._names[slot]
            self._forget([name])
            raise Erased(
                f"{self._store.name}: a user was erased, and with declared secrets or states this large nothing more "
                "can be released of this user; all others go on",
                [name],
            )
        stub = next(self._store.releases(row), None)
        self.state.put(np.array([slot], np.intp), packing.returned(self._setting, row, stub))

    def _opened(self, name: User, row: UserRow) -> Ints:
        """What is sealed of a user; where nothing is, kernels go by symbol alone from the next event on."""
        if self._store.sealing is None or row.sealed is None:
            assert self.private.memory is not None
            return np.full(self.private.memory.shape[1], LOST)
        return self._store.sealing.open(name, row.events, row.sealed)

    def _claim(self, names: list[User]) -> Slots:
        """Free slots for these users, others put aside where there is no room."""
        missing = len(names) - len(self._free)
        size = len(self._names)
        if missing > 0 and size < self.room:
            more = min(self.room - size, max(missing, size, 64))
            self.state = self.state.join(State.start(self._setting, more))
            self.private = self.private.join(Private.start(self._setting, more))
            nothing = np.zeros(more, np.int64)
            self._ids, self._released, self._used = (
                np.concatenate([a, nothing]) for a in (self._ids, self._released, self._used)
            )
            self._free += range(size + more - 1, size - 1, -1)
            self._names += [""] * more
        if len(self._free) < len(names):
            self._put_aside(len(names) - len(self._free))
        slots = [self._free.pop() for _ in names]
        for name, slot in zip(names, slots, strict=True):
            self._names[slot], self._slot[name], self._used[slot] = name, slot, self._now
        return np.array(slots, np.intp)

    def _put_aside(self, lacking: int) -> None:
        """Make room: those who were here longest ago leave."""
        taken = np.array(list(self._slot.values()), np.intp)
        idle = taken[self._used[taken] < self._now]
        idle = idle[np.argsort(self._used[idle], kind="stable")]
        leaving = idle[: max(lacking, self.room // 8 if self._small else 0)]
        if not self._store.durable:
            for slot in leaving.tolist() if self.private.held else ():
                self._private[self._names[slot]] = self.private.take(np.array([slot], np.intp))
            self._store.append(self._entry(leaving, self._packed(leaving), *NOTHING))
        self._forget([self._names[k] for k in leaving.tolist()])

    # what calls do with them

    def move(self, slots: Slots, act: Act[Made], skips: Ints | None = None) -> Made:
        """Let these users, each once, take a step, and first give up so many events of each; what the step made."""

        def moved(part: State) -> tuple[Made, State]:
            made, after, private = act(part, self.private.take(slots))
            self.private.put(slots, private)
            return made, after

        if skips is None:
            made, self.state = self.state.move(slots, moved)
            return made
        part = self.state.take(slots)
        for count in np.unique(skips[skips > 0]).tolist():
            waiting = np.flatnonzero(skips == count)
            part.put(waiting, skipped(self._setting, part.take(waiting), count))
        made, after = moved(part)
        self.state.put(slots, after)
        return made

    def known_seqs(self, names: Sequence[User]) -> dict[User, int]:
        """The sequence number that comes next of those users who are live."""
        live = [name for name in names if name in self._slot]
        steps = self.state.steps[[self._slot[name] for name in live]].tolist() if live else []
        return dict(zip(live, steps, strict=True))

    def next_seqs(self, slots: Slots) -> Ints:
        """The sequence number that each of these users' next event has."""
        return self.state.steps[slots]

    def trackers(self, name: User) -> SecretTrackers | None:
        """The accounts of declared secrets of a user whom the store knows; None where no secret is declared."""
        slot = self.enter([name])[0]  # which may bring other arrays
        found: SecretTrackers | None = None if self.state.trackers is None else self.state.trackers[slot]
        return found

    def entry(self, slots: Slots, released: Slots, *releases: Any) -> Entry:
        """What a call leaves for the store: users at `slots` took events, those at `released` one release each.

        `releases` are the columns of the releases, from their numbers on, as an `Entry` has them.
        """
        touched = slots
        if slots.size == 1:
            self._released[released] += 1
        else:
            np.add.at(self._released, released, 1)
            ordered = np.sort(slots)
            touched = ordered[np.append(True, ordered[1:] != ordered[:-1])]  # much faster here than np.unique
        states = self._packed(touched) if self._store.durable else b""
        return self._entry(touched, states, self._ids[slots], *releases)

    def _packed(self, slots: Slots) -> bytes:
        if not self._kept:
            return packing.epoch_alone(self._setting, slots.size, self._epoch)
        return packing.pack(self.state.take(slots), self._epoch)

    def _entry(self, slots: Slots, states: bytes, *releases: Any) -> Entry:
        counts = np.column_stack([self.state.steps[slots], self._released[slots]])
        names: list[User] = [self._names[slot] for slot in slots.tolist()]
        sealed: list[bytes | None] | None = None
        if self.private.memory is not None and self._store.sealing is not None:
            private = zip(names, counts[:, 0].tolist(), self.private.memory[slots], strict=True)
            sealed = [self._store.sealing.close(*each) for each in private]
        ledger = self._ids[slots], names, counts, _figures(self.state, slots)
        return Entry(*ledger, states, sealed, len(self._history) - 1, *releases)

    def adopted(self, names: Sequence[User]) -> Iterator[Entry]:
        """What the store has to keep of these users so that the last terms of the history are theirs; nothing is live.

        Belief, leakage and the accounts of secrets become those that the last model gives to the kernels that were
        drawn from. Σε and the LDP level are the same under any model.
        """
        for at in range(0, len(names), TOGETHER):
            some = list(names[at : at + TOGETHER])
            rows = [row for row in self._store.find(some) if row is not None]
            state = replayed(self._history, [list(self._store.releases(row)) for row in rows], self._remembers)
            state = replace(state, spent=np.array([row.spent for row in rows]), ldp=np.array([row.ldp for row in rows]))
            counts, states = np.array([row[1:3] for row in rows], np.int64), b""
            if self._kept:
                states = packing.pack(state, self._epoch)
            ledger = np.array([row.id for row in rows]), some, counts, _figures(state, slice(None))
            yield Entry(*ledger, states, [row.sealed for row in rows], 0, *NOTHING)


def _figures(state: State, rows: Slots | slice) -> NDArray[np.float64]:
    account = state.account
    return np.column_stack([state.spent[rows], account.most[rows], account.least[rows], state.ldp[rows]])


def replayed(history: Sequence[Terms], streams: Sequence[Sequence[Stored]], remembers: bool = True) -> State:
    """The states under the last of these terms that releases imply, one row a stream, as any receiver computes them.

    Each release is taken in by the column of the kernel that it was drawn from: that of the terms it was made on, at
    the state that they had come to. So whichever model chose the kernels, what was released is weighed by the last one.
    """
    states = [State.start(terms, len(streams)) for terms in history]
    for row, stored in ((row, kept[0]) for row, kept in enumerate(streams) if kept and kept[0].code == ERASED):
        for terms, state in zip(history, states, strict=True):
            state.put(np.array([row]), packing.returned(terms, packing.beyond(stored), stored))
    for turn in range(max(map(len, streams), default=0)):
        alike: dict[tuple[int, int, int], list[int]] = {}  # batches are taken in one by one
        for row, kept in enumerate(streams):
            if turn < len(kept) and kept[turn].code != ERASED:
                key = kept[turn].model, kept[turn].skipped, row if history[-1].in_batches else 0
                alike.setdefault(key, []).append(row)
        for (model, _, _), rows in alike.items():
            at, some = np.array(rows, np.intp), [streams[row][turn] for row in rows]
            parts = _taken_in(history[model:], [state.take(at) for state in states[model:]], some, remembers)
            for state, part in zip(states[model:], parts, strict=True):
                state.put(at, part)
    return states[-1]


def _taken_in(
    history: Sequence[Terms], states: Sequence[State], made: Sequence[Stored], remembers: bool
) -> list[State]:
    """The states of some users after a release of each, drawn on the first of these terms, under all of them."""
    terms, one = history[0], made[0]
    if one.skipped:
        states = [skipped(each, state, one.skipped) for each, state in zip(history, states, strict=True)]
    if terms.in_batches:
        return [batches.observe(terms, states[0], one.path if one.released else None, one.events, one.time)[1]]
    codes, epsilons = np.array([each.code for each in made]), np.array([each.epsilon for each in made])
    times = None if one.time is None else np.array([each.time for each in made])
    seen, after = step.observe(
        terms, states[0], codes, times, epsilons, None if remembers else np.ones(len(made), bool)
    )
    if not isinstance(seen, stream.Released):  # blocks, which no other model goes on with
        return [after]
    later = [
        stream.take_in(each, stream.located(each, state, times), seen.columns, epsilons, times)[1]
        for each, state in zip(history[1:], states[1:], strict=True)
    ]
    return [after, *later]


def skipped(setting: Terms, state: State, events: int = 1) -> State:
    """The state after events that nobody released: the belief moves on, nothing is charged."""
    if setting.in_blocks:
        return blocks.passed(setting, state, events)
    trackers = state.trackers
    states, account = pass_over(setting.model, state.states, state.account, events * setting.batch)
    if trackers is not None:  # as a release that says the same whatever the truth is
        for _ in range(events):
            trackers = stream.observed(trackers, np.ones((len(state), setting.model.n), np.int64))
    return replace(state, states=states, steps=state.steps + events, account=account, trackers=trackers)


def _check_name(name: User) -> None:
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise InputError("expected users that are UTF-8 text or whole numbers; name them so") from None
