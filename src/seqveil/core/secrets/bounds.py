"""What must hold of every label of the next release, for all declared secrets and all observers at once.

A release y by a kernel Q moves the odds of a window to Σ_x m_v(x) Q(y|x) / π_v against the same for v', where m_v(x) =
Pr(v, X = x | y_<k) and π_v is the window's prior. So every promise is a row of numbers with

    Σ_x [m_v(x)/π_v - e^ε m_v'(x)/π_v'] Q(y|x) ≤ 0      for every label y.

The rows *promised* are what integers are checked against. The rows *aimed* at are a little tighter, so that a solver's
error and the rounding to integers stay within the promise, and tighter still where a box opens with time; where the
last release came to rest between the two, they are as loose as it takes for saying nothing to be allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, Ints, slack
from seqveil.core.secrets.trackers import SecretTracker, SecretTrackers
from seqveil.core.secrets.windows import pairs

TIGHTER = 1e-6  # of ε: how much less than promised is aimed at
START = 0.5  # share of ε that a window of known length begins with
UNLIKELY = 1e-7  # symbols below this probability that may not be released as they are get a draw from what is released


def schedule(tracker: SecretTracker) -> Floats | float | None:
    """The ε aimed at now for every live window of a secret; None: all of it, for windows whose end is unknown.

    What is spent early is missed later: a window of known length may move its odds by e^(ε/2) at its first event, by
    e^ε at its last, and linearly in between. Windows of N events that follow one another keep 1/(2N²) of ε at their
    last event, or what all later releases together can reveal about them where that is less, and half of what is left
    is added at each event after it. On a chain that stays where it is, the next events reveal nearly as much about a
    window as its own; at the edge of its box they would have to say nothing of it. All this is public, so it costs
    nothing.
    """
    plan = tracker.ahead
    if plan.family or (plan.length == 1 and not plan.repeats):
        return None
    if not plan.repeats:
        return float(plan.aim * _shares(plan.length)[min(tracker.step, plan.length - 1)])
    events = plan.offset + tracker.step - tracker.records.index * plan.length
    kept = min((1.0 - START) / plan.length**2, plan.disclosed_later / plan.aim)
    return np.asarray(plan.aim * _shares_after(plan.length, events, kept))


@lru_cache(maxsize=64)
def _shares(length: int) -> Floats:
    """Shares of ε for the events of a window.

    >>> _shares(5).tolist()
    [0.5, 0.625, 0.75, 0.875, 1.0]
    """
    return np.asarray(START + (1.0 - START) * np.arange(length) / max(1, length - 1))


def _shares_after(length: int, events: Ints, kept: float) -> Floats:
    """Shares of ε so many events after the first one of windows that keep this share for after their end.

    >>> _shares_after(1, np.arange(-1, 3), 0.5).tolist(), _shares_after(5, np.arange(3, 6), 0.1).round(9).tolist()
    ([0.5, 0.5, 0.75, 0.875], [0.8, 0.9, 0.95])
    """
    shares, inside = _shares(length), np.minimum(np.maximum(events, 0), length - 1)
    if length == 1:  # half of the way before its event, as at the first event of longer ones
        shares, inside = np.array([START, 1.0]), (events >= 0).astype(np.int64)
    within = START + (shares[inside] - START) * (1.0 - kept / (1.0 - START))
    return np.asarray(within + kept * (1.0 - 0.5 ** np.maximum(events - (length - 1), 0)))


@dataclass(frozen=True, eq=False)
class Boxes:
    """Windows of secrets that are true or not, under the stream's own model: E's mass of each symbol, and a box."""

    masses: Floats  # (W, n) Pr(E, X = x | y_<k)
    low: Floats  # (W,) least weight that a label may have
    high: Floats  # (W,) largest

    def needs(self, belief: Floats) -> Floats:
        """By how much the windows would be broken if all were released as it is: (W,)."""
        over, under = self.masses - np.outer(self.high, belief), np.outer(self.low, belief) - self.masses
        return np.asarray(np.maximum(over, 0.0).sum(1) + np.maximum(under, 0.0).sum(1))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Rows (I, n) with Σ_x row(x) Q(y|x) ≤ 0 for every label y, under a belief (n,).

    Each number of the promised rows is raised by as much as it may be off. `possible` are the symbols that no observer
    rules out; the others are never disclosed. `boxes` are there where all rows come from secrets that are true or not,
    under the stream's own model.
    """

    belief: Floats
    promised: Floats
    aimed: Floats
    possible: NDArray[np.bool_]
    boxes: Boxes | None = None

    @classmethod
    def of(cls, trackers: SecretTrackers) -> Bounds:
        """Of all live windows of all secrets, as every observer sees them."""
        beliefs = [row[0].belief for row in trackers.rows]
        parts = [
            WindowPromise.of(
                belief, tracker.masses, tracker.records.prior, tracker.ahead.aim, tracker.secret.sides,
                tracker.ahead.error(tracker.step), schedule(tracker),
            )
            for belief, row in zip(beliefs, trackers.rows, strict=True) for tracker in row
        ]  # fmt: skip
        return cls.joined(parts, beliefs, beliefs[0])

    @classmethod
    def joined(cls, parts: Iterable[WindowPromise | None], beliefs: Sequence[Floats], own: Floats) -> Bounds:
        """Of these promises under the beliefs of all observers; `own` is that of the stream's own model.

        >>> belief, prior = np.array([0.5, 0.5]), np.array([[0.405, 0.595]])
        >>> promise = WindowPromise.of(belief, belief * np.array([[[0.81, 0.0], [0.19, 1.0]]]), prior, 0.5, "both", 0.0)
        >>> bounds = Bounds.joined([promise], [belief], belief)
        >>> bounds.promised.shape, [round(float(edge[0]), 5) for edge in (bounds.boxes.low, bounds.boxes.high)]
        ((2, 2), [0.4712, 0.70779])
        """
        binding = [part for part in parts if part is not None]
        possible = own > 0.0
        for seen in beliefs:
            if seen is not own:
                possible = possible & (seen > 0.0)
        if not binding:
            nothing = np.zeros((0, own.size))
            return cls(own, nothing, nothing, possible)
        promised, aimed = _joined([part.promised for part in binding]), _joined([part.aimed for part in binding])
        boxes = None
        if all(part.boxes is not None and part.belief is own for part in binding):
            found = [part.boxes for part in binding if part.boxes is not None]
            boxes = found[0] if len(found) == 1 else Boxes(*(
                np.concatenate([getattr(one, name) for one in found]) for name in ("masses", "low", "high")
            ))  # fmt: skip
        return cls(own, promised, aimed, possible, boxes)

    def free(self) -> NDArray[np.bool_]:
        """Symbols that may be released as they are: alone on their label they keep every bound."""
        return np.asarray((self.aimed <= 0.0).all(0))

    def distinguished(self) -> Bounds:
        """The same over the symbols that are released at all; the others draw from the marginal of these.

        A symbol that is released by that draw adds the same to every label, in proportion to the label's probability,
        so that its rows may be shared out over the others by their belief. To a box it adds what moves its edges.
        """
        if np.minimum.reduce(self.belief) >= UNLIKELY and self.possible.all():
            return self
        taken = self.possible & (self.free() | (self.belief >= UNLIKELY))
        if not taken.any():
            taken = self.belief == self.belief.max()
        left_out = self.belief[~taken]
        if not left_out.any():
            return replace(self, possible=taken)
        belief = np.where(taken, self.belief, 0.0)
        total = belief.sum()
        belief = belief / total
        rest = self.aimed[:, ~taken].sum(1)
        aimed = np.where(taken, self.aimed + np.multiply.outer(rest, belief), 0.0)
        boxes = self.boxes
        if boxes is not None:
            mass, gone = boxes.masses[:, ~taken].sum(1), left_out.sum()
            # over the symbols that are disclosed, masses m/total and belief b/total: m + mass·b ≤ high (b + gone·b) …
            masses = np.where(taken, boxes.masses, 0.0) / total
            low, high = (edge * (1.0 + gone / total) - mass / total for edge in (boxes.low, boxes.high))
            boxes = Boxes(masses, low, high)
        return replace(self, belief=belief, aimed=aimed, possible=taken, boxes=boxes)


