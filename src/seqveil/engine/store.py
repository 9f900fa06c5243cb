"""Where the users of `Streams` are kept between calls: what a store of states is, and one in memory.

Three of them are there: memory, an SQLite file (`engine.sqlite`), and Spark's state store. One suite tests them all
(`tests/test_stores.py`). Nothing here knows a raw symbol.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import User
from seqveil.engine.releases import Path

Position = str | bytes | int
SALT_BYTES = 32
GAP = -2  # the code of an event whose place was given up, because a later one came first
LATEST = ":latest:"  # between a bridge and a user, in the name of the position that has the time of the latest event
NUMBERS = ":numbers"  # after a bridge, in the name of the position that has the numbers of events by WHAT/USER
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

    @property
    def released(self) -> bool:
        """Whether anything was published of it."""
        return self.code >= 0

    @classmethod
    def of(cls, seq: int, code: int, epsilon: float, time: float | None, batch: str | None) -> Stored:
        """One release from its columns; `batch` is what `batch_text` wrote.

        >>> Stored.of(4, 0, 1.5, None, batch_text(2, (7, 1), [0, 1])).path
        (7, 1)
        """
        if batch is not None:
            events, path, codes = json.loads(batch)
            return cls(seq, code, epsilon, time, None if path is None else tuple(path), tuple(codes), events)
        shown = (code,) if code >= 0 else ()
        return cls(seq, code, epsilon, time, shown or None, shown)


def batch_text(events: int, path: Path | None, codes: Sequence[int] | Ints) -> str:
    """What a batch holds beyond a single symbol, as JSON: how many symbols, its path and its reproduction."""
    shown = None if path is None else [int(step) for step in path]
    return json.dumps([events, shown, [int(code) for code in codes]], separators=(",", ":"))


def with_gaps(kept: Iterable[Stored], first: int) -> Iterator[Stored]:
    """Releases in order from number `first` on, and in place of each number left out that it was given up."""
    for stored in kept:
        yield from (Stored(seq, GAP, 0.0, None, None, ()) for seq in range(first, stored.seq))
        yield stored
        first = stored.seq + 1


class UserRow(NamedTuple):
    """Where a user stands, in nats, and the exact state where the store keeps it."""

    id: int
    events: int
    releases: int
    spent: float
    most: float
    least: float
    ldp: float
    state: bytes
    erased: bool = False  # whether only the ledger is left of the user
    last: int = 0  # where the store keeps the user's latest release


class Entry(NamedTuple):
    """What a call left of the users it touched, and the releases it made, those of a user in order."""

    ids: Ints  # (K,) the users touched
    names: list[User]
    counts: Ints  # (K, 2) their events and releases so far
    figures: Floats  # (K, 4) Σε, both sides of the leakage, the LDP level
    states: bytes  # K states of one size; nothing where the store does not want them
    owners: Ints  # (E,) whose each release is; none where the store does not keep releases
    seqs: Ints  # (E,) numbers left out were given up
    codes: Ints
    epsilons: Floats
    times: Floats | None
    batches: list[str] | None  # as `batch_text` writes them; None for single symbols

    @property
    def releases(self) -> Iterator[tuple[int, Stored]]:
        """The releases one by one, and whose each is."""
        count = self.owners.size
        times: Sequence[float | None] = [None] * count if self.times is None else self.times.tolist()
        batches: Sequence[str | None] = self.batches or [None] * count
        columns = (self.owners.tolist(), self.seqs.tolist(), self.codes.tolist(), self.epsilons.tolist())
        for owner, *release in zip(*columns, times, batches, strict=True):
            yield owner, Stored.of(*release)

    def state(self, k: int) -> bytes:
        """The state of the k-th user touched."""
        size = len(self.states) // max(1, self.ids.size)
        return self.states[k * size : (k + 1) * size]


class StateStore(Protocol):
    """Keeps users by name. Every method but `position` and `fact` is called inside `transaction`."""

    name: str  # for error messages
    keeps_releases: bool  # whether `append` gets the releases; else what came before can be distinguished, and no more
    durable: bool  # whether `append` gets the states; else `put_aside` does, when there is no room for them

    @property
    def salt(self) -> bytes:
        """Random bytes of this state alone, which keyed randomness is mixed with; the same for as long as it lives."""

    @property
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block is kept when it ends, or, if it fails, nothing that `append` has not got."""

    def find(self, names: Sequence[User]) -> list[UserRow | None]:
        """Where these users stand; None for a new one."""

    def add(self, names: Sequence[User]) -> list[int]:
        """Ids for new users."""

    def name_again(self, row: UserRow, name: User) -> None:
        """Someone who was erased has come back: keep the record by this name again."""

    def append(self, entry: Entry) -> None:
        """Keep what a call left."""

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Keep the states of users who make room for others."""

    def releases(self, row: UserRow, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on."""

    def stored(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """These events, each a user and a sequence number that was released before, as far as they are kept."""

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user, in the order they came, as in an `Entry`."""

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Keep positions beside the releases."""

    def fact(self, name: str) -> str | None:
        """What the store says of itself: its setting, whether its releases are private."""

    def close(self) -> None:
        """Let others have it."""


def checked_positions(positions: Mapping[str, Position]) -> dict[str, Position]:
    """The positions as they will be kept, or a refusal of what a store could not give back the same.

    >>> checked_positions({"queue": 7})
    {'queue': 7}
    >>> checked_positions({"queue": 2**70})
    Traceback (most recent call last):
    seqveil.core.errors.InputError: expected positions by source, each text, bytes or a 64-bit whole number
    """
    if isinstance(positions, Mapping):
        found = dict(positions)
        if all(type(source) is str and _fits(source) and _fits(position) for source, position in found.items()):
            return found
    raise InputError("expected positions by source, each text, bytes or a 64-bit whole number")


def _fits(value: object) -> bool:
    # no kind but these exactly: a truth value, say, would come back as a number, whose checksum is another
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is str:
        try:
            return len(value.encode()) <= MOST_POSITION
        except UnicodeEncodeError:
            return False
    return type(value) is bytes and len(value) <= MOST_POSITION


class Memory:
    """A state store in memory, for as long as the process runs.

    States that there is no room for lie in a temporary file without a name; they follow from the releases, so nothing
    in it is private.

    Parameters:
        releases: whether they are kept. Without them an event that comes a second time is not drawn again, and what it
            was released as cannot be known.
    """

    name, largest, durable = "memory", float("inf"), False

    def __init__(self, releases: bool = True) -> None:
        self.keeps_releases, self.salt = releases, os.urandom(SALT_BYTES)
        self._index: dict[User, int] = {}
        self._added: list[User] = []  # users of the present call
        self._counts, self._figures = np.zeros((0, 2), np.int64), np.zeros((0, 4))
        self._calls: list[Entry] = []  # the latest ones, whose releases are not sorted by user yet
        self._disclosed: dict[int, list[Stored]] = {}  # those before
        self._places: dict[int, tuple[int, int]] = {}  # where in the file a state lies, and its size
        self._file: Any = None
        self._end = 0
        self._positions: dict[str, Position] = {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Names that were added in a block that fails are forgotten, but for users with a drawn event."""
        self._added = []
        try:
            yield
        except BaseException:
            for user in self._added[::-1]:
                if self._counts[self._index[user], 0]:
                    break  # an event of this user is drawn, which stands
                del self._index[user]
            raise

    def find(self, names: Sequence[User]) -> list[UserRow | None]:
        """Where these users stand; None for a new one."""
        ids = [self._index.get(name) for name in names]
        return [None if k is None else self._row(k) for k in ids]

    def _row(self, user: int) -> UserRow:
        events, releases = self._counts[user].tolist()
        spent, most, least, ldp = self._figures[user].tolist()
        return UserRow(user, events, releases, spent, most, least, ldp, self._aside(user))

    def _aside(self, user: int) -> bytes:
        if user not in self._places:
            return b""
        place, size = self._places[user]
        self._file.seek(place)
        return bytes(self._file.read(size))

    def add(self, names: Sequence[User]) -> list[int]:
        """Numbers for new users, in the order they come."""
        first = len(self._index)
        self._index.update((name, first + k) for k, name in enumerate(names))
        self._added += names
        lacking = len(self._index) - len(self._counts)
        if lacking > 0:
            more = max(lacking, len(self._counts))
            self._counts = np.concatenate([self._counts, np.zeros((more, 2), np.int64)])
            self._figures = np.concatenate([self._figures, np.zeros((more, 4))])
        return list(range(first, len(self._index)))

    def name_again(self, row: UserRow, name: User) -> None:
        """Nothing: nobody is erased from here."""

    def append(self, entry: Entry) -> None:
        """Keep counts and figures, and the releases where they are wanted."""
        self._counts[entry.ids], self._figures[entry.ids] = entry.counts, entry.figures
        if self.keeps_releases:
            self._calls.append(entry)

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Write states to a temporary file, from where `find` reads them back."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as the store
            weakref.finalize(self, self._file.close)
        size = len(states) // max(1, ids.size)
        for k, user in enumerate(ids.tolist()):
            place, before = self._places.get(user, (self._end, 0))
            if before < size:  # a window that looks back further than it did
                place, self._end = self._end, self._end + size
            self._places[user] = place, size
            self._file.seek(place)
            self._file.write(states[k * size : (k + 1) * size])

    def releases(self, row: UserRow, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on."""
        if not self.keeps_releases:
            raise InputError("these streams keep no releases; pass Memory(), or a state file")
        self._sort()
        yield from self._disclosed.get(row.id, [])[since:]

    def stored(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """These events as they were released; nothing where releases are not kept."""
        self._sort()
        return {(user, seq): self._disclosed[user][seq] for user, seq in wanted if self.keeps_releases}

    def _sort(self) -> None:
        """Sort the releases of the latest calls by user."""
        for entry in self._calls:
            for user, stored in entry.releases:
                disclosed = self._disclosed.setdefault(user, [])
                disclosed.extend(with_gaps([stored], len(disclosed)))
        self._calls = []

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user, in the order they came."""
        users = len(self._index)
        return list(self._index), self._counts[:users].copy(), self._figures[:users].copy()

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        return self._positions.get(source)

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Keep positions for as long as the process lives."""
        self._positions.update(positions)

    def fact(self, name: str) -> str | None:
        """Nothing: memory has no past that could contradict the setting."""
        return None

    def close(self) -> None:
        """Nothing is open but the file, which goes with the store."""
