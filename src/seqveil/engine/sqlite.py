"""The state file: SQLite in WAL mode, synced at every commit, with one writer and readers beside it.

Three plain tables. `users` has a row a user: the ledger in nats and the state. `releases` grows at its end alone, so
that a call writes few pages; a user's latest release is found from the user's row, and each earlier one from the next.
`facts` has what the file says of itself and the positions of sources. Every row has a CRC-32 of all that it says and of
where it stands. That a release is missing shows in the numbers of those around it, that anything else is in the fact
"sums". A user is found by two indexes, so that damage to one cannot make a known user look new, whose ledger
would begin at zero.

All of it is public but the column `sealed`, which is for what a mechanism must remember of raw symbols, encrypted under
the key of the state. No mechanism needs it yet, so it is empty.
"""

from __future__ import annotations

import marshal
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import User
from seqveil.engine import packing, store
from seqveil.engine.store import Damaged, Entry, Position, StoreBusy, Stored, StoreError, UserRow

FilePath = str | os.PathLike[str]
APPLICATION, VERSION = 0x5E91E11, 1
WAL_PAGES = 16_384  # 64 MB between checkpoints: a page that changes often is copied once
PATIENCE = 5.0  # seconds to wait for whoever opens or closes the file
TOGETHER = 500  # users that one statement asks for
WATCHED = 16  # times as large may a state with declared secrets be: computing it again takes a millisecond a release
EMPTY = (0, 0, 0.0, 0.0, 0.0, 0.0)  # the ledger of a new user: events, releases, spent, most, least, ldp
SALT, EPOCH, SUMS = "salt", "epoch", "sums"  # names of facts
POSITION = "position "  # before a source, in the name of the fact that has its position
BUSY = "another process has this state file open; wait for it to end, or use another file, whose ledger begins at zero"

TABLES = {
    # the name is text, or the hashed name of someone who was erased
    "users": "CREATE TABLE users (id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, hash INTEGER NOT NULL,"
    " events INTEGER NOT NULL, releases INTEGER NOT NULL, spent REAL NOT NULL, most REAL NOT NULL,"
    " least REAL NOT NULL, ldp REAL NOT NULL, state BLOB NOT NULL, sealed BLOB, checksum INTEGER NOT NULL,"
    " last INTEGER NOT NULL)",
    "users_hash": "CREATE INDEX users_hash ON users (hash)",
    "releases": "CREATE TABLE releases (id INTEGER PRIMARY KEY, previous INTEGER NOT NULL, user INTEGER NOT NULL,"
    " seq INTEGER NOT NULL, skipped INTEGER NOT NULL, model INTEGER NOT NULL, code INTEGER NOT NULL,"
    " epsilon REAL NOT NULL, time REAL, batch TEXT, checksum INTEGER NOT NULL)",
    "facts": "CREATE TABLE facts (name TEXT PRIMARY KEY, value NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
}
PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    f"wal_autocheckpoint={WAL_PAGES}",
    "cache_size=-131072",
    "cache_spill=OFF",  # nothing reaches the disk before its commit
    "cell_size_check=ON",  # damage is found early
    "trusted_schema=OFF",
)
LEDGER = "events = ?, releases = ?, spent = ?, most = ?, least = ?, ldp = ?, state = ?, checksum = ?"
RELEASE = (
    "INSERT INTO releases VALUES (?, coalesce(?, (SELECT last FROM users WHERE id = ?)), ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
CHAIN = (
    "WITH RECURSIVE chain AS (SELECT * FROM releases WHERE id = (SELECT last FROM users WHERE id = ?1) UNION ALL"
    " SELECT r.* FROM chain c JOIN releases r ON r.id = c.previous WHERE c.seq > ?2 AND c.previous < c.id)"
    " SELECT * FROM chain"
)


def checksum(plain: tuple[Any, ...], content: object = b"") -> int:
    """Of a row: of its plain values, each with its kind (`marshal` in its fixed version 2), and of its bytes.

    >>> checksum((1, "a")) == checksum((1.0, "a"))
    False
    """
    more = content if isinstance(content, bytes) else repr(content).encode()
    return crc32(more, crc32(marshal.dumps(plain, 2)))


def name_hash(name: str | bytes) -> int:
    """Of a user's name, 63 bits; what a second index finds the user by.

    >>> 0 <= name_hash("ann") < 2**63, name_hash("ann") == name_hash(b"ann")
    (True, False)
    """
    return int.from_bytes(blake2b(repr(name).encode(), digest_size=8).digest(), "little") >> 1


def checked(columns: Sequence[Any]) -> UserRow | None:
    """A row of `users` that is as it was written; else None."""
    user, name, hashed, *ledger, state, sealed, found, _ = columns
    if name_hash(name) != hashed or checksum((user, name, *ledger, sealed), state) != found:
        return None
    return UserRow(*[user, *ledger, state, isinstance(name, bytes)])


def damaged_file(name: str) -> StoreError:
    """What to say where it is not known whose records are damaged."""
    return StoreError(f"{name}: is damaged or no state file of seqveil; restore it from a backup")


def is_damage(error: Exception) -> bool:
    """Whether what SQLite says is about the content of the file."""
    # SQLITE_ERROR is said of statements that do not fit the tables, and all of ours do
    codes = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)
    return _code(error) in codes


