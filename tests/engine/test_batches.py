"""Batched sessions: the step, its account and budgets, paths as text, and the decoder across batches."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from reference.batches import lift_of
from seqveil import Budget, MarkovModel, Session, mechanisms
from seqveil.core import filtering
from seqveil.core.errors import DataError, InputError
from seqveil.core.mechanisms import choose
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream

STICKY = sv.MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
GAPPED = sv.MarkovModel([0.6, 0.4, 0.0], [[0.7, 0.3, 0.0], [0.0, 0.5, 0.5], [0.4, 0.0, 0.6]])
SOUND = [name for name in mechanisms.batched() if mechanisms.find(name).sound]


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.batched())
def test_a_stream_in_batches_with_a_short_last_one(name):
    session = sv.Session(STICKY, mechanism=name, epsilon=2.0, batch=3, seed=1)
    raw = STICKY.sample(11, seed=2)[0].tolist()
    released = [y for at in range(0, 11, 3) for y in session.release_batch(raw[at : at + 3])]
    assert len(released) == 11
    assert [len(session.paths), session.account.releases] == [4, 4]
    distributions = sv.decode_stream(STICKY, session.paths, mechanism=name, epsilon=2.0, batch=3, length=11)
    assert distributions.shape == (11, 3)
    np.testing.assert_allclose(distributions.sum(1), 1.0, atol=1e-12)
    if mechanisms.find(name).sound:
        assert session.leakage <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.batched())
@pytest.mark.parametrize("model", [STICKY, GAPPED], ids=["full", "gapped"])
def test_whatever_the_truth_is_a_receiver_follows(name, model):
    """Also a truth the model rules out: the receiver ends with the same belief, account and reproduction."""
    setting = sv.Policy(epsilon=1.5, batch=2, mechanism=name).on(model)
    rng, randomness = np.random.default_rng(3), SeededRandomness(4)
    mine = theirs = stream.State.start(setting)
    for _ in range(5):
        sent, mine = batches.step(setting, mine, rng.integers(0, 3, 2), randomness)
        text = batches.encode_path(sent.path)
        read, theirs = batches.observe(setting, theirs, batches.decode_path(text), 2)
        assert read.codes.tolist() == sent.codes.tolist()
        assert mine.states.tobytes() == theirs.states.tobytes()
        assert (mine.account.most, mine.account.least) == (theirs.account.most, theirs.account.least)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), gapped=st.booleans())
def test_decoding_across_batches_is_bayes(seed, gapped):
    """Against the distribution of all sequences, each weighted by what every batch's release says about it."""
    model = GAPPED if gapped else STICKY
    setting, randomness = sv.Policy(epsilon=2.0, batch=2, mechanism="tree").on(model), SeededRandomness(seed)
    state, sent = stream.State.start(setting), []
    for symbols in np.random.default_rng(seed).integers(0, 3, (2, 2)):
        one, state = batches.step(setting, state, symbols, randomness)
        sent.append(one)
    weights = {}
    for sequence in itertools.product(range(3), repeat=4):
        prior = math.exp(model.log_likelihood(list(sequence)))
        halves = np.array(sequence).reshape(2, 2)
        weights[sequence] = prior * math.prod(lift_of(one, half) for one, half in zip(sent, halves, strict=True))
    total = sum(weights.values())
    expected = np.zeros((4, 3))
    for sequence, weight in weights.items():
        expected[np.arange(4), sequence] += weight / total
    np.testing.assert_allclose(batches.smooth(setting, sent), expected, atol=1e-10)
    last = filtering.symbols(model, sent[-1].posterior[None])[0]
    np.testing.assert_allclose(batches.filtered(setting, sent)[-1], last, atol=1e-10)


@pytest.mark.parametrize("name", SOUND)
def test_a_total_is_never_passed(name):
    session = sv.Session(GAPPED, mechanism=name, epsilon=1.0, batch=2, budget=2.5, seed=5)
    for pair in np.random.default_rng(6).integers(0, 3, (8, 2)).tolist():
        session.release_batch(pair)
    assert session.leakage <= 2.5 + 1e-9
    assert session.account.budget_left == pytest.approx(2.5 - session.leakage, abs=1e-9)


def test_policies_of_a_spent_budget():
    spent = {"total": 0.5}
    stop = sv.Session(
        STICKY, mechanism="tree", epsilon=0.5, batch=2, seed=1, budget=sv.Budget(**spent, when_spent="stop")
    )
    made = [stop.release_batch([0, 0]) for _ in range(12)]
    assert made[0] is not None
    assert made[-1] is None
    assert stop.paths[-1] is None
    hold = sv.Session(STICKY, mechanism="tree", epsilon=0.5, batch=2, seed=1, budget=sv.Budget(**spent))
    assert all(hold.release_batch([0, 0]) for _ in range(12))
    assert hold.paths[-1] == ()
    assert hold.leakage <= 0.5


