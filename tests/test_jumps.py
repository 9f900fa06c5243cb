"""Many symbols passed over in one step are the same as one by one."""

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core import filtering
from seqveil.core.leakage import FEW, Leakages, pass_over
from seqveil.core.model import MarkovModel

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
@pytest.mark.parametrize("steps", [1, FEW, FEW + 1, 100, 333, 1000])
def test_a_jump_is_its_steps(model, steps):
    states = filtering.start(model, 3)
    states[1] = filtering.predict(model, states)[1]
    account = Leakages.start(model, 3)
    account = Leakages(account.most, account.least, account.ahead_most + 1.5, account.ahead_least - 0.5)
    law, after = pass_over(model, states, account, steps)
    for _ in range(steps):
        states, account = filtering.predict(model, states), account.skip(model)
    assert filtering.clear(law) == pytest.approx(filtering.clear(states), rel=1e-9, abs=1e-15)
    assert ((law == 0) == (states == 0)).all()
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
