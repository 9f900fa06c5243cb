"""Chains with states that are left for good: windows far ahead become too unlikely for floats, and the promise says so.

Everything is enumerated in fractions, so that a probability of 1e-279 is as exact as one of a half.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.secrets.ahead import FAINTEST, ahead
from seqveil.core.secrets.watch import Watch
from seqveil.engine import stream
from seqveil.engine.streams import Streams

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
            table = sv.engine.secrets.guarded_table(setting, state.watches[0])
            for place, code in enumerate(table.outputs.tolist()):
                column = tuple(Fraction(int(w), DENOMINATOR) for w in table.column(place))
                _, after = stream.observe(setting, state, np.array([code]))
                ahead_of.append((after, (*columns, column)))
        found = ahead_of
    return found


def exact_odds(model, columns, event):
    """log Pr(y | X_event = b) / Pr(y | X_event = a), by a law of (the symbol at the event, the present one)."""
    first = [Fraction(p) for p in model.initial.tolist()]
    step = [[Fraction(p) for p in row] for row in model.advance(np.eye(2)).tolist()]
    told = {(x if event == 0 else None, x): p for x, p in enumerate(first)}
    prior = dict(told)
    for t in range(max(event + 1, len(columns))):
        if t < len(columns):
            told = {key: mass * columns[t][key[1]] for key, mass in told.items()}
        if t + 1 < max(event + 1, len(columns)):
            told, prior = (_onward(law, step, t + 1 == event) for law in (told, prior))
    both = [[sum(mass for (v, _), mass in law.items() if v == value) for value in (0, 1)] for law in (told, prior)]
    (not_told, yes_told), (not_prior, yes_prior) = both
    return _log(yes_told) - _log(yes_prior) - _log(not_told) + _log(not_prior)


def _onward(law, step, reads):
    after = {}
    for (seen, x), mass in law.items():
        for z in (0, 1):
            key = (z if reads else seen, z)
            after[key] = after.get(key, Fraction(0)) + mass * step[x][z]
    return after


def _log(ratio: Fraction) -> float:
    return math.log(ratio.numerator) - math.log(ratio.denominator) if ratio else -math.inf


@pytest.mark.slow
@pytest.mark.parametrize("stay", [0.3, 0.02])
@pytest.mark.parametrize("sides", ["both", "up"])
def test_windows_far_ahead_are_kept_and_reported_as_they_are(stay, sides):
    """Every outcome of three releases, every window that is live, near and far: account and promise are exact."""
    model = leaving(stay)
    secret = sv.secrets.ever("b", epsilon=EPSILON, window=1, one_sided=sides == "up")
    setting = sv.Policy(secrets=secret, mechanism="guarded").on(model)
    last = setting.watches.limit - 1
    worst = -math.inf
    for state, columns in outcomes(setting, 3):
        watch = state.watches[0].rows[0][0]
        assert watch.worst.worst(sides) <= EPSILON
        accounts = {account.first: account for account in watch.accounts}
        assert max(accounts) == last
        for event in {0, 1, 2, 3, 4, 20, last // 2, last - 1, last}:
            exact = exact_odds(model, columns, event)
            worst = max(worst, exact if sides == "up" else abs(exact))
            if event in accounts:
                assert accounts[event].log_odds == pytest.approx(exact, abs=1e-9)
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
    limit = session.setting.watches.limit
    assert 3 <= limit <= 6
    for _ in range(limit):
        session.release("b")
    before = session.belief.copy()
    for _ in range(2):
        with pytest.raises(sv.errors.InputError, match=f"at most {limit} events; beyond that the model makes"):
            session.release("b")
    assert session.belief.tolist() == before.tolist()
    streams = Streams(session.setting)
    with pytest.raises(
        sv.errors.InputError, match="give the secret a window" if window is None else "smooth the model"
    ):
        streams.release(["u"] * (limit + 1), [1] * (limit + 1))
    assert streams.release(["u"] * limit, [1] * limit).codes.size == limit
    assert streams.secrets()[0].kept


def test_an_account_alone_goes_on_without_the_windows_that_cannot_be_counted():
    model = leaving(1e-60)
    watch = Watch.start(model, sv.secrets.ever("b", window=1, epsilon=1.0))
    for _ in range(20):
        watch = watch.observe([0.4, 0.6])
    assert math.isfinite(watch.worst.worst())
    assert watch.worst.worst() == pytest.approx(5 * math.log(1.5) + math.log(5 / 6), abs=1e-9)  # five times a, or not


def test_a_combination_that_is_too_unlikely_from_the_start_is_refused():
    model = sv.MarkovModel([0.5, 0.5], [[1 - 1e-150, 1e-150], [1e-150, 1 - 1e-150]])
    parts = (
        sv.secrets.pattern("0 1 0 1", window="first 6", epsilon=1.0),
        sv.secrets.ever(0, window="first 6", epsilon=1.0),
    )
    with pytest.raises(sv.errors.InputError, match="less likely than 1e-280 from the first window on"):
        sv.Session(model, mechanism="guarded", secrets=[sv.secrets.joint(*parts, epsilon=1.0)])
