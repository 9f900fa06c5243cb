"""The receiver: refusals, steps not made, several streams at once, and counts that add up (Bayes: test_theory)."""

import numpy as np
import pytest

import reference_streams as ref
import seqveil as sv
from seqveil import mechanisms
from seqveil.core.errors import DataError
from seqveil.engine.accounting import Budget
from seqveil.receiver.decode import decode_stream, estimates

PAIR = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


def chain(seed=0, n=3, zeros=False):
    prior, transitions = ref.random_chain(np.random.default_rng(seed), n, zeros=zeros)
    return sv.MarkovModel(prior, transitions), prior, transitions


def released_by(model, raw, **options):
    """What a session releases, and the weights every symbol puts on it (ones where it says nothing)."""
    session, made, columns = sv.Session(model, seed=3, **options), [], []
    for x in raw:
        kernel = session.kernel()
        made.append(session.release(x))
        quiet = made[-1] is None
        columns.append(np.ones(model.n, int) if quiet else kernel.column(list(kernel.outputs).index(made[-1])))
    return made, columns


OPTIONS = {
    "stop": {"budget": Budget(total=1.0, when_spent="stop")},
    "hold": {"budget": Budget(total=1.0)},
    "pulsed": {"every": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("smooth", [False, True])
def test_a_receiver_follows_schedule_and_budget(options, smooth):
    model, prior, transitions = chain(1)
    made, columns = released_by(model, [0, 1, 2, 0, 1], mechanism="balanced", epsilon=0.8, **options)
    distributions = decode_stream(model, made, mechanism="balanced", epsilon=0.8, smooth=smooth, **options)
    distribution = ref.sequence_distribution(prior, transitions, 5)
    for t in range(5):
        known = columns if smooth else columns[: t + 1]
        np.testing.assert_allclose(distributions[t], ref.symbol_distribution(distribution, known, t, 3), atol=1e-12)


@pytest.mark.parametrize("name", mechanisms.instantaneous())
@pytest.mark.parametrize("smooth", [False, True])
def test_streams_the_model_thought_impossible_have_proper_distributions(name, smooth):
    model = sv.MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    made, _ = released_by(model, [2, 1, 0, 2, 1, 0], mechanism=name, epsilon=3.0)
    distributions = decode_stream(model, made, mechanism=name, epsilon=3.0, smooth=smooth)
    assert (distributions >= 0).all()
    np.testing.assert_allclose(distributions.sum(1), 1)


def test_the_alphabets_values_are_understood():
    model = sv.MarkovModel.fit([["home", "work", "home", "home"], ["work", "work"]])
    made, _ = released_by(model, ["home", "work"], epsilon=1.0)
    assert decode_stream(model, made, epsilon=1.0).shape == (2, 2)
    with pytest.raises(DataError, match="alphabet"):
        decode_stream(model, ["elsewhere"], epsilon=1.0)


def test_releases_of_another_setting_are_refused():
    uneven = sv.MarkovModel([0.98, 0.01, 0.01], np.full((3, 3), 1 / 3))
    with pytest.raises(DataError, match="cannot have come"):
        decode_stream(uneven, [2], mechanism="optimal", epsilon=0.1)
    with pytest.raises(DataError):
        decode_stream(PAIR, [None], mechanism="optimal", epsilon=1.0)
    with pytest.raises(DataError, match="budget"):
        decode_stream(PAIR, [0] * 30, mechanism="balanced", epsilon=1.0, budget=Budget(total=0.5, when_spent="stop"))


def test_estimates():
    distributions = np.array([[[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]])
    model, _, _ = chain(0)
    assert estimates(distributions, "hamming", model).tolist() == [[0, 2]]
    assert estimates(distributions, "absolute", model)[0, 1] == 2


def test_nothing_released_is_nothing_decoded():
    assert decode_stream(PAIR, [], epsilon=1.0).shape == (0, 2)
