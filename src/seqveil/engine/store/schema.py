"""The tables of a state file: their checksums and version, and named values.

Every record has a mark: CRC-32 of what it says and of where it stands, which finds every change of up to 32 bits in a
row. A user's name has a mark of 63 bits that is indexed too, so that no single damage can make a known user look new.
Facts about the file and positions of sources are read and written by name (`NamedValues`).
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

from seqveil.core.coins import User
from seqveil.core.errors import DataError
from seqveil.engine.store.book import Book
from seqveil.engine.store.connections import damaged_file, told
from seqveil.engine.store.protocol import Position

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
    """Of a user's ledger (events, releases, spent, most, least, LDP level) and state."""
    return blob_mark(place_mark(user, *ledger), state)


def name_mark(name: User | bytes) -> int:
    """Of a user's name, or of the hashed name of one who was erased; what a second index finds the user by.

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


APPLICATION, VERSION = 0x5E91E11, 1
CHUNK = 64  # releases of a user in one row of `chunks`
LEDGER = ("id", "events", "releases", "spent", "most", "least", "ldp")
SUMS = ("users", "first", "last", "positions", "facts", "commits")
SPENDS = "a new file, whose ledger begins at zero: what was told before would no longer count against any budget"

# Ledgers are in units of 2**-32, rounded outward. The marks are checksums: `mark` is of ledger and state,
# `recent_mark` of the latest releases, `named` of the name. A log row has one of who is in it, and one of what. `kept`
# is the number of a user's first release that is still there.
TABLES = {
    "facts": "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, mark INTEGER NOT NULL) WITHOUT ROWID",
    "positions": "CREATE TABLE positions (source TEXT PRIMARY KEY, position NOT NULL, mark INTEGER NOT NULL)"
    " WITHOUT ROWID",
    # the name is text, or the hashed name of someone who was erased
    "users": "CREATE TABLE users (id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, named INTEGER NOT NULL,"
    " events INTEGER NOT NULL, releases INTEGER NOT NULL, spent INTEGER NOT NULL, most INTEGER NOT NULL,"
    " least INTEGER NOT NULL, ldp INTEGER NOT NULL, mark INTEGER NOT NULL,"
    " state BLOB NOT NULL, kept INTEGER NOT NULL, recent_mark INTEGER NOT NULL, recent BLOB NOT NULL)",
    "users_named": "CREATE INDEX users_named ON users (named)",
    "chunks": "CREATE TABLE chunks (user INTEGER, number INTEGER, mark INTEGER NOT NULL,"
    " releases BLOB NOT NULL, PRIMARY KEY (user, number)) WITHOUT ROWID",
    # the names are those of users who have no row of their own yet
    "log": "CREATE TABLE log (id INTEGER PRIMARY KEY, who INTEGER NOT NULL, what INTEGER NOT NULL,"
    " names BLOB NOT NULL, touched BLOB NOT NULL, events BLOB NOT NULL, states BLOB NOT NULL, releases BLOB NOT NULL)",
    # what the other tables must come to: a record that is gone leaves no mark of its own
    "sums": "CREATE TABLE sums (id INTEGER PRIMARY KEY, users INTEGER NOT NULL, first INTEGER NOT NULL,"
    " last INTEGER NOT NULL, positions INTEGER NOT NULL, facts INTEGER NOT NULL,"
    " commits INTEGER NOT NULL, mark INTEGER NOT NULL)",
}


def make(sql: sqlite3.Connection) -> None:
    """The tables of a new file."""
    for statement in TABLES.values():
        sql.execute(statement)
    write_sums(sql, (0, 1, 0, 0, 0, 0))
    sql.execute(f"PRAGMA application_id={APPLICATION}")
    sql.execute(f"PRAGMA user_version={VERSION}")


def write_sums(sql: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """What the tables come to, in the order of `SUMS`."""
    row = (*numbers, place_mark(*numbers))
    sql.execute("INSERT OR REPLACE INTO sums VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)


def read_sums(sql: sqlite3.Connection) -> tuple[int, ...] | None:
    """What the tables come to; None where that is damaged itself."""
    row = sql.execute(f"SELECT {', '.join(SUMS)}, mark FROM sums WHERE id = 1").fetchone()
    if row is None or any(type(number) is not int for number in row) or place_mark(*row[:-1]) != row[-1]:
        return None
    return tuple(row[:-1])


def is_intact(sql: sqlite3.Connection) -> bool:
    """Whether the tables are as they were made: a bit of their definition would change what is read from them."""
    found = dict(sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    return all(found.get(name) == statement for name, statement in TABLES.items())


def log_marks(row: int, names: bytes, touched: bytes, events: bytes, states: bytes, releases: bytes) -> tuple[int, int]:
    """The marks of a log row: of who is in it, and of what it says about them."""
    place = place_mark(row)
    return blob_mark(place, names, touched, events), blob_mark(place, states, releases)


def packed_names(names: Sequence[str]) -> bytes:
    """Names of users as the log has them."""
    return json.dumps(names, ensure_ascii=False).encode() if names else b""


def unpacked_names(blob: bytes) -> list[str]:
    """The names in a row of the log, whose marks were checked.

    >>> unpacked_names(packed_names(["ann", "bob"])), unpacked_names(b"")
    (['ann', 'bob'], [])
    """
    names: list[str] = json.loads(blob) if blob else []
    return names


def is_blank(sql: sqlite3.Connection) -> bool:
    """Whether nothing was ever written to this file."""
    heads = (sql.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version"))
    return not any(heads) and not sql.execute("SELECT 1 FROM sqlite_master").fetchall()


def refuse_other(sql: sqlite3.Connection, name: str) -> None:
    """Refuse what is no state file, and one of another version."""
    application, version = (sql.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version"))
    if application != APPLICATION:
        raise DataError(f"{name}: is not a state file of seqveil, or its head is damaged; name another file")
    if version != VERSION:
        raise DataError(
            f"{name}: is a state file of version {version}, and this seqveil reads version {VERSION}; use the seqveil "
            "that wrote it"
        )


def is_ledger(numbers: Sequence[object]) -> bool:
    """Whether these are whole numbers: damage may make anything of them."""
    return all(type(number) is int for number in numbers)


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
