"""How single releases add up: the paper's two theorems, and the worst case of all sound mechanisms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from seqveil.core.errors import InputError, whole_number
from seqveil.core.mechanisms import LARGEST, check_epsilon

FAINT = 1e-290  # the least probability that is computed


@dataclass(frozen=True)
class Composition:
    """Total ε of `releases` releases at ε each: for certain, and with failure probability `delta`."""

    releases: int
    epsilon: float
    delta: float
    basic: float
    paper: float
    exact: float

    @property
    def best(self) -> float:
        """The smallest valid one: what the ledger uses."""
        return min(self.basic, self.paper, self.exact)

    @property
    def tightest(self) -> str:
        """The theorem that gives `best`, by name."""
        return next(said for name, said in _THEOREMS.items() if getattr(self, name) == self.best)


_THEOREMS = {
    "basic": "basic composition (Theorem 1)",
    "paper": "advanced composition (Theorem 2)",
    "exact": "the worst case of all sound mechanisms",
}


def compose(epsilon: float, releases: int, delta: float = 1e-6) -> Composition:
    """Totals of T releases, each sound at ε, for the true sequence, both sides and every prefix at once.

    - basic: Σε_k = Tε, with certainty (the paper's Theorem 1);
    - paper: Tε(e^ε-1) + ε√(2T ln(2/δ)) (its Theorem 2);
    - exact: the least t for which no sequence of sound releases passes t, up or down, with more than probability δ.

    >>> total = compose(0.1, 1000, 1e-6)
    >>> round(total.basic, 3), round(total.paper, 3), round(total.exact, 3)
    (100.0, 27.552, 20.256)

    Reference: the paper's Theorems 1 and 2 (its batched line prints τ where √τ is meant); docs/theory.md, section 8.
    """
    if not 0 < delta < 1:
        raise InputError(f"expected delta between 0 and 1, got {delta}; try 1e-6")
    check_epsilon(epsilon, largest=math.inf)  # the formulas hold for every ε; what a release may have is checked there
    whole_number("releases", releases, least=0)
    growth = math.expm1(epsilon) if epsilon < 700 else math.inf  # beyond it a float holds no more
    wobble = epsilon * math.sqrt(2 * releases * math.log(2 / delta))
    return Composition(
        releases,
        epsilon,
        delta,
        basic=releases * epsilon,
        paper=releases * epsilon * growth + wobble if releases else 0.0,
        exact=_exact(epsilon, releases, delta) if releases else 0.0,
    )


def passing(epsilon: float, releases: int, steps: int, side: int) -> float:
    """The largest probability with which the log lifts of sound releases at ε ever add up to steps·ε, up or down.

    That is a walk with steps ±ε, up with probability e^ε/(1+e^ε), stopped there; `side` is +1 for up and -1 for down.
    By reflection it is Pr(S ≥ j) + e^{±jε} Pr'(S > j), where Pr' swaps the two probabilities.

    >>> round(passing(1.0, 1, 1, 1), 4), round(passing(1.0, 1, 1, -1), 4), passing(1.0, 5, 6, 1)
    (0.7311, 0.2689, 0.0)
    """
    if steps <= 0:
        return 1.0
    likely = 1 / (1 + math.exp(-side * epsilon)) if side * epsilon > -700 else 0.0
    swapped = _at_least(releases, steps + 1, 1 - likely)
    if swapped > FAINT:
        beyond = math.exp(side * epsilon * steps + math.log(swapped))
    else:  # too small for a float: bounded by its terms, each of which is less likely than without the factor
        beyond = _at_least(releases, steps + 1, likely) if side > 0 else FAINT
    return _at_least(releases, steps, likely) + beyond


def _at_least(releases: int, steps: int, likely: float) -> float:
    """Pr(S ≥ steps) of a walk with this probability of a step up."""
    from scipy import special  # takes long to load, and few need it

    ups = (releases + steps + 1) // 2
    return 0.0 if ups > releases else float(special.betainc(ups, releases - ups + 1, likely))


def _exact(epsilon: float, releases: int, delta: float) -> float:
    """The least total that is passed with probability δ at most; between whole steps the bound is interpolated."""

    def chances(steps: int) -> tuple[float, float]:
        """The probability that the sum passes so many steps upward, and downward."""
        return passing(epsilon, releases, steps, 1), passing(epsilon, releases, steps, -1)

    allowed = delta * (1 - 1e-9)  # what the rounding of the sums may take
    low, high = 0, releases + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sum(chances(middle)) <= allowed else (middle, high)
    if high > releases:
        return releases * epsilon
    before, after = chances(low), chances(high)
    nearest, furthest = 0.0, epsilon
    for _ in range(60):
        beyond = (nearest + furthest) / 2
        up = math.exp(beyond - epsilon) * math.expm1(-beyond) / math.expm1(-epsilon)
        down = math.expm1(-beyond) / math.expm1(-epsilon)
        chance = before[0] + up * (after[0] - before[0]) + before[1] + down * (after[1] - before[1])
        nearest, furthest = (nearest, beyond) if chance <= allowed else (beyond, furthest)
    return (low * epsilon + furthest) * (1 + 1e-12)


@cache
def epsilon_for(total: float, over: int, delta: float | None = None) -> float:
    """The largest ε of each of `over` releases that keeps their total, with failure probability δ where there is one.

    Without δ it is total/over. With δ it is the largest for which the tightest of the theorems of `compose` stays
    within the total, found by bisection and rounded down.

    >>> epsilon_for(20.0, 500), round(epsilon_for(20.0, 500, 1e-6), 3)
    (0.04, 0.14)
    """
    low = total / over
    if delta is None or low >= LARGEST:
        return low
    high = 2 * low
    while high < LARGEST and compose(high, over, delta).best <= total:
        low, high = high, 2 * high
    high = min(high, LARGEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if compose(middle, over, delta).best <= total else (low, middle)
    return low
