"""Connections to a state file: the writer's, and those of readers, each in a snapshot of what is committed.

Readers have connections of their own, so that nobody waits for them. What SQLite says becomes one line without data.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from seqveil.release.store.protocol import StoreBusy, StoreError

if TYPE_CHECKING:
    from seqveil.release.store.records import Records

SPARE = 4  # connections that wait for the next reader


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """A connection that any thread may use, and whose transactions are ours to begin."""
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


class Readers:
    """Connections for readers, each with what was committed when it began to read."""

    def __init__(self, path: str, name: str, records: Callable[[sqlite3.Connection], Records]) -> None:
        self._path, self._name, self._records = path, name, records
        self._spare: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._open = True

    @contextmanager
    def snapshot(self) -> Iterator[Records]:
        """The records as they are now, whatever is written meanwhile."""
        if not self._open:
            raise StoreError("the store is closed; open it again")
        with told(self._name):
            try:
                sql = self._spare.get_nowait()
            except Empty:
                sql = connect(self._path, 5.0)
                sql.execute("PRAGMA query_only=ON")
            try:
                sql.execute("BEGIN")
                yield self._records(sql)
            finally:
                with suppress(sqlite3.Error):
                    sql.execute("ROLLBACK")
                if self._open and self._spare.qsize() < SPARE:
                    self._spare.put(sql)
                else:
                    sql.close()

    def close(self) -> None:
        """Close the connections that nobody reads over; the others are closed when they are done."""
        self._open = False
        with suppress(Empty):
            while True:
                self._spare.get_nowait().close()


DAMAGE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
# the last one is said of statements that do not fit the tables, and all of ours do


def is_damage(error: Exception) -> bool:
    """Whether what SQLite says is about the content of the file."""
    return isinstance(error, UnicodeDecodeError) or _code(error) in DAMAGE or "could not decode" in str(error).lower()


def _code(error: Exception) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def damaged_file(name: str) -> StoreError:
    """What to say where it is not known whose records are damaged."""
    return StoreError(f"{name}: is damaged or no state file of seqveil; restore it from a backup")


@contextmanager
def told(name: str) -> Iterator[None]:
    """What SQLite says, as one line that holds no data."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(name, error) from None
    except UnicodeDecodeError:  # of text in the file, or of what SQLite says about it
        raise damaged_file(name) from None


def translated(name: str, error: sqlite3.Error) -> StoreError:
    """An error of SQLite in our words."""
    code = _code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{name}: another process has this state file open; wait for it to end, or use another file")
    if is_damage(error):
        return damaged_file(name)
    reason, remedy = {
        sqlite3.SQLITE_FULL: ("the disk is full", "free some space and try again"),
        sqlite3.SQLITE_IOERR: ("the disk cannot be written or read", "look at the disk and try again"),
        sqlite3.SQLITE_READONLY: ("it may not be written to", "check its permissions"),
        sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the path"),
    }.get(code, (type(error).__name__, "check the file and its folder"))
    return StoreError(f"{name}: {reason}, so nothing was released; {remedy}")
