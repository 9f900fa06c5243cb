"""The receiver's counts: unbiased by enumeration, variances too, and intervals that cover as often as they say."""

from __future__ import annotations

import itertools
import json
import math
from itertools import pairwise, product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from filed import release_file
from reference_streams import Rows
from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import Terms
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.receive import Statistics
from seqveil.receiver import inversion, statistics
from seqveil.receiver.drift import ModelCheck
from seqveil.receiver.inversion import _fieller, indicators
from seqveil.receiver.statistics import DRAWN, _ranked, summarise

MODEL = MarkovModel([0.4, 0.3, 0.3], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
TRUTH = MarkovModel([0.2, 0.5, 0.3], [[0.6, 0.2, 0.2], [0.1, 0.8, 0.1], [0.3, 0.2, 0.5]])  # not the model


def release(setting, raw, seed):
    fleet, randomness, rows = Rows(setting, len(raw)), SeededRandomness(seed), np.arange(len(raw))
    return np.stack([fleet.release(rows, raw[:, t], randomness).codes for t in range(raw.shape[1])], axis=1)


def counts(raw, n=3):
    seen, moves = np.bincount(raw.ravel(), minlength=n), np.zeros((n, n))
    np.add.at(moves, (raw[:, :-1].ravel(), raw[:, 1:].ravel()), 1)
    return seen, moves


def every_release(setting, raw):
    """All streams of releases of one raw stream, and their probabilities given it: kernels follow past releases."""
    for codes in itertools.product(range(setting.model.n), repeat=len(raw)):
        state, probability = stream.State.start(setting), 1.0
        for x, code in zip(raw, codes, strict=True):
            kernel = stream.kernels(setting, state.states, setting.epsilon).one(0)
            outputs = kernel.codes.tolist()
            probability *= kernel.probabilities[x, outputs.index(code)] if code in outputs else 0.0
            if probability == 0:
                break
            _, state = stream.observe(setting, state, np.array([code]))
        if probability > 0:
            yield np.array(codes), probability


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["randomized_response", "crr_repaired"])
@pytest.mark.parametrize("raw", [[0, 0, 0, 1], [1, 2, 1, 2]])
def test_counts_and_their_variances_are_unbiased_by_enumeration(mechanism, raw):
    """Given any raw stream, over all releases: estimates average to the truth, those of variances to the variance."""
    setting, truth = Policy(epsilon=0.7, mechanism=mechanism).on(MODEL), counts(np.array([raw]))
    sums = dict.fromkeys(("weight", "H", "H2", "VH", "M", "M2", "VM", "L", "L2", "VL"), 0.0)
    a, b = np.array([0.3, -1.0, 2.0]), np.array([0.5, 1.0, -0.7])
    for codes, p in every_release(setting, raw):
        found = indicators(setting, np.zeros(4, np.int64), codes)
        (seen,), (wide,) = inversion.histogram(found, np.zeros(4, np.int64), 1)
        moves, moved = inversion.transitions(found)
        before = np.vstack([np.zeros(3), found.values[:-1]])
        line = (found.values * (a + b * before)).sum(0)
        disclosed = (
            1.0,
            seen,
            seen**2,
            wide,
            moves,
            moves**2,
            moved,
            line,
            line**2,
            inversion._linear(found, before, a, b),
        )
        for name, value in zip(sums, disclosed, strict=True):
            sums[name] = sums[name] + p * value
    assert sums["weight"] == pytest.approx(1.0)
    assert sums["H"] == pytest.approx(truth[0])
    assert sums["M"] == pytest.approx(truth[1])
    assert sums["L"] == pytest.approx(a * truth[0] + b * truth[1].diagonal())
    for total, square, estimate in (("H", "H2", "VH"), ("M", "M2", "VM"), ("L", "L2", "VL")):
        assert sums[estimate] == pytest.approx(sums[square] - sums[total] ** 2, abs=1e-7)


def covered(estimate, truth):
    return ((estimate.low <= truth) & (truth <= estimate.high)).mean()


