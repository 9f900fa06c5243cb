"""The file: SQLite in WAL mode, synced at every commit, with one writer.

A transaction appends one row to `log`: the releases, and the state and ledger of every user it touched. That is a few
pages in a row, where updating each user's own row would rewrite about as many pages as there are users in it. From time
to time `settle` moves the log into the rows of `users` and `chunks`; it computes nothing, so it may happen whenever and
as often as it likes.

Whatever is read is checked against its mark (`schema`), and what the marks cannot show, that a record is gone, against
`sums`. Readers have connections of their own and hold up nobody (`records`).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

import numpy as np

from seqveil.core.coins import User
from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.store import packing, schema
from seqveil.engine.store.backup import Verified, backup, refuse_no_path
from seqveil.engine.store.book import Book, Leakages, Log
from seqveil.engine.store.connections import (
    HighWater,
    Readers,
    WriterLock,
    connect,
    damaged_file,
    is_damage,
    make_private,
    told,
)
from seqveil.engine.store.packing import nats
from seqveil.engine.store.protocol import EPOCH, SALT, SALT_BYTES, Codec, Entry, Row, Stored, StoreError
from seqveil.engine.store.records import Hasher, Records, load_log, name_hasher, table_of
from seqveil.engine.store.schema import (
    NamedValues,
    grown_mark,
    name_mark,
    packed_names,
    unpacked_names,
    value_mark,
)
from seqveil.engine.store.settling import settle

SETTLE_EVENTS, SETTLE_BYTES = 500_000, 128 << 20  # what the log may hold
SETTLE_ROWS, FEW_ROWS, FEW_EVENTS = 1000, 64, 8  # a retry walks back through its rows
PART = 500  # users whose rows a small transaction writes on the way: somebody waits for it
WATCHED = 16  # times as large may a state with declared secrets be: computing it again takes a millisecond a release
FEW = 16  # users that are looked up in the log; for more it is settled
WAL_PAGES = 16_384  # 64 MB between checkpoints: a page that changes often is copied once
NOBODY = Entry(
    np.zeros(0, np.int64), np.zeros((0, 2), np.int64), np.zeros((0, 4)), b"", np.zeros((0, 3), np.int64), b""
)
PATIENCE = 5.0  # seconds that a commit waits for a reader who opens or closes the file


class Database(NamedValues):
    """One open state file; every method but the readers runs inside `transaction`.

    Parameters:
        path: the file.
        codec: how its releases are written; None for `use` to say it later, once the file was asked.
        must_exist: refuse a file that is not there, or empty, rather than begin one.
    """

    durable = keeps_releases = True

    @property
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""
        return packing.SMALL * (WATCHED if self.watched else 1)

    def __init__(self, path: str | os.PathLike[str], codec: Codec | None, must_exist: bool = False) -> None:
        self.name, self._codec, self.path = os.path.basename(path), codec, os.fspath(path)
        refuse_no_path(path)
        self._book = Book()
        self._appended: list[tuple[Log, int, Ints, Floats]] = []  # rows of this transaction, and leakages before them
        self._added: list[User] = []  # users who came in this transaction
        self._written = 0  # how many of them are in the log
        self.leakages = Leakages()
        self.watched = False  # whether secrets are declared
        self.begun = False  # whether this is the file's first use
        if must_exist and not (os.path.isfile(path) and os.path.getsize(path)):
            raise self._missing()
        if os.path.isfile(path) and os.path.getsize(path) == 1:
            raise damaged_file(self.name)  # SQLite takes one byte for an empty file, and would begin anew
        self.chunk = schema.CHUNK  # releases of a user in one row of `chunks`
        self._hasher: Hasher | None = None  # of the names of those who were erased, where anybody was
        self._beside = HighWater(self.path, self.name)
        self._beside.check_there()
        self._make()
        self._lock = WriterLock(self.path, self.name)
        try:
            with told(self.name):
                self.sql = connect(self.path, PATIENCE)
        except BaseException:
            self._lock.close()
            raise
        try:
            with told(self.name):
                self._place = place_of(self.path)
                self._prepare()
                self._load()
                self._beside.check(self._book.commits)
                if must_exist and self.begun:
                    raise self._missing()
        except BaseException:
            self.sql.close()
            self._lock.close()
            raise
        self._readers = Readers(self.path, self.name, self._records_of)
        self._records = self._records_of(self.sql)

    def _missing(self) -> DataError:
        return DataError(
            f"{self.name}: expected a state file, and there is none or it is empty; restore it from a backup, or begin "
            "one whose ledger starts at zero, without demanding that it exists"
        )

    def _records_of(self, sql: sqlite3.Connection) -> Records:
        return Records(sql, self.name, self._codec, self.chunk, lambda: self._book.log, lambda: self._hasher)

    def _make(self) -> None:
        try:
            # only its owner may read it: what was drawn but never committed may still lie in it
            make_private(self.path)
        except OSError as error:
            raise StoreError(f"{self.name}: cannot be opened ({error.strerror}); check the path") from None

    def _prepare(self) -> None:
        sql = self.sql
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            f"wal_autocheckpoint={WAL_PAGES}",
            "cache_size=-65536",
            "cache_spill=OFF",  # nothing reaches the disk before its commit
            "cell_size_check=ON",  # damage is found early
            "trusted_schema=OFF",
        ):
            sql.execute(f"PRAGMA {pragma}").fetchall()
        sql.create_function("grown_mark", 2, grown_mark, deterministic=True)
        sql.execute("BEGIN IMMEDIATE")
        try:
            self._check_tables()
            sql.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                sql.execute("ROLLBACK")
            raise
        self._seen = self._data_version()

    def _check_tables(self) -> None:
        """Make the tables of a new file, or refuse what is no state file of this version."""
        sql = self.sql
        if schema.is_blank(sql):
            schema.make(sql)
            self.begun = True
            return
        schema.refuse_other(sql, self.name)
        if not schema.is_intact(sql):
            raise damaged_file(self.name)

    def _load(self) -> None:
        """Read what the tables come to, and see that they do."""
        sums = schema.read_sums(self.sql)
        if sums is None:
            raise damaged_file(self.name)
        book = self._book = Book.of(sums)
        for table, total in (("facts", book.facts), ("positions", book.positions)):
            for name, value, mark in self.sql.execute(f"SELECT * FROM {table}"):
                if value_mark(name, value) != mark:
                    raise damaged_file(self.name)
                total ^= mark
            if total:
                raise damaged_file(self.name)
        for ledgers, pieces, size in load_log(self.sql, self.name, book):
            book.events += pieces
            book.size += size
            self.leakages.put(ledgers[:, 0], packing.nats_of(ledgers[:, 4]), packing.nats_of(ledgers[:, 5]))
        # tables that nothing was ever written to, as after a power cut in the first moment, are no ledger
        self.begun = self.begun or not (book.facts or book.users or book.last)

    def _data_version(self) -> int:
        return int(self.sql.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block is committed and on the disk when it ends, or nothing of it."""
        self._check_place()
        with told(self.name):
            self.sql.execute("BEGIN IMMEDIATE")
            before, self._appended, self._added, self._written = self._book.copy(), [], [], 0
            try:
                self._check_alone()
                yield
                if self._written < len(self._added):
                    self._write(NOBODY)  # who came and was refused stays known
                if self._book.sums != before.sums:
                    self._book.commits += 1
                    schema.write_sums(self.sql, self._book.sums)
                self.sql.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.sql.execute("ROLLBACK")
                self._undo(before)
                raise
            self._beside.note(self._book.commits)

    def _check_alone(self) -> None:
        """Refuse where anything but this connection has written into the file."""
        if self._data_version() != self._seen:
            raise StoreError(
                f"{self.name}: something else has written into the state file, so nothing was released; end it, and "
                "open the file again"
            )

    def _check_place(self) -> None:
        """Refuse where the path names another file by now, or none: what was released would be in no file to come."""
        if place_of(self.path) != self._place:
            raise StoreError(
                f"{self.name}: the state file was taken away or another one put in its place while it was in use, so "
                "nothing is released; stop, put the right file there, and open it again"
            )

    def _undo(self, before: Book) -> None:
        """Forget what a transaction left in memory."""
        self._book = before
        for log, row, ids, leakages in reversed(self._appended):
            log.undo(row)
            self.leakages.restore(ids, leakages)
        for name in self._added:
            before.log.new.pop(name, None)
        self._appended, self._added, self._written = [], [], 0

    def close(self) -> None:
        """Fold the log into the tables and close the file; others may then open it."""
        self._readers.close()
        done = False
        with suppress(sqlite3.Error, StoreError):
            if self._codec is not None:
                with self.transaction():
                    self.settle()
            done = not self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        self.sql.close()
        self._beside.close(done)
        self._lock.close()

    def use(self, codec: Codec) -> None:
        """Say how the releases are written, where that was not known when the file was opened."""
        self._codec = codec
        self._records = self._records_of(self.sql)

    def shrink(self) -> None:
        """Write the file anew without what was deleted from it, also in its -wal; outside a transaction."""
        with told(self.name):
            self._check_alone()
            try:
                self.sql.execute("VACUUM")
                busy = self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.Error as error:
                if is_damage(error):
                    raise
                self._seen = self._data_version()  # SQLite counts what it takes back as if it were another's
                raise StoreError(
                    f"{self.name}: it is done, but the file could not be written anew (its disk may be full), so "
                    "traces may be left in it; make room for a second one, and do it again"
                ) from None
        if busy:
            raise StoreError(
                f"{self.name}: it is done, but somebody reads the file, so traces may be left in {self.name}-wal; do "
                "it again when nobody does"
            )

    def backup(self, path: str | os.PathLike[str]) -> Verified:
        """Copy what is committed; nobody who releases waits for it."""
        self._check_place()
        return backup(self.path, path)

    def snapshot(self) -> AbstractContextManager[Records]:
        """What is committed now, for a reader on whatever thread; nobody waits for it."""
        self._check_place()
        return self._readers.snapshot()

    def everyones_leakage(self) -> tuple[Floats, int]:
        """What every user's stream has told, and how many users are damaged and left out; outside a transaction."""
        broken: set[int] = set()

        def page(after: int) -> list[tuple[int, float]]:
            time.sleep(0)  # whoever waits goes first
            with self.snapshot() as records:
                found = records.ledgers(after)
            broken.update(user for user, _, _, whole in found if not whole)
            sides = ((user, nats(of[3]), nats(of[4])) if whole else (user, nan, nan) for user, _, of, whole in found)
            return [(user, max(most, -least, 0.0) if most == most else nan) for user, most, least in sides]

        nan = float("nan")
        return self.leakages.fill(page), len(broken)

    # keyed randomness

    @property
    def salt(self) -> bytes:
        """Of this file and its present epoch alone."""
        salt, epoch = self.fact(SALT), self.fact(EPOCH)
        if salt is None or epoch is None:
            raise damaged_file(self.name)
        return f"{salt} {epoch}".encode()

    def settle_epoch(self) -> None:
        """Go on with the epoch of the file, unless there is none or it was begun in another place: then this is a copy,
        and the file that it was taken from may have drawn since."""
        if self.fact(SALT) is None:
            self.set_fact(SALT, os.urandom(SALT_BYTES).hex())
        if not (self.fact(EPOCH) or "").endswith(self._where):
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Never again draw from the randomness that this file, or one it was copied from, has drawn from so far."""
        self.set_fact(EPOCH, os.urandom(SALT_BYTES).hex() + self._where)

    @property
    def _where(self) -> str:
        return " at {} {}".format(*self._place or (0, 0))

    # those who were erased

    def know_erased(self, key: bytes | None) -> None:
        """Find those who were erased again when they come back; `key` is that of the file."""
        self._hasher = name_hasher(self.fact(SALT) or "", key)

    def hashed(self, name: str) -> bytes:
        """Under what someone is kept who is erased."""
        assert self._hasher is not None
        return self._hasher(name)

    def name_again(self, user: int, name: User) -> None:
        """Someone who was erased has come back: the record gets its name again."""
        self.sql.execute("UPDATE users SET name = ?, named = ? WHERE id = ?", (name, name_mark(name), user))

    # the log

    def append(self, entry: Entry) -> None:
        """Write what a call left at the end of the log; a full log is folded into the tables first.

        A small call, for which somebody waits, folds a part of it.
        """
        if self._book.rows >= FEW_ROWS and len(entry.ids) < FEW_EVENTS:
            self.settle(PART)
        elif self.full:
            self.settle()
        self._write(entry)

    def _write(self, entry: Entry) -> None:
        book, names = self._book, packed_names([str(name) for name in self._added[self._written :]])
        touched = np.empty((len(entry.ids), len(schema.LEDGER)), "<i8")
        touched[:, 0], touched[:, 1:3], touched[:, 3:] = entry.ids, entry.counts, packing.ledger(entry.figures)
        parts = (names, touched.tobytes(), entry.pieces.tobytes(), entry.states, entry.records)
        row = book.last + 1
        marks = schema.log_marks(row, *parts)
        self.sql.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (row, *marks, *parts))
        self._written = len(self._added)
        book.last, book.events, book.size = row, book.events + len(entry.pieces), book.size + sum(map(len, parts))
        book.log.note(row, entry.ids)
        before = self.leakages.put(entry.ids, entry.figures[:, 1], entry.figures[:, 2])
        self._appended.append((book.log, row, entry.ids, before))

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Nothing: the states are here already."""

    @property
    def full(self) -> bool:
        """Whether the log should be settled."""
        book = self._book
        if book.rows >= FEW_ROWS and book.events < FEW_EVENTS * book.rows:
            return True  # small transactions: somebody waits for each, so it is done little by little
        return book.events >= SETTLE_EVENTS or book.size >= SETTLE_BYTES or book.rows >= SETTLE_ROWS

    def settle(self, most: int | None = None) -> None:
        """Move the log into the users' own rows. Users of a row that is damaged are marked so for good.

        Parameters:
            most: leave the rows of the log from which on there are more users; the first one goes in any case.
        """
        book = self._book
        if not book.rows:
            return
        last = book.last if most is None else book.log.oldest(most)
        rows = self._records.log_rows(book.first, last)
        if len(rows) != last - book.first + 1:
            raise damaged_file(self.name)
        new = list(book.log.new)  # in the order of their numbers; last those who came a moment ago
        came = sum(len(unpacked_names(row.names)) for row in rows)
        settle(self.sql, self._records.codec, self.chunk, rows, new[:came], book.log.first, self.name)
        self.sql.execute("DELETE FROM log WHERE id <= ?", (last,))
        left = last < book.last
        events = book.events - sum(len(table_of(row.events, 3)) for row in rows) if left else 0
        size = book.size - sum(row.size for row in rows) if left else 0
        self._book = replace(book, first=last + 1, events=events, size=size, log=book.log.after(last, new[came:]))

    # users

    def find(self, names: Sequence[User]) -> list[Row | None]:
        """Where these users stand, the log included; None for a new one."""
        return self._records.find_all(names)

    def add(self, names: Sequence[User]) -> list[int]:
        """Ids for new users, one after another; they get rows of their own when the log is settled."""
        ids = list(range(self._book.users + 1, self._book.users + 1 + len(names)))
        self._book.log.new.update(zip(names, ids, strict=True))
        self._book.users += len(ids)
        self._added += names
        return ids

    def releases(self, user: int, events: int, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on; `events` is how many there are."""
        return self._records.releases(user, since)

    def stored(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """These events, each a user and a sequence number that was released before."""
        seqs: dict[int, set[int]] = {}
        for user, seq in wanted:
            seqs.setdefault(user, set()).add(seq)
        if sum(map(self._book.log.holds, seqs)) > FEW:
            self.settle()
        found: dict[tuple[int, int], Stored] = {}
        for user, of in seqs.items():
            self._search(user, of, found)
        return found

    def _search(self, user: int, seqs: set[int], found: dict[tuple[int, int], Stored]) -> None:
        """Events of one user: those in the log, the newest first, then those settled and still kept."""
        left = set(seqs)
        for row in self._book.log.rows_of(user):
            pieces = list(self._records.pieces(user, [row]))
            for begin, count, blob in pieces:
                if not left.isdisjoint(range(begin, begin + count)):
                    found |= {(user, each.seq): each for each in self._records.codec.unpack(blob, begin)}
                    left -= set(range(begin, begin + count))
            if not left or (pieces and min(left) >= pieces[0][0]):
                break
        for seq in sorted(left):
            settled = self._records.one(user, seq, self._book.log)
            if settled is not None:
                found[user, seq] = settled

    def names(self) -> list[User]:
        """Name of every user who was not erased, in the order they came; also of those whose records are damaged."""
        self.settle()
        names: list[User] = []
        after = 0
        while page := self._records.ledgers(after):
            names += [name for _, name, _, _ in page if isinstance(name, str)]
            after = page[-1][0]
        return names

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user who was not erased, in the order they came."""
        self.settle()
        erased = 0
        names: list[User] = []
        ledgers: list[list[int]] = []
        after = 0
        while page := self._records.ledgers(after):
            for user, name, ledger, whole in page:
                if not whole:
                    raise self._records.damaged(user, [str(name)])
                if isinstance(name, bytes):
                    erased += 1
                    continue
                names.append(name)
                ledgers.append(ledger)
            after = page[-1][0]
        if len(names) + erased != self._book.users:
            raise damaged_file(self.name)
        table = np.array([ledger[:2] for ledger in ledgers], np.int64).reshape(-1, 2)
        figures = [list(map(nats, ledger[2:6])) for ledger in ledgers]
        return names, table, np.array(figures, np.float64).reshape(-1, 4)


def place_of(path: str) -> tuple[int, int] | None:
    """Which file a path names; None where it names none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
