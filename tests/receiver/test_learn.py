"""Learning from releases: expected counts against every sequence written out, EM, mixtures."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_streams import Rows
from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.receiver.evidence import by_user
from seqveil.receiver.learn import Chain, Evidence, climb, expect, held_out, learn, likelihoods, region

SEEDS = st.integers(0, 2**32 - 1)


def random_case(seed, order):
    """A chain, and a log of a few short streams with arbitrary likelihoods."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    chain = Chain(rng.dirichlet(np.ones(n**order)), rng.dirichlet(np.ones(n), size=n**order))
    lengths = rng.integers(1, 6, size=int(rng.integers(1, 5)))
    users = rng.permutation(np.repeat(np.arange(lengths.size), lengths))
    table = rng.random((int(rng.integers(1, 7)), n)) + 0.01
    return rng, chain, Evidence(table, users, rng.integers(0, len(table), users.size))


def brute_force(evidence, chain, user):
    """First contexts, moves and likelihood of one user, by all sequences."""
    n, order = chain.n, chain.order
    says = evidence.table[evidence.index[evidence.users == user]]
    first, moves, total = np.zeros_like(chain.first), np.zeros_like(chain.rows), 0.0
    longest = max(len(says), order)
    for x in itertools.product(range(n), repeat=longest):
        weight = chain.first.reshape((n,) * order)[x[:order]]
        for k in range(order, longest):
            weight *= chain.rows.reshape((n,) * (order + 1))[x[k - order : k + 1]]
        weight *= np.prod([says[k][x[k]] for k in range(len(says))])
        total += weight
        first[np.ravel_multi_index(x[:order], (n,) * order)] += weight
        for k in range(order, longest):
            moves[np.ravel_multi_index(x[k - order : k], (n,) * order), x[k]] += weight
    return first / total, moves / total, np.log(total)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, order=st.integers(1, 3))
def test_expected_counts_are_those_of_all_sequences(seed, order):
    _, chain, evidence = random_case(seed, order)
    firsts, moves, logs = zip(*(brute_force(evidence, chain, u) for u in np.unique(evidence.users)), strict=True)
    found = expect(evidence, chain)
    np.testing.assert_allclose(found.first, sum(firsts), atol=1e-10)
    np.testing.assert_allclose(found.moves, sum(moves), atol=1e-10)
    np.testing.assert_allclose(found.log_likelihood, sum(logs), atol=1e-9)
    np.testing.assert_allclose(sorted(likelihoods(evidence, chain)), sorted(logs), atol=1e-9)
    apart = [np.concatenate(part) for part in zip(*by_user(evidence, chain), strict=True)]
    np.testing.assert_allclose(apart[0].sum(0), sum(firsts), atol=1e-10)
    np.testing.assert_allclose(sorted(apart[1].reshape(len(logs), -1)[:, 0]), sorted(m[0, 0] for m in moves), atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, order=st.integers(1, 2))
def test_statistics_add_up_over_users_and_blocks(seed, order):
    rng, chain, evidence = random_case(seed, order)
    chosen = rng.random(int(evidence.users.max()) + 1) < 0.5
    parts = [evidence.of_users(mask) for mask in (chosen, ~chosen)]
    parts = [expect(part, chain) for part in parts if part.events]
    whole = expect(evidence, chain)
    np.testing.assert_allclose(sum((p.moves for p in parts), np.zeros_like(whole.moves)), whole.moves, atol=1e-12)
    assert sum(p.users for p in parts) == whole.users
    assert sum(p.events for p in parts) == whole.events
    deeper = expect(evidence, chain.deeper(chain.order + 1))
    np.testing.assert_allclose(deeper.log_likelihood, whole.log_likelihood, atol=1e-9)


