"""How many transactions a state file has committed, written down beside it as long as it is open.

What SQLite finds damaged at the end of the -wal it takes for what a power cut left, and goes on before it: the
transactions behind it are gone without a word, and with them what they told. So the number of commits stands in a small
file beside (`FILE-commits`), written after each one. It is not synced: a kill leaves it as it is, and after a power cut
it can only be behind. A store that is closed properly has nothing in its -wal, and the small file is taken away.
"""

from __future__ import annotations

import os
from contextlib import suppress
from zlib import crc32

from seqveil.release.store.lock import make_private
from seqveil.release.store.protocol import StoreError


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
                f"file back, or remove {self._name}-commits to go on without them"
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
