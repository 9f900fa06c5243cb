"""What stands in a state file, read over one connection and checked against its marks.

The writer reads so inside its transaction; readers do it on connections of their own (`connections`). The ledgers of
those who were erased stand under a keyed hash of the name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from seqveil.core.coins import User
from seqveil.core.kernel import Ints
from seqveil.engine.store.book import Book, Log
from seqveil.engine.store.connections import damaged_file, is_damage
from seqveil.engine.store.packing import nats
from seqveil.engine.store.protocol import Codec, Damaged, NoLongerKept, Row, Stored, StoreError
from seqveil.engine.store.schema import (
    LEDGER,
    blob_mark,
    is_ledger,
    log_marks,
    name_mark,
    place_mark,
    unpacked_names,
    user_mark,
)

HASH = 16  # bytes of a hashed name; the name of a user is text, so none can be one
Hasher = Callable[[str], bytes]


def name_hasher(salt: str, key: bytes | None) -> Hasher:
    """Under what the ledger of someone who was erased stands: a hash of the name, keyed with the file's salt and key.

    Of a file without a key whoever has the file can test whether a name was erased.

    >>> name_hasher("salt", None)("ann") == name_hasher("salt", bytes(32))("ann")
    False
    """
    secret = blake2b(salt.encode(), key=key or b"", digest_size=32, person=b"seqveil-names").digest()
    return lambda name: blake2b(name.encode(), key=secret, digest_size=HASH, person=b"seqveil-erased").digest()


PAGE = 16  # chunks that are read at a time
USERS = 1000  # users that are read at a time
SPARE = 4  # rows of the log that are kept for the next user
MANY, TOGETHER = 8, 500  # users from how many on one statement asks for several, and for how many

OWN = f"SELECT {', '.join(LEDGER)}, state, mark"  # what a user's own row says of where the user stands


class LogRow(NamedTuple):
    """A row of the log, whose part of who is in it is known to be right."""

    names: bytes
    touched: bytes
    events: bytes
    states: bytes
    releases: bytes
    whole: bool  # whether what it says of them is right too

    @property
    def size(self) -> int:
        """Bytes of what is known to be right."""
        return sum(map(len, self[:5] if self.whole else self[:3]))


class Settled(NamedTuple):
    """What a user's own row says of the user's releases."""

    events: int  # how many are in chunks and in this row
    kept: int  # the number of the first one that is still there
    recent: bytes  # those behind the last full chunk


class Records:
    """The records of a state file over one connection.

    Parameters:
        sql: the connection.
        name: of the file, for messages.
        codec: how releases are written.
        chunk: how many releases of a user there are in a row of `chunks`.
        log: what the log holds, as the writer knows it. It is asked for before the tables are: what is settled in
            between is then found there.
        hasher: of the names of those who were erased, if anybody was.
    """

    def __init__(
        self,
        sql: sqlite3.Connection,
        name: str,
        codec: Codec | None,
        chunk: int,
        log: Callable[[], Log],
        hasher: Callable[[], Hasher | None] = lambda: None,
    ) -> None:
        self._sql, self._name, self._chunk, self._log, self._hasher = sql, name, chunk, log, hasher
        self._given = codec

    @property
    def codec(self) -> Codec:
        """How releases are written."""
        if self._given is None:
            raise StoreError(f"{self._name}: does not say how its releases are written; open it with its setting")
        return self._given

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
        log = self._log()
        row = self._in_log(log, log.new.get(name), name, self.log_row)
        if row is not None:
            return row
        found = self._asked("name", name) or self._asked("named", name)
        return self._otherwise(log, name) if found is None else self._standing(log, name, found, self.log_row)

    def find_all(self, names: Sequence[User]) -> list[Row | None]:
        """Where several users stand, each as `find` says it, with a few statements for all of them."""
        if len(names) < MANY:
            return [self.find(name) for name in names]
        log, log_row = self._log(), lru_cache(SPARE)(self.log_row)
        rows = {name: self._in_log(log, log.new[name], name, log_row) for name in names if name in log.new}
        asked, own = [name for name in names if rows.get(name) is None], dict[int, tuple[Any, ...]]()
        if log.first == 1:  # the tables have nobody yet, but those who were settled since
            rows |= dict.fromkeys(asked)
            asked = [name for name in asked if name in log.new]
        try:
            for at in range(0, len(asked), TOGETHER):
                own |= self._asked_together(asked[at : at + TOGETHER])
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            return [self.find(name) for name in names]  # which tells whose records are damaged
        for name in asked:
            found = own.get(name_mark(name)) if own else None
            rows[name] = self._otherwise(log, name) if found is None else self._standing(log, name, found, log_row)
        return [rows[name] for name in names]

    def _otherwise(self, log: Log, name: User) -> Row | None:
        """A user of whom nothing was released yet, or who was erased; None for a new one."""
        user, hasher = log.new.get(name), self._hasher()
        if user is not None:
            return Row(user, 0, 0, 0.0, 0.0, 0.0, 0.0, b"")
        if hasher is None:
            return None
        hashed = hasher(str(name))
        found = self._asked("name", hashed) or self._asked("named", hashed)
        return None if found is None else self._standing(log, name, found, self.log_row)

    def _asked_together(self, names: Sequence[User]) -> dict[int, tuple[Any, ...]]:
        """Users' own rows by the mark of the name, looked for by both indexes as `_asked` does."""
        marks = [name_mark(name) for name in names]
        missing, rows = set(marks), dict[int, tuple[Any, ...]]()
        for column in ("name", "named"):
            wanted: Sequence[Any] = names if column == "name" else [mark for mark in marks if mark in missing]
            places = ", ".join("?" * len(wanted))
            ask = f"{OWN}, named FROM users WHERE {column} IN ({places})"
            for *row, named in self._sql.execute(ask, wanted) if wanted else ():
                if named in missing:
                    rows[named] = tuple(row)
                    missing.remove(named)
        return rows

    def _standing(self, log: Log, name: User, found: tuple[Any, ...], log_row: Callable[[int], LogRow | None]) -> Row:
        """Where a user stands whose own row was found, the log included."""
        *ledger, state, mark = found
        row = self._in_log(log, ledger[0], name, log_row)
        if row is not None:
            return row
        if not is_ledger(ledger) or user_mark(ledger[0], ledger[1:], state) != mark:
            raise self.damaged(ledger[0], [name])
        return row_of(ledger, state)

    def _in_log(self, log: Log, user: int | None, name: User, log_row: Callable[[int], LogRow | None]) -> Row | None:
        """A user as the log left it last; None for one who is not there, or was settled since."""
        for row in [] if user is None or type(user) is not int else log.rows_of(user):
            found = log_row(row)
            if found is None:  # not committed when this reader began, or settled since
                continue
            table = table_of(found.touched, len(LEDGER))
            k = int((table[:, 0] == user).argmax())
            if table[k, 0] != user:  # a row that was undone, and another one in its place
                continue
            if not found.whole:
                raise self.damaged(user, [name])
            width = len(found.states) // len(table)
            return row_of(table[k].tolist(), found.states[k * width : (k + 1) * width])
        return None

    def _asked(self, column: str, name: User | bytes) -> tuple[Any, ...] | None:
        """A user's own row, by one of two indexes: where one is damaged, a known user must not look new, whose ledger
        would begin again."""
        named = name_mark(name)
        ask = f"{OWN}, named FROM users WHERE {column} = ?"
        try:
            found = self._sql.execute(ask, (name if column == "name" else named,)).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            raise self.damaged(None, [] if isinstance(name, bytes) else [name]) from None
        if found is None or found[-1] != named:  # by the name somebody else may be found, if the index is damaged
            return None
        row: tuple[Any, ...] = found[:-1]
        return row

    def log_row(self, row: int) -> LogRow | None:
        """A row of the log, and whether what it says is whole; who is in it is, or the file cannot be used."""
        return next(iter(self.log_rows(row, row)), None)

    def log_rows(self, first: int, last: int) -> list[LogRow]:
        """Rows of the log in their order, as far as they are there; each as `log_row` has it."""
        found = []
        ask = "SELECT * FROM log WHERE id BETWEEN ? AND ? ORDER BY id"
        for row, who, what, names, touched, events, states, releases in self._sql.execute(ask, (first, last)):
            marks = log_marks(row, names, touched, events, states, releases)
            if marks[0] != who:
                raise damaged_file(self._name)
            found.append(LogRow(names, touched, events, states, releases, marks[1] == what))
        return found

    def ledgers(self, after: int, most: int = USERS) -> list[tuple[int, User | bytes, list[int], bool]]:
        """Users in the order they came, from behind this number on: number, name, ledger, whether all is whole.

        Those who are in the log alone are not among them.
        """
        found: list[tuple[int, User | bytes, list[int], bool]] = []
        ask = f"{OWN}, name, named FROM users WHERE id > ? ORDER BY id LIMIT ?"
        for *ledger, state, mark, name, named in self._sql.execute(ask, (after, most)):
            whole = isinstance(name, (str, bytes)) and name_mark(name) == named
            whole = whole and is_ledger(ledger) and user_mark(ledger[0], ledger[1:], state) == mark
            found.append((ledger[0], name, ledger[1:], whole))
        return found

    # releases

    def releases(self, user: int, since: int = 0, most: int | None = None) -> Iterator[Stored]:
        """The user's releases from `since` on, read a page at a time, at most so many."""
        for stored in self._all(user, since):
            if stored.seq >= since:
                if most is not None:
                    if most == 0:
                        return
                    most -= 1
                yield stored

    def _all(self, user: int, since: int) -> Iterator[Stored]:
        log = self._log()
        waiting, (events, kept, recent) = log.rows_of(user)[::-1], self.settled(user, log)
        if since < kept:
            raise NoLongerKept(self._name, kept)
        number, full = since // self._chunk, events // self._chunk
        while number < full:
            for blob in self._chunks(user, number, min(full, number + PAGE)):
                begin = max(number * self._chunk, kept)
                number += 1
                yield from self._unpacked(user, blob, begin, number * self._chunk - begin)
        begin = max(full * self._chunk, kept)
        yield from self._unpacked(user, recent, begin, events - begin)
        for begin, count, blob in self.pieces(user, waiting):
            yield from self._unpacked(user, blob, begin, count)

    def settled(self, user: int, log: Log) -> Settled:
        """What a user's own row says of the user's releases; there are none where the user is in the log alone."""
        ask = f"{OWN}, kept, recent, recent_mark FROM users WHERE id = ?"
        try:
            found = self._sql.execute(ask, (user,)).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
            found = None
        if found is None and user >= log.first:
            return Settled(0, 0, b"")
        if found is None:
            raise self.damaged(user)
        *ledger, state, mark, kept, recent, recent_mark = found
        whole = is_ledger([*ledger, kept]) and user_mark(user, ledger[1:], state) == mark
        if not whole or blob_mark(place_mark(user, kept), recent) != recent_mark:
            raise self.damaged(user)
        return Settled(ledger[1], kept, recent)

    def one(self, user: int, seq: int, log: Log) -> Stored | None:
        """One release of a user that is settled; None where it is no longer kept."""
        events, kept, blob = self.settled(user, log)
        if seq < kept:
            return None
        if seq >= events:
            raise self.damaged(user)
        number = seq // self._chunk
        if number < events // self._chunk:
            blob = self.chunk(user, number)
        begin = self.codec.cut(blob, seq - max(number * self._chunk, kept))
        return next(self.codec.unpack(blob[begin : begin + self.codec.cut(blob[begin:], 1)], seq))

    def chunk(self, user: int, number: int) -> bytes:
        """One chunk of a user's releases."""
        return next(self._chunks(user, number, number + 1))

    def _chunks(self, user: int, first: int, end: int) -> Iterator[bytes]:
        ask = "SELECT number, mark, releases FROM chunks"
        ask += " WHERE user = ? AND number >= ? AND number < ? ORDER BY number"
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
        for stored in self.codec.unpack(blob, first):
            found += 1
            yield stored
        if found != count:
            raise self.damaged(user)

    def pieces(self, user: int, rows: Sequence[int]) -> Iterator[tuple[int, int, bytes]]:
        """What each of these rows of the log holds of a user: its first number, how many, and the records in a row.

        Rows that are settled by now are passed over.
        """
        for row in rows:
            found = self.log_row(row)
            if found is None:
                continue
            ledgers, table = table_of(found.touched, len(LEDGER)), table_of(found.events, 3)
            if user not in ledgers[:, 0]:
                continue
            if not found.whole:
                raise self.damaged(user)
            after = int(ledgers[(ledgers[:, 0] == user).argmax(), 1])
            own = table[:, 0] == user
            ends = np.cumsum(table[:, 1])[own].tolist()
            sizes, count = table[own, 1].tolist(), int(table[own, 2].sum())
            records = [found.releases[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            if records:
                yield after - count, count, b"".join(records)


def load_log(sql: sqlite3.Connection, name: str, book: Book) -> Iterator[tuple[Ints, int, int]]:
    """Note in the book what the log of a file holds: of each row the ledgers, how many pieces it has, and its size."""
    rows, new = [], list[str]()
    last, book.last = book.last, book.first - 1
    ask = "SELECT id, who, names, touched, events, length(states) + length(releases) FROM log ORDER BY id"
    for at, who, names, touched, events, size in sql.execute(ask):
        book.last += 1
        if at != book.last or blob_mark(place_mark(at), names, touched, events) != who:
            raise damaged_file(name)
        new += unpacked_names(names)
        rows.append((table_of(touched, len(LEDGER)), len(events) // 24, size + len(names) + len(touched) + len(events)))
    log = book.log = Log(book.users - len(new) + 1)
    if book.last != last or (sql.execute("SELECT max(id) FROM users").fetchone()[0] or 0) != log.first - 1:
        raise damaged_file(name)
    log.new = {user: log.first + k for k, user in enumerate(new)}
    for k, row in enumerate(rows):
        log.note(book.first + k, row[0][:, 0])
        yield row


def row_of(ledger: Sequence[int], state: bytes) -> Row:
    """A user's row, the ledger in nats."""
    user, events, releases, spent, most, least, ldp = ledger
    return Row(user, events, releases, nats(spent), nats(most), nats(least), nats(ldp), state)


def table_of(blob: bytes, width: int) -> Ints:
    """Whole numbers in a blob, so many a row."""
    return np.frombuffer(blob, "<i8").reshape(-1, width)