def _code(error: Exception) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


@contextmanager
def disclosed(name: str) -> Iterator[None]:
    """What SQLite says, as one line that holds no data."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged_file(name) from None
        if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusy(f"{name}: {BUSY}") from None
        reason, remedy = {
            sqlite3.SQLITE_FULL: ("the disk is full", "free some space and try again"),
            sqlite3.SQLITE_IOERR: ("the disk cannot be written or read", "look at the disk and try again"),
            sqlite3.SQLITE_READONLY: ("it may not be written to", "check its permissions"),
            sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the path"),
        }.get(_code(error), (type(error).__name__, "check the file and its folder"))
        raise StoreError(f"{name}: {reason}, so nothing was written; {remedy}") from None


def connect(path: FilePath) -> sqlite3.Connection:
    """A connection that any thread may use, and whose transactions are ours to begin."""
    sql = sqlite3.connect(os.fspath(path), timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    sql.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return sql


def make_private(path: str) -> None:
    """Make a file that its owner alone may read, unless it is there.

    A file that is there is not touched: closing it here would drop the locks of a store this process has open.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def size_of(path: FilePath) -> int:
    """Bytes of a file; 0 where there is none."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def refuse_no_path(path: FilePath) -> None:
    """Refuse what SQLite would keep in memory, or take for an address: a ledger that ends with its process is none."""
    text = os.fspath(path)
    if text == ":memory:" or text.startswith("file:"):
        raise InputError(f"{text}: expected the path of a state file, not a database in memory or a URI; name a file")


def _refuse_other(sql: sqlite3.Connection, name: str) -> None:
    """Refuse what is no state file, one of another version, and one whose tables are not as they were made."""
    application, version = (sql.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version"))
    if application != APPLICATION:
        raise DataError(f"{name}: is not a state file of seqveil, or its head is damaged; name another file")
    if version != VERSION:
        raise DataError(
            f"{name}: is a state file of version {version}, and this seqveil reads version {VERSION}; use the seqveil "
            "that wrote it"
        )
    if dict(sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()) != TABLES:
        raise damaged_file(name)


@contextmanager
def reading(path: FilePath, hasher: Callable[[str], bytes] | None = None) -> Iterator[SqliteRecords]:
    """A snapshot of a state file that is there; nobody who writes waits for it."""
    name = os.path.basename(path)
    if not os.path.isfile(path):
        raise StoreError(f"{name}: cannot be opened (No such file or directory); check the path")
    with disclosed(name), closing(connect(path)) as sql:
        sql.execute("PRAGMA query_only=ON")
        sql.execute("BEGIN")
        _refuse_other(sql, name)
        yield SqliteRecords(sql, name, hasher)


class Sums(NamedTuple):
    """What the tables come to, so that a row that is gone is missed."""

    users: int = 0
    last_user: int = 0  # ids are never given twice
    commits: int = 0  # transactions that changed anything
    facts: int = 0  # the checksums of all other facts, each XOR the next


class SqliteRecords:
    """What stands in a state file, read over one connection and checked.

    Parameters:
        sql: the connection.
        name: of the file, for messages.
        hasher: of the names of those who were erased.
    """

    def __init__(self, sql: sqlite3.Connection, name: str, hasher: Callable[[str], bytes] | None = None) -> None:
        self.sql, self.name, self.hasher = sql, name, hasher

    def damaged(self, user: int, names: Sequence[User] = ()) -> Damaged:
        """What to say of a user whose records are not what was written."""
        return Damaged(
            f"{self.name}: the records of user number {user} are damaged, so nothing of this user is released; all "
            "others go on. `seqveil state verify` lists what is damaged; restore it from a backup",
            names,
        )

    def facts(self) -> tuple[dict[str, Any], Sums]:
        """All that the file says of itself, and what its tables come to, or that it is damaged."""
        facts, total = dict[str, Any](), 0
        for name, value, found in self.sql.execute("SELECT * FROM facts"):
            if checksum((name,), value) != found:
                raise damaged_file(self.name)
            facts[name] = value
            total ^= 0 if name == SUMS else found
        sums = str(facts.pop(SUMS, "")).split()
        if len(sums) != len(Sums._fields) or int(sums[-1]) != total:
            raise damaged_file(self.name)
        return facts, Sums(*map(int, sums))

    def find(self, names: Sequence[User]) -> list[UserRow | None]:
        """Where these users stand, also those of whom only the ledger is left; None for a new one."""
        found = self._look({str(name): str(name) for name in names})
        if self.hasher is not None and len(found) < len(names):
            found |= self._look({self.hasher(str(name)): str(name) for name in names if str(name) not in found})
        return [found.get(str(name)) for name in names]

    def _look(self, keys: Mapping[Any, str]) -> dict[str, UserRow]:
        """The rows of users by what the `name` column has for each, looked for by one index and then by the other."""
        found: dict[str, UserRow] = {}
        for at, column in ((1, "name"), (2, "hash")):
            left = [key for key, name in keys.items() if name not in found]
            wanted = {key if at == 1 else name_hash(key): key for key in left}
            for columns in self._asked(column, list(wanted)):
                key = wanted.get(columns[at])
                if key is not None:  # else a damaged index has found somebody else
                    row = checked(columns)
                    if row is None or columns[1] != key:
                        raise self.damaged(columns[0], [keys[key]])
                    found[keys[key]] = row
        return found

    def _asked(self, column: str, values: list[Any]) -> Iterator[tuple[Any, ...]]:
        for at in range(0, len(values), TOGETHER):
            part = values[at : at + TOGETHER]
            yield from self.sql.execute(f"SELECT * FROM users WHERE {column} IN ({', '.join('?' * len(part))})", part)

    def users(self) -> Iterator[tuple[int, str | bytes, UserRow | None]]:
        """Id, name and row of users in the order they came; None for a damaged row, bytes as name of who was erased."""
        for columns in self.sql.execute("SELECT * FROM users ORDER BY id"):
            yield columns[0], columns[1], checked(columns)

    def everyone(self) -> tuple[list[User], Ints, Floats]:
        """Name, counts and figures of every user who was not erased, in the order they came."""
        names: list[User] = []
        rows: list[UserRow] = []
        for user, name, row in self.users():
            if row is None:
                raise self.damaged(user, [str(name)])
            if not row.erased:
                names.append(str(name))
                rows.append(row)
        counts = np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2)
        return names, counts, np.array([row[3:7] for row in rows], np.float64).reshape(-1, 4)

    def releases(self, row: UserRow, since: int = 0) -> Iterator[Stored]:
        """The user's releases from `since` on; one with the code ERASED stands for all that were there before."""
        if since >= row.events:
            return
        try:
            chain = self.sql.execute(CHAIN, (row.id, since)).fetchall()
        except sqlite3.DatabaseError as error:
            raise self.damaged(row.id) if is_damage(error) else error from None
        kept, follows = list[Stored](), row.events  # from the latest one back
        for _, _, _, *columns, found in chain:
            if checksum((row.id, *columns)) != found or columns[0] != follows - 1:
                raise self.damaged(row.id)
            kept.append(Stored.of(*columns))
            follows = kept[-1].seq - kept[-1].skipped
        if follows > since:
            raise self.damaged(row.id)  # one before is missing
        yield from (stored for stored in reversed(kept) if stored.seq >= since)


