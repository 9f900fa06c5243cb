"""Blahut–Arimoto steps against the closed form that the package has for wrong symbols."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.arimoto import arimoto, information
from reference import streams as ref
from seqveil.core.distortion import hamming
from seqveil.evaluate.baselines import mutual_information


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), epsilon=st.sampled_from([0.1, 0.4, 1.0]))
def test_blahut_arimoto_comes_near_the_closed_form_and_never_over_its_rate(seed, epsilon):
    rng = np.random.default_rng(seed)
    beliefs = np.stack([ref.random_belief(rng, 5) for _ in range(8)])
    wrong = 1.0 - np.eye(5)
    tables = arimoto(beliefs, epsilon, wrong)
    assert (information(beliefs, tables) <= epsilon * (1 + 1e-12)).all()
    kernels = mutual_information.kernels(beliefs, epsilon)
    least = np.array([kernels.one(user).error(belief, hamming()) for user, belief in enumerate(beliefs)])
    excess = (beliefs[:, :, None] * tables * wrong).sum((1, 2)) - least
    assert excess.min() > -1e-9
    assert excess.max() < 2e-3
