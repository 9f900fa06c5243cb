"""A refusal or a failure takes back nothing that was drawn, and throws no coin again."""

import numpy as np
import pytest

from reference_streams import Rows
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget
from seqveil.engine.coded import CodeStreams
from seqveil.engine.policy import Policy
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
    setting = Policy(epsilon=1.0, budget=budget, mechanism="balanced").on(STICKY)
    users, times = ["ann", "bob", "ann"], np.array([2.0, 1.0, 1.0])
    with CodeStreams.open(tmp_path / "s.db", setting, coins=coins) as store:
        for wrong in (times, np.array([0.0, np.nan, 1.0])):
            with pytest.raises(InputError, match="time"):
                store.release(users, [0, 0, 0], [0, 0, 1], wrong)
        assert store.accounts().users == []
    streams = CodeStreams(setting, coins=coins)
    with pytest.raises(InputError, match="times"):
        streams.release(users, np.zeros(3, int), times=times)
    assert (streams.accounts().users, coins.thrown) == ([], 0)


@pytest.mark.parametrize("rows", [[2, -1], [3], [0, 0], [0.0, 1.0]])
def test_a_state_takes_rows_that_are_there_each_once(rows):
    fleet = Rows(Policy(epsilon=1.0).on(STICKY), users=3)
    with pytest.raises(InputError):
        fleet.release(np.array(rows), np.zeros(len(rows), int), SeededCoins(1))
    assert fleet.state.steps.tolist() == [0, 0, 0]


WRONG = {"float": np.array([1.9]), "bool": np.array([True]), "text": np.array(["1"]), "list": [0.0], "high": [2]}


@pytest.mark.parametrize("codes", WRONG.values(), ids=WRONG)
def test_codes_that_are_not_whole_are_refused_everywhere(tmp_path, codes):
    plain, tree = Policy(epsilon=1.0).on(STICKY), Policy(epsilon=1.0, batch=2, mechanism="tree").on(STICKY)
    coins = Counted()
    with (
        CodeStreams.open(tmp_path / "s.db", plain, coins=coins) as store,
        pytest.raises(InputError, match="whole numbers"),
    ):
        store.release(["ann"], codes, [0])
    with (
        CodeStreams.open(tmp_path / "t.db", tree, coins=coins) as store,
        pytest.raises(InputError, match="whole numbers"),
    ):
        store.release(["ann"], [codes], [0])
    with pytest.raises(InputError, match="whole numbers"):
        CodeStreams(plain, coins=coins).release(["ann"], codes)
    with pytest.raises(InputError, match="whole numbers"):
        Rows(plain, users=1).release(np.array([0]), codes, coins)
    with pytest.raises(InputError, match="whole numbers"):
        bucket(plain, coins, KeptUsers(b"salt"), ["ann"]).release(["ann"], codes, [0])
    assert coins.thrown == 0
