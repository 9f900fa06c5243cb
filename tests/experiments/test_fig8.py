"""Re-identification: the network learns what there is to learn and nothing else, adversaries filter exactly."""

import itertools
import sys

import numpy as np
import pytest
from scipy.stats import binom

from experiments import fig8, observed, people, reidentify
from experiments.context import Context
from experiments.people import Sizes
from experiments.reidentify import Network
from experiments.temporal_leakage import leakage
from seqveil import MarkovModel
from seqveil.core.alphabet import Grid
from seqveil.engine.policy import Policy
from seqveil.receiver.decode import decode_codes

pytestmark = pytest.mark.slow

needs_torch = pytest.mark.skipif(not reidentify.available(), reason=reidentify.NEEDED)
TINY = Sizes(side=6, people=2, recordings=2, samples=25, skip=0, window=25)


def windows(people_count, each, shift, seed):
    """Noise, and a shift of one feature that is a person's own: features, person, half."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(people_count), each)
    features = rng.standard_normal((len(person), 8, 3))
    features[:, :, 0] += shift * person[:, None]
    return features, person, np.arange(len(person)) % 2 == 0


def hits(shift, seed):
    features, person, known = windows(5, 60, shift, seed)
    logs = reidentify.log_probabilities(features, person, known, Network(hidden=16, epochs=30), seed)
    return int((logs.argmax(1) == person[~known]).sum()), int((~known).sum())


@needs_torch
def test_the_network_tells_people_apart_who_differ():
    right, count = hits(shift=1.5, seed=1)
    assert right > 0.8 * count


@needs_torch
@pytest.mark.parametrize("seed", [1, 2])
def test_on_noise_the_network_stays_at_chance(seed):
    # windows of the two halves are independent, so hits are at most as spread as binomial: false alarm 1e-6 a seed
    right, count = hits(shift=0.0, seed=seed)
    assert right <= binom.isf(5e-7, count, 1 / 5)
    assert right >= binom.ppf(5e-7, count, 1 / 5)


@pytest.fixture(scope="module")
def crowd():
    return people.generated(TINY, seed=3)


def test_released_streams_are_none_of_those_a_chain_is_fitted_to(crowd):
    assert crowd.codes.shape == (8, 25)
    assert np.bincount(crowd.person).tolist() == [4, 4]
    assert np.bincount(crowd.half).tolist() == [4, 4]
    streams = np.split(crowd.rest[1], np.flatnonzero(np.diff(crowd.rest[0])) + 1)
    assert len(streams) == 8  # as many again, eight recordings a person in all
    assert not {tuple(s) for s in streams} & {tuple(s) for s in crowd.codes}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["crr", "randomized_response"])
def test_the_adversary_with_the_table_holds_the_exact_filter(crowd, order, name):
    model = crowd.model(order)
    setting = Policy(epsilon=0.8, mechanism=name, distortion=crowd.distortion).on(model)
    seen = observed.one_by_one(setting, crowd.codes[:4, :10], seed=5)
    distributions = decode_codes(setting, seen.codes, smooth=False)
    np.testing.assert_allclose(seen.means, distributions @ observed.places(model), atol=1e-9)
    np.testing.assert_allclose(seen.entropy, -(distributions * np.log(distributions)).sum(2), atol=1e-9)


def test_the_filter_of_restricted_responses_is_bayes_rule():
    grid = Grid.regular(2, 2, (0, 2, 0, 2))
    moves = np.array([[0.5, 0.5, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0], [0.0, 0.3, 0.3, 0.4], [0.6, 0.0, 0.0, 0.4]])
    model = MarkovModel([0.1, 0.2, 0.3, 0.4], moves, alphabet=grid)
    truth = model.sample(3, 5, seed=2)
    seen = observed.restricted(model, model, truth, 1.0, seed=3)
    every = np.array(list(itertools.product(range(4), repeat=3)))
    distribution = model.prior[every[:, 0]] * moves[every[:, 0], every[:, 1]] * moves[every[:, 1], every[:, 2]]
    gain = np.e
    for row, released in enumerate(seen.codes):
        joint = distribution * np.where(every[:, 0] == released[0], gain, 1.0) / (gain + 3)
        for t in (1, 2):
            able = (moves > 0)[every[:, t - 1]]
            disclosed = np.where(every[:, t] == released[t], gain, 1.0) / (gain + able.sum(1) - 1)
            joint = joint * disclosed * able[:, released[t]]
        exact = np.bincount(every[:, 2], joint, 4)
        np.testing.assert_allclose(seen.means[row, 2], exact @ observed.places(model) / exact.sum(), atol=1e-9)
        assert seen.likely[row].sum() == pytest.approx(np.log(exact.sum()))


def test_what_temporal_leakage_allows_is_what_its_quantifier_says(crowd):
    model = crowd.model(1)
    found = fig8.allowed(model)
    assert found["at least"] == 0.4 <= found["at most"]
    total = leakage(model, [found["at most"]] * 25)[2].max()  # 36 states: all of them were looked at
    assert total == pytest.approx(10.0, abs=1e-6)


def test_without_torch_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = fig8.run(Context(tmp_path, "fig8", synthetic=True, quick=True))
    assert result["numbers"] == {"skipped": "needs torch (pip install -e '.[experiments]')"}
    assert result["claims"] == []
    fig8.draw(pytest.importorskip("matplotlib.figure").Figure(layout="constrained"), result)
