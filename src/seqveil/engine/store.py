"""Where the users of `Streams` are kept between calls: what is kept, and the store in memory, whose methods all have.

Three stores are there: memory, an SQLite file (`engine.sqlite`), and Spark's state store. One suite tests them all
(`tests/engine/test_store.py`). What a store is given is public, so none knows a raw symbol; what a mechanism must
remember of raw symbols comes sealed (`packing.Sealing`), or not at all.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import User
from seqveil.engine.releases import Accounts, Path

if TYPE_CHECKING:
    from seqveil.engine.packing import Sealing
    from seqveil.engine.sqlite import SqliteStore

StateStore: TypeAlias = "Memory | SqliteStore"
Position = str | bytes | int
SALT_BYTES = 32
NEW = -1  # the id of a user whom a store does not have yet
GAP = -2  # the code of an event whose place was given up, because a later one came first
ERASED = -9  # the code of what stands for all releases of a user who was erased
POSITION = "position "  # before a source, in the name of the fact that has its position
LATEST = ":latest:"  # between a bridge and a user, in the name of the position that has the time of the latest event
NUMBERS = ":numbers"  # after a bridge, in the name of a position that has the number of an event, as {"WHAT/USER": 7}
MOST_POSITION = 1 << 20  # bytes of a position: enough for what says how far a source was read


class StoreError(SeqveilError):
    """The state file cannot be used or written now; what was committed before stands, nothing else happened."""


class StoreBusy(StoreError):
    """Another process has the state file open."""


class NoSuchUser(StoreError):
    """Nothing was released of a user who is asked for."""


class Damaged(StoreError):
    """Records of some users in the state file are not what was written; nothing of these users is released.

    `users` are their names, as far as the call named them.
    """

    def __init__(self, message: str, users: Sequence[User] = ()) -> None:
        super().__init__(message)
        self.users = tuple(users)


class NoLongerKept(StoreError):
    """Releases that were asked for were erased; `kept` is the number of the first one left."""

    def __init__(self, name: str, kept: int) -> None:
        super().__init__(f"{name}: releases before number {kept} of this user were erased; ask from {kept} on")
        self.kept = kept


class Erased(Damaged):
    """A user who was erased, and whose account cannot go on without what was erased with it."""


class Stored(NamedTuple):
    """One release as it stands in the store."""

    seq: int
    code: int  # of a single symbol; NOTHING or GAP where nothing was released; 0 for a batch that was sent
    epsilon: float
    time: float | None
    path: Path | None  # what was published; None where nothing was released
    codes: tuple[int, ...]  # the one symbol, or the reproduction of a batch; empty where nothing was released
    events: int = 1  # symbols that it stands for: the size of the batch
    skipped: int = 0  # events just before it that were given up
    model: int = 0  # which of the models of the store it was drawn with, in the order they were adopted

    @property
    def released(self) -> bool:
        """Whether anything was published of it."""
        return self.code >= 0

    @property
    def status(self) -> str:
        """What became of the event, in a word."""
        return "released" if self.released else "given-up" if self.code == GAP else "withheld"

    @classmethod
    def of(
        cls, seq: int, skipped: int, model: int, code: int, epsilon: float, time: float | None, batch: str | None
    ) -> Stored:
        """One release from its columns; `batch` is what `batch_text` wrote."""
        one = [code] if code >= 0 else []
        events, path, codes = (1, one or None, one) if batch is None else json.loads(batch)
        shown = None if path is None else tuple(path)
        return cls(seq, code, epsilon, time, shown, tuple(codes), events, skipped, model)


def batch_text(events: int, path: Path | None, codes: Sequence[int] | Ints) -> str:
    """What a batch holds beyond a single symbol, as JSON: how many symbols, its path and its reproduction."""
    shown = None if path is None else [int(step) for step in path]
    return json.dumps([events, shown, [int(code) for code in codes]], separators=(",", ":"))


def with_gaps(kept: Iterable[Stored], first: int) -> Iterator[Stored]:
    """Releases in order from number `first` on, and in place of each number left out that it was given up."""
    for stored in kept:
        if stored.code != ERASED:
            given_up = range(max(first, stored.seq - stored.skipped), stored.seq)
            yield from (Stored(seq, GAP, 0.0, None, None, ()) for seq in given_up)
        yield stored


class UserRow(NamedTuple):
    """Where a user stands, in nats, and the exact state where the store keeps it. All of it is public but `sealed`."""

    id: int
    events: int
    releases: int
    spent: float
    most: float
    least: float
    ldp: float
    state: bytes
    sealed: bytes | None = None  # what the mechanism remembers of raw symbols, as `Sealing` closed it
    erased: bool = False  # whether only the ledger is left of the user


class Entry(NamedTuple):
    """What a call left of the users it touched, and the releases it made, those of a user in order."""

    ids: Ints  # (K,) the users touched, in the order they came; NEW for those whom the store does not have yet
    names: list[User]
    counts: Ints  # (K, 2) their events and releases so far
    figures: Floats  # (K, 4) Σε, both sides of the leakage, the LDP level
    states: bytes  # K states of one size; nothing where the store does not want them
    sealed: list[bytes | None] | None  # the private part of each, sealed; None where there is none
    model: int  # which of the models of the store the releases were drawn with
    owners: Ints  # (E,) whose each release is: a place among the users touched
    seqs: Ints
    skips: Ints  # how many events before each were given up
    codes: Ints
    epsilons: Floats
    times: Floats | None
    batches: list[str] | None  # as `batch_text` writes them; None for single symbols

    def columns(self, ids: Ints) -> Iterator[tuple[Any, ...]]:
        """The releases one by one: the id of whose each is, and what `Stored.of` makes one of."""
        count = self.owners.size
        times: Sequence[float | None] = [None] * count
        if self.times is not None:  # no negative zero, and None where it is not known: as SQLite gives them back
            times = [None if np.isnan(time) else time for time in (self.times + 0.0).tolist()]
        batches: Sequence[str | None] = self.batches or [None] * count
        numbers = (ids[self.owners].tolist(), self.seqs.tolist(), self.skips.tolist(), [self.model] * count)
        return zip(*numbers, self.codes.tolist(), self.epsilons.tolist(), times, batches, strict=True)

    @property
    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Where each user touched stands now: what a `UserRow` has, from `events` up to `sealed`."""
        count = self.ids.size
        size, sealed = len(self.states) // max(1, count), self.sealed or [None] * count
        states = [self.states[k * size : (k + 1) * size] for k in range(count)]
        figures = (self.figures + 0.0).T.tolist()  # no negative zero, which SQLite does not know
        return zip(*self.counts.T.tolist(), *figures, states, sealed, strict=True)


