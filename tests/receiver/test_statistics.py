"""The receiver's counts: unbiased by enumeration, variances too, and intervals that cover as often as they say."""

from __future__ import annotations

import itertools
from itertools import pairwise, product

import numpy as np
import pytest

import seqveil as sv
from reference.blocks import every_path
from reference.mixtures import mixture
from reference.streams import Rows
from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import stream
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.files.receive import Statistics
from seqveil.receiver import inversion, statistics
from seqveil.receiver.drift import ModelCheck
from seqveil.receiver.inversion import indicators
from seqveil.receiver.statistics import summarise

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
@pytest.mark.parametrize("mechanism", ["randomized_response", "crr"])
@pytest.mark.parametrize("raw", [[0, 0, 0, 1], [1, 2, 1, 2]])
def test_counts_and_their_variances_are_unbiased_by_enumeration(mechanism, raw):
    """Given any raw stream, over all releases: estimates average to the truth, those of variances to the variance."""
    setting, truth = Policy(epsilon=0.7, mechanism=mechanism).on(MODEL), counts(np.array([raw]))
    sums = dict.fromkeys(("weight", "H", "H2", "VH", "M", "M2", "VM"), 0.0)
    for codes, p in every_release(setting, raw):
        found = indicators(setting, np.zeros(4, np.int64), codes)
        (seen,), (wide,) = inversion.histogram(found, np.zeros(4, np.int64), 1)
        moves, moved = inversion.transitions(found)
        for name, value in zip(sums, (1.0, seen, seen**2, wide, moves, moves**2, moved), strict=True):
            sums[name] = sums[name] + p * value
    assert sums["weight"] == pytest.approx(1.0)
    assert sums["H"] == pytest.approx(truth[0])
    assert sums["M"] == pytest.approx(truth[1])
    for total, square, estimate in (("H", "H2", "VH"), ("M", "M2", "VM")):
        assert sums[estimate] == pytest.approx(sums[square] - sums[total] ** 2, abs=1e-7)


def covered(estimate, truth):
    return ((estimate.low <= truth) & (truth <= estimate.high)).mean()


def trial(setting, users, length, seed, people=TRUTH, **options):
    raw = people.sample(length, users, seed)
    names = np.repeat(np.arange(users), length).tolist()
    found = summarise(setting, names, release(setting, raw, seed + 10**6).ravel(), window=length // 2, **options)
    seen, moves = counts(raw)
    halves = [counts(half)[0] for half in np.split(raw, 2, axis=1)]
    truths = ((found.histogram, seen), (found.over_time, halves), (found.transitions, moves))
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


def test_windows_add_up_and_the_order_of_users_in_the_file_does_not_matter():
    setting, raw = Policy(epsilon=1.0, mechanism="randomized_response").on(MODEL), TRUTH.sample(7, 30, 1)
    codes = release(setting, raw, 2)
    by_user = summarise(setting, np.repeat(np.arange(30), 7).tolist(), codes.ravel(), window=3)
    by_time = summarise(setting, np.tile(np.arange(30), 7).tolist(), codes.T.ravel(), window=3)
    for name in ("histogram", "over_time", "transitions"):
        assert getattr(by_user, name).low == pytest.approx(getattr(by_time, name).low)
    assert by_user.in_window.tolist() == [90, 90, 30]
    assert by_user.histogram.value.sum() == pytest.approx(210)


def test_what_cannot_be_inverted_is_not():
    users, wide = np.zeros(1, np.int64), MarkovModel(np.full(9, 1 / 9), np.full((9, 9), 1 / 9))
    assert indicators(Policy(epsilon=1.0, mechanism="optimal").on(wide), users, np.array([0])) is None
    held = Policy(epsilon=1.0, mechanism="randomized_response", budget=1e-7).on(MODEL)
    assert indicators(held, np.zeros(2, np.int64), np.array([0, 0])) is None


@pytest.mark.parametrize(("name", "wrong"), [("confidence", 1.0), ("method", "magic"), ("window", 0)])
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
@pytest.mark.parametrize("confidence", [0.9, 0.9999])  # the last one further out than there are draws
def test_intervals_under_the_model_cover_as_often_as_they_say(confidence):
    """The truth of people who follow the model is one draw more: 120 intervals or more a figure, to 3 errors."""
    setting, how = Policy(epsilon=1.0, mechanism="optimal").on(MODEL), {"method": "model", "confidence": confidence}
    rates = np.mean([trial(setting, 40, 10, seed, people=MODEL, **how)[0] for seed in range(40)], axis=0)
    assert (rates >= confidence - 0.07).all(), rates
    assert rates.mean() <= confidence + 0.05


CALM, LIVELY = ([0.8, 0.2], [[0.9, 0.1], [0.3, 0.7]]), ([0.5, 0.5], [[0.4, 0.6], [0.5, 0.5]])
SECRET = sv.secrets.ever(1, epsilon=0.5, window=3)


def _mixture() -> sv.MarkovModel:
    return mixture([sv.MarkovModel(*CALM), sv.MarkovModel(*LIVELY)], [0.6, 0.4])


def _released(setting: Terms, users: int, length: int) -> tuple[list[int], np.ndarray]:
    streams, raw = CodeStreams(setting, randomness=SeededRandomness(3)), setting.model.sample(length, users, seed=2)
    codes = np.stack([streams.release(range(users), column).codes for column in raw.T], axis=1)
    return np.repeat(np.arange(users), length).tolist(), codes.ravel()


def test_statistics_of_a_guarded_release_with_an_epsilon_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 20)
    setting = sv.Policy(epsilon=1.0, secrets=[SECRET], mechanism="guarded").on(sv.MarkovModel(*CALM))
    said = _released(setting, 6, 3)
    assert summarise(setting, *said).method == "model"
    with pytest.raises(InputError, match=r"identify no chain.*use method model"):
        summarise(setting, *said, method="learned")
    with pytest.raises(InputError, match="cannot be inverted"):
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
        state, columns = stream.State.start(setting), []
        for code in own:
            seen, state = stream.observe(setting, state, np.array([code]))
            columns.append(seen.columns[0] / 2.0**62)
        expected += _exact_counts(columns)
    found = summarise(setting, names, codes)
    assert found.method == "model"
    assert np.abs(found.histogram.value - expected).max() < 4 * found.histogram.error.max() / np.sqrt(statistics.DRAWN)
    assert (found.histogram.low <= expected).all()
    assert (expected <= found.histogram.high).all()


