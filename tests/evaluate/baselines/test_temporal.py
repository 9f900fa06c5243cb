"""Temporal privacy leakage: the quantifier against brute force, the recursion against enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from experiments.temporal_leakage import leakage
from reference import streams as ref
from seqveil import mechanisms
from seqveil.core.errors import InputError
from seqveil.evaluate.baselines.temporal import Quantifier, middle, quantifiers

seeds = st.integers(0, 2**32 - 1)
STICKY = sv.MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.2, 0.8]])


def best_of_all_sets(transitions, alpha):
    """L(α) with every pair of rows and every set of symbols written out."""
    n, gain = len(transitions), math.expm1(alpha)
    sets = [list(s) for size in range(1, n + 1) for s in itertools.combinations(range(n), size)]
    pairs = itertools.permutations(transitions, 2)
    return max(math.log((q[s].sum() * gain + 1) / (d[s].sum() * gain + 1)) for q, d in pairs for s in sets)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(seed=seeds, n=st.integers(2, 6), zeros=st.booleans(), alpha=st.floats(1e-6, 8))
def test_the_hull_gives_what_brute_force_gives(seed, n, zeros, alpha):
    transitions = ref.random_chain(np.random.default_rng(seed), n, 1, zeros)[1]
    found = Quantifier.of(transitions)(alpha)
    assert found == pytest.approx(best_of_all_sets(transitions, alpha), abs=1e-12)
    assert found <= alpha + 1e-12


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=st.integers(2, 5), order=st.sampled_from([1, 2]), alpha=st.floats(0.05, 4))
def test_the_middle_of_a_long_stream_leaks_what_it_may(seed, n, order, alpha):
    rng = np.random.default_rng(seed)
    prior, transitions = ref.random_chain(rng, min(n, 3) if order == 2 else n, order)
    model = sv.MarkovModel(prior, transitions, order=order)
    longer = leakage(model, np.full(400, middle(model, alpha)))[2]
    assert longer.max() <= alpha * (1 + 1e-9)
    if order == 1:  # of two symbols back what the middle comes to is a bound, which need not be met
        assert longer.max() == pytest.approx(alpha, rel=1e-4)  # what the middle of a long stream comes to
    assert leakage(model, np.full(200, middle(model, alpha)))[2].max() <= alpha * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("order", "zeros"), [(1, False), (1, True), (2, False)])
def test_no_release_tells_more_of_an_event_than_its_temporal_leakage(seed, order, zeros):
    """All streams and all releases of randomised response on a stationary chain, by Bayes."""
    rng = np.random.default_rng(seed)
    n, length = (3, 4) if order == 1 else (2, 6)
    distribution, transitions = ref.random_chain(rng, n, order, zeros)
    for _ in range(4000):  # the distribution of `order` symbols in a row, once the chain has run for long
        distribution = 0.5 * distribution + 0.5 * (distribution[..., None] * transitions).sum(0)
    model = sv.MarkovModel(distribution, transitions, order=order)
    epsilons = rng.uniform(0.1, 1.5, length)
    disclosed = [np.where(np.eye(n) > 0, math.exp(e), 1.0) / (math.exp(e) + n - 1) for e in epsilons]
    bound = leakage(model, epsilons)[2]
    streams = np.array(list(itertools.product(range(n), repeat=length)))
    chance = distribution[tuple(streams[:, :order].T)]
    for t in range(order, length):
        chance = chance * transitions[tuple(streams[:, t - order : t + 1].T)]
    likely = np.prod([disclosed[t][x][:, x] for t, x in enumerate(streams.T)], axis=0)  # (stream, release)
    worst = np.zeros(length)
    for t in range(length):
        shares = [np.where(streams[:, t] == x, chance, 0.0) for x in range(n)]
        logs = np.log([share @ likely / share.sum() for share in shares if share.sum() > 1e-12])
        worst[t] = (logs.max(0) - logs.min(0)).max()
    assert (worst <= bound + 1e-9).all()
    assert (worst > (0.5 if order == 1 else 0.2) * bound).all()  # the bound is no idle one


def test_a_chain_without_change_leaves_nothing_and_one_without_memory_everything():
    frozen = sv.MarkovModel([0.5, 0.5], np.eye(2))
    assert middle(frozen, 1.0) == 0.0
    kernel = sv.Session(frozen, mechanism="temporal", epsilon=1.0).kernel()
    assert kernel.ldp() == 0.0
    free = sv.MarkovModel([0.3, 0.7], [[0.3, 0.7], [0.3, 0.7]])
    assert middle(free, 1.0) == pytest.approx(1.0, abs=1e-8)
    model = sv.MarkovModel([1.0, 0.0, 0.0], [[0.0, 0.5, 0.5], [0.0, 0.8, 0.2], [0.0, 0.2, 0.8]])
    for mine, wanted in zip(quantifiers(model), quantifiers(STICKY), strict=True):  # a state that dies out is left out
        assert mine(1.0) == pytest.approx(wanted(1.0))


def test_a_session_releases_at_the_middle_share():
    kernel = sv.Session(STICKY, mechanism="temporal", epsilon=1.0).kernel()
    assert kernel.ldp() == pytest.approx(middle(STICKY, 1.0), abs=1e-9)
    alone = mechanisms.get("temporal").kernels(np.array([[0.5, 0.5]]), 1.0).one(0)
    assert alone.ldp() == pytest.approx(1.0, abs=1e-9)
    made = sv.Policy(epsilon=1.0, mechanism="temporal").on(STICKY).mechanism
    assert sv.Policy(epsilon=1.0, mechanism=made).on(STICKY).mechanism.name == "temporal"


def test_models_with_too_many_states_are_refused_at_once():
    large = sv.MarkovModel(np.full(300, 1 / 300), np.full((300, 300), 1 / 300))
    for expected, act in (
        ("states", lambda: sv.Policy(epsilon=1.0, mechanism="temporal").on(large)),
        ("states", lambda: middle(large, 1.0)),
        ("α", lambda: middle(STICKY, 0.0)),
        ("ε", lambda: leakage(STICKY, [])),
    ):
        with pytest.raises(InputError, match=expected):
            act()
