"""A state file beside its writer: read by its operator, looked through record by record, and copied while in use."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from seqveil.core.coins import User, key_file
from seqveil.core.errors import DataError, InputError
from seqveil.core.leakage import larger_side
from seqveil.engine.store import schema
from seqveil.engine.store.book import Book, Log
from seqveil.engine.store.connections import connect, damaged_file, is_damage, make_private, told, translated
from seqveil.engine.store.protocol import EPOCH, Row, Stored, StoreError, codec_of
from seqveil.engine.store.records import OWN, Records, load_log, table_of
from seqveil.engine.store.schema import (
    LEDGER,
    blob_mark,
    is_ledger,
    name_mark,
    place_mark,
    read_sums,
    user_mark,
    value_mark,
)
from seqveil.engine.stream import Terms

FilePath = str | os.PathLike[str]
PATIENCE = 5.0  # seconds to wait for whoever opens or closes the file
MOST = 1000  # things that are named


@dataclass
class Verified:
    """What was found wrong with a state file, and how much there was to look at."""

    users: int = 0
    releases: int = 0  # in the users' own rows and chunks; those in the log come on top
    log: int = 0
    damaged_users: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def found(self, what: str, user: int | None = None) -> None:
        """Note what is wrong, and whose record it is."""
        if user is not None:
            self.damaged_users.add(user)
        if len(self.problems) < MOST:
            self.problems.append(what)


def verify(path: FilePath) -> Verified:
    """Look at every record of a state file, in a snapshot of what is committed; nobody who writes waits for it."""
    name = os.path.basename(path)
    with closing(opened(path)) as sql:
        try:
            sql.execute("BEGIN")
            return _Look(sql).all()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not isinstance(error, UnicodeDecodeError) and not is_damage(error):
                raise translated(name, error) from None
            found = Verified()
            found.found("the file cannot be read through; restore it from a backup")
            return found


def opened(path: FilePath) -> sqlite3.Connection:
    """A connection for reading a state file of this version that is there."""
    name = os.path.basename(path)
    if not os.path.isfile(path):
        raise StoreError(f"{name}: cannot be opened (No such file or directory); check the path")
    with told(name):
        sql = connect(os.fspath(path), PATIENCE)
    try:
        with told(name):
            sql.execute("PRAGMA query_only=ON")
            schema.refuse_other(sql, name)
    except BaseException:
        sql.close()
        raise
    return sql


def facts_of(path: FilePath) -> dict[str, str]:
    """What a state file says of itself: its setting, the mark of its key; nothing where there is no such file."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return {}
    try:
        with closing(opened(path)) as sql, told(os.path.basename(path)):
            return {name: value for name, value, mark in sql.execute("SELECT * FROM facts")}
    except (StoreError, DataError):  # none of ours, about which opening it will say more
        return {}


def refuse_no_path(path: FilePath) -> None:
    """Refuse what SQLite would keep in memory, or take for an address: a ledger that ends with its process is none."""
    text = os.fspath(path)
    if text == ":memory:" or text.startswith("file:"):
        raise InputError(f"{text}: expected the path of a state file, not a database in memory or a URI; name a file")


def key_for(state: FilePath, key: FilePath | None) -> bytes | None:
    """The key in a file; one is made where there is none, unless the state file was drawn with one already."""
    refuse_no_path(state)
    return None if key is None else key_file(key, create="key" not in facts_of(state))


