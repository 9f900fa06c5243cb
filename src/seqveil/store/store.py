"""The store: releases that are on the disk before anyone sees them, each event released once and for all."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from seqveil.coins import Coins, KeyedCoins, SystemCoins, User
from seqveil.errors import InputError, ModelError
from seqveil.kernel import Floats, Ints
from seqveil.roster import Accounts
from seqveil.store.database import Database, Position, StoreError
from seqveil.store.live import Live, nats
from seqveil.store.plan import Gaps, plan_of
from seqveil.store.play import BatchCall, BatchReleases, Releases, SymbolCall, UserAccount
from seqveil.store.records import GAP, Stored, codec_of
from seqveil.stream import Setting, not_raw

Made = TypeVar("Made", Releases, BatchReleases)
Positions = Mapping[str, Position]


class Store:
    """Releases events of named users durably, in one process, with one file.

    *Guarantee*: a release is committed and synced before `release` returns it. Each event, a user and a sequence
    number that counts from 0, is drawn once: asked again, the store gives the same release back, whatever symbol comes
    with it, and charges nothing. A call is released whole or not at all. Each user's stream is released as by a
    `Session` of its own. No raw symbol, and nothing computed from one but its release, is ever written.

    Parameters of `open`: the file; the setting, which must be that of the file's first use; `key`, 32 secret bytes
    (`seqveil.coins.key_file`), where an event that is drawn again after a crash must come out the same, or `coins` of
    another kind (the operating system's by default); `gaps`, what happens when a sequence number is left out: "refuse"
    (`OutOfOrder`) or "skip", which gives the missing events up; `memory`, the bytes that live states may take.

    >>> import tempfile
    >>> from seqveil.model import MarkovModel
    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/state.db", setting) as store:
    ...     first = store.release(["ann", "bob"], [0, 0], [0, 1])
    ...     again = store.release(["bob", "bob"], [0, 1], [0, 1])
    ...     bool(again.codes[0] == first.codes[1]), again.replayed.tolist(), store.account("bob").events
    (True, [True, False], 2)
    """

    def __init__(
        self, database: Database, setting: Setting, coins: Coins | KeyedCoins, gaps: Gaps, memory: int
    ) -> None:
        self.setting, self._database, self._coins, self._gaps = setting, database, coins, gaps
        self.private = database.fact("private") == "yes"
        listed = database.fact("versions")  # settings before and now, where the file moved on to another model
        self.versions: list[dict[str, object]] | None = None if listed is None else json.loads(listed)
        self._codec = codec_of(setting)
        self._live = Live(setting, memory)
        self._lock = threading.RLock()
        self._open = True

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        setting: Setting,
        *,
        key: bytes | None = None,
        coins: Coins | KeyedCoins | None = None,
        gaps: Gaps = "refuse",
        memory: int = 1 << 28,
    ) -> Store:
        """Open the state file, or make it; refuses a file of another model or setting, or one that is in use."""
        if key is not None and coins is not None:
            raise InputError("pass a key or coins, not both")
        if gaps not in ("refuse", "skip"):
            raise InputError(f'expected gaps to be "refuse" or "skip", got {gaps!r}')
        described = described_as(setting)
        chosen = KeyedCoins(key, described.encode()) if key is not None else coins or SystemCoins()
        database = Database(path, codec_of(setting))
        try:
            with database.transaction():
                _agree(database, described, chosen.private)
            return cls(database, setting, chosen, gaps, memory)
        except BaseException:
            database.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Tidy the file and let others have it. Nothing depends on it: a process may as well be killed."""
        with self._lock:
            if self._open:
                self._open = False
                self._database.close()

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the file as it is now. Going on from an older copy draws the events since then again: see the docs."""
        with self._lock:
            self._database.backup(path)

    def release(
        self,
        users: Sequence[User],
        seqs: Sequence[int] | Ints,
        codes: Sequence[int] | Ints,
        times: Sequence[float] | Floats | None = None,
        positions: Positions | Callable[[Releases], Positions] | None = None,
    ) -> Releases:
        """Release one symbol for each event, several of a user in a row where they come so, in one transaction.

        `times` are in seconds, for a budget that counts in them. `positions` (how far some source was read, say) are
        committed with the releases; a function gets those first.
        """
        if self.setting.in_batches:
            raise InputError(f"this store releases batches of {self.setting.batch}; use release_batches")
        raw = np.asarray(codes, np.int64)
        wrong = np.flatnonzero(not_raw(raw, self.setting.model.n))
        if wrong.size:
            raise InputError(f"event {wrong[0]}: expected codes 0..{self.setting.model.n - 1}; encode the symbol")
        names, numbers, stamps = self._checked(users, seqs, raw.size, times)
        made = Releases(np.empty(raw.size, np.int64), np.empty(raw.size), np.zeros(raw.size, bool))
        return self._run(SymbolCall(self.setting, names, numbers, stamps, raw, made), made, positions)

    def release_batches(
        self,
        users: Sequence[User],
        seqs: Sequence[int] | Ints,
        batches: Sequence[Sequence[int] | Ints],
        times: Sequence[float] | Floats | None = None,
        positions: Positions | Callable[[BatchReleases], Positions] | None = None,
    ) -> BatchReleases:
        """Release one batch for each event, in one transaction: the codes of its symbols, fewer than the setting's
        batch only at the end of a stream. Symbols that wait for their batch are the caller's and not for the disk."""
        if not self.setting.in_batches:
            raise InputError("this store releases one symbol at a time; use release")
        raw = [np.asarray(codes, np.int64) for codes in batches]
        for k, codes in enumerate(raw):
            if not 1 <= codes.size <= self.setting.batch or not_raw(codes, self.setting.model.n).any():
                raise InputError(
                    f"event {k}: expected a batch of 1 to {self.setting.batch} codes 0..{self.setting.model.n - 1}"
                )
        names, numbers, stamps = self._checked(users, seqs, len(raw), times)
        none, count = np.zeros(0, np.int64), len(raw)
        made = BatchReleases(
            [None] * count, [none] * count, np.empty(count), np.zeros(count, bool), np.full(count, np.nan)
        )
        return self._run(BatchCall(self.setting, names, numbers, stamps, raw, made), made, positions)

    def account(self, user: User) -> UserAccount | None:
        """Where a user stands; None for one who never came."""
        with self._lock, self._database.transaction():
            row = self._database.find([user])[0]
        if row is None:
            return None
        spent, most, least = nats(row.spent), nats(row.most), nats(row.least)
        leakage, total = max(most, -least, 0.0), self.setting.budget.total
        ldp = self.setting.mechanism.ldp * spent if spent else 0.0
        left = None if total is None else max(0.0, total - leakage)
        return UserAccount(user, row.events, row.releases, leakage, most, least, spent, ldp, left, self.private)

    def accounts(self) -> Accounts:
        """Where every user stands, in the order they came."""
        with self._lock, self._database.transaction():
            rows = self._database.everyone()
        names = [row[0] for row in rows]
        counts = np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2)
        figures = np.array([[nats(value) for value in row[3:]] for row in rows], np.float64).reshape(-1, 3)
        return Accounts(names, counts[:, 0], counts[:, 1], *figures.T)

    def releases(self, user: User, since: int = 0) -> list[Stored]:
        """What was released of a user, from sequence number `since` on."""
        with self._lock, self._database.transaction():
            row = self._database.find([user])[0]
            return [] if row is None else list(self._database.releases(row.id, row.events, since))

    def next_seqs(self, users: Sequence[User]) -> Ints:
        """The sequence number that comes next for each of these users: 0 for a new one."""
        with self._lock, self._database.transaction():
            rows = self._database.find(users)
        return np.array([0 if row is None else row.events for row in rows], np.int64)

    def position(self, source: str) -> Position | None:
        """What was last committed as the position of this source."""
        with self._lock:
            return self._database.position(source)

    def _run(
        self,
        call: SymbolCall | BatchCall,
        made: Made,
        positions: Positions | Callable[[Made], Positions] | None,
    ) -> Made:
        with self._lock:
            if not self._open:
                raise StoreError("the store is closed; open it again")
            try:
                with self._database.transaction():
                    if self._database.full:
                        self._database.settle()
                    for group in self._groups(call.names):
                        self._release(call, group)
                    if positions is not None:
                        self._database.set_positions(positions(made) if callable(positions) else positions)
            except BaseException:
                # nobody has seen what was drawn; what is live may be ahead of the file, so it is read again
                self._live.forget(call.names)
                raise
            return made

    def _release(self, call: SymbolCall | BatchCall, group: NDArray[np.intp]) -> None:
        slots = self._live.enter([call.names[k] for k in group.tolist()], self._database)
        upcoming, ids = self._live.next_seqs(slots), self._live.ids(slots)
        plan = plan_of(slots, call.seqs[group], upcoming, self._gaps)
        if plan.old:
            wanted = [(int(ids[k]), int(call.seqs[group[k]])) for k in plan.old]
            found = self._database.stored(wanted)
            for k, event in zip(plan.old, wanted, strict=True):
                call.give_back(int(group[k]), found[event])
        if plan.fresh.size:
            self._database.append(call.play(plan, group, slots, self._live, self._coins))
        for k in plan.late:
            call.give_back(int(group[k]), Stored(int(call.seqs[group[k]]), GAP, 0.0, None, None, ()))
        for k, first in plan.twice:
            call.copy(int(group[k]), int(group[first]))

    def _groups(self, names: Sequence[User]) -> Iterator[NDArray[np.intp]]:
        """The events in groups whose users can be live together."""
        everyone = list(dict.fromkeys(names))
        if len(everyone) <= self._live.room:
            if names:
                yield np.arange(len(names))
            return
        number = {name: k // self._live.room for k, name in enumerate(everyone)}
        groups = np.array([number[name] for name in names], np.intp)
        for group in range(int(groups.max()) + 1):
            yield np.flatnonzero(groups == group)

    def _checked(
        self, users: Sequence[User], seqs: Sequence[int] | Ints, count: int, times: Sequence[float] | Floats | None
    ) -> tuple[list[User], Ints, Floats | None]:
        names = [user if type(user) is str else _plain(k, user) for k, user in enumerate(users)]
        numbers = np.asarray(seqs)
        if numbers.shape != (count,) or len(names) != count or (count and numbers.dtype.kind not in "iu"):
            raise InputError(f"expected {count} users and {count} whole sequence numbers, one of each an event")
        if count and (int(numbers.min()) < 0 or int(numbers.max()) >= 2**62):
            raise InputError(f"event {int((numbers < 0).argmax())}: expected a sequence number that counts from 0")
        if self.setting.budget.seconds is None:
            return names, numbers.astype(np.int64), None
        stamps = None if times is None else np.asarray(times, np.float64)
        if stamps is None or stamps.shape != (count,):
            raise InputError("a budget per seconds needs the time of each event; pass times=…")
        return names, numbers.astype(np.int64), stamps

    def __repr__(self) -> str:
        return f"Store({self._database.name}, {self.setting.mechanism.name}, {len(self._live)} users live)"


def _plain(place: int, user: object) -> User:
    if isinstance(user, (int, np.integer)) and not isinstance(user, bool):
        return int(user)
    if isinstance(user, str):
        return str(user)
    raise InputError(f"event {place}: expected a user that is text or a whole number, got {type(user).__name__}")


def described_as(setting: Setting) -> str:
    """The setting as text that differs wherever two settings release differently."""
    costs = hashlib.sha256()
    for part in (setting.distortion.points, setting.distortion.table):
        costs.update(b"-" if part is None else np.ascontiguousarray(part, "<f8").tobytes())
    return json.dumps(setting.describe() | {"costs": costs.hexdigest()}, sort_keys=True)


def _agree(database: Database, described: str, private: bool) -> None:
    """Write down what the file is for, or refuse to use it for something else."""
    known, was_private = database.fact("setting"), database.fact("private")
    if known is None:
        database.set_fact("setting", described)
        database.set_fact("private", "yes" if private else "no")
        return
    before, now = json.loads(known), json.loads(described)
    if before["model"] != now["model"]:
        raise ModelError(f"{database.name}: belongs to another model; use the model of its first run, or a new file")
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if differing:
        raise InputError(
            f"{database.name}: was begun with another {' and '.join(differing)}; use the options of its first run, or "
            "a new file"
        )
    if was_private == "yes" and not private:
        raise InputError(f"{database.name}: holds private releases, so a seed cannot go on with it; leave it out")
