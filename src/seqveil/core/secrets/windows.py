"""What is kept of the windows of a secret: how likely each value was and is, the odds so far and their extremes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.kernel import UNIT, Floats, Ints
from seqveil.core.secrets.ahead import Ahead

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
class WindowRecords:
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
        return WindowRecords(*(part[key] for part in vars(self).values()))

    def and_then(self, *others: WindowRecords, axis: int = 1) -> WindowRecords:
        """These windows, then those; with `axis` 0 these users, then those."""
        parts = zip(*(vars(each).values() for each in (self, *others)), strict=True)
        return WindowRecords(*(np.concatenate(each, axis=axis) for each in parts))

    def worst(self, sides: str) -> WindowRecords:
        """The one of each user about which most was disclosed, the first of several: (B, 1); -1 of none."""
        size = self.highest if sides == "up" else np.maximum(self.highest, -self.lowest)
        place = np.where(self.index >= 0, size, -np.inf).argmax(1)
        return self[np.arange(len(place))[:, None], place[:, None]]

    def after(self, posterior: Floats, error: float, disclosed_all: Mask | bool = False) -> WindowRecords:
        """The records after a release that moved the windows' distributions to `posterior`."""
        odds = log_odds(posterior, self.prior)
        room = np.where(np.isinf(odds), 0.0, error + 8 * UNIT * np.abs(odds))  # by which they may be off
        low, high = np.minimum(self.lowest, odds - room), np.maximum(self.highest, odds + room)
        if np.any(disclosed_all):
            everything = np.asarray(disclosed_all)[..., None]
            low, high = np.where(everything, -np.inf, low), np.where(everything, np.inf, high)
        return WindowRecords(self.index, self.prior, posterior, odds, low, high)

    def widened(self, down: Floats, up: Floats) -> WindowRecords:
        """With the extremes moved by what later releases can still tell, either way."""
        known = np.isinf(self.odds)
        low = np.minimum(self.lowest, self.odds - np.where(known, 0.0, down))
        high = np.maximum(self.highest, self.odds + np.where(known, 0.0, up))
        return replace(self, lowest=low, highest=high)

    def accounts(self, plan: Ahead) -> tuple[WindowAccount, ...]:
        """Those of the first user, each as an object to look at."""
        found = []
        for index, prior, posterior, *odds in zip(*(part[0].tolist() for part in vars(self).values()), strict=True):
            shares = (prior[1], posterior[1]) if plan.values == 2 else (tuple(prior), tuple(posterior))
            found += [WindowAccount(*plan.span(index), *shares, *odds)] if index >= 0 else []
        return tuple(found)


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
