"""How a state file is opened: one writer at a time, readers beside it, and a count of the commits.

Readers have connections of their own, each in a snapshot of what is committed, so that nobody waits for them. What
SQLite says becomes one line without data. The writer holds a lock that dies with its process.

What SQLite finds damaged at the end of the -wal it takes for what a power cut left, and goes on before it: the
transactions behind it are gone without a word, and with them what they told. So the number of commits stands in a small
file beside (`FILE-commits`), written after each one. It is not synced: a kill leaves it as it is, and after a power cut
it can only be behind. A store that is closed properly has nothing in its -wal, and the small file is taken away.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from zlib import crc32

from seqveil.engine.store.protocol import StoreBusy, StoreError

if TYPE_CHECKING:
    from seqveil.engine.store.records import Records

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
    return StoreError(f"{name}: {reason}, so nothing was written; {remedy}")


class WriterLock:
    """Held until it is closed. It is SQLite's own lock on an empty file beside the state file, which is gone when the
    store is closed and may stay when its process is killed: the file itself means nothing."""

    def __init__(self, path: str, name: str) -> None:
        self._path = f"{path}-lock"
        busy = StoreBusy(
            f"{name}: another process has this state file open; wait for it to end, or use another file, whose ledger "
            "begins at zero"
        )
        try:
            make_private(self._path)
            before = os.stat(self._path).st_ino
            self._sql = connect(self._path, 0)
        except FileNotFoundError:  # whoever held it ended at this very moment
            raise busy from None
        except sqlite3.Error as error:
            raise translated(name, error) from None
        try:
            self._sql.execute("BEGIN EXCLUSIVE")
            # a file that was taken away meanwhile is a lock on nothing
            if os.stat(self._path).st_ino != before:
                raise busy
        except (sqlite3.Error, FileNotFoundError) as error:
            self._sql.close()
            if isinstance(error, sqlite3.Error) and not isinstance(translated(name, error), StoreBusy):
                raise translated(name, error) from None
            raise busy from None
        except BaseException:
            self._sql.close()
            raise

    def close(self) -> None:
        """Let others have the file."""
        with suppress(OSError):
            os.unlink(self._path)  # before it is let go, so that nobody else's is taken away
        self._sql.close()


def make_private(path: str) -> bool:
    """Make a file that its owner alone may read, unless it is there; whether it was made.

    A file that is there is not touched: closing it here would drop the lock of a store this process has open.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


class HighWater:
    """The number of commits of a state file, beside it."""

    def __init__(self, path: str, name: str) -> None:
        self._state, self._path, self._name = path, f"{path}-commits", name
        self._file: int | None = None
        self.before = self._read()  # what an earlier process left; 0 where nothing was left or it cannot be read

    def _read(self) -> int:
        try:
            with open(self._path, "rb") as file:
                number, mark = file.read(64).split()
            return int(number) if int(mark, 16) == crc32(number) else 0
        except (OSError, ValueError):
            return 0

    def check_there(self) -> None:
        """Refuse a state file that is missing or empty where one was in use: SQLite would begin anew."""
        if os.path.isfile(self._state) and os.path.getsize(self._state):
            return
        wal = f"{self._state}-wal"
        if self.before or (os.path.isfile(wal) and os.path.getsize(wal)):
            raise StoreError(
                f"{self._name}: is missing or empty, and what lies beside it ({self._name}-wal or "
                f"{self._name}-commits) says that it was in use; put it back, or move those away to begin a ledger at "
                "zero"
            )

    def check(self, commits: int) -> None:
        """Refuse a file with fewer commits than were made."""
        if commits < self.before:
            raise StoreError(
                f"{self._name}: {self.before - commits} committed transactions are missing, for the file or its -wal "
                "was damaged or an older copy put in its place; what they told is not in this ledger. Put the newest "
                "file back, or go on without them: `seqveil state adopt`"
            )

    def note(self, commits: int) -> None:
        """Write down that so many transactions are committed."""
        if self._file is None:
            with suppress(OSError):
                make_private(self._path)
                self._file = os.open(self._path, os.O_WRONLY)
        number = b"%020d" % commits
        with suppress(OSError):  # it only ever says less than there is
            os.pwrite(self._file if self._file is not None else -1, b"%s %08x\n" % (number, crc32(number)), 0)

    def close(self, done: bool) -> None:
        """Let it go; `done` where nothing is left in the -wal."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if done:
            with suppress(OSError):
                os.unlink(self._path)