def test_blocks_hold_every_event_once_whatever_their_size():
    rng = np.random.default_rng(3)
    users = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 30, 40)))
    evidence = Evidence(rng.random((9, 3)) + 0.1, users, rng.integers(0, 9, users.size))
    for numbers, most in ((1, 1), (40, 7), (10_000, 1000)):
        seen = [
            index[u, : lengths[u]] for index, lengths in evidence.blocks(numbers, most) for u in range(len(lengths))
        ]
        expected = [evidence.index[users == u] for u in range(40)]
        assert sorted(map(tuple, seen)) == sorted(map(tuple, expected))


def released_by(setting, truth, seed):
    randomness = SeededRandomness(1_000_003 + seed)  # another generator than the truth was drawn by
    fleet = Rows(setting, len(truth))
    return np.stack([fleet.release(np.arange(len(truth)), step, randomness).codes for step in truth.T], axis=1)


STICKY = MarkovModel([0.6, 0.3, 0.1], [[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]])
NONE = MarkovModel([1 / 3] * 3, np.full((3, 3), 1 / 3))


def distance(model, truth=STICKY):
    return float(np.abs(model.chain.toarray() - truth.chain.toarray()).sum(1).max() / 2)


def test_evidence_is_what_the_kernels_give_each_symbol_and_equal_columns_of_a_round_stand_once():
    raw = STICKY.sample(9, users=20, seed=1)
    for epsilon in (1.0, 3.0):
        budget = Budget(ldp_total=4 * epsilon)
        setting = Policy(epsilon=epsilon, mechanism="randomized_response", budget=budget).on(NONE)
        codes = np.array(released_by(setting, raw, 1))
        found = Evidence.of(setting, codes)
        said = found.table[found.index].reshape(20, 9, 3)
        truth = np.where(np.eye(3)[codes] > 0, np.exp(epsilon), 1.0) / (np.exp(epsilon) + 2)
        truth[:, 4:] = 1.0  # held: it says nothing
        np.testing.assert_allclose(said, truth, rtol=1e-10)  # a table of integers
        assert len(found.table) <= 9 * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        Policy(epsilon=0.7, mechanism="randomized_response").on(NONE),
        Policy(epsilon=2.0, mechanism="randomized_response", budget=Budget(ldp_total=40.0)).on(NONE),
        Policy(epsilon=1.0, mechanism="optimal").on(STICKY),
    ],
    ids=["response", "until a budget is gone", "optimal"],
)
def test_the_chain_is_learned_whatever_released_it(setting):
    truth = STICKY.sample(30, users=900, seed=2)
    learned = learn(Evidence.of(setting, released_by(setting, truth, 1)))
    assert learned.found.users == 900
    assert learned.converged
    assert distance(learned.model) < 0.12


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, order=st.integers(1, 2))
def test_likelihood_times_prior_never_falls(seed, order):
    _, chain, evidence = random_case(seed, order)
    centre = Chain.uniform(chain.n, order)
    values = [climb(evidence, chain, centre, 1.0, rounds, 0.0).value for rounds in range(1, 10)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))


@pytest.mark.slow
def test_the_region_holds_the_truth_about_as_often_as_it_says():
    """24 fits at 90%: were each to miss with probability 0.1, more than 9 misses have probability below 1e-4."""
    setting = Policy(epsilon=1.5, mechanism="randomized_response").on(NONE)
    missed, sizes = 0, []
    for seed in range(24):
        evidence = Evidence.of(setting, released_by(setting, STICKY.sample(20, users=300, seed=seed), seed))
        found = region(learn(evidence, strength=3.0), evidence, 0.9)
        off = np.abs(found.learned.chain.rows - STICKY.chain.toarray()).sum(1) / 2
        missed += bool((off > found.rows).any())
        sizes.append(found.rows.max())
    assert missed <= 9
    assert np.median(sizes) < 0.35  # and is of use


