"""Offline rivals: the Markov quilt and ToPS, and their integer noise, against enumeration and least squares."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reference_streams as ref
import seqveil as sv
from seqveil import mechanisms
from seqveil.core.coins import SeededCoins, SystemCoins
from seqveil.core.errors import InputError, ModelError
from seqveil.evaluate.rivals.markov_quilt import discrete_laplace, noisy_count, noisy_histogram, scale
from seqveil.evaluate.rivals.topl import central_sums, central_threshold, consistent, depth

seeds = st.integers(0, 2**32 - 1)


def quilt_scale_twin(prior, transitions, length, epsilon):
    """σ with every event and every quilt written out, influences from the joint law of all streams."""
    n = len(prior)
    streams = np.array(list(itertools.product(range(n), repeat=length)))
    chance = prior[streams[:, 0]].copy()
    for t in range(length - 1):
        chance *= transitions[streams[:, t], streams[:, t + 1]]
    sigma = 0.0
    for i in range(length):
        scores = [length / epsilon]
        lefts, rights = range(i), range(i + 1, length)
        for quilt in [(a,) for a in lefts] + [(b,) for b in rights] + list(itertools.product(lefts, rights)):
            card = (quilt[-1] if quilt[-1] > i else length) - (quilt[0] if quilt[0] < i else -1) - 1
            law = np.zeros((n, n ** len(quilt)))
            np.add.at(law, (streams[:, i], streams[:, quilt] @ (n ** np.arange(len(quilt)))), chance)
            logs = np.log(law / law.sum(1, keepdims=True))
            influence = (logs.max(0) - logs.min(0)).max()
            if influence < epsilon:
                scores.append(card / (epsilon - influence))
        sigma = max(sigma, min(scores))
    return sigma


@pytest.mark.parametrize(
    ("prior", "rows", "sigma", "node", "quilt"),
    [
        ([1.0, 0.0], [[0.9, 0.1], [0.4, 0.6]], 13.0219, 8, (3, 13)),
        ([0.9, 0.1], [[0.8, 0.2], [0.3, 0.7]], 10.6402, 6, (10,)),
    ],
)
def test_the_published_scales(prior, rows, sigma, node, quilt):
    found = scale(sv.MarkovModel(prior, rows), 100, 1.0)
    assert (round(found.sigma, 4), found.node, found.quilt) == (sigma, node, quilt)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=st.integers(2, 3), length=st.integers(1, 6), epsilon=st.floats(0.2, 5))
def test_the_exact_scale_equals_enumeration(seed, n, length, epsilon):
    prior, transitions = ref.random_chain(np.random.default_rng(seed), n)
    found = scale(sv.MarkovModel(prior, transitions), length, epsilon)
    assert found.sigma == pytest.approx(quilt_scale_twin(prior, transitions, length, epsilon), rel=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(seed=seeds, n=st.integers(2, 5), length=st.integers(1, 60), epsilon=st.floats(0.3, 4))
def test_the_approximate_scale_is_never_below_the_exact_one(seed, n, length, epsilon):
    rng = np.random.default_rng(seed)
    prior, transitions = ref.random_chain(rng, n)
    model = sv.MarkovModel(prior, 0.5 * transitions + 0.5 / n)
    exact, rough = (scale(model, length, epsilon, method) for method in ("exact", "approx"))
    assert exact.sigma <= rough.sigma * (1 + 1e-9)
    assert rough.sigma <= length / epsilon


def test_long_streams_settle():
    model = sv.MarkovModel([0.9, 0.1], [[0.8, 0.2], [0.3, 0.7]])
    assert scale(model, 5000, 1.0).sigma == pytest.approx(scale(model, 300, 1.0).sigma)
    one = scale(sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]), 50, 2.0)
    assert one.sigma == pytest.approx(0.5)  # independent events: plain Laplace noise


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_noisy_count_protects_every_event(epsilon):
    """Exact law of count + noise given each value of each event: ratios within ε, by enumeration."""
    prior, transitions = ref.random_chain(np.random.default_rng(8), 2)
    length = 6
    sigma = scale(sv.MarkovModel(prior, transitions), length, epsilon).sigma
    streams = np.array(list(itertools.product(range(2), repeat=length)))
    chance = prior[streams[:, 0]].copy()
    for t in range(length - 1):
        chance *= transitions[streams[:, t], streams[:, t + 1]]
    released = np.arange(-40, 47)
    noise = np.exp(-np.abs(released[None, :] - streams.sum(1)[:, None]) / sigma)
    worst = 0.0
    for i in range(length):
        laws = [
            chance[streams[:, i] == x] @ noise[streams[:, i] == x] / chance[streams[:, i] == x].sum() for x in (0, 1)
        ]
        worst = max(worst, np.abs(np.log(laws[0] / laws[1])).max())
    assert 0.2 * epsilon < worst <= epsilon


@pytest.mark.slow
def test_counts_come_out_with_noise_of_their_scale():
    model = sv.MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    codes = model.sample(100, seed=1)[0]
    counts, found = noisy_histogram(model, codes, 1.0, SeededCoins(3))
    assert counts.dtype == np.int64
    assert np.abs(counts - np.bincount(codes, minlength=2)).max() < 60 * found.sigma
    errors = [noisy_count(model, codes, 1, 1.0, SeededCoins(s))[0] - (codes == 1).sum() for s in range(60)]
    assert 0.3 * found.sigma < np.abs(errors).mean() < 3 * found.sigma


def test_the_quilt_refuses_what_it_cannot_do():
    model = sv.MarkovModel([0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]])
    assert scale(model, 10, 1.0).quilt == ()  # alternating: every event tells all others
    with pytest.raises(ModelError, match="periodic"):
        scale(model, 10, 1.0, "approx")
    with pytest.raises(ModelError, match="coming back"):
        scale(sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.0, 1.0]]), 10, 1.0, "approx")
    with pytest.raises(InputError, match="order"):
        scale(sv.MarkovModel(*ref.random_chain(np.random.default_rng(0), 2, 2), order=2), 10, 1.0)
    with pytest.raises(InputError, match="length"):
        scale(model, 0, 1.0)
    with pytest.raises(InputError, match="method"):
        scale(model, 5, 1.0, "magic")
    with pytest.raises(InputError, match="codes"):
        noisy_histogram(model, [0, 2], 1.0, SeededCoins(1))
    assert not {"markov_quilt", "tops"} & set(mechanisms.names())


@pytest.mark.parametrize("width", [0.3, 1.0, 7.5])
def test_noise_is_discrete_laplace(width):
    """Chi-square of 60,000 draws; false alarms: one in a million."""
    drawn = discrete_laplace(width, 60_000, SystemCoins())
    q = math.exp(-1 / width)
    edge = int(6 * width) + 1
    inside = np.arange(-edge, edge + 1)
    law = (1 - q) / (1 + q) * q ** np.abs(inside)
    counts = [(drawn == k).sum() for k in inside]
    kept = law * 60_000 > 5
    observed, wanted = np.array(counts)[kept], law[kept] * 60_000
    rest = 60_000 - observed.sum(), 60_000 - wanted.sum()
    assert stats.chisquare([*observed, rest[0]], [*wanted, rest[1]]).pvalue > 1e-6


def test_noise_may_be_wide_and_must_have_a_width():
    assert np.abs(discrete_laplace(1e9, 200, SeededCoins(1))).mean() == pytest.approx(1e9, rel=0.5)
    assert not discrete_laplace(1e-3, 50, SeededCoins(1)).any()
    with pytest.raises(InputError, match="scale"):
        discrete_laplace(0.0, 1, SeededCoins(1))


def test_two_passes_give_the_least_squares_tree():
    rng = np.random.default_rng(4)
    leaves, parents = rng.normal(5, 3, 256), rng.normal(80, 10, 16)
    design = np.vstack([np.eye(256), np.kron(np.eye(16), np.ones(16))])
    wanted = np.linalg.lstsq(design, np.concatenate([leaves, parents]), rcond=None)[0]
    np.testing.assert_allclose(consistent([leaves, parents]), wanted, atol=1e-9)
    assert consistent([leaves]).tolist() == leaves.tolist()


def test_the_threshold_maximises_its_score_where_noise_is_small():
    rng = np.random.default_rng(5)
    values, later, largest = rng.geometric(0.02, 5000), 50_000, 400
    theta = np.arange(1, largest + 1)
    score = -(values[:, None] > theta).sum(0) - theta * 3 * 5000 / (60 * later) * math.sqrt(30 * 4**3 / 1.0)
    found = [central_threshold(values, 16.0, SeededCoins(s), later, largest, 1.0) for s in range(5)]
    assert all(score[t - 1] > score.max() - 2 for t in found)
    assert depth(later) == 4
    loose = [central_threshold(values, 0.05, SeededCoins(s), later, largest, 1.0) for s in range(20)]
    assert np.std(loose) > np.std(found)


@pytest.mark.parametrize(("count", "block"), [(7, 4), (300, 16), (1000, 1)])
def test_sums_over_time_are_those_of_the_truncated_events(count, block):
    values = np.random.default_rng(6).integers(0, 30, count)
    made = central_sums(values, 20, 16.0, SeededCoins(2), block)
    kept = np.minimum(values, 20)
    assert made.levels == depth(count, block)
    assert len(made.events) == count
    ends = np.minimum(np.arange(1, len(made.blocks) + 1) * block, count)
    np.testing.assert_allclose(np.cumsum(made.events)[ends - 1], np.cumsum(made.blocks), atol=1e-6)
    assert abs(made.between(0, count) - kept.sum()) < 40 * 20 * made.levels / 16.0 * math.sqrt(len(made.blocks))


def test_inside_a_block_events_are_the_mean_of_the_block_before():
    made = central_sums([4] * 12, 8, 16.0, SeededCoins(1), block=4)
    assert made.events[:3].tolist() == [4.0] * 3
    np.testing.assert_allclose(made.events[4:7], made.blocks[0] / 4)
    np.testing.assert_allclose(made.events[8:11], made.blocks[1] / 4)


def test_the_curator_takes_whole_numbers_only():
    with pytest.raises(InputError, match="whole"):
        central_sums([0.5], 1, 1.0, SeededCoins(1))
    with pytest.raises(InputError, match="whole"):
        central_threshold([-1], 1.0, SeededCoins(1), 10, 10)
    with pytest.raises(InputError, match="threshold"):
        central_sums([1], 0, 1.0, SeededCoins(1))
    with pytest.raises(InputError, match="later"):
        central_threshold([1], 1.0, SeededCoins(1), 0, 10)
