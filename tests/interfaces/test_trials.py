"""Trials of releases in every way, on streams of several lengths, counted again by hand."""

from __future__ import annotations

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.interfaces.trials import mean_cost, release, steps

CALM = sv.MarkovModel([0.4, 0.3, 0.3], 0.9 * np.eye(3) + 0.1 / 3)


@pytest.mark.parametrize("way", [{}, {"block": 4}, {"batch": 4}], ids=["one by one", "blocks", "batches"])
def test_costs_are_those_of_the_very_releases(way):
    terms = sv.Policy(epsilon=3.0, **way).on(CALM)
    streams = [CALM.sample(length, seed=length)[0] for length in (8, 9, 8, 4, 1)]
    found = release(terms, streams, seed=5)
    wrong = [truth != found.released[place] for place, truth in enumerate(streams)]
    assert [found.costs[place].tolist() for place in range(5)] == [each.tolist() for each in wrong]
    assert found.error == pytest.approx(np.concatenate(wrong).mean())
    assert found.decoded_error <= found.error + 0.2
    assert 0 < found.leakage <= 9 * 3.0
    assert found.withheld == 0.0
    if "batch" not in way:
        order = [1, 0, 2, 3, 4]  # longest first, who is as long in order
        drawn = [made.codes for _, _, made, _ in steps(terms, [streams[k] for k in order], SeededRandomness(5))]
        assert [codes.size for codes in drawn] == [5, 4, 4, 4, 3, 3, 3, 3, 1]
        for row, place in enumerate(order):
            assert found.released[place].tolist() == [codes[row] for codes in drawn if row < codes.size]


@pytest.mark.slow
def test_the_standard_error_is_the_spread_of_repeated_trials():
    terms = sv.Policy(epsilon=1.0).on(CALM)
    trials = [release(terms, CALM.sample(6, 60, seed=seed), seed=seed) for seed in range(60)]
    spread = float(np.std([trial.error for trial in trials]))
    assert spread == pytest.approx(np.mean([mean_cost(trial.costs)[1] for trial in trials]), rel=0.35)  # 3.8 sigma
    assert mean_cost(release(terms, CALM.sample(6, 1, seed=1), seed=1).costs)[1] is None
    timed = sv.Policy(epsilon=1.0, budget=sv.Budget(per_window=2.0, seconds=60)).on(CALM)
    with pytest.raises(InputError, match="number of seconds"):
        release(timed, CALM.sample(3, 2, seed=1), seed=1)
