"""What a state file says to its operator, whether or not a service has it open: ledgers and releases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from seqveil.core.coins import User
from seqveil.core.leakage import larger_side
from seqveil.release.store.backup import FilePath, opened
from seqveil.release.store.book import Book, Log
from seqveil.release.store.connections import damaged_file, told
from seqveil.release.store.database import CHUNK
from seqveil.release.store.protocol import Row, Stored, StoreError, codec_of
from seqveil.release.store.records import Records, load_log
from seqveil.release.store.schema import read_sums
from seqveil.release.stream import Setting


class Offline:
    """A snapshot of a state file for reading; nobody who writes waits for it."""

    def __init__(self, records: Records, name: str, log: Log) -> None:
        self._records, self._name, self._log = records, name, log

    def users(self) -> Iterator[tuple[str, bool]]:
        """Everybody's name in the order they came, and whether all of the user's own record is whole."""
        after = 0
        while page := self._records.ledgers(after):
            for user, name, _, whole in page:
                if not isinstance(name, bytes):  # else erased
                    yield (name if isinstance(name, str) else f"user number {user}"), whole
            after = page[-1][0]
        for new in self._log.new:
            yield str(new), True

    def row(self, user: User) -> Row:
        """Where a user stands."""
        row = self._records.find(user)
        if row is None:
            raise StoreError(f"{self._name}: nothing was released of this user; `seqveil state account` lists all")
        return row

    def kept(self, user: User) -> int:
        """The number of the first release of a user that is still there."""
        return self._records.settled(self.row(user).id, self._log).kept

    def releases(self, user: User) -> Iterator[Stored]:
        """What was released of a user and is still there."""
        return self._records.releases(self.row(user).id, self.kept(user))


@contextmanager
def reading(path: FilePath, setting: Setting | None = None) -> Iterator[Offline]:
    """A snapshot of a state file; releases can be read where the setting is given."""
    name = os.path.basename(path)
    codec: Any = None if setting is None else codec_of(setting)
    with closing(opened(path)) as sql, told(name):
        sql.execute("BEGIN")
        sums = read_sums(sql)
        if sums is None:
            raise damaged_file(name)
        book = Book.of(sums)
        list(load_log(sql, name, book))
        yield Offline(Records(sql, name, codec, CHUNK, lambda: book.log), name, book.log)


def figures(row: Row) -> dict[str, float | int]:
    """A user's ledger by name, leakage in nats."""
    return {
        "events": row.events,
        "releases": row.releases,
        "leakage": float(larger_side(row.most, row.least)),
        "most": row.most,
        "least": row.least,
        "by_composition": row.spent,
        "ldp": row.ldp,
    }
