"""Trees shared by users who are alike so far: kept from the second time on, within a memory, and never a wrong one."""

from __future__ import annotations

import numpy as np

from seqveil import MarkovModel, Setting, distortion
from seqveil.core.coins import SeededCoins
from seqveil.core.mechanisms import Batch
from seqveil.core.mechanisms.rule_cache import RuleCache
from seqveil.core.mechanisms.trees import Tree, plant
from seqveil.release import batches
from seqveil.release.stream import State

AWAY = distortion.absolute(np.arange(600.0))


def line(n: int = 600) -> MarkovModel:
    steps = np.zeros((n, n))
    for away, chance in ((-1, 0.25), (0, 0.5), (1, 0.25)):
        at = np.arange(n)
        steps[at, np.clip(at + away, 0, n - 1)] += chance
    return MarkovModel(np.full(n, 1 / n), steps)


def batch(model: MarkovModel, states: np.ndarray) -> Batch:
    return Batch(model, states, 1, 1.0, AWAY)


def never(context: Batch) -> bool:
    return False


def test_kept_from_the_second_time_on():
    built = []

    def build(context: Batch, keep: bool) -> Tree:
        built.append(keep)
        return plant(context, kept=keep)

    rules, model = RuleCache(build, never), line()
    for _ in range(4):
        rules(batch(model, model.initial.copy()))
    assert built == [False, True]
    assert len(rules) == 1


def test_what_is_small_is_kept_at_once_and_shared_by_equal_distortions():
    built = []

    def build(context: Batch, keep: bool) -> Tree:
        built.append(keep)
        return plant(context, kept=keep)

    rules, model = RuleCache(build), line()
    for costs in (distortion.absolute(np.arange(600.0)), AWAY, distortion.squared(np.arange(600.0))):
        rules(Batch(model, model.initial, 1, 1.0, costs))
    assert built == [True, True]
    assert len(rules) == 2


def test_a_changed_state_is_another_context():
    """The kept tree has its own copy of the states, and equal marks alone are not enough."""
    rules, model = RuleCache(lambda context, keep: plant(context, kept=keep), never), line()
    states = model.initial.copy()
    for _ in range(2):
        kept = rules(batch(model, states))
    assert rules(batch(model, states)) is kept
    states[:300] *= 1.5
    states[300:] *= 0.5
    assert kept.batch.states.max() == kept.batch.states.min()
    assert rules(batch(model, states)) is not kept


def test_memory_is_bounded():
    model = line()
    one = plant(batch(model, model.initial), kept=True).memory
    rules = RuleCache(lambda context, keep: plant(context, kept=keep), never, memory=3 * one)
    rng = np.random.default_rng(1)
    for _ in range(9):
        states = rng.dirichlet(np.ones(model.n))
        for _ in range(2):
            rules(batch(model, states))
        assert len(rules) <= 3


def test_releases_are_those_of_fresh_trees(monkeypatch):
    """Many users, sharing trees or not: the same releases, states and accounts."""
    setting = Setting.of(line(), "tree", 1.5, AWAY)
    codes = setting.model.sample(3, 12, seed=3)

    def run() -> list[State]:
        coins, states = SeededCoins(4), [State.start(setting) for _ in range(12)]
        for event in codes.T:
            for user, code in enumerate(event):
                _, states[user] = batches.step(setting, states[user], np.array([code]), coins)
        return states

    shared = run()
    monkeypatch.setattr(RuleCache, "__call__", lambda cache, context: plant(context))
    for one, two in zip(shared, run(), strict=True):
        assert np.array_equal(one.states, two.states)
        assert one.account.worst == two.account.worst
