"""Randomness for releases: the operating system's by default, keyed where a step may be run again, seeded only for
research and marked so."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Hashable, Sequence
from copy import copy
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError, whole_number

BITS = 62  # randomness and rows of kernels share 2**62: the largest power of two whose sums stay inside int64
_SPARE = np.uint64(64 - BITS)
KEY_BYTES = 32
_OF_BLOCK = b"\xff" * 8  # in place of the number of a draw: no event has so many
User = str | int


class Randomness(Protocol):
    """A source of uniform integers in [0, 2**62)."""

    private: bool

    def draw(self, count: int) -> NDArray[np.int64]:
        """`count` independent uniform integers in [0, 2**62)."""


class SystemRandomness:
    """Randomness of the operating system (`os.urandom`): for private releases that need not be repeatable."""

    private = True

    def draw(self, count: int) -> NDArray[np.int64]:
        """Uniform integers below 2**62 from the system's generator, (count,)."""
        return (np.frombuffer(os.urandom(8 * count), np.uint64) >> _SPARE).view(np.int64)


class SeededRandomness:
    """Randomness anyone who knows the seed can replay: for research and tests, never for a private release."""

    private = False

    def __init__(self, seed: int) -> None:
        whole_number("the seed", seed, least=0)
        self._generator = np.random.default_rng(int(seed))

    def draw(self, count: int) -> NDArray[np.int64]:
        """Uniform integers below 2**62, (count,): the same ones for the same seed."""
        return self._generator.integers(0, 1 << BITS, size=count, dtype=np.int64)


def randomness(seed: int | None = None) -> Randomness:
    """The operating system's randomness, or seeded randomness (marked not private) where a seed is given."""
    return SystemRandomness() if seed is None else SeededRandomness(seed)


class KeyedRandomness:
    """Randomness that belongs to an event: a keyed hash (BLAKE2b) of who, which event and which draw of it.

    draw(user, seq, j) = PRF_key(setting, salt, j, seq, user) mod 2**62, so the same event of the same state has the
    same randomness whenever, wherever and beside whichever others it is released. An engine that repeats work after a
    crash then repeats its releases, instead of drawing, and leaking, a second time.

    *Guarantee*: to anyone without the key the randomness of different events is independent and uniform, as far as
    BLAKE2b is a pseudo-random function. **Whoever has the key can undo the release**, and the randomness of one event
    must serve one symbol only. So `Streams` mixes in its setting and the random salt of its store (`of_state`): two
    states never share randomness, though they share the key, the users and the numbers. A user who is a whole number
    has the randomness of its digits.

    >>> randomness = KeyedRandomness(bytes(32))
    >>> together = randomness.of(["ann", "bob"], [0, 7]).draw(2)
    >>> bool(together[1] == randomness.of(["bob"], [7]).draw(1)[0])
    True

    Reference: RFC 7693 (keyed BLAKE2b).
    """

    def __init__(self, key: bytes, private: bool = True) -> None:
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise InputError(f"expected a key of {KEY_BYTES} random bytes; make one with seqveil.randomness.key_file")
        self._key, self.private = key, private

    @classmethod
    def seeded(cls, seed: int) -> KeyedRandomness:
        """Event randomness that anyone who knows the seed can replay: for research, never for a private release."""
        SeededRandomness(seed)  # the same demands on a seed
        return cls(blake2b(str(seed).encode(), digest_size=KEY_BYTES).digest(), private=False)

    def of_state(self, setting: str, salt: bytes) -> KeyedRandomness:
        """The randomness of one state of this setting. Seeded, it has no salt: it is to be replayed elsewhere."""
        content = b"%d " % len(setting.encode()) + setting.encode() + (salt if self.private else b"")
        mixed = blake2b(content, key=self._key, digest_size=KEY_BYTES, person=b"seqveil-state").digest()
        return KeyedRandomness(mixed, self.private)

    def of(self, users: Sequence[User], seqs: Sequence[int] | NDArray[np.int64]) -> EventRandomness:
        """The randomness of these events, one after another."""
        names = [b"s" + user_name(user).encode() for user in users]
        return EventRandomness(self._key, names, np.asarray(seqs, np.int64), self.private)


