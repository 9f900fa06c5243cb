"""Streams of named users: each event released once and for all, in memory or on the disk before anyone sees it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NoReturn, Self

import numpy as np

from seqveil.core.errors import DataError, InputError, SeqveilError, UnknownSymbol, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, Randomness, User, user_name
from seqveil.core.randomness import randomness as seeded
from seqveil.core.times import Time, seconds
from seqveil.engine import upkeep
from seqveil.engine.budget import TIMELESS
from seqveil.engine.calls import NEXT, Call, Gaps, Live
from seqveil.engine.policy import Policy, Terms, policy_of
from seqveil.engine.secrets import SecretTotal, totals
from seqveil.engine.sqlite import SETTING, FilePath, SqliteStore, reading
from seqveil.engine.store import (
    POSITION,
    Account,
    Accounts,
    Erased,
    Memory,
    Path,
    Position,
    Release,
    Releases,
    StateStore,
    Stored,
    StoreError,
    UserRow,
    checked_positions,
    with_gaps,
)
from seqveil.engine.stream import NOTHING, REFUSED, TIMELESS_SECRETS, gate

MEMORY = 1 << 28
Users = Sequence[User]  # text or whole numbers
Values = Sequence[Any] | Ints
Seqs = Sequence[int] | Ints | None
Times = Sequence[Time] | Floats | None
Positions = Mapping[str, Position]
Noted = Positions | Callable[[Releases], Positions] | None


class CodeStreams:
    """Releases events of named users by their codes, as files, the service, the bridges and Spark have them.

    *Guarantee*: each user's stream is released exactly as by a `Session` of its own, however its events are cut into
    calls. Each event, a user and a sequence number that counts from 0, is drawn once: asked again, the same release is
    given back, whatever symbol comes with it, and nothing is charged. What was drawn is never taken back, and no
    refusal depends on a draw: a code, an order or a time that is wrong is refused before it. With a state file a
    release is committed and synced before `release` returns it, and no raw symbol, nor anything computed from one but
    its release, is ever written in the clear. Threads may share streams.

    Parameters:
        setting: everything public about the releases.
        store: None for memory, the path of a state file (made if it is missing), or a store.
        randomness: the operating system's by default.
        key: 32 secret bytes (`seqveil.randomness.key_file`) in place of `randomness`: what is drawn again after a crash
            comes out the same. Blocks with a state file need one, for their bits follow from it.
        gaps: whether a sequence number that leaves others out is refused (`OutOfOrder`), or gives them up ("skip").
        memory: bytes that live states may take, where others can wait in a state file.
        must_exist: refuse a state file that is missing or empty, rather than begin one whose ledger starts at zero.
    """

    def __init__(
        self,
        setting: Terms,
        store: StateStore | FilePath | None = None,
        randomness: Randomness | KeyedRandomness | None = None,
        *,
        key: bytes | None = None,
        gaps: Gaps = "refuse",
        memory: int = MEMORY,
        must_exist: bool = False,
    ) -> None:
        if gaps not in ("refuse", "skip"):
            raise InputError(f'expected gaps to be "refuse" or "skip", got {gaps!r}')
        if key is not None and randomness is not None:
            raise InputError("pass a key or randomness, not both")
        source = KeyedRandomness(key) if key is not None else randomness or seeded()
        path, kept = (store, None) if isinstance(store, str | os.PathLike) else (None, store or Memory())
        if kept is None or kept.durable:
            if setting.in_blocks and not isinstance(source, KeyedRandomness):
                raise InputError(
                    "blocks with a stored state need a key, from which the hidden bit of each block follows; pass one "
                    f"by {option('key')}"
                )
            if (key if kept is None else kept.sealing) is None:  # what is remembered could not be kept
                setting = setting.by_symbol
        self.gaps, self._source, self._key, self._memory = gaps, source, key, memory
        self.committed: float | None = None  # when the latest call was kept, in seconds since 1970
        self._lock, self._open = threading.RLock(), True
        self._store = kept or upkeep.opened(path or "", setting, source.private, key, must_exist)
        self.file: str | None = getattr(self._store, "path", None)  # the state file
        try:
            private, began = self._store.fact("private"), self._store.fact("begun")
            self.private = source.private if private is None else private == "yes"
            # whether the ledger began with these streams, and when it did, in seconds since 1970 where that is known
            self.begun, self.began = getattr(self._store, "begun", True), None if began is None else float(began)
            earlier = upkeep.models(self._store.facts())[:-1] if isinstance(self._store, SqliteStore) else []
            self._go_on([*(setting.policy.on(model) for model in earlier), setting])
        except BaseException:
            self._store.close()
            raise

    def _go_on(self, history: list[Terms]) -> None:
        """Work with the store as it is now, on the last of these terms, after those with earlier models."""
        self._history, self.setting = history, history[-1]
        self._live, self._randomness = Live(history, self._store, self._memory), self._source
        if isinstance(self._source, KeyedRandomness):  # which belongs to this setting and this store alone
            self._randomness = self._source.of_state(self.setting.signature, self._store.salt)

    @staticmethod
    def open(path: FilePath, setting: Terms, **how: Any) -> CodeStreams:
        """Open a state file, or make it; refuses a file of another model, setting or key, or one that is in use."""
        return CodeStreams(setting, path, **how)

    @property
    def models(self) -> int:
        """How many models the releases were drawn with: one, and each that was adopted since."""
        return len(self._history)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses `copy` and `pickle`: two of the same streams would each release them, and count apart."""
        raise InputError("streams cannot be copied, as each copy would count its own releases alone; open them again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Tidy the store and let others have it. Nothing depends on it: a process may as well be killed."""
        with self._lock:
            if self._open:
                self._open = False
                self._store.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store.name}, {self.setting.mechanism.name}, {len(self._live)} users live)"

    # releasing

    def release(
        self, users: Users, symbols: Values, seqs: Seqs = None, times: Times = None, positions: Noted = None
    ) -> Releases:
        """Release events of users, several of a user in a row where they come so, in one transaction.

        Parameters:
            users: text or whole numbers.
            symbols: the code of each event; or the codes of each batch, at most as many as the setting's batch. A
                shorter one costs as much, and what decides its length must be public.
            seqs: the sequence number of each event; without them each is the next one of its user.
            times: where the setting is `timed`: numbers or ISO 8601 text, read as `seqveil.core.times` says.
            positions: how far some source was read, kept with the releases; a function gets them first.
        """
        call = self._call(users, symbols, seqs, times)
        made = call.made
        if positions is not None and not callable(positions):
            positions = checked_positions(positions)
        with self._lock:
            self._refuse_closed()
            try:
                with self._store.transaction():
                    failure = call.play(self._live, self._store, self._randomness, self.gaps)
                    failure = failure or self._note_positions(made, positions)
            except BaseException:  # the order was wrong; or the disk failed, whatever was drawn
                self._live.undo(call.names)
                raise
            if failure is None:
                self.committed = time.time()
                return made
            self._live.undo(call.names)
        if isinstance(failure, SeqveilError):
            failure.made = made
        raise failure

    def _batch(self, k: int, codes: Any) -> Ints:
        with suppress(InputError):
            raw = gate(codes, self.setting.model.n)
            if 1 <= raw.size <= self.setting.batch:
                return raw
        raise InputError(
            f"event {k}: expected a batch of 1 to {self.setting.batch} codes, whole numbers "
            f"0..{self.setting.model.n - 1}"
        )

    def _call(self, users: Users, symbols: Values, seqs: Seqs, times: Times) -> Call:
        """The events, checked before anything of them is drawn."""
        raw: Ints | list[Ints]
        if self.setting.in_batches:
            raw = [self._batch(*each) for each in enumerate(symbols)]
        else:
            raw = gate(symbols, self.setting.model.n)
        count = len(raw)
        names = [user if type(user) is str else user_name(user, f"event {k}: ") for k, user in enumerate(users)]
        numbers = np.full(count, NEXT, np.int64) if seqs is None else np.asarray(seqs)
        if numbers.shape != (count,) or len(names) != count or (count and numbers.dtype.kind not in "iu"):
            raise InputError(f"expected {count} users and {count} whole sequence numbers, one of each an event")
        wrong = (numbers < 0) | (numbers >= 2**62)
        if seqs is not None and wrong.any():
            raise InputError(f"event {int(wrong.argmax())}: expected a sequence number that counts from 0")
        stamps = None
        if self.setting.timed and count:
            stamps = None if times is None else seconds(times)
            if stamps is None or stamps.shape != (count,):
                raise InputError(TIMELESS_SECRETS if self.setting.clocked else TIMELESS)
        sent: list[tuple[Path, Ints] | None] | None = [None] * count if self.setting.in_batches else None
        columns = np.full(count, REFUSED), numbers.astype(np.int64), np.zeros(count), np.zeros(count, bool)
        made = Releases(*columns, np.full(count, np.nan), sent, self.setting.model.alphabet, self.setting.in_blocks)
        return Call(self.setting, names, stamps, made, raw)

    def _note_positions(self, made: Releases, positions: Noted) -> BaseException | None:
        """Write the positions; a function that fails has seen what was drawn, and takes back nothing but them."""
        if positions is None:
            return None
        try:
            found = checked_positions(positions(made)) if callable(positions) else positions
        except BaseException as error:
            return error
        self._store.set_facts({POSITION + source: position for source, position in found.items()})
        return None

    # what is kept of users

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """What is kept now: a state file as it is committed, so that nobody who releases waits for who reads."""
        if isinstance(self._store, SqliteStore):
            self._store.check_place()
            with reading(self._store.path, self._store.hasher) as records:
                yield records
        else:
            with self._lock, self._store.transaction():
                yield self._store

    def account(self, user: User) -> Account | None:
        """What a user's releases have disclosed; None for one who never came."""
        name, trackers = user_name(user), None
        with self._reading() as records:
            row = records.find([name])[0]
        if row is None:
            return None
        if self.setting.trackers is not None:
            with self._lock, self._store.transaction():
                row, trackers = self._store.find([name])[0] or row, self._live.trackers(name)
        return Account.of(self.setting, name, row, self.private, trackers)

    def accounts(self) -> Accounts:
        """The accounts of all users, in the order they came."""
        found: dict[str, UserRow] = {}
        with self._reading() as records:
            for user, name, row in records.users():
                if row is None:
                    raise records.damaged(user, [str(name)])
                if not row.erased:
                    found[str(name)] = row
        return Accounts.of(found)

    def names(self) -> list[str]:
        """Every user who was not erased, in the order they came; also those whose records are damaged."""
        with self._reading() as records:
            return [name for _, name, _ in records.users() if not isinstance(name, bytes)]

    def leakages(self) -> tuple[Floats, int]:
        """What every user's stream has disclosed, in order of arrival, and how many damaged users are left out."""
        with self._reading() as records:
            rows = [row for _, _, row in records.users()]
        disclosed = [max(row.most, -row.least, 0.0) for row in rows if row is not None]
        return np.array(disclosed), len(rows) - len(disclosed)

    def secrets(self) -> list[SecretTotal]:
        """The most that any user's releases disclosed about each declared secret, in the order of declaration."""
        if not self.setting.secrets:
            return []
        with self._lock, self._store.transaction():
            trackers = (self._live.trackers(name) for name in self.names())
            return totals(self.setting.secrets, trackers, [secret.total for secret in self.setting.secrets])

    def releases(self, user: User, since: int = 0, limit: int | None = None) -> list[Stored]:
        """What was released of a user, from sequence number `since` on, at most `limit` of them."""
        with self._reading() as records:
            row = records.find([user_name(user)])[0]
            kept = (
                ()
                if row is None
                else with_gaps(records.releases(row, since, None if limit is None else since + limit), since)
            )
            found = list(islice(kept, limit))
        if row is not None and row.erased:
            raise Erased([user_name(user)])
        return found

    def next_seqs(self, users: Users) -> Ints:
        """The sequence number that comes next for each of these users: 0 for a new one."""
        with self._reading() as records:
            rows = records.find([user_name(user) for user in users])
        return np.array([0 if row is None else row.events for row in rows], np.int64)

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        with self._lock:
            return self._store.fact(POSITION + source)

    # looking after it

    def erase(self, users: Users) -> int:
        """Take users out of the state file, all or none, while whoever releases waits; how many releases that were."""
        names, file = [user_name(user) for user in users], self._state_file("can a user be erased")
        with self._lock:
            self._refuse_closed()
            try:
                return upkeep.erase_from(file, names, self._key)
            finally:
                self._live.undo(names)

    def adopt(self, model: MarkovModel) -> None:
        """Go on with another model of the same values under the same policy.

        *Guarantee*: belief, leakage and the accounts of declared secrets are from now on those of the new model, exact
        for the kernels that the releases so far were drawn from, so that every later release keeps its ε under it.

        All stored releases are replayed, in one transaction; whoever releases waits meanwhile.
        """
        if not isinstance(model, MarkovModel):
            raise InputError(f"expected a MarkovModel, as fit gives it; got {type(model).__name__}")
        setting, values, file = self.setting, self.setting.model.alphabet, self._state_file("can streams go on so")
        if model.alphabet.fingerprint() != values.fingerprint() or model.alphabet.slots != values.slots:
            raise InputError("expected a model of the same values as the one before; fit it with that one's alphabet")
        # with a delta the total rests on the ε of every release, which an earlier one may pass under another model
        together = setting.in_batches or setting.in_blocks
        if together or setting.budget.delta is not None:
            raise InputError(
                "expected single releases, of a budget without delta, as only these can be weighed by another model; "
                "begin a new state file, whose account starts at zero"
            )
        with self._lock:
            self._refuse_closed()
            history = [*self._history, setting.policy.on(model)]
            live = Live(history, file, self._memory)
            with file.transaction():
                for entry in list(live.adopted(self.accounts().users)):
                    file.append(entry)
                present = {SETTING: history[-1].signature, f"{upkeep.MODEL}{len(self._history)}": model.to_bytes()}
                file.set_facts(present)
            self._go_on(history)

    def _state_file(self, what: str) -> SqliteStore:
        if not isinstance(self._store, SqliteStore):
            raise InputError(f'only from a state file {what}; begin with store="state.db"')
        return self._store

    def _refuse_closed(self) -> None:
        if not self._open:
            raise StoreError("the store is closed; open it again")


