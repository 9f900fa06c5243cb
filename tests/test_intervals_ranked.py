"""Intervals under the model are ranks of drawn truths: they hold as often as they say, whatever the law."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from seqveil.receiver.statistics import DRAWN, _ranked


def z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_one_draw_more_lies_inside_as_often_as_is_said(confidence):
    rng = np.random.default_rng(1)
    drawn, truth = rng.exponential(size=(DRAWN, 5_000)) ** 2, rng.exponential(size=5_000) ** 2
    found = _ranked(drawn, z(confidence), 0.0, np.inf)
    inside = (found.low <= truth) & (truth <= found.high)
    assert abs(inside.mean() - confidence) < 0.02  # three standard errors or more, beside the step of a rank


def test_counts_of_what_is_rare_are_held_at_least_as_often():
    rng = np.random.default_rng(2)
    drawn, truth = rng.poisson(0.3, (DRAWN, 5_000)), rng.poisson(0.3, 5_000)
    found = _ranked(drawn.astype(float), z(0.95), 0.0, 50.0)
    assert ((found.low <= truth) & (truth <= found.high)).mean() > 0.95


def test_the_estimate_lies_between_the_ends():
    drawn = np.zeros((DRAWN, 1))
    drawn[0] = 1000.0  # the mean is further out than all but one of the draws
    found = _ranked(drawn, z(0.95), 0.0, 2000.0)
    assert found.low[0] == 0.0
    assert found.low[0] <= found.value[0] <= found.high[0]


def test_further_out_than_there_are_draws_nothing_drawn_is_left_outside():
    drawn = np.random.default_rng(3).normal(50.0, 3.0, (DRAWN, 5))
    found = _ranked(drawn, z(0.9999), 0.0, 100.0)
    assert (found.low <= drawn.min(0)).all()
    assert (found.high >= drawn.max(0)).all()


def test_where_a_draw_has_no_figure_there_is_none():
    drawn = np.ones((DRAWN, 2))
    drawn[3, 1] = np.nan
    found = _ranked(drawn, z(0.95), 1.0, np.inf)
    assert (found.low[0], found.high[0]) == (1.0, 1.0)
    assert np.isnan([found.value[1], found.low[1], found.high[1]]).all()
