"""A release weighed under another chain: against Bayes over every sequence, in exact fractions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_batches
import reference_streams as streams
from seqveil import MarkovModel, Setting
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import InputError
from seqveil.engine import batches
from seqveil.engine.stream import State
from seqveil.receiver.reweigh import Against, Reweighed

SEEDS = st.integers(0, 2**32 - 1)


def chains(seed, order):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    mine = MarkovModel(*streams.random_chain(rng, n))
    prior, transitions = streams.random_chain(rng, n, order, zeros=bool(rng.random() < 0.5))
    return rng, mine, (prior, transitions), MarkovModel(prior, transitions, order)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, order=st.integers(1, 2), mechanism=st.sampled_from(["optimal", "randomized_response", "balanced"]))
def test_account_and_belief_are_those_of_all_sequences(seed, order, mechanism):
    rng, mine, (prior, transitions), other = chains(seed, order)
    setting = Setting.of(mine, mechanism, float(rng.uniform(0.2, 2.0)), schedule=int(rng.integers(1, 3)))
    both, columns, coins, codes = Reweighed(setting, other, users=1), [], SeededCoins(seed % 1000), []
    for k in range(4):
        seen = both.release(np.array([0]), rng.integers(0, mine.n, 1), coins)
        columns.append(seen.released.columns[0])
        law = streams.sequence_law(prior, transitions, k + 1)
        most, least = streams.sequence_leakage(law, columns)
        np.testing.assert_allclose([both.account.most[0], both.account.least[0]], [most, least], atol=1e-9)
        assert both.account.most[0] >= most - 1e-15
        assert both.account.least[0] <= least + 1e-15
        assert seen.costs[0] <= 2 * seen.released.epsilons[0] + 1e-9  # 2ε-LDP whatever the truth is
        if k:
            expected = streams.symbol_law(law, columns[:-1], k, mine.n)
            np.testing.assert_allclose(seen.beliefs[0], expected, atol=1e-9)
        codes.append(int(seen.released.codes[0]))
    replay, against = Reweighed(setting, other, users=1), Against(setting, other)
    for code in codes:
        replay.observe(np.array([0]), np.array([code]))
    np.testing.assert_array_equal(replay.account.most, both.account.most)
    np.testing.assert_array_equal(replay.other.states, both.other.states)
    against.take(["ann"] * 4, np.array(codes))
    found = against.report()
    assert (found.worst_user, found.most, found.least) == ("ann", both.account.most[0], both.account.least[0])


def test_under_its_own_model_a_release_weighs_what_it_is_charged():
    rng = np.random.default_rng(4)
    model = MarkovModel(*streams.random_chain(rng, 4))
    setting = Setting.of(model, "optimal", 1.0, schedule=2, budget=3.0)
    many, coins = Reweighed(setting, model, users=30), SeededCoins(8)
    for k in range(12):
        rows = np.sort(rng.permutation(30)[: 30 if k % 2 else 11])
        many.release(rows, rng.integers(0, 4, rows.size), coins)
    np.testing.assert_array_equal(many.account.most, many.own.account.most)
    np.testing.assert_array_equal(many.account.least, many.own.account.least)
    np.testing.assert_array_equal(many.other.states, many.own.states)
    with pytest.raises(InputError, match="at most once"):
        many.release(np.array([1, 1]), np.array([0, 0]), coins)


@pytest.mark.slow
def test_context_free_releases_are_within_epsilon_under_every_chain():
    rng = np.random.default_rng(5)
    none = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    setting = Setting.of(none, "randomized_response", 0.8)
    for seed in range(30):
        other = MarkovModel(*streams.random_chain(np.random.default_rng(seed), 3, zeros=True))
        many = Reweighed(setting, other, users=20)
        for _ in range(5):
            costs = many.release(np.arange(20), rng.integers(0, 3, 20), SeededCoins(seed)).costs
            assert costs.max() <= 0.8 + 1e-9
        assert many.account.worst.max() <= 4.0 + 1e-9


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, mechanism=st.sampled_from(["tree", "tree_ldp"]))
def test_batches_of_the_tree_are_weighed_exactly(seed, mechanism):
    rng = np.random.default_rng(seed)
    mine = reference_batches.random_model(rng, 3)
    prior, transitions = streams.random_chain(rng, 3)
    other = MarkovModel(prior, transitions)
    setting, length = Setting.of(mine, mechanism, float(rng.uniform(1.0, 3.0)), batch=3), 3
    sent, _ = batches.step(setting, State.start(setting), rng.integers(0, 3, length), SeededCoins(seed % 999))
    both = Reweighed(setting, other, users=2)
    cost = both.observe_batch(1, sent.path, length)
    law = streams.sequence_law(prior, transitions, length)
    given_o = {o: float(sent.lift(np.array(o))) for o in law}
    total = sum(float(chance) * given_o[o] for o, chance in law.items())
    assert cost >= max(abs(np.log(given_o[o] / total)) for o, chance in law.items() if chance > 0) - 1e-9
    assert cost <= 2 * setting.epsilon + 1e-9
    last = np.zeros(3)
    for o, chance in law.items():
        last[o[-1]] += float(chance) * given_o[o] / total
    np.testing.assert_allclose(both.other.states[1], last @ transitions, atol=1e-9)


def test_tables_over_batches_are_charged_from_above_and_other_alphabets_refused():
    mine = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    setting = Setting.of(mine, "batch_lp", 2.0, batch=2)
    sent, _ = batches.step(setting, State.start(setting), np.array([0, 1]), SeededCoins(1))
    table = Reweighed(setting, mine, users=1)
    assert table.observe_batch(0, sent.path, 2) == sent.most - sent.least >= max(sent.most, -sent.least)
    assert table.account.worst.tolist() == pytest.approx([sent.most - sent.least])
    with pytest.raises(InputError, match="2 symbols"):
        Reweighed(setting, MarkovModel([1 / 3] * 3, np.full((3, 3), 1 / 3)))
    named = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=["a", "b"])
    with pytest.raises(InputError, match="differently"):
        Reweighed(setting, named)
