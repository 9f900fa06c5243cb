"""Baselines for `guarded`: what each keeps, and what it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

import seqveil as sv
from reference_secrets import random_model
from seqveil.core.distortion import hamming
from seqveil.core.errors import InputError
from seqveil.evaluate.baselines import declared

MODEL = sv.MarkovModel(
    [0.5, 0.4, 0.1], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]], alphabet=["news", "sports", "health"]
)
SECRET = sv.secrets.ever("health", epsilon=0.5, window="first 8")


def test_utility_optimised_response_tells_sensitive_symbols_apart_from_nothing():
    alphabet = sv.Alphabet(list("abcdef"))
    made = declared.utility_optimised(alphabet, sv.secrets.followed_by("a", then=["b", "c"], epsilon=1.0))
    for epsilon in (0.1, 1.0, 4.0):
        table = made.kernels(np.full((1, 6), 1 / 6), epsilon, hamming()).one(0).probabilities
        assert table.sum(1) == pytest.approx(1.0)
        protected = table[:, :3]
        assert (protected.max(0) <= math.exp(epsilon) * protected.min(0)).all()
        assert (np.count_nonzero(table[:, 3:], axis=0) == 1).all()
        assert (table[:3, 3:] == 0).all()


@pytest.mark.slow
def test_halving_keeps_the_secret_and_the_others_do_not():
    truth = MODEL.sample(8, 40, seed=3)
    kept = declared.Halving(MODEL, SECRET).release(truth, seed=1)
    assert kept.told().max() <= SECRET.epsilon
    assert kept.codes.shape == truth.shape
    for mechanism in (declared.utility_optimised, declared.suppression):
        made = declared.release(
            sv.Policy(epsilon=1.0, mechanism=mechanism(MODEL.alphabet, SECRET)).on(MODEL), truth, SECRET, seed=1
        )
        assert made.told().max() > SECRET.epsilon
        assert made.codes.shape == truth.shape
    guarded = declared.release(sv.Policy(secrets=SECRET).on(MODEL), truth, SECRET, seed=1)
    assert guarded.told().max() <= SECRET.epsilon
    assert (guarded.codes != truth).mean() < (kept.codes != truth).mean()


def test_suppression_never_releases_what_is_secret():
    truth = MODEL.sample(8, 20, seed=4)
    setting = sv.Policy(epsilon=1.0, mechanism=declared.suppression(MODEL.alphabet, SECRET)).on(MODEL)
    made = declared.release(setting, truth, SECRET, seed=1)
    assert not (made.codes == 2).any()
    assert (made.codes == truth)[truth != 2].all()


def test_halving_by_enumeration():
    rng = np.random.default_rng(5)
    for _ in range(3):
        model = random_model(rng, 3)
        halving = declared.Halving(model, sv.secrets.ever(2, epsilon=0.3, window="first 3"))

        def walk(watches, left, halving=halving):
            assert watches.rows[0][0].worst.worst() <= 0.3
            if left:
                _, weights, _ = halving.choose(watches)
                for y in np.flatnonzero(weights.any(0)):
                    walk(watches.observe(weights[:, y]), left - 1)

        walk(halving.start, 3)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match="every symbol"):
        declared.suppression(MODEL.alphabet, sv.secrets.ever(["news", "sports", "health"], epsilon=1.0))
