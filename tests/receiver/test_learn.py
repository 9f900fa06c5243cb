"""Learning from releases: expected counts against every sequence written out, EM, mixtures."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.blocks import every_path
from reference.streams import Rows, likelihood
from seqveil import MarkovModel, secrets
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.evidence import Chain, Evidence, Walk, by_user, expect, likelihoods
from seqveil.receiver.learn import climb, held_out, learn, mode

SEEDS = st.integers(0, 2**32 - 1)
CASES = st.sampled_from(["one", "blocks", "memory"])  # what releases follow beside the symbol


def random_case(seed, cases="one"):
    """A chain, and a log of a few short streams with arbitrary likelihoods, of single events or by hidden cases."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    chain = Chain(rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n), size=n))
    lengths = rng.integers(1, 6, size=int(rng.integers(1, 5)))
    users = rng.permutation(np.repeat(np.arange(lengths.size), lengths))
    table = rng.random((int(rng.integers(1, 7)), n)) + 0.01
    if cases == "one":
        return rng, chain, Evidence(table, users, rng.integers(0, len(table), users.size))
    count, links = (2, (rng.random(users.size) < 0.4) * 1) if cases == "blocks" else (3, rng.integers(0, 4, users.size))
    stays, anew = np.broadcast_to(np.eye(count)[:, :, None], (count, count, n)), np.ones((count, count, n))
    read = [np.eye(count)[rng.integers(0, count, (count, n))].transpose(0, 2, 1) for _ in range(3)]
    joins = np.stack([stays, anew] if cases == "blocks" else [stays, *read])
    links[np.unique(users, return_index=True)[1]] = 1
    return rng, chain, Evidence(table, users, rng.integers(0, len(table), (users.size, count)), links, joins)


def brute_force(evidence, chain, user):
    """First symbols, moves and likelihood of one user, by all sequences."""
    first, moves, total = np.zeros_like(chain.first), np.zeros_like(chain.rows), 0.0
    for x in itertools.product(range(chain.n), repeat=int((evidence.users == user).sum())):
        weight = chain.first[x[0]] * np.prod([chain.rows[move] for move in itertools.pairwise(x)])
        weight *= likelihood(evidence, user, x)
        total += weight
        first[x[0]] += weight
        for move in itertools.pairwise(x):
            moves[move] += weight
    return first / total, moves / total, np.log(total)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, cases=CASES)
def test_expected_counts_are_those_of_all_sequences(seed, cases):
    _, chain, evidence = random_case(seed, cases)
    firsts, moves, logs = zip(*(brute_force(evidence, chain, u) for u in np.unique(evidence.users)), strict=True)
    found = expect(evidence, chain)
    np.testing.assert_allclose(found.first, sum(firsts), atol=1e-10)
    np.testing.assert_allclose(found.moves, sum(moves), atol=1e-10)
    np.testing.assert_allclose(found.log_likelihood, sum(logs), atol=1e-9)
    np.testing.assert_allclose(sorted(likelihoods(evidence, chain)), sorted(logs), atol=1e-9)
    apart = [np.concatenate(parts) for parts in zip(*by_user(evidence, chain), strict=True)]
    np.testing.assert_allclose(apart[0].sum(0), sum(firsts), atol=1e-10)
    np.testing.assert_allclose(sorted(apart[1].reshape(len(logs), -1)[:, 0]), sorted(m[0, 0] for m in moves), atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, cases=CASES)
def test_statistics_add_up_over_users_and_blocks(seed, cases):
    rng, chain, evidence = random_case(seed, cases)
    chosen = rng.random(int(evidence.users.max()) + 1) < 0.5
    parts = [evidence.of_users(mask) for mask in (chosen, ~chosen)]
    parts = [expect(part, chain) for part in parts if part.events]
    whole = expect(evidence, chain)
    np.testing.assert_allclose(sum((p.moves for p in parts), np.zeros_like(whole.moves)), whole.moves, atol=1e-12)
    assert sum(p.users for p in parts) == whole.users
    assert sum(p.events for p in parts) == whole.events


