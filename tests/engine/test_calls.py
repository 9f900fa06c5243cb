"""Calls of several events, enumerated whole: every raw sequence, every cut into calls, every outcome of every draw.

What a client sees must leak no more than the budget and the ledger say.
"""

import itertools

import numpy as np
import pytest

import sparks
from benchmarks.calls import BUDGETS, POLICIES, InMemory, InStore, scripted, setting_of, worst_of_all
from seqveil import Budget, MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams

WAYS = list(itertools.product(POLICIES, BUDGETS))


class InBucket:
    """Spark's bucket in memory: a micro-batch is a call."""

    def __init__(self, setting):
        self._setting = setting

    def begin(self):
        self._shelf = sparks.MapState()

    def call(self, seqs, raw):
        streams = sparks.bucket(self._setting, self._shelf, SeededRandomness(0))
        return tuple(streams.release(["ann"] * len(raw), raw, list(seqs)).codes.tolist())

    def ledger(self):
        _, _, _, most, least, *_ = self._shelf["ann",]
        return max(most, -least)


def assert_sound(found):
    assert found.excess <= 1e-9


@pytest.mark.parametrize(("policy", "budget"), WAYS)
@pytest.mark.parametrize("length", [1, 2, *(pytest.param(more, marks=pytest.mark.slow) for more in (3, 4))])
def test_calls_to_streams_in_memory_leak_what_the_ledger_says(policy, budget, length):
    setting = setting_of(budget, policy)
    with scripted() as script:
        assert_sound(worst_of_all(InMemory(setting), script, setting, length))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "budget"), WAYS)
def test_calls_to_a_store_leak_what_the_ledger_says(tmp_path, policy, budget):
    setting = setting_of(budget, policy)
    with scripted() as script:
        world = InStore(tmp_path / "s.db", setting)
        for length in (2, 3, 4) if budget == "total" else (3,):
            assert_sound(worst_of_all(world, script, setting, length))
        world.store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "budget"), WAYS)
def test_micro_batches_leak_what_the_ledger_says(policy, budget):
    setting = setting_of(budget, policy)
    with scripted() as script:
        assert_sound(worst_of_all(InBucket(setting), script, setting, 4))


STICKY = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


class Counted:
    """Randomness that are counted."""

    private = True

    def __init__(self):
        self.thrown, self._randomness = 0, SeededRandomness(3)

    def draw(self, count):
        self.thrown += count
        return self._randomness.draw(count)


@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_times_that_go_back_are_refused_before_a_uniform_is_thrown(tmp_path, memory):
    budget, randomness = Budget(per_window=1.0, seconds=5.0), Counted()
    setting = Policy(epsilon=1.0, budget=budget, mechanism="balanced").on(STICKY)
    users, times = ["ann", "bob", "ann"], np.array([2.0, 1.0, 1.0])
    with CodeStreams.open(tmp_path / "s.db", setting, randomness=randomness, memory=memory) as store:
        for wrong in (times, np.array([0.0, np.nan, 1.0])):
            with pytest.raises(InputError, match="time"):
                store.release(users, [0, 0, 0], [0, 0, 1], wrong)
        assert store.accounts().users == []
        assert randomness.thrown == 0
        store.release(["bob"], [0], [0], [50.0])
        thrown = randomness.thrown
        with pytest.raises(InputError, match="time"):
            store.release(["ann", "bob"], [0, 0], [0, 1], [100.0, 40.0])  # back from what the file has seen
        assert (store.accounts().users, randomness.thrown) == (["bob"], thrown)
    streams = CodeStreams(setting, randomness=randomness)
    with pytest.raises(InputError, match="times"):
        streams.release(users, np.zeros(3, int), times=times)
    assert (streams.accounts().users, randomness.thrown) == ([], thrown)
