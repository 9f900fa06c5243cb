"""The decisions of the cross-checks: χ² against known values, the union bound, the table. Nothing is installed."""

import math

import numpy as np
import pytest

from peers import judge, response


def test_chi_square_of_known_counts():
    fit = judge.chi_square([60, 40], [0.5, 0.5])
    assert fit.statistic == 4.0
    assert fit.freedom == 1
    assert fit.chance == pytest.approx(math.erfc(math.sqrt(2.0)), rel=1e-12)  # Pr(|Z| ≥ 2)
    # with two degrees of freedom the tail is e^(-χ²/2)
    fit = judge.chi_square([50, 30, 40], [1 / 3, 1 / 3, 1 / 3])
    assert fit.statistic == pytest.approx(5.0, rel=1e-12)
    assert fit.chance == pytest.approx(math.exp(-2.5), rel=1e-12)


def test_too_few_draws_or_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="draw more"):
        judge.chi_square([190, 10], [0.95, 0.05])
    with pytest.raises(ValueError, match="as many counts"):
        judge.chi_square([50, 50], [1 / 3, 1 / 3, 1 / 3])


def test_every_chi_square_of_a_run_is_counted():
    # two quick peers with 4 ε over 4, 17 and 100 inputs, OpenDP with 4, 4 and 1; one more test a case for all inputs
    assert response.tests() == 2 * 4 * (5 + 18 + 101) + 4 * (5 + 18) + 101
    for cases in (response.quick_cases(), response.slow_cases()):
        for n, epsilon, draws in cases:
            assert draws * response.kernel(n, epsilon).probabilities.min() >= judge.LEAST_EXPECTED


def rows(counts, case):
    answer = {"version": "1", "counts": [counts.tolist()]}
    return response.distribution_rows(response.PURE, answer, [case])


def test_the_right_distribution_agrees_and_one_with_a_little_more_truth_fails():
    case = (4, 1.0, 50_000)
    counts = np.rint(case[2] * response.kernel(*case[:2]).probabilities).astype(np.int64)
    counts[:, 0] += case[2] - counts.sum(1)
    assert [row.verdict for row in rows(counts, case)] == [judge.AGREES]
    # 0.8 % more truth at each input: 3.6 standard deviations each, seen only in all inputs together
    shifted = counts.copy()
    for symbol in range(4):
        shifted[symbol, symbol] += 400
        shifted[symbol, np.arange(4) != symbol] -= [133, 133, 134]
    chances = response.fit_chances(shifted, 4, 1.0)
    limit = judge.threshold(response.tests())
    assert min(chances[:-1]) > limit > chances[-1]
    assert [row.verdict for row in rows(shifted, case)] == [judge.FAILS]
    counts[2, 2] -= 1  # a draw that was lost
    assert [row.verdict for row in rows(counts, case)] == [judge.FAILS]
