"""Example 1 against enumeration and a linear program, and the exact errors of small streams against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from experiments import exact, example1
from reference.batches import expected
from seqveil import MarkovModel, mechanisms
from seqveil.core.distortion import hamming
from seqveil.core.mechanisms import Batch

pytestmark = pytest.mark.slow

priors = st.floats(0.02, 0.98)
phis = st.floats(0.0, 1.0)
epsilons = st.floats(0.1, 4.0)


def algorithm_one(belief, epsilon):
    """The paper's Algorithm 1, written out."""
    table = np.exp(-epsilon) * np.tile(belief, (2, 1))
    return table + np.diag(1 - table.sum(1))


def brute_force(prior, phi, first, second):
    """Pr(N1), Pr(N2) and Pr(both) of Algorithm 1 over all sixteen outcomes."""
    start = np.array([1 - prior, prior])
    channel = np.array([[1 - phi, phi], [phi, 1 - phi]])
    one = algorithm_one(start, first)
    total = np.zeros(3)
    for x1, y1, x2, y2 in itertools.product((0, 1), repeat=4):
        post = start * one[:, y1]
        two = algorithm_one(post / post.sum() @ channel, second)
        chance = start[x1] * one[x1, y1] * channel[x1, x2] * two[x2, y2]
        total += chance * np.array([x1 != y1, x2 != y2, (x1 != y1) and (x2 != y2)])
    return total


@given(priors, phis, epsilons, epsilons)
@settings(max_examples=60, deadline=None)
def test_the_closed_form_is_the_enumeration(prior, phi, first, second):
    found = example1.closed_form(prior, phi, first, second)
    assert [found["noise_1"], found["noise_2"], found["both"]] == pytest.approx(
        brute_force(prior, phi, first, second), abs=1e-12
    )
    again = example1.by_enumeration(prior, phi, first, second, "crr")
    for key, value in found.items():
        assert again[key] == pytest.approx(value, abs=1e-7), key


@given(st.floats(0.05, 0.95), st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(1.0, 20.0)), min_size=2, max_size=2))
@settings(max_examples=80, deadline=None)
def test_least_noise_is_the_linear_program(second, limits):
    belief = np.array([1 - second, second])
    bounds = [(x, low, high) for x, (low, high) in enumerate(limits)]
    found, table = example1.least_noise(belief, bounds)
    # variables Q(0|0), Q(1|0), Q(0|1), Q(1|1)
    rows = []
    for x, low, high in bounds:
        for y in (0, 1):
            chance, mean = np.zeros(4), np.zeros(4)
            chance[2 * x + y] = 1
            mean[[y, 2 + y]] = belief
            rows += [low * mean - chance, chance - high * mean]
    cost = [0, belief[0], belief[1], 0]
    twin = linprog(cost, rows, np.zeros(len(rows)), [[1, 1, 0, 0], [0, 0, 1, 1]], [1, 1], bounds=(0, 1))
    assert twin.status == 0  # the constant release always fits
    assert found == pytest.approx(twin.fun, abs=1e-7)
    assert table.sum(1) == pytest.approx([1, 1])


@given(priors, st.floats(0.05, 0.95), epsilons, st.floats(0.01, 0.3), st.sampled_from(["crr", "optimal"]))
@settings(max_examples=25, deadline=None)
def test_the_correlated_design_never_leaks_more_and_is_tight(prior, phi, epsilon, noise, mechanism):
    found = example1.designs(prior, phi, epsilon, noise, mechanism)
    assert found["correlated"] <= found["independent"] + 1e-7
    first = example1.by_enumeration(prior, phi, epsilon, epsilon, mechanism)["leakage_1"]
    assert found["correlated"] >= first - 1e-6  # a second release takes nothing back


STICKY = MarkovModel([0.1, 0.9], [[0.9, 0.1], [0.2, 0.8]])


def by_hand(model, mechanism, epsilon, length):
    """Errors of all histories by joint distributions over whole sequences, without any filter."""
    words = np.array(list(itertools.product((0, 1), repeat=length)))
    histories, wrong = [np.exp([model.log_likelihood(list(word)) for word in words])], np.zeros(2)
    for t in range(length):
        grown = []
        for joint in histories:
            belief = np.bincount(words[:, t], joint, 2)
            kernel = mechanism.kernels((belief / belief.sum())[None], epsilon).one(0)
            for code, column in zip(kernel.codes, kernel.probabilities.T, strict=True):
                grown.append(joint * column[words[:, t]])
                symbol = np.bincount(words[:, t], grown[-1], 2)
                wrong += symbol[1 - code], symbol.min()
        histories = grown
    late = sum(np.bincount(words[:, t], joint, 2).min() for joint in histories for t in range(length))
    return [*wrong / length, late / length]


@pytest.mark.parametrize("name", ["optimal", "crr", "randomized_response"])
@pytest.mark.parametrize("epsilon", [0.5, 1.3])
def test_single_releases_are_enumerated_right(name, epsilon):
    mechanism = mechanisms.get(name)
    found = exact.one_by_one(STICKY, mechanism, epsilon, 4)
    assert [found[way] for way in ("released", "online", "hindsight")] == pytest.approx(
        by_hand(STICKY, mechanism, epsilon, 4), abs=1e-9
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_are_enumerated_right(size):
    one = exact.in_batches(STICKY, mechanisms.batch_lp, 0.8, size, size)
    batch = Batch(STICKY, STICKY.initial, size, 0.8 * size, hamming())
    assert one["released"] == pytest.approx(expected(mechanisms.batch_lp, batch) / size, abs=1e-9)
    longer = exact.in_batches(STICKY, mechanisms.batch_lp, 0.8, size, 5)
    assert longer["hindsight"] <= longer["online"] + 1e-12 <= longer["released"] + 2e-12
    assert longer["leakage"] <= 0.8 * size
    if size == 1:
        assert longer["released"] == pytest.approx(
            exact.one_by_one(STICKY, mechanisms.optimal, 0.8, 5)["released"], abs=1e-3
        )
