"""Streams of named users: each event released once and for all, in memory or on the disk before anyone sees it.

`CodeStreams` takes codes, as files, the service, the bridges and Spark have them; `Streams` takes values. What happens
to the events of one call is in `calls`, what is kept of users in `ledger`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import DataError, InputError, SeqveilError, UnknownSymbol
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, Randomness, SeededRandomness, SystemRandomness, User
from seqveil.core.times import Time, seconds
from seqveil.engine import upkeep
from seqveil.engine.calls import NEXT, Call, Gaps, OutOfOrder, Seen, first_gap, nothing_yet, plan_of
from seqveil.engine.ledger import Ledger
from seqveil.engine.live import Live
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.releases import Path, Release, Releases
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import POSITION, Memory, Position, StateStore, checked_positions
from seqveil.engine.stream import NOTHING, TIMELESS, TIMELESS_SECRETS, raw_codes, released_codes
from seqveil.engine.terms import Terms

MEMORY = 1 << 30
Positions = Mapping[str, Position]


class CodeStreams(Ledger):
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
        store: where users are kept: None for memory, the path of a state file (made if it is missing), or a store.
        randomness: the operating system's by default; keyed (`KeyedRandomness`) where an event that is drawn
            again after a crash must come out the same.
        key: 32 secret bytes (`seqveil.randomness.key_file`) for keyed randomness, in place of `randomness`. Blocks with
            a state file need one: the hidden bit of a block follows from it, and is never stored.
        gaps: what happens when a sequence number is left out: "refuse" (`OutOfOrder`), or "skip", which gives the
            missing events up.
        memory: bytes that live states may take. Small states in memory all stay live.
        must_exist: refuse a state file that is missing or empty, rather than begin one whose ledger starts at zero.
        seen: called with whatever is released or observed: whose it is, and what anyone knows of it.

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
        store: StateStore | str | os.PathLike[str] | None = None,
        randomness: Randomness | KeyedRandomness | None = None,
        *,
        key: bytes | None = None,
        gaps: Gaps = "refuse",
        memory: int | None = None,
        must_exist: bool = False,
        seen: Seen | None = None,
    ) -> None:
        if gaps not in ("refuse", "skip"):
            raise InputError(f'expected gaps to be "refuse" or "skip", got {gaps!r}')
        if key is not None and randomness is not None:
            raise InputError("pass a key or randomness, not both")
        self._source = KeyedRandomness(key) if key is not None else randomness or SystemRandomness()
        if store is not None and getattr(store, "durable", True):
            self._check_bits(setting)
            named = isinstance(store, str | os.PathLike)
            if (key if named else getattr(store, "sealing", None)) is None:  # what is remembered could not be kept
                setting = setting.by_symbol
        self.setting, self._gaps, self._seen, self._key = setting, gaps, seen, key
        self.committed: float | None = None  # when the latest call was kept, in seconds since 1970
        self._lock, self._open, self._memory = threading.RLock(), True, memory or MEMORY
        if not isinstance(store, str | os.PathLike):
            self._begin(Memory() if store is None else store)
            return
        self._memory = memory or MEMORY // 4
        file = upkeep.opened(store, setting, self._source.private, key, must_exist)
        try:
            self._begin(file)
        except BaseException:
            file.close()
            raise

    def _check_bits(self, setting: Terms) -> None:
        """Refuse blocks whose state is stored without a key: the hidden bit of a block is never stored."""
        if setting.in_blocks and not isinstance(self._source, KeyedRandomness):
            raise InputError(
                "blocks with a stored state need a key, from which the hidden bit of each block follows; pass a key"
            )

    def _begin(self, store: StateStore) -> None:
        """Go on with a store, or begin with it."""
        self._store, private = store, store.fact("private")
        self._randomness = self._randomness_of_store()
        self.private = self._randomness.private if private is None else private == "yes"
        # whether the ledger began with these streams, and when it did, in seconds since 1970 where that is known
        self.begun, began = bool(getattr(store, "begun", True)), store.fact("begun")
        self.began = None if began is None else float(began)
        earlier = upkeep.models(store.facts())[:-1] if isinstance(store, SqliteStore) else []
        self._history = [*(self.setting.policy.on(model) for model in earlier), self.setting]
        self._live = Live(self._history, store, self._memory)

    @staticmethod
    def open(path: str | os.PathLike[str], setting: Terms, **how: Any) -> CodeStreams:
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
        return self._run(self._call(users, self._raw(symbols), seqs, times), positions)

    def observe(
        self,
        users: Sequence[User],
        releases: Sequence[int] | Ints | Sequence[Path | None],
        times: Sequence[Time] | Floats | None = None,
        sizes: Sequence[int] | None = None,
        epsilons: Sequence[float] | Floats | None = None,
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
            codes, cuts = released_codes(self.setting, releases), self.setting.in_blocks and epsilons is not None
            claimed = np.asarray(epsilons, np.float64) if cuts else None
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
    def gaps(self) -> Gaps:
        """What happens when a sequence number is left out."""
        return self._gaps

    def _run(self, call: Call, positions: Positions | Callable[[Releases], Positions] | None) -> Releases:
        made = call.made
        if positions is not None and not callable(positions):
            positions = checked_positions(positions)
        with self._lock:
            if not self._open:
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
        self._store.set_facts({POSITION + source: position for source, position in found.items()})
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
        made = nothing_yet(self.setting, numbers.astype(np.int64))
        return Call(self.setting, names, stamps, made, raw, seen=self._seen, **how)

    def __repr__(self) -> str:
        return f"CodeStreams({self._store.name}, {self.setting.mechanism.name}, {len(self._live)} users live)"


def _with(failure: BaseException, made: Releases) -> BaseException:
    if isinstance(failure, SeqveilError):
        failure.made = made
    return failure


class Streams(CodeStreams):
    """Releases events of named users, each stream exactly as by a `Session` of its own.

    *Guarantee*: that of `Streams`. Each event, a user and a sequence number that counts from 0, is drawn once:
    asked again, the same release is given back, whatever value comes with it, and nothing is charged. With a state file
    a release is committed and synced before `release` returns it, and no raw value, nor anything computed from one but
    its release, is ever written. Threads may share streams.

    Parameters:
        model: how such streams usually run.
        policy: what is promised.
        store: where users are kept: None for memory, the path of a state file (made if it is missing), or a store.
        key: with a state file, 32 secret bytes (`seqveil.randomness.key_file`) for draws that are the same if an event
            is drawn again after a crash. Blocks with a state file need one: the hidden bit of a block follows from it,
            and is never stored.
        gaps: what happens when a sequence number is left out: "refuse", or "skip", which gives the missing events up.
        memory: bytes that live states may take.
        must_exist: refuse a state file that is missing or empty, rather than begin one whose ledger starts at zero.
        seed: for research only, in memory: the streams are then marked not private.
        shorthand: the fields of a `Policy` in place of one.

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["home", "work"])
    >>> streams = Streams(model, epsilon=1.0, seed=1)
    >>> made = streams.release(["ann", "bob", "ann"], ["home", "work", "home"])
    >>> set(made.values) <= {"home", "work"}, streams.account("ann").epsilon_spent
    (True, 2.0)
    """

    def __init__(
        self,
        model: MarkovModel,
        policy: Policy | None = None,
        *,
        store: StateStore | str | os.PathLike[str] | None = None,
        key: bytes | None = None,
        gaps: Gaps = "refuse",
        memory: int | None = None,
        must_exist: bool = False,
        seed: int | None = None,
        **shorthand: Any,
    ) -> None:
        terms, chosen = policy_of(policy, shorthand).on(model), None if seed is None else SeededRandomness(seed)
        super().__init__(terms, store, chosen, key=key, gaps=gaps, memory=memory, must_exist=must_exist)

    @property
    def policy(self) -> Policy:
        """What is promised."""
        return self.setting.policy

    def release(
        self,
        users: Sequence[User],
        values: Sequence[Any] | Ints,
        seqs: Sequence[int] | Ints | None = None,
        times: Sequence[Time] | Floats | None = None,
        positions: Positions | Callable[[Releases], Positions] | None = None,
    ) -> Releases:
        """Release one event for each user named, several of a user in a row where they come so, in one transaction.

        Parameters:
            users: text or whole numbers.
            values: of each event; where the policy releases batches, the values of each batch, at most as many as its
                `batch`. A shorter one costs as much, and its length is public: let it be the last of a stream.
            seqs: the sequence number of each event; without them each is the next one of its user.
            times: for a budget in seconds and for secrets that follow the clock: numbers or ISO 8601 text.
            positions: (how far some source was read, say) kept with the releases, where all were made; a function gets
                the releases first.
        """
        made = super().release(users, self._encoded(values), seqs, times, positions)
        return replace(made, alphabet=self.setting.model.alphabet)

    def observe(
        self,
        users: Sequence[User],
        released: Sequence[Any] | Ints,
        times: Sequence[Time] | Floats | None = None,
        sizes: Sequence[int] | None = None,
        epsilons: Sequence[float] | Floats | None = None,
    ) -> Releases:
        """Take releases in, each the next one of its user, as a receiver does: nothing private is needed.

        Parameters:
            users: whose they are.
            released: values, None where nothing was released; for batches their paths.
            times: as for `release`.
            sizes: how many symbols each batch has; the policy's batch by default.
            epsilons: of blocks, the ε that the record has, which say where one was cut before its end.
        """
        disclosed = released if self.setting.in_batches else encode_released(self.setting.model, released)
        made = super().observe(users, disclosed, times, sizes, epsilons)
        return replace(made, alphabet=self.setting.model.alphabet)

    def releases(self, user: User, since: int = 0, limit: int | None = None) -> list[Release]:  # type: ignore[override]
        """What was released of a user, from sequence number `since` on, at most `limit` of them."""
        return [Release.of(str(user), stored, self.setting) for stored in super().releases(user, since, limit)]

    def _encoded(self, values: Any) -> Any:
        alphabet = self.setting.model.alphabet
        if self.setting.in_batches:
            return [alphabet.encode(batch) for batch in values]
        return [alphabet.encode_one(values[0])] if len(values) == 1 else alphabet.encode(values)


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