class EventRandomness:
    """The randomness of the events of one call: `draw` gives each event its next number; `rows` takes some events."""

    def __init__(self, key: bytes, names: list[bytes], seqs: NDArray[np.int64], private: bool) -> None:
        self._key, self._names, self._seqs, self.private = key, names, seqs.astype("<i8"), private
        self._drawn = [0] * len(names)  # numbers drawn so far, shared by all of its rows
        self._at: Sequence[int] = range(len(names))

    def rows(self, part: NDArray[np.intp]) -> EventRandomness:
        """The randomness of these events alone."""
        some = copy(self)
        some._at = [self._at[k] for k in part.tolist()]
        return some

    def draw(self, count: int) -> NDArray[np.int64]:
        """One draw for each event in order; several for a single event."""
        if count != len(self._at) and len(self._at) != 1:
            raise InputError(f"expected one draw for each of {len(self._at)} events, asked for {count}")
        at = self._at if count == len(self._at) else list(self._at) * count
        names, seqs, drawn = self._names, self._seqs.tobytes(), self._drawn
        messages = []
        for k in at:
            messages.append(drawn[k].to_bytes(8, "little") + seqs[8 * k : 8 * k + 8] + names[k])
            drawn[k] += 1
        return self._numbers(messages)

    def of_blocks(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The one number that belongs to a block of each event's user, whichever of its events asks for it."""
        both = zip(self._at, numbers.tolist(), strict=True)
        return self._numbers([_OF_BLOCK + number.to_bytes(8, "little") + self._names[k] for k, number in both])

    def _numbers(self, messages: list[bytes]) -> NDArray[np.int64]:
        """The keyed hash of each message as an integer below 2**62."""
        key = self._key
        words = b"".join([blake2b(message, key=key, digest_size=8).digest() for message in messages])
        return (np.frombuffer(words, "<u8") >> _SPARE).astype(np.int64)


def user_name(user: object, where: str = "") -> str:
    """A user's name, which is text everywhere: a whole number is the same user as its decimal digits.

    >>> user_name(7), user_name("7"), user_name("007")
    ('7', '7', '007')
    """
    if isinstance(user, str):
        return str(user)
    if isinstance(user, (int, np.integer)) and not isinstance(user, bool):
        return str(int(user))
    raise InputError(f"{where}expected a user that is text or a whole number, got {type(user).__name__}")


def known_as(user: Hashable) -> Hashable:
    """What a user's account goes by where anything hashable may name one: its name, or the thing itself."""
    whole = isinstance(user, (int, np.integer)) and not isinstance(user, bool)
    return user_name(user) if whole or isinstance(user, str) else user


def rows(source: Randomness, part: NDArray[np.intp]) -> Randomness:
    """The randomness for some rows of a call: each event's own where there are events, else the source itself."""
    return source.rows(part) if isinstance(source, EventRandomness) else source


def key_file(path: str | os.PathLike[str], create: bool = False) -> bytes:
    """The key in a file that its owner alone may read; `create` makes one where there is none."""
    name = os.path.basename(path)
    if create and not os.path.exists(path):
        _make_key(path)
    try:
        with open(path, "rb") as file:
            shared = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            key = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: the key cannot be read ({error.strerror}); check the path") from None
    if os.name == "posix" and shared:
        raise InputError(f"{name}: others may read or change the key; run chmod 600 on it, or make a new one")
    if len(key) != KEY_BYTES:
        raise InputError(f"{name}: expected a key of exactly {KEY_BYTES} bytes; let seqveil make one")
    return key


def key_mark(key: bytes) -> str:
    """What tells one key from another and nothing about either: 16 hexadecimal digits."""
    return blake2b(b"mark of a key", key=key, digest_size=8, person=b"seqveil").hexdigest()


def _make_key(path: str | os.PathLike[str]) -> None:
    """Write a new key whole or not at all, and never over another."""
    part = f"{os.fspath(path)}.part-{os.getpid()}"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
            file.write(os.urandom(KEY_BYTES))
            os.fsync(file)
        try:
            with contextlib.suppress(FileExistsError):  # another process was quicker: its key stands
                os.link(part, path)
        finally:
            os.unlink(part)
    except OSError as error:
        raise InputError(
            f"{os.path.basename(path)}: a key cannot be made here ({error.strerror}); choose another folder"
        ) from None