def test_blocks_hold_every_event_once_whatever_their_size():
    rng = np.random.default_rng(3)
    users = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 30, 40)))
    evidence = Evidence(rng.random((9, 3)) + 0.1, users, rng.integers(0, 9, users.size))
    for numbers, most in ((1, 1), (40, 7), (10_000, 1000)):
        seen = [
            evidence.index[places[u, : lengths[u]]]
            for places, lengths in evidence.layout.blocks(numbers, most)
            for u in range(len(lengths))
        ]
        expected = [evidence.index[users == u] for u in range(40)]
        assert sorted(map(tuple, seen)) == sorted(map(tuple, expected))


def released_by(setting, truth, seed):
    randomness = SeededRandomness(1_000_003 + seed)  # another generator than the truth was drawn by
    fleet = Rows(setting, len(truth))
    return np.stack([fleet.release(np.arange(len(truth)), step, randomness).codes for step in truth.T], axis=1)


def evidence_of(setting, released):
    users = np.repeat(np.arange(len(released)), list(map(len, released)))
    return Evidence.of_streams(setting, users, np.concatenate(list(released)))


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
        found = evidence_of(setting, codes)
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
        Policy(epsilon=4.0, block=5).on(NONE),
    ],
    ids=["response", "until a budget is gone", "optimal", "blocks made with another chain"],
)
def test_the_chain_is_learned_whatever_released_it(setting):
    streams, raw = CodeStreams(setting, randomness=SeededRandomness(4)), STICKY.sample(30, users=900, seed=2)
    released = np.stack([streams.release(range(900), column).codes for column in raw.T], axis=1)
    learned = learn(evidence_of(setting, [own[: 5 + k % 30] for k, own in enumerate(released)]))
    assert (learned.found.users, learned.end.converged, learned.held_out.earned) == (900, True, True)
    assert distance(learned.model) < 0.14


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_likelihood_times_prior_never_falls(seed):
    _, chain, evidence = random_case(seed)
    centre = Chain.uniform(chain.n)
    values = [climb(evidence, chain, centre, 1.0, rounds).value for rounds in range(1, 10)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))


@pytest.mark.slow
def test_where_there_is_no_context_none_is_found():
    earned = []
    for seed in range(20):
        setting = Policy(epsilon=1.0, mechanism="randomized_response").on(NONE)
        flat = np.random.default_rng(seed).integers(0, 3, size=(100, 15))
        earned.append(learn(evidence_of(setting, released_by(setting, flat, seed))).held_out.earned)
    assert not any(earned)  # false alarms: at most one in ten thousand each


def test_held_out_gain_is_the_log_likelihood_ratio():
    _, chain, evidence = random_case(11)
    flat = Chain.uniform(chain.n)
    disclosed = held_out(evidence, chain)
    ratio = likelihoods(evidence, chain).sum() - likelihoods(evidence, flat).sum()
    np.testing.assert_allclose(disclosed.log_evidence, ratio)
    np.testing.assert_allclose(disclosed.gain * disclosed.events, ratio)


