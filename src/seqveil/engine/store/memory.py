"""Users kept in memory, for as long as the process runs."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from seqveil.core.coins import User
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.store.protocol import SALT_BYTES, Entry, Position, Row, Stored, codec_of
from seqveil.engine.stream import Terms


class Memory:
    """A state store in memory.

    States that there is no room for lie in a temporary file without a name; they follow from the releases, so nothing
    in it is private.

    Parameters:
        setting: how the releases are written.
        releases: whether they are kept. Without them an event that comes a second time is not drawn again, and what it
            was released as cannot be told.
    """

    name, largest, durable = "memory", float("inf"), False

    def __init__(self, setting: Terms, releases: bool = True) -> None:
        self._setting, self.keeps_releases, self.salt = setting, releases, os.urandom(SALT_BYTES)
        self._index: dict[User, int] = {}
        self._added: list[User] = []  # users of the present call
        self._counts, self._figures = np.zeros((0, 2), np.int64), np.zeros((0, 4))
        self._log: list[tuple[Ints, bytes]] = []  # releases of the latest calls
        self._told: dict[int, list[Stored]] = {}  # of those before
        self._places: dict[int, tuple[int, int]] = {}  # where in the file a state lies, and its size
        self._file: Any = None
        self._end = 0
        self._positions: dict[str, Position] = {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Names that were added in a block that fails are forgotten, but for users with a drawn event."""
        self._added = []
        try:
            yield
        except BaseException:
            for user in self._added[::-1]:
                if self._counts[self._index[user], 0]:
                    break  # an event of this user is drawn, which stands
                del self._index[user]
            raise

    def find(self, names: Sequence[User]) -> list[Row | None]:
        """Where these users stand; None for a new one."""
        found: list[Row | None] = []
        for name in names:
            user = self._index.get(name)
            if user is None:
                found.append(None)
            else:
                events, releases = self._counts[user].tolist()
                spent, most, least, ldp = self._figures[user].tolist()
                found.append(Row(user, events, releases, spent, most, least, ldp, self._aside(user)))
        return found

    def _aside(self, user: int) -> bytes:
        if user not in self._places:
            return b""
        place, size = self._places[user]
        self._file.seek(place)
        return bytes(self._file.read(size))

    def add(self, names: Sequence[User]) -> list[int]:
        """Numbers for new users, in the order they come."""
        first = len(self._index)
        self._index.update((name, first + k) for k, name in enumerate(names))
        self._added += names
        lacking = len(self._index) - len(self._counts)
        if lacking > 0:
            more = max(lacking, len(self._counts))
            self._counts = np.concatenate([self._counts, np.zeros((more, 2), np.int64)])
            self._figures = np.concatenate([self._figures, np.zeros((more, 4))])
        return list(range(first, len(self._index)))

    def name_again(self, user: int, name: User) -> None:
        """Nothing: nobody is erased from here."""

    def append(self, entry: Entry) -> None:
        """Keep counts and figures, and the releases where they are wanted."""
        self._counts[entry.ids], self._figures[entry.ids] = entry.counts, entry.figures
        if self.keeps_releases:
            self._log.append((entry.pieces, entry.records))

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Write states to a temporary file, from where `find` reads them back."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as the store
            weakref.finalize(self, self._file.close)
        size = len(states) // max(1, ids.size)
        for k, user in enumerate(ids.tolist()):
            place, before = self._places.get(user, (self._end, 0))
            if before < size:  # a window that looks back further than it did
                place, self._end = self._end, self._end + size
            self._places[user] = place, size
            self._file.seek(place)
            self._file.write(states[k * size : (k + 1) * size])

    def releases(self, user: int, events: int, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on."""
        if not self.keeps_releases:
            raise InputError("these streams keep no releases; pass Memory(setting), or a state file")
        self._settle()
        yield from self._told.get(user, [])[since:]

    def stored(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """These events as they were released; nothing where releases are not kept."""
        self._settle()
        return {(user, seq): self._told[user][seq] for user, seq in wanted if self.keeps_releases}

    def _settle(self) -> None:
        """Sort the releases of the latest calls by user."""
        codec = codec_of(self._setting)
        for pieces, records in self._log:
            at = 0
            for user, size, _ in pieces.tolist():
                told = self._told.setdefault(user, [])
                told.extend(codec.unpack(records[at : at + size], len(told)))
                at += size
        self._log = []

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user, in the order they came."""
        users = len(self._index)
        return list(self._index), self._counts[:users].copy(), self._figures[:users].copy()

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        return self._positions.get(source)

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Keep positions for as long as the process lives."""
        self._positions.update(positions)

    def fact(self, name: str) -> str | None:
        """Nothing: memory has no past that could contradict the setting."""
        return None

    def close(self) -> None:
        """Nothing is open but the file, which goes with the store."""
