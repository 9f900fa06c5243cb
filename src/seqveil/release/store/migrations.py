"""State files of earlier versions, brought forward one version at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import numpy as np

from seqveil.core.errors import DataError

UNKNOWN = -1  # the LDP figure of a user whose last release was made before it was kept
LDP_COLUMN = f"ldp INTEGER NOT NULL DEFAULT {UNKNOWN}"

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
            "go on with the earlier seqveil, or begin a new state file"
        )
    sql.execute("UPDATE users SET name = CAST(name AS TEXT) WHERE typeof(name) = 'integer'")
    sql.execute(f"ALTER TABLE users ADD COLUMN {LDP_COLUMN}")
    for at, touched in sql.execute("SELECT id, touched FROM log").fetchall():
        ledgers = np.frombuffer(touched, "<i8").reshape(-1, 6)
        wider = np.column_stack([ledgers, np.full(len(ledgers), UNKNOWN)]).astype("<i8")
        sql.execute("UPDATE log SET touched = ? WHERE id = ?", (wider.tobytes(), at))


MIGRATIONS: dict[int, Migration] = {1: _from_1}  # from this version to the next, inside one transaction
