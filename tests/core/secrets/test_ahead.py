"""Probabilities too small for a float: windows far ahead, types that were ruled out and come back, faint beginnings.

Everything is enumerated in fractions or followed in logarithms, so that 1e-279 is as exact as a half.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import seqveil as sv
from reference import streams as ref
from reference.guarding import accounts
from reference.secrets import one, typed_model
from seqveil.core import filtering
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.secrets import SecretTrackers
from seqveil.core.secrets.ahead import FAINTEST, ahead
from seqveil.engine import stream
from seqveil.engine.secrets import guarded_table
from seqveil.engine.streams import CodeStreams

EPSILON = 0.5


def leaving(stay: float) -> sv.MarkovModel:
    """a is left for good."""
    return sv.MarkovModel([0.5, 0.5], [[stay, 1 - stay], [0, 1]], alphabet=["a", "b"])


def outcomes(setting, steps):
    """Every sequence of releases that can come out: the state after it, and the exact columns Q(y|·)."""
    found = [(stream.State.start(setting), ())]
    for _ in range(steps):
        ahead_of = []
        for state, columns in found:
            table = guarded_table(setting, state.trackers[0])
            for place, code in enumerate(table.outputs.tolist()):
                column = tuple(Fraction(int(w), DENOMINATOR) for w in table.column(place))
                _, after = stream.observe(setting, state, np.array([code]))
                ahead_of.append((after, (*columns, column)))
        found = ahead_of
    return found


def exact_odds(model, columns, event):
    """log Pr(y | X_event = b) / Pr(y | X_event = a), over (the symbol at the event, the present one)."""
    first = [Fraction(p) for p in model.initial.tolist()]
    step = [[Fraction(p) for p in row] for row in model.advance(np.eye(2)).tolist()]
    disclosed = {(x if event == 0 else None, x): p for x, p in enumerate(first)}
    prior = dict(disclosed)
    for t in range(max(event + 1, len(columns))):
        if t < len(columns):
            disclosed = {key: mass * columns[t][key[1]] for key, mass in disclosed.items()}
        if t + 1 < max(event + 1, len(columns)):
            disclosed, prior = (_onward(distribution, step, t + 1 == event) for distribution in (disclosed, prior))
    both = [
        [sum(mass for (v, _), mass in distribution.items() if v == value) for value in (0, 1)]
        for distribution in (disclosed, prior)
    ]
    (not_disclosed, yes_disclosed), (not_prior, yes_prior) = both
    return ref.log(yes_disclosed) - ref.log(yes_prior) - ref.log(not_disclosed) + ref.log(not_prior)


def _onward(distribution, step, reads):
    after = {}
    for (seen, x), mass in distribution.items():
        for z in (0, 1):
            key = (z if reads else seen, z)
            after[key] = after.get(key, Fraction(0)) + mass * step[x][z]
    return after


@pytest.mark.slow
@pytest.mark.parametrize(("stay", "sides"), [(0.05, "both"), (0.02, "up")])
def test_windows_far_ahead_are_kept_and_reported_as_they_are(stay, sides):
    """Every outcome of three releases, every window that is live, near and far: account and promise are exact."""
    model = leaving(stay)
    secret = sv.secrets.ever("b", epsilon=EPSILON, window=1, one_sided=sides == "up")
    setting = sv.Policy(secrets=secret, mechanism="guarded").on(model)
    last = setting.trackers.limit - 1
    worst = -math.inf
    for state, columns in outcomes(setting, 3):
        tracker = state.trackers[0].rows[0][0]
        assert tracker.worst.worst(sides) <= EPSILON
        found = {account.first: account for account in accounts(tracker)}
        assert max(found) == last
        for event in {0, 1, 2, 3, 4, 20, last // 2, last - 1, last}:
            exact = exact_odds(model, columns, event)
            worst = max(worst, exact if sides == "up" else abs(exact))
            if event in found:
                assert found[event].log_odds == pytest.approx(exact, abs=1e-9)
    assert 0 < worst <= EPSILON


@pytest.mark.parametrize(("stay", "window"), [(0.3, 1), (0.3, 4), (0.02, 1), (0.02, None), (1e-5, 3)])
def test_the_promise_ends_where_odds_cannot_be_counted(stay, window):
    """The last window that is promised has a value likelier than 1e-280, the next one has not."""
    plan = ahead(leaving(stay), sv.secrets.ever("b", epsilon=EPSILON, window=window))
    size = window or 1
    log_prior = {end: math.log(0.5) + (end - 1) * math.log(stay) for end in range(1, 1000)}
    begins = plan.limit - size + 1  # X = b at one of the window's events, or a up to its last one
    if window is None:
        assert log_prior[plan.limit] >= math.log(FAINTEST) > log_prior[plan.limit + 1]
    else:
        assert log_prior[plan.limit] >= math.log(FAINTEST) > log_prior[plan.limit + size]
        assert begins % size == 1 % size


def test_underflow_in_one_stride_is_not_taken_for_impossible():
    """From one window to the next the prior falls from 1e-201 to less than any float."""
    assert ahead(leaving(1e-200), sv.secrets.ever("b", epsilon=EPSILON, window=1)).limit == 2
    assert ahead(leaving(1e-200), sv.secrets.ever("b", epsilon=EPSILON)).limit == 2
    known = sv.MarkovModel([1.0, 0.0, 0.0], [[0, 1, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    free = ahead(known, sv.secrets.ever(2, epsilon=EPSILON, window=1))  # impossible at the first event alone
    assert free.limit is None


@pytest.mark.parametrize("window", [1, None])
def test_one_event_more_is_refused_before_anything_is_drawn(window):
    model = leaving(1e-60)
    secret = sv.secrets.ever("b", epsilon=EPSILON, window=window)
    session = sv.Session(model, mechanism="guarded", secrets=[secret], seed=1)
    limit = session.setting.trackers.limit
    assert 3 <= limit <= 6
    for _ in range(limit):
        session.release("b")
    before = session.belief.copy()
    for _ in range(2):
        with pytest.raises(sv.errors.InputError, match=f"at most {limit} events; beyond that the model makes"):
            session.release("b")
    assert session.belief.tolist() == before.tolist()
    streams = CodeStreams(session.setting)
    with pytest.raises(
        sv.errors.InputError, match="give the secret a window" if window is None else "smooth the model"
    ):
        streams.release(["u"] * (limit + 1), [1] * (limit + 1))
    assert streams.release(["u"] * limit, [1] * limit).codes.size == limit
    assert streams.secrets()[0].kept


def test_an_account_alone_goes_on_without_the_windows_that_cannot_be_counted():
    model = leaving(1e-60)
    tracker = SecretTrackers.start(model, sv.secrets.ever("b", window=1, epsilon=1.0))
    for _ in range(20):
        tracker = tracker.observe([0.4, 0.6])
    assert math.isfinite(one(tracker).worst.worst())
    assert one(tracker).worst.worst() == pytest.approx(
        5 * math.log(1.5) + math.log(5 / 6), abs=1e-9
    )  # five times a, or not


def test_a_combination_that_is_too_unlikely_from_the_start_is_refused():
    model = sv.MarkovModel([0.5, 0.5], [[1 - 1e-150, 1e-150], [1e-150, 1 - 1e-150]])
    parts = (
        sv.secrets.pattern("0 1 0 1", window="first 6", epsilon=1.0),
        sv.secrets.ever(0, window="first 6", epsilon=1.0),
    )
    with pytest.raises(sv.errors.InputError, match="less likely than 1e-280 from the first window on"):
        sv.Session(model, mechanism="guarded", secrets=[sv.secrets.joint(*parts, epsilon=1.0)])


STEPS = 250


def in_logs(model, columns):
    """log Pr(E, y_1..t) and log Pr(not E, y_1..t) for E = "1 among the first two", over (seen, state) in logs."""
    with np.errstate(divide="ignore"):
        step, distribution = np.log(model.advance(np.eye(model.size))), np.full((2, model.size), -np.inf)
        is_one = (model.newest == 1).astype(int)
        distribution[is_one, np.arange(model.size)] = np.log(model.initial)
    for t, column in enumerate(columns):
        distribution = distribution + np.log(column)[model.newest]
        yield np.logaddexp.reduce(distribution, axis=1)[::-1]
        distribution = np.logaddexp.reduce(distribution[:, :, None] + step, axis=1)
        if t == 0:
            distribution = np.stack(
                [
                    np.where(is_one, -np.inf, distribution[0]),
                    np.where(is_one, np.logaddexp(*distribution), distribution[1]),
                ]
            )


@pytest.mark.slow
def test_a_kind_of_person_that_was_ruled_out_comes_back():
    """Releases of a symbol that one type likes move its odds by more than any float holds, and back again."""
    model = typed_model(np.random.default_rng(5), 2, 2)
    secret = sv.secrets.ever(1, epsilon=1.0, window="first 2")
    columns = [np.array([1.0, 1.0])] * 2 + [np.array([1.0, 2.0**-12])] * STEPS + [np.array([2.0**-12, 1.0])] * STEPS
    trackers, least, before = SecretTrackers.start(model, secret, kept=True), 1.0, None
    for t, (column, (yes, no)) in enumerate(zip(columns, in_logs(model, columns), strict=True)):
        trackers = trackers.observe(column)
        least, (tracker,) = min(least, float(trackers.users.own[0].now.min())), trackers.rows[0]
        before = yes - no if t == 1 else before
        if t > 1:
            assert tracker.latest.log_odds == pytest.approx(yes - no - before, abs=1e-6)
    assert least < -700  # kept as a logarithm on the way


def test_guarded_streams_go_on_where_a_type_is_ruled_out():
    model = typed_model(np.random.default_rng(1), 2, 3)
    setting = sv.Policy(secrets=sv.secrets.ever(2, epsilon=0.5, window="first 3"), mechanism="guarded").on(model)
    state = stream.State.start(setting)
    for code in [0] * 60:
        outputs = guarded_table(setting, state.trackers[0]).outputs
        _, state = stream.observe(setting, state, np.array([code if code in outputs else int(outputs[0])]))
    tracker = state.trackers[0].rows[0][0]
    assert tracker.worst.worst() <= 0.5
    assert tracker.belief.reshape(-1, 3).sum(0) == pytest.approx(state.states[0].reshape(2, 3).clip(0).sum(0))


@pytest.mark.slow
@pytest.mark.parametrize(("least", "sides"), [(1e-139, "up"), (1e-141, "both"), (1e-212, "up"), (1e-260, "both")])
def test_a_symbol_that_began_faint_may_be_released(least, sides):
    """What stood there as a logarithm becomes a probability again once a release makes it likely."""
    first = np.array([least, 1e-20, 1.0])
    model = sv.MarkovModel(first / first.sum(), [[1, 0, 0], [0.8, 0.1, 0.1], [0.5, 0.1, 0.4]])
    secret = sv.secrets.ever(2, epsilon=0.5, window=2, one_sided=sides == "up")
    for raw in itertools.product(range(3), repeat=2):
        session = sv.Session(model, mechanism="guarded", secrets=[secret], seed=1)
        for symbol in (*raw, 0):
            assert session.release(symbol) in range(3)
            tracker = session.trackers.rows[0][0]
            assert tracker.belief.sum() == pytest.approx(1.0)
            assert tracker.belief.reshape(-1, 3).sum(0) == pytest.approx(session.belief, abs=1e-9)
            assert tracker.worst.highest <= 0.5


def test_a_distribution_over_its_own_faint_total_is_a_distribution():
    distribution = np.array([np.log(3e-150), np.log(1e-150), 0.0, -2000.0])
    found = filtering.shared(distribution, 4e-150)
    assert found[:3] == pytest.approx([0.75, 0.25, 0.0])
    assert found[3] == pytest.approx(-2000 - np.log(4e-150))