def test_misuse_is_refused_and_leaves_the_session_as_it_was():
    session = sv.Session(STICKY, mechanism="tree", epsilon=1.0, batch=3, seed=1)
    for wrong in ([0, 1, 2, 0], []):
        with pytest.raises(InputError, match="expected a batch of 3"):
            session.release_batch(wrong)
    with pytest.raises(InputError, match="release_batch"):
        session.release(0)
    with pytest.raises(InputError):
        session.release_batch([0, 1, 7])
    with pytest.raises(InputError, match="one symbol at a time"):
        sv.Session(STICKY, mechanism="balanced", epsilon=1.0, batch=3)
    with pytest.raises(InputError, match="releases batches"):
        session.kernel()
    assert session.paths == []
    assert session.leakage == 0.0


def test_a_path_that_cannot_be_is_refused():
    setting = sv.Policy(epsilon=1.0, batch=2, mechanism="tree").on(STICKY)
    for wrong in [(0,) * 60, (5,), (1, 0, 7)]:
        with pytest.raises(DataError):
            batches.observe(setting, stream.State.start(setting), wrong, 2)
    for text in ["", "zz", "xg", "1.a"]:
        with pytest.raises(DataError, match="path"):
            batches.decode_path(text)
    with pytest.raises(DataError, match="hold the 9 symbols"):
        sv.decode_stream(STICKY, [(), ()], mechanism="tree", epsilon=1.0, batch=2, length=9)


@pytest.mark.slow
@given(st.lists(st.integers(0, 1), max_size=40) | st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_paths_survive_as_text(path):
    assert batches.decode_path(batches.encode_path(tuple(path))) == tuple(path)


def test_the_chooser_takes_the_exact_optimum_while_it_can():
    picked = {}
    for length, epsilon in [(2, 1.0), (4, 1.0), (8, 2.0), (8, 6.0)]:
        batch = mechanisms.Batch(STICKY, STICKY.initial, length, epsilon, sv.distortion.hamming())
        picked[length, epsilon] = choose(batch).name
    assert picked == {(2, 1.0): "batch_lp", (4, 1.0): "batch_lp", (8, 2.0): "tree", (8, 6.0): "tree"}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [16.0, 24.0, 32.0])
@pytest.mark.parametrize("name", ["tree", "auto"])
def test_a_long_batch_may_spend_a_lot_and_keeps_its_word(name, epsilon):
    """ε = 1 a symbol makes 32 a batch of 32: the lifts stay inside, checked with exact weights."""
    setting = sv.Policy(epsilon=epsilon, batch=32, mechanism=name).on(STICKY)
    raw = STICKY.sample(32, seed=3)[0]
    sent, _ = batches.step(setting, stream.State.start(setting), raw, SeededRandomness(2))
    assert sent.most <= epsilon
    assert -sent.least <= epsilon
    assert (sent.codes != raw).mean() < 0.2
    with pytest.raises(InputError, match="at most 32"):
        sv.Policy(epsilon=33.0, batch=32, mechanism=name).on(STICKY)


def test_the_chooser_never_hands_on_an_epsilon_that_its_choice_does_not_take():
    """At ε = 25 a batch of three sticky bits is as good as disclosed; the exact program stops at 16."""
    model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    for epsilon in (15.0, 25.0, 32.0):
        batch = mechanisms.Batch(model, model.initial, 3, epsilon, sv.distortion.hamming())
        mechanism = choose(batch)
        assert epsilon <= mechanism.largest
        wrong = [
            (mechanism.rule(batch).draw(np.array(codes), SeededRandomness(seed)).codes != codes).mean()
            for seed in range(5)
            for codes in ([0, 0, 0], [0, 1, 0], [1, 1, 0])
        ]
        assert max(wrong) == 0.0  # fails by chance less than once in 10^5


LEANING = MarkovModel([0.1, 0.9], [[0.9, 0.1], [0.1, 0.9]])


def test_a_window_of_batches_counts_batches_whatever_times_come_with_them():
    budget, found = Budget(per_window=1.0, releases=5), []
    for time in (lambda k: None, lambda k: 0.1 * k, lambda k: -100.0 + k, lambda k: 1.7e9 + k):
        session = Session(LEANING, mechanism="tree", epsilon=1.0, batch=2, budget=budget, seed=1)
        spent = []
        for k in range(30):
            session.release_batch([k % 2, 0], time(k))
            spent.append(session.account.epsilon_spent)
        found.append(spent)
    assert found[0][-1] < 20.0
    assert all(each == found[0] for each in found)