class Lock:
    """The file beside a state file (`FILE-lock`) that its one writer holds, and that says how much was committed.

    What SQLite finds damaged at the end of the -wal it takes for what a power cut left, and goes on before it: the
    transactions behind it are gone without a word, and with them what they disclosed. So the number of commits is
    written here after each one. It is not synced: a kill leaves it as it is, and after a power cut it can only be
    behind. A store that is closed properly has nothing in its -wal, and takes the file away.
    """

    def __init__(self, path: str, name: str) -> None:
        import fcntl  # which Windows has not: streams in memory need none of this

        self._path = f"{path}-lock"
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"{name}: cannot be opened ({error.strerror}); check the path") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a file that was taken away meanwhile is a lock on nothing
            held = os.stat(self._path).st_ino == os.fstat(self._file).st_ino
        except OSError:
            held = False
        if not held:
            os.close(self._file)
            raise StoreBusy(f"{name}: {BUSY}")
        number, _, checksum = os.pread(self._file, 64, 0).partition(b" ")
        self.commits = int(number) if number and b"%08x\n" % crc32(number) == checksum else 0
        if not size_of(path) and (self.commits or size_of(f"{path}-wal")):
            self.close(False)
            raise StoreError(
                f"{name}: is missing or empty, and what lies beside it ({name}-wal or {name}-lock) says that it was in "
                "use; put it back, or move those away to begin a ledger at zero"
            )

    def note(self, commits: int) -> None:
        """Write down that so many transactions are committed."""
        number = b"%020d" % commits
        with suppress(OSError):  # it only ever says less than there is
            os.pwrite(self._file, b"%s %08x\n" % (number, crc32(number)), 0)

    def close(self, done: bool) -> None:
        """Let others have the file; `done` where nothing is left in the -wal."""
        if done:
            with suppress(OSError):
                os.unlink(self._path)  # before it is let go, so that nobody else's is taken away
        os.close(self._file)


