"""A refusal or a failure takes back nothing that was drawn, and throws no coin again."""

import numpy as np
import pytest

import sparks
from filed import release_file
from reference_streams import Rows
from seqveil import Budget, MarkovModel, Session
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.files.release import guarantee

STICKY = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


class Counted:
    """Randomness that are counted."""

    private = True

    def __init__(self):
        self.thrown, self._randomness = 0, SeededRandomness(3)

    def draw(self, count):
        self.thrown += count
        return self._randomness.draw(count)


def test_times_that_go_back_are_refused_before_a_uniform_is_thrown(tmp_path):
    budget, randomness = Budget(per_window=1.0, seconds=5.0), Counted()
    setting = Policy(epsilon=1.0, budget=budget, mechanism="balanced").on(STICKY)
    users, times = ["ann", "bob", "ann"], np.array([2.0, 1.0, 1.0])
    with CodeStreams.open(tmp_path / "s.db", setting, randomness=randomness) as store:
        for wrong in (times, np.array([0.0, np.nan, 1.0])):
            with pytest.raises(InputError, match="time"):
                store.release(users, [0, 0, 0], [0, 0, 1], wrong)
        assert store.accounts().users == []
    streams = CodeStreams(setting, randomness=randomness)
    with pytest.raises(InputError, match="times"):
        streams.release(users, np.zeros(3, int), times=times)
    assert (streams.accounts().users, randomness.thrown) == ([], 0)


@pytest.mark.parametrize("rows", [[2, -1], [3], [0, 0], [0.0, 1.0]])
def test_a_state_takes_rows_that_are_there_each_once(rows):
    fleet = Rows(Policy(epsilon=1.0).on(STICKY), users=3)
    with pytest.raises(InputError):
        fleet.release(np.array(rows), np.zeros(len(rows), int), SeededRandomness(1))
    assert fleet.state.steps.tolist() == [0, 0, 0]


WRONG = {"float": np.array([1.9]), "bool": np.array([True]), "text": np.array(["1"]), "list": [0.0], "high": [2]}


@pytest.mark.parametrize("codes", WRONG.values(), ids=WRONG)
def test_codes_that_are_not_whole_are_refused_everywhere(tmp_path, codes):
    plain, tree = Policy(epsilon=1.0).on(STICKY), Policy(epsilon=1.0, batch=2, mechanism="tree").on(STICKY)
    randomness = Counted()
    for name, setting, given in (("s.db", plain, codes), ("t.db", tree, [codes])):
        with CodeStreams.open(tmp_path / name, setting, randomness=randomness) as store:
            with pytest.raises(InputError, match="whole numbers"):
                store.release(["ann"], given, [0])
            assert store.accounts().users == []
    with pytest.raises(InputError, match="whole numbers"):
        CodeStreams(plain, randomness=randomness).release(["ann"], codes)
    with pytest.raises(InputError, match="whole numbers"):
        Rows(plain, users=1).release(np.array([0]), codes, randomness)
    with pytest.raises(InputError, match="whole numbers"):
        sparks.bucket(plain, sparks.MapState(), randomness).release(["ann"], codes, [0])
    assert randomness.thrown == 0


LEANING = MarkovModel([0.1, 0.9], [[0.9, 0.1], [0.1, 0.9]])


def file_of(folder, times, values):
    rows = "".join(f"ann,{time},{value}\n" for time, value in zip(times, values, strict=True))
    (folder / "data.csv").write_text("user,time,value\n" + rows)
    return folder / "data.csv"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["optimal", "tree"])
@pytest.mark.parametrize(
    ("times", "window"),
    [
        ([0, 2, 4, 10_000_000_000], 0.001),
        ([1_000_000_000, 1_700_000_000_000], 0.2),
        ([50_000_000_000, 1_700_000_000_000], 60.0),
    ],
    ids=["too coarse for the window", "too coarse beside another unit", "back in seconds"],
)
def test_a_file_with_a_wrong_time_is_refused_whatever_is_drawn(tmp_path, monkeypatch, mechanism, times, window):
    """Sixty seeds: some spend the budget before the wrong row, some do not; all are refused, and nothing is drawn."""
    budget = Budget(total=1.0, per_window=8.0, seconds=window, when_spent="stop")
    batch = 1 if mechanism == "optimal" else 2
    setting = Policy(epsilon=4.0, batch=batch, budget=budget, mechanism=mechanism).on(LEANING)
    times = [time + k for time in times for k in range(batch)]
    data = file_of(tmp_path, times, [k % 2 for k in range(len(times))])
    thrown = []
    real = SeededRandomness.draw
    monkeypatch.setattr(SeededRandomness, "draw", lambda self, count: (thrown.append(count), real(self, count))[1])
    for seed in range(60):
        with pytest.raises(InputError):
            release_file(data, setting, tmp_path / "out.csv", seed=seed)
        assert not (tmp_path / "out.csv").exists()
    assert thrown == []


def test_a_window_of_batches_counts_batches_whatever_times_come_with_them():
    budget, found = Budget(per_window=1.0, releases=5), []
    for time in (lambda k: None, lambda k: 0.1 * k, lambda k: -100.0 + k, lambda k: 1.7e9 + k):
        session = Session(LEANING, mechanism="tree", epsilon=1.0, batch=2, budget=budget, seed=1)
        spent = []
        for k in range(30):
            session.release_batch([k % 2, 0], time(k))
            spent.append(session.account.epsilon_spent)
        found.append(spent)
    assert found[0][-1] < 20.0
    assert all(each == found[0] for each in found)


def test_a_store_refuses_wrong_times_before_it_draws_however_little_memory_it_has(tmp_path):
    setting = Policy(epsilon=1.0, budget=Budget(per_window=2.0, seconds=60.0), mechanism="optimal").on(LEANING)
    with CodeStreams.open(tmp_path / "s.db", setting, memory=1) as store:
        store.release(["bob"], [0], [0], [50.0])
        with pytest.raises(InputError):
            store.release(["ann", "bob"], [0, 0], [0, 1], [100.0, 40.0])
        assert store.account("ann") is None or store.account("ann").events == 0


def test_the_guarantee_says_what_a_window_counts():
    words = guarantee(Policy(epsilon=1.0, budget=Budget(per_window=1.0, releases=5, when_spent="stop")).on(LEANING))
    assert "any 5 events in a row, whether released or not" in words
