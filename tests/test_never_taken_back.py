"""A refusal, a failure or a spent budget takes back nothing that was drawn, and throws no coin again."""

import itertools
import json
import sqlite3

import numpy as np
import polars as pl
import pytest

from reference_streams import Rows
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import BudgetSpent, GuaranteeError, InputError
from seqveil.core.kernel import Kernels
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget
from seqveil.engine.stream import Setting
from seqveil.engine.streams import REFUSED, StoreError, Streams
from seqveil.interfaces.cli import main
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


SPENT = Budget(total=1.8, when_spent="error")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_refused_call_made_again_throws_no_coin_and_says_the_same(tmp_path, batch):
    options = {"mechanism": "balanced"} if batch == 1 else {"mechanism": "tree", "batch": 2}
    setting, coins = Setting.of(STICKY, epsilon=1.0, budget=SPENT, **options), Counted()
    users, seqs = ["ann", "bob"] * 30, [k // 2 for k in range(60)]
    with Streams.open(tmp_path / "s.db", setting, coins=coins) as store:
        raw = [0] * 60 if batch == 1 else [[0, 1]] * 60
        said = []
        for _ in range(3):
            with pytest.raises(BudgetSpent) as spent:
                store.release(users, raw, seqs)
            made = spent.value.made
            told = made.codes.tolist() if batch == 1 else made.paths
            said.append((told, made.epsilons.tolist(), spent.value.places, coins.thrown))
        assert said[0] == said[1] == said[2]
        events = [store.standing(user).events for user in ("ann", "bob")]
        assert spent.value.places == [k for k in range(60) if seqs[k] >= events[k % 2]]
        assert store.next_seqs(["ann", "bob"]).tolist() == events


@pytest.mark.slow
def test_an_event_given_up_for_one_that_is_refused_stays_open(tmp_path):
    with Streams.open(tmp_path / "s.db", Setting.of(STICKY, epsilon=1.0, budget=SPENT), gaps="skip") as store:
        with pytest.raises(BudgetSpent):
            store.release(["ann"] * 40, [0] * 40, range(40))
        upcoming = store.next_seqs(["ann"])[0]
        with pytest.raises(BudgetSpent) as spent:
            store.release(["ann"] * 3, [0] * 3, [upcoming + 2, upcoming, upcoming + 2])
        assert spent.value.made.codes.tolist() == [REFUSED] * 3
        assert not spent.value.made.replayed.any()
        assert store.next_seqs(["ann"])[0] == upcoming


def test_a_spent_budget_of_seconds_opens_again_and_forgets_nothing():
    """A refused event leaves the window as it was: an earlier time that comes later still finds all costs in it."""
    budget = Budget(per_window=1.5, seconds=10.0, when_spent="error")
    fleet, row = Rows(Setting.of(STICKY, "balanced", 1.0, budget=budget), users=2), np.array([0])
    for _ in range(40):
        try:
            fleet.release(row, np.array([0]), SeededCoins(1), np.array([100.0]))
        except BudgetSpent:
            break
    assert fleet.state.steps[0] < 40
    steps, recent = fleet.state.steps[0], fleet.state.window.within(np.full(2, 100.0), 10.0)
    with pytest.raises(BudgetSpent):
        fleet.release(np.array([0, 1]), np.array([0, 0]), SeededCoins(1), np.array([109.0, 500.0]))
    assert fleet.state.steps.tolist() == [steps, 1]
    assert fleet.state.window.within(np.array([109.0, 600.0]), 10.0).tolist() == [recent[0], 0.0]
    assert fleet.release(row, np.array([0]), SeededCoins(1), np.array([111.0])).codes[0] >= 0


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

    monkeypatch.setattr("seqveil.core.fast._loaded", False)
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


def test_spark_refuses_the_policy_error():
    with pytest.raises(InputError, match='use when_spent="stop"'):
        bucket(Setting.of(STICKY, epsilon=1.0, budget=SPENT), KeyedCoins(bytes(32)), KeptUsers(), [])


@pytest.fixture
def files(tmp_path):
    rows = "".join(f"{user},{(k // 5) % 2}\n" for k in range(30) for user in ("ann", "bob"))
    (tmp_path / "data.csv").write_text("user,value\n" + rows + "carl,0\n")
    STICKY.save(tmp_path / "m")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--batch", 3)])
def test_a_file_is_released_but_for_the_rows_of_spent_users(files, capfd, more):
    out = files / "out.csv"
    args = ["release", files / "data.csv", "-m", files / "m", "-e", 1, "--budget", 2, "--when-spent", "error", *more]
    assert main([*map(str, args), "-o", str(out)]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: the budget is spent (at most 2 in total")
    meta, frame = json.loads((files / "out.csv.meta.json").read_text()), pl.read_csv(out)
    assert meta["refused"] == 61 - frame.height > 0
    assert frame["user"].to_list()[-1] == "carl"
    assert main(["audit", str(out), "-m", str(files / "m")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--batch", 3)])
def test_a_file_with_a_state_ends_before_the_first_row_refused(files, capfd, more):
    out, state = files / "out.csv", files / "state.db"
    args = ["release", files / "data.csv", "-m", files / "m", "-e", 1, "--budget", 2, "--when-spent", "error", *more]
    said, seen = [], []
    for _ in range(3):
        assert main([*map(str, args), "-o", str(out), "--state", str(state)]) == 1
        said.append(capfd.readouterr().err.splitlines()[-1])
        budget = Budget(total=2.0, when_spent="error")
        kind = {"mechanism": "auto", "batch": 3} if more else {}
        with Streams.open(state, Setting.of(STICKY, epsilon=1.0, budget=budget, **kind)) as store:
            seen.append((out.read_text(), [store.releases(user) for user in ("ann", "bob", "carl")]))
    assert said[0] == said[1] == said[2]
    assert "the output ends before it" in said[0]
    assert seen[0] == seen[1] == seen[2]
    assert sum(len(each) for each in seen[0][1]) >= pl.read_csv(out)["epsilon"].ne(0).sum()


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
        bucket(plain, coins, KeptUsers(), ["ann"]).release(["ann"], codes, [0])
    assert coins.thrown == 0