def checked_positions(positions: Mapping[str, Position]) -> dict[str, Position]:
    """The positions as they will be kept, or a refusal of what a store could not give back the same."""
    found = dict(positions) if isinstance(positions, Mapping) else {0: 0}
    if not all(type(source) is str and _fits(source) and _fits(position) for source, position in found.items()):
        raise InputError("expected positions by source, each text, bytes or a 64-bit whole number")
    return found


def _fits(value: object) -> bool:
    # no kind but these exactly: a truth value, say, would come back as a number, whose checksum is another
    if type(value) is int:
        return -(2**63) <= value < 2**63
    try:
        content = value.encode() if type(value) is str else value
    except UnicodeEncodeError:
        return False
    return type(content) is bytes and len(content) <= MOST_POSITION


class Memory:
    """A state store in memory, for as long as the process runs; all users stay live beside it.

    Every method of a store but `fact` is called inside `transaction`.

    Parameters:
        releases: whether they are kept. Without them an event that comes a second time is not drawn again, and what it
            was released as cannot be known.
    """

    name = "memory"  # for error messages
    durable = False  # whether `append` gets the states
    sealing: Sealing | None = None  # what seals the private part of users; None: nothing private is kept

    def __init__(self, releases: bool = True) -> None:
        # whether releases are kept; random bytes of this state alone, which keyed randomness is mixed with
        self.keeps_releases, self.salt = releases, os.urandom(SALT_BYTES)
        self._index: dict[User, int] = {}
        self._counts, self._figures = np.zeros((0, 2), np.int64), np.zeros((0, 4))
        self._calls: list[tuple[Entry, Ints]] = []  # the latest ones, whose releases are not sorted by user yet
        self._disclosed: dict[int, list[Stored]] = {}  # those before
        self._facts: dict[str, Position | None] = {}

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block is kept when it ends, or, if it fails, nothing that `append` has not got."""
        return nullcontext()

    def find(self, names: Sequence[User]) -> list[UserRow | None]:
        """Where these users stand; None for a new one."""
        return [None if (k := self._index.get(name)) is None else self._row(k) for name in names]

    def _row(self, user: int) -> UserRow:
        return UserRow(*[user, *self._counts[user].tolist(), *self._figures[user].tolist(), b""])

    def append(self, entry: Entry) -> Ints:
        """Keep what a call left; the ids of its users. Someone who was erased is then known by name again."""
        ids, new = entry.ids, np.flatnonzero(entry.ids == NEW)
        if new.size:
            ids, first = ids.copy(), len(self._index)
            ids[new] = np.arange(first, first + new.size)
            self._index.update((entry.names[k], int(ids[k])) for k in new.tolist())
        if len(self._index) > len(self._counts):
            size = max(len(self._index), 2 * len(self._counts))
            self._counts, self._figures = (
                np.concatenate([kept, np.zeros((size - len(kept), kept.shape[1]), kept.dtype)])
                for kept in (self._counts, self._figures)
            )
        self._counts[ids], self._figures[ids] = entry.counts, entry.figures
        if self.keeps_releases and entry.owners.size:
            self._calls.append((entry, ids))
        return ids

    def releases(self, row: UserRow, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on; what was given up between them has no place of its own."""
        if not self.keeps_releases:
            raise InputError("these streams keep no releases; pass Memory(), or a state file")
        for entry, ids in self._calls:
            for user, *release in entry.columns(ids):
                self._disclosed.setdefault(user, []).append(Stored.of(*release))
        self._calls = []
        found = self._disclosed.get(row.id, [])
        yield from found[bisect_left(found, since, key=lambda stored: stored.seq) :]

    def everyone(self) -> Accounts:
        """The accounts of all users, in the order they came."""
        users = len(self._index)
        return Accounts.of(list(self._index), self._counts[:users], self._figures[:users])

    def fact(self, name: str) -> Any:
        """What the store says of itself under this name, positions of sources (POSITION) included; None: nothing."""
        return self._facts.get(name)

    def set_facts(self, facts: Mapping[str, Position | None]) -> None:
        """Have the store say this of itself, and no longer what is None."""
        self._facts.update(facts)

    def close(self) -> None:
        """Let others have it."""
