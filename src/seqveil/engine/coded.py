"""CodeStreams of named users: each event released once and for all, in memory or on the disk before anyone sees it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, Randomness, SystemRandomness, User, known_as, user_name
from seqveil.core.times import Time, seconds
from seqveil.engine import upkeep
from seqveil.engine.calls import NEXT, Call, Gaps, OutOfOrder, Seen, Watch, first_gap, plan_of
from seqveil.engine.live import Live
from seqveil.engine.releases import EARLIER, Account, Accounts, Figures, Path, Releases
from seqveil.engine.secrets import SecretTotal, totals
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import (
    ERASED,
    GAP,
    Entry,
    Memory,
    NoLongerKept,
    Position,
    StateStore,
    StoreBusy,
    Stored,
    StoreError,
    checked_positions,
    with_gaps,
)
from seqveil.engine.stream import NOTHING, REFUSED, TIMELESS, TIMELESS_SECRETS, Terms, raw_codes, released_codes
from seqveil.engine.upkeep import Verified

__all__ = [
    "EARLIER",
    "GAP",
    "NOTHING",
    "REFUSED",
    "Account",
    "Accounts",
    "CodeStreams",
    "OutOfOrder",
    "Releases",
    "StateStore",
    "StoreBusy",
    "StoreError",
    "Stored",
]

MEMORY = 1 << 30
Positions = Mapping[str, Position]


class CodeStreams:
    """Releases events of named users by their codes, all on the same terms: what `Streams`, files, the service, the
    bridges and Spark are built on.

    *Guarantee*: each user's stream is released exactly as by a `Session` of its own, whoever else is there, however its
    events are cut into calls, and however often its state was put aside. Each event, a user and a sequence number that
    counts from 0, is drawn once: asked again, the same release is given back, whatever symbol comes with it, and
    nothing is charged. What was drawn is never taken back, and no refusal depends on a draw that was: a call that
    cannot be (a code, an order or a time that is wrong) is refused before anything is drawn. With a state file (`open`)
    a release is committed and synced before `release` returns it, and no raw symbol, nor anything computed from one but
    its release, is ever written. Threads may share streams.

    Parameters:
        setting: the model, the mechanism, ε, the budget: everything public about the releases.
        store: where users are kept; in memory by default.
        randomness: the operating system's by default; keyed (`KeyedRandomness`) where an event that is drawn
            again after a crash must come out the same.
        gaps: what happens when a sequence number is left out: "refuse" (`OutOfOrder`), or "skip", which gives the
            missing events up.
        memory: bytes that live states may take. Small states in memory all stay live.
        watch: called with each batch that is drawn: the state before it, what was sent, and its ε.
        seen: called with each round of single symbols that is released or observed: whose they are, and what was made.

    *Declared secrets* are about a user, whose name stands for the person: there is no second stream
    of the same user, later events go on with the same account, and a restart does not begin it anew. A secret about
    the stream as it ends is about all events of the user, at most 1000; one event more is refused.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> streams = CodeStreams(setting, randomness=SeededRandomness(1))
    >>> made = streams.release(["ann", "bob", "ann"], [0, 1, 0])
    >>> made.epsilons.tolist(), streams.accounts().users, streams.accounts().events.tolist()
    ([1.0, 1.0, 1.0], ['ann', 'bob'], [2, 1])
    >>> again = streams.release(["bob", "bob"], [0, 1], seqs=[0, 1])
    >>> bool(again.codes[0] == made.codes[1]), again.replayed.tolist(), streams.account("bob").events
    (True, [True, False], 2)
    """

    def __init__(
        self,
        setting: Terms,
        store: StateStore | None = None,
        randomness: Randomness | KeyedRandomness | None = None,
        *,
        gaps: Gaps = "refuse",
        memory: int = MEMORY,
        tracker: Watch | None = None,
        seen: Seen | None = None,
    ) -> None:
        if gaps not in ("refuse", "skip"):
            raise InputError(f'expected gaps to be "refuse" or "skip", got {gaps!r}')
        self.setting, self._gaps, self._source = setting, gaps, randomness or SystemRandomness()
        self._tracker, self._seen = tracker, seen
        self._store: StateStore = Memory() if store is None else store
        if self._store.durable:
            check_bits(setting, self._source)
        self._randomness = self._randomness_of_store()
        private = self._store.fact("private")
        self.private = self._randomness.private if private is None else private == "yes"
        # whether the ledger began with these streams, and when it did, in seconds since 1970 where that is known
        self.begun, began = bool(getattr(self._store, "begun", True)), self._store.fact("begun")
        self.began = None if began is None else float(began)
        self._memory, self._history = memory, self._earlier()
        self._live = Live(self._history, self._store, memory)
        self.committed: float | None = None  # when the latest call was kept, in seconds since 1970
        self._lock = threading.RLock()
        self._open = True
        self._key: bytes | None = None  # of the state file

    def _earlier(self) -> list[Terms]:
        """The terms of these streams, after those that they had with earlier models."""
        kept = upkeep.models(self._store.facts()[0])[:-1] if isinstance(self._store, SqliteStore) else []
        return [*(self.setting.policy.on(model) for model in kept), self.setting]

    @property
    def models(self) -> int:
        """How many models the releases were drawn with: one, and each that was adopted since."""
        return len(self._history)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        setting: Terms,
        *,
        key: bytes | None = None,
        randomness: Randomness | KeyedRandomness | None = None,
        gaps: Gaps = "refuse",
        memory: int = 1 << 28,
        must_exist: bool = False,
    ) -> CodeStreams:
        """Open a state file, or make it; refuses a file of another model, setting or key, or one that is in use.

        Parameters:
            path: the file.
            setting: that of the file's first use.
            key: 32 secret bytes (`seqveil.randomness.key_file`) for draws that are the same if an event is drawn again.
            randomness: of another kind; a key or randomness, not both.
            gaps: as for `CodeStreams`.
            memory: as for `CodeStreams`.
            must_exist: refuse a file that is missing or empty, rather than begin one whose ledger starts at zero.
        """
        chosen = randomness_for(key, randomness)
        check_bits(setting, chosen)
        file = upkeep.opened(path, setting, chosen.private, key, must_exist)
        try:
            found = cls(setting, file, chosen, gaps=gaps, memory=memory)
            found._key = key
            return found
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> CodeStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Tidy the store and let others have it. Nothing depends on it: a process may as well be killed."""
        with self._lock:
            if self._open:
                self._open = False
                self._store.close()

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
                entries = live.adopted(self._store.everyone()[0])
                for entry in entries:
                    self._store.append(entry)
                erased = upkeep.adopt(self._store, history) if isinstance(self._store, SqliteStore) else 0
            self.setting, self._history, self._live = history[-1], history, live
            self._randomness = self._randomness_of_store()
        return Adopted.of(self.setting, entries, erased)

    def release(
        self,
        users: Sequence[User],
        symbols: Sequence[int] | Ints | Sequence[Sequence[int] | Ints],
        seqs: Sequence[int] | Ints | None = None,
        times: Sequence[Time] | Floats | None = None,
        positions: Positions | Callable[[Releases], Positions] | None = None,
    ) -> Releases:
        """Release one event for each user named, several of a user in a row where they come so, in one transaction.

        Parameters:
            users: text or whole numbers.
            symbols: the code of each event; where the setting releases batches, the codes of each batch, at most as
                many as the setting's batch. A shorter one costs as much, and its length is public: let it be the last
                of a stream, or follow from public things alone. Symbols that wait for their batch are the caller's.
            seqs: the sequence number of each event; without them each is the next one of its user.
            times: for a budget in seconds, numbers or ISO 8601 text, read as `seqveil.core.times` says.
            positions: (how far some source was read, say) kept with the releases, where all were made; a function gets
                the releases first.
        """
        return self._run(self._call(users, self._raw(symbols), seqs, times, tracker=self._tracker), positions)

    def check(
        self,
        users: Sequence[User],
        symbols: Sequence[int] | Ints | Sequence[Sequence[int] | Ints],
        seqs: Sequence[int] | Ints | None = None,
        times: Sequence[Time] | Floats | None = None,
    ) -> None:
        """Refuse what `release` would refuse before it draws anything (an order, a time, a length); nothing is drawn.

        For whoever releases a call in parts: those after the first may still find that somebody else released in
        between.

        Parameters:
            users: as for `release`.
            symbols: as for `release`.
            seqs: as for `release`.
            times: as for `release`.
        """
        call = self._call(users, self._raw(symbols), seqs, times)
        with self._lock:
            known = self._live.known_seqs(call.names)
            try:
                with self._store.transaction():
                    if groups := list(self._groups(call.names)):
                        self._check(call, groups)
                    raise _NothingToKeep  # users who came with this call alone are not there yet
            except _NothingToKeep:
                pass
            finally:
                self._live.undo([name for name in dict.fromkeys(call.names) if name not in known])

    def observe(
        self,
        users: Sequence[User],
        releases: Sequence[int] | Ints | Sequence[Path | None],
        times: Sequence[Time] | Floats | None = None,
        sizes: Sequence[int] | None = None,
        epsilons: Floats | None = None,
    ) -> Releases:
        """Take releases in, each the next one of its user, as a receiver does: nothing private is needed.

        Refuses releases that this setting cannot have made. What comes back has the ε that each used, and what each
        disclosed by itself (`leakages`).

        Parameters:
            users: whose they are.
            releases: codes, NOTHING where an event went without or was withheld; for batches their paths, None for such
                a one.
            times: as for `release`.
            sizes: how many symbols each batch has; the setting's batch by default.
            epsilons: of blocks, the ε that the record has, which say where one was cut before its end.
        """
        if not self.setting.in_batches:
            codes, claimed = released_codes(self.setting, releases), epsilons if self.setting.in_blocks else None
            return self._run(self._call(users, codes, None, times, observed=True, claimed=claimed), None)
        paths: list[Any] = list(releases)
        lengths = [self.setting.batch] * len(paths) if sizes is None else sizes
        raw = [np.zeros(length, np.int64) for length in lengths]
        return self._run(self._call(users, raw, None, times, observed=True, paths=paths), None)

    def _raw(self, symbols: Any) -> Ints | list[Ints]:
        if not self.setting.in_batches:
            return raw_codes(symbols, self.setting.model.n)
        return [self._batch(k, codes) for k, codes in enumerate(symbols)]

    def _batch(self, k: int, codes: Any) -> Ints:
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

    def misplaced(self, calls: Sequence[tuple[Sequence[User], Sequence[int]]]) -> list[OutOfOrder | None]:
        """Which of several calls, each of users and sequence numbers, would be refused for their order.

        Each is looked at after those before it that would not be. Nothing is changed.
        """
        users = list(dict.fromkeys(self._named(user) for names, _ in calls for user in names))
        with self._lock:
            upcoming = self._live.known_seqs(users)
            # whose first event this is, as far as is known, cannot have left any out: that needs no look at the store
            later = {self._named(user) for names, seqs in calls for user, seq in zip(names, seqs, strict=True) if seq}
            unknown = [user for user in users if user not in upcoming and user in later]
            if unknown:
                with self._store.transaction():
                    rows = self._store.find(unknown)
                upcoming |= {user: 0 if row is None else row.events for user, row in zip(unknown, rows, strict=True)}
        return [first_gap(names, seqs, upcoming, self._gaps) for names, seqs in calls]

    @property
    def file(self) -> str | None:
        """The path of the state file; None for streams that have none."""
        return getattr(self._store, "path", None)

    @property
    def gaps(self) -> Gaps:
        """What happens when a sequence number is left out."""
        return self._gaps

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        with self._lock:
            return self._store.position(source)

    def _randomness_of_store(self) -> Randomness | KeyedRandomness:
        """Where draws come from: keyed randomness belongs to this setting and this store alone."""
        if not isinstance(self._source, KeyedRandomness):
            return self._source
        return self._source.of_state(self.setting.signature, self._store.salt)

    def _run(self, call: Call, positions: Positions | Callable[[Releases], Positions] | None) -> Releases:
        made = call.made
        if positions is not None and not callable(positions):
            positions = checked_positions(positions)
        with self._lock:
            self._refuse_closed()
            try:
                with self._store.transaction():
                    failure = self._play(call) or self._note_positions(made, positions)
            except BaseException:
                # the disk failed, whatever was drawn; what is live may be ahead of the file, so it is read again
                self._live.undo(call.names)
                raise
            self.committed = time.time()
        if failure is None:
            return made
        raise _with(failure, made)

    def _play(self, call: Call) -> Exception | None:
        """Release the groups one by one; why it ended early, if it did: then what was drawn before stands."""
        groups = list(self._groups(call.names))
        if len(groups) > 1:  # the first group could be drawn before the next is known to be wrong
            self._check(call, groups)
        drawn = False
        for group in groups:
            stands, failure = call.play(group, self._live, self._store, self._randomness, self._gaps)
            drawn = drawn or stands
            if failure is not None and not drawn:  # nothing to keep: the call leaves no trace
                raise _with(failure, call.made)
            if failure is not None:
                return failure
        return None

    def _check(self, call: Call, groups: Sequence[NDArray[np.intp]]) -> None:
        """Refuse a wrong order, wrong times, or more events than were promised for; nothing is drawn."""
        if call.made.seqs[0] != NEXT:
            everyone = {name: k for k, name in enumerate(dict.fromkeys(call.names))}
            upcoming = [0 if row is None else row.events for row in self._store.find(list(everyone))]
            users = np.array([everyone[name] for name in call.names], np.intp)
            plan_of(users, call.made.seqs, np.array(upcoming, np.int64)[users], self._gaps)
        if self.setting.timed or self.setting.trackers is not None:
            for group in groups:
                call.check(group, self._live, self._gaps)

    def _note_positions(
        self, made: Releases, positions: Positions | Callable[[Releases], Positions] | None
    ) -> BaseException | None:
        """Write the positions; a function that fails takes back nothing but them.

        It has seen what was drawn, so whatever it does, or gives back that cannot be kept, the draws are committed.
        """
        if positions is None:
            return None
        try:
            found = checked_positions(positions(made)) if callable(positions) else positions
        except BaseException as error:
            return error
        self._store.set_positions(found)
        return None

    def _groups(self, names: Sequence[User]) -> Iterator[NDArray[np.intp]]:
        """The events in groups whose users can be live together."""
        if len(names) <= self._live.room or len(everyone := list(dict.fromkeys(names))) <= self._live.room:
            if names:
                yield np.arange(len(names))
            return
        number = {name: k // self._live.room for k, name in enumerate(everyone)}
        groups = np.array([number[name] for name in names], np.intp)
        for group in range(int(groups.max()) + 1):
            yield np.flatnonzero(groups == group)

    def _call(
        self,
        users: Sequence[User],
        raw: Ints | list[Ints],
        seqs: Sequence[int] | Ints | None,
        times: Sequence[Time] | Floats | None,
        **how: Any,
    ) -> Call:
        """The events, checked before anything of them is drawn."""
        count = len(raw)
        names: list[User] = [
            user if type(user) is str else str(user) if type(user) is int else self._named(user, f"event {k}: ")
            for k, user in enumerate(users)
        ]
        numbers = np.full(count, NEXT, np.int64) if seqs is None else np.asarray(seqs)
        if numbers.shape != (count,) or len(names) != count or (count and numbers.dtype.kind not in "iu"):
            raise InputError(f"expected {count} users and {count} whole sequence numbers, one of each an event")
        extremes = numbers if count == 1 else (numbers.min(initial=0), numbers.max(initial=0))
        if seqs is not None and not all(0 <= int(each) < 2**62 for each in extremes):
            raise InputError(f"event {int((numbers < 0).argmax())}: expected a sequence number that counts from 0")
        stamps = None
        if self.setting.timed and count:
            stamps = None if times is None else seconds(times)
            if stamps is None or stamps.shape != (count,):
                raise InputError(TIMELESS_SECRETS if self.setting.clocked else TIMELESS)
        made = Releases.none(numbers.astype(np.int64), self.setting.in_batches, self.setting.in_blocks)
        return Call(self.setting, names, stamps, made, raw, seen=self._seen, **how)

    def _named(self, user: Any, where: str = "") -> Any:
        """A user's name; in memory anything hashable may be one."""
        return user_name(user, where) if self._store.durable else known_as(user)

    def __repr__(self) -> str:
        return f"CodeStreams({self._store.name}, {self.setting.mechanism.name}, {len(self._live)} users live)"


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


def check_bits(setting: Terms, randomness: Randomness | KeyedRandomness) -> None:
    """Refuse blocks whose state is stored without a key: the hidden bit of a block is never stored."""
    if setting.in_blocks and not isinstance(randomness, KeyedRandomness):
        raise InputError(
            "blocks with a stored state need a key, from which the hidden bit of each block follows; pass a key"
        )


class _NothingToKeep(Exception):
    """Ends a transaction that was only for looking."""


def _with(failure: BaseException, made: Releases) -> BaseException:
    if isinstance(failure, SeqveilError):
        failure.made = made
    return failure


def randomness_for(
    key: bytes | None, randomness: Randomness | KeyedRandomness | None = None
) -> Randomness | KeyedRandomness:
    """Randomness from a key, or that which was passed, or the operating system's."""
    if key is not None and randomness is not None:
        raise InputError("pass a key or randomness, not both")
    return KeyedRandomness(key) if key is not None else randomness or SystemRandomness()
