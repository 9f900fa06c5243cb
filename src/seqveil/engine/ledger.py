"""What is kept of the users of streams, for whoever reads it or looks after it: accounts, releases, erasures."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, Randomness, User, known_as, user_name
from seqveil.engine import upkeep
from seqveil.engine.live import Live
from seqveil.engine.releases import Account, Accounts, Figures
from seqveil.engine.secrets import SecretTotal, totals
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import (
    ERASED,
    POSITION,
    Entry,
    NoLongerKept,
    Position,
    StateStore,
    Stored,
    StoreError,
    with_gaps,
)
from seqveil.engine.terms import Terms
from seqveil.engine.upkeep import Verified


class Ledger:
    """The users of a store on the same terms: what they disclosed, and what an operator does with them.

    Nothing is released here. `CodeStreams` releases, under the same lock.
    """

    setting: Terms
    private: bool
    _store: StateStore
    _source: Randomness | KeyedRandomness
    _live: Live
    _history: list[Terms]  # the terms with earlier models, then the present ones
    _memory: int
    _lock: threading.RLock
    _open: bool
    _key: bytes | None  # of the state file

    @property
    def file(self) -> str | None:
        """The path of the state file; None for streams that have none."""
        return getattr(self._store, "path", None)

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """What is kept now: a state file as it is committed, so that nobody who releases waits for who reads."""
        if isinstance(self._store, SqliteStore):
            with self._store.snapshot() as records:
                yield records
        else:
            with self._lock, self._store.transaction():
                yield self._store

    def account(self, user: User) -> Account | None:
        """What a user's releases have disclosed; None for one who never came."""
        name, trackers = self._named(user), None
        with self._reading() as records:
            row = records.find([name])[0]
        if row is None:
            return None
        if self.setting.trackers is not None:
            with self._lock, self._store.transaction():
                row, trackers = self._store.find([name])[0] or row, self._live.trackers(name)
        figures = Figures(row.events, row.releases, row.most, row.least, row.spent, row.ldp)
        return Account.of(self.setting, name, figures, self.private, () if trackers is None else trackers.worst())

    def accounts(self) -> Accounts:
        """The accounts of all users, in the order they came."""
        with self._reading() as records:
            names, counts, figures = records.everyone()
        spent, most, least, ldp = figures.T
        return Accounts(list(names), counts[:, 0], counts[:, 1], spent, most, least, ldp)

    def names(self) -> list[User]:
        """Every user who was not erased, in the order they came; also those whose records are damaged."""
        with self._reading() as records:
            if isinstance(self._store, SqliteStore):
                return [name for _, name, _ in records.users() if isinstance(name, str)]
            return list(records.everyone()[0])

    def secrets(self) -> list[SecretTotal]:
        """The most that any user's releases disclosed about each declared secret, in the order of declaration."""
        if not self.setting.secrets:
            return []
        with self._lock, self._store.transaction():
            names = self._store.everyone()[0]
            trackers = (self._live.trackers(name) for name in names)
            return totals(self.setting.secrets, trackers, [secret.total for secret in self.setting.secrets])

    def releases(self, user: User, since: int = 0, limit: int | None = None) -> list[Stored]:
        """What was released of a user, from sequence number `since` on, at most `limit` of them."""
        with self._reading() as records:
            row = records.find([self._named(user)])[0]
            kept = () if row is None else with_gaps(records.releases(row, since), since)
            found = list(islice(kept, limit))
        if found and found[0].code == ERASED:
            raise NoLongerKept(self._store.name, found[0].seq + 1)
        return found

    def leakages(self) -> tuple[Floats, int]:
        """What every user's stream has disclosed, in order of arrival, and how many damaged users are left out."""
        if not isinstance(self._store, SqliteStore):
            return self.accounts().leakage, 0
        with self._reading() as records:
            rows = [row for _, _, row in records.users()]
        disclosed = [max(row.most, -row.least, 0.0) for row in rows if row is not None]
        return np.array(disclosed), len(rows) - len(disclosed)

    def next_seqs(self, users: Sequence[User]) -> Ints:
        """The sequence number that comes next for each of these users: 0 for a new one."""
        with self._reading() as records:
            rows = records.find([self._named(user) for user in users])
        return np.array([0 if row is None else row.events for row in rows], np.int64)

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        with self._lock:
            found: Position | None = self._store.fact(POSITION + source)
            return found

    def backup(self, path: str | os.PathLike[str]) -> Verified:
        """Copy the state file as it is committed now, and check the copy; nobody who releases waits for it.

        Going on from an older copy draws the events since then again: see the docs.
        """
        file = self._state_file("can streams be copied")
        file.check_place()
        return upkeep.backup(file.path, path)

    def erase(self, users: Sequence[User], forget_ledger: bool = False) -> tuple[int, list[str]]:
        """Take users out of the state file, as `seqveil state erase` does: releases, state and name.

        Returns how many releases that were, and the sources whose positions still have one of the names in them.
        Whoever releases waits meanwhile, for the file is written anew.

        Parameters:
            users: all are erased, or none.
            forget_ledger: drop the ledgers too. Else their totals stay, each under a keyed hash of the name.
        """
        names, file = [self._named(user) for user in users], self._state_file("can a user be erased")
        with self._lock:
            self._refuse_closed()
            try:
                return upkeep.erase_from(file, names, self._key, forget_ledger)
            finally:
                self._randomness = self._randomness_of_store()  # the file is in another epoch
                self._live = Live(self._history, self._store, self._memory)

    def _state_file(self, what: str) -> SqliteStore:
        if not isinstance(self._store, SqliteStore):
            raise InputError(f'only from a state file {what}; begin with store="state.db"')
        return self._store

    def _refuse_closed(self) -> None:
        if not self._open:
            raise StoreError("the store is closed; open it again")

    def adopt(self, model: MarkovModel) -> Adopted:
        """Go on with another model of the same values, fitted anew, say; the policy stays, and so do the budgets.

        *Guarantee*: belief, leakage and the accounts of declared secrets are from now on those of the new model, exact
        for the kernels that the releases so far were drawn from, so that every later release keeps its ε under the new
        model. Of releases that were erased only the LDP level goes on, which bounds what they disclosed under any
        model.

        All stored releases are replayed, in one transaction; whoever releases waits meanwhile.
        """
        if not isinstance(model, MarkovModel):
            raise InputError(f"expected a MarkovModel, as fit gives it; got {type(model).__name__}")
        setting, values = self.setting, self.setting.model.alphabet
        if model.alphabet.fingerprint() != values.fingerprint() or model.alphabet.slots != values.slots:
            raise InputError("expected a model of the same values as the one before; fit it with that one's alphabet")
        # with a delta the total rests on the ε of every release, which an earlier one may pass under another model
        if (
            setting.in_batches or setting.in_blocks
            or setting.budget.delta is not None or not self._store.keeps_releases
        ):  # fmt: skip
            raise InputError(
                "expected single releases that are kept, of a budget without delta, as only these can be weighed by "
                "another model; begin new streams, whose account starts at zero"
            )
        with self._lock:
            self._refuse_closed()
            history = [*self._history, setting.policy.on(model)]
            live = Live(history, self._store, self._memory)
            with self._store.transaction():
                entries = list(live.adopted(self._store.everyone()[0]))
                for entry in entries:
                    self._store.append(entry)
                erased = upkeep.adopt(self._store, history) if isinstance(self._store, SqliteStore) else 0
            self.setting, self._history, self._live = history[-1], history, live
            self._randomness = self._randomness_of_store()
        return Adopted.of(self.setting, entries, erased)

    def _randomness_of_store(self) -> Randomness | KeyedRandomness:
        """Where draws come from: keyed randomness belongs to this setting and this store alone."""
        if not isinstance(self._source, KeyedRandomness):
            return self._source
        return self._source.of_state(self.setting.signature, self._store.salt)

    def _named(self, user: Any, where: str = "") -> Any:
        """A user's name; in memory anything hashable may be one."""
        return user_name(user, where) if self._store.durable else known_as(user)


class Adopted(NamedTuple):
    """What came of adopting a model."""

    users: int  # whose releases were replayed
    erased: int  # of whom all or the first releases are erased: only their LDP level goes on
    beyond: int  # who are past the total of the budget under the new model, so that nothing is left of it

    @classmethod
    def of(cls, terms: Terms, entries: Sequence[Entry], erased: int) -> Adopted:
        """From what the store was given."""
        figures = np.concatenate([entry.figures for entry in entries]) if entries else np.zeros((0, 4))
        total = np.inf if terms.budget.exact_total is None else terms.budget.exact_total
        return cls(len(figures), erased, int((larger_side(figures[:, 1], figures[:, 2]) > total).sum()))
