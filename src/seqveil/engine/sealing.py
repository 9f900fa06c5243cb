"""What a mechanism remembers of raw symbols, sealed for a store: AES-GCM under a key of each user's own.

That is the private part of a state (`Private.memory`): how far the raw stream has come in the automaton of each
declared secret, which may be the secret itself. It is sealed for one user and one step of one file, so that it opens
neither for another user nor beside an earlier or a later row. The hidden bit of a block is never stored: it follows
from the key.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.randomness import User, user_name
from seqveil.engine.store import Damaged

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12


class Sealing:
    """Seals what is private of the users of one store, and opens it again.

    Parameters:
        key: that of the state file.
        salt: of this file alone, for as long as it lives: a copy that is put back still opens.

    >>> sealing = Sealing(bytes(32), b"salt")
    >>> closed = sealing.close("ann", 3, np.array([1, 0]))
    >>> sealing.open("ann", 3, closed)
    array([1, 0])
    >>> sealing.open("ann", 4, closed)
    Traceback (most recent call last):
    seqveil.engine.store.Damaged: what is sealed of a user does not open: ...
    """

    def __init__(self, key: bytes, salt: bytes) -> None:
        self._key = blake2b(salt, key=key, digest_size=32, person=b"seqveil-sealed").digest()

    def close(self, user: User, step: int, memory: Ints) -> bytes:
        """What is private of a user after so many events, encrypted."""
        nonce = os.urandom(NONCE)
        return nonce + self._cipher(user).encrypt(nonce, memory.astype("<i8").tobytes(), b"%d" % step)

    def open(self, user: User, step: int, sealed: bytes) -> Ints:
        """What `close` sealed; refused where any of it, or what it was sealed for, is another."""
        cipher = self._cipher(user)
        from cryptography.exceptions import InvalidTag

        try:
            plain = cipher.decrypt(sealed[:NONCE], sealed[NONCE:], b"%d" % step)
        except (InvalidTag, ValueError):
            raise Damaged(
                "what is sealed of a user does not open: it was sealed with another key, for another user or at "
                "another event, or it is damaged, so nothing of this user is released; all others go on. Use the key "
                "of the state file, or restore the file from a backup",
                [user],
            ) from None
        return np.frombuffer(plain, "<i8").astype(np.int64)

    def _cipher(self, user: User) -> AESGCM:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise InputError(
                "to keep what is private of a stream in a state file the package cryptography is needed; run "
                "pip install -e '.[state]'"
            ) from None
        # a key for each user: random nonces of 96 bits are then never drawn often enough to meet
        return AESGCM(blake2b(user_name(user).encode(), key=self._key, digest_size=32).digest())
