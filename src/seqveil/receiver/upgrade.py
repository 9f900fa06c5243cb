"""Move a state file on to another model: a cold start for durable releases, the service and the bridge.

Everything a user's state follows from is in the file: the releases. The kernels of each came from the setting that was
in force, so its column Q(y|·) can be recomputed; weighed under the new chain they give the user's belief and exact
account, as if the chain had been there from the start. All users move in one transaction, each at its next event, and
that event's number is written down. Nothing is drawn, and nothing private is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Ints
from seqveil.engine.store.database import Database
from seqveil.engine.store.packing import pack
from seqveil.engine.store.protocol import codec_of
from seqveil.engine.stream import Setting, State
from seqveil.receiver.learn import Evidence
from seqveil.receiver.versions import Version, VersionedStreams, refuse_unmovable, replayed

GROUP = 4096  # users weighed together
# whoever was erased keeps the ledger as it is: there is nothing left to weigh anew
EVERYONE = "SELECT id, events FROM users WHERE events > 0 AND typeof(name) = 'text' ORDER BY id"
VERSIONS = "versions"  # the fact that lists the settings so far


@dataclass(frozen=True)
class Upgraded:
    """How many users moved, to which version, and what the worst of them leaked under the old and the new chain."""

    users: int
    version: int
    before: float
    after: float


def upgrade(path: str | os.PathLike[str], settings: Sequence[Setting], new: Setting) -> Upgraded:
    """Put `new` in force; `settings` are all that the file was released with so far, the first one first.

    *Guarantee*: every release before and after is 2ε-LDP, and those of an ε-LDP mechanism are within ε under every
    chain; each user's account is from now on the exact leakage of all its releases under the new chain. With a budget,
    that account may begin above the total, where the new chain makes more of old releases: then nothing more is spent.

    Afterwards the file opens with `new` and no other setting. Parameters: one by one, no batches; the same symbols and
    budget, no window; states small enough to be kept in the file.
    """
    refuse_unmovable(settings, new, "state file")
    now = settings[-1]
    database = Database(path, codec_of(now))
    try:
        with database.transaction():
            _agree(database, settings)
            database.settle()
            done = _move(database, settings, new)
            told = [each.to_dict(costs=True) for each in (*settings, new)]
            database.set_fact(VERSIONS, json.dumps(told, sort_keys=True))
            database.set_fact("setting", new.signature)
        return done
    finally:
        database.close()


def evidence_of(path: str | os.PathLike[str], settings: Sequence[Setting]) -> Evidence:
    """All releases of a state file as what can be learned from; `settings` as for `upgrade`."""
    refuse_unmovable(settings, settings[-1], "state file")
    database = Database(path, codec_of(settings[-1]))
    try:
        with database.transaction():
            _agree(database, settings)
            database.settle()
            found: Evidence | None = None
            for streams, _ in _groups(database, settings):
                part = streams.evidence()
                found = part if found is None else found + part
    finally:
        database.close()
    if found is None:
        raise DataError("the state file holds no releases yet; release something first")
    return found


def begun_with(path: str | os.PathLike[str]) -> int:
    """How many settings a state file was released with so far."""
    from contextlib import closing
    from sqlite3 import connect

    with closing(connect(f"file:{os.fspath(path)}?mode=ro", uri=True)) as sql:
        facts = dict(sql.execute("SELECT name, value FROM facts").fetchall())
    return len(json.loads(facts[VERSIONS])) if VERSIONS in facts else 1


def _agree(database: Database, settings: Sequence[Setting]) -> None:
    known, listed = database.fact("setting"), database.fact(VERSIONS)
    described = [each.to_dict(costs=True) for each in settings]
    before = [json.loads(known)] if listed is None and known is not None else json.loads(listed or "[]")
    if before != described:
        raise InputError(
            f"{database.name}: was released with {len(before)} other setting{'s' * (len(before) != 1)}; name all of "
            "them in their order"
        )


def _move(database: Database, settings: Sequence[Setting], new: Setting) -> Upgraded:
    version, users, before, after = len(settings), 0, 0.0, 0.0
    for streams, ids in _groups(database, settings):
        before = max(before, float(streams.state.account.worst.max(initial=0.0)))
        streams.switch(Version(version + 1, new, 0))
        state, users = streams.state, users + ids.size
        after = max(after, float(state.account.worst.max(initial=0.0)))
        _write(database, ids, state)
        database.add_switches(
            [(user, version, step) for user, step in zip(ids.tolist(), state.steps.tolist(), strict=True)]
        )
    return Upgraded(users, version, before, after)


def _groups(database: Database, settings: Sequence[Setting]) -> Iterator[tuple[VersionedStreams, Ints]]:
    """The users in groups, each replayed through all settings: streams under the last one, and the users' ids."""
    everyone = database.sql.execute(EVERYONE).fetchall()
    switches = database.switches()
    last = max((version for _, version in switches), default=0)
    for at in range(0, len(everyone), GROUP):
        group = everyone[at : at + GROUP]
        codes = [stored.code for user, events in group for stored in database.releases(user, events)]
        # who came later was never under an earlier version
        moved = [
            [switches.get((user, k), 0 if k <= last else events) for k in range(1, len(settings))]
            for user, events in group
        ]
        ids, lengths = np.array(group, np.int64).T
        moves = np.array(moved, np.int64).reshape(len(group), len(settings) - 1)
        yield replayed(settings, np.array(codes, np.int64), lengths, moves), ids


def _write(database: Database, ids: Ints, state: State) -> None:
    account = state.account
    database.rewrite(ids, np.stack([account.most, account.least, state.ldp], axis=1), pack(state))
