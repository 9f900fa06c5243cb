"""A refusal or a failure takes back nothing that was drawn, and throws no coin again."""

import itertools
import sqlite3

import numpy as np
import pytest

from reference_streams import Rows
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.kernel import Kernels
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget
from seqveil.engine.stream import Setting
from seqveil.engine.streams import REFUSED, StoreError, Streams
from seqveil.interfaces.spark.store import KeptUsers, bucket

STICKY = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


class Counted:
    """Coins that are counted."""

    private = True

    def __init__(self):
        self.thrown, self._coins = 0, SeededCoins(3)

    def draw(self, count):
        self.thrown += count
        return self._coins.draw(count)


def test_times_that_go_back_are_refused_before_a_coin_is_thrown(tmp_path):
    budget, coins = Budget(per_window=1.0, seconds=5.0), Counted()
    setting = Setting.of(STICKY, "balanced", 1.0, budget=budget)
    users, times = ["ann", "bob", "ann"], np.array([2.0, 1.0, 1.0])
    with Streams.open(tmp_path / "s.db", setting, coins=coins) as store:
        for wrong in (times, np.array([0.0, np.nan, 1.0])):
            with pytest.raises(InputError, match="time"):
                store.release(users, [0, 0, 0], [0, 0, 1], wrong)
        assert store.standings().users == []
    streams = Streams(setting, coins=coins)
    with pytest.raises(InputError, match="times"):
        streams.release(users, np.zeros(3, int), times=times)
    assert (streams.standings().users, coins.thrown) == ([], 0)


@pytest.fixture
def broken_third_round(monkeypatch):
    """The third draw of a call finds a kernel that cannot be drawn from, whatever it is."""
    count, pick = itertools.count(), Kernels.pick

    def fail(self, codes, coins):
        if next(count) == 2:
            raise GuaranteeError("a kernel failed its own check; nothing was released")
        return pick(self, codes, coins)

    monkeypatch.setattr(Kernels, "pick", fail)


def test_a_round_that_fails_takes_back_none_before_it(tmp_path, broken_third_round):
    setting = Setting.of(STICKY, "balanced", 1.0)
    with Streams.open(tmp_path / "s.db", setting, coins=SeededCoins(1)) as store:
        with pytest.raises(GuaranteeError) as failed:
            store.release(["ann"] * 4, [0] * 4, range(4))
        made = failed.value.made.codes.tolist()
        assert made[2:] == [REFUSED] * 2
        again = store.release(["ann"] * 4, [1] * 4, range(4))
        assert again.codes[:2].tolist() == made[:2]
        assert again.replayed.tolist() == [True, True, False, False]


def test_streams_in_memory_keep_the_rounds_before_one_that_fails(broken_third_round):
    streams = Streams(Setting.of(STICKY, "balanced", 1.0), coins=SeededCoins(1))
    with pytest.raises(GuaranteeError) as failed:
        streams.release(["ann"] * 4, np.zeros(4, int))
    made = failed.value.made
    assert made.codes[2:].tolist() == [REFUSED] * 2
    assert made.epsilons.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert streams.standings().events.tolist() == [2]


def test_a_failed_transaction_is_read_again(tmp_path, monkeypatch):
    """The disk's failures depend on no draw: they may undo one, and the live states are then those of the file."""
    with Streams.open(tmp_path / "s.db", Setting.of(STICKY, "balanced", 1.0)) as store:
        store.release(["ann"], [0], [0])
        with monkeypatch.context() as patch:
            patch.setattr(store._store, "set_positions", full_disk)
            with pytest.raises(StoreError):
                store.release(["ann"], [0], [1], positions={"x": 1})
        assert store.next_seqs(["ann"]).tolist() == [1]
        assert not store.release(["ann"], [0], [1]).replayed[0]


def full_disk(positions):
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("rows", [[2, -1], [3], [0, 0], [0.0, 1.0]])
def test_a_state_takes_rows_that_are_there_each_once(rows):
    fleet = Rows(Setting.of(STICKY, epsilon=1.0), users=3)
    with pytest.raises(InputError):
        fleet.release(np.array(rows), np.zeros(len(rows), int), SeededCoins(1))
    assert fleet.state.steps.tolist() == [0, 0, 0]


WRONG = {"float": np.array([1.9]), "bool": np.array([True]), "text": np.array(["1"]), "list": [0.0], "high": [2]}


@pytest.mark.parametrize("codes", WRONG.values(), ids=WRONG)
def test_codes_that_are_not_whole_are_refused_everywhere(tmp_path, codes):
    plain, tree = Setting.of(STICKY, epsilon=1.0), Setting.of(STICKY, "tree", 1.0, batch=2)
    coins = Counted()
    with Streams.open(tmp_path / "s.db", plain, coins=coins) as store, pytest.raises(InputError, match="whole numbers"):
        store.release(["ann"], codes, [0])
    with Streams.open(tmp_path / "t.db", tree, coins=coins) as store, pytest.raises(InputError, match="whole numbers"):
        store.release(["ann"], [codes], [0])
    with pytest.raises(InputError, match="whole numbers"):
        Streams(plain, coins=coins).release(["ann"], codes)
    with pytest.raises(InputError, match="whole numbers"):
        Rows(plain, users=1).release(np.array([0]), codes, coins)
    with pytest.raises(InputError, match="whole numbers"):
        bucket(plain, coins, KeptUsers(b"salt"), ["ann"]).release(["ann"], codes, [0])
    assert coins.thrown == 0