def trial(setting, users, length, seed, **options):
    raw = TRUTH.sample(length, users, seed)
    names = np.repeat(np.arange(users), length).tolist()
    found = summarise(setting, names, release(setting, raw, seed + 10**6).ravel(), window=length // 2, **options)
    seen, moves = counts(raw)
    halves = [counts(half)[0] for half in np.split(raw, 2, axis=1)]
    dwell = seen / (seen - moves.diagonal())
    truths = ((found.histogram, seen), (found.over_time, halves), (found.transitions, moves), (found.dwell, dwell))
    return [covered(estimate, truth) for estimate, truth in truths], found.method


@pytest.mark.slow
def test_intervals_without_a_model_cover_as_often_as_they_say():
    """400 sets of 80 streams, from another chain than the model.

    The coverage of one interval has a standard error of 1.1 %; each figure is the mean over at least 3 of them, so that
    93 to 97 % is missed by chance about once in 100 choices of the seeds, which are fixed.
    """
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(MODEL)
    found = [trial(setting, 80, 8, seed) for seed in range(400)]
    assert {method for _, method in found} == {"design"}
    rates = np.mean([rates for rates, _ in found], axis=0)
    assert ((rates >= 0.93) & (rates <= 0.97)).all(), rates


@pytest.mark.slow
def test_intervals_from_a_learned_chain_cover():
    """8 sets of 400 streams released with the wrong model.

    A smoke test: the mean over 8 × 21 intervals, many of them dependent, must reach 88 %. `benchmarks intervals` has
    the figures of many more.
    """
    setting = Policy(epsilon=1.5, mechanism="optimal").on(MODEL)
    found = [trial(setting, 400, 10, seed, method="learned") for seed in range(8)]
    assert {method for _, method in found} == {"learned"}
    assert np.mean([rates for rates, _ in found]) >= 0.88


@pytest.mark.slow
def test_both_methods_agree_where_both_can_be_had():
    setting, raw = Policy(epsilon=3.0, mechanism="randomized_response").on(MODEL), TRUTH.sample(20, 300, 5)
    users, codes = np.repeat(np.arange(300), 20).tolist(), release(setting, raw, 6).ravel()
    design, learned = (summarise(setting, users, codes, method=method) for method in ("design", "learned"))
    apart = np.abs(design.histogram.value - learned.histogram.value)
    assert (apart <= 4 * (design.histogram.error + learned.histogram.error)).all()
    assert learned.histogram.error.sum() < design.histogram.error.sum()  # what the assumption buys


def test_the_order_of_users_in_the_file_does_not_matter():
    setting, raw = Policy(epsilon=1.0, mechanism="randomized_response").on(MODEL), TRUTH.sample(6, 10, 1)
    codes = release(setting, raw, 2)
    by_user = summarise(setting, np.repeat(np.arange(10), 6).tolist(), codes.ravel(), window=2)
    by_time = summarise(setting, np.tile(np.arange(10), 6).tolist(), codes.T.ravel(), window=2)
    for name in ("histogram", "over_time", "transitions", "dwell"):
        assert getattr(by_user, name).low == pytest.approx(getattr(by_time, name).low)


def test_windows_add_up():
    setting, raw = Policy(epsilon=1.0, mechanism="randomized_response").on(MODEL), TRUTH.sample(7, 30, 1)
    found = summarise(setting, np.repeat(np.arange(30), 7).tolist(), release(setting, raw, 2).ravel(), window=3)
    assert found.in_window.tolist() == [90, 90, 30]
    assert found.histogram.value.sum() == pytest.approx(210)


def test_the_top_is_sure_where_it_is_clear():
    chain = MarkovModel([0.9, 0.05, 0.05], [[0.9, 0.05, 0.05]] * 3)
    setting, raw = Policy(epsilon=2.0, mechanism="randomized_response").on(MODEL), chain.sample(10, 300, 1)
    found = summarise(setting, np.repeat(np.arange(300), 10).tolist(), release(setting, raw, 2).ravel(), top=1)
    assert [(each.code, each.sure) for each in found.top] == [(0, True)]
    assert found.maybe_top == ()
    both = summarise(setting, np.repeat(np.arange(300), 10).tolist(), release(setting, raw, 2).ravel(), top=2)
    assert both.top[0].sure
    assert set(both.maybe_top) | {both.top[1].code} == {1, 2}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5))
def test_the_ends_of_a_ratio_interval_hold_all_that_is_allowed(square, linear, constant):
    low, high = (float(end[0]) for end in _fieller(*(np.array([part]) for part in (square, linear, constant))))
    for r in np.linspace(1.0, 40.0, 500):
        if square * r**2 + linear * r + constant <= -1e-9 and abs(square) > 1e-6:
            assert low <= r + 1e-6
            assert r <= high + 1e-6