class SqliteStore(SqliteRecords):
    """One open state file; every method but the readers runs inside `transaction`.

    Parameters:
        path: the file.
        must_exist: refuse a file that is not there, or empty, rather than begin one.
        accept: go on with a file that lacks transactions.
    """

    durable = keeps_releases = True

    def __init__(self, path: FilePath, must_exist: bool = False, accept: bool = False) -> None:
        self.path, self.name, self.hasher = os.fspath(path), os.path.basename(path), None
        self.tracked = False  # whether secrets are declared
        self.begun = False  # whether this is the file's first use
        self.sums = Sums()
        refuse_no_path(path)
        missing = DataError(
            f"{self.name}: expected a state file, and there is none or it is empty; check the path, or restore it from "
            "a backup: the ledger of a new one starts at zero"
        )
        if must_exist and not size_of(path):
            raise missing
        if size_of(path) == 1:
            raise damaged_file(self.name)  # SQLite takes one byte for an empty file, and would begin anew
        self._lock = Lock(self.path, self.name)
        with ExitStack() as failing, disclosed(self.name):
            failing.callback(lambda: self._lock.close(not self._lock.commits))
            make_private(self.path)  # what was drawn but never committed may lie in it
            self._place = self._placed()
            self.sql = failing.enter_context(closing(connect(self.path)))
            self._prepare()
            self._check_commits(accept)
            if must_exist and self.begun:
                raise missing
            failing.pop_all()

    def _prepare(self) -> None:
        """Make the tables of a new file; see that those of an old one come to what they should."""
        sql = self.sql
        for pragma in PRAGMAS:
            sql.execute(f"PRAGMA {pragma}").fetchall()
        heads = [sql.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version")]
        if not any(heads) and not sql.execute("SELECT 1 FROM sqlite_master").fetchall():
            sql.execute("BEGIN IMMEDIATE")
            for statement in TABLES.values():
                sql.execute(statement)
            self._write_sums()
            sql.execute(f"PRAGMA application_id={APPLICATION}")
            sql.execute(f"PRAGMA user_version={VERSION}")
            sql.execute("COMMIT")
        _refuse_other(sql, self.name)
        _, self.sums = self.facts()
        if (sql.execute("SELECT max(id) FROM users").fetchone()[0] or 0) > self.sums.last_user:
            raise damaged_file(self.name)
        # tables alone, as a power cut leaves them in the first moment, are no ledger
        self.begun = not self.sums.commits

    def _check_commits(self, accept: bool) -> None:
        lost = self._lock.commits - self.sums.commits
        if lost > 0 and not accept:
            raise StoreError(
                f"{self.name}: {lost} committed transactions are missing, for the file or its -wal was damaged or an "
                "older copy put in its place; what they disclosed is not in this ledger. Put the newest file back, or "
                "go on without them: `seqveil state adopt`"
            )

    def _write_sums(self) -> None:
        text = " ".join(map(str, self.sums))
        self.sql.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (SUMS, text, checksum((SUMS,), text)))

    def _placed(self) -> str:
        """Which file the path names."""
        try:
            found = os.stat(self.path)
        except OSError:
            return ""
        return f" at {found.st_dev} {found.st_ino}"

    def check_place(self) -> None:
        """Refuse where the path names another file by now, or none: what was released would be in no file to come."""
        if self._placed() != self._place:
            raise StoreError(
                f"{self.name}: the state file was taken away or another one put in its place while it was in use, so "
                "nothing is released; stop, put the right file there, and open it again"
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block is committed and on the disk when it ends, or nothing of it."""
        self.check_place()
        with disclosed(self.name):
            self.sql.execute("BEGIN IMMEDIATE")
            before, changes = self.sums, self.sql.total_changes
            try:
                yield
                if self.sql.total_changes != changes:
                    self.sums = self.sums._replace(commits=before.commits + 1)
                    self._write_sums()
                self.sql.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.sql.execute("ROLLBACK")
                self.sums = before
                raise
            self._lock.note(self.sums.commits)

    @contextmanager
    def snapshot(self) -> Iterator[SqliteRecords]:
        """What is committed now, for a reader on whatever thread; nobody waits for it."""
        self.check_place()
        with reading(self.path, self.hasher) as records:
            yield records

    def close(self) -> None:
        """Copy the -wal into the file and close it; others may then open it."""
        done = False
        with suppress(sqlite3.Error):
            done = not self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        self.sql.close()
        self._lock.close(done)

    def shrink(self) -> None:
        """Write the file anew without what was deleted from it, also in its -wal; outside a transaction."""
        with disclosed(self.name):
            try:
                self.sql.execute("VACUUM")
                busy = self.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.Error as error:
                if is_damage(error):
                    raise
                busy = True
        if busy:
            raise StoreError(
                f"{self.name}: it is done, but the file could not be written anew (its disk is full, or somebody "
                "reads it), so traces may be left in it; see to that, and do it again"
            )

    # users and releases

    @property
    def largest(self) -> float:
        """Bytes of a state that is kept as it is; a larger one is computed from the releases again."""
        return packing.SMALL * (WATCHED if self.tracked else 1)

    def add(self, names: Sequence[User]) -> list[int]:
        """Ids for new users, one after another."""
        ids = range(self.sums.last_user + 1, self.sums.last_user + 1 + len(names))
        rows = [
            (user, name, name_hash(name), *EMPTY, b"", checksum((user, name, *EMPTY, None)), 0)
            for user, name in zip(ids, map(str, names), strict=True)
        ]
        self.sql.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, ?)", rows)
        self.sums = self.sums._replace(users=self.sums.users + len(ids), last_user=ids.stop - 1)
        return list(ids)

    def name_again(self, row: UserRow, name: User | bytes) -> None:
        """Have a user's row say this, under this name; someone who was erased has come back, or is being erased."""
        known = name if isinstance(name, bytes) else str(name)
        update = f"UPDATE users SET name = ?, hash = ?, {LEDGER}, sealed = NULL WHERE id = ?"
        self.sql.execute(update, (known, name_hash(known), *_ledger(known, *row[:8])))

    def append(self, entry: Entry) -> None:
        """Write the releases, and the rows of the users they are of."""
        latest = self.link(entry.columns)
        figures = (entry.figures + 0.0).tolist()  # SQLite knows no negative zero
        users = zip(entry.names, entry.ids.tolist(), entry.counts.tolist(), figures, strict=True)
        ledgers = [
            (latest.get(user), *_ledger(str(name), user, *counts, *own, entry.state(k)))
            for k, (name, user, counts, own) in enumerate(users)
        ]
        update = f"UPDATE users SET last = coalesce(?, last), {LEDGER} WHERE id = ?"
        if self.sql.executemany(update, ledgers).rowcount != len(ledgers):
            raise damaged_file(self.name)

    def link(self, releases: Iterable[tuple[Any, ...]]) -> dict[int, int]:
        """Write releases behind all others, each with the place of the one of the same user before it; the places of
        the users' latest ones."""
        (end,) = self.sql.execute("SELECT coalesce(max(id), 0) FROM releases").fetchone()
        rows, latest = [], dict[int, int]()
        for place, columns in enumerate(releases, end + 1):
            user = columns[0]
            rows.append((place, latest.get(user), user, *columns, checksum(columns)))
            latest[user] = place
        self.sql.executemany(RELEASE, rows)
        return latest

    # facts, positions, randomness

    def fact(self, name: str) -> Any:
        """What the file says of itself under this name."""
        with disclosed(self.name):
            row = self.sql.execute("SELECT value, checksum FROM facts WHERE name = ?", (name,)).fetchone()
        if row is not None and checksum((name,), row[0]) != row[1]:
            raise damaged_file(self.name)
        return None if row is None else row[0]

    def set_fact(self, name: str, value: Position | None) -> None:
        """Have the file say this of itself, or nothing; the sum of all keeps up."""
        row = self.sql.execute("SELECT checksum FROM facts WHERE name = ?", (name,)).fetchone()
        total = self.sums.facts ^ (0 if row is None else int(row[0]))
        if value is None:
            self.sql.execute("DELETE FROM facts WHERE name = ?", (name,))
        else:
            own = checksum((name,), value)
            total ^= own
            self.sql.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (name, value, own))
        self.sums = self.sums._replace(facts=total)

    def position(self, source: str) -> Position | None:
        """What was last kept as the position of this source."""
        return self.fact(POSITION + source)

    def set_positions(self, positions: Mapping[str, Position]) -> None:
        """Keep positions beside the releases, in the same transaction."""
        for source, position in positions.items():
            self.set_fact(POSITION + source, position)

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
            self.set_fact(SALT, os.urandom(store.SALT_BYTES).hex())
        if not (self.fact(EPOCH) or "").endswith(self._place):
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Never again draw from the randomness that this file, or one it was copied from, has drawn from so far."""
        self.set_fact(EPOCH, os.urandom(store.SALT_BYTES).hex() + self._place)


def _ledger(name: str | bytes, user: int, *ledger: Any) -> tuple[Any, ...]:
    """The values of LEDGER, and whose they are; they end with the state."""
    *figures, state = ledger
    return (*figures, state, checksum((user, name, *figures, None), state), user)
