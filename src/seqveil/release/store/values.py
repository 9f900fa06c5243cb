"""What a state file says by name, each with its mark: facts about itself, positions of sources, moves of users."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from seqveil.release.store.book import Book
from seqveil.release.store.connections import damaged_file, told
from seqveil.release.store.marks import place_mark, value_mark
from seqveil.release.store.protocol import Position
from seqveil.release.store.records import is_ledger


class NamedValues:
    """The part of a `Database` that keeps named values."""

    name: str
    sql: sqlite3.Connection
    _book: Book

    def fact(self, name: str) -> str | None:
        """What the file says of itself under this name."""
        row = self.sql.execute("SELECT value, mark FROM facts WHERE name = ?", (name,)).fetchone()
        if row is not None and value_mark(name, row[0]) != row[1]:
            raise damaged_file(self.name)
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        """Have the file say this of itself."""
        self._book.facts ^= self._put("facts", "name", name, value)

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        with told(self.name):
            row = self.sql.execute("SELECT position, mark FROM positions WHERE source = ?", (source,)).fetchone()
        if row is not None and value_mark(source, row[0]) != row[1]:
            raise damaged_file(self.name)
        return None if row is None else row[0]

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Keep positions beside the releases, in the same transaction."""
        for source, position in positions.items():
            self._book.positions ^= self._put("positions", "source", source, position)

    def drop_position(self, source: str) -> None:
        """Forget the position of this source."""
        for (mark,) in self.sql.execute("SELECT mark FROM positions WHERE source = ?", (source,)).fetchall():
            self._book.positions ^= int(mark)
        self.sql.execute("DELETE FROM positions WHERE source = ?", (source,))

    def _put(self, table: str, key: str, name: str, value: Position) -> int:
        """Write a named value; what that changes in the sum of the marks."""
        row = self.sql.execute(f"SELECT mark FROM {table} WHERE {key} = ?", (name,)).fetchone()
        mark = value_mark(name, value)
        self.sql.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (name, value, mark))
        return mark if row is None else mark ^ int(row[0])

    def switches(self) -> dict[tuple[int, int], int]:
        """By user and version of the setting, the event at which the user moved to it."""
        found, total = dict[tuple[int, int], int](), self._book.switches
        for *row, mark in self.sql.execute("SELECT user, version, seq, mark FROM switches"):
            if not is_ledger(row) or place_mark(*row) != mark:
                raise damaged_file(self.name)
            found[row[0], row[1]] = row[2]
            total ^= mark
        if total:
            raise damaged_file(self.name)
        return found

    def add_switches(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Write down at which events users moved to a version: user, version and sequence number of each."""
        marked = [(*row, place_mark(*row)) for row in rows]
        self.sql.executemany("INSERT INTO switches VALUES (?, ?, ?, ?)", marked)
        for *_, mark in marked:
            self._book.switches ^= mark

    def drop_switches(self, user: int) -> None:
        """Forget at which events a user moved to another version."""
        for (mark,) in self.sql.execute("SELECT mark FROM switches WHERE user = ?", (user,)).fetchall():
            self._book.switches ^= mark
        self.sql.execute("DELETE FROM switches WHERE user = ?", (user,))
