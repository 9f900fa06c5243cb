"""The users at work: their states in arrays, one row each, as many as fit; the others wait in the database.

A small state lies there as it is. A large one (an alphabet of thousands: a belief over 43,097 symbols is 340 KB) does
not: it follows from the releases, so a user who comes back is replayed from them, which is exact and costs no budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.coins import User
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import Account
from seqveil.release import batches, fleet, stream
from seqveil.release.accounting import Window
from seqveil.release.roster import SMALL
from seqveil.release.store.database import Database, Row
from seqveil.release.store.records import GAP, Stored
from seqveil.release.stream import Setting, State

UNIT = 2.0**32  # the ledger counts in 2**-32 nats
BOUNDLESS = 2**62  # what the ledger says of a leakage without bound (an unsound mechanism's)
BESIDE = 600  # bytes a live user takes beside its state
Slots = NDArray[np.intp]


class Live:
    """Live states of users by name. What is here and what the database says are the same, or the user is forgotten."""

    def __init__(self, setting: Setting, memory: int, level: float | None = None) -> None:
        self._setting = setting
        self._level = setting.mechanism.ldp if level is None else level  # of releases whose LDP figure was not kept
        self._sides = 1 if setting.in_batches or setting.model.full_support else setting.model.size
        width = 8 * (setting.model.size + 2 * self._sides)
        self.small = width <= SMALL
        self._bytes = 40 + width if self.small else 0  # of a packed state, without a window
        self.room = max(1, memory // (2 * width + BESIDE if self.small else 4 * width))
        self.state = self._start(0)
        self._ids, self._released, self._used = (np.zeros(0, np.int64) for _ in range(3))
        self._names: list[User] = []  # of each slot that was ever taken
        self._slot: dict[User, int] = {}
        self._free: list[int] = []
        self._now = 0

    def _start(self, users: int) -> State:
        fresh = State.start(self._setting, users)
        if not self._setting.in_batches:
            return fresh
        # batches charge one number a side, so the account needs no entry for each state of the chain
        sides = [np.zeros((users, 1)) for _ in range(2)]
        return replace(fresh, account=Account(np.zeros(users), np.zeros(users), *sides))

    def __len__(self) -> int:
        return len(self._slot)

    def enter(self, names: Sequence[User], database: Database) -> Slots:
        """The slots of these users, made live where they are not; at most `room` different ones."""
        self._now += 1
        slots = [self._slot.get(name, -1) for name in names]
        if -1 in slots:
            known = np.array([slot for slot in slots if slot >= 0], np.intp)
            self._used[known] = self._now  # not to be put aside now
            self._admit(list(dict.fromkeys(name for name, at in zip(names, slots, strict=True) if at < 0)), database)
            slots = [self._slot[name] for name in names]
        found = np.array(slots, np.intp)
        self._used[found] = self._now
        return found

    def forget(self, names: Sequence[User]) -> None:
        """Drop these users; they are read again from the database."""
        for name in names:
            slot = self._slot.pop(name, None)
            if slot is not None:
                self._free.append(slot)

    def _admit(self, names: list[User], database: Database) -> None:
        for name in names:
            _check_name(name)
        rows = database.find(names)
        new = [name for name, row in zip(names, rows, strict=True) if row is None]
        ids = iter(database.add(new, self._bytes)) if new else iter(())
        slots = self._claim(names)
        fleet.put(self.state, slots, self._start(len(names)))
        back: list[tuple[int, Row]] = []
        for slot, row in zip(slots.tolist(), rows, strict=True):
            self._ids[slot] = next(ids) if row is None else row.id
            self._released[slot] = 0 if row is None else row.releases
            if row is not None and row.events:
                back.append((slot, row))
        if self.small:
            self._unpack(back)
        else:
            for slot, row in back:
                self._replay(slot, list(database.releases(row.id, row.events)))

    def _claim(self, names: list[User]) -> Slots:
        """Free slots for these users, others put aside where there is no room."""
        missing = len(names) - len(self._free)
        size = len(self._names)
        if missing > 0 and size < self.room:
            more = min(self.room - size, max(missing, size, 64))
            self.state = fleet.join(self.state, self._start(more))
            nothing = np.zeros(more, np.int64)
            self._ids, self._released, self._used = (
                np.concatenate([a, nothing]) for a in (self._ids, self._released, self._used)
            )
            self._free += range(size + more - 1, size - 1, -1)
            self._names += [""] * more
        if len(self._free) < len(names):
            taken = np.array(list(self._slot.values()), np.intp)
            idle = taken[self._used[taken] < self._now]
            idle = idle[np.argsort(self._used[idle], kind="stable")]
            lacking = len(names) - len(self._free)
            self.forget([self._names[k] for k in idle[: max(lacking, self.room // 8 if self.small else 0)].tolist()])
        slots = [self._free.pop() for _ in names]
        for name, slot in zip(names, slots, strict=True):
            self._names[slot], self._slot[name], self._used[slot] = name, slot, self._now
        return np.array(slots, np.intp)

    # a state as bytes, and back

    def pack(self, slots: Slots) -> bytes:
        """The exact states of these users, all of one size; nothing for large ones."""
        if not self.small:
            return b""
        part = fleet.take(self.state, slots)
        account, window = part.account, part.window
        numbers = np.column_stack([part.spent, part.saved, account.most, account.least])
        ldp = part.ldp[:, None]
        wide = (numbers, part.states, account.ahead_most, account.ahead_least, ldp, window.costs, window.stamps)
        return np.concatenate(wide, axis=1).astype("<f8", copy=False).tobytes()

    def _unpack(self, rows: list[tuple[int, Row]]) -> None:
        """States as they were packed, those of one size at a time: how far windows look back differs.

        A window has two numbers a release, so an even rest tells a state that was packed before its LDP figure was
        kept: that is then Σε times the largest level of the mechanisms so far.
        """
        sizes: dict[int, list[tuple[int, Row]]] = {}
        for slot, row in rows:
            sizes.setdefault(len(row.state), []).append((slot, row))
        for group in sizes.values():
            table = np.frombuffer(b"".join(row.state for _, row in group), "<f8").reshape(len(group), -1)
            fixed = [1, 1, 1, 1, self._setting.model.size, self._sides, self._sides]
            looks = table.shape[1] - sum(fixed)
            if looks < 0:
                raise DataError("a user's state does not fit this setting; restore the state file from a backup")
            places = np.cumsum([*fixed, looks % 2, looks // 2])
            spent, saved, most, least, states, up, down, kept, costs, stamps = np.split(table, places, axis=1)
            account = Account(most[:, 0], least[:, 0], up, down)
            steps = np.array([row.events for _, row in group], np.int64)
            ldp = kept[:, 0] if looks % 2 else ldp_before(spent[:, 0], self._level)
            part = State(states, steps, spent[:, 0], saved[:, 0], account, Window(costs, stamps), ldp)
            fleet.put(self.state, np.array([slot for slot, _ in group], np.intp), part)

    def _replay(self, slot: int, told: list[Stored]) -> None:
        """The state that these releases imply, as any receiver computes it."""
        rows, setting = np.array([slot], np.intp), self._setting
        state = self._start(1)
        for stored in told:
            if stored.code == GAP:
                state = skipped(setting, state)
            elif setting.in_batches:
                _, state = batches.observe(setting, state, stored.path, stored.events, stored.time)
            else:
                stamp = None if stored.time is None else np.array([stored.time])
                _, state = stream.observe(setting, state, np.array([stored.code], np.int64), stamp)
        fleet.put(self.state, rows, state)

    # what the store does with them

    def next_seqs(self, slots: Slots) -> Ints:
        return self.state.steps[slots]

    def ids(self, slots: Slots) -> Ints:
        return self._ids[slots]

    def count_releases(self, slots: Slots) -> None:
        np.add.at(self._released, slots, 1)

    def ledger(self, slots: Slots) -> Ints:
        """Id, events, releases, Σε, both sides of the leakage and the LDP level, in units of 2**-32, rounded outward:
        (K, 7)."""
        state = self.state
        account = state.account
        columns = [self._ids[slots], state.steps[slots], self._released[slots]]
        columns += [units(state.spent[slots]), units(account.most[slots]), -units(-account.least[slots])]
        columns += [units(state.ldp[slots])]
        return np.stack(columns, axis=1).astype("<i8", copy=False)


def skipped(setting: Setting, state: State) -> State:
    """The state after an event that nobody released: the belief moves on, nothing is charged."""
    states, account = state.states, state.account
    for _ in range(setting.batch):
        states, account = filtering.predict(setting.model, states), account.skip(setting.model)
    return replace(state, states=states, steps=state.steps + 1, account=account)


def ldp_before(spent: Floats, level: float) -> Floats:
    """The LDP figure of releases that were made before it was kept: Σε times the largest level they can have had."""
    return np.where(spent > 0, level * np.where(spent > 0, spent, 1.0), 0.0)


def units(values: Floats) -> Ints:
    """Nats as whole numbers of 2**-32, never less than they are.

    >>> units(np.array([1.0, 1e-20, -0.75, np.inf])).tolist()
    [4294967296, 1, -3221225472, 4611686018427387904]
    """
    return np.ceil(np.clip(values * UNIT, -BOUNDLESS, BOUNDLESS)).astype(np.int64)


def nats(count: int) -> float:
    """Units back as nats: exact below 2**21 nats, and never less than the truth above."""
    if abs(count) >= BOUNDLESS:
        return float("inf") if count > 0 else float("-inf")
    return count / UNIT if abs(count) < 2**53 else float(np.nextafter(count / UNIT, np.inf if count > 0 else -np.inf))


def _check_name(name: User) -> None:
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise InputError("expected users that are UTF-8 text or whole numbers; name them so") from None
