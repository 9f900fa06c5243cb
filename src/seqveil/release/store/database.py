"""The file: SQLite in WAL mode, synced at every commit, with one writer.

A transaction appends one row to `log`: the releases, and the state and ledger of every user it touched. That is a few
pages in a row, where updating each user's own row would rewrite about as many pages as there are users in it. From time
to time, and at the latest when a user's own row is asked for, `settle` moves the log into the rows of `users` and
`chunks`; it computes nothing, so it may happen whenever and as often as it likes.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from seqveil.core.coins import User
from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats, Ints
from seqveil.release.store import packing
from seqveil.release.store.packing import nats
from seqveil.release.store.protocol import Codec, Entry, Position, Row, StoreBusy, Stored, StoreError

APPLICATION, VERSION = 0x5E91E11, 2
CHUNK = 64  # releases of a user in one row of `chunks`
SETTLE_EVENTS, SETTLE_BYTES = 500_000, 128 << 20  # what the log may hold
SETTLE_ROWS, FEW_ROWS, FEW_EVENTS = 1000, 64, 8  # a retry walks back through its rows
FEW = 16  # users that are looked up in the log; for more it is settled
WAL_PAGES = 16_384  # 64 MB between checkpoints: a page that changes often is copied once
UNKNOWN = -1  # the LDP figure of a user whose last release was made before it was kept
LDP_COLUMN = f"ldp INTEGER NOT NULL DEFAULT {UNKNOWN}"
LEDGER = ("id", "events", "releases", "spent", "most", "least", "ldp")

SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE positions (source TEXT PRIMARY KEY, position NOT NULL) WITHOUT ROWID",
    # a name is text. Ledgers are in units of 2**-32, rounded outward
    "CREATE TABLE users (id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, events INTEGER NOT NULL DEFAULT 0,"
    " releases INTEGER NOT NULL DEFAULT 0, spent INTEGER NOT NULL DEFAULT 0, most INTEGER NOT NULL DEFAULT 0,"
    " least INTEGER NOT NULL DEFAULT 0, state BLOB NOT NULL DEFAULT x'', recent BLOB NOT NULL DEFAULT x'',"
    f" {LDP_COLUMN})",
    "CREATE TABLE chunks (user INTEGER, number INTEGER, releases BLOB NOT NULL, PRIMARY KEY (user, number))"
    " WITHOUT ROWID",
    "CREATE TABLE log (id INTEGER PRIMARY KEY, touched BLOB NOT NULL, states BLOB NOT NULL, events BLOB NOT NULL,"
    " releases BLOB NOT NULL)",
)


class Database:
    """One open state file; every method but the readers runs inside `transaction`."""

    durable = keeps_releases = True

    @property
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""
        return packing.SMALL

    def __init__(self, path: str | os.PathLike[str], codec: Codec) -> None:
        self.name, self._codec = os.path.basename(path), codec
        self._events = self._bytes = self._rows = 0  # in the log
        self._unsettled: set[int] = set()
        self.sql = self._connect(os.fspath(path))
        try:
            with self._told():
                self._prepare()
                self._recount()
        except BaseException:
            self.sql.close()
            raise

    def _connect(self, path: str) -> sqlite3.Connection:
        with self._told():
            try:
                # only its owner may read it: what was drawn but never committed may still lie in it. A file that is
                # there is not touched: closing it here would drop the lock of a store this process has open
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                pass
            except OSError as error:
                raise StoreError(f"{self.name}: cannot be opened ({error.strerror}); check the path") from None
            return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)

    def _prepare(self) -> None:
        sql = self.sql
        for pragma in (
            "locking_mode=EXCLUSIVE",  # held until close or death: a second writer is refused at its first step
            "journal_mode=WAL",
            "synchronous=FULL",
            f"wal_autocheckpoint={WAL_PAGES}",
            "cache_size=-65536",
            "cache_spill=OFF",  # nothing reaches the disk before its commit
            "trusted_schema=OFF",
        ):
            sql.execute(f"PRAGMA {pragma}").fetchall()
        with self.transaction():
            application, version = (
                sql.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version")
            )
            if application == version == 0 and not sql.execute("SELECT 1 FROM sqlite_master").fetchall():
                for statement in (*SCHEMA, f"PRAGMA application_id={APPLICATION}", f"PRAGMA user_version={VERSION}"):
                    sql.execute(statement)
                return
            if application != APPLICATION:
                raise DataError(f"{self.name}: is not a state file of seqveil; name another file")
            if version > VERSION:
                raise DataError(f"{self.name}: was written by a newer seqveil (version {version}); update seqveil")
            for old in range(version, VERSION):
                MIGRATIONS[old](sql, self.name)
                sql.execute(f"PRAGMA user_version={old + 1}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block is committed and on the disk when it ends, or nothing of it."""
        with self._told():
            self.sql.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.sql.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.sql.execute("ROLLBACK")
                with suppress(sqlite3.Error, ValueError):  # ValueError: one of an earlier version, left as it is
                    self._recount()
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite says, as one line that holds no data."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translated(self.name, error) from None

    def close(self) -> None:
        """Fold the log into the tables and close the file; others may then open it."""
        with suppress(sqlite3.Error), suppress(StoreError):
            with self.transaction():
                self.settle()
            self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.sql.close()

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the whole file while it is in use, readable by its owner alone."""
        with self._told():
            self._make_private(os.fspath(path))
            copy = sqlite3.connect(os.fspath(path))
            try:
                self.sql.backup(copy)
            finally:
                copy.close()

    def _make_private(self, path: str) -> None:
        """A file that its owner alone may read, before anything is in it; those that SQLite puts beside it follow."""
        try:
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            for each in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
                with suppress(FileNotFoundError):
                    os.chmod(each, 0o600)
        except OSError as error:
            raise StoreError(
                f"{os.path.basename(path)}: a copy cannot be kept from others here ({error.strerror}); "
                "name another file"
            ) from None

    # facts and positions

    def fact(self, name: str) -> str | None:
        """What the file says of itself under this name."""
        row = self.sql.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        """Have the file say this of itself."""
        self.sql.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        with self._told():
            row = self.sql.execute("SELECT position FROM positions WHERE source = ?", (source,)).fetchone()
        return None if row is None else row[0]

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Keep positions beside the releases, in the same transaction."""
        self.sql.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", list(positions.items()))

    # the log

    def append(self, entry: Entry) -> None:
        """Write what a call left at the end of the log; a full log is folded into the tables first."""
        if self.full:
            self.settle()
        touched = np.column_stack([entry.ids, entry.counts, packing.ledger(entry.figures)]).astype("<i8", copy=False)
        parts = (touched.tobytes(), entry.states, entry.pieces.tobytes(), entry.records)
        self.sql.execute("INSERT INTO log (touched, states, events, releases) VALUES (?, ?, ?, ?)", parts)
        self._count(entry.ids, len(entry.pieces), sum(map(len, parts)))

    def put_aside(self, ids: Ints, states: bytes) -> None:
        """Nothing: the states are here already."""

    def _count(self, ids: Ints, events: int, size: int) -> None:
        self._unsettled.update(ids.tolist())
        self._rows += 1
        self._events += events
        self._bytes += size

    def _recount(self) -> None:
        """What the log holds, after it was opened or a transaction was undone."""
        self._events = self._bytes = self._rows = 0
        self._unsettled = set()
        sizes = "length(states) + length(events) + length(releases)"
        for touched, events, size in self.sql.execute(f"SELECT touched, length(events), {sizes} FROM log"):
            self._count(_table(touched, len(LEDGER))[:, 0], events // 24, size + len(touched))

    @property
    def full(self) -> bool:
        """Whether the log should be settled."""
        if self._rows >= FEW_ROWS and self._events < FEW_EVENTS * self._rows:
            return True  # small transactions: somebody waits for each, so it is done little by little
        return self._events >= SETTLE_EVENTS or self._bytes >= SETTLE_BYTES or self._rows >= SETTLE_ROWS

    def settle(self) -> None:
        """Move the log into the users' own rows."""
        rows = self.sql.execute("SELECT touched, states, events, releases FROM log ORDER BY id").fetchall()
        if not rows:
            return
        latest = _latest([(_table(touched, len(LEDGER)), states) for touched, states, _, _ in rows])
        pieces = np.concatenate([_table(events, 3) for _, _, events, _ in rows])
        counts, joined = _joined(pieces, b"".join(row[3] for row in rows))
        self.sql.executemany(
            "UPDATE users SET events = ?, releases = ?, spent = ?, most = ?, least = ?, ldp = ?, state = ?,"
            " recent = CAST(recent || ? AS BLOB) WHERE id = ?",
            ((*ledger, state, joined[user], user) for user, ledger, state in latest),
        )
        for user, ledger, _ in latest:
            before, after = (ledger[0] - counts[user]) // CHUNK, ledger[0] // CHUNK
            if after > before:
                self._cut(user, before, after)
        self.sql.execute("DELETE FROM log")
        self._events = self._bytes = self._rows = 0
        self._unsettled = set()

    def _cut(self, user: int, first: int, last: int) -> None:
        """Move full chunks out of the user's own row."""
        recent = self.sql.execute("SELECT recent FROM users WHERE id = ?", (user,)).fetchone()[0]
        for number in range(first, last):
            end = self._codec.cut(recent, CHUNK)
            self.sql.execute("INSERT INTO chunks VALUES (?, ?, ?)", (user, number, recent[:end]))
            recent = recent[end:]
        self.sql.execute("UPDATE users SET recent = ? WHERE id = ?", (recent, user))

    # users

    def find(self, names: Sequence[User]) -> list[Row | None]:
        """Where these users stand, the log included; None for a new one."""
        ask = f"SELECT {', '.join(LEDGER)}, state FROM users WHERE name = ?"
        rows = [self.sql.execute(ask, (name,)).fetchone() for name in names]
        found = [None if row is None else _row(row[:-1], row[-1]) for row in rows]
        waiting = {row.id for row in found if row is not None and row.id in self._unsettled}
        if len(waiting) > FEW:
            self.settle()
            return self.find(names)
        latest: dict[int, Row] = {}
        for touched, states, _, _ in self._newest_first() if waiting else ():
            table = _table(touched, len(LEDGER))
            width = len(states) // len(table)
            for k in np.flatnonzero(np.isin(table[:, 0], list(waiting))).tolist():
                row = _row(table[k].tolist(), states[k * width : (k + 1) * width])
                latest[row.id] = row
            waiting -= latest.keys()
            if not waiting:
                break
        return [None if row is None else latest.get(row.id, row) for row in found]

    def _newest_first(self) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
        yield from self.sql.execute("SELECT touched, states, events, releases FROM log ORDER BY id DESC")

    def add(self, names: Sequence[User], room: int) -> list[int]:
        """Ids for new users, with room for a state of so many bytes: a row that grows would have to move."""
        last = self.sql.execute("SELECT max(id) FROM users").fetchone()[0] or 0
        ids = range(last + 1, last + 1 + len(names))
        rows = [(user, name, room) for user, name in zip(ids, names, strict=True)]
        self.sql.executemany("INSERT INTO users (id, name, state) VALUES (?, ?, zeroblob(?))", rows)
        return list(ids)

    def releases(self, user: int, events: int, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on; `events` is how many there are."""
        if user in self._unsettled:
            self.settle()
        number = since // CHUNK
        chunks = self.sql.execute(
            "SELECT releases FROM chunks WHERE user = ? AND number >= ? ORDER BY number", (user, number)
        ).fetchall()
        chunks += self.sql.execute("SELECT recent FROM users WHERE id = ?", (user,)).fetchall()
        first = min(number, events // CHUNK) * CHUNK
        for (blob,) in chunks:
            for stored in self._codec.unpack(blob, first):
                if stored.seq >= since:
                    yield stored
                first = stored.seq + 1

    def stored(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Stored]:
        """These events, each a user and a sequence number that was released before."""
        found: dict[tuple[int, int], Stored] = {}
        seqs: dict[int, set[int]] = {}
        for user, seq in wanted:
            seqs.setdefault(user, set()).add(seq)
        unsettled = {user: of for user, of in seqs.items() if user in self._unsettled}
        if len(unsettled) > FEW:
            self.settle()
        else:
            self._search_log(unsettled, found)
        for user, of in seqs.items():
            for seq in sorted(of):
                if (user, seq) not in found:
                    found[user, seq] = self._settled(user, seq)
        return found

    def _search_log(self, seqs: dict[int, set[int]], found: dict[tuple[int, int], Stored]) -> None:
        """Walk back through the log, newest first, to the events asked for or to where it begins."""
        ends: dict[int, int] = {}  # the sequence number behind the pieces not yet walked over
        open_ = {user: min(of) for user, of in seqs.items()}
        for touched, _, events, releases in self._newest_first() if open_ else ():
            for user, after, *_ in _table(touched, len(LEDGER)).tolist():
                ends.setdefault(user, after)
            table = _table(events, 3)
            offsets = np.cumsum(table[:, 1]) - table[:, 1]
            for k in reversed(np.flatnonzero(np.isin(table[:, 0], list(open_))).tolist()):
                user, size, count = table[k].tolist()
                ends[user] -= count
                if any(ends[user] <= seq < ends[user] + count for seq in seqs[user]):
                    blob = releases[offsets[k] : offsets[k] + size]
                    found |= {(user, each.seq): each for each in self._codec.unpack(blob, ends[user])}
            open_ = {user: seq for user, seq in open_.items() if ends.get(user, seq + 1) > seq}
            if not open_:
                break

    def _settled(self, user: int, seq: int) -> Stored:
        events, blob = self.sql.execute("SELECT events, recent FROM users WHERE id = ?", (user,)).fetchone()
        if seq // CHUNK < events // CHUNK:
            ask = "SELECT releases FROM chunks WHERE user = ? AND number = ?"
            (blob,) = self.sql.execute(ask, (user, seq // CHUNK)).fetchone()
        begin = self._codec.cut(blob, seq % CHUNK)
        return next(self._codec.unpack(blob[begin : begin + self._codec.cut(blob[begin:], 1)], seq))

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user, in the order they came."""
        self.settle()
        rows = self.sql.execute(f"SELECT name, {', '.join(LEDGER[1:])} FROM users ORDER BY id").fetchall()
        counts = np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2)
        figures = [[*map(nats, row[3:6]), _ldp(row[6])] for row in rows]
        return [row[0] for row in rows], counts, np.array(figures, np.float64).reshape(-1, 4)


def _row(ledger: Sequence[int], state: bytes) -> Row:
    user, events, releases, spent, most, least, ldp = ledger
    return Row(user, events, releases, nats(spent), nats(most), nats(least), _ldp(ldp), state)


def _ldp(kept: int) -> float:
    return math.nan if kept == UNKNOWN else nats(kept)


def _table(blob: bytes, width: int) -> Ints:
    return np.frombuffer(blob, "<i8").reshape(-1, width)


def _latest(rows: list[tuple[Ints, bytes]]) -> list[tuple[int, list[int], memoryview]]:
    """The last ledger and state of each user, in the order of their ids."""
    tables = np.concatenate([table for table, _ in rows])
    users, behind = np.unique(tables[::-1, 0], return_index=True)
    last = len(tables) - 1 - behind
    starts = np.cumsum([0, *(len(table) for table, _ in rows)])
    row_of = np.searchsorted(starts, last, side="right") - 1
    within = (last - starts[row_of]).tolist()
    views = [(memoryview(states), len(states) // len(table)) for table, states in rows]
    found = []
    for user, ledger, row, k in zip(users.tolist(), tables[last, 1:].tolist(), row_of.tolist(), within, strict=True):
        states, width = views[row]
        found.append((user, ledger, states[k * width : (k + 1) * width]))
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


def _translated(name: str, error: sqlite3.Error) -> StoreError:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{name}: another process has this state file open; wait for it to end, or use another file")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreError(f"{name}: is damaged or no state file of seqveil; restore it from a backup")
    reason, remedy = {
        sqlite3.SQLITE_FULL: ("the disk is full", "free some space and try again"),
        sqlite3.SQLITE_IOERR: ("the disk cannot be written or read", "look at the disk and try again"),
        sqlite3.SQLITE_READONLY: ("it may not be written to", "check its permissions"),
        sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the path"),
    }.get(code, (type(error).__name__, "check the file and its folder"))
    return StoreError(f"{name}: {reason}, so nothing was released; {remedy}")


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
