"""Which of the windows "the first T events", for all T, are asked about at an event, so that all others are kept too.

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

from functools import lru_cache

import numpy as np

from seqveil.core.kernel import Floats, Ints, slack
from seqveil.core.secrets.account import ROWS
from seqveil.core.secrets.ahead import Ahead

SHARE = 0.01  # of ε: how much less than promised the windows of the highest level are asked to keep
LEVELS = 10  # 2**10 > LONGEST
MIXTURES = np.array([0.45, 0.5, 0.55])[:, None, None]  # the α that are tried; β follows
STRIDE = 16  # of so much of it a search goes on where a window was not covered


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
            if window == 0:
                continue
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


@lru_cache(maxsize=16)
def cover(plan: Ahead) -> Cover:
    """The cover of a secret without a window, made once."""
    return Cover(plan)
