"""Composition against exact tails, budgets and schedules against their definition."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reference_streams as ref
from reference_streams import Rows
from seqveil import mechanisms
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget, Window, compose, log_moment
from seqveil.engine.policy import Policy

SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]
POWERS = [-8.0, -3.0, -1.5, -1.0, 0.0, 0.01, 0.5, 1.0, 4.0, 20.0]
EPSILONS = [0.05, 0.3, 1.0, 2.5]
PAIR = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


def sound_laws(epsilon, seed):
    """(Q(y|x), log lift) over y, for every x with β > 0 of random sound kernels at ε."""
    rng = np.random.default_rng(seed)
    for name, n in itertools.product(SOUND, (2, 3, 5)):
        belief = ref.random_belief(rng, n)
        weights = mechanisms.get(name).kernels(belief[None], epsilon).one(0).weights
        marginal = [sum(Fraction(float(b)) * int(w) for b, w in zip(belief, y, strict=True)) for y in weights.T]
        for x in np.flatnonzero(belief):
            row = [int(w) for w in weights[x]]
            yield [w / 2**62 for w in row], [ref.log(w / p) for w, p in zip(row, marginal, strict=True)]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("power", POWERS)
def test_fact_8_the_moment_formula(epsilon, power):
    formula = (math.sinh((power + 1) * epsilon) - math.sinh(power * epsilon)) / math.sinh(epsilon)
    assert math.exp(log_moment(epsilon, power)) == pytest.approx(formula, rel=1e-11)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("seed", range(3))
def test_fact_8_mean_and_moments_of_sound_kernels_stay_below_the_bounds(epsilon, seed):
    for chances, logs in sound_laws(epsilon, seed):
        mean = math.fsum(q * c for q, c in zip(chances, logs, strict=True))
        assert -1e-12 <= mean <= epsilon * math.tanh(epsilon / 2) + 1e-12
        for power in POWERS:
            moment = math.fsum(q * math.exp(power * c) for q, c in zip(chances, logs, strict=True))
            assert math.log(moment) <= log_moment(epsilon, power) + 1e-9


@pytest.mark.parametrize("power", [-0.9, -0.5, -0.1])
def test_fact_8_the_moment_bound_holds_between_minus_one_and_zero(power):
    """There ρ^(λ+1) is concave in the lift, so silence (all lifts 1, moment 1) is the extreme case."""
    assert log_moment(1.0, power) >= 0.0


def test_fact_8_the_bounds_are_reached():
    """Four equal symbols at ε = ln 3: the lifts are 3 and 1/3, the extreme case of mean and moments."""
    epsilon = math.log(3)
    kernel = mechanisms.optimal.kernels(np.full((1, 4), 0.25), epsilon).one(0)
    row = np.sort(kernel.probabilities[0])
    np.testing.assert_allclose(row, [1 / 12, 1 / 12, 1 / 12, 3 / 4], atol=1e-9)
    mean = 0.75 * epsilon - 0.25 * epsilon
    assert mean == pytest.approx(epsilon * math.tanh(epsilon / 2), abs=1e-12)
    assert math.log(0.75 * 9 + 0.25 / 9) == pytest.approx(log_moment(epsilon, 2.0), abs=1e-12)


def exceedance(releases, bound):
    """Exact Pr(|Σc| > bound) in the extreme case at ε = ln 3: c = ±ln 3, + with probability 3/4."""
    chance = Fraction(0)
    for up in range(releases + 1):
        if abs((2 * up - releases) * math.log(3)) > bound:
            chance += math.comb(releases, up) * Fraction(3, 4) ** up * Fraction(1, 4) ** (releases - up)
    return float(chance)


@pytest.mark.parametrize("releases", [1, 5, 30, 200])
@pytest.mark.parametrize("delta", [0.2, 1e-2, 1e-6])
def test_fact_8_every_bound_holds_in_the_extreme_case(releases, delta):
    total = compose(math.log(3), releases, delta)
    for bound in (total.paper, total.azuma, total.chernoff, total.best):
        assert exceedance(releases, bound * (1 + 1e-12)) <= delta
    if releases == 200:
        assert exceedance(releases, 0.8 * total.chernoff) > delta / 1000  # and the figure is no fantasy


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(epsilon=st.floats(0.01, 8), releases=st.integers(1, 10**6), exponent=st.floats(-12, -0.5))
def test_fact_8_the_bounds_are_ordered(epsilon, releases, exponent):
    total = compose(epsilon, releases, 10**exponent)
    assert total.basic == pytest.approx(releases * epsilon)
    assert total.chernoff <= total.azuma * (1 + 1e-4) <= total.paper * (1 + 2e-4)
    assert total.best == min(total.basic, total.paper, total.azuma, total.chernoff)
    root = math.sqrt(2 * releases * math.log(2 / total.delta))
    assert total.paper == pytest.approx(releases * epsilon * (math.exp(epsilon) - 1) + epsilon * root)
    assert total.azuma == pytest.approx(releases * epsilon * math.tanh(epsilon / 2) + epsilon * root)


@pytest.mark.slow
def test_fact_8_simulated_streams_rarely_pass_the_bound():
    """2,000 streams of 40 releases at δ = 0.05; false alarms: one in a million."""
    users, length, epsilon, delta = 2000, 40, math.log(3), 0.05
    setting = Policy(epsilon=epsilon, mechanism="optimal").on(MarkovModel(np.full(4, 0.25), np.full((4, 4), 0.25)))
    fleet, coins, rng = Rows(setting, users), SeededCoins(17), np.random.default_rng(18)
    total = np.zeros(users)
    for _ in range(length):
        truth = rng.integers(0, 4, users)
        made = fleet.release(np.arange(users), truth, coins)
        marginal = (made.beliefs * made.columns).sum(1)
        total += np.log(made.columns[np.arange(users), truth] / marginal)
    passed = int((np.abs(total) > compose(epsilon, length, delta).best).sum())
    assert passed <= stats.binom.ppf(1 - 1e-6, users, delta)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_compose_refuses_a_delta_outside_zero_and_one(delta):
    with pytest.raises(InputError, match="delta"):
        compose(1.0, 10, delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_compose_refuses_an_epsilon_that_is_none(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        compose(epsilon, 10)


@pytest.mark.parametrize("releases", [-1, 2.5, math.nan])
def test_compose_refuses_a_number_of_releases_that_is_none(releases):
    with pytest.raises(InputError, match="releases"):
        compose(1.0, releases)


def test_nothing_released_costs_nothing():
    assert compose(1.0, 0).best == 0.0


@settings(deadline=None, max_examples=80)
@given(period=st.integers(1, 9), epsilon=st.floats(0.01, 1.7), length=st.integers(1, 60))
def test_a_pulsed_schedule_spends_the_same_on_whole_periods(period, epsilon, length):
    wanted = Policy(epsilon=epsilon, every=period).on(PAIR).wanted(np.arange(length))
    assert np.flatnonzero(wanted).tolist() == list(range(0, length, period))
    assert math.fsum(wanted) == pytest.approx(epsilon * period * math.ceil(length / period))


@pytest.mark.parametrize("period", [0, -1, 1.5, True, "x", math.nan])
def test_a_period_is_a_whole_number(period):
    with pytest.raises(InputError, match="every"):
        Policy(epsilon=1.0, every=period).on(PAIR)


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": 0},
        {"total": -1.0},
        {"total": math.nan},
        {"total": math.inf},
        {"total": "1"},
        {"per_window": 1.0},
        {"releases": 3},
        {"per_window": 1.0, "releases": 3, "seconds": 2.0},
        {"total": 1.0, "when_spent": "shrug"},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        Budget(**wrong)


@settings(deadline=None, max_examples=80)
@given(
    total=st.floats(0.1, 5),
    spent=st.floats(0, 6),
    wanted=st.floats(0, 5),
)
def test_what_a_total_allows(total, spent, wanted):
    arguments = np.array([wanted]), np.array([spent]), np.zeros(1)
    assert Budget(total=total).allow(*arguments)[0] == min(wanted, max(0.0, total - spent))
    assert Budget().allow(*arguments)[0] == wanted


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(events=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2)), min_size=1, max_size=15), span=st.floats(0.5, 6))
def test_a_window_sums_what_lies_in_it_and_forgets_the_rest(events, span):
    window, now, past = Window.start(1), 0.0, []
    for gap, cost in events:
        now += gap
        inside = math.fsum(c for t, c in past if exactly_within(t, now, span))
        assert window.within(np.array([now]), span)[0] == pytest.approx(inside, abs=1e-12)
        window = window.push(np.array([now]), np.array([cost]), span)
        past.append((now, cost))
        assert window.costs.shape[1] == sum(exactly_within(t, now, span) for t, _ in past)


def exactly_within(time, now, span):
    """Whether less than `span` has passed, in fractions: the difference of two floats need not be one."""
    return Fraction(now) - Fraction(time) < Fraction(span)


def test_a_window_sums_alike_whoever_else_is_there():
    """Empty places in front come from users with longer windows; they must not change the last bit of a sum."""
    generator = np.random.default_rng(3)
    for width in range(1, 40):
        costs, stamps = generator.random((1, width)), np.arange(width, dtype=np.float64)[None]
        alone = Window(costs, stamps)
        now = np.array([float(width)])
        for room in range(width, width + 20):
            assert alone.padded(room).within(now, 1e9)[0] == alone.within(now, 1e9)[0]
