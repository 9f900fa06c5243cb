"""Bulk work in parts: the same to the last bit whatever the number of threads."""

import os

import numpy as np
import pytest

from reference import streams as ref
from seqveil.core import bulk, filtering
from seqveil.core.alphabet import UNKNOWN
from seqveil.core.leakage import FEW, Leakages, pass_over
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness, SystemRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, step


@pytest.fixture
def four(monkeypatch):
    """Four threads, however many cores there are, and parts that a test can fill."""
    monkeypatch.setattr(bulk, "threads", lambda: 4)
    monkeypatch.setattr(bulk, "PART", 100)


def test_parts_cover_every_row_once(four):
    for rows in (0, 1, 99, 100, 399, 400, 1000, 12_345):
        found = bulk.in_parts(rows, lambda part: np.arange(part.start, part.stop))
        assert np.array_equal(np.concatenate(found), np.arange(rows))


@pytest.mark.parametrize("mechanism", ["optimal", "crr"])
@pytest.mark.parametrize("sparse", [False, True])
def test_releases_beliefs_and_accounts_are_those_of_one_thread(mechanism, sparse, monkeypatch):
    if not bulk.load():
        pytest.skip("numba is not installed")
    rng = np.random.default_rng(3)
    distribution = rng.dirichlet(np.full(9, 0.6), 9)
    if sparse:
        distribution = np.where(rng.random((9, 9)) < 0.4, 0.0, distribution) + 0.1 * np.eye(9)
    model = MarkovModel(np.full(9, 1 / 9), distribution / distribution.sum(1, keepdims=True))
    codes = model.sample(4, 1111, seed=5).T
    codes[:, 7] = UNKNOWN  # a value outside the alphabet
    setting, states = Policy(epsilon=1.0, mechanism=mechanism).on(model), []
    for threads in (1, 3):
        monkeypatch.setattr(bulk, "threads", lambda count=threads: count)
        monkeypatch.setattr(bulk, "PART", 100)
        state, randomness, released = State.start(setting, 1111), SeededRandomness(7), []
        for event in codes:
            made, state = step(setting, state, event, randomness)
            released.append(made.codes)
        account = state.account
        states.append([*released, state.states, account.most, account.least, account.ahead_most])
    for one, three in zip(*states, strict=True):
        assert np.array_equal(one, three)


def test_a_forked_process_has_threads_of_its_own(four):
    assert bulk.in_parts(1000, lambda part: part.start)
    child = os.fork()
    if not child:
        os._exit(0 if len(bulk.in_parts(1000, lambda part: part.start)) > 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_randomness_of_the_system_are_uniform_in_every_part(four):
    thrown = SystemRandomness().draw(4000)
    assert thrown.min() >= 0
    # the chance that a quarter of 1000 randomness each lies below the middle less than 380 times: under 1e-12
    assert all(380 < (part < 2**61).sum() < 620 for part in np.split(thrown, 4))


PERIODIC = MarkovModel([0.5, 0.5, 0.0], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
STICKY = MarkovModel([0.9, 0.1], [[0.9999, 0.0001], [0.0003, 0.9997]])
FAINT = MarkovModel([1.0, 0.0], [[1.0 - 1e-12, 1e-12], [1e-200, 1.0]])  # whose powers leave the floats


def chains():
    rng = np.random.default_rng(3)
    for n, order, zeros in ((4, 1, False), (5, 1, True), (3, 2, True)):
        initial, rows = ref.random_chain(rng, n, order, zeros)
        yield MarkovModel(initial, rows, order)
    yield from (PERIODIC, STICKY, FAINT)


@pytest.mark.parametrize("model", list(chains()), ids=lambda model: f"{model.size} states")
@pytest.mark.parametrize("steps", [1, FEW, FEW + 1, 333])
def test_a_jump_is_its_steps(model, steps):
    states = filtering.start(model, 3)
    states[1] = filtering.predict(model, states)[1]
    account = Leakages.start(model, 3)
    account = Leakages(account.most, account.least, account.ahead_most + 1.5, account.ahead_least - 0.5)
    distribution, after = pass_over(model, states, account, steps)
    for _ in range(steps):
        states, account = filtering.predict(model, states), account.skip(model)
    assert filtering.clear(distribution) == pytest.approx(filtering.clear(states), rel=1e-9, abs=1e-15)
    assert ((distribution == 0) == (states == 0)).all()
    assert (after.ahead_most == account.ahead_most).all()
    assert (after.ahead_least == account.ahead_least).all()


def test_a_row_does_not_depend_on_others():
    model = next(chains())
    states = np.random.default_rng(1).dirichlet(np.ones(4), 5)
    account = Leakages.start(model, 5)
    together, _ = pass_over(model, states, account, 1000)
    for k in range(5):
        alone, _ = pass_over(model, states[k : k + 1], account.take(slice(k, k + 1)), 1000)
        assert (alone[0] == together[k]).all()
