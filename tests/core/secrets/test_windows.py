"""The windows that are asked about cover all others: by a program over their rows, and by the account of every one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

import seqveil as sv
from reference.guarding import accounts
from reference.secrets import small_models
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets.ahead import ahead
from seqveil.core.secrets.windows import cover
from seqveil.engine import stream
from seqveil.engine.stream import State

LONG = 60
ever, count, joint = sv.secrets.ever, sv.secrets.count, sv.secrets.joint
CASES = {
    "ever": ever(1, epsilon=0.5),
    "one side": ever(1, epsilon=0.5, one_sided=True),
    "three states": count(0, 2, epsilon=1.0),
    "joint": joint(ever(0, epsilon=1.0), ever(1, epsilon=1.0)),
}


def asked_rows(plan, window, step, epsilon):
    """What a window asks at an event, in every state of automaton and chain, for each pair of values: (P, K)."""
    table, prior = plan.inside[window - step - 1].reshape(plan.values, -1), plan.family_priors[window - 1]
    every = [(v, w) for v in range(plan.values) for w in range(plan.values) if v != w]
    bounded = [(1, 0)] if plan.secret.one_sided else every
    return np.array([
        table[v] / prior[v] - math.exp(epsilon) * table[w] / prior[w] if prior[v] and prior[w] else 0.0 * table[v]
        for v, w in bounded
    ])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_asked_implies_every_promise(case, longest):
    """For each window that is not asked about, a mixture of the rows that are is at least its own, in every state."""
    longest(LONG)
    asked = left = 0
    for model in small_models(len(case)):
        plan = ahead(model, CASES[case])
        for step in (0, 3, 17, 40):
            live = np.arange(step + 1, LONG + 1)
            chosen, epsilons = cover(plan).at(step)
            asked, left = asked + chosen.size, left + live.size - chosen.size
            assert (epsilons <= plan.aim).all()
            rows = [asked_rows(plan, T, step, e) for T, e in zip(chosen, epsilons, strict=True)]
            for window in np.setdiff1d(live, chosen)[:: plan.values].tolist():
                for pair, row in enumerate(asked_rows(plan, window, step, plan.secret.epsilon)):
                    mixed = np.array([each[pair] for each in rows]).T
                    scale = np.abs(mixed).max(1) + 1e-12
                    found = linprog(np.ones(chosen.size), -mixed / scale[:, None], -row / scale, bounds=(0, None))
                    assert found.status == 0
    assert asked < left


@pytest.mark.slow
@pytest.mark.parametrize("dial", [0.0, math.inf])
@pytest.mark.parametrize("case", CASES)
def test_no_window_is_moved_further_than_promised_though_few_are_asked_about(case, dial, longest):
    longest(LONG)
    for seed, model in enumerate(small_models(7)):
        setting = sv.Policy(secrets=CASES[case], side_information=dial).on(model)
        state, randomness = State.start(setting, 6), SeededRandomness(seed)
        for codes in model.sample(20, 6, seed=seed).T:
            _, state = stream.step(setting, state, codes, randomness)
            for each in state.trackers:
                tracker = each.rows[0][0]
                assert len(accounts(tracker)) == LONG - tracker.step
                moved = [one.log_odds if CASES[case].one_sided else abs(one.log_odds) for one in accounts(tracker)]
                assert max(moved) <= CASES[case].total
