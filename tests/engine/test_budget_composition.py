"""What many releases add up to, against exact tails."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import streams as ref
from seqveil import MarkovModel, mechanisms
from seqveil.core.errors import InputError
from seqveil.engine.budget import compose, passing

SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]
EPSILONS = [0.05, 0.3, 1.0, 2.5]
PAIR = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


def sound_distributions(epsilon, seed):
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
@pytest.mark.parametrize("seed", range(3))
def test_fact_8_a_release_moves_the_inverse_odds_fairly_and_within_epsilon(epsilon, seed):
    """What the worst case is taken over: log lifts within ±ε, and e^-c of mean 1."""
    for chances, logs in sound_distributions(epsilon, seed):
        assert max(map(abs, logs)) <= epsilon + 1e-12
        assert math.fsum(q * math.exp(-c) for q, c in zip(chances, logs, strict=True)) == pytest.approx(1, abs=1e-9)


def worst(epsilon, releases, total, side, parts=8):
    """The largest probability of passing `total` over all strategies whose log lifts are multiples of ε/parts.

    Backward induction over every release with two outcomes; those with more are mixtures of such.
    """
    reach = parts * releases
    height = np.arange(-reach, reach + 1) * epsilon / parts
    value = (height >= total - 1e-9).astype(float)
    for _ in range(releases):
        best = value.copy()
        for down, up in itertools.product(range(1, parts + 1), repeat=2):
            low, high = (math.exp(-side * c * epsilon / parts) for c in (-down, up))
            rises = (low - 1) / (low - high)
            tried = rises * value[down + up :] + (1 - rises) * value[: value.size - down - up]
            best[down : value.size - up] = np.maximum(best[down : value.size - up], tried)
        value = best
    return value[reach]


@pytest.mark.parametrize(("epsilon", "releases"), [(0.3, 5), (1.0, 3), (1.0, 4), (2.5, 3)])
@pytest.mark.parametrize("side", [1, -1])
def test_fact_8_no_strategy_passes_a_total_more_often_than_the_walk(epsilon, releases, side):
    for steps in range(1, releases + 1):
        reached = worst(epsilon, releases, steps * epsilon, side)
        assert reached == pytest.approx(passing(epsilon, releases, steps, side), rel=1e-9)


@settings(deadline=None, max_examples=25)
@given(epsilon=st.floats(0.1, 2.5), releases=st.integers(1, 4), delta=st.floats(1e-3, 0.7))
def test_fact_8_the_total_is_passed_with_probability_delta_at_most(epsilon, releases, delta):
    total = compose(epsilon, releases, delta).walk
    if total < releases * epsilon * (1 - 1e-9):
        assert sum(worst(epsilon, releases, total * (1 + 1e-9), side) for side in (1, -1)) <= delta * (1 + 1e-9)


def exceedance(releases, bound):
    """Exact Pr(|Σc| > bound) for four equal symbols at ε = ln 3: c = ±ln 3, + with probability 3/4."""
    chance = Fraction(0)
    for up in range(releases + 1):
        if abs((2 * up - releases) * math.log(3)) > bound:
            chance += math.comb(releases, up) * Fraction(3, 4) ** up * Fraction(1, 4) ** (releases - up)
    return float(chance)


@pytest.mark.parametrize("releases", [1, 5, 30, 200])
@pytest.mark.parametrize("delta", [0.2, 1e-2, 1e-6])
def test_fact_8_every_bound_holds_in_the_extreme_case(releases, delta):
    total = compose(math.log(3), releases, delta)
    for bound in (total.paper, total.walk):
        assert exceedance(releases, bound * (1 + 1e-12)) <= delta
    if releases == 200:
        assert exceedance(releases, total.walk - 3 * math.log(3)) > delta  # and the figure is no fantasy


@settings(deadline=None, max_examples=30)
@given(epsilon=st.floats(0.01, 8), releases=st.integers(1, 10**6), exponent=st.floats(-12, -0.5))
def test_fact_8_the_bounds_are_ordered(epsilon, releases, exponent):
    total = compose(epsilon, releases, 10**exponent)
    assert total.basic == pytest.approx(releases * epsilon)
    assert total.walk <= min(total.basic, total.paper)
    root = math.sqrt(2 * releases * math.log(2 / total.delta))
    assert total.paper == pytest.approx(releases * epsilon * (math.exp(epsilon) - 1) + epsilon * root)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [((1.0, 10, delta), "delta") for delta in (0.0, 1.0, -0.1, math.nan)]
    + [((epsilon, 10), "epsilon") for epsilon in (0.0, -1.0, math.nan, math.inf)]
    + [((1.0, releases), "releases") for releases in (-1, 2.5, math.nan)],
)
def test_compose_refuses_what_makes_no_sense(wrong, said):
    with pytest.raises(InputError, match=said):
        compose(*wrong)


@pytest.mark.parametrize("epsilon", [20.0, 32.0, 500.0, 1e4])
def test_compositions_hold_for_every_epsilon(epsilon):
    for releases in (0, 1, 7, 10**6):
        total = compose(epsilon, releases)
        assert total.basic == releases * epsilon
        assert 0.0 <= total.walk <= total.basic
