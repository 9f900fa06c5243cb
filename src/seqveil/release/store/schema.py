"""The tables of a state file, their version, and how an older file becomes one of today."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import numpy as np

from seqveil.core.errors import DataError
from seqveil.release.store.marks import blob_mark, name_mark, place_mark, user_mark, value_mark

APPLICATION, VERSION = 0x5E91E11, 3
UNKNOWN = -1  # the LDP figure of a user whose last release was made before it was kept
LEDGER = ("id", "events", "releases", "spent", "most", "least", "ldp")
SPENDS = "a new file, whose ledger begins at zero: what was told before would no longer count against any budget"

# Ledgers are in units of 2**-32, rounded outward. The marks are checksums (`marks`): `mark` is of ledger and state,
# `recent_mark` of the latest releases, `named` of the name. A log row has one of who is in it, and one of what.
TABLES = {
    "facts": "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, mark INTEGER NOT NULL) WITHOUT ROWID",
    "positions": "CREATE TABLE positions (source TEXT PRIMARY KEY, position NOT NULL, mark INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "users": "CREATE TABLE users (id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, named INTEGER NOT NULL,"
    " events INTEGER NOT NULL, releases INTEGER NOT NULL, spent INTEGER NOT NULL, most INTEGER NOT NULL,"
    " least INTEGER NOT NULL, ldp INTEGER NOT NULL, mark INTEGER NOT NULL, state BLOB NOT NULL,"
    " recent_mark INTEGER NOT NULL, recent BLOB NOT NULL)",
    "users_named": "CREATE INDEX users_named ON users (named)",
    "chunks": "CREATE TABLE chunks (user INTEGER, number INTEGER, mark INTEGER NOT NULL, releases BLOB NOT NULL,"
    " PRIMARY KEY (user, number)) WITHOUT ROWID",
    "log": "CREATE TABLE log (id INTEGER PRIMARY KEY, who INTEGER NOT NULL, what INTEGER NOT NULL,"
    " touched BLOB NOT NULL, states BLOB NOT NULL, events BLOB NOT NULL, releases BLOB NOT NULL)",
    # what the other tables must come to: a record that is gone leaves no mark of its own
    "sums": "CREATE TABLE sums (id INTEGER PRIMARY KEY, users INTEGER NOT NULL, first INTEGER NOT NULL,"
    " last INTEGER NOT NULL, positions INTEGER NOT NULL, facts INTEGER NOT NULL, mark INTEGER NOT NULL)",
}


def make(sql: sqlite3.Connection) -> None:
    """The tables of a new file."""
    for statement in TABLES.values():
        sql.execute(statement)
    write_sums(sql, 0, 1, 0, 0, 0)
    sql.execute(f"PRAGMA application_id={APPLICATION}")
    sql.execute(f"PRAGMA user_version={VERSION}")


def write_sums(sql: sqlite3.Connection, *numbers: int) -> None:
    """Users, first and last row of the log, and what the marks of positions and of facts come to."""
    row = (*numbers, place_mark(*numbers))
    sql.execute("INSERT OR REPLACE INTO sums VALUES (1, ?, ?, ?, ?, ?, ?)", row)


def is_intact(sql: sqlite3.Connection) -> bool:
    """Whether the tables are as they were made: a bit of their definition would change what is read from them."""
    found = dict(sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    return all(found.get(name) == statement for name, statement in TABLES.items())


Migration = Callable[[sqlite3.Connection, str], None]  # gets the file's name, for what it may have to say


def _from_1(sql: sqlite3.Connection, name: str) -> None:
    """Users named by whole numbers get the number as text; ledgers get a place for the LDP figure.

    A key then gives the events to come of such a user other coins than it would have. None of them was drawn before,
    but those of a call that a crash undid, which nobody has seen. States lack the LDP figure until they are next
    written: `Live` tells them by their size.
    """
    both = "SELECT count(*) FROM users u JOIN users v ON v.name = CAST(u.name AS TEXT) WHERE typeof(u.name) = 'integer'"
    twice = sql.execute(both).fetchone()[0]
    if twice:
        raise DataError(
            f"{name}: {twice} users are there twice, by a number and by the same text, each with a ledger of its own; "
            f"go on with the earlier seqveil, or begin {SPENDS}"
        )
    sql.execute("UPDATE users SET name = CAST(name AS TEXT) WHERE typeof(name) = 'integer'")
    sql.execute(f"ALTER TABLE users ADD COLUMN ldp INTEGER NOT NULL DEFAULT {UNKNOWN}")
    for at, touched in sql.execute("SELECT id, touched FROM log").fetchall():
        ledgers = np.frombuffer(touched, "<i8").reshape(-1, 6)
        wider = np.column_stack([ledgers, np.full(len(ledgers), UNKNOWN)]).astype("<i8")
        sql.execute("UPDATE log SET touched = ? WHERE id = ?", (wider.tobytes(), at))


def _from_2(sql: sqlite3.Connection, name: str) -> None:
    """Every record gets its mark; what is wrong by now cannot be told from what is right."""
    old = ("facts", "positions", "users", "chunks", "log")
    for table in old:
        sql.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in TABLES.values():
        sql.execute(statement)
    sums = [_copy_named(sql, "facts"), _copy_named(sql, "positions")]
    ledger = "events, releases, spent, most, least, ldp"
    users = 0
    for user, known, *figures, state, recent in sql.execute(f"SELECT id, name, {ledger}, state, recent FROM old_users"):
        marks = name_mark(known), user_mark(user, figures, state), blob_mark(place_mark(user), recent)
        row = (user, known, marks[0], *figures, marks[1], state, marks[2], recent)
        sql.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        users += 1
    for user, number, releases in sql.execute("SELECT user, number, releases FROM old_chunks"):
        mark = blob_mark(place_mark(user, number), releases)
        sql.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", (user, number, mark, releases))
    last = 0
    for *parts, _ in sql.execute("SELECT touched, states, events, releases, id FROM old_log ORDER BY id"):
        last += 1
        sql.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (last, *log_marks(last, *parts), *parts))
    for table in old:
        sql.execute(f"DROP TABLE old_{table}")
    write_sums(sql, users, 1, last, sums[1], sums[0])


def _copy_named(sql: sqlite3.Connection, table: str) -> int:
    total = 0
    for name, value in sql.execute(f"SELECT * FROM old_{table}").fetchall():
        mark = value_mark(name, value)
        sql.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (name, value, mark))
        total ^= mark
    return total


def log_marks(row: int, touched: bytes, states: bytes, events: bytes, releases: bytes) -> tuple[int, int]:
    """The marks of a log row: of who is in it, and of what it says about them."""
    place = place_mark(row)
    return blob_mark(place, touched, events), blob_mark(place, states, releases)


MIGRATIONS: dict[int, Migration] = {1: _from_1, 2: _from_2}  # from this version to the next, inside one transaction
