"""One writer for a state file: a lock that dies with its process, while others may read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from seqveil.release.store.connections import connect, translated
from seqveil.release.store.protocol import StoreBusy


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
