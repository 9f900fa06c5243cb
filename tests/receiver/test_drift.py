"""Drift from releases alone: stakes are fair under the model, false alarms keep to their rate, departures are seen."""

import itertools
import json
import math

import numpy as np
import pytest

from reference.blocks import every_path
from reference.streams import Rows
from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.core.words import Risk
from seqveil.engine import stream
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.receiver.drift import Drift, Habits, Learning, ModelCheck, alternatives_of
from seqveil.receiver.evidence import Chain

MODEL = MarkovModel([0.4, 0.3, 0.3], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
MOVED = MarkovModel([0.4, 0.3, 0.3], [[0.6, 0.1, 0.3], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])  # τ = .2, .2, 0


BLOCKS = {"epsilon": 1.5, "block": 2}


def released(setting, truth, users, length, seed):
    fleet, randomness, rows = Rows(setting, users), SeededRandomness(seed), np.arange(users)
    raw = truth.sample(length, users, seed + 10_000)
    return np.stack([fleet.release(rows, raw[:, t], randomness).codes for t in range(length)])


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["optimal", "randomized_response"])
def test_the_expected_e_value_is_one_over_all_streams_of_releases(mechanism):
    """Brute force: Σ Pr(releases) · E(releases) = 1 under the model, which is all that Ville's inequality needs."""
    setting = Policy(epsilon=1.2, mechanism=mechanism).on(MODEL)
    total = weight = 0.0
    for codes in itertools.product(range(3), repeat=4):
        state, probability = stream.State.start(setting), 1.0
        for code in codes:
            kernel = stream.kernels(setting, state.states, 1.2).one(0)
            outputs = kernel.codes.tolist()
            probability *= kernel.marginal(state.states[0])[outputs.index(code)] if code in outputs else 0.0
            if probability == 0.0:
                break
            _, state = stream.observe(setting, state, np.array([code]))
        if probability > 0:
            drift = Drift(setting, 1)
            drift.update(np.zeros(4, int), np.array(codes))
            total, weight = total + probability * math.exp(drift.log_e_value), weight + probability
    assert weight == pytest.approx(1.0)
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[2, 2], [1, 2, 1]])
def test_the_expected_e_value_is_one_over_all_streams_of_blocks(lengths):
    """The same over every path of blocks in a row, whole and cut, with the probabilities that enumeration finds."""
    setting, total = Policy(**BLOCKS).on(MODEL), 0.0
    begins = np.isin(np.arange(sum(lengths)), np.cumsum([0, *lengths]))
    paths = every_path(setting.rule, [1.5] * len(lengths), lengths)[-1]
    for codes, probability in zip(paths.codes, paths.weights @ paths.chances, strict=True):
        drift = Drift(setting, 1)
        drift.update(np.zeros(codes.size, int), codes, None, np.where(begins, 1.5, 0.0))
        total += probability * math.exp(drift.log_e_value)
    assert total == pytest.approx(1.0, abs=1e-9)


HOW = [{"epsilon": 1.0, "mechanism": "optimal"}, {"epsilon": 2.0, "mechanism": "randomized_response"}, BLOCKS]


@pytest.mark.slow
@pytest.mark.parametrize("how", [*HOW, {"epsilon": 0.5, "block": 5}])
def test_a_departure_is_seen(how):
    """A chain at total variation .13 on average is found in 16,000 releases, in 5 fleets of 5."""
    setting = Policy(**how).on(MODEL)
    for seed in range(5):
        drift = Drift(setting, 400)
        drift.update(np.tile(np.arange(400), 40), released(setting, MOVED, 400, 40, seed).ravel())
        assert drift.alarm


@pytest.mark.slow
def test_a_change_after_a_long_quiet_time_is_seen():
    setting = Policy(epsilon=1.0, mechanism="optimal").on(MODEL)
    drift, fleet = Drift(setting, 300), Rows(setting, 300)
    randomness, rows = SeededRandomness(4), np.arange(300)
    for truth in (MODEL, MOVED):
        for symbols in truth.sample(60, 300, 9).T:
            drift.update(rows, fleet.release(rows, symbols, randomness).codes)
        assert drift.alarm == (truth is MOVED)


def test_it_does_not_matter_how_updates_are_cut():
    setting = Policy(epsilon=1.0, mechanism="optimal").on(MODEL)
    codes = released(setting, MOVED, 7, 30, 3)
    together, apart = Drift(setting, 7), Drift(setting, 7)
    together.update(np.tile(np.arange(7), 30), codes.ravel())
    for row in codes:
        apart.update(np.arange(7), row)
    assert together.log_e_value == pytest.approx(apart.log_e_value)


