"""Kernels for secrets by the obvious program over all pairs, and random cases to compare with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from seqveil.core.secrets import SecretTracker
from seqveil.core.secrets.tables import TIGHTER, AskedOfUsers, Bounds
from seqveil.core.secrets.windows import WindowAccount, WindowRecords, log_odds


@dataclass(frozen=True, eq=False)
class Guarded:
    """What W windows of one secret ask of a kernel over n symbols, in the obvious form.

    With w_v(x) = Pr(v | X = x, y_<k) and π_v the prior of value v: Σ_x β(x) [w_v(x)/π_v - e^ε w_v'(x)/π_v'] Q(y|x) ≤ 0
    for every label y and every bounded pair (v, v'); for two values a box for the weight σ = w_1 of every label.
    """

    windows: np.ndarray  # (W,) the number of each window
    weights: np.ndarray  # (W, V, n)
    prior: np.ndarray  # (W, V)
    epsilon: float
    sides: str
    error: float

    @property
    def sigma(self) -> np.ndarray:
        return self.weights[:, 1]

    @property
    def low(self) -> np.ndarray:
        return self._box(-self.epsilon) if self.sides == "both" else np.zeros(len(self.windows))

    @property
    def high(self) -> np.ndarray:
        return self._box(self.epsilon)

    def _box(self, log_odds: float) -> np.ndarray:
        yes, no = self.prior[:, 1] * np.exp(log_odds), self.prior[:, 0]
        return yes / (yes + no)

    def pairs(self) -> list[tuple[int, int]]:
        values = range(self.prior.shape[1])
        return [(1, 0)] if self.sides == "up" else [(one, two) for one in values for two in values if one != two]

    def linear(self) -> np.ndarray:
        """Rows c (C, n) with Σ_x β(x) c(x) Q(y|x) ≤ 0 for every label y."""
        rows = [np.zeros((0, self.weights.shape[2]))]
        for one, two in self.pairs():
            bounded = (self.prior[:, one] > 0) & (self.prior[:, two] > 0)
            lifts = (self.weights[bounded, v] / self.prior[bounded, v, None] for v in (one, two))
            rows.append(next(lifts) - np.exp(self.epsilon) * next(lifts))
        return np.concatenate(rows)


def live(tracker: SecretTracker) -> tuple[WindowRecords, np.ndarray]:
    """The records of all live windows, and their masses; of a stream that may end at any time, made to be looked at."""
    plan, current = tracker.ahead, tracker.current
    if not plan.family:
        return tracker.records, tracker.masses
    windows = plan.open[plan.open > tracker.step]
    fresh = WindowRecords.fresh(windows, plan.family_priors[windows - 1], len(tracker.now))
    masses = tracker.family_masses(windows)
    low, high = (np.broadcast_to(each, fresh.odds.shape) for each in (current.lowest, current.highest))
    odds = log_odds(masses.sum(3), fresh.prior)
    return WindowRecords(fresh.index, fresh.prior, masses.sum(3), odds, low, high), masses


def accounts(tracker: SecretTracker) -> tuple[WindowAccount, ...]:
    """The account of every live window, in order."""
    records, _ = live(tracker)
    return tuple(records.account(tracker.ahead, each) for each in np.flatnonzero(records.index[0] >= 0).tolist())


def asked(tracker: SecretTracker) -> Guarded:
    """What all live windows of a secret ask of the next kernel; symbols the belief rules out ask for nothing."""
    records, masses = (part[0] for part in live(tracker))
    total, present = masses.sum(1, keepdims=True), masses.sum(2)
    present = (present / np.maximum(present.sum(1, keepdims=True), 1e-300))[:, :, None]
    weights = np.where(total > 0, masses / np.where(total > 0, total, 1.0), present)
    return Guarded(records.index, weights, records.prior, tracker.ahead.aim, tracker.secret.sides, 0.0)


def bounds_of(promises: list[tuple[np.ndarray, Guarded]], belief: np.ndarray) -> Bounds:
    """The bounds of these promises, each with its observer's belief."""
    made = [
        AskedOfUsers.of_windows(
            seen[None], (seen * one.weights)[None], one.prior[None], one.epsilon, one.sides, one.error
        ).one(0)
        for seen, one in promises
    ]
    nothing = Bounds(belief, np.zeros((0, belief.size)), np.zeros((0, belief.size)), belief > 0)
    own = [bounds for bounds, (seen, _) in zip(made, promises, strict=True) if seen is belief]
    others = [bounds for bounds, (seen, _) in zip(made, promises, strict=True) if seen is not belief]
    return Bounds.joined(own or [nothing], others)


def least_cost(belief: np.ndarray, rows: np.ndarray, cost: np.ndarray) -> float:
    """min Σ β(x) D(x,y) Q(y|x) over row-stochastic Q (n, K) with rows @ Q ≤ 0: n·K variables, all rows at once."""
    n, labels = cost.shape
    sums = np.kron(np.eye(n), np.ones(labels))
    bounds = np.concatenate([np.kron(row[None, :], np.eye(labels)) for row in rows])
    found = linprog((belief[:, None] * cost).ravel(), bounds, np.zeros(len(bounds)), sums, np.ones(n), (0, 1))
    return float(found.fun)


def box_rows(belief: np.ndarray, weights: np.ndarray, lo: float, hi: float) -> np.ndarray:
    return belief * np.stack([weights - hi, lo - weights])


def random_box(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float, float]:
    """A belief, some of it 0, weights, some of them 0 or 1, and a box around their mean, sometimes touching it."""
    n = int(rng.integers(2, 8))
    belief = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 5.0])))
    if rng.random() < 0.3 and n > 2:
        belief[rng.integers(n)] = 0.0
        belief /= belief.sum()
    weights = np.clip(rng.uniform(-0.2, 1.2, n), 0.0, 1.0) if rng.random() < 0.5 else rng.beta(0.6, 1.5, n)
    mean = float(belief @ weights)
    lo = 0.0 if rng.random() < 0.25 else mean if rng.random() < 0.1 else mean * rng.random()
    hi = mean if rng.random() < 0.1 else mean + (1 - mean) * rng.random()
    return belief, weights, lo, hi


