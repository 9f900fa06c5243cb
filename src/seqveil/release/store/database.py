"""The file: SQLite in WAL mode, synced at every commit, with one writer.

A transaction appends one row to `log`: the releases, and the state and ledger of every user it touched. That is a few
pages in a row, where updating each user's own row would rewrite about as many pages as there are users in it. From time
to time `settle` moves the log into the rows of `users` and `chunks`; it computes nothing, so it may happen whenever and
as often as it likes.

Whatever is read is checked against its mark (`marks`), and what the marks cannot show, that a record is gone, against
`sums`. Readers have connections of their own and hold up nobody (`records`).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from seqveil.core.coins import User
from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats, Ints
from seqveil.release.store import packing, schema
from seqveil.release.store.backup import Verified, backup, refuse_no_path
from seqveil.release.store.leakages import Leakages
from seqveil.release.store.lock import WriterLock, make_private
from seqveil.release.store.marks import (
    BROKEN,
    blob_mark,
    grown_mark,
    name_mark,
    place_mark,
    user_mark,
    value_mark,
)
from seqveil.release.store.packing import nats
from seqveil.release.store.protocol import Codec, Entry, Position, Row, Stored, StoreError
from seqveil.release.store.records import Readers, Records, connect, damaged_file, ldp_of, table_of, told
from seqveil.release.store.schema import APPLICATION, LEDGER, MIGRATIONS, UNKNOWN, VERSION

__all__ = ["CHUNK", "MIGRATIONS", "UNKNOWN", "VERSION", "Database"]

CHUNK = 64  # releases of a user in one row of `chunks`
SETTLE_EVENTS, SETTLE_BYTES = 500_000, 128 << 20  # what the log may hold
SETTLE_ROWS, FEW_ROWS, FEW_EVENTS = 1000, 64, 8  # a retry walks back through its rows
FEW = 16  # users that are looked up in the log; for more it is settled
WAL_PAGES = 16_384  # 64 MB between checkpoints: a page that changes often is copied once
PATIENCE = 5.0  # seconds that a commit waits for a reader who opens or closes the file


@dataclass
class Book:
    """What the tables come to, as `sums` has it, and what the log holds."""

    users: int = 0
    first: int = 1  # row of the log; the numbers go on when it is settled, so that no reader takes one for another
    last: int = 0
    positions: int = 0
    facts: int = 0
    events: int = 0
    size: int = 0
    waiting: dict[int, list[int]] = field(default_factory=dict)  # by user, the rows of the log that it is in

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    @property
    def sums(self) -> tuple[int, ...]:
        return self.users, self.first, self.last, self.positions, self.facts

    def note(self, ids: Ints, events: int, size: int) -> None:
        """One more row of the log, whose number is `last`."""
        waiting, row = self.waiting, self.last
        for user in ids.tolist():
            if user in waiting:
                waiting[user].append(row)
            else:
                waiting[user] = [row]
        self.events += events
        self.size += size


class Database:
    """One open state file; every method but the readers runs inside `transaction`.

    Parameters:
        path: the file.
        codec: how its releases are written.
        must_exist: refuse a file that is not there, or empty, rather than begin one.
    """

    durable = keeps_releases = True

    @property
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""
        return packing.SMALL

    def __init__(self, path: str | os.PathLike[str], codec: Codec, must_exist: bool = False) -> None:
        self.name, self._codec, self._path = os.path.basename(path), codec, os.fspath(path)
        refuse_no_path(path)
        self._book = Book()
        self._appended: list[tuple[dict[int, list[int]], Ints]] = []  # what this transaction put where
        self.leakages = Leakages()
        self.begun = False  # whether this is the file's first use
        if must_exist and not (os.path.isfile(path) and os.path.getsize(path)):
            raise self._missing()
        self._chunk = CHUNK
        self._make()
        self._lock = WriterLock(self._path, self.name)
        try:
            with told(self.name):
                self.sql = connect(self._path, PATIENCE)
        except BaseException:
            self._lock.close()
            raise
        try:
            with told(self.name):
                self._place = place_of(self._path)
                self._prepare()
                self._load()
                if must_exist and self.begun:
                    raise self._missing()
        except BaseException:
            self.sql.close()
            self._lock.close()
            raise
        self._readers = Readers(self._path, self.name, self._records_of)
        self._records = self._records_of(self.sql)

    def _missing(self) -> DataError:
        return DataError(
            f"{self.name}: expected a state file, and there is none or it is empty; restore it from a backup, or leave "
            "--must-exist out to begin one whose ledger starts at zero"
        )

    def _records_of(self, sql: sqlite3.Connection) -> Records:
        return Records(sql, self.name, self._codec, self._chunk, lambda: self._book.waiting)

    def _make(self) -> None:
        try:
            # only its owner may read it: what was drawn but never committed may still lie in it
            make_private(self._path)
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
            self._bring_forward()
            sql.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                sql.execute("ROLLBACK")
            raise
        self._seen = self._data_version()

    def _bring_forward(self) -> None:
        """Make the tables of a new file, or those of an older one what they are today."""
        sql = self.sql
        application, version = (sql.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version"))
        if application == version == 0 and not sql.execute("SELECT 1 FROM sqlite_master").fetchall():
            schema.make(sql)
            self.begun = True
            return
        if application != APPLICATION:
            raise DataError(f"{self.name}: is not a state file of seqveil; name another file")
        if version > VERSION:
            raise DataError(f"{self.name}: was written by a newer seqveil (version {version}); update seqveil")
        if version < 1:
            raise damaged_file(self.name)
        for old in range(version, VERSION):
            MIGRATIONS[old](sql, self.name)
            sql.execute(f"PRAGMA user_version={old + 1}")
        if not schema.is_intact(sql):
            raise damaged_file(self.name)

    def _load(self) -> None:
        """Read what the tables come to, and see that they do."""
        row = self.sql.execute("SELECT users, first, last, positions, facts, mark FROM sums WHERE id = 1").fetchone()
        if row is None or any(type(number) is not int for number in row) or place_mark(*row[:-1]) != row[-1]:
            raise damaged_file(self.name)
        book = Book(*row[:-1])
        for table, total in (("facts", book.facts), ("positions", book.positions)):
            for name, value, mark in self.sql.execute(f"SELECT * FROM {table}"):
                if value_mark(name, value) != mark:
                    raise damaged_file(self.name)
                total ^= mark
            if total:
                raise damaged_file(self.name)
        sizes = "length(states) + length(releases)"
        last, book.last = book.last, book.first - 1
        for at, who, touched, events, size in self.sql.execute(
            f"SELECT id, who, touched, events, {sizes} FROM log ORDER BY id"
        ):
            book.last += 1
            if at != book.last or blob_mark(place_mark(at), touched, events) != who:
                raise damaged_file(self.name)
            ledgers = table_of(touched, len(LEDGER))
            book.note(ledgers[:, 0], len(events) // 24, size + len(touched) + len(events))
            self.leakages.put(ledgers[:, 0], packing.nats_of(ledgers[:, 4]), packing.nats_of(ledgers[:, 5]))
        if book.last != last:
            raise damaged_file(self.name)
        self._book = book
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
            before, self._appended = replace(self._book), []
            try:
                if self._data_version() != self._seen:
                    raise StoreError(
                        f"{self.name}: something else has written into the state file, so nothing was released; end "
                        "it, and open the file again"
                    )
                yield
                if self._book.sums != before.sums:
                    schema.write_sums(self.sql, *self._book.sums)
                self.sql.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.sql.execute("ROLLBACK")
                self._undo(before)
                raise

    def _check_place(self) -> None:
        """Refuse where the path names another file by now, or none: what was released would be in no file to come."""
        if place_of(self._path) != self._place:
            raise StoreError(
                f"{self.name}: the state file was taken away or another one put in its place while it was in use, so "
                "nothing is released; stop, put the right file there, and open it again"
            )

    def _undo(self, before: Book) -> None:
        """Forget what a transaction left in memory."""
        self._book = before
        for waiting, ids in reversed(self._appended):
            for user in ids.tolist():
                waiting[user].pop()
                if not waiting[user]:
                    del waiting[user]
            self.leakages.forget(ids)
        self._appended = []

    def close(self) -> None:
        """Fold the log into the tables and close the file; others may then open it."""
        self._readers.close()
        with suppress(sqlite3.Error, StoreError):
            with self.transaction():
                self.settle()
            self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.sql.close()
        self._lock.close()

    def backup(self, path: str | os.PathLike[str]) -> Verified:
        """Copy what is committed; nobody who releases waits for it."""
        self._check_place()
        return backup(self._path, path)

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

    # facts and positions

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

    def _put(self, table: str, key: str, name: str, value: Position) -> int:
        """Write a named value; what that changes in the sum of the marks."""
        row = self.sql.execute(f"SELECT mark FROM {table} WHERE {key} = ?", (name,)).fetchone()
        mark = value_mark(name, value)
        self.sql.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (name, value, mark))
        return mark if row is None else mark ^ int(row[0])

    # the log

    def append(self, entry: Entry) -> None:
        """Write what a call left at the end of the log; a full log is folded into the tables first."""
        if self.full:
            self.settle()
        touched = np.column_stack([entry.ids, entry.counts, packing.ledger(entry.figures)]).astype("<i8", copy=False)
        parts = (touched.tobytes(), entry.states, entry.pieces.tobytes(), entry.records)
        row = self._book.last + 1
        marks = schema.log_marks(row, *parts)
        self.sql.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (row, *marks, *parts))
        self._book.last = row
        self._book.note(entry.ids, len(entry.pieces), sum(map(len, parts)))
        self._appended.append((self._book.waiting, entry.ids))
        self.leakages.put(entry.ids, entry.figures[:, 1], entry.figures[:, 2])

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Nothing: the states are here already."""

    @property
    def full(self) -> bool:
        """Whether the log should be settled."""
        book = self._book
        if book.rows >= FEW_ROWS and book.events < FEW_EVENTS * book.rows:
            return True  # small transactions: somebody waits for each, so it is done little by little
        return book.events >= SETTLE_EVENTS or book.size >= SETTLE_BYTES or book.rows >= SETTLE_ROWS

    def settle(self) -> None:
        """Move the log into the users' own rows. Users of a row that is damaged are marked so for good."""
        book = self._book
        if not book.rows:
            return
        rows = [self._records.log_row(row) for row in range(book.first, book.last + 1)]
        lost = np.zeros(0, np.int64)
        good = []
        for found in rows:
            if found is None:
                raise damaged_file(self.name)
            *parts, whole = found
            if whole:
                good.append(parts)
            else:
                lost = np.union1d(lost, table_of(parts[0], len(LEDGER))[:, 0])
        if good:
            self._settle(good)
        for user in lost.tolist():
            self.sql.execute("UPDATE users SET mark = ?, recent_mark = ? WHERE id = ?", (BROKEN, BROKEN, user))
        self.sql.execute("DELETE FROM log")
        self._book = Book(book.users, book.last + 1, book.last, book.positions, book.facts)

    def _settle(self, rows: list[list[bytes]]) -> None:
        latest = _latest([(table_of(touched, len(LEDGER)), states) for touched, states, _, _ in rows])
        pieces = np.concatenate([table_of(events, 3) for _, _, events, _ in rows])
        counts, joined = _joined(pieces, b"".join(row[3] for row in rows))
        changed = self.sql.executemany(
            "UPDATE users SET events = ?1, releases = ?2, spent = ?3, most = ?4, least = ?5, ldp = ?6, mark = ?7,"
            " state = ?8, recent_mark = grown_mark(recent_mark, ?9), recent = CAST(recent || ?9 AS BLOB)"
            " WHERE id = ?10",
            ((*ledger, mark, state, joined.get(user, b""), user) for user, ledger, state, mark in latest),
        ).rowcount
        if changed != len(latest):
            raise damaged_file(self.name)
        for user, ledger, _, _ in latest:
            before, after = (ledger[0] - counts.get(user, 0)) // self._chunk, ledger[0] // self._chunk
            if after > before:
                self._cut(user, before, after)

    def _cut(self, user: int, first: int, last: int) -> None:
        """Move full chunks out of the user's own row."""
        ask = "SELECT recent, recent_mark FROM users WHERE id = ?"
        recent, mark = self.sql.execute(ask, (user,)).fetchone()
        if blob_mark(place_mark(user), recent) != mark:
            self.sql.execute("UPDATE users SET recent_mark = ? WHERE id = ?", (BROKEN, user))
            return
        left = memoryview(recent)
        for number in range(first, last):
            end = self._codec.cut(left, self._chunk)
            row = (user, number, blob_mark(place_mark(user, number), left[:end]), left[:end])
            self.sql.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", row)
            left = left[end:]
        mark = blob_mark(place_mark(user), left)
        self.sql.execute("UPDATE users SET recent = ?, recent_mark = ? WHERE id = ?", (left, mark, user))

    # users

    def find(self, names: Sequence[User]) -> list[Row | None]:
        """Where these users stand, the log included; None for a new one."""
        return self._records.find_all(names)

    def add(self, names: Sequence[User], room: int) -> list[int]:
        """Ids for new users, with room for a state of so many bytes: a row that grows would have to move."""
        last = self.sql.execute("SELECT max(id) FROM users").fetchone()[0] or 0
        if last != self._book.users:  # numbers are given one after another, and nobody is ever taken out
            raise damaged_file(self.name)
        ids = range(last + 1, last + 1 + len(names))
        nothing, state = (0,) * len(LEDGER[1:]), bytes(room)
        empty = bytes(8 * len(nothing)) + state  # a mark goes on from that of the place alone, as in `user_mark`
        rows = [
            (user, name, name_mark(str(name)), *nothing, blob_mark(place, empty), state, place, b"")
            for user, name, place in zip(ids, names, map(place_mark, ids), strict=True)
        ]
        self.sql.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._book.users += len(rows)
        return list(ids)

    def rewrite(self, ids: Ints, sides: Floats, states: bytes) -> None:
        """Other accounts and states of users who are settled: most, least and LDP level in nats, (K, 3)."""
        width = len(states) // max(1, len(ids))
        figures = np.column_stack([np.zeros(len(ids)), sides])
        for k, (user, (_, *account)) in enumerate(zip(ids.tolist(), packing.ledger(figures).tolist(), strict=True)):
            ask = "SELECT events, releases, spent FROM users WHERE id = ?"
            ledger = (*self.sql.execute(ask, (user,)).fetchone(), *account)
            state = states[k * width : (k + 1) * width]
            row = (*ledger[3:], user_mark(user, ledger, state), state, user)
            self.sql.execute("UPDATE users SET most = ?, least = ?, ldp = ?, mark = ?, state = ? WHERE id = ?", row)
            self.leakages.forget(np.array([user]))

    def releases(self, user: int, events: int, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on; `events` is how many there are."""
        return self._records.releases(user, since)

    def stored(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """These events, each a user and a sequence number that was released before."""
        seqs: dict[int, set[int]] = {}
        for user, seq in wanted:
            seqs.setdefault(user, set()).add(seq)
        if len(seqs.keys() & self._book.waiting.keys()) > FEW:
            self.settle()
        found: dict[tuple[int, int], Stored] = {}
        for user, of in seqs.items():
            self._search(user, of, found)
        return found

    def _search(self, user: int, seqs: set[int], found: dict[tuple[int, int], Stored]) -> None:
        """Events of one user: those in the log, the newest first, then those settled."""
        left = set(seqs)
        for row in reversed(self._book.waiting.get(user, ())):
            pieces = list(self._records.pieces(user, [row]))
            for begin, count, blob in pieces:
                if not left.isdisjoint(range(begin, begin + count)):
                    found |= {(user, each.seq): each for each in self._codec.unpack(blob, begin)}
                    left -= set(range(begin, begin + count))
            if not left or (pieces and min(left) >= pieces[0][0]):
                break
        for seq in sorted(left):
            found[user, seq] = self._settled(user, seq)

    def _settled(self, user: int, seq: int) -> Stored:
        events, blob = self._records.settled(user)
        if seq // self._chunk < events // self._chunk:
            blob = self._records.chunk(user, seq // self._chunk)
        elif seq >= events:
            raise self._records.damaged(user)
        begin = self._codec.cut(blob, seq % self._chunk)
        return next(self._codec.unpack(blob[begin : begin + self._codec.cut(blob[begin:], 1)], seq))

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user, in the order they came."""
        self.settle()
        names: list[User] = []
        ledgers: list[list[int]] = []
        after = 0
        while page := self._records.ledgers(after):
            for user, name, ledger, whole in page:
                if not whole:
                    raise self._records.damaged(user, [name])
                names.append(name)
                ledgers.append(ledger)
            after = page[-1][0]
        if len(names) != self._book.users:
            raise damaged_file(self.name)
        table = np.array([ledger[:2] for ledger in ledgers], np.int64).reshape(-1, 2)
        figures = [[*map(nats, ledger[2:5]), ldp_of(ledger[5])] for ledger in ledgers]
        return names, table, np.array(figures, np.float64).reshape(-1, 4)


def place_of(path: str) -> tuple[int, int] | None:
    """Which file a path names; None where it names none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _latest(rows: list[tuple[Ints, bytes]]) -> list[tuple[int, list[int], memoryview, int]]:
    """The last ledger and state of each user and their mark (`user_mark`), in the order of the users' ids."""
    tables = np.concatenate([table for table, _ in rows])
    _, behind = np.unique(tables[::-1, 0], return_index=True)
    last = len(tables) - 1 - behind
    starts = np.cumsum([0, *(len(table) for table, _ in rows)])
    found_in = np.searchsorted(starts, last, side="right") - 1
    row_of, within = found_in.tolist(), (last - starts[found_in]).tolist()
    views = [(memoryview(states), len(states) // len(table)) for table, states in rows]
    kept, found = tables[last], []
    ledgers, size = memoryview(kept.tobytes()), kept.shape[1] * 8
    for at, (user, *ledger) in enumerate(kept.tolist()):
        (states, width), k = views[row_of[at]], within[at]
        state = states[k * width : (k + 1) * width]
        found.append((user, ledger, state, crc32(state, crc32(ledgers[at * size : (at + 1) * size]))))
    return found


def _joined(pieces: Ints, blob: bytes) -> tuple[dict[int, int], dict[int, memoryview]]:
    """How many records each user has in the log, and these records one after another."""
    order = np.argsort(pieces[:, 0], kind="stable")
    starts = np.cumsum(pieces[:, 1]) - pieces[:, 1]
    users, sizes, counts = pieces[order].T
    ends = np.cumsum(sizes)
    places = np.arange(int(ends[-1])) + np.repeat(starts[order] - (ends - sizes), sizes)
    sorted_ = memoryview(np.frombuffer(blob, np.uint8)[places].tobytes())
    who, first = np.unique(users, return_index=True)
    begins = (ends - sizes)[first].tolist()
    told = np.add.reduceat(counts, first).tolist()
    cuts = zip(who.tolist(), begins, [*begins[1:], int(ends[-1])], strict=True)
    return dict(zip(who.tolist(), told, strict=True)), {user: sorted_[begin:end] for user, begin, end in cuts}
