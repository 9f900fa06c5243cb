"""Symbols that wait for their batch between two micro-batches: sealed, because what Spark keeps lies on disks.

ChaCha20-Poly1305 (RFC 8439) under a key of the user's own, derived from the key of the release, with a fresh nonce each
time. Whoever has the key of the release can open it, and could undo the release anyway; nobody else learns more than
how many symbols wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.coins import User
from seqveil.core.errors import DataError
from seqveil.core.kernel import Ints
from seqveil.interfaces.spark.bucket import Kept
from seqveil.release.calls import OutOfOrder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

END = -3  # stands for the code of a marker: what waits of the user goes out as a short batch
NONCE = 12


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
        return nonce + bytes(self._cipher(user).encrypt(nonce, plain, None))

    def open(self, user: User, sealed: bytes) -> tuple[list[int], float | None]:
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
