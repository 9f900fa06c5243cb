"""A user's state as bytes: its public part, to the last bit, and what seals the private part.

The hidden bit of a running block is not written, for it follows from the key; the epoch of the store is, for the key
gives another bit in another epoch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.bulk import ByUser
from seqveil.core.errors import DataError, needs_extra
from seqveil.core.kernel import Floats, Ints
from seqveil.core.secrets import SecretTrackers
from seqveil.core.secrets.account import TrackedUsers
from seqveil.engine.store import Damaged, UserRow
from seqveil.engine.stream import Private, State, Terms

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12
# what changes of the account of a secret
CHANGING = ("step", "now", "unseen", "ended", "records", "current", "gone", "disclosed_all")


def pack(state: State, epoch: float) -> bytes:
    """What is public of these states, exact, all of one size.

    What a window looks back on stands first, with its length, which differs from call to call, and the accounts of
    declared secrets at the end, whose length differs from user to user.
    """
    users = len(state)
    parts = [np.full((users, 1), state.window.costs.shape[1])]
    replace(state, trackers=None, private=Private()).mapped(lambda part: parts.append(part.reshape(users, -1)))
    if state.trackers is not None:
        accounts = [account_numbers(each) for each in state.trackers.tolist()]
        longest = max(row.size for row in accounts)
        parts.append(np.array([np.pad(row, (0, longest - row.size)) for row in accounts]))
    if state.blocks is not None:
        parts.append(np.full((users, 1), epoch))
    return np.concatenate(parts, axis=1).astype("<f8", copy=False).tobytes()


def unpack(setting: Terms, rows: Sequence[UserRow]) -> State:
    """The states of these users, all of one size."""
    users, at = len(rows), 1
    table = np.frombuffer(b"".join(row.state for row in rows), "<f8").reshape(users, -1)

    def filled(part: Any) -> Any:
        """The next numbers of the table, in the shape of a part."""
        nonlocal at
        at += part.size // users
        return _whole(table[:, at - part.size // users : at], part.size).reshape(part.shape).astype(part.dtype)

    start = State.start(setting, users)
    trackers, window = start.trackers, start.window.padded(int(table[0, 0]))
    state = replace(start, window=window, trackers=None, private=Private()).mapped(filled)
    if trackers is not None and setting.trackers is not None:
        for k, first in enumerate(state.first.tolist()):
            begun = setting.trackers_from(first) if setting.clocked else setting.trackers
            trackers[k] = restored_accounts(begun, table[k, at:])
    elif at + setting.in_blocks != table.shape[1]:
        _whole(table, -1)
    return replace(state, trackers=trackers, private=start.private)


def epoch_of(salt: bytes) -> float:
    """The epoch of a store as a number: blocks that were begun in another have lost their bits."""
    return float(int.from_bytes(blake2b(salt, digest_size=6, person=b"seqveil-epoch").digest(), "little"))


def account_numbers(trackers: SecretTrackers) -> Floats:
    """All that changes of the accounts of one user, each array with its shape before it."""
    users = trackers.alone
    parts: list[Any] = [users.forgot]

    def write(array: Any) -> None:
        """An array as numbers."""
        parts.extend([[array.ndim, *array.shape], array.ravel()])

    for value in (getattr(tracked, name) for row in users.rows for tracked in row for name in CHANGING):
        if isinstance(value, ByUser):
            value.mapped(write)
        else:
            write(np.asarray(value))
    return np.concatenate(parts).astype(np.float64, copy=False)


def restored_accounts(first: SecretTrackers, packed: Floats) -> SecretTrackers:
    """The accounts behind these numbers; `first` are those before the first release, whatever else follows them."""
    at = 0

    def take(count: int) -> Floats:
        """The next so many of the packed numbers."""
        nonlocal at
        at += count
        return _whole(packed[at - count : at], count).copy()

    def like(value: Any) -> Any:
        """The next part of an account, of the same kind as this one."""
        if isinstance(value, ByUser):
            return value.mapped(like)
        shape = take(int(take(1)[0])).astype(np.int64)
        found = take(int(shape.prod())).reshape(shape)
        return found.astype(value.dtype) if isinstance(value, np.ndarray) else int(found)

    forgot = take(1).astype(np.int64)
    rows = tuple(
        tuple(replace(each, **{name: like(getattr(each, name)) for name in CHANGING}) for each in row)
        for row in first.users.rows
    )
    return SecretTrackers(TrackedUsers(rows, forgot))


def _whole(numbers: Floats, expected: int) -> Floats:
    if numbers.size != expected:
        raise DataError("a user's state does not fit this setting; restore the state file from a backup")
    return numbers


class Sealing:
    """Seals what a mechanism remembers of raw symbols for a store: AES-GCM under a key of each user's own.

    That is how far the raw stream has come in the automaton of each declared secret (`Private.memory`), which may be
    the secret itself. It opens neither for another user nor beside an earlier or a later row.

    Parameters:
        key: that of the state file.
        salt: of this file alone, for as long as it lives: a copy that is put back still opens.
    """

    def __init__(self, key: bytes, salt: bytes) -> None:
        self._key = blake2b(salt, key=key, digest_size=32, person=b"seqveil-sealed").digest()

    def close(self, user: str, step: int, memory: Ints) -> bytes:
        """What is private of a user after so many events, encrypted."""
        nonce = os.urandom(NONCE)
        return nonce + self._cipher(user).encrypt(nonce, memory.astype("<i8").tobytes(), b"%d" % step)

    def open(self, user: str, step: int, sealed: bytes) -> Ints:
        """What `close` sealed; refused where any of it, or what it was sealed for, is another."""
        cipher = self._cipher(user)
        from cryptography.exceptions import InvalidTag

        try:
            plain = cipher.decrypt(sealed[:NONCE], sealed[NONCE:], b"%d" % step)
        except (InvalidTag, ValueError):
            raise Damaged(
                "what is sealed of a user does not open with this key, so nothing of this user is released; all others "
                "go on. Use the key of the state file, or restore the file from a backup",
                [user],
            ) from None
        return np.frombuffer(plain, "<i8").astype(np.int64)

    def _cipher(self, user: str) -> AESGCM:
        with needs_extra("a state file that seals what is private of a stream", "state"):
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        # a key for each user: random nonces of 96 bits are then never drawn often enough to meet
        return AESGCM(blake2b(user.encode(), key=self._key, digest_size=32).digest())
