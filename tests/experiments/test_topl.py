"""ToPL as a kernel against its densities, and its threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from experiments.topl import MECHANISM, axis_table, estimate, square_wave, with_threshold
from reference import streams as ref
from seqveil.core.distortion import absolute, euclidean, matrix, squared
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness, SystemRandomness

seeds = st.integers(0, 2**32 - 1)


def hybrid_cell(truth, low, high, epsilon):
    """Mass of the hybrid distribution within (low, high), by its densities: the obvious twin, in t."""
    s, e = math.exp(epsilon / 2), math.exp(epsilon)
    reach, atom = (s + 1) / (s - 1), (e + 1) / (e - 1)
    left = (reach + 1) / 2 * truth - (reach - 1) / 2
    right = left + reach - 1
    use = 1 - math.exp(-epsilon / 2) if epsilon > 0.61 else 0.0

    def density(t):
        return s / (s + 1) / (right - left) if left <= t <= right else 1 / (s + 1) / (2 * reach - right + left)

    low_in, high_in = max(low, -reach), min(high, reach)
    marks = [m for m in (left, right) if low_in < m < high_in]
    mass = use * integrate.quad(density, low_in, high_in, points=marks or None)[0] if high_in > low_in else 0.0
    up = 0.5 + truth * (e - 1) / (2 * (e + 1))
    return mass + (1 - use) * (up * (low < atom <= high) + (1 - up) * (low <= -atom < high))


@pytest.mark.parametrize("epsilon", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("theta", [1.0, 0.5])
def test_topl_integrates_the_hybrid_distribution_over_the_rounding_cells(epsilon, theta):
    values = np.array([0.0, 0.1, 0.35, 0.5, 0.8, 1.0])
    table = axis_table(values, epsilon, theta)
    borders = [-math.inf, *((values[1:] + values[:-1]) / 2), math.inf]
    for x, y in np.ndindex(6, 6):
        truth = 2 * min(values[x], theta) / theta - 1
        low, high = (2 * border / theta - 1 for border in borders[y : y + 2])
        if borders[y] >= theta:
            wanted = 0.0
        else:
            wanted = hybrid_cell(truth, low, high if borders[y + 1] < theta else math.inf, epsilon)
        assert table[x, y] == pytest.approx(wanted, abs=1e-8)


@settings(deadline=None, max_examples=60)
@given(
    seed=seeds,
    epsilon=st.sampled_from([1e-6, 0.3, 0.7, 2.0, 8.0, 16.0]),
    theta=st.sampled_from([0.02, 0.4, 1.0]),
    kind=st.integers(0, 4),
)
def test_topl_is_ldp_in_its_integers_wherever_symbols_lie(seed, epsilon, theta, kind):
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.uniform(-13, 3, 7)
    costs = [
        absolute(np.cumsum(spread)),
        squared(rng.integers(0, 3, 7)),
        euclidean(rng.random((7, 2))),
        euclidean(rng.integers(0, 3, (7, 3))),
        matrix(rng.random((7, 7))),
    ][kind]
    kernel = with_threshold(theta).kernels(np.full((1, 7), 1 / 7), epsilon, costs).one(0)
    assert ref.exact_ldp(kernel.weights) <= epsilon


def test_topl_on_a_grid_is_a_product_of_its_axes():
    grid = np.array([[x, y] for x in range(3) for y in range(4)], dtype=float)
    table = MECHANISM.kernels(np.full((1, 12), 1 / 12), 2.0, euclidean(grid)).one(0).probabilities
    one, other = axis_table(np.arange(3.0), 1.0), axis_table(np.arange(4.0), 1.0)
    np.testing.assert_allclose(table, np.kron(one, other), atol=1e-9)


def test_topl_maps_categories_to_their_codes_and_refuses_what_is_too_large():
    beliefs = np.full((1, 5), 0.2)
    by_code = MECHANISM.kernels(beliefs, 1.0).one(0).weights
    assert (by_code == MECHANISM.kernels(beliefs, 1.0, absolute(range(5))).one(0).weights).all()
    assert (by_code == MECHANISM.kernels(beliefs, 1.0, absolute(range(10, 60, 10))).one(0).weights).all()
    with pytest.raises(InputError, match="axis_table"):
        MECHANISM.kernels(np.full((1, 3000), 1 / 3000), 1.0)
    with pytest.raises(InputError, match="threshold"):
        with_threshold(0.0)


def test_reports_follow_the_square_wave_and_the_histogram_comes_back():
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.uniform(0.1, 0.3, 15_000), rng.uniform(0.7, 0.8, 5_000)])
    reports = square_wave(values, 3.0, SystemRandomness(), bins=64)
    distribution = estimate(reports, 3.0, bins=64)
    true = np.histogram(values, bins=64, range=(0, 1))[0] / values.size
    assert distribution.sum() == pytest.approx(1)
    assert np.abs(np.cumsum(distribution) - np.cumsum(true)).max() < 0.06  # reports alone differ by .3
    with pytest.raises(InputError, match="scale"):
        square_wave([0.5, 1.5], 1.0, SeededRandomness(1))
