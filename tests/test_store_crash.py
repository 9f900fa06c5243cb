"""Real processes, really killed: what they had answered stands, nothing is there twice, and the accounts are right."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.coins import KeyedCoins
from seqveil.core.model import MarkovModel
from seqveil.engine import stream
from seqveil.engine.policy import Policy
from seqveil.engine.store import database
from seqveil.engine.store.packing import units
from seqveil.engine.streams import StoreError, Streams

KEY = bytes(range(32))
EVENTS, USERS, GROUP = 4000, 100, 20


def setting_of(mechanism="randomized_response"):
    return Policy(epsilon=0.7, mechanism=mechanism).on(MarkovModel(*ref.random_chain(np.random.default_rng(1), 4)))


def all_events():
    """User, sequence number and raw code of every event."""
    rng, following = np.random.default_rng(2), dict.fromkeys(range(USERS), 0)
    out = []
    for user, code in zip(rng.integers(0, USERS, EVENTS).tolist(), rng.integers(0, 4, EVENTS).tolist(), strict=True):
        out.append((f"user {user}", following[user], code))
        following[user] += 1
    return out


def work(path, answers, key):
    """Release from where the file stands; answer each group only after it was released."""
    events = all_events()
    with Streams.open(path, setting_of(), key=key) as store, open(answers, "ab", buffering=0) as out:
        for at in range(store.position("events") or 0, EVENTS, GROUP):
            users, seqs, codes = zip(*events[at : at + GROUP], strict=True)
            made = store.release(users, codes, seqs, positions={"events": at + GROUP})
            out.write(b"".join(b"%d %d\n" % (at + k, code) for k, code in enumerate(made.codes.tolist())))


def kill_one(path, answers, key, groups, late):
    """Run in a process of its own and kill it some moments after it has answered so many groups more."""
    enough = (answers.stat().st_size if answers.exists() else 0) + groups * GROUP * 6
    child = os.fork()
    if child == 0:
        try:
            work(path, answers, key)
            os._exit(0)
        except BaseException:
            os._exit(1)
    while groups and (not answers.exists() or answers.stat().st_size < enough):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.001)
    time.sleep(late)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, KEY], ids=["system", "keyed"])
def test_twelve_kills_lose_nothing_and_double_nothing(tmp_path, key, monkeypatch):
    monkeypatch.setattr(database, "SETTLE_EVENTS", 500)  # so that kills fall into settling too
    path, answers, chance = tmp_path / "s.db", tmp_path / "answers", random.Random(3)
    for _ in range(12):
        kill_one(path, answers, key, chance.randrange(15), chance.uniform(0.0, 0.01))
    work(path, answers, key)
    events, setting = all_events(), setting_of()
    with Streams.open(path, setting, key=key) as store:
        told = {user: store.releases(user) for user in {user for user, _, _ in events}}
        accounts, salt = store.accounts(), store._store.salt
    assert sum(map(len, told.values())) == EVENTS
    answered = [line.split() for line in answers.read_bytes().splitlines()]
    for number, code in ((int(a[0]), int(a[1])) for a in answered if len(a) == 2):
        user, seq, _ = events[number]
        assert told[user][seq].code == code
    # the accounts are what the releases imply, by a receiver's replay
    receiver = Streams(setting)
    receiver.observe(accounts.users, np.array([told[user][0].code for user in accounts.users]))
    for user in accounts.users:
        receiver.observe([user] * (len(told[user]) - 1), np.array([s.code for s in told[user][1:]], np.int64))
    implied = receiver.accounts()
    assert implied.events.tolist() == accounts.events.tolist()
    for name in ("epsilon_spent", "most"):
        assert (units(getattr(implied, name)) == units(getattr(accounts, name))).all()
    assert (units(-implied.least) == units(-accounts.least)).all()
    if key is not None:  # and, with a key, what a run without any kill releases
        coins = KeyedCoins(key).of_state(setting.signature, salt)
        states = {}
        for user, seq, code in events[:1500]:
            state = states.get(user, stream.State.start(setting))
            made, states[user] = stream.step(setting, state, np.array([code]), coins.of([user], [seq]))
            assert made.codes[0] == told[user][seq].code


@pytest.mark.slow
def test_a_file_that_may_not_grow_undoes_the_call(tmp_path):
    """The operating system refuses to write beyond a size, in a process of its own."""
    script = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
import test_store_crash as t
from seqveil.engine.streams import StoreError, Streams
store = Streams.open({str(tmp_path / "s.db")!r}, t.setting_of())
store.release(["ann"], [0], [0])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
names = [f"user {{k}}" for k in range(3000)]
try:
    store.release(["ann", *names], [0] * 3001, [1] + [0] * 3000)
except StoreError as error:
    print(error)
print(store.account("ann").events, store.account("user 0"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.release(["ann"], [0], [1]).replayed[0])
store.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert "nothing was written" in first
    assert (second, third) == ("1 None", "False")
    with Streams.open(tmp_path / "s.db", setting_of()) as store:
        assert store.accounts().users == ["ann"]
        assert store.account("ann").events == 2


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "s.db"
    with Streams.open(path, setting_of()) as store:
        store.release([f"user {k}" for k in range(2000)], [0] * 2000, [0] * 2000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(StoreError, match=r"s\.db: .*(damaged|disk)"), Streams.open(path, setting_of()) as store:
        store.accounts()