@pytest.mark.parametrize("types", [False, True])
def test_counts_behind_blocks_are_those_of_all_truths_and_bits(types: bool) -> None:
    """Every path of two blocks, the second one cut, a user each: the counts that Bayes expects over all sequences."""
    model = _mixture() if types else sv.MarkovModel(*CALM)
    setting = sv.Policy(epsilon=1.5, block=3).on(model)
    paths = every_path(setting.rule, [1.5, 1.5], [3, 2])[-1]
    users, length = paths.codes.shape
    used = np.zeros((users, length))
    used[:, [0, 3]] = 1.5
    names = np.repeat(np.arange(users), length).tolist()
    found = summarise(setting, names, paths.codes.ravel(), None, used.ravel(), method="model", window=2)
    if types:
        assert summarise(setting, names, paths.codes.ravel(), None, used.ravel()).method == "model"
    posterior = paths.weights * paths.chances
    often = (posterior / posterior.sum(1, keepdims=True)).sum(0)  # of each sequence, over all users
    expected = np.stack([[often @ (part == x).sum(1) for x in (0, 1)] for part in _pieces(paths.sequences, 2)])
    moves = [
        [often @ ((paths.sequences[:, :-1] == a) & (paths.sequences[:, 1:] == b)).sum(1) for b in (0, 1)]
        for a in (0, 1)
    ]
    for estimate, exact in ((found.over_time, expected), (found.transitions, np.array(moves))):
        assert (np.abs(estimate.value - exact) <= 4 * estimate.error / np.sqrt(statistics.DRAWN)).all()
        assert ((estimate.low <= exact) & (exact <= estimate.high)).all()
    with pytest.raises(InputError, match="in blocks"):
        summarise(setting, names, paths.codes.ravel(), method="design")


def _pieces(sequences: np.ndarray, size: int) -> list[np.ndarray]:
    return [sequences[:, at : at + size] for at in range(0, sequences.shape[1], size)]


@pytest.mark.slow
def test_intervals_from_blocks_cover_though_the_model_of_the_release_is_another() -> None:
    truth, covered_counts, trials = sv.MarkovModel(*CALM), 0, 12
    setting = sv.Policy(epsilon=4.0, block=4).on(sv.MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]]))
    for seed in range(trials):
        raw = truth.sample(12, users=60, seed=seed)
        streams = CodeStreams(setting, randomness=SeededRandomness(seed))
        codes = np.stack([streams.release(range(60), column).codes for column in raw.T], axis=1)
        found = summarise(setting, np.repeat(np.arange(60), 12).tolist(), codes.ravel())
        assert found.method == "learned"
        inside = (found.histogram.low <= np.bincount(raw.ravel())) & (np.bincount(raw.ravel()) <= found.histogram.high)
        covered_counts += int(inside.all())
    assert covered_counts >= trials - 3  # of 12 at 95 %, fewer than 9 come once in 4,000 times


