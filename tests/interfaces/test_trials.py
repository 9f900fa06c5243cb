"""Trials of releases; test_measure counts all of their figures again, in every way to release."""

from __future__ import annotations

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.interfaces.trials import mean_cost, release

CALM = sv.MarkovModel([0.4, 0.3, 0.3], 0.9 * np.eye(3) + 0.1 / 3)


@pytest.mark.slow
def test_the_standard_error_is_the_spread_of_repeated_trials():
    terms = sv.Policy(epsilon=1.0).on(CALM)
    trials = [release(terms, CALM.sample(6, 60, seed=seed), seed=seed) for seed in range(60)]
    means, errors = zip(*(mean_cost(trial.costs) for trial in trials), strict=True)
    assert np.std(means) == pytest.approx(np.mean(errors), rel=0.35)  # 3.8 sigma
    assert mean_cost(release(terms, CALM.sample(6, 1, seed=1), seed=1).costs)[1] is None
    timed = sv.Policy(epsilon=1.0, budget=sv.Budget(per_window=2.0, seconds=60)).on(CALM)
    with pytest.raises(InputError, match="neither times nor gaps"):
        release(timed, CALM.sample(3, 2, seed=1), seed=1)
