"""Checksums of what a state file holds, so that a flipped bit is found where it is read.

Every record has a mark: CRC-32 of what it says and of where it stands, which finds every change of up to 32 bits in a
row. A user's name has a mark of 63 bits that is indexed too, so that no single damage can make a known user look new.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from zlib import crc32

from seqveil.core.coins import User

BROKEN = -1  # the mark of a record that was found damaged: no checksum is negative

NONE = -2  # of what cannot have been written, because damage made another kind of it

Blob = bytes | memoryview
_PACKED = [struct.Struct(f"<{count}q").pack for count in range(9)]  # by how many numbers there are


def place_mark(*numbers: int) -> int:
    """Of where a record stands: the checksum that its content goes on from.

    >>> place_mark(7) == place_mark(8)
    False
    """
    try:
        return crc32(_PACKED[len(numbers)](*numbers))
    except struct.error:
        return NONE


def blob_mark(place: int, *blobs: Blob) -> int:
    """Of blobs one after another, at a place."""
    mark = place
    for blob in blobs:
        if not isinstance(blob, (bytes, memoryview)):
            return NONE
        mark = crc32(blob, mark)
    return mark


def user_mark(user: int, ledger: Sequence[int], state: Blob) -> int:
    """Of a user's ledger (events, releases, spent, most, least, LDP level, when it was filed) and state."""
    return blob_mark(place_mark(user, *ledger), state)


def name_mark(name: User | bytes) -> int:
    """Of a user's name, or of the pseudonym of one who was erased; what a second index finds the user by.

    >>> 0 <= name_mark("ann") < 2**63, name_mark("ann") == name_mark(b"ann")
    (True, False)
    """
    content = b"\xff" + name if isinstance(name, bytes) else str(name).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1


def value_mark(name: str, value: str | bytes | int) -> int:
    """Of a named value, whatever kind it is of."""
    if not isinstance(name, str):
        return NONE
    kind = type(value).__name__.encode()
    content = value if isinstance(value, bytes) else str(value).encode()
    return blob_mark(place_mark(len(name), len(content)), name.encode(), kind, content)


def grown_mark(mark: int, more: Blob) -> int:
    """Of a blob with more at its end; one that was found damaged stays so."""
    return BROKEN if mark == BROKEN else crc32(more, mark)
