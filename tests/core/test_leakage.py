"""The account of a realised stream: against enumeration, from above, per user, and for good once all is said."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import streams as ref
from seqveil.core import filtering
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.leakage import Leakages, log_lifts, weight_range
from seqveil.core.model import MarkovModel

seeds = st.integers(0, 2**32 - 1)


def columns_of(rng, count, n):
    """Random releases: the weights each symbol puts on what was released."""
    return [rng.integers(1, DENOMINATOR, n) >> rng.integers(0, 12, n) for _ in range(count)]


def charged(model, columns):
    """The account of a stream with these columns."""
    states, account = model.initial[None], Leakages.start(model, 1)
    for column in columns:
        weights = column[None].astype(float)
        possible = filtering.symbols(model, states) > 0
        posterior, marginal = filtering.condition(model, states, weights)
        account = account.charge(model, weights, marginal, *weight_range(weights, possible))
        states = filtering.predict(model, posterior)
    return account


@settings(deadline=None, max_examples=30)
@given(seed=seeds, order=st.sampled_from([1, 2]), zeros=st.booleans(), length=st.integers(1, 4))
def test_any_columns_are_charged_what_enumeration_says(seed, order, zeros, length):
    rng = np.random.default_rng(seed)
    n = 2 if order == 2 else 3
    prior, transitions = ref.random_chain(rng, n, order, zeros)
    model, columns = MarkovModel(prior, transitions, order=order), columns_of(rng, length, n)
    account = charged(model, columns)
    most, least = ref.sequence_leakage(ref.sequence_distribution(prior, transitions, length), columns)
    assert most <= account.most[0] + 1e-13  # the model renormalises its rows, so the last bits differ
    assert least >= account.least[0] - 1e-13
    assert account.most[0] == pytest.approx(most, abs=1e-10)
    assert account.least[0] == pytest.approx(least, abs=1e-10)
    assert account.worst[0] == max(account.most[0], -account.least[0])


@settings(deadline=None, max_examples=30)
@given(seed=seeds, n=st.integers(1, 8))
def test_log_lifts_enclose_the_exact_ones(seed, n):
    rng = np.random.default_rng(seed)
    distribution, column = ref.random_belief(rng, n), columns_of(rng, 1, n)[0]
    weights = column[None].astype(float)
    down, up = log_lifts(weights, (distribution * weights).sum(1), n)
    marginal = sum(ref.Fraction(float(b)) * int(w) for b, w in zip(distribution, column, strict=True))
    for x in range(n):
        exact = ref.log(int(column[x]) / marginal)
        assert down[0, x] <= exact <= up[0, x]
        assert up[0, x] - down[0, x] < 1e-12


def test_a_release_that_says_nothing_costs_nothing_however_often():
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    account = charged(model, [np.full(2, DENOMINATOR)] * 500)
    assert 0 <= account.worst[0] < 1e-12


def test_an_account_starts_at_zero():
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    assert math.copysign(1.0, Leakages.start(model, 1).worst[0]) == 1.0  # not -0, which a reader would see printed


@pytest.mark.parametrize("zeros", [False, True])
def test_a_certain_symbol_leaks_without_bound_on_the_side_it_is_disclosed(zeros):
    """A release only one symbol can make rules out all others: log 0, never NaN, and the other side stays exact."""
    rows = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]] if zeros else [[0.4, 0.3, 0.3]] * 3
    model = MarkovModel([0.2, 0.3, 0.5], rows)
    disclosed = np.array([0, DENOMINATOR, 0])
    account = charged(model, [disclosed])
    assert account.least[0] == -math.inf
    assert account.most[0] == pytest.approx(math.log(1 / 0.3))
    account = charged(model, [disclosed, np.full(3, DENOMINATOR)])
    assert account.worst[0] == math.inf
    assert account.most[0] == pytest.approx(math.log(1 / 0.3))


@pytest.mark.parametrize("full", [False, True])
def test_a_release_the_belief_ruled_out_tells_all_for_good(full):
    rows = [[0.5, 0.5], [0.5, 0.5]] if full else [[0.5, 0.5], [0.0, 1.0]]
    model = MarkovModel([1.0, 0.0], rows)
    account = charged(model, [np.array([0, DENOMINATOR])])
    assert account.worst[0] == math.inf
    account = charged(model, [np.array([0, DENOMINATOR]), np.full(2, DENOMINATOR)])
    assert account.worst[0] == math.inf


def test_weights_alike_over_symbols_are_charged_where_they_depend_on_what_came_before():
    """With memory a symbol counts with its largest and least weight; both alike over symbols do not make it silent."""
    model = MarkovModel([0.5, 0.5], [[0.5, 0.5], [1.0, 0.0]])
    most, least = np.array([[4, 4]], np.int64), np.array([[0, 0]], np.int64)
    start = Leakages.start(model, 1)
    disclosed = start.charge(model, most, np.array([2.0]), least[:, 0], most[:, 0], least)
    assert disclosed.least[0] == -np.inf
    assert disclosed.most[0] >= np.log(2.0)
    silent = start.charge(model, most, np.array([4.0]), most[:, 0], most[:, 0], most)
    assert (silent.most[0], silent.least[0]) == (0.0, 0.0)
