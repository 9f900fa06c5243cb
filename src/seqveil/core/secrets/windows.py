"""What is kept of the windows of a secret: how likely each value was and is, the odds so far and their extremes; and
which of the windows "the first T events", for all T, are asked about at an event, so that all others are kept too.

With L = T - t - 1 events of window T to come, a pair of values (v, v') and ε, the promise is that

    c_T(a, s)  =  h_v(a, s; L) / π_v(T)  -  e^ε h_v'(a, s; L) / π_v'(T),

summed over where a stream may stand after a release, is at most 0. If c_T ≤ α c_A + β c_B in every state, for some
α, β ≥ 0, then whoever keeps the windows A and B keeps T. *And one event earlier it holds as well*: every row there is
the mean of what it is one event later, with the same weights. So T is asked about only in its last events, from the
first one on where this fails.

A and B are the nearest windows on either side that are a multiple of a higher power of two, or the last one, or B
alone. Level by level they are asked to keep a little less than ε, so that covers compose. Some ten windows are left of
1,000 under a chain, some hundred under a mixture of chains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.bulk import ByUser
from seqveil.core.kernel import UNIT, Floats, Ints, slack
from seqveil.core.secrets.ahead import ROWS, Ahead

SHARE = 0.01  # of ε: how much less than promised the windows of the highest level are asked to keep
LEVELS = 10  # 2**10 > LONGEST
MIXTURES = np.array([0.45, 0.5, 0.55])[:, None, None]  # the α that are tried; β follows
STRIDE = 16  # of so much of it a search goes on where a window was not covered
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class WindowAccount:
    """What the releases so far tell about one window.

    `log_odds` is log B (for a joint secret the log of the largest ratio Pr(y|v)/Pr(y|v')); `lowest` and `highest` are
    its extremes over all times so far, the beginning (0) included, rounded outward. `prior` and `posterior` are Pr(E)
    (a tuple of all values' for a joint secret). Of a stream that may end at any time, they are the extremes over all
    windows that end with an event so far or with a later one.
    """

    first: int  # number of its first event, from 0
    events: int
    prior: Any
    posterior: Any
    log_odds: float
    lowest: float
    highest: float

    def worst(self, sides: str = "both") -> float:
        """The largest |log B| so far, or on one side the largest log B."""
        return self.highest if sides == "up" else max(self.highest, -self.lowest)


@dataclass(frozen=True, eq=False)
class WindowRecords(ByUser):
    """Windows of B users, (B, W): number (-1: none), prior and posterior (B, W, V), log odds and their extremes."""

    index: Ints
    prior: Floats
    posterior: Floats
    odds: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def fresh(cls, index: Ints, prior: Floats, users: int, disclosed: float = 0.0) -> WindowRecords:
        """Windows (W,) about which at most `disclosed` was disclosed, of so many users."""
        shape = users, index.size
        every = np.broadcast_to(prior, (*shape, prior.shape[1]))
        zeros = np.zeros(shape)
        return cls(np.broadcast_to(index, shape), every, every, zeros, zeros - disclosed, zeros + disclosed)

    @classmethod
    def coming(cls, plan: Ahead, unseen: Floats, states: Floats, step: int, begin: int, error: float) -> WindowRecords:
        """Windows number `begin` and on that are watched from this event on.

        `states` (B, S) is the distribution of the event's state after the releases, `unseen` the same without them.
        """
        index = np.arange(begin, plan.furthest(step) + 1)
        waits = (index * plan.length - plan.offset - step).tolist()
        tables = [plan.at_first if wait < 0 else plan.before[wait] for wait in waits]  # <0: in progress
        prior = np.array([(table * unseen).sum(1) for table in tables]).reshape(-1, plan.values)
        found = cls.fresh(index, prior, len(states), plan.untracked if step else 0.0)
        if step and len(tables):
            found = found.after(np.stack([(states[:, None] * table).sum(2) for table in tables], 1), error)
        return found[:, (prior > 0).sum(1) > 1]  # of others nothing can be disclosed

    def __getitem__(self, key: Any) -> WindowRecords:
        """Of some users, or with a second key some windows of all."""
        return self.mapped(lambda mine: mine[key])

    def and_then(self, *others: WindowRecords, axis: int = 1) -> WindowRecords:
        """These windows, then those; with `axis` 0 these users, then those."""
        return self.mapped(lambda *parts: np.concatenate(parts, axis=axis), *others)

    def worst(self, sides: str) -> WindowRecords:
        """The one of each user about which most was disclosed, the first of several: (B, 1); -1 of none."""
        size = self.highest if sides == "up" else np.maximum(self.highest, -self.lowest)
        place = np.where(self.index >= 0, size, -np.inf).argmax(1)
        return self[np.arange(len(place))[:, None], place[:, None]]

    def after(self, posterior: Floats, error: float, disclosed_all: Mask | bool = False) -> WindowRecords:
        """The records after a release that moved the windows' distributions to `posterior`."""
        odds = log_odds(posterior, self.prior)
        room, everything = off_by(odds, error), np.asarray(disclosed_all)[..., None]
        low, high = np.where(everything, -np.inf, odds - room), np.where(everything, np.inf, odds + room)
        return replace(self, posterior=posterior, odds=odds).reaching(low, high)

    def reaching(self, low: Floats, high: Floats) -> WindowRecords:
        """With extremes as far as these odds on either side."""
        return replace(self, lowest=np.minimum(self.lowest, low), highest=np.maximum(self.highest, high))

    def account(self, plan: Ahead, window: int = 0) -> WindowAccount:
        """That of a window of the first user, as an object to look at."""
        index, prior, posterior, *odds = (part[0, window].tolist() for part in vars(self).values())
        shares = (prior[1], posterior[1]) if plan.values == 2 else (tuple(prior), tuple(posterior))
        return WindowAccount(*plan.span(index), *shares, *odds)


def off_by(odds: Floats, error: float) -> Floats:
    """How far log odds may be off, from the relative error of the probabilities; not those that disclose everything."""
    return np.where(np.isinf(odds), 0.0, error + 8 * UNIT * np.abs(odds))


def log_odds(posterior: Floats, prior: Floats) -> Floats:
    """log B of every window; with more than two values the log of the largest ratio Pr(y|v)/Pr(y|v'): (…, V) → (…).

    >>> log_odds(np.array([[0.25, 0.75]]), np.array([[0.5, 0.5]])).round(4).tolist()
    [1.0986]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(posterior / prior)
        two = prior.shape[-1] == 2
        spread = logs[..., 1] - logs[..., 0] if two else _spread(logs, prior > 0, -1)
    return np.where(np.isnan(spread), np.inf, spread)


def reach(distributions: Floats, prior: Floats, sides: str) -> Floats:
    """The most that later releases can move the odds of windows that are over, from distributions of (v, next state and
    what later kernels read): (W, V, K) → (W,).

    >>> reach(np.array([[[0.2, 0.2], [0.4, 0.2]]]), np.array([[0.5, 0.5]]), "both").round(4).tolist()
    [0.4055]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = filtering.as_logs(distributions)
        logs = logs - np.logaddexp.reduce(logs, axis=2, keepdims=True)
        gap = logs[:, 1] - logs[:, 0] if sides == "up" else _spread(logs, (prior > 0)[:, :, None], 1)
    gap[np.isnan(gap)] = -np.inf  # a state that neither value leads to
    return np.asarray(gap.max(1))


def _spread(logs: Floats, possible: Mask, axis: int) -> Floats:
    """The largest difference between the values that can occur."""
    most, least = np.where(possible, logs, -np.inf), np.where(possible, logs, np.inf)
    return np.asarray(most.max(axis) - least.min(axis))


class Cover:
    """How many events before its end each window of a stream of unknown length is asked about, and within which ε."""

    def __init__(self, plan: Ahead) -> None:
        limit, values = plan.limit or plan.longest, plan.values
        windows, self._open = np.arange(limit + 1), plan.open
        levels = np.array([(k & -k).bit_length() - 1 for k in range(limit)] + [LEVELS])  # the last is above all
        self.epsilons = plan.aim * (1.0 - SHARE * levels / LEVELS)
        self.asked_for = np.full(limit + 1, limit)
        self._first, self._second = pairs(values, plan.secret.sides)
        prior = np.concatenate([np.ones((1, values)), plan.family_priors[:limit]])
        bounded = (prior[:, self._first] > 0.0) & (prior[:, self._second] > 0.0)  # others ask for nothing
        self._plus, self._minus = (
            np.where(bounded, scale / np.where(bounded, prior[:, of], 1.0), 0.0)[..., None]
            for of, scale in ((self._first, 1.0), (self._second, np.exp(self.epsilons)[:, None]))
        )
        self._room = 4.0 * (ROWS * plan.error(limit) + slack(ROWS * plan.model.n))
        self._tables = plan.inside.reshape(len(plan.inside), values, -1)
        for level in range(LEVELS):
            self._search(windows[levels == level], 1 << level)
        del self._tables

    def at(self, step: int) -> tuple[Ints, Floats]:
        """Which windows (W,) are asked about at an event, and the ε of each."""
        chosen = self._open[(self._open > step) & (self._open - step - 1 <= self.asked_for[self._open])]
        return chosen, self.epsilons[chosen]

    def _search(self, windows: Ints, apart: int) -> None:
        """Find the event for all windows of a level: next to where it was for the last one."""
        events = apart  # left of the window, where its neighbour below ends
        for window in windows.tolist():
            while events < window and not self._covered(window, apart, events):
                events += 1 + events // STRIDE
            while apart < events < window and self._covered(window, apart, events - 1):
                events -= 1
            self.asked_for[window] = min(events, window) - 1
            events = min(events, window)

    def _covered(self, window: int, apart: int, left: int) -> bool:
        """Whether its neighbours cover a window that has so many events left; all that errors may be on top."""
        further = min(apart, len(self.asked_for) - 1 - window)
        above = np.subtract(*self._sides(window + further, left + further))
        below = np.subtract(*self._sides(window - apart, left - apart)) if window > apart else np.zeros_like(above)
        plus, minus = self._sides(window, left)
        rest = (plus - minus) + self._room * (plus + minus) - MIXTURES * below
        with np.errstate(divide="ignore", invalid="ignore"):
            share = rest / above
        least = np.where(above > 0.0, share, 0.0).max(2)
        most = np.where(above < 0.0, share, np.inf).min(2)
        amiss = ((above == 0.0) & (rest > 0.0)).any(2)
        return bool(((least <= most) & ~amiss).any(0).all())

    def _sides(self, window: int, left: int) -> tuple[Floats, Floats]:
        """The two parts of c_T for every pair of values: (P, K)."""
        table = self._tables[left]
        return self._plus[window] * table[self._first], self._minus[window] * table[self._second]


@lru_cache(maxsize=64)
def pairs(values: int, sides: str) -> tuple[list[int], list[int]]:
    """Pairs (v, v') of values whose ratio Pr(y|v)/Pr(y|v') is bounded, as two lists; on one side that of E alone."""
    every = range(values)
    both = [(1, 0)] if sides == "up" else [(one, two) for one in every[::-1] for two in every if one != two]
    return [one for one, _ in both], [two for _, two in both]


cover = lru_cache(maxsize=16)(Cover)  # of a secret without a window, made once
