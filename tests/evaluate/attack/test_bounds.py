"""How sure a guess about people can be: bounds against exact ones, and their false-alarm rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from seqveil.evaluate.attack.bounds import AttackSample, Ratio, noticeable, share_low, times_needed


def test_a_bound_is_that_of_clopper_and_pearson() -> None:
    for count, of in ((0, 5), (3, 10), (10, 10), (180, 400)):
        exact = stats.binomtest(count, of).proportion_ci(0.9, method="exact")
        assert share_low(count, of, 0.05) == pytest.approx(exact.low, abs=1e-12)
    down = math.log(0.9 / share_low(90, 100, 0.01))
    up = math.log((1 - share_low(90, 100, 0.01)) / 0.1)
    assert Ratio(0.9, 0.1, 100, 100).low(0.01) == pytest.approx(math.log(9) - math.hypot(down, up))
    assert Ratio(0.0, 0.1, 100, 100).low(0.05) == -math.inf


@pytest.mark.parametrize(("has", "has_not"), [(20, 20), (20, 80), (60, 20)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_of_independent_people_no_promise_that_holds_is_refuted_too_often(
    has: int, has_not: int, epsilon: float
) -> None:
    """Every outcome of a set that is exactly e^ε likelier with the secret, at many sizes of the set: 5 % at most."""
    ones, noughts = np.arange(has + 1), np.arange(has_not + 1)
    refuted = np.array([[Ratio(k / has, j / has_not, has, has_not).low(0.05) > epsilon for j in noughts] for k in ones])
    for share in np.geomspace(0.2 / has_not, math.exp(-epsilon), 40):
        right = stats.binom.pmf(ones, has, min(share * math.exp(epsilon), 1.0))
        assert right @ refuted @ stats.binom.pmf(noughts, has_not, share) <= 0.05


# Of two types of people: how many, how often they have the secret, how often they are in R without it, with it (up to a
# factor), and how many windows they have. The factor makes R exactly e times as likely with the secret as without.
TYPES_OF_PEOPLE = {
    "alike": ((1.0, 0.0), (0.3, 0.3), (0.1, 0.1), (1, 1), 10),
    "some are often in R": ((0.8, 0.2), (0.3, 0.3), (0.02, 0.3), (0.02, 0.3), 10),
    "and their streams are unequal": ((0.8, 0.2), (0.3, 0.3), (0.02, 0.3), (0.02, 0.3), None),
    "who have the secret often are in R often": ((0.5, 0.5), (0.05, 0.6), (0.01, 0.2), (0.01, 0.2), 10),
    "very few are often in R": ((0.95, 0.05), (0.2, 0.2), (0.005, 0.36), (0.005, 0.36), 10),
    "very few are always in R without the secret": ((0.97, 0.03), (0.3, 0.3), (0.01, 1.0), (1, 1), 50),
}


def types_of_people(kind: str, people: int, rng: np.random.Generator) -> tuple[AttackSample, np.ndarray]:
    """Windows of people of two types, and which of them are in R."""
    *given, windows = TYPES_OF_PEOPLE[kind]
    share, prior, without, with_it = (np.array(part) for part in given)
    false = share @ ((1 - prior) * without) / (share @ (1 - prior))
    with_it = with_it * math.e * false * (share @ prior) / (share @ (prior * with_it))
    assert with_it.max() <= 1.0
    several = (
        np.maximum(1, rng.lognormal(1.5, 1.2, people).astype(int)) if windows is None else np.full(people, windows)
    )
    owners = np.repeat(np.arange(people), several)
    numbers = np.concatenate([np.arange(k) for k in several])
    mine = rng.choice(2, people, p=share)[owners]
    truth = rng.random(owners.size) < prior[mine]
    inside = rng.random(owners.size) < np.where(truth, with_it[mine], without[mine])
    return AttackSample(owners, numbers, truth), inside


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "people"), [*((kind, 60) for kind in TYPES_OF_PEOPLE), ("some are often in R", 300)])
def test_windows_of_one_person_are_no_independent_people(kind: str, people: int) -> None:
    """At exactly ε, whatever the windows of one person have in common: 5 % false alarms of 400 attacks.

    A bound of exactly 5 % fails with a probability below 1e-4 (binomial, 400 draws, at most 38 alarms).
    """
    assert stats.binom.sf(38, 400, 0.05) < 1e-4
    rng, alarms = np.random.default_rng(11), 0
    for _ in range(400):
        sample, inside = types_of_people(kind, people, rng)
        alarms += sample.ratio(inside).low(0.05) > 1.0
    assert alarms <= 38


def test_windows_of_one_number_are_compared_with_one_another() -> None:
    """First windows mostly have the secret and second ones mostly not, and the set is that of all first windows."""
    rng = np.random.default_rng(1)
    owners, numbers = np.repeat(np.arange(500), 2), np.tile([0, 1], 500)
    truth = rng.random(1000) < np.where(numbers == 0, 0.9, 0.1)
    sample = AttackSample(owners, numbers, truth)
    assert sample.ratio(numbers == 0).estimate == pytest.approx(0.0, abs=1e-12)
    one = AttackSample(np.arange(6), np.zeros(6, int), np.array([1, 1, 1, 0, 0, 0], bool))
    seen = one.ratio(np.array([1, 1, 0, 1, 0, 0], bool))
    assert (seen.true, seen.false, seen.worth_true, seen.correlation) == pytest.approx((2 / 3, 1 / 3, 3, 0))


def test_a_leak_is_noticeable_where_it_is_noticed_in_four_of_five_attacks() -> None:
    rng, people = np.random.default_rng(2), Ratio(0.1, 0.1, 300, 700)
    leak = noticeable(people, 0.5, "up", 0.05)
    assert leak is not None
    right, wrong = rng.binomial(300, 0.1 * math.exp(leak), 400) / 300, rng.binomial(700, 0.1, 400) / 700
    noticed = np.mean([Ratio(a, b, 300, 700).low(0.05) > 0.5 for a, b in zip(right, wrong, strict=True)])
    assert 0.78 < noticed < 0.99
    assert noticeable(Ratio(0.1, 0.1, 5, 5), 3.0, "both", 0.05) is None


def test_so_many_people_decide_and_a_tenth_fewer_do_not() -> None:
    times = times_needed(Ratio(0.1, 0.1, 300, 700), 0.1, "both", 0.05)
    assert times is not None
    leaks = [noticeable(Ratio(0.1, 0.1, 300 * more, 700 * more), 0.1, "both", 0.05) for more in (times, 0.9 * times)]
    assert leaks[0] <= 0.2 < leaks[1]
    times = times_needed(Ratio(0.2, 0.1, 300, 700), 0.6, "both", 0.05)
    assert times is not None
    lows = [Ratio(0.2, 0.1, 300 * more, 700 * more).low(0.05) for more in (times, 0.9 * times)]
    assert lows[0] > 0.6 > lows[1]
    assert times_needed(Ratio(0.1, 0.1, 300, 700), 1e-6, "both", 0.05) is None


def test_where_no_two_windows_can_be_compared_nothing_is_found():
    sample = AttackSample(np.arange(6), np.arange(6) % 2, np.arange(6) % 2 == 0)
    assert sample.ratio(np.ones(6, bool)).low(0.05) == -np.inf
