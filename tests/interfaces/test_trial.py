"""Streams released for a trial: every way to release, on streams of several lengths, against slow twins."""

import numpy as np
import pytest

from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.interfaces.trial import in_batches, measure, one_by_one
from seqveil.receiver.decode import decode_codes

MODEL = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
WAYS = {"one by one": {}, "blocks": {"block": 4}, "batches": {"batch": 4}}


def test_streams_of_several_lengths_are_each_released_to_their_end():
    streams = [np.array(codes) for codes in ([0, 1, 2, 2], [1, 1], [2])]
    steps = list(one_by_one(Policy(epsilon=1.0).on(MODEL), streams, SeededRandomness(1)))
    assert [step.truth.tolist() for step in steps] == [[0, 1, 2], [1, 1], [2], [2]]
    assert [step.made.codes.size for step in steps] == [3, 2, 1, 1]
    assert steps[-1].after.steps.tolist() == [4]


def test_the_distribution_after_a_release_is_that_of_the_decoder():
    setting, streams = Policy(epsilon=1.0).on(MODEL), MODEL.sample(5, 4, seed=3)
    steps = list(one_by_one(setting, streams, SeededRandomness(2)))
    released = np.stack([step.made.codes for step in steps], axis=1)
    distributions = np.stack([step.distribution for step in steps], axis=1)
    np.testing.assert_allclose(distributions, decode_codes(setting, released, smooth=False), atol=1e-12)


def test_a_longer_stream_behind_a_shorter_one_is_refused():
    with pytest.raises(InputError, match="longest stream first"):
        next(one_by_one(Policy(epsilon=1.0).on(MODEL), [np.array([0]), np.array([0, 1])], SeededRandomness(1)))


def test_batches_hold_a_stream_to_its_end():
    terms = Policy(epsilon=2.0, batch=2, mechanism="tree").on(MODEL)
    sent, state = in_batches(terms, np.array([0, 1, 2, 1, 0]), SeededRandomness(1))
    assert [one.codes.size for one in sent] == [2, 2, 1]
    assert state.steps.tolist() == [3]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_costs_are_those_of_the_very_releases(way):
    """Counted again by hand from the same draws."""
    terms = Policy(epsilon=3.0, **WAYS[way]).on(MODEL)
    streams = [MODEL.sample(length, seed=length)[0] for length in (9, 8, 8, 4, 1)]
    found = measure(terms, streams, seed=5)
    if way == "batches":
        randomness = SeededRandomness(5)
        released = [np.concatenate([one.codes for one in in_batches(terms, s, randomness)[0]]) for s in streams]
    else:
        steps = [step.made.codes for step in one_by_one(terms, streams, SeededRandomness(5))]
        released = [np.array([codes[k] for codes in steps if k < codes.size]) for k in range(len(streams))]
    for costs, truth, codes in zip(found.costs, streams, released, strict=True):
        assert costs.tolist() == (truth != codes).tolist()
    wrong = np.concatenate([truth != codes for truth, codes in zip(streams, released, strict=True)])
    assert found.error == pytest.approx(wrong.mean())
    assert found.decoded_error <= found.error + 0.2
    assert 0 < found.leakage <= 9 * 3.0
    assert found.withheld == 0.0


@pytest.mark.slow
def test_the_standard_error_is_the_spread_of_repeated_trials():
    terms = Policy(epsilon=1.0).on(MODEL)
    trials = [measure(terms, MODEL.sample(6, 60, seed=seed), seed=seed) for seed in range(60)]
    spread = float(np.std([trial.error for trial in trials]))
    assert spread == pytest.approx(np.mean([trial.standard_error for trial in trials]), rel=0.35)  # 3.8 sigma
    assert measure(terms, MODEL.sample(6, 1, seed=1), seed=1).standard_error is None


def test_what_depends_on_the_clock_is_refused():
    from seqveil import Budget

    timed = Policy(epsilon=1.0, budget=Budget(per_window=2.0, seconds=60)).on(MODEL)
    with pytest.raises(InputError, match="number of seconds"):
        measure(timed, MODEL.sample(3, 2, seed=1), seed=1)
