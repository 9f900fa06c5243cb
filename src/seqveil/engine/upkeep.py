"""What an operator does with a state file: open it, check it, copy it, erase people from it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from seqveil.core.errors import DataError, InputError, option
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import key_file, key_mark
from seqveil.engine import sqlite
from seqveil.engine.packing import Sealing
from seqveil.engine.policy import Terms, refuse_other
from seqveil.engine.sqlite import SALT, SETTING, FilePath, SqliteStore, is_damage, reading
from seqveil.engine.store import LATEST, NUMBERS, Damaged, NoSuchUser, StoreError

SPENDS = "a new file, whose ledger begins at zero: what was disclosed before would no longer count against any budget"
MODEL = "model "  # before a number, in the name of the fact that has a model
KEY_MARK = "key"  # the fact that tells the key of the file from others
ANYONE = "erased"  # the fact that says that somebody was erased


def opened(path: FilePath, setting: Terms, private: bool, key: bytes | None, must_exist: bool) -> SqliteStore:
    """The store of a state file, opened or made; refused where it is of another model, policy or key."""
    file = SqliteStore(path, must_exist)
    try:
        with file.transaction():
            if file.begun:
                file.begin()
                facts = {SETTING: setting.signature, "private": "yes" if private else "no", "begun": repr(time.time())}
                mark = None if key is None else key_mark(key)
                file.set_facts(facts | {f"{MODEL}0": setting.model.to_bytes(), KEY_MARK: mark})
            refuse_other(json.loads(file.fact(SETTING)), json.loads(setting.signature), f"{file.name}:", SPENDS)
            if file.fact("private") == "yes" and not private:
                raise InputError(f"{file.name}: holds private releases, so a seed cannot go on with it; leave it out")
            if private:
                _check_key(file, key)
            file.settle_epoch()
            follow_erased(file, key)
            if key is not None:
                file.sealing = Sealing(key, str(file.fact(SALT)).encode())
        return file
    except BaseException:
        file.close()
        raise


def _check_key(store: SqliteStore, key: bytes | None) -> None:
    """Refuse another key than the file's: its draws would differ, and its hash of a name would be nobody's."""
    marked, mark = store.fact(KEY_MARK), None if key is None else key_mark(key)
    if marked is None and mark is not None:
        raise InputError(f"{store.name}: was begun without a key; leave it out")
    if marked != mark:
        given = "no key is given" if key is None else "this is another one"
        raise InputError(
            f"{store.name}: was drawn with the key that has the mark {marked}, and {given}; pass that one by "
            f"{option('key')}"
        )


def facts_of(path: FilePath) -> dict[str, Any]:
    """What a state file says of itself: setting, models, mark of the key; nothing where there is no such file."""
    with suppress(StoreError, DataError), reading(path) as records:  # of which opening it will say more
        return records.facts()
    return {}


def key_for(state: FilePath, key: FilePath | None) -> bytes | None:
    """The key in a file; one is made where there is none, unless the state file was drawn with one already."""
    return None if key is None else key_file(key, create=KEY_MARK not in facts_of(state))


def models(facts: Mapping[str, Any]) -> list[MarkovModel]:
    """The models that the releases of a state file were drawn with, the present one last, from its facts."""
    return [MarkovModel.from_bytes(facts[f"{MODEL}{k}"]) for k in range(sum(name.startswith(MODEL) for name in facts))]


def accept(path: FilePath) -> None:
    """Go on with a copy that was put in the place of a state file: from now on it draws from randomness of its own."""
    with closing(SqliteStore(path, must_exist=True)) as store, store.transaction():
        store.begin_epoch()


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


def verify(path: FilePath) -> Verified:
    """Look at every row of a state file, in a snapshot of what is committed; nobody who writes waits for it.

    A bit of the file's head may differ unseen where nothing that is read follows from it, as SQLite's count of changes.
    """
    found = Verified()
    with reading(path) as records:
        try:
            if records.sql.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                found.problems.append("the tables are damaged (SQLite's own check)")
            if lacks := records.lacks(records.facts()):
                found.problems.append(lacks)
            for user, _, row in records.users():
                found.users += row is None or not row.erased
                try:
                    if row is None:
                        raise records.damaged(user)
                    found.releases += len(list(records.releases(row)))
                except Damaged:
                    what = "the name, the ledger or the state" if row is None else "a release"
                    found.problems.append(f"user number {user}: {what} is damaged or missing")
                    found.damaged_users.add(user)
            if found.sound and (found.releases,) != records.sql.execute("SELECT count(*) FROM releases").fetchone():
                found.problems.append("there are releases that no user's row leads to")
        except (sqlite3.Error, StoreError) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise
            found.problems.append("the file cannot be read through; restore it from a backup")
    return found


def backup(path: FilePath, copy: FilePath) -> Verified:
    """Copy a state file as it is committed now, while it may be in use: whoever writes does not wait.

    The copy is for its owner alone, and is verified. Nothing that is there is written over: the two names may have been
    given the wrong way round. It has no epoch, so each time it is put back it begins one of its own.
    """
    target, shown = os.fspath(copy), os.path.basename(copy)
    for end in ("-wal", "-lock"):
        if sqlite.size_of(f"{target}{end}"):
            raise StoreError(f"{shown}: {shown}{end} is left of a file that was here; move it away, and try again")
    with reading(path) as records:
        try:
            sqlite.make_private(target)
        except FileExistsError:
            raise StoreError(f"{shown}: is there already, and a copy writes over nothing; name a new file") from None
        except OSError as error:
            raise StoreError(f"{shown}: a copy cannot be written here ({error.strerror}); name another file") from None
        try:
            with sqlite.disclosed(shown), closing(sqlite.connect(target)) as made:
                records.sql.backup(made)  # one step: a snapshot that writers need not wait for
                made.execute("DELETE FROM facts WHERE name = ?", (sqlite.EPOCH,))
                made.execute(sqlite.CHECKPOINT).fetchall()
            found = verify(target)
            if found.sound and not records.lacks(records.facts()):
                return found
            raise StoreError(f"{records.name}: is damaged, so no copy was made; `seqveil state verify` lists all")
        except BaseException:
            for beside in ("", "-wal", "-shm"):
                with suppress(OSError):
                    os.unlink(target + beside)
            raise


def erase(path: FilePath, names: Sequence[str], key: bytes | None) -> int:
    """Take users out of a state file that nobody has open, as `erase_from` does."""
    with closing(SqliteStore(path, must_exist=True)) as store:
        return erase_from(store, names, key)


def erase_from(store: SqliteStore, names: Sequence[str], key: bytes | None) -> int:
    """Take users out of a state file that this process has open: releases, states and names; how many releases.

    The total of each ledger stays under a keyed hash of the name, by which who comes back is refused: a new ledger
    would begin at zero. All are erased, or none. Nothing else may use the file meanwhile.
    """
    releases, wanted = 0, list(dict.fromkeys(names))
    with store.transaction():
        _check_key(store, key)
        store.set_facts({ANYONE: "yes"})
        follow_erased(store, key)
        rows = store.find(wanted)
        if None in rows:
            raise NoSuchUser(f"{store.name}: no such user, so nobody was erased; `seqveil state account` lists all")
        for name, row in zip(wanted, rows, strict=True):
            if row is not None and not row.erased and store.hasher is not None:
                releases += store.forget(row, store.hasher(name))
        for fact, value in store.facts().items():  # what bridges keep of a user has the name in it
            _, bridge, user = fact.partition(LATEST)
            if fact.endswith(NUMBERS) and str(value)[:1] == "{":
                _, bridge, user = next(iter(json.loads(value)), "").partition("/")
            if bridge and user in wanted:
                store.set_facts({fact: None})
    store.rewritten()
    return releases


def follow_erased(store: SqliteStore, key: bytes | None) -> None:
    """Have a file in which anyone was erased find them when they come back; `key` is that of the file.

    Their ledgers stand under a hash of the name, keyed with the file's salt and key. Of a file without a key whoever
    has the file can test whether a name was erased.
    """
    if store.fact(ANYONE) is not None:
        salt = str(store.fact(SALT)).encode()
        secret = blake2b(salt, key=key or b"", digest_size=32, person=b"seqveil-names").digest()
        store.hasher = lambda name: blake2b(
            name.encode(), key=secret, digest_size=16, person=b"seqveil-erased"
        ).digest()
