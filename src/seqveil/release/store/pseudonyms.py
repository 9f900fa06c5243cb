"""Names of those who were erased, so that only whoever has the key can tell them again.

A pseudonym is a keyed hash of the name. Its key is made when the first user is erased and lies in the state file,
sealed with the key of the coins: changing that one seals it anew, and pseudonyms stay what they are.
"""

from __future__ import annotations

import os
from hashlib import blake2b

SIZE = 16  # bytes of a pseudonym; the name of a user is text, so none can be one
FACT = "pseudonyms"  # under which a state file has the sealed key


class Pseudonyms:
    """Pseudonyms under one key.

    Parameters:
        secret: 32 bytes; new ones unless given.

    >>> first = Pseudonyms()
    >>> again = Pseudonyms.opened(first.sealed(bytes(32)), bytes(32))
    >>> first.of("ann") == again.of("ann"), first.of("ann") == first.of("bob")
    (True, False)
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = os.urandom(32) if secret is None else secret

    @classmethod
    def opened(cls, sealed: str, key: bytes) -> Pseudonyms:
        """Those whose key was sealed with this one."""
        return cls(_mixed(bytes.fromhex(sealed), key))

    def sealed(self, key: bytes) -> str:
        """The key of the pseudonyms, to be read with this key alone."""
        return _mixed(self._secret, key).hex()

    def of(self, name: str) -> bytes:
        """The pseudonym of a user."""
        return blake2b(name.encode(), key=self._secret, digest_size=SIZE, person=b"seqveil-erased").digest()

    def text(self, name: str) -> str:
        """The pseudonym as text, for a bridge: none takes it for a name, as those of a topic begin with no $."""
        return f"${self.of(name).hex()}"


def _mixed(secret: bytes, key: bytes) -> bytes:
    mask = blake2b(b"key of the pseudonyms", key=key, digest_size=32, person=b"seqveil-sealed").digest()
    return bytes(a ^ b for a, b in zip(secret, mask, strict=True))