def test_what_cannot_be_inverted_is_not():
    users, wide = np.zeros(1, np.int64), MarkovModel(np.full(9, 1 / 9), np.full((9, 9), 1 / 9))
    assert indicators(Policy(epsilon=1.0, mechanism="optimal").on(wide), users, np.array([0])) is None
    held = Policy(epsilon=1.0, mechanism="randomized_response", budget=1e-7).on(MODEL)
    assert indicators(held, np.zeros(2, np.int64), np.array([0, 0])) is None


@pytest.mark.parametrize(("name", "wrong"), [("confidence", 1.0), ("method", "magic"), ("window", 0), ("top", 0)])
def test_options_that_mean_nothing_are_refused(name, wrong):
    with pytest.raises(InputError, match=name):
        summarise(Policy(epsilon=0.5, mechanism="randomized_response").on(MODEL), ["u"], np.array([0]), **{name: wrong})


def test_unsound_batched_and_impossible_are_refused():
    for setting, why in (
        (Policy(epsilon=0.1, mechanism="crr").on(MODEL), "sound"),
        (Policy(epsilon=1.0, batch=2, mechanism="tree").on(MODEL), "batches"),
    ):
        with pytest.raises(InputError, match=why):
            summarise(setting, ["u"], np.array([0]))
    held = Policy(epsilon=0.5, mechanism="randomized_response", budget=1e-7).on(MODEL)
    with pytest.raises(InputError, match="inverted"):
        summarise(held, ["u"] * 2, np.array([0, 0]), method="design")


@pytest.mark.slow
def test_the_command_prints_and_writes_json(tmp_path, capsys):
    named = MarkovModel(MODEL.prior, MODEL.advance(np.eye(3)), alphabet=["home", "work", "else"])
    named.save(tmp_path / "m.model")
    rows = [f"u{k},{named.alphabet.decode_one(int(x))}" for k, s in enumerate(TRUTH.sample(10, 50, 1)) for x in s]
    (tmp_path / "raw.csv").write_text("user,value\n" + "\n".join(rows) + "\n")
    setting = Policy(epsilon=2.0, mechanism="randomized_response").on(named)
    release_file(tmp_path / "raw.csv", setting, tmp_path / "out.csv", seed=1)
    args = ["stats", str(tmp_path / "out.csv"), "--model", str(tmp_path / "m.model"), "--per", "5"]
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["symbols"] == ["home", "work", "else"]
    assert found["method"] == "design"
    assert math.isclose(sum(found["histogram"]["value"]), 500, rel_tol=1e-6)
    assert found["in_window"] == [250, 250]
    assert main(args) == 0
    said = capsys.readouterr().out
    assert "assumes nothing about the data" in said
    assert "home" in said


def z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_one_draw_more_lies_inside_as_often_as_is_said(confidence):
    rng = np.random.default_rng(1)
    drawn, truth = rng.exponential(size=(DRAWN, 5_000)) ** 2, rng.exponential(size=5_000) ** 2
    found = _ranked(drawn, z(confidence), 0.0, np.inf)
    inside = (found.low <= truth) & (truth <= found.high)
    assert abs(inside.mean() - confidence) < 0.02  # three standard errors or more, beside the step of a rank


def test_counts_of_what_is_rare_are_held_at_least_as_often():
    rng = np.random.default_rng(2)
    drawn, truth = rng.poisson(0.3, (DRAWN, 5_000)), rng.poisson(0.3, 5_000)
    found = _ranked(drawn.astype(float), z(0.95), 0.0, 50.0)
    assert ((found.low <= truth) & (truth <= found.high)).mean() > 0.95


def test_the_estimate_lies_between_the_ends():
    drawn = np.zeros((DRAWN, 1))
    drawn[0] = 1000.0  # the mean is further out than all but one of the draws
    found = _ranked(drawn, z(0.95), 0.0, 2000.0)
    assert found.low[0] == 0.0
    assert found.low[0] <= found.value[0] <= found.high[0]


def test_further_out_than_there_are_draws_nothing_drawn_is_left_outside():
    drawn = np.random.default_rng(3).normal(50.0, 3.0, (DRAWN, 5))
    found = _ranked(drawn, z(0.9999), 0.0, 100.0)
    assert (found.low <= drawn.min(0)).all()
    assert (found.high >= drawn.max(0)).all()


