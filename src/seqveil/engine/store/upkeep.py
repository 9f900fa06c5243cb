"""What an operator does to a state file that nobody has open: erase a person, go on with a copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from seqveil.core.coins import key_mark
from seqveil.core.errors import DataError, InputError
from seqveil.engine.store.backup import FilePath
from seqveil.engine.store.connections import WriterLock
from seqveil.engine.store.database import Database
from seqveil.engine.store.packing import carried
from seqveil.engine.store.protocol import (
    KEY_MARK,
    LATEST,
    LAYOUT,
    NUMBERS,
    TRACES,
    Layout,
    NoSuchUser,
    Position,
    StoreBusy,
    StoreError,
    codec_from,
)
from seqveil.engine.store.records import OWN
from seqveil.engine.store.schema import LEDGER, name_mark, place_mark, user_mark


def _present(path: FilePath) -> str:
    """The name of a state file that is there."""
    name = os.path.basename(path)
    if not os.path.isfile(path):
        raise StoreError(f"{name}: cannot be opened (No such file or directory); check the path")
    if not os.path.getsize(path):
        raise StoreError(f"{name}: is empty, and so no state file; check the path, or restore it from a backup")
    return name


@contextmanager
def _alone(path: FilePath) -> Iterator[tuple[Database, Layout]]:
    """A state file that nobody else has open."""
    name = _present(path)
    try:
        database = Database(path, None, must_exist=True)
    except StoreBusy:
        raise StoreBusy(f"{name}: a service or another command has it open; stop that first, and try again") from None
    try:
        said = database.fact(LAYOUT)
        if said is None:
            raise DataError(f"{name}: does not say how its records are written; restore it from a backup")
        layout = Layout(**json.loads(said))
        database.use(codec_from(layout))
        yield database, layout
    finally:
        database.close()


def erase(path: FilePath, names: Sequence[str], key: bytes | None, forget: bool = False) -> tuple[int, list[str]]:
    """Take users out of a state file: their releases, states and names.

    Returns how many releases that were, and the sources whose positions still have one of the names in them: what a
    source wrote down to know how far it was read is its own.

    The total of each ledger stays under a keyed hash of the name, so that who comes back is charged what was spent
    before.

    Parameters:
        path: the file.
        names: of the users; all are erased, or none.
        key: that of the file, where it has one; to forget ledgers it is not needed.
        forget: drop the ledgers too. Who comes back then begins at zero, though what was disclosed stays disclosed.
    """
    with _alone(path) as (database, _):
        return erase_from(database, names, key, forget)


def erase_from(
    database: Database, names: Sequence[str], key: bytes | None, forget: bool = False
) -> tuple[int, list[str]]:
    """Take users out of a state file that this process has open, as `erase` does; nothing else may use it meanwhile.

    Parameters:
        database: the open file.
        names: as for `erase`.
        key: as for `erase`.
        forget: as for `erase`.
    """
    with database.transaction():
        database.settle()
        if key is not None or not forget:
            _check_key(database, key)
        database.know_erased(key)
        layout = Layout(**json.loads(database.fact(LAYOUT) or "{}"))
        count = 0
        for name in dict.fromkeys(names):
            row = database.find([name])[0]
            if row is None and database.fact(TRACES) == "yes":
                continue  # of whoever was erased with the ledger nothing is left to be found but traces
            if row is None:
                raise NoSuchUser(
                    f"{database.name}: nothing was released of such a user, so nobody was erased; "
                    "`seqveil state account` lists all"
                )
            count += _erase(database, row.id, None if forget else database.hashed(name), layout)
        tidied = _tidy_bridges(database, names)
        kept = database.sql.execute("SELECT * FROM positions").fetchall()
        left = [source for source, value, _ in kept if source not in tidied and _names(value, names)]
        database.set_fact(TRACES, "yes")
        database.begin_epoch()  # who comes back draws from other randomness, whatever is left of the ledger
    database.shrink()
    with database.transaction():
        database.set_fact(TRACES, "no")
    return count, left


def _tidy_bridges(database: Database, names: Sequence[str]) -> set[str]:
    """Take names out of what bridges keep, the time of the latest event and the numbers of events that may come again;
    the sources that have none of them any more."""
    tidied = set()
    for source, value, _ in database.sql.execute("SELECT * FROM positions").fetchall():
        bridge, _, user = source.partition(LATEST)
        if user and user in names and ":" not in bridge:
            database.drop_position(source)
        elif source.endswith(NUMBERS) and (kept := _without(value, names)) is not None:
            database.set_positions({source: kept})
            tidied.add(source)
    return tidied


def _without(value: Position, names: Sequence[str]) -> str | None:
    """Numbers of events, as a bridge keeps them, without those of these users; None for what is no bridge's."""
    try:
        numbers = json.loads(str(value))
    except ValueError:
        return None
    if not isinstance(numbers, dict):
        return None
    kept = {ident: number for ident, number in numbers.items() if ident.partition("/")[2] not in names}
    return json.dumps(kept, separators=(",", ":"))


def _names(value: str | bytes | int, names: Sequence[str]) -> bool:
    content = value if isinstance(value, bytes) else str(value).encode()
    # in JSON a name may be written with its letters escaped
    return any(name.encode() in content or json.dumps(name)[1:-1].encode() in content for name in names)


def _check_key(database: Database, key: bytes | None) -> None:
    """Refuse another key than the file's: its hash of a name would be nobody's."""
    marked, mark = database.fact(KEY_MARK), None if key is None else key_mark(key)
    if marked is None and mark is not None:
        raise InputError(f"{database.name}: has no key; leave it out")
    if marked != mark:
        given = "none is given" if key is None else "this is another one"
        raise InputError(f"{database.name}: erasing needs its key, which has the mark {marked}, and {given}; pass it")


def _erase(database: Database, user: int, hashed: bytes | None, layout: Layout) -> int:
    """Erase one user, whose ledger is forgotten where there is no hash of the name; how many releases were there."""
    sql = database.sql
    ask = f"{OWN}, kept, typeof(name) FROM users WHERE id = ?"
    *ledger, state, _, kept, kind = sql.execute(ask, (user,)).fetchone()
    if kind == "blob" and hashed is not None:
        return 0  # erased before, and not come back
    events = ledger[1]
    if hashed is None:
        figures, after, first, name = [0] * (len(LEDGER) - 1), b"", 0, user.to_bytes(8, "little")
    else:
        figures, after, first, name = ledger[1:], carried(state, layout.numbers), events, hashed
    columns = "name = ?, named = ?, events = ?, releases = ?, spent = ?, most = ?, least = ?, ldp = ?, mark = ?"
    marks = user_mark(user, figures, after), place_mark(user, first)
    sql.execute(
        f"UPDATE users SET {columns}, state = ?, kept = ?, recent_mark = ?, recent = x'' WHERE id = ?",
        (name, name_mark(name), *figures, marks[0], after, first, marks[1], user),
    )
    sql.execute("DELETE FROM chunks WHERE user = ?", (user,))
    database.leakages.restore(np.array([user]))  # to be read again
    return int(events - kept)


def adopt(path: FilePath) -> None:
    """Go on with a state file that is not the latest one: a copy put in its place, or one that lost transactions.

    From now on it draws from randomness of its own, and what `FILE-commits` says of missing transactions is dropped.
    """
    lock = WriterLock(os.fspath(path), _present(path))
    try:
        with suppress(FileNotFoundError):
            os.unlink(f"{os.fspath(path)}-commits")
    finally:
        lock.close()
    with _alone(path) as (database, _), database.transaction():
        database.begin_epoch()
