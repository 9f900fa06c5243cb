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

import numpy as np
from numpy.typing import NDArray

from seqveil.core.kernel import Floats, slack
from seqveil.core.secrets import Guarded, Watches

TIGHTER = 1e-6  # of ε: how much less than promised is aimed at
UNLIKELY = 1e-7  # symbols below this probability that may not be told as they are get a draw from what is released


@dataclass(frozen=True, eq=False)
class Boxes:
    """Windows of secrets that are true or not, under the stream's own model: E's mass of each symbol, and a box."""

    masses: Floats  # (W, n) Pr(E, X = x | y_<k)
    low: Floats  # (W,) least weight that a label may have
    high: Floats  # (W,) largest

    def needs(self, belief: Floats) -> Floats:
        """By how much the windows would be broken if all were told as it is: (W,)."""
        over, under = self.masses - np.outer(self.high, belief), np.outer(self.low, belief) - self.masses
        return np.asarray(np.maximum(over, 0.0).sum(1) + np.maximum(under, 0.0).sum(1))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Rows (I, n) with Σ_x row(x) Q(y|x) ≤ 0 for every label y, under a belief (n,).

    `doubt` (I, n) is how far each number of the promised rows may be off. `possible` are the symbols that no observer
    rules out; the others are never told. `boxes` are there where all rows come from secrets that are true or not, under
    the stream's own model.
    """

    belief: Floats
    promised: Floats
    doubt: Floats
    aimed: Floats
    possible: NDArray[np.bool_]
    boxes: Boxes | None = None

    @classmethod
    def of(cls, watches: Watches, aims: Sequence[Sequence[Floats]] | None = None) -> Bounds:
        """Of all live windows of all secrets, as every observer sees them.

        `aims` are the ε aimed at, for each observer, secret and live window, where boxes open with time.
        """
        own = watches.rows[0][0].belief
        parts = (
            _Promise.of(watch.belief, watch.masses, watch.records.prior, watch.ahead.aim, watch.secret.sides,
                        watch.ahead.error(watch.step), None if aims is None else aims[i][j])
            for i, row in enumerate(watches.rows) for j, watch in enumerate(row)
        )  # fmt: skip
        return cls._of(parts, [row[0].belief for row in watches.rows], own)

    @classmethod
    def of_guarded(cls, promises: Sequence[tuple[Floats, Guarded]], belief: Floats) -> Bounds:
        """Of these promises, each with its observer's belief; `belief` is that of the stream's own model.

        >>> weights, prior = np.array([[[0.81, 0.0], [0.19, 1.0]]]), np.array([[0.405, 0.595]])
        >>> belief = np.array([0.5, 0.5])
        >>> bounds = Bounds.of_guarded([(belief, Guarded(np.array([0]), weights, prior, 0.5, "both", 0.0))], belief)
        >>> bounds.promised.shape, [round(float(edge[0]), 5) for edge in (bounds.boxes.low, bounds.boxes.high)]
        ((2, 2), [0.4712, 0.70779])
        """
        parts = (
            _Promise.of(seen, seen * one.weights, one.prior, one.epsilon, one.sides, one.error)
            for seen, one in promises
        )
        return cls._of(parts, [belief, *(seen for seen, _ in promises)], belief)

    @classmethod
    def _of(cls, parts: Iterable[_Promise | None], beliefs: Sequence[Floats], own: Floats) -> Bounds:
        binding = [part for part in parts if part is not None]
        possible = own > 0.0
        for seen in beliefs:
            if seen is not own:
                possible = possible & (seen > 0.0)
        if not binding:
            nothing = np.zeros((0, own.size))
            return cls(own, nothing, nothing, nothing, possible)
        promised, doubt, aimed = (_joined([getattr(part, name) for part in binding]) for name in _ROWS)
        boxes = None
        if all(part.boxes is not None and part.belief is own for part in binding):
            found = [part.boxes for part in binding if part.boxes is not None]
            boxes = found[0] if len(found) == 1 else Boxes(*(
                np.concatenate([getattr(one, name) for one in found]) for name in ("masses", "low", "high")
            ))  # fmt: skip
        return cls(own, promised, doubt, aimed, possible, boxes)

    def free(self) -> NDArray[np.bool_]:
        """Symbols that may be told as they are: alone on their label they keep every bound."""
        return np.asarray((self.aimed <= 0.0).all(0))

    def told_apart(self) -> Bounds:
        """The same over the symbols that are told at all; the others are released by a draw from the marginal of these.

        A symbol that is released by that draw adds the same to every label, in proportion to the label's probability,
        so that its rows may be shared out over the others by their belief. To a box it adds what moves its edges.
        """
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
            # over the symbols that are told, masses m/total and belief b/total: m + mass·b ≤ high (b + gone·b) …
            masses = np.where(taken, boxes.masses, 0.0) / total
            low, high = (edge * (1.0 + gone / total) - mass / total for edge in (boxes.low, boxes.high))
            boxes = Boxes(masses, low, high)
        return replace(self, belief=belief, aimed=aimed, possible=taken, boxes=boxes)


_ROWS = ("promised", "doubt", "aimed")


def _joined(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class _Promise:
    """The rows of one secret under one model, of the windows that some symbol could break."""

    belief: Floats
    promised: Floats
    doubt: Floats
    aimed: Floats
    boxes: Boxes | None

    @classmethod
    def of(
        cls, belief: Floats, masses: Floats, prior: Floats, epsilon: float, sides: str, error: float,
        aims: Floats | None = None,
    ) -> _Promise | None:  # fmt: skip
        """From Pr(v, X = x | y_<k) (W, V, n) and the priors (W, V); None where no symbol, told as it is, breaks it.

        `epsilon` is what is promised, `aims` (W,) what is aimed at where that is less.
        """
        n = belief.size
        room = max(TIGHTER * epsilon, 4 * (error + slack(n)))
        aim: Floats = np.full(len(prior), max(0.0, epsilon - room))
        if aims is not None:
            aim = np.minimum(aim, aims)
        lifts = masses / np.where(prior > 0.0, prior, np.inf)[:, :, None]
        widest, grown = math.exp(epsilon), np.exp(aim)[:, None]
        pairs = _pairs(prior.shape[1], sides)
        tight = [lifts[:, one] - grown * lifts[:, two] for one, two in pairs]
        # a value of prior 0 cannot occur and bounds nothing
        counts = [(prior[:, one] > 0.0) & (prior[:, two] > 0.0) for one, two in pairs]
        broken = [(row > 0.0).any(1) & counted for row, counted in zip(tight, counts, strict=True)]
        chosen = np.flatnonzero(np.logical_or.reduce(broken))
        if not chosen.size:
            return None
        kept = [chosen[counted[chosen]] for counted in counts]
        plus = _joined([lifts[rows, one] for (one, _), rows in zip(pairs, kept, strict=True)])
        minus = _joined([widest * lifts[rows, two] for (_, two), rows in zip(pairs, kept, strict=True)])
        aimed = _joined([row[rows] for row, rows in zip(tight, kept, strict=True)])
        law = belief / belief.sum()
        aimed = aimed - np.multiply.outer(np.maximum(aimed.sum(1), 0.0), law)
        doubt = (plus + minus) * (2 * error + slack(n))
        boxes = None
        if prior.shape[1] == 2:
            boxes = _boxes(masses[chosen, 1], prior[chosen], grown[chosen, 0], sides, belief)
        return cls(belief, plus - minus, doubt, aimed, boxes)


def _pairs(values: int, sides: str) -> list[tuple[int, int]]:
    """Pairs (v, v') whose ratio Pr(y|v)/Pr(y|v') is bounded."""
    if sides == "up":
        return [(1, 0)]
    return [(one, two) for one in range(values) for two in range(values) if one != two]


def _boxes(masses: Floats, prior: Floats, grown: Floats, sides: str, belief: Floats) -> Boxes:
    """The boxes of windows whose odds may be e^aim = `grown` times the prior ones, wide enough for saying nothing."""
    mean, no, yes = masses.sum(1) / belief.sum(), prior[:, 0], prior[:, 1]
    high = yes * grown / (yes * grown + no)
    low = yes / (yes + no * grown) if sides == "both" else np.zeros(len(mean))
    return Boxes(masses, np.minimum(low, mean), np.maximum(high, mean))
