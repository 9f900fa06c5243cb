"""Budgets: what may be spent, how single releases add up, what happens when it is spent, what a window still counts.

A budget looks at public things only (the step, the account): so it leaks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.bulk import ByUser
from seqveil.core.errors import InputError, whole_number
from seqveil.core.kernel import UNIT, Floats, Ints
from seqveil.core.mechanisms import LARGEST, check_epsilon

FAINT = 1e-290  # the least probability that is computed


@dataclass(frozen=True)
class Composition:
    """Totals of `releases`, each sound at the same ε: for certain, and with failure probability `delta`."""

    releases: int
    delta: float
    basic: float
    paper: float
    walk: float  # never more than the others


def compose(epsilon: float, releases: int, delta: float = 1e-6) -> Composition:
    """Totals of T releases, each sound at ε, for the true sequence, both sides and every prefix at once.

    - basic: Σε_k = Tε, with certainty (the paper's Theorem 1);
    - paper: Tε(e^ε-1) + ε√(2T ln(2/δ)) (its Theorem 2);
    - walk: an upper bound by the worst mechanism, a walk of ±ε: each side is exact at multiples of ε; both are added.

    >>> total = compose(0.1, 1000, 1e-6)
    >>> round(total.basic, 3), round(total.paper, 3), round(total.walk, 3)
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
        delta,
        basic=releases * epsilon,
        paper=releases * epsilon * growth + wobble if releases else 0.0,
        walk=_walk(epsilon, releases, delta) if releases else 0.0,
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


def _walk(epsilon: float, releases: int, delta: float) -> float:
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
    return min(releases * epsilon, (low * epsilon + furthest) * (1 + 1e-12))


@cache
def epsilon_for(total: float, over: int, delta: float | None = None) -> float:
    """The largest ε of each of `over` releases that keeps their total: total/over, or with a failure probability δ the
    largest for which the tightest theorem of `compose` stays within it, by bisection and rounded down.

    >>> epsilon_for(20.0, 500), round(epsilon_for(20.0, 500, 1e-6), 3)
    (0.04, 0.14)
    """
    low = total / over
    if delta is None or low >= LARGEST:
        return low
    high = 2 * low
    while high < LARGEST and compose(high, over, delta).walk <= total:
        low, high = high, 2 * high
    high = min(high, LARGEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if compose(middle, over, delta).walk <= total else (low, middle)
    return low


TIMELESS = "a budget per seconds needs the time of each release; pass time=…"
_BACK = "expected the times of a user's releases to be finite and never to go back; sort the events"
GONE = 1e-6  # below this an ε buys nothing: what a release tells is lost in the rounding of its bounds


@dataclass(frozen=True)
class Budget:
    """What may be spent, and what happens when it is gone.

    - `total`: the exact leakage of the whole stream never passes it. Before each release ε is cut to what no outcome
      can carry past the total; after it only what was realised is charged (docs/theory.md, section 7).
    - `per_window` with `releases` or `seconds`: realised costs of the releases in any such window sum to at most it;
      `releases` counts the events of a stream in a row, whether they were released or not.
    - `ldp_total`: Σ of (LDP level · ε) of all releases never passes it. This needs no model: any two sequences make the
      releases of a stream with probabilities within a factor e^ldp_total of each other.
    - `over`: the number of releases that `total` is for; it chooses the ε of each (`epsilon_for`). With `delta` what
      they reveal about the true sequence passes the total with probability δ at most, and no more releases are made.
      The exact leakage is the worst over all sequences, so it may well pass the total.
    - `when_spent`: "hold" repeats the best guess under the belief, which is free; "stop" releases nothing more.

    >>> Budget(total=20.0, over=500).epsilon
    0.04
    """

    total: float | None = None
    per_window: float | None = None
    releases: int | None = None
    seconds: float | None = None
    when_spent: Literal["hold", "stop"] = "hold"
    ldp_total: float | None = None
    over: int | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        for name in ("total", "per_window", "seconds", "ldp_total", "delta"):
            if getattr(self, name) is not None:  # as one type: 9 and 9.0 are the same promise, and are written alike
                given, number = getattr(self, name), as_number(getattr(self, name))
                if not 0.0 < number < math.inf:
                    raise InputError(f"expected {name} to be a finite number above 0, got {given}")
                object.__setattr__(self, name, number)
        if self.releases is not None:
            whole_number("releases", self.releases)
        if self.when_spent not in ("hold", "stop"):
            raise InputError(f'expected when_spent to be "hold" or "stop", got {self.when_spent!r}')
        if (self.per_window is None) != (self.releases is None and self.seconds is None):
            raise InputError(
                "a window needs its ε and its length; write window = { epsilon = 10.0, seconds = 3600 } in a policy, "
                "Budget(per_window=10.0, seconds=3600) in Python, or releases in place of seconds"
            )
        if self.releases is not None and self.seconds is not None:
            raise InputError("a window is counted in releases or in seconds, not both")
        if self.over is not None:
            whole_number("over", self.over)
        if self.delta is not None and self.delta >= 1:
            raise InputError(f"expected delta between 0 and 1, got {self.delta}; try 1e-6")
        if (self.over is not None and self.total is None) or (self.delta is not None and self.over is None):
            raise InputError(
                "expected a budget over so many releases to have a total, and one with delta to say over how many; "
                "say for instance Budget(total=20.0, delta=1e-6, over=500)"
            )

    @property
    def epsilon(self) -> float | None:
        """The ε of each release that the budget chooses; None where it chooses none."""
        if self.total is None or self.over is None:
            return None
        return epsilon_for(self.total, self.over, self.delta)

    @cached_property
    def exact_total(self) -> float | None:
        """The total that no outcome ever carries past; None where there is none, or where it may fail (`delta`)."""
        return self.total if self.delta is None else None

    @cached_property
    def composed(self) -> str:
        """The total that `delta` allows to fail, in words; empty without a delta.

        >>> print(Budget(total=20.0, delta=1e-6, over=500).composed)
        500 releases together, with probability 1 - 1e-06, move what is believed about the true sequence, not about
        every other, by at most a factor e^20 (by the worst case of all sound mechanisms)
        """
        if self.delta is None:
            return ""
        return (
            f"{self.over} releases together, with probability 1 - {self.delta:g}, move what is believed about the true "
            f"sequence, not about every other, by at most a factor e^{self.total:g} (by the worst case of all sound "
            "mechanisms)"
        )

    def to_dict(self) -> dict[str, Any]:
        """The budget as a policy file has it, without what is left at its default.

        >>> Budget(total=20.0, per_window=10.0, seconds=3600).to_dict()
        {'total': 20.0, 'window': {'epsilon': 10.0, 'seconds': 3600.0}}
        """
        length = {name: getattr(self, name) for name in ("releases", "seconds") if getattr(self, name) is not None}
        found = {name: getattr(self, name) for name in ("total", "over", "delta")}
        found["window"] = {"epsilon": self.per_window, **length} if length else None
        found |= {"ldp": self.ldp_total, "when_spent": self.when_spent if self.when_spent != "hold" else None}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, saved: Any) -> Budget:
        """The budget of a policy file; a number is a total."""
        if not isinstance(saved, Mapping):
            return cls(total=saved)
        window = saved.get("window", {})
        lines, inside = {"total", "over", "delta", "window", "ldp", "when_spent"}, {"epsilon", "releases", "seconds"}
        if not saved or not isinstance(window, Mapping) or saved.keys() - lines or window.keys() - inside:
            raise InputError(
                "expected a budget such as { total = 20.0, window = { epsilon = 10.0, seconds = 3600 } }, with total, "
                "over, delta, window, ldp and when_spent; got none of these, or another line"
            )
        plain: dict[str, Any] = {
            name: saved[name] for name in ("total", "over", "delta", "when_spent") if name in saved
        }
        length: dict[str, Any] = {name: window.get(name) for name in ("releases", "seconds")}
        return cls(**plain, per_window=window.get("epsilon"), ldp_total=saved.get("ldp"), **length)

    @cached_property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return any(limit is not None for limit in (self.total, self.per_window, self.ldp_total))

    @cached_property
    def span(self) -> float | None:
        """Length of the window, in releases or seconds; none where there is no window."""
        return self.releases if self.releases is not None else self.seconds

    def allow(self, wanted: Floats, spent: Floats, in_window: Floats) -> Floats:
        """The ε each user may spend now: what is wanted, cut to what is left."""
        allowed = wanted
        if self.exact_total is not None:
            allowed = np.minimum(allowed, np.maximum(0.0, self.exact_total - spent))
        if self.per_window is not None:
            allowed = np.minimum(allowed, np.maximum(0.0, self.per_window - in_window))
        return allowed

    def check_times(self, users: NDArray[np.intp], times: Floats, latest: Floats) -> None:
        """Refuse, before anything of a call is drawn, times that a budget per seconds cannot use.

        `latest`: for each event, the last time of its user before the call.
        """
        if self.seconds is None or not users.size:
            return
        clock.check(times, self.seconds)
        order = np.argsort(users, kind="stable")
        who, when = users[order], times[order]
        again = np.zeros(who.size, bool)
        again[1:] = who[1:] == who[:-1]
        before = np.where(again, np.roll(when, 1), latest[order])
        amiss = when < before
        if amiss.any():
            raise InputError(_BACK, int(order[amiss].min()))

    def ldp_left(self, spent: Floats, steps: Ints) -> Floats:
        """What is left of `ldp_total` after so much in so many steps, whichever way their sum was rounded."""
        most = spent * (1 + (steps + 4) * UNIT)
        return np.maximum(0.0, (math.inf if self.ldp_total is None else self.ldp_total) - most) * (1 - 4 * UNIT)


def as_number(value: object) -> float:
    """The number that something is; NaN for what is none."""
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan


@dataclass(frozen=True, eq=False)
class Window(ByUser):
    """Realised costs of recent releases with their stamps, one row a user: what a window budget looks back on."""

    costs: Floats  # (B, W)
    stamps: Floats  # (B, W)

    @property
    def latest(self) -> Floats:
        """The last stamp of each user: no time may be before it."""
        return self.stamps.max(1, initial=-np.inf)

    def within(self, now: Floats, span: float | None) -> Floats:
        """Sum of the costs stamped less than `span` ago."""
        if span is None:
            return np.zeros(len(now))
        if (now < self.latest).any():
            raise InputError(_BACK)
        if not self.costs.shape[1]:
            return np.zeros(len(now))
        # one by one, so that empty places in front, which depend on the other users, change no last bit
        return np.cumsum(np.where(_since(self.stamps, now, span), self.costs, 0.0), axis=1)[:, -1]

    def push(self, now: Floats, cost: Floats, span: float) -> Window:
        """The windows after releases at these times and costs; what is older than `span` is forgotten."""
        stamps = np.column_stack([self.stamps, now])
        # whatever leaves the window, the last stamp of a user stays: no later one may be before it
        fresh = np.append(_since(stamps[:, :-1], now, span).any(0), True)
        return Window(np.column_stack([self.costs, cost])[:, fresh], stamps[:, fresh])

    def padded(self, width: int) -> Window:
        """The same with room for at least `width` costs: old, empty ones in front."""
        missing = width - self.costs.shape[1]
        if missing <= 0:
            return self
        front = ((0, 0), (missing, 0))
        return Window(np.pad(self.costs, front), np.pad(self.stamps, front, constant_values=-np.inf))


def _since(stamps: Floats, now: Floats, span: float) -> NDArray[np.bool_]:
    """Which stamps lie less than `span` before now, exactly, also where the difference is no float."""
    there = np.isfinite(stamps)
    then, until = np.where(there, stamps, now[:, None]), now[:, None]
    with np.errstate(invalid="ignore"):  # a user who never released anything has no time yet
        ago = until - then
        back = until - ago
        cut = (until - (ago + back)) + (back - then)  # what rounding left out: until - then = ago + cut
    return there & ((ago < span) | ((ago == span) & (cut < 0)))
