"""What an operator does with a state file: open it, check it, copy it, erase people from it, go on with an older one.

Whoever is erased is also noted in a list beside the file (`FILE-erased`), by a keyed hash of the name: a copy from
before that is put back erases them again when it is opened.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, takewhile
from typing import Any
from zlib import crc32

from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import key_file, key_mark
from seqveil.engine import packing, sqlite
from seqveil.engine.sealing import Sealing
from seqveil.engine.sqlite import SALT, FilePath, Hasher, SqliteRecords, SqliteStore, checksum, is_damage, reading
from seqveil.engine.store import ERASED, LATEST, NUMBERS, POSITION, NoSuchUser, StoreError, UserRow
from seqveil.engine.terms import Terms, refuse_other

SPENDS = "a new file, whose ledger begins at zero: what was disclosed before would no longer count against any budget"
MODEL = "model "  # before a number, in the name of the fact that has a model
KEY_MARK = "key"  # the fact that tells the key of the file from others
TRACES = "traces"  # the fact that says that somebody was erased and the file is yet to be written anew
GONE = "erased"  # the fact that has the last line of the list of erasures that was followed
HASH = 16  # bytes of a hashed name; the name of a user is text, so none can be one
MOST = 1000  # problems that are named


# whose file it is


def opened(path: FilePath, setting: Terms, private: bool, key: bytes | None, must_exist: bool) -> SqliteStore:
    """The store of a state file, opened or made; refused where it is of another model, policy or key."""
    file = SqliteStore(path, must_exist)
    try:
        with file.transaction():
            _agree(file, setting, private, key)
            file.settle_epoch()
            follow_list(file, key)
            if key is not None:
                file.sealing = Sealing(key, str(file.fact(SALT)).encode())
        with suppress(StoreError):  # a disk that is full now is no reason to stop
            tidy(file)
        return file
    except BaseException:
        file.close()
        raise


def _agree(file: SqliteStore, setting: Terms, private: bool, key: bytes | None) -> None:
    """Write down what the file is for, or refuse to use it for something else."""
    known = file.fact("setting")
    if known is None:
        if not file.begun:
            raise DataError(f"{file.name}: does not say what it is for; it is damaged, restore it from a backup")
        facts = {"setting": setting.signature, "private": "yes" if private else "no", "begun": repr(time.time())}
        mark = None if key is None else key_mark(key)
        file.set_facts(facts | {f"{MODEL}0": setting.model.to_bytes(), KEY_MARK: mark})
        return
    refuse_other(json.loads(known), json.loads(setting.signature), f"{file.name}:", SPENDS)
    if file.fact("private") == "yes" and not private:
        raise InputError(f"{file.name}: holds private releases, so a seed cannot go on with it; leave it out")
    if private:
        _check_key(file, key)


def _check_key(store: SqliteStore, key: bytes | None) -> None:
    """Refuse another key than the file's: its draws would differ, and its hash of a name would be nobody's."""
    marked, mark = store.fact(KEY_MARK), None if key is None else key_mark(key)
    if marked is None and mark is not None:
        raise InputError(f"{store.name}: was begun without a key; leave it out")
    if marked != mark:
        given = "no key is given" if key is None else "this is another one"
        raise InputError(f"{store.name}: was drawn with the key that has the mark {marked}, and {given}; pass that key")


def facts_of(path: FilePath) -> dict[str, Any]:
    """What a state file says of itself: setting, models, mark of the key; nothing where there is no such file."""
    try:
        with reading(path) as records:
            return records.facts()
    except (StoreError, DataError):  # none of ours, about which opening it will say more
        return {}


def key_for(state: FilePath, key: FilePath | None) -> bytes | None:
    """The key in a file; one is made where there is none, unless the state file was drawn with one already."""
    sqlite.refuse_no_path(state)
    return None if key is None else key_file(key, create=KEY_MARK not in facts_of(state))


def models(facts: Mapping[str, Any]) -> list[MarkovModel]:
    """The models that the releases of a state file were drawn with, the present one last, from its facts."""
    numbers = takewhile(lambda k: f"{MODEL}{k}" in facts, count())
    return [MarkovModel.from_bytes(facts[f"{MODEL}{k}"]) for k in numbers]


def adopt(store: SqliteStore, history: Sequence[Terms]) -> int:
    """Write down that the last of these terms are those of the file; of how many users releases were erased.

    Inside a transaction. What is left of those users is bounded by the LDP level of what was erased.
    """
    setting = history[-1]
    for name, row in [(name, row) for _, name, row in store.users() if row is not None and row.erased]:
        for stub in store.releases(row):
            ledger = packing.beyond(stub)
            store.rewrite(name, row._replace(most=ledger.most, least=ledger.least))
    store.set_facts({"setting": setting.signature, f"{MODEL}{len(history) - 1}": setting.model.to_bytes()})
    (erased,) = store.sql.execute("SELECT count(*) FROM releases WHERE code = ?", (ERASED,)).fetchone()
    return int(erased)


def accept(path: FilePath) -> None:
    """Go on with a state file that is not the latest one: a copy put in its place, or one that lost transactions.

    From now on it draws from randomness of its own, and what `FILE-lock` says of missing transactions is dropped.
    """
    with closing(SqliteStore(path, must_exist=True, accept=True)) as store, store.transaction():
        store.begin_epoch()


# looking through it, copying it


@dataclass
class Verified:
    """What was found wrong with a state file, and how much there was to look at."""

    users: int = 0
    releases: int = 0
    damaged_users: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def found(self, what: str, user: int | None = None) -> None:
        """Note what is wrong, and whose record it is."""
        if isinstance(user, int):  # damage may have made something else of it
            self.damaged_users.add(user)
        if len(self.problems) < MOST:
            self.problems.append(what)


def verify(path: FilePath) -> Verified:
    """Look at every row of a state file, in a snapshot of what is committed; nobody who writes waits for it."""
    found = Verified()
    with reading(path) as records:
        try:
            for (line,) in records.sql.execute("PRAGMA integrity_check(20)"):
                if line != "ok":
                    found.found("the tables are damaged (SQLite's own check)")
            records.facts()
            _look(records, found)
        except (sqlite3.Error, StoreError) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise
            found.found("the file cannot be read through; restore it from a backup")
    return found


def _look(records: SqliteRecords, found: Verified) -> None:
    ends: dict[int, tuple[int, int]] = {}  # where the latest release of each user is, and the number that comes next
    for place, previous, *columns, own in records.sql.execute("SELECT * FROM releases ORDER BY id"):
        user, seq, skipped, _, code, *_ = columns
        if checksum(tuple(columns)) != own or (previous, seq - skipped) != ends.get(user, (0, 0)):
            found.found(f"user number {user}: a release is damaged, or one before it is missing", user)
            continue
        found.releases += code != ERASED
        ends[user] = place, seq + 1
    last = dict(records.sql.execute("SELECT id, last FROM users"))
    for user, _, row in records.users():
        found.users += row is None or not row.erased
        if row is None:
            found.found(f"user number {user}: the name, the ledger or the state is damaged", user)
        elif (last[user], row.events) != ends.get(user, (0, 0)) and user not in found.damaged_users:
            found.found(f"user number {user}: releases are missing", user)


def backup(path: FilePath, copy: FilePath) -> Verified:
    """Copy a state file as it is committed now, while it may be in use: whoever writes does not wait.

    The copy is for its owner alone, and is looked through before it gets its name. Nothing that is there is written
    over: the two names may have been given the wrong way round.
    """
    name, target, shown = os.path.basename(path), os.fspath(copy), os.path.basename(copy)
    if os.path.lexists(target):
        raise StoreError(f"{shown}: is there already, and a copy writes over nothing; name a file that is not there")
    part = f"{target}.{secrets.token_hex(4)}.part"
    try:
        _copy(path, part)
        found = verify(part)
        if not found.sound:
            raise StoreError(
                f"{name}: is damaged ({found.problems[0]}), so no copy was made; `seqveil state verify` lists all"
            )
        for beside in ("-wal", "-shm", "-journal"):  # what an earlier one left would be taken for its own
            with suppress(FileNotFoundError):
                os.unlink(target + beside)
        os.link(part, target)  # unlike a renaming, it takes nobody's place
        return found
    except OSError as error:
        raise StoreError(
            f"{shown}: a copy cannot be written here ({error.strerror}); name another file, or free some space"
        ) from None
    finally:
        for each in (part, f"{part}-wal", f"{part}-shm"):
            with suppress(OSError):
                os.unlink(each)


def _copy(path: FilePath, part: str) -> None:
    """The copy has no epoch, so each time it is put back it begins one of its own."""
    sqlite.make_private(part)
    with reading(path) as records:
        try:
            with closing(sqlite.connect(part)) as copy:
                records.sql.backup(copy)  # one step: a snapshot that writers need not wait for
                copy.execute("DELETE FROM facts WHERE name = ?", (sqlite.EPOCH,))
                copy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            if is_damage(error):
                raise
            raise OSError(0, "the disk is full or cannot be written") from None


# erasing people


def erase(path: FilePath, names: Sequence[str], key: bytes | None, forget: bool = False) -> tuple[int, list[str]]:
    """Take users out of a state file that nobody has open, as `erase_from` does."""
    with closing(SqliteStore(path, must_exist=True)) as store:
        return erase_from(store, names, key, forget)


def erase_from(
    store: SqliteStore, names: Sequence[str], key: bytes | None, forget: bool = False
) -> tuple[int, list[str]]:
    """Take users out of a state file that this process has open: their releases, states and names.

    Returns how many releases that were, and the sources whose positions still have one of the names in them: what a
    source wrote down to know how far it was read is its own.

    The total of each ledger stays under a keyed hash of the name, so that who comes back is charged what was spent
    before.

    Parameters:
        store: the open file; nothing else may use it meanwhile.
        names: of the users; all are erased, or none.
        key: that of the file, where it has one.
        forget: drop the ledgers too. Who comes back then begins at zero, though what was disclosed stays disclosed.
    """
    listed, releases = sqlite.size_of(_list(store)), 0
    try:
        with store.transaction():
            _check_key(store, key)
            store.hasher = follow_list(store, key)
            wanted = list(dict.fromkeys(names))
            rows = dict(zip(wanted, store.find(wanted), strict=True))
            if None in rows.values() and store.fact(TRACES) is None:  # else of whoever was forgotten traces may be left
                raise NoSuchUser(
                    f"{store.name}: nothing was released of such a user, so nobody was erased; `seqveil state account` "
                    "lists all"
                )
            gone = {name: row for name, row in rows.items() if row is not None and (forget or not row.erased)}
            for name, row in gone.items():
                releases += _erase(store, row.id, row, None if forget else store.hasher(name))
            left = _tidy_bridges(store, wanted)
            _followed(store, GONE if not gone else _note(store, [store.hasher(name) for name in gone], forget))
    except BaseException:
        with suppress(OSError):  # what was refused is not to be done later
            os.truncate(_list(store), listed)
        raise
    tidy(store)
    return releases, left


def _erase(store: SqliteStore, user: int, row: UserRow | None, hashed: bytes | None) -> int:
    """Erase one user, whose ledger is forgotten where there is no hash of the name; how many releases were there.

    A ledger that is damaged (no row) stays so under the hashed name: nothing more is released of this user.
    """
    ask = "SELECT count(*) FROM releases WHERE user = ? AND code != ?"
    (releases,) = store.sql.execute(ask, (user, ERASED)).fetchone()
    store.sql.execute("DELETE FROM releases WHERE user = ?", (user,))
    store.sql.execute("UPDATE users SET last = 0 WHERE id = ?", (user,))
    if hashed is None:
        store.sql.execute("DELETE FROM users WHERE id = ?", (user,))
    elif row is None:
        update = "UPDATE users SET name = ?, hash = ?, state = x'', sealed = NULL, checksum = -1 WHERE id = ?"
        store.sql.execute(update, (hashed, sqlite.name_hash(hashed), user))
    else:
        if row.events:  # a row that stands for all that were there: their LDP level, and the time of the latest
            last = row.events - 1
            latest = store.link([(user, last, last, 0, ERASED, row.ldp, packing.latest(row.state), None)])
            store.sql.execute("UPDATE users SET last = ? WHERE id = ?", (latest[user], user))
        store.rewrite(hashed, row._replace(state=b"", sealed=None))
    return int(releases)


def tidy(store: SqliteStore) -> None:
    """Write the file anew where somebody was erased from it; outside a transaction."""
    if store.fact(TRACES) is not None:
        store.shrink()
        with store.transaction():
            store.set_facts({TRACES: None})


def name_hasher(salt: str, key: bytes | None) -> Hasher:
    """Under what the ledger of someone who was erased stands: a hash of the name, keyed with the file's salt and key.

    Of a file without a key whoever has the file can test whether a name was erased.

    >>> name_hasher("salt", None)("ann") == name_hasher("salt", bytes(32))("ann")
    False
    """
    secret = blake2b(salt.encode(), key=key or b"", digest_size=32, person=b"seqveil-names").digest()
    return lambda name: blake2b(name.encode(), key=secret, digest_size=HASH, person=b"seqveil-erased").digest()


def follow_list(store: SqliteStore, key: bytes | None) -> Hasher:
    """Erase again whom the list beside the file names, and find those who were erased when they come back.

    `key` is that of the file. Inside a transaction. Returns what hashes names.
    """
    hasher = name_hasher(store.fact(SALT) or "", key)
    lines, done = _listed(store), store.fact(GONE)
    if lines or done is not None:
        store.hasher = hasher
    if done in lines:  # else the file is from before all of them
        lines = lines[lines.index(done) + 1 :]
    if lines:
        forget = {line.split()[1]: line.split()[2] == "forget" for line in lines}
        for user, name, row in list(store.users()):
            hashed = hasher(name) if isinstance(name, str) else b""
            if hashed.hex() in forget:
                _erase(store, user, row, None if forget[hashed.hex()] else hashed)
        _followed(store, lines[-1])
    return hasher


def _followed(store: SqliteStore, line: str) -> None:
    """Note that the list was followed up to this line; who comes back then draws from other randomness."""
    store.set_facts({GONE: line, TRACES: "yes"})
    store.begin_epoch()


def _list(store: SqliteStore) -> str:
    return f"{store.path}-erased"


def _listed(store: SqliteStore) -> list[str]:
    """The lines of the list of erasures: what tells each from all others, the hashed name, "keep" or "forget"."""
    try:
        with open(_list(store), encoding="ascii") as file:
            lines = [line.rsplit(" ", 1) for line in file.read().splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        lines = [[""]]
    if any(len(parts) != 2 or f"{crc32(parts[0].encode()):08x}" != parts[1] for parts in lines):
        raise StoreError(f"{store.name}-erased: the list of whom to erase is damaged; restore it from a backup")
    return [text for text, _ in lines]


def _note(store: SqliteStore, hashes: Sequence[bytes], forget: bool) -> str:
    """Put some on the list of erasures, just before their erasure is committed; the last line."""
    how = "forget" if forget else "keep"
    lines = [f"{secrets.token_hex(8)} {hashed.hex()} {how}" for hashed in hashes]
    try:
        sqlite.make_private(_list(store))
        with open(_list(store), "a", encoding="ascii") as file:
            file.writelines(f"{line} {crc32(line.encode()):08x}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{store.name}-erased: cannot be written ({error.strerror}), so nobody was erased") from None
    return lines[-1]


def _tidy_bridges(store: SqliteStore, names: Sequence[str]) -> list[str]:
    """Take names out of what bridges keep, the time of the latest event and the numbers of events that may come again;
    the sources that still have one of them."""
    left = []
    facts = [(name, value) for name, value in store.facts().items() if name.startswith(POSITION)]
    for source, value in ((name.removeprefix(POSITION), value) for name, value in facts):
        bridge, _, user = source.partition(LATEST)
        content = value if isinstance(value, bytes) else str(value).encode()
        if user and user in names and ":" not in bridge:
            store.set_facts({POSITION + source: None})
        elif source.endswith(NUMBERS) and (numbers := _numbers(value)) is not None:
            kept = {ident: number for ident, number in numbers.items() if ident.partition("/")[2] not in names}
            store.set_facts({POSITION + source: json.dumps(kept, separators=(",", ":"))})
        # in JSON a name may be written with its letters escaped
        elif any(name.encode() in content or json.dumps(name)[1:-1].encode() in content for name in names):
            left.append(source)
    return left


def _numbers(value: object) -> dict[str, int] | None:
    """Numbers of events as a bridge keeps them; None for what is no bridge's."""
    with suppress(ValueError):
        found = json.loads(str(value))
        return found if isinstance(found, dict) else None
    return None
