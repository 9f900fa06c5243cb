"""Windows of a secret that are being watched, and their odds so far."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.kernel import UNIT, Floats, Ints
from seqveil.core.secrets.ahead import Ahead


@dataclass(frozen=True)
class WindowAccount:
    """What the releases so far tell about one window.

    `log_odds` is log B (for a joint secret the log of the largest ratio Pr(y|v)/Pr(y|v')), between `log_odds_low` and
    `log_odds_high` whatever was rounded; `lowest` and `highest` are its extremes over all times so far, the beginning
    (0) included, rounded outward. `prior` and `posterior` are Pr(E) (a tuple of all values' for a joint secret).
    """

    first: int  # number of its first event, from 0
    events: int
    prior: Any
    posterior: Any
    log_odds: float
    log_odds_low: float
    log_odds_high: float
    lowest: float
    highest: float

    def worst(self, sides: str = "both") -> float:
        """The largest |log B| so far, or on one side the largest log B."""
        return self.highest if sides == "up" else max(self.highest, -self.lowest)


@dataclass(frozen=True, eq=False)
class WindowRecords:
    """Live windows, in order: number, prior and posterior (W, V) of the values, log odds and their extremes so far."""

    index: Ints
    prior: Floats
    posterior: Floats
    odds: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def fresh(cls, index: Ints, prior: Floats, disclosed: float = 0.0) -> WindowRecords:
        """Windows about which at most `disclosed` was disclosed, those alone whose value is not known beforehand."""
        zeros = np.zeros(len(index))
        made = cls(index, prior, prior, zeros, zeros - disclosed, zeros + disclosed)
        return made.take(open_to_doubt(prior))

    def take(self, kept: NDArray[np.bool_]) -> WindowRecords:
        """Some of the windows."""
        return WindowRecords(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))

    def and_then(self, other: WindowRecords) -> WindowRecords:
        """These windows, then those."""
        both = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return WindowRecords(*(np.concatenate(pair) for pair in both))

    def after(self, posterior: Floats, error: float, disclosed_all: bool) -> WindowRecords:
        """The records after a release that moved the windows' distributions to `posterior`."""
        odds = log_odds(posterior, self.prior)
        room = rounding(odds, error)
        low, high = np.minimum(self.lowest, odds - room), np.maximum(self.highest, odds + room)
        if disclosed_all:
            low, high = np.full_like(low, -np.inf), np.full_like(high, np.inf)
        return WindowRecords(self.index, self.prior, posterior, odds, low, high)

    def widened(self, down: Floats, up: Floats) -> WindowRecords:
        """With the extremes moved by what later releases can still tell, either way."""
        known = np.isinf(self.odds)
        low = np.minimum(self.lowest, self.odds - np.where(known, 0.0, down))
        high = np.maximum(self.highest, self.odds + np.where(known, 0.0, up))
        return WindowRecords(self.index, self.prior, self.posterior, self.odds, low, high)


def coming(plan: Ahead, unseen: Floats, states: Floats, step: int, begin: int) -> WindowRecords:
    """Windows number `begin` and on that are watched from this event on.

    `states` is the distribution of the event's state after the releases, `unseen` the same without them.
    """
    index = np.arange(begin, furthest(plan, step) + 1)
    waits = index * plan.length - plan.offset - step
    distributions = [
        plan.at_first if wait < 0 else plan.before.at(wait) for wait in waits.tolist()
    ]  # it is in progress
    prior, posterior = (np.array([(some * over).sum(1) for some in distributions]).reshape(-1, plan.values)
                        for over in (unseen, states))  # fmt: skip
    made = WindowRecords.fresh(index, prior, plan.untracked if step else 0.0)
    return made.after(posterior[open_to_doubt(prior)], plan.error(step), False) if step else made


def open_to_doubt(prior: Floats) -> NDArray[np.bool_]:
    """Whether more than one value of each window can occur: (W, V) → (W,)."""
    return np.asarray((prior > 0).sum(1) > 1)


def furthest(plan: Ahead, step: int) -> int:
    """Number of the last window that is watched at an event."""
    if not plan.repeats:
        return 0
    reached = (plan.offset + step + plan.lead - 1) // plan.length
    return reached if plan.limit is None else min(reached, (plan.offset + plan.limit) // plan.length - 1)


def account(plan: Ahead, records: WindowRecords, place: int, step: int) -> WindowAccount:
    """One record as an object to look at."""
    index, prior, posterior = int(records.index[place]), records.prior[place], records.posterior[place]
    odds = float(records.odds[place])
    room = float(rounding(records.odds[place], plan.error(step))) if step else 0.0
    first, events = (0, index) if plan.family else plan.span(index)
    alone = plan.values == 2
    return WindowAccount(
        first,
        events,
        float(prior[1]) if alone else tuple(prior.tolist()),
        float(posterior[1]) if alone else tuple(posterior.tolist()),
        odds,
        odds - room,
        odds + room,
        float(records.lowest[place]),
        float(records.highest[place]),
    )


def known(plan: Ahead, index: int, prior: Floats) -> WindowAccount:
    """The account of a window whose value is known beforehand: nothing can be disclosed about it."""
    alone = np.zeros(1)
    return account(plan, WindowRecords(np.array([index]), prior[None], prior[None], alone, alone, alone), 0, 0)


def worse(plan: Ahead, one: WindowAccount | None, records: WindowRecords, step: int) -> WindowAccount | None:
    """The account about which most was disclosed, of one and those of the records."""
    sides = plan.secret.sides
    size = records.highest if sides == "up" else np.maximum(records.highest, -records.lowest)
    if not len(size) or (one is not None and one.worst(sides) >= size.max()):
        return one
    return account(plan, records, int(size.argmax()), step)


def rounding(odds: Any, error: float) -> Floats:
    """How far log odds may be off, from above, where the probabilities have that relative error."""
    return np.where(np.isinf(odds), 0.0, error + 8 * UNIT * np.abs(odds))


def log_odds(posterior: Floats, prior: Floats) -> Floats:
    """log B of every window; with more than two values the log of the largest ratio Pr(y|v)/Pr(y|v'): (W, V) → (W,).

    >>> log_odds(np.array([[0.25, 0.75]]), np.array([[0.5, 0.5]])).round(4).tolist()
    [1.0986]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(posterior / prior)
        if prior.shape[1] == 2:
            spread = logs[:, 1] - logs[:, 0]
        else:
            possible = prior > 0
            spread = np.where(possible, logs, -np.inf).max(1) - np.where(possible, logs, np.inf).min(1)
    spread[np.isnan(spread)] = np.inf
    return spread


def reach(distributions: Floats, prior: Floats, sides: str) -> Floats:
    """The most that later releases can move the odds of ended windows, from distributions of (v, next state): (W,).

    >>> reach(np.array([[[0.2, 0.2], [0.4, 0.2]]]), np.array([[0.5, 0.5]]), "both").round(4).tolist()
    [0.4055]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = filtering.as_logs(distributions)
        logs = logs - np.logaddexp.reduce(logs, axis=2, keepdims=True)
        if sides == "up":
            gap = logs[:, 1] - logs[:, 0]
        else:
            possible = (prior > 0)[:, :, None]
            gap = np.where(possible, logs, -np.inf).max(1) - np.where(possible, logs, np.inf).min(1)
    gap[np.isnan(gap)] = -np.inf  # a state that neither value leads to
    return np.asarray(gap.max(1))


@lru_cache(maxsize=64)
def pairs(values: int, sides: str) -> tuple[list[int], list[int]]:
    """Pairs (v, v') of values whose ratio Pr(y|v)/Pr(y|v') is bounded, as two lists; on one side that of E alone."""
    every = range(values)
    both = [(1, 0)] if sides == "up" else [(one, two) for one in every[::-1] for two in every if one != two]
    return [one for one, _ in both], [two for _, two in both]
