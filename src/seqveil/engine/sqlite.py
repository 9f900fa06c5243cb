"""The state file: SQLite in WAL mode, synced at every commit, with one writer and readers beside it.

Three plain tables. `users` has a row a user: the ledger in nats, the state, and what a mechanism remembers of raw
symbols, sealed. `releases` grows at its end alone, so that a call writes few pages; a user's latest release is found
from the user's row, one in a thousand by an index, and each earlier one from the next. `facts` has what the file says
of itself and the positions of sources. Every row has a checksum. A user is looked for by two indexes, so that damage to
one cannot make a known user look new, whose ledger would begin at zero.
"""

from __future__ import annotations

import marshal
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.kernel import Ints
from seqveil.engine.store import NEW, SALT_BYTES, Damaged, Entry, Stored, StoreError, UserRow

if TYPE_CHECKING:
    from seqveil.engine.packing import Sealing

FilePath = str | os.PathLike[str]
Hasher = Callable[[str], bytes]
APPLICATION, VERSION = 0x5E91E11, 1
WAL_PAGES = 16_384  # 64 MB between checkpoints: a page that changes often is copied once
NOTE_BYTES = 24  # of FILE-lock
PATIENCE = 5.0  # seconds to wait for whoever opens or closes the file
SALT, EPOCH, SETTING, COUNT = "salt", "epoch", "setting", "count"  # names of facts

TABLES = {
    # the name is text, or the hashed name of someone who was erased
    "users": "CREATE TABLE users (id INTEGER PRIMARY KEY, name NOT NULL UNIQUE, hash BLOB NOT NULL UNIQUE,"
    " last INTEGER NOT NULL, events INTEGER NOT NULL, releases INTEGER NOT NULL, spent REAL NOT NULL,"
    " most REAL NOT NULL, least REAL NOT NULL, ldp REAL NOT NULL, state BLOB NOT NULL, sealed BLOB,"
    " checksum INTEGER NOT NULL)",
    "releases": "CREATE TABLE releases (id INTEGER PRIMARY KEY, previous INTEGER NOT NULL, user INTEGER NOT NULL,"
    " seq INTEGER NOT NULL, skipped INTEGER NOT NULL, model INTEGER NOT NULL, code INTEGER NOT NULL,"
    " epsilon REAL NOT NULL, time REAL, batch TEXT, checksum INTEGER NOT NULL)",
    "milestones": "CREATE INDEX milestones ON releases (user, seq) WHERE seq % 1000 = 999",
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
    "secure_delete=ON",  # also where a kill comes between an erasure and the writing anew
)
CHECKPOINT = "PRAGMA wal_checkpoint(TRUNCATE)"  # says 0 where all of the -wal is in the file
WRITTEN = "PRAGMA data_version"  # is another one once somebody else has written
NEWEST = "SELECT max(ifnull((SELECT max(id) FROM releases), 0), ifnull((SELECT value FROM facts WHERE name = ?), 0))"
NEW_USER = "INSERT INTO users VALUES (?, ?, ?, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, x'', NULL, 0)"
LEDGER = (
    "UPDATE users SET last = coalesce(?, last), events = ?, releases = ?, spent = ?, most = ?, least = ?, ldp = ?,"
    " state = ?, sealed = ?, checksum = ? WHERE id = ?"
)
RELEASE = (
    "INSERT INTO releases VALUES (?, coalesce(?, (SELECT last FROM users WHERE id = ?)), ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# back from the first milestone behind what is asked for, or from the user's latest release
CHAIN = (
    "WITH RECURSIVE chain AS (SELECT * FROM releases WHERE id = coalesce((SELECT id FROM releases WHERE user = ?1"
    " AND seq >= ?3 AND seq % 1000 = 999 ORDER BY seq LIMIT 1), (SELECT last FROM users WHERE id = ?1)) UNION ALL"
    " SELECT r.* FROM chain c JOIN releases r ON r.id = c.previous WHERE c.seq > ?2 AND c.previous < c.id)"
    " SELECT * FROM chain"
)
# What is quick to see of an older page that was put back, and of pages in each other's place; `verify` looks at all:
# whose row does not name the user's newest release, among the latest ones of the file,
STALE = (
    "SELECT 1 FROM (SELECT user, max(id) AS newest FROM (SELECT id, user FROM releases ORDER BY id DESC LIMIT 10000)"
    " GROUP BY user) LEFT JOIN users ON users.id = user WHERE last IS NOT newest"
)
# and whom neither index finds, among the latest users.
LOST = (
    "SELECT 1 FROM (SELECT id, name, hash FROM users ORDER BY id DESC LIMIT 10000) AS one"
    " WHERE NOT EXISTS (SELECT 1 FROM users WHERE name = one.name AND +id = one.id)"
    " AND NOT EXISTS (SELECT 1 FROM users WHERE hash = one.hash AND +id = one.id)"
)
# SQLITE_ERROR is said of statements that do not fit the tables, and all of ours do
DAMAGE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)


