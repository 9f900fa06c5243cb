"""Two states never draw from the same randomness, though they share the key, the users and the numbers."""

import os
import shutil

import numpy as np
import pytest
from scipy import stats

from seqveil.core.coins import KeyedCoins
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.store.backup import verify
from seqveil.engine.store.upkeep import adopt, erase
from seqveil.engine.streams import StoreBusy, StoreError, Streams
from seqveil.interfaces.cli import main

KEY = bytes(range(32))
SETTING = Policy(epsilon=1.0, mechanism="randomized_response").on(MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]]))


def opened(path):
    return Streams.open(path, SETTING, key=KEY)


def salt_of(path):
    """The salt that a file goes on with."""
    with opened(path) as streams:
        return streams._store.salt


def coin(streams, user="ann", seq=0):
    return int(streams._coins.of([user], [seq]).draw(1)[0])


@pytest.fixture
def path(tmp_path):
    with opened(tmp_path / "s.db") as streams:
        streams.release(["ann", "bob"], [0, 1])
    return tmp_path / "s.db"


def test_two_files_with_one_key_draw_independently(tmp_path):
    """What the PRF is asked differs; equal symbols get equal releases as often as by chance: false alarms 2 in 10⁹."""
    users, made, salts, coins = [f"user {k}" for k in range(600)], [], [], []
    for name in ("one.db", "two.db"):
        with opened(tmp_path / name) as streams:
            salts.append(streams._store.salt)
            coins.append([coin(streams, user) for user in users])
            made.append(streams.release(users, np.zeros(600, np.int64)).codes)
    assert salts[0] != salts[1]
    assert not set(coins[0]) & set(coins[1])
    kept = np.exp(1.0) / (np.exp(1.0) + 1)
    chance = kept**2 + (1 - kept) ** 2
    low, high = stats.binom.ppf([1e-9, 1 - 1e-9], 600, chance)
    assert low <= (made[0] == made[1]).sum() <= high


def test_streams_in_memory_have_a_salt_each():
    assert len({coin(Streams(SETTING, coins=KeyedCoins(KEY))) for _ in range(3)}) == 3


def test_seeded_ones_have_none():
    assert len({coin(Streams(SETTING, coins=KeyedCoins.seeded(3))) for _ in range(3)}) == 1


def test_a_file_that_is_closed_killed_or_moved_keeps_its_salt(path, tmp_path):
    before = salt_of(path)
    child = os.fork()
    if child == 0:
        opened(path).release(["ann"], [1])
        os._exit(0)  # without closing
    os.waitpid(child, 0)
    assert salt_of(path) == before
    path.rename(tmp_path / "moved.db")
    assert salt_of(tmp_path / "moved.db") == before


def test_a_draw_that_was_lost_comes_out_the_same(path):
    users, raw = [f"user {k}" for k in range(50)], [0, 1] * 25
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # it dies between the draw and the commit
        lose = lambda made: (os.write(writing, bytes(made.codes.tolist())), os._exit(0))  # noqa: E731
        opened(path).release(users, raw, positions=lose)
    os.waitpid(child, 0)
    lost = list(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    with opened(path) as streams:
        assert streams.next_seqs(users).tolist() == [0] * 50
        assert streams.release(users, raw).codes.tolist() == lost


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_who_was_erased_and_comes_back_draws_from_other_randomness(path, running, forget):
    with opened(path) as streams:
        before, spent = coin(streams), streams.account("ann").epsilon_spent
        if running:
            streams.erase(["ann"], forget)
            assert coin(streams) != before
    if not running:
        erase(path, ["ann"], KEY, forget)
    with opened(path) as streams:
        assert coin(streams) != before
        made = streams.release(["ann"], [1])
        assert made.seqs.tolist() == [0 if forget else 1]
        assert streams.account("ann").epsilon_spent == (0 if forget else spent) + 1.0


def test_a_copy_begins_anew_each_time_it_is_put_back(path, tmp_path):
    """Also where it is written over the file itself, which keeps its place on the disk."""
    with opened(path) as streams:
        streams.backup(tmp_path / "copy.db")
    copy, salts = (tmp_path / "copy.db").read_bytes(), [salt_of(path)]
    assert verify(tmp_path / "copy.db").sound
    for _ in range(2):
        path.write_bytes(copy)
        salts.append(salt_of(path))
        assert salt_of(path) == salts[-1]
    salts.append(salt_of(tmp_path / "copy.db"))
    assert len(set(salts)) == 4


def test_a_copy_made_by_hand_is_seen_by_its_place(path, tmp_path):
    shutil.copy2(path, tmp_path / "copy.db")
    assert salt_of(tmp_path / "copy.db") != salt_of(path)
    assert verify(tmp_path / "copy.db").sound


def test_a_file_that_went_back_begins_anew_when_it_is_adopted(path, capsys):
    """As after a snapshot of the disk was put back, which nobody can see in the file."""
    before = path.read_bytes()
    salts = [salt_of(path)]
    for _ in range(2):
        path.write_bytes(before)
        assert main(["state", "adopt", str(path)]) == 0
        assert "adopted" in capsys.readouterr().out
        salts.append(salt_of(path))
    assert len(set(salts)) == 3
    with opened(path) as streams:
        assert streams.account("ann").events == 1
        with pytest.raises(StoreBusy):
            adopt(path)
    for missing in (path.with_name("none.db"), path.parent / "none" / "s.db"):
        with pytest.raises(StoreError, match="No such file or directory"):
            adopt(missing)
