"""A bit that flips in a state file is found, or changes nothing: no release, no ledger, no position."""

import random
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.coins import KeyedCoins
from seqveil.core.errors import SeqveilError
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.store.backup import verify
from seqveil.engine.store.protocol import Damaged
from seqveil.engine.streams import StoreError, Streams
from seqveil.interfaces.events import Job, release_together

USERS = [f"user {k}" for k in range(8)]


def setting(**options):
    chain = MarkovModel(*ref.random_chain(np.random.default_rng(0), 4, 1, False))
    return Policy(epsilon=0.8, mechanism="balanced", **options).on(chain)


def make(path, log=False):
    """A file with users of 21 to 70 releases, positions, and, if wanted, a log that nobody settled."""
    rng = np.random.default_rng(7)
    streams = Streams.open(path, setting(), coins=KeyedCoins.seeded(1))
    for k in range(7):
        users = [user for at, user in enumerate(USERS) for _ in range(3 if at % 2 else 10)]
        streams.release(users, rng.integers(0, 4, len(users)).tolist(), positions={"queue": k, "text": b"x" * 50})
    if log:
        with streams._store.transaction():
            streams._store.settle()
        streams.release(USERS[:5] * 2, [1] * 10, positions={"queue": 7})
        streams.backup(f"{path}.copy")
        streams.close()
        Path(f"{path}.copy").replace(path)
    streams.close()


def told(streams, user):
    """All that is known of a user, or that it is damaged."""
    try:
        return streams.account(user), streams.releases(user), streams.next_seqs([user]).tolist()
    except Damaged:
        return "found"


def look(path, more):
    """What a file says, and how it goes on: part by part; "found" where damage is seen."""
    try:
        with Streams.open(path, setting(), coins=KeyedCoins.seeded(1)) as streams:
            seen = {user: told(streams, user) for user in USERS}
            seen["positions"] = streams.position("queue"), streams.position("text")
            jobs = [Job([u, u], [0, len(seen[u][1])], [1, 2], None) for u in USERS if more and seen[u] != "found"]
            release_together(streams, jobs)
            for job in jobs:
                made = job.outcome
                kept = "found" if isinstance(made, StoreError) else (made.codes.tolist(), made.replayed.tolist())
                seen[job.users[0], "more"] = kept
            if "found" not in seen.values():  # else someone lacks a release
                seen["everyone"] = everyone(streams)
            return seen
    except SeqveilError:
        return {"all": "found"}


def everyone(streams):
    try:
        found = streams.accounts()
        return found.users, found.epsilon_spent.tolist(), found.leakage.tolist()
    except Damaged:
        return "found"


def flips(folder, count, log):
    """Flip so many bits, one at a time, in a fresh copy each: what went by without a word, and how many were seen."""
    make(folder / "s.db", log)
    shutil.copy(folder / "s.db", folder / "true.db")
    truth = [look(folder / "true.db", more) | {"all": ""} for more in (True, False)]
    content, rng, silent, found = (folder / "s.db").read_bytes(), random.Random(1), [], 0
    path, used = folder / "flip.db", [k for k, byte in enumerate(content) if byte]
    for k in range(count):
        # every other one where something stands: much of a small file is room
        bit = 8 * rng.choice(used) + rng.randrange(8) if k % 2 else rng.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        both = [look(path, more) for more in (True, False)]  # the second time: nothing right was written wrong
        hit = any("found" in seen.values() for seen in both)
        found += hit
        for seen, true in zip(both, truth, strict=True):
            silent += [(bit, name) for name, told in seen.items() if told not in (true[name], "found") and not hit]
            silent += [(bit, name) for name, told in seen.items() if name in USERS and _less(told, true[name])]
        for each in folder.glob("flip.db*"):
            each.unlink()
    return silent, found


def _less(told, true):
    """Whether a user's ledger is another than the truth, with nothing said; a user set apart may have told less."""
    if told == "found":
        return False
    return told[0] is None or told[1] != true[1][: len(told[1])] or len(told[1]) < len(true[1]) - 1


@pytest.mark.slow
@pytest.mark.parametrize("log", [False, True], ids=["settled", "with a log"])
def test_a_flipped_bit_is_found_or_harmless(tmp_path, log):
    silent, found = flips(tmp_path, 15, log)
    assert silent == []
    assert found > 0


@pytest.mark.slow
@pytest.mark.parametrize("log", [False, True], ids=["settled", "with a log"])
def test_a_thousand_flipped_bits_are_found_or_harmless(tmp_path, log):
    silent, found = flips(tmp_path, 500, log)
    assert silent == []
    assert found > 100


def damage(path, user, column="state"):
    with sqlite3.connect(path) as sql:
        (content,) = sql.execute(f"SELECT {column} FROM users WHERE name = ?", (user,)).fetchone()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 4
        sql.execute(f"UPDATE users SET {column} = ? WHERE name = ?", (bytes(changed), user))
    sql.close()


def test_a_damaged_user_is_set_apart_and_the_others_go_on(tmp_path):
    path = tmp_path / "s.db"
    make(path)
    damage(path, "user 3")
    with Streams.open(path, setting(), coins=KeyedCoins.seeded(1)) as streams:
        with pytest.raises(Damaged, match=r"user number 4 are damaged.*seqveil state verify.*backup") as refused:
            streams.account("user 3")
        assert "\n" not in str(refused.value)
        with pytest.raises(Damaged):
            streams.release(["user 1", "user 3"], [0, 0])
        before = streams.account("user 1").events
        jobs = [Job([user], [int(streams.account("user 1").events)], [0], None) for user in ("user 1",)]
        jobs += [Job(["user 3"], [21], [0], None), Job(["user 5"], [21], [0], None)]
        release_together(streams, jobs)
        assert isinstance(jobs[1].outcome, Damaged)
        assert [job.outcome.codes.size for job in (jobs[0], jobs[2])] == [1, 1]
        assert streams.account("user 1").events == before + 1
        assert streams.leakages()[1] == 1


def test_damaged_releases_are_never_given_back_nor_replayed(tmp_path):
    path = tmp_path / "s.db"
    make(path)
    damage(path, "user 3", "recent")
    with Streams.open(path, setting(), coins=KeyedCoins.seeded(1)) as streams:
        assert streams.account("user 3").events == 21
        with pytest.raises(Damaged):
            streams.releases("user 3")
        with pytest.raises(Damaged):
            streams.release(["user 3"], [0], seqs=[5])
        streams.release(["user 3"] * 60, [0] * 60)  # over the end of a chunk
    with Streams.open(path, setting(), coins=KeyedCoins.seeded(1)) as streams, pytest.raises(Damaged):
        streams.releases("user 3")


@pytest.mark.slow
def test_a_user_who_vanished_from_an_index_does_not_begin_anew(tmp_path):
    path = tmp_path / "s.db"
    make(path)
    with sqlite3.connect(path) as sql:
        sql.execute("PRAGMA writable_schema=ON")
        page = sql.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_users_1'").fetchone()[0]
        size = sql.execute("PRAGMA page_size").fetchone()[0]
    sql.close()
    content = bytearray(path.read_bytes())
    at = content.index(b"user 7", (page - 1) * size)
    content[at + 5] ^= 64  # 7 becomes w
    path.write_bytes(content)
    with Streams.open(path, setting(), coins=KeyedCoins.seeded(1)) as streams:
        assert streams.release(["user 7"], [0], seqs=[0]).replayed.tolist() == [True]
        assert streams.account("user 6").events > 0
    assert not verify(path).sound