def checksum(row: Sequence[Any]) -> int:
    """Of all that a row says, each value with its kind (`marshal` in its fixed version 2)."""
    return crc32(marshal.dumps(tuple(row), 2))


def name_hash(name: str | bytes) -> bytes:
    """Of a user's name, so long that nobody finds two names with the same; what a second index finds the user by."""
    return blake2b(repr(name).encode(), digest_size=16).digest()


def checked(columns: Sequence[Any]) -> UserRow | None:
    """A row of `users` that is as it was written; else None."""
    user, name, hashed, _, *ledger, found = columns
    if name_hash(name) != hashed or checksum((user, name, *ledger)) != found:
        return None
    return UserRow(*[user, *ledger, isinstance(name, bytes)])


def damaged_file(name: str) -> StoreError:
    """What to say where it is not known whose records are damaged."""
    return StoreError(f"{name}: is damaged or no state file of seqveil; restore it from a backup")


def is_damage(error: Exception) -> bool:
    """Whether what SQLite says is about the content of the file."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    return code in DAMAGE or isinstance(error, UnicodeDecodeError)  # of a message that quotes a damaged table


@contextmanager
def disclosed(name: str) -> Iterator[None]:
    """What SQLite says, as one line that holds no data."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if is_damage(error):
            raise damaged_file(name) from None
        raise StoreError(
            f"{name}: nothing was written ({error}); look at the disk, the path and its permissions, and try again"
        ) from None


