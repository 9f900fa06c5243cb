"""Declared secrets beside an ε for every release, over more symbols than the program bounds one by one."""

from __future__ import annotations

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.secrets.solving import SMALL_WITH_EPSILON

N = SMALL_WITH_EPSILON + 4


def test_events_that_no_window_is_about_are_released_within_epsilon() -> None:
    model = sv.MarkovModel(np.full(N, 1 / N), np.full((N, N), 1 / N))
    secret = sv.secrets.ever(3, epsilon=2.0, window="first 1")
    session = sv.Session(model, mechanism="guarded", epsilon=1.0, secrets=[secret], seed=1)
    for symbol in (3, 0, 5):  # from the second event on nothing is left to keep but ε
        kernel, belief = session.kernel(), session.belief
        assert kernel.leakage(belief, whole_alphabet=True) <= 1.0
        assert session.release(symbol) in kernel.outputs
    assert kernel.error(belief, sv.distortion.hamming()) == pytest.approx(1 - np.e / N, abs=1e-6)  # the optimum for ε
