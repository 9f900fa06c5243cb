"""What a store of states is: where the users of `Streams` are kept between calls, and what was released of them.

Three of them are there: memory, an SQLite file, and Spark's state store. One suite tests them all
(`tests/test_state_stores.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from seqveil.core.coins import User
from seqveil.core.errors import SeqveilError
from seqveil.core.kernel import Floats, Ints
from seqveil.release.store.records import Stored

Position = str | bytes | int


class StoreError(SeqveilError):
    """The state file cannot be used or written now; what was committed before stands, nothing else happened."""


class StoreBusy(StoreError):
    """Another process has the state file open."""


class Row(NamedTuple):
    """Where a user stands, in nats, and the exact state where the store keeps it."""

    id: int
    events: int
    releases: int
    spent: float
    most: float
    least: float
    ldp: float  # nan where it was not kept
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
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block is kept when it ends, or, if it fails, nothing that `append` has not got."""

    def find(self, names: Sequence[User]) -> list[Row | None]:
        """Where these users stand; None for a new one."""

    def add(self, names: Sequence[User], room: int) -> list[int]:
        """Ids for new users, with room for a state of so many bytes."""

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