@pytest.mark.slow
def test_a_single_user_is_learned_around_the_population():
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(NONE)
    odd = MarkovModel([1 / 3] * 3, [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    evidence = evidence_of(setting, released_by(setting, odd.sample(1500, users=1, seed=1), 3))
    everyone = Chain(STICKY.prior, STICKY.chain.toarray())
    assert learn(evidence).held_out.earned  # by pieces of the one stream
    own, stubborn = (mode(evidence, everyone, strength)[0].chain.model(NONE.alphabet) for strength in (30.0, 1e9))
    assert distance(own, odd) < distance(STICKY, odd) / 3
    assert distance(stubborn) < 1e-3


def test_what_cannot_be_learned_from_is_refused():
    batched = Policy(epsilon=2.0, batch=2, mechanism="tree").on(STICKY)
    with pytest.raises(InputError, match="batches"):
        Evidence.of_streams(batched, np.zeros(2, int), np.array([0, 1]))
    with pytest.raises(InputError, match="no events"):
        learn(Evidence(np.ones((1, 2)), np.zeros(0, np.int64), np.zeros(0, np.int64)))
    with pytest.raises(InputError, match="probability 0"):
        expect(Evidence(np.array([[0.0, 0.0]]), np.zeros(1, np.int64), np.zeros(1, np.int64)), Chain.uniform(2))
    with pytest.raises(InputError, match="fewer symbols"):
        learn(Evidence(np.ones((1, 3000)), np.zeros(1, np.int64), np.zeros(1, np.int64)))
    # no place for a raw symbol
    assert set(Evidence.__dataclass_fields__) == {"table", "users", "index", "links", "joins"}


# what releases follow beside the symbol: blocks, and what is remembered


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_truths_are_drawn_as_often_as_all_sequences_say(seed):
    rng, chain, evidence = random_case(seed, ("one", "blocks", "memory")[seed % 3])
    for places, lengths in evidence.layout.blocks():
        walk, draws = Walk(evidence, places, lengths), 2000
        walk.forward(Chain(np.stack([chain.first] * 2), np.stack([chain.rows] * 2)))
        drawn = walk.sample(rng, draws // 2).reshape(len(walk.said), draws, -1).transpose(1, 2, 0)
        for u, length in enumerate(lengths.tolist()):
            user, n = int(evidence.users[places[u, 0]]), chain.n
            every = list(itertools.product(range(n), repeat=length))
            chances = np.array([chain.first[x[0]] * likelihood(evidence, user, x) for x in every])
            chances *= [np.prod([chain.rows[a, b] for a, b in itertools.pairwise(x)]) for x in every]
            chances /= chances.sum()
            found = np.bincount(np.ravel_multi_index(tuple(drawn[:, u, :length].T), (n,) * length), minlength=n**length)
            assert (np.abs(found - draws * chances) <= 6 * np.sqrt(draws * chances) + 6).all()


@pytest.mark.parametrize("lengths", [[2, 2], [3, 1], [1, 3]])  # a block of less than the policy's three is cut
def test_evidence_of_blocks_gives_each_sequence_the_probability_of_its_path(lengths):
    model = MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]])
    setting = Policy(epsilon=1.4, block=3).on(model)
    paths = every_path(setting.rule, [1.4, 1.4], lengths)[-1]
    used = np.zeros(paths.codes.shape)
    used[:, [0, lengths[0]]] = 1.4
    users = np.repeat(np.arange(len(used)), used.shape[1])
    evidence = Evidence.of_streams(setting, users, paths.codes.ravel(), epsilons=used.ravel())
    found = [[likelihood(evidence, user, x) for x in paths.sequences.tolist()] for user in range(len(used))]
    np.testing.assert_allclose(found, paths.weights, rtol=1e-12)


@pytest.mark.parametrize("window", ["first 3", 2, None])
def test_evidence_of_kernels_that_remember_goes_by_what_they_remember(window):
    """Each sequence has the product of Q(y|x, m) along it, m by its own automaton read symbol by symbol."""
    secret = secrets.ever(2, epsilon=1.0, window=window)
    setting = Policy(secrets=[secret], side_information=np.inf).on(STICKY)
    streams, raw = CodeStreams(setting, randomness=SeededRandomness(1)), STICKY.sample(4, users=15, seed=3)
    codes = np.stack([streams.release(range(15), column).codes for column in raw.T], axis=1)
    evidence, over = evidence_of(setting, codes), secret.over(STICKY.alphabet)
    every, state = np.array(list(itertools.product(range(3), repeat=4))), State.start(setting, 15)
    exact, memory = np.ones((15, len(every))), np.zeros(len(every), np.int64)
    for t in range(4):
        length = over.length or 9
        place = t % length if secret.repeats else t
        memory = over.automaton.moves[memory * (place > 0), every[:, t]] if place < length else memory * 0
        seen, state = stream.observe(setting, state, codes[:, t])
        exact *= seen.remembered[:, memory * 3 + every[:, t]] / 2.0**62
    found = [[likelihood(evidence, user, x) for x in every.tolist()] for user in range(15)]
    np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-300)
    assert len(evidence.joins) > 1


def test_a_stream_is_cut_between_blocks():
    begins, joins = np.array([1, 0, 0, 1, 1, 0, 1, 0]), np.stack([np.ones((2, 2, 2)), np.ones((2, 2, 2))])
    joins[0] = np.eye(2)[:, :, None]
    log = Evidence(np.ones((1, 2)), np.zeros(8, np.int64), np.zeros((8, 2), np.int64), begins, joins)
    assert log.cut(2).users.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    single = Evidence(np.ones((1, 2)), np.zeros(5, np.int64), np.zeros(5, np.int64))
    assert single.cut(2).users.tolist() == [0, 0, 1, 1, 2]