class _Look:
    """One look at everything."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql, self._found = sql, Verified()

    def all(self) -> Verified:
        found = self._found
        for (line,) in self._sql.execute("PRAGMA integrity_check(20)"):
            if line != "ok":
                found.found("the tables are damaged (SQLite's own check)")
        if not schema.is_intact(self._sql):
            found.found("the definitions of the tables are damaged")
            return found
        sums = schema.read_sums(self._sql)
        if sums is None:
            found.found("the sums of the tables are damaged")
            return found
        users, first, last, positions, facts, _ = sums
        for table, total in (("facts", facts), ("positions", positions)):
            self._named(table, total)
        self._log(first, last)
        self._users(users)
        self._chunks()
        return found

    def _named(self, table: str, total: int) -> None:
        for name, value, mark in self._sql.execute(f"SELECT * FROM {table}"):
            if value_mark(name, value) != mark:
                self._found.found(f"a record of {table} is damaged")
                return
            total ^= mark
        if total:
            self._found.found(f"a record of {table} is missing")

    def _log(self, first: int, last: int) -> None:
        row = first - 1
        for at, who, what, *parts in self._sql.execute("SELECT * FROM log ORDER BY id"):
            row += 1
            marks = schema.log_marks(at, *parts)
            if at != row or marks[0] != who:
                self._found.found("the log of transactions is damaged")
                return
            self._found.users += len(schema.unpacked_names(parts[0]))
            if marks[1] != what:
                touched = table_of(parts[1], len(LEDGER))[:, 0].tolist()
                self._found.found(f"transaction {at} is damaged, with {len(touched)} users")
                self._found.damaged_users.update(touched)
        if row != last:
            self._found.found("transactions are missing in the log")
        self._found.log = max(0, last - first + 1)

    def _users(self, count: int) -> None:
        for *ledger, state, mark, name, named, kept, recent, recent_mark in self._sql.execute(
            f"{OWN}, name, named, kept, recent, recent_mark FROM users ORDER BY id"
        ):
            user = ledger[0]
            self._found.users += 1
            if not isinstance(name, (str, bytes)) or name_mark(name) != named:
                self._found.found(f"user number {user}: the name is damaged", user)
            if not is_ledger(ledger) or user_mark(user, ledger[1:], state) != mark:
                self._found.found(f"user number {user}: the ledger or state is damaged", user)
            elif is_ledger([kept]):
                self._found.releases += max(0, ledger[1] - kept)  # those before were erased
            if not is_ledger([kept]) or blob_mark(place_mark(user, kept), recent) != recent_mark:
                self._found.found(f"user number {user}: the latest releases are damaged", user)
        if self._found.users != count:
            self._found.found(f"{count} users are expected, and {self._found.users} are there")

    def _chunks(self) -> None:
        expected = {
            user: range(kept // schema.CHUNK, events // schema.CHUNK)
            for user, events, kept in self._sql.execute("SELECT id, events, kept FROM users")
            if user not in self._found.damaged_users
        }
        counts: dict[int, int] = {}
        for user, number, mark, blob in self._sql.execute("SELECT * FROM chunks ORDER BY user, number"):
            first, counts[user] = expected[user].start if user in expected else 0, counts.get(user, 0) + 1
            wanted = first + counts[user] - 1
            if (user in expected and number != wanted) or blob_mark(place_mark(user, number), blob) != mark:
                self._found.found(f"user number {user}: releases of chunk {wanted} are damaged", user)
        for user, numbers in expected.items():
            if user not in self._found.damaged_users and len(numbers) != counts.get(user, 0):
                self._found.found(f"user number {user}: releases are missing", user)


def backup(path: FilePath, copy: FilePath) -> Verified:
    """Copy a state file as it is committed now, while it may be in use: whoever writes does not wait.

    The copy is for its owner alone, and is looked through before it gets its name. Nothing that is there is written
    over: the two names may have been given the wrong way round.
    """
    name, target = os.path.basename(path), os.fspath(copy)
    if os.path.exists(target) and os.path.samefile(path, target):
        raise StoreError(f"{os.path.basename(target)}: is the state file itself; name another file for the copy")
    if os.path.lexists(target):
        raise _taken(target)
    if os.path.exists(f"{target}-lock"):
        raise StoreError(f"{os.path.basename(target)}: may be in use as a state file; name another file for the copy")
    part = f"{target}.{secrets.token_hex(4)}.part"
    with closing(opened(path)) as sql:
        try:
            _copy(sql, name, part)
            found = verify(part)
            if not found.sound:
                raise StoreError(
                    f"{name}: is damaged ({found.problems[0]}), so no copy was made; `seqveil state verify` lists all"
                )
            _name(part, target)
            return found
        finally:
            for each in (part, f"{part}-wal", f"{part}-shm", f"{part}-journal"):
                with suppress(OSError):
                    os.unlink(each)


def _copy(sql: sqlite3.Connection, name: str, part: str) -> None:
    try:
        make_private(part)
    except OSError as error:
        raise _unwritable(part, error.strerror) from None
    with closing(connect(part, PATIENCE)) as copy:
        try:
            sql.backup(copy)  # one step: a snapshot that writers need not wait for
            _without_epoch(copy)
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        except sqlite3.Error as error:
            if is_damage(error):
                raise damaged_file(name) from None
            raise _unwritable(part, "the disk is full or cannot be written") from None


def _without_epoch(copy: sqlite3.Connection) -> None:
    """Take the epoch out of a copy: each time it is put back it begins one of its own."""
    row, sums = copy.execute("SELECT mark FROM facts WHERE name = ?", (EPOCH,)).fetchone(), read_sums(copy)
    if row is None or sums is None:
        return
    left = dict(zip(schema.SUMS, sums, strict=True))
    copy.execute("BEGIN")
    copy.execute("DELETE FROM facts WHERE name = ?", (EPOCH,))
    schema.write_sums(copy, tuple((left | {"facts": left["facts"] ^ row[0]}).values()))
    copy.execute("COMMIT")


def _name(part: str, target: str) -> None:
    """Give the finished copy its name; what an earlier one left beside it would be taken for its own."""
    try:
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        for beside in ("-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(target + beside)
        try:
            os.link(part, target)  # unlike a renaming, it takes nobody's place
        except FileExistsError:
            raise _taken(target) from None
        except OSError:  # a file system without links
            if os.path.lexists(target):
                raise _taken(target) from None
            os.rename(part, target)
    except OSError as error:
        raise _unwritable(part, error.strerror) from None


def _taken(target: str) -> StoreError:
    return StoreError(
        f"{os.path.basename(target)}: is there already, and a copy writes over nothing; name a file that is not there"
    )


def _unwritable(part: str, why: str | None) -> StoreError:
    shown = os.path.basename(part).rsplit(".", 2)[0]
    return StoreError(f"{shown}: a copy cannot be written here ({why}); name another file, or free some space")


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
def reading(path: FilePath, setting: Terms | None = None) -> Iterator[Offline]:
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
        yield Offline(Records(sql, name, codec, schema.CHUNK, lambda: book.log), name, book.log)


def figures(row: Row) -> dict[str, float | int]:
    """A user's ledger by name, leakage in nats."""
    return {
        "events": row.events,
        "releases": row.releases,
        "leakage": float(larger_side(row.most, row.least)),
        "most": row.most,
        "least": row.least,
        "epsilon_spent": row.spent,
        "ldp": row.ldp,
    }
