"""The noise of the Markov quilt against enumeration."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from experiments.markov_quilt import scale
from reference import streams as ref
from seqveil.core.errors import InputError

seeds = st.integers(0, 2**32 - 1)


def quilt_scale_twin(prior, transitions, length, epsilon):
    """σ with every event and every quilt written out, influences from the joint distribution of all streams."""
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
            distribution = np.zeros((n, n ** len(quilt)))
            np.add.at(distribution, (streams[:, i], streams[:, quilt] @ (n ** np.arange(len(quilt)))), chance)
            logs = np.log(distribution / distribution.sum(1, keepdims=True))
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


def test_long_streams_settle():
    model = sv.MarkovModel([0.9, 0.1], [[0.8, 0.2], [0.3, 0.7]])
    assert scale(model, 5000, 1.0).sigma == pytest.approx(scale(model, 300, 1.0).sigma)
    one = scale(sv.MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]), 50, 2.0)
    assert one.sigma == pytest.approx(0.5)  # independent events: plain Laplace noise


def test_the_quilt_refuses_what_it_cannot_do():
    model = sv.MarkovModel([0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]])
    assert scale(model, 10, 1.0).quilt == ()  # alternating: every event tells all others
    with pytest.raises(InputError, match="order"):
        scale(sv.MarkovModel(*ref.random_chain(np.random.default_rng(0), 2, 2), order=2), 10, 1.0)
    with pytest.raises(InputError, match="length"):
        scale(model, 0, 1.0)
