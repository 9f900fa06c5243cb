"""The store: releases that are on the disk before anyone sees them, each event released once and for all."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from seqveil.core import mechanisms
from seqveil.core.coins import Coins, KeyedCoins, SystemCoins, User, user_name
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.times import Time, seconds
from seqveil.release.roster import Accounts
from seqveil.release.setting import refuse_other
from seqveil.release.store.database import Database, Position, StoreError
from seqveil.release.store.live import Live, ldp_before, nats
from seqveil.release.store.migrations import UNKNOWN
from seqveil.release.store.plan import Gaps, plan_of
from seqveil.release.store.play import (
    BatchCall,
    BatchReleases,
    Made,
    Played,
    Releases,
    SymbolCall,
    UserAccount,
    times_fail,
)
from seqveil.release.store.records import GAP, Stored, codec_of
from seqveil.release.stream import Setting, budget_spent, raw_codes

Positions = Mapping[str, Position]


class Store:
    """Releases events of named users durably, in one process, with one file.

    *Guarantee*: a release is committed and synced before `release` returns it. Each event, a user and a sequence
    number that counts from 0, is drawn once: asked again, the store gives the same release back, whatever symbol comes
    with it, and charges nothing. What was drawn is never taken back, and no refusal depends on a draw that was: a call
    that cannot be (a code, an order or a time that is wrong) is refused before anything is drawn; where a user's budget
    is spent and the policy is "error", that event and the user's later ones are refused and stay open, everything else
    is committed, and then `BudgetSpent` is raised with it. Each user's stream is released as by a `Session` of its own.
    No raw symbol, and nothing computed from one but its release, is ever written. Threads may share a store.

    Parameters of `open`: the file; the setting, which must be that of the file's first use; `key`, 32 secret bytes
    (`seqveil.coins.key_file`), where an event that is drawn again after a crash must come out the same, or `coins` of
    another kind (the operating system's by default); `gaps`, what happens when a sequence number is left out: "refuse"
    (`OutOfOrder`) or "skip", which gives the missing events up; `memory`, the bytes that live states may take.

    >>> import tempfile
    >>> from seqveil.core.model import MarkovModel
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
        self._level = _level(setting, self.versions or [])
        self._live = Live(setting, memory, self._level)
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
        described = setting.signature
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
        times: Sequence[Time] | Floats | None = None,
        positions: Positions | Callable[[Releases], Positions] | None = None,
    ) -> Releases:
        """Release one symbol for each event, several of a user in a row where they come so, in one transaction.

        `times`, for a budget in seconds, are numbers or ISO 8601 text, read as `seqveil.core.times` says and kept in
        seconds. `positions` (how far some source was read, say) are committed with the releases, where none was
        refused; a function gets the releases first, those refused too.
        """
        if self.setting.in_batches:
            raise InputError(f"this store releases batches of {self.setting.batch}; use release_batches")
        raw = raw_codes(codes, self.setting.model.n)
        names, numbers, stamps = self._checked(users, seqs, raw.size, times)
        made = Releases.none(raw.size)
        return self._run(SymbolCall(self.setting, names, numbers, stamps, raw, made), made, positions)

    def release_batches(
        self,
        users: Sequence[User],
        seqs: Sequence[int] | Ints,
        batches: Sequence[Sequence[int] | Ints],
        times: Sequence[Time] | Floats | None = None,
        positions: Positions | Callable[[BatchReleases], Positions] | None = None,
    ) -> BatchReleases:
        """Release one batch for each event, in one transaction: the codes of its symbols, fewer than the setting's
        batch only at the end of a stream. Symbols that wait for their batch are the caller's and not for the disk."""
        if not self.setting.in_batches:
            raise InputError("this store releases one symbol at a time; use release")
        raw = [self._batch(k, codes) for k, codes in enumerate(batches)]
        names, numbers, stamps = self._checked(users, seqs, len(raw), times)
        made = BatchReleases.none(len(raw))
        return self._run(BatchCall(self.setting, names, numbers, stamps, raw, made), made, positions)

    def _batch(self, k: int, codes: Sequence[int] | Ints) -> Ints:
        try:
            raw = raw_codes(codes, self.setting.model.n)
        except InputError:
            raw = np.zeros(0, np.int64)
        if not 1 <= raw.size <= self.setting.batch:
            raise InputError(
                f"event {k}: expected a batch of 1 to {self.setting.batch} codes, whole numbers "
                f"0..{self.setting.model.n - 1}"
            )
        return raw

    def account(self, user: User) -> UserAccount | None:
        """Where a user stands; None for one who never came."""
        name = user_name(user)
        with self._lock, self._database.transaction():
            row = self._database.find([name])[0]
        if row is None:
            return None
        spent, most, least = nats(row.spent), nats(row.most), nats(row.least)
        leakage, total = max(most, -least, 0.0), self.setting.budget.total
        left = None if total is None else max(0.0, total - leakage)
        ldp = self._ldp(row.spent, row.ldp)
        return UserAccount(name, row.events, row.releases, leakage, most, least, spent, ldp, left, self.private)

    def _ldp(self, spent: int, kept: int) -> float:
        """The LDP figure of a ledger, and from above that of one that was written before it was kept."""
        return nats(kept) if kept != UNKNOWN else float(ldp_before(np.array([nats(spent)]), self._level)[0])

    def accounts(self) -> Accounts:
        """Where every user stands, in the order they came."""
        with self._lock, self._database.transaction():
            rows = self._database.everyone()
        names = [row[0] for row in rows]
        counts = np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2)
        figures = [[*map(nats, row[3:6]), self._ldp(row[3], row[6])] for row in rows]
        return Accounts(names, counts[:, 0], counts[:, 1], *np.array(figures, np.float64).reshape(-1, 4).T)

    def releases(self, user: User, since: int = 0) -> list[Stored]:
        """What was released of a user, from sequence number `since` on."""
        with self._lock, self._database.transaction():
            row = self._database.find([user_name(user)])[0]
            return [] if row is None else list(self._database.releases(row.id, row.events, since))

    def next_seqs(self, users: Sequence[User]) -> Ints:
        """The sequence number that comes next for each of these users: 0 for a new one."""
        with self._lock, self._database.transaction():
            rows = self._database.find([user_name(user) for user in users])
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
                    failure = self._release_all(call) or self._note_positions(made, positions)
            except BaseException:
                # the disk failed, whatever was drawn; what is live may be ahead of the file, so it is read again
                self._live.forget(call.names)
                raise
        refused = made.refused
        if failure is None and refused.any():
            failure = budget_spent(self.setting, refused)
        if failure is None:
            return made
        if isinstance(failure, SeqveilError):
            failure.made = made
        raise failure

    def _release_all(self, call: SymbolCall | BatchCall) -> Exception | None:
        """Release the groups one by one; why it ended early, if it did: then what was drawn before stands."""
        groups = list(self._groups(call.names))
        if len(groups) > 1:  # the first could be drawn before the order of the next is known to be wrong
            everyone = {name: k for k, name in enumerate(dict.fromkeys(call.names))}
            upcoming = [0 if row is None else row.events for row in self._database.find(list(everyone))]
            users = np.array([everyone[name] for name in call.names], np.intp)
            plan_of(users, call.seqs, np.array(upcoming, np.int64)[users], self._gaps)
            if self.setting.budget.seconds is not None:
                self._check_times(call, groups)
        drawn = False
        for group in groups:
            played = self._release(call, group)
            drawn = drawn or played.entry is not None
            if played.failure is not None and not drawn:
                raise played.failure  # nothing to keep: the call leaves no trace
            if played.failure is not None:
                return played.failure
        return None

    def _check_times(self, call: SymbolCall | BatchCall, groups: list[NDArray[np.intp]]) -> None:
        """Refuse wrong times of any group before the first is drawn."""
        for group in groups:
            slots = self._live.enter([call.names[k] for k in group.tolist()], self._database)
            plan = plan_of(slots, call.seqs[group], self._live.next_seqs(slots), self._gaps)
            failure = times_fail(call, plan, group, slots, self._live)
            if failure is not None:
                raise failure

    def _note_positions(
        self, made: Made, positions: Positions | Callable[[Made], Positions] | None
    ) -> Exception | None:
        """Write the positions; a function that fails takes back nothing but them."""
        if positions is None or (not callable(positions) and made.refused.any()):
            return None
        try:
            found = positions(made) if callable(positions) else positions
        except Exception as error:
            return error
        self._database.set_positions(found)
        return None

    def _release(self, call: SymbolCall | BatchCall, group: NDArray[np.intp]) -> Played:
        slots = self._live.enter([call.names[k] for k in group.tolist()], self._database)
        upcoming, ids = self._live.next_seqs(slots), self._live.ids(slots)
        plan = plan_of(slots, call.seqs[group], upcoming, self._gaps)
        if plan.old:
            wanted = [(int(ids[k]), int(call.seqs[group[k]])) for k in plan.old]
            found = self._database.stored(wanted)
            for k, event in zip(plan.old, wanted, strict=True):
                call.give_back(int(group[k]), found[event])
        played = call.play(plan, group, slots, self._live, self._coins) if plan.fresh.size else Played(None, None)
        if played.entry is not None:
            self._database.append(played.entry)
        following = self._live.next_seqs(slots)
        for k in plan.late:
            if call.seqs[group[k]] < following[k]:
                call.give_back(int(group[k]), Stored(int(call.seqs[group[k]]), GAP, 0.0, None, None, ()))
        for k, first in plan.twice:
            call.copy(int(group[k]), int(group[first]))
        return played

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
        self, users: Sequence[User], seqs: Sequence[int] | Ints, count: int, times: Sequence[Time] | Floats | None
    ) -> tuple[list[User], Ints, Floats | None]:
        names: list[User] = [
            user if type(user) is str else user_name(user, f"event {k}: ") for k, user in enumerate(users)
        ]
        numbers = np.asarray(seqs)
        if numbers.shape != (count,) or len(names) != count or (count and numbers.dtype.kind not in "iu"):
            raise InputError(f"expected {count} users and {count} whole sequence numbers, one of each an event")
        if count and (int(numbers.min()) < 0 or int(numbers.max()) >= 2**62):
            raise InputError(f"event {int((numbers < 0).argmax())}: expected a sequence number that counts from 0")
        if self.setting.budget.seconds is None:
            return names, numbers.astype(np.int64), None
        stamps = None if times is None else seconds(times)
        if stamps is None or stamps.shape != (count,):
            raise InputError("a budget per seconds needs the time of each event; pass times=…")
        return names, numbers.astype(np.int64), stamps

    def __repr__(self) -> str:
        return f"Store({self._database.name}, {self.setting.mechanism.name}, {len(self._live)} users live)"


def _level(setting: Setting, versions: list[dict[str, object]]) -> float:
    """The largest LDP level of the mechanisms that a file was released with."""
    levels = {setting.mechanism.name: setting.mechanism.ldp}
    for name in {str(version["mechanism"]) for version in versions} - levels.keys():
        try:
            levels[name] = mechanisms.find(name).ldp
        except InputError:  # one of the caller's own, of which nothing is known here
            levels[name] = math.inf
    return max(levels.values())


def _agree(database: Database, described: str, private: bool) -> None:
    """Write down what the file is for, or refuse to use it for something else."""
    known, was_private = database.fact("setting"), database.fact("private")
    if known is None:
        database.set_fact("setting", described)
        database.set_fact("private", "yes" if private else "no")
        return
    refuse_other(json.loads(known), json.loads(described), f"{database.name}:", "a new file")
    if was_private == "yes" and not private:
        raise InputError(f"{database.name}: holds private releases, so a seed cannot go on with it; leave it out")