def connect(path: FilePath, look: bool = False) -> sqlite3.Connection:
    """A connection that any thread may use, and whose transactions are ours to begin; to a file, whatever its name. One
    that is to `look` leaves the -wal as it is, even if it is the last one to close."""
    real = Path(os.path.realpath(path))
    mode = "ro" if look and size_of(f"{real}-wal") else "rwc"  # "ro" would leave files beside a file that has none
    uri = f"{real.as_uri()}?mode={mode}"
    sql = sqlite3.connect(uri, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
    sql.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return sql


def make_private(path: str) -> None:
    """Make a file that its owner alone may read; one that is there is refused, for closing it would drop its locks."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def size_of(path: FilePath) -> int:
    """Bytes of a file; 0 where there is none."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def _tables(sql: sqlite3.Connection, name: str) -> dict[str, str]:
    """The tables of a state file; none where nothing was ever written. Refuses what is no state file, and
    one whose tables are not as they were made."""
    application, version = (sql.execute(f"PRAGMA {each}").fetchone()[0] for each in ("application_id", "user_version"))
    tables = dict(sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    if not (application or version or tables):
        return tables
    if (application, version) != (APPLICATION, VERSION):
        raise DataError(f"{name}: is not a state file of this seqveil, or its head is damaged; name another file")
    if tables != TABLES:
        raise damaged_file(name)
    return tables


@contextmanager
def reading(path: FilePath, hasher: Hasher | None = None) -> Iterator[SqliteRecords]:
    """A snapshot of a state file that is there; nobody who writes waits for it."""
    name = os.path.basename(path)
    if not os.path.isfile(path):
        raise StoreError(f"{name}: cannot be opened (No such file or directory); check the path")
    with disclosed(name), closing(connect(path, look=True)) as sql:
        records = SqliteRecords(sql, name, hasher)
        with suppress(OSError), open(f"{os.path.realpath(path)}-lock", "rb") as file:
            records.noted = file.read(NOTE_BYTES)  # before the snapshot, which has all of it
        sql.execute("PRAGMA query_only=ON")
        sql.execute("BEGIN")
        if not _tables(sql, name):
            raise damaged_file(name)
        yield records


def note_of(newest: int, salt: Any) -> bytes:
    """What FILE-lock says, also after a kill: the number of what was committed last, and a checksum with the salt."""
    number = newest.to_bytes(8, "big")
    return number + blake2b(number + repr(salt).encode(), digest_size=NOTE_BYTES - 8).digest()


class SqliteRecords:
    """What stands in a state file, read over one connection and checked; `hasher` is of the names of who was erased."""

    def __init__(self, sql: sqlite3.Connection, name: str, hasher: Hasher | None = None) -> None:
        self.sql, self.name, self.hasher = sql, name, hasher
        self.noted = b""  # what FILE-lock says was committed; nothing, or zeros, where it does not know

    def damaged(self, user: int, names: Sequence[str] = ()) -> Damaged:
        """What to say of a user whose records are not what was written."""
        return Damaged(
            f"{self.name}: the records of user number {user} are damaged, so nothing of this user is released; all "
            "others go on. `seqveil state verify` lists what is damaged; restore it from a backup",
            names,
        )

    def facts(self) -> dict[str, Any]:
        """All that the file says of itself, or that it is damaged."""
        rows = self.sql.execute("SELECT * FROM facts").fetchall()
        sound = self.sql.execute("PRAGMA quick_check(facts)").fetchall() == [("ok",)]  # else one may have vanished
        facts = {name: value for name, value, own in rows if own == checksum((name, value))}
        if not sound or len(facts) < len(rows) or SETTING not in facts:
            raise damaged_file(self.name)
        return facts

    def newest(self) -> int:
        """The number of what was committed last, a release or another change; none is used again."""
        return int(self.sql.execute(NEWEST, (COUNT,)).fetchone()[0])

    def lacks(self, facts: Mapping[str, Any]) -> str:
        """What is wrong as FILE-lock knows a file of these facts; nothing where all that was committed is there."""
        number = int.from_bytes(self.noted[:8], "big")
        if facts and any(self.noted) and self.noted != note_of(number, facts.get(SALT)):
            return f"is not the file that {self.name}-lock is of, or one of the two is damaged"
        missing = number - (self.newest() if facts else 0)
        what = f"the last {missing} changes that were" if facts else "all that was"
        return f"lacks {what} committed, as {self.name}-lock knows" if missing > 0 else ""

    def find(self, names: Sequence[str]) -> list[UserRow | None]:
        """Where these users stand, also those of whom only the ledger is left; None for a new one."""
        return [self._find(name, name) or (self.hasher and self._find(name, self.hasher(name))) for name in names]

    def _find(self, name: str, key: str | bytes) -> UserRow | None:
        """The row of a user that stands under this key, by either index."""
        found = None
        for columns in self.sql.execute("SELECT * FROM users WHERE name = ? OR hash = ?", (key, name_hash(key))):
            row = checked(columns)
            if row is None:
                raise self.damaged(columns[0], [name])
            if columns[1] == key:  # else a damaged index has found somebody else
                found = row
        return found

    def users(self) -> Iterator[tuple[int, str | bytes, UserRow | None]]:
        """Id, name and row of users in the order they came; None for a damaged row, bytes as name of who was erased."""
        for columns in self.sql.execute("SELECT * FROM users ORDER BY id"):
            yield columns[0], columns[1], checked(columns)

    def whole(self) -> None:
        """Refuse a file whose tables are damaged, in which somebody may be missing unseen."""
        if self.sql.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise damaged_file(self.name)

    def releases(self, row: UserRow, since: int = 0, until: int | None = None) -> Iterator[Stored]:
        """The user's releases from `since` on, those before `until` among them."""
        if since >= row.events or row.erased:
            return
        last = row.events if until is None else until - 1
        try:
            chain = self.sql.execute(CHAIN, (row.id, since, last)).fetchall()
        except sqlite3.DatabaseError as error:
            raise self.damaged(row.id) if is_damage(error) else error from None
        kept, follows = list[Stored](), row.events  # from the latest one back
        if chain and last <= chain[0][3] < row.events:  # or from a milestone
            follows = chain[0][3] + 1
        for _, _, user, *columns, found in chain:
            if checksum((user, *columns)) != found or (user, columns[0]) != (row.id, follows - 1):
                raise self.damaged(row.id)
            kept.append(Stored.of(*columns))
            follows = kept[-1].seq - kept[-1].skipped
        if follows > since:
            raise self.damaged(row.id)  # one before is missing
        yield from (stored for stored in reversed(kept) if stored.seq >= since)


def _locked(path: str, name: str) -> int:
    """A handle of the file beside a state file (`FILE-lock`) that its one writer holds; no kill leaves it held."""
    import fcntl  # which Windows has not: streams in memory need none of this

    held = False
    try:
        file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"{name}-lock: cannot be opened ({error.strerror}); check the path") from None
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.stat(f"{path}-lock").st_ino == os.fstat(file).st_ino  # else it was taken away: a lock on nothing
    if not held:
        os.close(file)
        raise StoreError(
            f"{name}: another process has this state file open; wait for it to end, or use another file, whose ledger "
            "begins at zero"
        )
    return file


class SqliteStore(SqliteRecords):
    """One open state file; every method but the readers runs inside `transaction`.

    Nothing is written before the first transaction, in which `begin` makes the tables of a new file (`begun`), unless
    the file `must_exist`.
    """

    durable = keeps_releases = True
    sealing: Sealing | None = None
    _salt: str | None = None

    def __init__(self, path: FilePath, must_exist: bool = False) -> None:
        path = os.path.realpath(path)  # what lies beside the file has one name, by whichever link it is opened
        self.path, self.name, self.hasher = path, os.path.basename(path), None
        missing = DataError(
            f"{self.name}: expected a state file, and there is none or it is empty; check the path, or restore it from "
            "a backup: the ledger of a new one starts at zero"
        )
        if must_exist and not size_of(path):
            raise missing
        if size_of(path) == 1:
            raise damaged_file(self.name)  # SQLite takes one byte for an empty file, and would begin anew
        if not size_of(path) and size_of(f"{path}-wal"):
            raise StoreError(
                f"{self.name}: is missing or empty, and {self.name}-wal beside it says that it was in use; put it "
                "back, or move that away to begin a ledger at zero"
            )
        if os.path.exists(path) and not os.access(path, os.W_OK):  # before anything is written beside it
            raise StoreError(f"{self.name}: it may not be written to, so nothing was written; check its permissions")
        if os.path.exists(path) and os.stat(path).st_nlink > 1:
            raise StoreError(
                f"{self.name}: has a second name (a hard link), by which another process could draw what this one "
                "draws; remove that name, or make a copy by `seqveil state backup`"
            )
        self._lock, self._owner = _locked(path, self.name), os.getpid()
        self.noted = os.pread(self._lock, NOTE_BYTES, 0)
        with ExitStack() as failing, disclosed(self.name):
            failing.callback(lambda: self._unlock(needed=any(self.noted)))
            with suppress(FileExistsError):
                make_private(path)  # what was drawn but never committed may lie in it
            self._place = self._placed()
            with closing(connect(path, look=True)) as self.sql:
                self._look()
            if must_exist and self.begun:
                raise missing
            self.sql = failing.enter_context(closing(connect(path)))
            for pragma in PRAGMAS:
                self.sql.execute(f"PRAGMA {pragma}").fetchall()
            self._written = self.sql.execute(WRITTEN).fetchone()
            failing.pop_all()

    def _look(self) -> None:
        """Refuse a file that is damaged or lacks what was committed, and leave it as it is."""
        self.begun = not _tables(self.sql, self.name)
        facts = {} if self.begun else self.facts()
        if lacks := self.lacks(facts):
            raise StoreError(
                f"{self.name}: {lacks}: its -wal is damaged or missing, or it is an older copy. Put back what was "
                "there, or move that lock away and go on with a ledger that lacks what was disclosed since"
            )
        if facts and any(self.sql.execute(each).fetchone() is not None for each in (STALE, LOST)):
            raise damaged_file(self.name)
        self._newest = self.newest() if facts else 0

    def begin(self) -> None:
        """Make the tables of a new file."""
        for statement in (*TABLES.values(), f"PRAGMA application_id={APPLICATION}", f"PRAGMA user_version={VERSION}"):
            self.sql.execute(statement)

    def _placed(self) -> str:
        """Which file the path names."""
        with suppress(OSError):
            found = os.stat(self.path)
            return f" at {found.st_dev} {found.st_ino}"
        return ""

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
            try:
                if self.sql.execute(WRITTEN).fetchone() != self._written:
                    raise StoreError(
                        f"{self.name}: another process has written to it while it was in use, so nothing is released; "
                        "stop all that use it, and check it by `seqveil state verify`"
                    )
                changes = self.sql.total_changes
                yield
                newest = self.newest()
                if newest <= self._newest and self.sql.total_changes > changes:  # no release, but another change
                    newest = self._newest + 1
                    self.set_facts({COUNT: newest})
                self._salt = self._salt or self.fact(SALT)
                self.sql.execute("COMMIT")
                self._newest = newest
                with suppress(OSError):  # after the commit: never more than is on the disk by then
                    os.pwrite(self._lock, note_of(newest, self._salt), 0)
            except BaseException:
                with suppress(sqlite3.Error):
                    self.sql.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file, and have SQLite copy the -wal into it; others may then open it."""
        self.sql.close()
        self._unlock(needed=size_of(f"{self.path}-wal") > 0)  # as where somebody reads, or the disk is full

    def _unlock(self, needed: bool) -> None:
        if self._owner == os.getpid() and not needed:  # a child of a fork must not take it away
            with suppress(OSError):
                os.unlink(f"{self.path}-lock")  # before it is let go, so that nobody else's is taken away
        os.close(self._lock)

    def rewritten(self) -> None:
        """Write the file anew, outside a transaction: nothing of who was erased is left in it, nor in its -wal."""
        done = False
        with suppress(sqlite3.Error):
            self.sql.execute("VACUUM")
            done = not self.sql.execute(CHECKPOINT).fetchone()[0]
        if not done:
            raise StoreError(
                f"{self.name}: it is done, but the file could not be written anew (its disk is full, or somebody "
                "reads it), so traces may be left in it; see to that, and do it again"
            )

    def append(self, entry: Entry) -> Ints:
        """Write the releases, and the rows of the users they are of, those of new ones behind all others."""
        names, ids = entry.names, entry.ids.copy()
        new = np.flatnonzero(ids == NEW)
        if new.size:
            (last,) = self.sql.execute("SELECT coalesce(max(id), 0) FROM users").fetchone()
            ids[new] = np.arange(last + 1, last + 1 + new.size)
            self.sql.executemany(NEW_USER, [(int(ids[k]), names[k], name_hash(names[k])) for k in new.tolist()])
        releases, latest = [], dict[int, int]()  # each with the place of the one of the same user before it
        for place, columns in enumerate(entry.columns(ids), self.newest() + 1):
            user = columns[0]
            releases.append((place, latest.get(user), user, *columns, checksum(columns)))
            latest[user] = place
        self.sql.executemany(RELEASE, releases)
        rows = [
            (latest.get(user), *row, checksum((user, name, *row)), user)
            for user, name, row in zip(ids.tolist(), names, entry.rows, strict=True)
        ]
        if self.sql.executemany(LEDGER, rows).rowcount != len(rows):
            raise damaged_file(self.name)
        return ids

    def forget(self, row: UserRow, hashed: bytes) -> int:
        """Keep nothing of a user but the ledger, under a hash of the name; how many releases were there."""
        ledger = *row[1:7], b"", None
        self.sql.execute("UPDATE users SET name = ?, hash = ? WHERE id = ?", (hashed, name_hash(hashed), row.id))
        self.sql.execute(LEDGER, (0, *ledger, checksum((row.id, hashed, *ledger)), row.id))
        return self.sql.execute("DELETE FROM releases WHERE user = ?", (row.id,)).rowcount

    def fact(self, name: str) -> Any:
        """What the file says of itself under this name."""
        with disclosed(self.name):
            row = self.sql.execute("SELECT value, checksum FROM facts WHERE name = ?", (name,)).fetchone()
        if row is not None and row[1] != checksum((name, row[0])):
            raise damaged_file(self.name)
        return None if row is None else row[0]

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Have the file say this of itself, and no longer what is None."""
        self.sql.executemany("DELETE FROM facts WHERE name = ?", [(name,) for name in facts])
        kept = [(*fact, checksum(fact)) for fact in facts.items() if fact[1] is not None]
        self.sql.executemany("INSERT INTO facts VALUES (?, ?, ?)", kept)

    @property
    def salt(self) -> bytes:
        """Of this file and its present epoch alone."""
        return f"{self.fact(SALT)} {self.fact(EPOCH)}".encode()

    def settle_epoch(self) -> None:
        """Go on with the epoch of the file, unless there is none or it was begun in another place: then this is a copy,
        and the file that it was taken from may have drawn since."""
        if self.fact(SALT) is None:
            self.set_facts({SALT: os.urandom(SALT_BYTES).hex()})
        if not (self.fact(EPOCH) or "").endswith(self._place):
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Never again draw from the randomness that this file, or one it was copied from, has drawn from so far."""
        self.set_facts({EPOCH: os.urandom(SALT_BYTES).hex() + self._place})
