"""What a store of states is: where the users of `Streams` are kept between calls, and what is kept of their releases.

Three of them are there: memory, an SQLite file, and Spark's state store. One suite tests them all
(`tests/test_state_stores.py`).

A release is kept in a few bytes, from which it can be given back and the user's state computed again. One of a single
symbol is its code, its ε and, where events have them (`Terms.timed`), its time: 9 bytes for up to 126 symbols. A
batch is its ε, its path and its reproduction. Nothing here knows the raw symbol.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core.coins import User
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine import batches
from seqveil.engine.releases import Path, Releases
from seqveil.engine.stream import NOTHING, Terms

Places = NDArray[np.intp]
Position = str | bytes | int
KEY_MARK = "key"  # the fact of a state file that tells its key from others
TRACES = "traces"  # the fact of a state file, once anybody was erased, that says whether it is yet to be written anew
SALT = "salt"  # the fact of a state file that is drawn when it is made, and stays
EPOCH = "epoch"  # the fact of a state file that is drawn anew when it turns out to be a copy, and when anyone is erased
SALT_BYTES = 32
LAYOUT = "layout"  # the fact of a state file that says how its records are written
LATEST = ":latest:"  # between a bridge and a user, in the name of the position that has the time of the latest event
NUMBERS = ":numbers"  # after a bridge, in the name of the position that has the numbers of events by WHAT/USER
GAP = -2  # the code of an event whose place was given up, because a later one came first


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


class Codec(Protocol):
    """How releases of a setting are written."""

    def pack(self, made: Releases, at: Places, times: Floats | None, lengths: list[int]) -> tuple[bytes, Ints]:
        """The records of the releases at these places, one after another, and the size of each.

        Parameters:
            made: the releases of a call.
            at: which of them.
            times: when those were made, where events have times.
            lengths: how many symbols each of them stands for, where they are batches.
        """

    def unpack(self, blob: bytes, first: int) -> Iterator[Stored]:
        """The releases in a blob, whose first one has this sequence number."""

    def cut(self, blob: bytes | memoryview, count: int) -> int:
        """Where the first `count` records end."""

    def gaps(self, count: int) -> bytes:
        """Records of events that were given up."""


class Layout(NamedTuple):
    """How the records of a state file are written."""

    symbols: int  # of the alphabet
    timed: bool
    batch: int  # 0 where symbols are released one by one
    numbers: int = 0  # as `packing.carries` says

    @classmethod
    def of(cls, setting: Terms) -> Layout:
        """That of a setting, but for `numbers`."""
        return cls(setting.model.n, setting.timed, setting.batch if setting.in_batches else 0)


def codec_of(setting: Terms) -> SymbolCodec | BatchCodec:
    """How releases of this setting are written: symbol by symbol, or in batches."""
    return codec_from(Layout.of(setting))


@lru_cache(maxsize=64)
def codec_from(layout: Layout) -> SymbolCodec | BatchCodec:
    """How releases are written in a file that says so."""
    return BatchCodec(layout) if layout.batch else SymbolCodec(layout)


def _code_type(n: int) -> str:
    return "<i1" if n < 127 else "<i2" if n < 32767 else "<i4"


class SymbolCodec:
    """Records of single symbols, all of one size.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> codec = codec_of(Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])))
    >>> made = Releases.none(np.arange(2))
    >>> made.codes[:], made.epsilons[:] = [1, NOTHING], [1.0, 0.0]
    >>> blob, _ = codec.pack(made, np.arange(2), None, [])
    >>> len(blob), [(s.seq, s.code, s.epsilon) for s in codec.unpack(blob, 5)]
    (18, [(5, 1, 1.0), (6, -1, 0.0)])
    """

    def __init__(self, layout: Layout) -> None:
        self._timed = layout.timed
        fields = [("code", _code_type(layout.symbols)), ("epsilon", "<f8")]
        self._type = np.dtype(fields + [("time", "<f8")] * self._timed)
        self.size = self._type.itemsize

    def pack(self, made: Releases, at: Places, times: Floats | None, lengths: list[int]) -> tuple[bytes, Ints]:
        """Records of one size, one after another; `lengths` is not needed."""
        return self._pack(made.codes[at], made.epsilons[at], times), np.full(at.size, self.size)

    def _pack(self, codes: Ints, epsilons: Floats, times: Floats | None) -> bytes:
        table = np.empty(codes.size, self._type)
        table["code"], table["epsilon"] = codes, epsilons
        if self._timed:
            table["time"] = math.nan if times is None else times
        return table.tobytes()

    def unpack(self, blob: bytes, first: int) -> Iterator[Stored]:
        """The releases in a blob, whose first one has this sequence number."""
        table = np.frombuffer(blob, self._type)
        times = table["time"].tolist() if self._timed else [None] * len(table)
        for k, (code, epsilon) in enumerate(zip(table["code"].tolist(), table["epsilon"].tolist(), strict=True)):
            path = (code,) if code >= 0 else ()
            yield Stored(first + k, code, epsilon, times[k], path or None, path)

    def cut(self, blob: bytes | memoryview, count: int) -> int:
        """Where the first `count` records end: all have one size."""
        return count * self.size

    def gaps(self, count: int) -> bytes:
        """Records of events that were given up."""
        return self._pack(np.full(count, GAP, np.int64), np.zeros(count), None)


class BatchCodec:
    """Records of batches, each with its length: ε, time, bytes of the path (or NOTHING, GAP), events, then both."""

    def __init__(self, layout: Layout) -> None:
        self._timed, self._head = layout.timed, struct.Struct("<ddiI")
        self._type = np.dtype(_code_type(layout.symbols))
        self._batch = layout.batch

    def pack(self, made: Releases, at: Places, times: Floats | None, lengths: list[int]) -> tuple[bytes, Ints]:
        """Records of batches, one after another, and the size of each."""
        assert made.sent is not None
        sent = [made.sent[k] for k in at.tolist()]
        stamps = [math.nan] * at.size if times is None else times.tolist()
        told = zip(sent, lengths, made.epsilons[at].tolist(), stamps, strict=True)
        records = [self._pack_one(*each) for each in told]
        return b"".join(records), np.array([len(record) for record in records], np.int64)

    def _pack_one(self, sent: tuple[Path, Ints] | None, events: int, epsilon: float, stamp: float) -> bytes:
        """One batch of so many events; None: nothing was sent."""
        if sent is None:
            return self._head.pack(epsilon, stamp, NOTHING, events)
        path, codes = sent
        text = batches.encode_path(path).encode()
        return self._head.pack(epsilon, stamp, len(text), events) + codes.astype(self._type).tobytes() + text

    def unpack(self, blob: bytes, first: int) -> Iterator[Stored]:
        """The batches in a blob, whose first one has this sequence number."""
        at, seq = 0, first
        while at < len(blob):
            epsilon, stamp, length, events = self._head.unpack_from(blob, at)
            time = stamp if self._timed and not math.isnan(stamp) else None
            end = self.cut(blob[at : at + self._head.size], 1) + at
            if length < 0:
                yield Stored(seq, length, epsilon, time, None, (), events)
            else:
                codes = np.frombuffer(blob, self._type, events, at + self._head.size).tolist()
                path = batches.decode_path(bytes(blob[end - length : end]).decode())
                yield Stored(seq, 0, epsilon, time, path, tuple(codes), events)
            at, seq = end, seq + 1

    def cut(self, blob: bytes | memoryview, count: int) -> int:
        """Where the first `count` records end, found by reading their heads."""
        at = 0
        for _ in range(count):
            _, _, length, events = self._head.unpack_from(blob, at)
            at += self._head.size + (length + events * self._type.itemsize if length >= 0 else 0)
        return at

    def gaps(self, count: int) -> bytes:
        """Records of whole batches that were given up."""
        return self._head.pack(0.0, math.nan, GAP, self._batch) * count


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


class Row(NamedTuple):
    """Where a user stands, in nats, and the exact state where the store keeps it."""

    id: int
    events: int
    releases: int
    spent: float
    most: float
    least: float
    ldp: float
    state: bytes


class Entry(NamedTuple):
    """What a call left of the users it touched, and the releases it made."""

    ids: Ints  # (K,) the users touched
    counts: Ints  # (K, 2) their events and releases so far
    figures: Floats  # (K, 4) Σε, both sides of the leakage, the LDP level
    states: bytes  # K states of one size; nothing where the store does not want them
    pieces: Ints  # (E, 3) user, bytes and number of records of each piece of `records`
    records: bytes  # of the releases; nothing where the store does not keep them


class StateStore(Protocol):
    """Keeps users by name. Every method but `position` and `fact` is called inside `transaction`."""

    name: str  # for error messages
    keeps_releases: bool  # whether `append` gets the releases; else what came before can be told apart, and no more
    durable: bool  # whether `append` gets the states; else `put_aside` does, when there is no room for them

    @property
    def salt(self) -> bytes:
        """Random bytes of this state alone, which keyed randomness is mixed with; the same for as long as it lives."""

    @property
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block is kept when it ends, or, if it fails, nothing that `append` has not got."""

    def find(self, names: Sequence[User]) -> list[Row | None]:
        """Where these users stand; None for a new one."""

    def add(self, names: Sequence[User]) -> list[int]:
        """Ids for new users."""

    def name_again(self, user: int, name: User) -> None:
        """Someone who was erased has come back: keep the record by this name again."""

    def append(self, entry: Entry) -> None:
        """Keep what a call left."""

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Keep the states of users who make room for others."""

    def releases(self, user: int, events: int, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on; `events` is how many there are."""

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


MOST_POSITION = 1 << 20  # bytes of a position: enough for what says how far a source was read


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