@pytest.mark.slow
def test_streams_of_unequal_length_and_events_without_release():
    setting = Policy(epsilon=2.0, budget=20.0, mechanism="randomized_response").on(NONE)
    truth = [row[: 5 + k % 30] for k, row in enumerate(STICKY.sample(40, users=200, seed=4))]
    released = [released_by(setting, row[None], k)[0] for k, row in enumerate(truth)]
    learned = learn(Evidence.of(setting, released))
    assert learned.found.events == sum(map(len, truth))
    assert distance(learned.model) < 0.2
    silent = Evidence(np.ones((1, 3)), np.zeros(5, np.int64), np.zeros(5, np.int64))
    np.testing.assert_allclose(expect(silent, Chain.uniform(3)).moves, np.full((3, 3), 4 / 9))


@pytest.mark.slow
def test_order_two_is_disclosed_from_order_one():
    rng = np.random.default_rng(1)
    rows = np.zeros((2, 2, 2))
    rows[0, 0], rows[0, 1], rows[1, 0], rows[1, 1] = (0.9, 0.1), (0.1, 0.9), (0.2, 0.8), (0.1, 0.9)
    truth = MarkovModel(np.full((2, 2), 0.25), rows, order=2)
    none = MarkovModel([0.5, 0.5], np.full((2, 2), 0.5))
    setting = Policy(epsilon=1.5, mechanism="randomized_response").on(none)
    released = released_by(setting, truth.sample(40, users=1500, seed=int(rng.integers(99))), 2)
    learned = learn(Evidence.of(setting, released), order=2)
    assert learned.model.order == 2
    np.testing.assert_allclose(learned.chain.rows, rows.reshape(4, 2), atol=0.12)
    one = learn(Evidence.of(setting, released))
    assert learned.held_out.gain > one.held_out.gain


@pytest.mark.slow
def test_where_there_is_no_context_none_is_found():
    earned = []
    for seed in range(20):
        setting = Policy(epsilon=1.0, mechanism="randomized_response").on(NONE)
        flat = np.random.default_rng(seed).integers(0, 3, size=(100, 15))
        earned.append(learn(Evidence.of(setting, released_by(setting, flat, seed))).held_out.earned)
    assert not any(earned)  # false alarms: at most one in ten thousand each


def test_held_out_gain_is_the_log_likelihood_ratio():
    _, chain, evidence = random_case(11, 1)
    flat = Chain.uniform(chain.n)
    disclosed = held_out(evidence, [chain])
    ratio = likelihoods(evidence, chain).sum() - likelihoods(evidence, flat).sum()
    np.testing.assert_allclose(disclosed.log_evidence, ratio)
    np.testing.assert_allclose(disclosed.gain * disclosed.events, ratio)
    both = held_out(evidence, [chain, flat])
    np.testing.assert_allclose(both.log_evidence, np.log((np.exp(ratio) + 1) / 2))


@pytest.mark.slow
def test_a_single_user_is_learned_around_the_population():
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(NONE)
    odd = MarkovModel([1 / 3] * 3, [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    evidence = Evidence.of(setting, released_by(setting, odd.sample(1500, users=1, seed=1), 3))
    everyone = Chain(STICKY.prior, STICKY.chain.toarray())
    own = learn(evidence, start=everyone, strength=30.0)
    assert own.held_out.earned  # by pieces of the one stream
    assert distance(own.model, odd) < distance(STICKY, odd) / 3
    stubborn = learn(evidence, start=everyone, strength=1e9)
    assert distance(stubborn.model) < 1e-3


def test_what_cannot_be_learned_from_is_refused():
    batched = Policy(epsilon=2.0, batch=2, mechanism="tree_ldp").on(STICKY)
    with pytest.raises(InputError, match="batches"):
        Evidence.of(batched, [[0, 1]])
    with pytest.raises(InputError, match="no events"):
        learn(Evidence(np.ones((1, 2)), np.zeros(0, np.int64), np.zeros(0, np.int64)))
    with pytest.raises(InputError, match="not all zero"):
        Evidence(np.array([[0.0, 0.0]]), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(InputError, match="fewer symbols"):
        learn(Evidence(np.ones((1, 3000)), np.zeros(1, np.int64), np.zeros(1, np.int64)))
    assert set(Evidence.__dataclass_fields__) == {"table", "users", "index"}  # no place for a raw symbol
