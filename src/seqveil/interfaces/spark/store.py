"""The users of one bucket: what is kept of each between micro-batches, as a store of states; and their batches.

Nothing here knows Spark.

Symbols that wait for their batch are sealed, because what Spark keeps lies on disks: ChaCha20-Poly1305 (RFC 8439) under
a key of the user's own, derived from the key of the release, with a fresh nonce each time. Whoever has the key of the
release can open it, and could undo the release anyway; nobody else learns more than how many symbols wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import KeyedRandomness, Randomness, User, user_name
from seqveil.engine import packing
from seqveil.engine.calls import Gaps, OutOfOrder
from seqveil.engine.sealing import Sealing
from seqveil.engine.store import Entry, Position, Stored, UserRow
from seqveil.engine.stream import Terms
from seqveil.engine.streams import CodeStreams

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

MEMORY = 1 << 28  # bytes that live states may take at once
NONCE = 12
CHUNK = 64  # numbers of a user whose releases are kept in one piece


class Kept(NamedTuple):
    """What is kept of a user; public, but for `waiting`, which is sealed. The ledger is in nats."""

    events: int  # releases asked for so far: the number of the next one
    releases: int
    spent: float
    most: float
    least: float
    ldp: float
    state: bytes  # exact, where it is small; else empty, and the releases are kept
    symbols: int = 0  # taken so far, those that wait among them (batches only)
    waiting: bytes = b""  # the sealed symbols of a batch that is not full


NEW = Kept(0, 0, 0.0, 0.0, 0.0, 0.0, b"")  # what is kept of a user who never came


class KeptUsers:
    """What is kept of the users of a bucket, in memory: for a frame that is released in one go.

    The operator's reads from Spark's state store what is not here, and writes what changed back.

    Parameters:
        salt: that of the frame or of the checkpoint, the same for every task that works for it.
    """

    def __init__(self, salt: bytes) -> None:
        self.salt = salt
        self._kept: dict[User, Kept | None] = {}
        self._disclosed: dict[tuple[User, int], bytes] = {}

    def get(self, user: User) -> Kept | None:
        """What is kept of a user; None for a new one."""
        return self._kept.get(user)

    def put(self, user: User, kept: Kept) -> None:
        """Keep this of a user from now on."""
        self._kept[user] = kept

    def disclosed(self, user: User, chunk: int) -> bytes:
        """The records of a user's releases in one chunk; empty where there are none."""
        return self._disclosed.get((user, chunk), b"")

    def tell(self, user: User, chunk: int, records: bytes) -> None:
        """Keep the records of a user's releases in one chunk."""
        self._disclosed[user, chunk] = records


def bucket(
    setting: Terms,
    randomness: Randomness | KeyedRandomness,
    kept_users: KeptUsers,
    users: Sequence[User],
    gaps: Gaps = "refuse",
) -> CodeStreams:
    """The streams of these users of a bucket, named as they are kept.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> streams = bucket(setting, KeyedRandomness(bytes(32)), KeptUsers(b"salt"), ["ann"])
    >>> made = streams.release(["ann", "ann"], [0, 0], seqs=[0, 1])
    >>> streams.release(["ann"], [1], seqs=[1]).replayed.tolist()
    [True]
    """
    return CodeStreams(setting, SparkStore(setting, kept_users, users), randomness, gaps=gaps, memory=MEMORY)