def random_promise(rng: np.random.Generator, belief: np.ndarray, values: int = 2) -> Guarded:
    """Windows of a secret of so many values whose odds have moved by some of ε already, or all that is aimed at."""
    count, n, epsilon = int(rng.integers(1, 3)), belief.size, float(rng.choice([0.05, 0.3, 1.0, 2.0]))
    weights = rng.dirichlet(np.full(values, rng.choice([0.2, 1.0])), (count, n)).transpose(0, 2, 1)
    weights = (weights + 1e-9) / (1 + values * 1e-9)
    if rng.random() < 0.3:
        weights[:, :, 0] = np.eye(values)[rng.integers(values)][None]
    now = (weights * belief).sum(2)
    moved = rng.uniform(-0.5, 0.5, now.shape) * epsilon * (1.0 if rng.random() < 0.3 else rng.random())
    if rng.random() < 0.3:
        moved[:] = 0.0
        moved[:, rng.integers(values)] = epsilon * (1 - TIGHTER) * rng.choice([-1.0, 1.0])
    prior = now * np.exp(moved)
    prior /= prior.sum(1, keepdims=True)
    sides = "up" if values == 2 and rng.random() < 0.3 else "both"
    return Guarded(np.arange(count), weights, prior, epsilon, sides, 0.0)


def excess(belief: np.ndarray, promise: Guarded, column: np.ndarray) -> float:
    """By how much a release with these integer weights passes ε, over all windows and pairs of values."""
    worst = -math.inf
    for window, prior in zip(promise.weights, promise.prior, strict=True):
        given = [
            math.fsum(b * w * int(q) for b, w, q in zip(belief, row, column, strict=True)) / share
            for row, share in zip(window, prior, strict=True)
        ]
        for one, two in promise.pairs():
            if given[one] > 0:
                moved = math.inf if given[two] == 0 else math.log(given[one] / given[two])
                worst = max(worst, moved - promise.epsilon)
    return worst