class Streams(CodeStreams):
    """Releases events of named users, each stream exactly as by a `Session` of its own: values in place of codes.

    *Guarantee*: that of `CodeStreams`, which has most parameters too.

    Parameters:
        model: how such streams usually run.
        policy: what is promised.
        seed: for research only, in memory: the streams are then marked not private.
        shorthand: the fields of a `Policy` in place of one.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["home", "work"])
    >>> streams = Streams(model, epsilon=1.0, seed=1)
    >>> made = streams.release(["ann", "bob", "ann"], ["home", "work", "home"])
    >>> again = streams.release(["bob"], ["home"], seqs=[0])
    >>> again.values[0] == made.values[1], again.replayed.tolist(), streams.account("ann").epsilon_spent
    (True, [True], 2.0)
    """

    def __init__(
        self,
        model: MarkovModel,
        policy: Policy | None = None,
        *,
        store: StateStore | FilePath | None = None,
        key: bytes | None = None,
        gaps: Gaps = "refuse",
        memory: int = MEMORY,
        must_exist: bool = False,
        seed: int | None = None,
        **shorthand: Any,
    ) -> None:
        self.policy, chosen = policy_of(policy, shorthand), None if seed is None else seeded(seed)
        super().__init__(self.policy.on(model), store, chosen, key=key, gaps=gaps, memory=memory, must_exist=must_exist)

    def release(
        self, users: Users, values: Values, seqs: Seqs = None, times: Times = None, positions: Noted = None
    ) -> Releases:
        """Release events as `CodeStreams.release` does, given the values of the model's alphabet."""
        alphabet = self.setting.model.alphabet
        codes = list(map(alphabet.encode, values)) if self.setting.in_batches else alphabet.encode(values)
        return super().release(users, codes, seqs, times, positions)

    def releases(self, user: User, since: int = 0, limit: int | None = None) -> list[Release]:  # type: ignore[override]
        """What was released of a user, from sequence number `since` on, at most `limit` of them."""
        return [Release.of(str(user), stored, self.setting) for stored in super().releases(user, since, limit)]


def encode_released(model: MarkovModel, released: Sequence[Any] | Ints) -> Ints:
    """Codes of released values; None becomes NOTHING."""
    codes = np.full(len(released), NOTHING, np.int64)
    made = [k for k, value in enumerate(released) if value is not None]
    try:
        codes[made] = model.alphabet.strict.encode([released[k] for k in made])
    except UnknownSymbol:
        raise DataError(
            "a released value is not in the model's alphabet; check that the model is the release's"
        ) from None
    return codes