def test_releases_that_tell_nothing_move_nothing():
    setting = Policy(epsilon=1.0, mechanism="optimal", budget=Budget(ldp_total=2.0)).on(MODEL)
    drift, found = Drift(setting, 5), []
    for codes in released(setting, MODEL, 5, 2, 1):
        drift.update(np.arange(5), codes)
        found.append(drift.log_e_value)
    assert found[1] == pytest.approx(found[0], abs=1e-12)


def test_a_model_of_order_2_is_bet_against():
    two = MarkovModel.fit([[0, 1, 2, 0, 1, 0, 2]], order=2, alphabet=range(3), smoothing=1.0)
    assert [type(alternative) for alternative in alternatives_of(two, 1)] == [Habits]
    drift = Drift(Policy(epsilon=1.0, mechanism="randomized_response").on(two), 1)
    drift.update(np.zeros(2, int), np.array([0, 0]))
    assert math.isfinite(drift.log_e_value)


def test_a_learning_alternative_learns():
    """What it expects of the next symbols comes to what the chain that people follow says of them."""
    truth, alternative = MOVED.sample(41, 500, 1), Learning(Chain.of(MODEL), 500, 1.0)
    for symbols in truth.T:
        expected = alternative.weigh(np.arange(500), np.eye(3)[symbols] + 1e-6, np.full((500, 3), 1 / 3))[0]
    assert np.abs(expected - MOVED.advance(np.eye(3))[truth[:, -2], truth[:, -1]]).max() < 0.03


def test_what_cannot_be_disclosed_is_refused():
    with pytest.raises(InputError, match="batch"):
        Drift(Policy(epsilon=2.0, batch=2, mechanism="tree").on(MODEL), 1)
    with pytest.raises(InputError, match="sound"):
        Drift(Policy(epsilon=0.1, mechanism="crr").on(MODEL), 1)


@pytest.mark.slow
def test_green_only_where_these_people_follow_the_model(tmp_path, capsys):
    """A promise kept exactly under the model, for people who follow it and for people who do not; green about a secret
    takes an attack besides: types of people break what releases of few events about it cannot show.
    """
    MODEL.save(tmp_path / "m.model")
    budget, secret = ["--epsilon", "1", "--budget", "1"], ["--secret", "ever:2", "--secret-window", "60"]
    secret += ["--secret-epsilon", "1"]
    for name, truth in (("same", MODEL), ("moved", MOVED)):
        rows = [f"{k},{x}" for k, stream_ in enumerate(truth.sample(60, 200, 3)) for x in stream_]
        (tmp_path / f"{name}.csv").write_text("user,value\n" + "\n".join(rows) + "\n")
        args = ["--model", str(tmp_path / "m.model")]
        for grade, policy in {"unchecked": secret, "green": budget}.items() if name == "same" else [("red", secret)]:
            out = str(tmp_path / f"{name}.{grade}.csv")
            assert main(["release", str(tmp_path / f"{name}.csv"), *args, *policy, "--out", out]) == 0
            capsys.readouterr()
            assert main(["audit", out, *args, "--json"]) == (name == "moved")
            found = json.loads(capsys.readouterr().out)
            assert found["passed"]
            assert found["grade"] == grade
            assert found["check"]["fits"] == (name == "same")
            assert ("these people do not follow the model" in found["grade_why"]) == (name == "moved")


def test_a_tiny_misfit_of_many_people_is_no_alarm():
    """3,000 people show for certain that a chain is not quite theirs; what matters is how far off accounts are."""
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(MODEL)
    near = MarkovModel(MODEL.prior, 0.93 * MODEL.advance(np.eye(3)) + 0.07 / 3)
    drift = Drift(setting, 3000)
    drift.update(np.tile(np.arange(3000), 20), released(setting, near, 3000, 20, 1).ravel())
    check = ModelCheck.of(drift)
    assert (check.rejected, check.fits) == (True, True)
    assert check.off_least < check.off_most < 0.1


def test_a_check_without_power_grades_nothing_green():
    """One person and seven events cannot speak against any model; what a check rests on is said with its green."""
    drift = Drift(Policy(epsilon=0.5, mechanism="randomized_response").on(MODEL), 1)
    drift.update(np.zeros(7, int), np.zeros(7, np.int64))
    alone = ModelCheck.of(drift)
    assert alone.fits is None
    assert Risk(0.1, doubts=alone.doubts, support=alone.support).grade.colour == "unchecked"
    drift = Drift(Policy(epsilon=0.5, mechanism="randomized_response").on(MODEL), 61)
    drift.update(np.tile(np.arange(61), 10), np.random.default_rng(1).integers(0, 3, 610))
    many = ModelCheck.of(drift)
    grade = Risk(0.1, doubts=many.doubts, support=many.support).grade
    assert (many.fits, grade.colour) == (True, "green")
    assert "61 people do not speak against the model" in grade.why