def test_where_a_draw_has_no_figure_there_is_none():
    drawn = np.ones((DRAWN, 2))
    drawn[3, 1] = np.nan
    found = _ranked(drawn, z(0.95), 1.0, np.inf)
    assert (found.low[0], found.high[0]) == (1.0, 1.0)
    assert np.isnan([found.value[1], found.low[1], found.high[1]]).all()


CALM, LIVELY = ([0.8, 0.2], [[0.9, 0.1], [0.3, 0.7]]), ([0.5, 0.5], [[0.4, 0.6], [0.5, 0.5]])
SECRET = sv.secrets.ever(1, epsilon=0.5, window=3)


def _mixture() -> sv.MarkovModel:
    return sv.MarkovModel.mixture([sv.MarkovModel(*CALM), sv.MarkovModel(*LIVELY)], [0.6, 0.4])


def _released(setting: Terms, users: int, length: int) -> tuple[list[int], np.ndarray]:
    streams, raw = (
        CodeStreams(setting, randomness=SeededRandomness(3)),
        setting.model.sample(length, users=users, seed=2),
    )
    codes = np.stack([streams.release(range(users), column).codes for column in raw.T], axis=1)
    return np.repeat(np.arange(users), length).tolist(), codes.ravel()


def test_statistics_of_a_guarded_release_with_an_epsilon_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 20)
    setting = sv.Policy(epsilon=1.0, secrets=[SECRET], mechanism="guarded").on(sv.MarkovModel(*CALM))
    said = _released(setting, 6, 3)
    assert summarise(setting, *said).method == "learned"
    with pytest.raises(InputError, match="cannot be inverted, because they reveal too little"):
        summarise(setting, *said, method="design")


def _exact_counts(columns: list[np.ndarray]) -> np.ndarray:
    """How often each symbol is expected in a stream of the mixture, over all its truths."""
    counts, total = np.zeros(2), 0.0
    for weight, (first, chain) in ((0.6, CALM), (0.4, LIVELY)):
        for truth in product((0, 1), repeat=len(columns)):
            chance = weight * first[truth[0]] * np.prod([chain[a][b] for a, b in pairwise(truth)])
            chance *= np.prod([column[x] for column, x in zip(columns, truth, strict=True)])
            counts, total = counts + chance * np.bincount(truth, minlength=2), total + chance
    return counts / total


def test_counts_behind_a_guarded_release_of_types_are_those_of_all_truths() -> None:
    model = _mixture()
    setting = sv.Policy(secrets=[SECRET], mechanism="guarded").on(model)
    expected = np.zeros(2)
    names, codes = _released(setting, 4, 3)
    for own in codes.reshape(4, 3):
        followed, columns = sv.Session(model, mechanism="guarded", secrets=[SECRET], seed=1), []
        for code in own:
            kernel = followed.kernel()
            columns.append(kernel.probabilities[:, kernel.outputs.index(int(code))])
            _, followed._state = sv.engine.stream.observe(setting, followed._state, np.array([code]))
        expected += _exact_counts(columns)
    found = summarise(setting, names, codes)
    assert found.method == "model"
    assert np.abs(found.histogram.value - expected).max() < 4 * found.histogram.error.max() / np.sqrt(statistics.DRAWN)
    assert (found.histogram.low <= expected).all()
    assert (expected <= found.histogram.high).all()


def test_a_symbol_that_is_hardly_disclosed_is_not_estimated_where_there_are_no_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 30)
    chain = sv.MarkovModel([0.6, 0.35, 0.05], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]])
    setting = sv.Policy(secrets=[sv.secrets.ever(2, epsilon=0.2, window=4)], mechanism="guarded").on(chain)
    found = summarise(setting, *_released(setting, 20, 4), method="model")
    assert found.undisclosed == (2,)
    misfit = ModelCheck(False, 9.0, 4.6, "a rule")
    named = sv.MarkovModel([0.6, 0.35, 0.05], chain.advance(np.eye(3)), alphabet=["news", "sport", "health"])
    counted = Statistics(None, found.without_intervals(), misfit, False, named)
    assert np.isnan(counted.summary.histogram.value).tolist() == [False, False, True]
    assert np.isnan(counted.summary.transitions.value).sum() == 5
    assert 2 not in [each.code for each in counted.summary.top]
    said = dict(counted.lines())
    assert said["not known"].startswith("health: no estimate; the release keeps declared secrets")
    assert "the model" in dict(Statistics(None, found, misfit, True, named).lines())["barely known"]
