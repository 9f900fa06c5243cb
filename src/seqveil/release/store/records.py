"""What stands in a state file, read over one connection and checked against its marks.

The writer reads so inside its transaction. Readers (`Readers`) do it on connections of their own, each in a snapshot of
what is committed, so that nobody waits for them.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from seqveil.core.coins import User
from seqveil.core.kernel import Ints
from seqveil.release.store.marks import blob_mark, name_mark, place_mark, user_mark
from seqveil.release.store.packing import nats
from seqveil.release.store.protocol import Codec, Damaged, Row, StoreBusy, Stored, StoreError
from seqveil.release.store.schema import LEDGER, UNKNOWN, log_marks

PAGE = 16  # chunks that are read at a time
USERS = 1000  # users that are read at a time
SPARE = 4  # connections that wait for the next reader, and rows of the log that are kept for the next user
MANY, TOGETHER = 8, 500  # users from how many on one statement asks for several, and for how many

Waiting = Mapping[int, Sequence[int]]  # by user, the rows of the log that it is in

LogRow = tuple[bytes, bytes, bytes, bytes, bool]  # touched, states, events, releases, whether all is whole


class Records:
    """The records of a state file over one connection.

    Parameters:
        sql: the connection.
        name: of the file, for messages.
        codec: how releases are written.
        chunk: how many releases of a user there are in a row of `chunks`.
        waiting: which rows of the log each user is in, as the writer knows it.
    """

    def __init__(
        self, sql: sqlite3.Connection, name: str, codec: Codec, chunk: int, waiting: Callable[[], Waiting]
    ) -> None:
        self._sql, self._name, self._codec, self._chunk, self._waiting = sql, name, codec, chunk, waiting

    def damaged(self, user: int | None, names: Sequence[User] = ()) -> Damaged:
        """What to say of a user whose records are not what was written."""
        who = "a user" if user is None else f"user number {user}"
        return Damaged(
            f"{self._name}: the records of {who} are damaged, so nothing of this user is released; all others go on. "
            "`seqveil state verify` lists what is damaged; restore it from a backup",
            names,
        )

    # users

    def find(self, name: User) -> Row | None:
        """Where a user stands, the log included; None for a new one."""
        found = self._asked("name", name) or self._asked("named", name)
        return None if found is None else self._standing(name, found, self.log_row)

    def find_all(self, names: Sequence[User]) -> list[Row | None]:
        """Where several users stand, each as `find` says it, with a few statements for all of them."""
        if len(names) < MANY:
            return [self.find(name) for name in names]
        rows: dict[int, tuple[Any, ...]] = {}
        try:
            for at in range(0, len(names), TOGETHER):
                rows |= self._asked_together(names[at : at + TOGETHER])
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            return [self.find(name) for name in names]  # which tells whose records are damaged
        log_row = lru_cache(SPARE)(self.log_row)
        found = [rows.get(name_mark(str(name))) for name in names]
        return [
            None if row is None else self._standing(name, row, log_row) for name, row in zip(names, found, strict=True)
        ]

    def _asked_together(self, names: Sequence[User]) -> dict[int, tuple[Any, ...]]:
        """Users' own rows by the mark of the name, looked for by both indexes as `_asked` does."""
        marks = [name_mark(str(name)) for name in names]
        missing, rows = set(marks), dict[int, tuple[Any, ...]]()
        for column in ("name", "named"):
            wanted: Sequence[Any] = names if column == "name" else [mark for mark in marks if mark in missing]
            places = ", ".join("?" * len(wanted))
            ask = f"SELECT {', '.join(LEDGER)}, state, mark, named FROM users WHERE {column} IN ({places})"
            for *row, named in self._sql.execute(ask, wanted) if wanted else ():
                if named in missing:
                    rows[named] = tuple(row)
                    missing.remove(named)
        return rows

    def _standing(self, name: User, found: tuple[Any, ...], log_row: Callable[[int], LogRow | None]) -> Row:
        """Where a user stands whose own row was found, the log included."""
        *ledger, state, mark = found
        for row in reversed(tuple(self._waiting().get(ledger[0], ()))):
            latest = self._in_log(log_row(row), ledger[0], name)
            if latest is not None:
                return latest
        if not is_ledger(ledger) or user_mark(ledger[0], ledger[1:], state) != mark:
            raise self.damaged(ledger[0], [name])
        return row_of(ledger, state)

    def _asked(self, column: str, name: User) -> tuple[Any, ...] | None:
        """A user's own row, by one of two indexes: where one is damaged, a known user must not look new, whose ledger
        would begin again."""
        named = name_mark(str(name))
        ask = f"SELECT {', '.join(LEDGER)}, state, mark, named FROM users WHERE {column} = ?"
        try:
            found = self._sql.execute(ask, (name if column == "name" else named,)).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            raise self.damaged(None, [name]) from None
        if found is None or found[-1] != named:  # by the name somebody else may be found, if the index is damaged
            return None
        row: tuple[Any, ...] = found[:-1]
        return row

    def _in_log(self, found: LogRow | None, user: int, name: User) -> Row | None:
        """A user as a row of the log left it; None where the row was settled since, or is not committed."""
        if found is None:
            return None
        touched, states, _, _, whole = found
        table = table_of(touched, len(LEDGER))
        width = len(states) // len(table)
        k = int((table[:, 0] == user).argmax())
        if table[k, 0] != user:  # a row that was undone, and another one in its place
            return None
        if not whole:
            raise self.damaged(user, [name])
        return row_of(table[k].tolist(), states[k * width : (k + 1) * width])

    def log_row(self, row: int) -> LogRow | None:
        """A row of the log, and whether what it says is whole; who is in it is, or the file cannot be used."""
        ask = "SELECT who, what, touched, states, events, releases FROM log WHERE id = ?"
        found = self._sql.execute(ask, (row,)).fetchone()
        if found is None:
            return None
        who, what, *parts = found
        marks = log_marks(row, *parts)
        if marks[0] != who:
            raise damaged_file(self._name)
        return (*parts, marks[1] == what)

    def ledgers(self, after: int, most: int = USERS) -> list[tuple[int, User, list[int], bool]]:
        """Users in the order they came, from behind this number on: number, name, ledger, whether all is whole."""
        ask = f"SELECT {', '.join(LEDGER)}, state, mark, name, named FROM users WHERE id > ? ORDER BY id LIMIT ?"
        found: list[tuple[int, User, list[int], bool]] = []
        for *ledger, state, mark, name, named in self._sql.execute(ask, (after, most)):
            whole = isinstance(name, str) and name_mark(name) == named
            whole = whole and is_ledger(ledger) and user_mark(ledger[0], ledger[1:], state) == mark
            found.append((ledger[0], name, ledger[1:], whole))
        return found

    # releases

    def releases(self, user: int, since: int = 0, most: int | None = None) -> Iterator[Stored]:
        """The user's releases from `since` on, read a page at a time, at most so many."""
        for stored in self._all(user, since // self._chunk):
            if stored.seq >= since:
                if most is not None:
                    if most == 0:
                        return
                    most -= 1
                yield stored

    def _all(self, user: int, number: int) -> Iterator[Stored]:
        waiting = tuple(self._waiting().get(user, ()))  # before the rest: what is settled since is then read there
        events, recent = self.settled(user)
        full = events // self._chunk
        while number < full:
            for blob in self._chunks(user, number, min(full, number + PAGE)):
                yield from self._unpacked(user, blob, number * self._chunk, self._chunk)
                number += 1
        yield from self._unpacked(user, recent, full * self._chunk, events % self._chunk)
        for begin, count, blob in self.pieces(user, waiting):
            yield from self._unpacked(user, blob, begin, count)

    def settled(self, user: int) -> tuple[int, bytes]:
        """How many releases of a user are in chunks and in its own row, and the latter."""
        ask = f"SELECT {', '.join(LEDGER)}, state, mark, recent, recent_mark FROM users WHERE id = ?"
        try:
            found = self._sql.execute(ask, (user,)).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            found = None
        if found is None:
            raise self.damaged(user)
        *ledger, state, mark, recent, recent_mark = found
        whole = is_ledger(ledger) and user_mark(user, ledger[1:], state) == mark
        if not whole or blob_mark(place_mark(user), recent) != recent_mark:
            raise self.damaged(user)
        return ledger[1], recent

    def chunk(self, user: int, number: int) -> bytes:
        """One chunk of a user's releases."""
        return next(self._chunks(user, number, number + 1))

    def _chunks(self, user: int, first: int, end: int) -> Iterator[bytes]:
        ask = "SELECT number, mark, releases FROM chunks WHERE user = ? AND number >= ? AND number < ? ORDER BY number"
        try:
            rows = self._sql.execute(ask, (user, first, end)).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            rows = []
        if [row[0] for row in rows] != list(range(first, end)):
            raise self.damaged(user)
        for number, mark, blob in rows:
            if blob_mark(place_mark(user, number), blob) != mark:
                raise self.damaged(user)
            yield blob

    def _unpacked(self, user: int, blob: bytes, first: int, count: int) -> Iterator[Stored]:
        found = 0
        for stored in self._codec.unpack(blob, first):
            found += 1
            yield stored
        if found != count:
            raise self.damaged(user)

    def pieces(self, user: int, rows: Sequence[int]) -> Iterator[tuple[int, int, bytes]]:
        """What rows of the log hold of a user: its first number, how many, and the records. Rows settled are passed."""
        for row in rows:
            found = self.log_row(row)
            if found is None:
                continue
            touched, _, events, releases, whole = found
            ledgers, table = table_of(touched, len(LEDGER)), table_of(events, 3)
            if user not in ledgers[:, 0]:
                continue
            if not whole:
                raise self.damaged(user)
            after = int(ledgers[(ledgers[:, 0] == user).argmax(), 1])
            offsets = np.cumsum(table[:, 1]) - table[:, 1]
            own = np.flatnonzero(table[:, 0] == user).tolist()
            begin = after - int(table[own, 2].sum())
            for k in own:
                size, count = table[k, 1:].tolist()
                yield begin, count, releases[offsets[k] : offsets[k] + size]
                begin += count


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


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """A connection that any thread may use, and whose transactions are ours to begin."""
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def row_of(ledger: Sequence[int], state: bytes) -> Row:
    """A user's row, the ledger in nats."""
    user, events, releases, spent, most, least, ldp = ledger
    return Row(user, events, releases, nats(spent), nats(most), nats(least), ldp_of(ldp), state)


def ldp_of(kept: int) -> float:
    """The LDP figure in nats; nan where it was not kept."""
    return math.nan if kept == UNKNOWN else nats(kept)


def is_ledger(numbers: Sequence[object]) -> bool:
    """Whether these are whole numbers: damage may make anything of them."""
    return all(type(number) is int for number in numbers)


def table_of(blob: bytes, width: int) -> Ints:
    """Whole numbers in a blob, so many a row."""
    return np.frombuffer(blob, "<i8").reshape(-1, width)


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