class SparkStore:
    """What Spark keeps as a store of states. Where a state is small the releases are not kept: Spark's output has them.

    Spark drops what a failed try has kept; the next try has the same randomness.
    """

    name, durable = "Spark's state store", True
    sealing: Sealing | None = None

    def __init__(self, setting: Terms, kept_users: KeptUsers, users: Sequence[User]) -> None:
        self._kept, self.salt, self.keeps_releases = kept_users, kept_users.salt, not packing.small(setting)
        # a number is kept as one, and is text in a release
        self._shown = {user_name(user): user for user in dict.fromkeys(users) if type(user) is not str}
        self._names: list[User] = []
        self._before: dict[int, Kept] = {}

    def transaction(self) -> AbstractContextManager[None]:
        """Nothing to do: Spark keeps all of a micro-batch or nothing."""
        return nullcontext()

    def find(self, names: Sequence[User]) -> list[UserRow | None]:
        """Where these users stand, from Spark's state; None for a new one."""
        found: list[UserRow | None] = []
        for name in names:
            user = self._shown.get(str(name), name)
            kept, number = self._kept.get(user), len(self._names)
            if kept is None:
                found.append(None)
                continue
            self._names.append(user)
            self._before[number] = kept
            found.append(UserRow(number, *kept[:7]))
        return found

    def add(self, names: Sequence[User]) -> list[int]:
        """Numbers for new users, by which they are known in this call alone."""
        first = len(self._names)
        self._names += [self._shown.get(str(name), name) for name in names]
        return list(range(first, len(self._names)))

    def append(self, entry: Entry) -> None:
        """Put what a call left into Spark's state, user by user."""
        if self.keeps_releases:
            self._tell(entry)
        for user, *ledger, _ in entry.rows:
            before = self._before.get(user, NEW)
            self._before[user] = kept = Kept(*[*ledger, before.symbols, before.waiting])
            self._kept.put(self._names[user], kept)

    def _tell(self, entry: Entry) -> None:
        """Keep the releases themselves, a line of JSON each: a large state is computed from them again."""
        more: dict[tuple[int, int], bytes] = {}
        for user, *release in entry.columns:
            stored = Stored.of(*release)
            place = user, stored.seq // CHUNK
            more[place] = more.get(place, b"") + json.dumps(stored).encode() + b"\n"
        for (user, chunk), lines in more.items():
            name = self._names[user]
            self._kept.tell(name, chunk, self._kept.disclosed(name, chunk) + lines)

    def releases(self, row: UserRow, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on, read chunk by chunk."""
        if not self.keeps_releases:
            raise InputError("a bucket of small states keeps no releases; read them from the query's output")
        name = self._names[row.id]
        chunks = (self._kept.disclosed(name, chunk) for chunk in range(since // CHUNK, -(-row.events // CHUNK)))
        lines = (json.loads(line) for chunk in chunks for line in chunk.splitlines())
        for seq, code, epsilon, time, path, codes, *more in lines:
            if seq >= since:
                yield Stored(seq, code, epsilon, time, None if path is None else tuple(path), tuple(codes), *more)

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Refused: a bucket does not know its users."""
        raise InputError("a bucket knows only the users it is asked for; read the ledger of the checkpoint")

    def fact(self, name: str) -> None:
        """None: the operator keeps what a checkpoint is for, and Spark how far its sources were read."""

    def set_facts(self, facts: Mapping[str, Position | None]) -> None:
        """Refused: Spark itself knows how far it has read."""
        raise InputError("Spark keeps how far its sources were read; pass no positions")

    def close(self) -> None:
        """Nothing is open."""


class Seal:
    """Opens and closes what waits of a user.

    >>> seal = Seal(bytes(32))
    >>> closed = seal.close("ann", [1, 0, 1], None)
    >>> seal.open("ann", closed), seal.open("ann", b"")
    (([1, 0, 1], None), ([], None))
    """

    def __init__(self, key: bytes) -> None:
        self._key = blake2b(key=key, digest_size=32, person=b"seqveil-waiting").digest()

    def close(self, user: User, codes: list[int], time: float | None) -> bytes:
        """A user's waiting symbols and when the first came, encrypted; empty where none wait."""
        if not codes:
            return b""
        plain = np.float64(np.nan if time is None else time).tobytes() + np.array(codes, "<i4").tobytes()
        nonce = os.urandom(NONCE)
        return nonce + bytes(self._cipher(user).encrypt(nonce, plain, None))

    def open(self, user: User, sealed: bytes) -> tuple[list[int], float | None]:
        """What `close` sealed; what another key sealed, or what was changed, is refused."""
        if not sealed:
            return [], None
        from cryptography.exceptions import InvalidTag

        try:
            plain = self._cipher(user).decrypt(sealed[:NONCE], sealed[NONCE:], None)
        except InvalidTag:
            raise DataError(
                "what waits of a user was sealed with another key, or is damaged; use the key of this run"
            ) from None
        time = float(np.frombuffer(plain[:8], "<f8")[0])
        return np.frombuffer(plain[8:], "<i4").tolist(), None if np.isnan(time) else time

    def _cipher(self, user: User) -> ChaCha20Poly1305:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        # a key for each user: random nonces of 96 bits are then never drawn often enough to meet
        return ChaCha20Poly1305(blake2b(repr(user).encode(), key=self._key, digest_size=32).digest())


class MicroBatch(NamedTuple):
    """A batch that is ready to go out."""

    user: User
    number: int
    first: int  # number of its first symbol
    codes: Ints
    time: float  # of its last symbol; NaN where that is not known


@dataclass
class _WaitingBatch:
    """One user's symbols as they come."""

    user: User
    batches: int
    symbols: int
    codes: list[int] = field(repr=False)
    time: float | None

    def batch(self) -> MicroBatch:
        """What waits, as the next batch."""
        first, time = self.symbols - len(self.codes), np.nan if self.time is None else self.time
        filled = MicroBatch(self.user, self.batches, first, np.array(self.codes, np.int64), time)
        self.codes, self.batches = [], self.batches + 1
        return filled


def collect(
    size: int,
    seal: Seal,
    kept_users: KeptUsers,
    events: Iterable[tuple[User, int, int, float | None]],
    end: bool = False,
) -> tuple[list[MicroBatch], dict[User, tuple[int, bytes]]]:
    """Put the symbols of some users to those that wait: batches that fill, and what then waits (taken, seal).

    Parameters: `events` are users, numbers of symbols, codes and times, in the order of their numbers; `end` sends
    short batches too.
    """
    streams: dict[User, _WaitingBatch] = {}
    filled: list[MicroBatch] = []
    for user, seq, code, time in events:
        if user not in streams:
            kept = kept_users.get(user) or NEW
            streams[user] = _WaitingBatch(user, kept.events, kept.symbols, *seal.open(user, kept.waiting))
        stream = streams[user]
        if seq < stream.symbols:
            continue  # taken before
        if seq > stream.symbols:
            expected = stream.symbols
            raise OutOfOrder(-1, f"an event has number {seq}, and {expected} is next; send the missing events first")
        stream.codes.append(code)
        stream.symbols, stream.time = stream.symbols + 1, time
        if len(stream.codes) == size:
            filled.append(stream.batch())
    if end:
        filled += [stream.batch() for stream in streams.values() if stream.codes]
    return filled, {user: (each.symbols, seal.close(user, each.codes, each.time)) for user, each in streams.items()}