def test_too_many_symbols_are_refused_before_any_release_is_followed() -> None:
    wide = sv.MarkovModel(np.full(61, 1 / 61), np.full((61, 61), 1 / 61))

    def followed(rows: object, made: object) -> None:
        raise AssertionError("a release was followed")

    for method, most, remedy in (("learned", "60 symbols", "--cell-metres"), ("model", "2000 states", "decode")):
        model = wide if method == "learned" else sv.MarkovModel(np.full(2001, 1 / 2001), np.eye(2001))
        setting = sv.Policy(epsilon=1.0, mechanism="randomized_response").on(model)
        with pytest.raises(InputError, match=f"at most {most}.*{remedy}"):
            summarise(setting, ["u"], np.array([0]), method=method, seen=followed)


def test_counts_beside_a_secret_are_right_though_people_have_a_habit_that_no_chain_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learned chain takes the hidden symbol, which no release contradicts, for people's habit."""
    monkeypatch.setattr(statistics, "DRAWN", 20)
    rows = np.array([[0.6, 0.38, 0.02], [0.38, 0.6, 0.02], [0.5, 0.48, 0.02]])
    chain, length = sv.MarkovModel([0.5, 0.48, 0.02], rows), 20
    setting = sv.Policy(secrets=[sv.secrets.ever(2, epsilon=0.5, window=10)]).on(chain)
    raw = np.stack([np.full(length, person % 2) for person in range(30)])
    raw[:, ::4] = 1 - raw[:, ::4]
    streams = CodeStreams(setting, randomness=SeededRandomness(3))
    codes = np.stack([streams.release(range(30), column).codes for column in raw.T], axis=1)
    found = summarise(setting, np.repeat(np.arange(30), length).tolist(), codes.ravel()).known(True)
    assert found.method == "model"
    assert np.isnan(found.histogram.value).tolist() == [False, False, True]
    assert np.abs(found.histogram.value[:2] - np.bincount(raw.ravel())).max() < 0.1 * raw.size


def test_a_symbol_that_is_hardly_disclosed_is_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 30)
    chain = sv.MarkovModel([0.6, 0.35, 0.05], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]])
    setting = sv.Policy(secrets=[sv.secrets.ever(2, epsilon=0.2, window=4)], mechanism="guarded").on(chain)
    found = summarise(setting, *_released(setting, 20, 4))
    assert found.undisclosed == (2,)
    misfit = ModelCheck(False, 9.0, 4.6, "a rule")
    named = sv.MarkovModel([0.6, 0.35, 0.05], chain.advance(np.eye(3)), alphabet=["news", "sport", "health"])
    counted = Statistics(None, found.known(False), misfit, False, named)
    assert np.isnan(counted.summary.histogram.value).tolist() == [False, False, True]
    assert np.isnan(counted.summary.transitions.value).sum() == 5
    said = dict(counted.lines())
    assert said["not known"].startswith("health: no estimate; the release keeps declared secrets")
    assert said["intervals"].startswith("none: these people do not follow the model exactly")
    fits = ModelCheck(True, 9.0, 4.6, "a rule", off_most=0.05)
    near = dict(Statistics(None, found.known(False), fits, False, named).lines())
    assert "do not follow" not in str(near)
    assert "tolerated for the promise but not for intervals" in near["intervals"]
    hidden = found.known(True)  # under the model its count would be the model's: the interval holds all there is
    assert np.isnan(hidden.histogram.value).tolist() == [False, False, True]
    assert (hidden.histogram.low[2], hidden.histogram.high[2], hidden.transitions.high[2, 0]) == (0, 80, 60)
    assert (hidden.histogram.high[:2] == found.histogram.high[:2]).all()
    fitting = Statistics(None, hidden, ModelCheck(True, 0.0, 4.6, "a rule"), True, named)
    assert "no estimate" in dict(fitting.lines())["not known"]
    assert fitting.tables()[0].rows[-1] == ("health", *["not known"] * 2)
    assert all("health" not in row for row in fitting.tables()[1].rows)
