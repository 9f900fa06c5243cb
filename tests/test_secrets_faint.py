"""What one stretch of releases all but rules out comes back by another, with all it says about a secret."""

from __future__ import annotations

import numpy as np
import pytest

import seqveil as sv
from reference_secrets import typed_model
from seqveil.core.secrets import Watch
from seqveil.engine.secrets import guarded_table
from seqveil.engine.stream import State, observe

STEPS = 500


def in_logs(model, columns):
    """log Pr(E, y_1..t) and log Pr(not E, y_1..t) for E = "1 among the first two", a law of (seen, state) in logs."""
    with np.errstate(divide="ignore"):
        step, law = np.log(model.advance(np.eye(model.size))), np.full((2, model.size), -np.inf)
        is_one = (model.newest == 1).astype(int)
        law[is_one, np.arange(model.size)] = np.log(model.initial)
    for t, column in enumerate(columns):
        law = law + np.log(column)[model.newest]
        yield np.logaddexp.reduce(law, axis=1)[::-1]
        law = np.logaddexp.reduce(law[:, :, None] + step, axis=1)
        if t == 0:
            law = np.stack([np.where(is_one, -np.inf, law[0]), np.where(is_one, np.logaddexp(*law), law[1])])


@pytest.mark.slow
def test_a_kind_of_person_that_was_ruled_out_comes_back():
    """Releases of a symbol that one type likes move its odds by more than any float holds, and back again."""
    model = typed_model(np.random.default_rng(5), 2, 2)
    secret = sv.secrets.ever(1, epsilon=1.0, window="first 2")
    columns = [np.array([1.0, 1.0])] * 2 + [np.array([1.0, 2.0**-12])] * STEPS + [np.array([2.0**-12, 1.0])] * STEPS
    watch, least, before = Watch.start(model, secret, kept=True), 1.0, None
    for t, (column, (yes, no)) in enumerate(zip(columns, in_logs(model, columns), strict=True)):
        watch = watch.observe(column)
        least = min(least, float(watch.states.min()))
        before = yes - no if t == 1 else before
        if t > 1:
            assert watch.log_odds == pytest.approx(yes - no - before, abs=1e-6)
    assert least < -700  # kept as a logarithm on the way


def test_guarded_streams_go_on_where_a_type_is_ruled_out():
    model = typed_model(np.random.default_rng(1), 2, 3)
    setting = sv.Policy(secrets=sv.secrets.ever(2, epsilon=0.5, window="first 3"), mechanism="guarded").on(model)
    state = State.start(setting)
    for code in [0] * 60:
        outputs = guarded_table(setting, state.watches[0]).outputs
        _, state = observe(setting, state, np.array([code if code in outputs else int(outputs[0])]))
    watch = state.watches[0].rows[0][0]
    assert watch.worst.worst() <= 0.5
    assert watch.belief == pytest.approx(state.states[0].reshape(2, 3).clip(0).sum(0))
