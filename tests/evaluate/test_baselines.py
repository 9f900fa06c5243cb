"""The systems we compare with: each against a slow twin, its closed form or its own published figures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import seqveil as sv
from experiments.arimoto import information
from reference import streams as ref
from seqveil.core.distortion import absolute, hamming
from seqveil.core.errors import InputError
from seqveil.evaluate.baselines import declared
from seqveil.evaluate.baselines import mutual_information as mutual_information_mechanism
from seqveil.evaluate.baselines import optimal_ldp as optimal_ldp_mechanism
from seqveil.evaluate.baselines.optimal_ldp import likeliest
from seqveil.interfaces.trials import release

seeds = st.integers(0, 2**32 - 1)
EPSILONS = [0.05, 0.3, 1.0, 2.0, 4.0]


def ldp_twin(belief, epsilon):
    """The fewest wrong symbols over row-stochastic Q with Q(y|x) ≤ e^ε Q(y|x'), every pair written out."""
    n = len(belief)
    rows = []
    for (x, other), y in itertools.product(itertools.permutations(range(n), 2), range(n)):
        row = np.zeros((n, n))
        row[x, y], row[other, y] = 1.0, -math.exp(epsilon)
        rows.append(row.ravel())
    tolerance = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    equal = np.kron(np.eye(n), np.ones(n)), np.ones(n)
    answer = linprog(
        (belief[:, None] * (1 - np.eye(n))).ravel(), np.array(rows), np.zeros(len(rows)), *equal, options=tolerance
    )
    assert answer.status == 0
    return answer.fun


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(seed=seeds, n=st.integers(2, 6), epsilon=st.sampled_from(EPSILONS))
def test_the_best_ldp_kernel_is_the_linear_program(seed, n, epsilon):
    belief = ref.random_belief(np.random.default_rng(seed), n)
    kernel = optimal_ldp_mechanism.kernels(belief[None], epsilon).one(0)
    assert kernel.error(belief, hamming()) == pytest.approx(ldp_twin(belief, epsilon), abs=1e-7)
    assert ref.exact_ldp(kernel.weights) <= epsilon


def test_the_best_ldp_kernel_is_randomised_response_on_the_best_few():
    ordered = np.sort(np.random.default_rng(1).dirichlet(np.full(30, 0.4), size=20))[:, ::-1]
    for epsilon in EPSILONS:
        value = [math.exp(epsilon) * ordered[:, :k].sum(1) / (math.exp(epsilon) + k - 1) for k in range(1, 31)]
        assert likeliest(ordered, epsilon).tolist() == (np.argmax(value, axis=0) + 1).tolist()
        kernels = optimal_ldp_mechanism.kernels(ordered, epsilon)
        error = np.array([kernels.one(user).error(belief, hamming()) for user, belief in enumerate(ordered)])
        np.testing.assert_allclose(1 - error, np.max(value, axis=0), atol=1e-9)


def test_the_best_ldp_kernel_takes_a_large_alphabet_and_says_where_it_cannot():
    beliefs = np.random.default_rng(5).dirichlet(np.full(43_097, 0.3), size=2)
    kernels = optimal_ldp_mechanism.kernels(beliefs, 3.0)
    assert kernels.ldp().max() <= 3.0
    assert kernels.outputs.shape[1] < 500
    with pytest.raises(InputError, match="randomized_response"):
        optimal_ldp_mechanism.kernels(np.full((1, 4), 0.25), 1.0, absolute(range(4)))
    numbers = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=[1, 2])
    with pytest.raises(InputError, match="counts wrong symbols"):  # before the first event
        sv.Session(numbers, sv.Policy(epsilon=1.0, mechanism="optimal_ldp", distortion="absolute"))


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(seed=seeds, n=st.integers(2, 9), epsilon=st.sampled_from([1e-6, 0.01, 0.1, 0.5, 1.5]))
def test_the_information_kernel_spends_its_rate_and_no_more(seed, n, epsilon):
    belief = ref.random_belief(np.random.default_rng(seed), n)
    kernel = mutual_information_mechanism.kernels(belief[None], epsilon).one(0)
    rate = information(belief[None], kernel.probabilities[None])[0]
    entropy = -sum(b * math.log(b) for b in belief if b > 0)
    assert rate <= epsilon
    assert rate == pytest.approx(min(epsilon, entropy), abs=1e-7 + 1e-5 * epsilon)


def test_rate_and_distortion_of_known_sources_are_the_textbooks():
    """R(D) = H(p) - H(D) for a biased coin and Hamming distortion, log n - H(D) - D log(n-1) for n symbols alike."""

    def entropy(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    for p, wrong in ((0.5, 0.1), (0.3, 0.05), (0.3, 0.2)):
        rate, belief = entropy(p) - entropy(wrong), np.array([[p, 1 - p]])
        assert mutual_information_mechanism.kernels(belief, rate).one(0).error(belief[0], hamming()) == pytest.approx(
            wrong
        )
    uniform, belief = math.log(5) - entropy(0.1) - 0.1 * math.log(4), np.full((1, 5), 0.2)
    assert mutual_information_mechanism.kernels(belief, uniform).one(0).error(belief[0], hamming()) == pytest.approx(
        0.1
    )


def test_average_information_bounds_no_single_release():
    """At I ≤ 0.1 nats a symbol of belief .01 is disclosed with a lift of over e^2: so it is not declared sound."""
    belief = np.array([0.5, 0.48, 0.02])
    leaks = [mutual_information_mechanism.kernels(belief[None], e).leakage(belief[None])[0] for e in (0.1, 0.5, 0.7)]
    assert leaks == sorted(leaks)
    assert leaks[0] > 0.3
    assert leaks[2] > 3.0
    with pytest.raises(InputError, match="smaller epsilon"):
        mutual_information_mechanism.kernels(np.full((1, 3000), 1 / 3000), 3.0)
    with pytest.raises(InputError, match="hamming"):
        mutual_information_mechanism.kernels(np.full((1, 400), 1 / 400), 1.0, absolute(range(400)))


MODEL = sv.MarkovModel(
    [0.5, 0.4, 0.1], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]], alphabet=["news", "sports", "health"]
)
SECRET = sv.secrets.ever("health", epsilon=0.5, window="first 8")


def test_suppression_never_releases_what_is_secret():
    truth = MODEL.sample(8, 20, seed=4)
    terms = sv.Policy(epsilon=1.0, mechanism=declared.suppression(MODEL.alphabet, [SECRET])).on(MODEL)
    made = release(terms, list(truth), 1)
    codes = np.stack([made.released[k] for k in range(20)])
    assert not (codes == 2).any()
    assert (codes == truth)[truth != 2].all()
    with pytest.raises(InputError, match="every symbol"):
        declared.suppression(MODEL.alphabet, [sv.secrets.ever(["news", "sports", "health"], epsilon=1.0)])