def _joined(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class WindowPromise:
    """The rows of one secret under one model, of the windows that some symbol could break."""

    belief: Floats
    promised: Floats
    aimed: Floats
    boxes: Boxes | None

    @classmethod
    def of(
        cls, belief: Floats, masses: Floats, prior: Floats, epsilon: float, sides: str, error: float,
        aims: Floats | float | None = None,
    ) -> WindowPromise | None:  # fmt: skip
        """From Pr(v, X = x | y_<k) (W, V, n) and the priors (W, V); None where no symbol, released as it is, breaks it.

        `epsilon` is what is promised, `aims` (W,) what is aimed at where that is less.
        """
        n, values = belief.size, prior.shape[1]
        if not len(prior):
            return None
        room = max(TIGHTER * epsilon, 4 * (error + slack(n)))
        grown: Any = math.exp(max(0.0, epsilon - room))
        if isinstance(aims, float):
            grown = min(grown, math.exp(aims))
        elif aims is not None:
            grown = np.minimum(grown, np.exp(aims))[:, None, None]
        first, second = pairs(values, sides)
        everywhere = bool(prior.all())
        lifts = masses / (prior if everywhere else np.where(prior > 0.0, prior, np.inf))[:, :, None]
        plus, minus = lifts[:, first], lifts[:, second]
        if not everywhere:  # a value of prior 0 cannot occur and bounds nothing
            bounded = ((prior[:, first] > 0.0) & (prior[:, second] > 0.0))[:, :, None]
            plus, minus = np.where(bounded, plus, 0.0), np.where(bounded, minus, 0.0)
        aimed = plus - grown * minus  # (W, pairs, n)
        chosen = (np.maximum.reduce(aimed.reshape(len(prior), -1), 1) > 0.0).nonzero()[0]
        if not chosen.size:
            return None
        if chosen.size < len(prior):
            plus, minus, aimed, masses, prior = (part[chosen] for part in (plus, minus, aimed, masses, prior))
            grown = grown if isinstance(grown, float) else grown[chosen]
        minus = math.exp(epsilon) * minus
        promised = (plus - minus) + (2 * error + slack(n)) * (plus + minus)
        boxes = _boxes(masses[:, 1], prior, grown, sides, belief) if values == 2 else None
        promised, aimed = promised.reshape(-1, n), aimed.reshape(-1, n)
        over = np.add.reduce(aimed, 1)
        if np.maximum.reduce(over) > 0.0:  # as loose as it takes for saying nothing to be allowed
            aimed = aimed - np.multiply.outer(np.maximum(over, 0.0), belief / belief.sum())
        return cls(belief, promised, aimed, boxes)


def _boxes(masses: Floats, prior: Floats, grown: Any, sides: str, belief: Floats) -> Boxes:
    """The boxes of windows whose odds may be e^aim = `grown` times the prior ones, wide enough for saying nothing."""
    factor = grown if isinstance(grown, float) else np.ravel(grown)
    mean, no, yes = np.add.reduce(masses, 1) / np.add.reduce(belief), prior[:, 0], prior[:, 1]
    high = yes * factor / (yes * factor + no)
    low = yes / (yes + no * factor) if sides == "both" else np.zeros(len(mean))
    return Boxes(masses, np.minimum(low, mean), np.maximum(high, mean))
