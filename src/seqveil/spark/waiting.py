"""Symbols that wait for their batch between two micro-batches: sealed, because what Spark keeps lies on disks.

seal(symbols) = nonce ‖ symbols ⊕ stream(key, nonce) ‖ tag, with a keyed BLAKE2b hash as the stream (in counter mode)
and as the tag, and a fresh nonce each time. Whoever has the key of the release can open it, and could undo the release
anyway; nobody else learns more than how many symbols wait.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from seqveil.coins import User
from seqveil.errors import DataError
from seqveil.kernel import Ints
from seqveil.spark.bucket import Kept
from seqveil.store import OutOfOrder

END = -3  # stands for the code of a marker: what waits of the user goes out as a short batch
NONCE, TAG, BLOCK = 16, 16, 64


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
        if not codes:
            return b""
        plain = np.float64(np.nan if time is None else time).tobytes() + np.array(codes, "<i4").tobytes()
        nonce = os.urandom(NONCE)
        body = nonce + _xor(plain, self._stream(nonce, len(plain)))
        return body + self._tag(user, body)

    def open(self, user: User, sealed: bytes) -> tuple[list[int], float | None]:
        if not sealed:
            return [], None
        body, tag = sealed[:-TAG], sealed[-TAG:]
        if not hmac.compare_digest(tag, self._tag(user, body)):
            raise DataError("what waits of a user was sealed with another key, or is damaged; use the key of this run")
        plain = _xor(body[NONCE:], self._stream(body[:NONCE], len(body) - NONCE))
        time = float(np.frombuffer(plain[:8], "<f8")[0])
        return np.frombuffer(plain[8:], "<i4").tolist(), None if np.isnan(time) else time

    def _stream(self, nonce: bytes, size: int) -> bytes:
        blocks = range(-(-size // BLOCK))
        parts = (blake2b(nonce + k.to_bytes(8, "little"), key=self._key, digest_size=BLOCK) for k in blocks)
        return b"".join(part.digest() for part in parts)[:size]

    def _tag(self, user: User, body: bytes) -> bytes:
        mac = blake2b(body, key=self._key, digest_size=TAG, person=b"seqveil-tag")
        mac.update(repr(user).encode())
        return mac.digest()


def _xor(text: bytes, stream: bytes) -> bytes:
    return (np.frombuffer(text, np.uint8) ^ np.frombuffer(stream, np.uint8)).tobytes()


@dataclass
class Filled:
    """Batches that are ready, in the order they go out."""

    users: list[User] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)  # number of the first symbol of each
    codes: list[Ints] = field(default_factory=list, repr=False)
    times: list[float] = field(default_factory=list)


@dataclass
class _Stream:
    """One user's symbols as they come."""

    batches: int
    symbols: int
    codes: list[int] = field(repr=False)
    time: float | None

    def send(self, user: User, filled: Filled) -> None:
        filled.users.append(user)
        filled.numbers.append(self.batches)
        filled.firsts.append(self.symbols - len(self.codes))
        filled.codes.append(np.array(self.codes, np.int64))
        filled.times.append(np.nan if self.time is None else self.time)
        self.codes, self.batches = [], self.batches + 1


def collect(
    batch: int,
    seal: Seal,
    get: Callable[[User], Kept | None],
    events: Iterator[tuple[User, int, int, float | None]],
    end: bool = False,
) -> tuple[Filled, dict[User, tuple[int, bytes]]]:
    """Put the symbols of some users to those that wait: batches that fill, and what then waits (taken, seal).

    Parameters: `events` are users, numbers of symbols, codes (END: a marker, with the number that comes next) and
    times, in the order of their numbers, a marker before the symbol of the same number; `end` sends short batches too.
    """
    streams: dict[User, _Stream] = {}
    filled = Filled()
    for user, seq, code, time in events:
        if user not in streams:
            kept = get(user)
            codes, last = seal.open(user, b"" if kept is None else kept.waiting)
            streams[user] = _Stream(*((0, 0) if kept is None else (kept.events, kept.symbols)), codes, last)
        stream = streams[user]
        if seq < stream.symbols:
            continue  # taken before
        if seq > stream.symbols:
            expected = stream.symbols
            raise OutOfOrder(-1, f"an event has number {seq}, and {expected} is next; send the missing events first")
        if code == END:
            if stream.codes:
                stream.send(user, filled)
            continue
        stream.codes.append(code)
        stream.symbols, stream.time = stream.symbols + 1, time
        if len(stream.codes) == batch:
            stream.send(user, filled)
    for user, stream in streams.items() if end else ():
        if stream.codes:
            stream.send(user, filled)
    return filled, {user: (s.symbols, seal.close(user, s.codes, s.time)) for user, s in streams.items()}
