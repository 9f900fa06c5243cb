"""What must hold of every label of the next release, and tables of a few different rows that are checked for it.

*Bounds.* A release y by a kernel Q moves the odds of a window to Σ_x m_v(x) Q(y|x) / π_v against the same for v', where
m_v(x) = Pr(v, X = x | y_<k) and π_v is the window's prior. So every promise, of all declared secrets and to all
observers at once, is a row of numbers with

    Σ_x [m_v(x)/π_v - e^ε m_v'(x)/π_v'] Q(y|x) ≤ 0      for every label y.

The rows *promised* are what integers are checked against. The rows *aimed* at are a little tighter, so that a solver's
error and the rounding to integers stay within the promise, and tighter still where a box opens with time; where the
last release came to rest between the two, they are as loose as it takes for saying nothing to be allowed.

*Tables.* Symbol x has a *kind*; all symbols of a kind put the same weight on their own label, and the same weights on
the labels that are shared:

    Q(y|x)  =  disclosed(kind of x) · [y is x's own label]  +  spread(kind of x, y).

A symbol that is released as it is, one that is moved by the common distribution, and one row for each of a few others:
that is all there is where one secret is kept, so that a table over 10⁴ symbols is made, checked and drawn from in time
linear in their number, and never written out. A table of a linear program has a kind for every symbol.

*Check.* For a row of numbers r with Σ_x r(x) Q(y|x) ≤ 0 promised, the sum at a label is r(x) disclosed(kind of x) for
the symbol x that it belongs to, plus Σ over kinds of spread(kind, y) · Σ of r over the symbols of the kind: every label
is covered, from the integers that are drawn from, every rounding going outward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, slack
from seqveil.core.secrets.account import SecretTracker, SecretTrackers

TIGHTER = 1e-6  # of ε: how much less than promised is aimed at
START = 0.5  # share of ε that a window of known length begins with
OPENING = 20.0  # events after which half of the rest of a trait's ε is open; it never closes, and never all opens
UNLIKELY = 1e-7  # symbols below this probability that may not be released as they are get a draw from what is released
WRITABLE = 25_000_000  # numbers of a table that is written out in full
ONE = float(DENOMINATOR)


def schedule(tracker: SecretTracker) -> Floats:
    """The ε aimed at now for every live window of a secret (W,): all of it for windows whose end is unknown.

    What is spent early is missed later: a window of known length may move its odds by e^(ε/2) at its first event, by
    e^ε at its last, and linearly in between. Windows of N events that follow one another keep 1/(2N²) of ε at their
    last event, or what all later releases together can reveal about them where that is less, and half of what is left
    is added at each event after it. On a chain that stays where it is, the next events reveal nearly as much about a
    window as its own; at the edge of its box they would have to say nothing of it. All this is public, so it costs
    nothing.
    """
    plan, windows = tracker.ahead, tracker.records.index
    if plan.family:
        return np.full(windows.size, plan.aim)
    if not plan.length:  # a trait: all of a person's events, however many will come
        return np.full(windows.size, plan.aim * (1.0 - (1.0 - START) / (1.0 + tracker.step / OPENING)))
    events = plan.offset + tracker.step - windows * plan.length
    kept = min((1.0 - START) / plan.length**2, plan.disclosed_later / plan.aim) if plan.repeats else 0.0
    return np.asarray(plan.aim * _shares(plan.length, events, kept))


def _shares(length: int, events: Ints, kept: float) -> Floats:
    """Shares of ε so many events after the first one of windows that keep this share for after their end.

    >>> _shares(5, np.arange(5), 0.0).tolist()
    [0.5, 0.625, 0.75, 0.875, 1.0]
    >>> _shares(1, np.arange(-1, 3), 0.5).tolist(), _shares(5, np.arange(3, 6), 0.1).round(9).tolist()
    ([0.5, 0.5, 0.75, 0.875], [0.8, 0.9, 0.95])
    """
    inside = np.minimum(np.maximum(events, 0), length - 1)
    if length == 1:  # half of the way before its event, as at the first event of longer ones
        inside = events >= 0
    shares = START + (1.0 - START) * inside / max(1, length - 1)
    within = START + (shares - START) * (1.0 - kept / (1.0 - START))
    return np.asarray(within + kept * (1.0 - 0.5 ** np.maximum(events - (length - 1), 0)))


@lru_cache(maxsize=64)
def pairs(values: int, sides: str) -> tuple[list[int], list[int]]:
    """Pairs (v, v') of values whose ratio Pr(y|v)/Pr(y|v') is bounded, as two lists; on one side that of E alone."""
    every = range(values)
    both = [(1, 0)] if sides == "up" else [(one, two) for one in every[::-1] for two in every if one != two]
    return [one for one, _ in both], [two for _, two in both]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Windows of secrets that are true or not, under the stream's own model: E's mass of each symbol, and a box."""

    masses: Floats  # (W, n) Pr(E, X = x | y_<k)
    low: Floats  # (W,) least weight that a label may have
    high: Floats  # (W,) largest

    @classmethod
    def of(cls, masses: Floats, prior: Floats, factor: Floats, sides: str, belief: Floats) -> Boxes:
        """Of windows whose odds may be `factor` times the prior ones, wide enough for saying nothing."""
        mean, no, yes = np.add.reduce(masses, 1) / np.add.reduce(belief), prior[:, 0], prior[:, 1]
        high = yes * factor / (yes * factor + no)
        low = yes / (yes + no * factor) if sides == "both" else np.zeros(len(mean))
        return cls(masses, np.minimum(low, mean), np.maximum(high, mean))

    @classmethod
    def joined(cls, parts: Sequence[Boxes]) -> Boxes:
        """All of them."""
        return cls(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("masses", "low", "high")))

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
            cls.of_windows(
                belief, tracker.masses, tracker.records.prior, tracker.ahead.aim, tracker.secret.sides,
                tracker.ahead.error(tracker.step), schedule(tracker),
            )
            for belief, row in zip(beliefs, trackers.rows, strict=True) for tracker in row
        ]  # fmt: skip
        return cls.joined(parts, beliefs[0])

    @classmethod
    def of_windows(
        cls, belief: Floats, masses: Floats, prior: Floats, epsilon: float, sides: str, error: float,
        aims: Floats | float = math.inf,
    ) -> Bounds:  # fmt: skip
        """Of the windows of one secret that some symbol, released as it is, could break.

        `masses` are Pr(v, X = x | y_<k) (W, V, n), `prior` those of the values (W, V), `epsilon` is what is promised,
        `aims` (W,) what is aimed at where that is less.
        """
        n, values = belief.size, prior.shape[1]
        room = max(TIGHTER * epsilon, 4 * (error + slack(n)))
        factor = np.minimum(math.exp(max(0.0, epsilon - room)), np.exp(aims)) * np.ones(len(prior))
        first, second = pairs(values, sides)
        everywhere = bool(prior.all())
        lifts = masses / (prior if everywhere else np.where(prior > 0.0, prior, np.inf))[:, :, None]
        plus, minus = lifts[:, first], lifts[:, second]
        if not everywhere:  # a value of prior 0 cannot occur and bounds nothing
            bounded = ((prior[:, first] > 0.0) & (prior[:, second] > 0.0))[:, :, None]
            plus, minus = np.where(bounded, plus, 0.0), np.where(bounded, minus, 0.0)
        aimed = plus - factor[:, None, None] * minus  # (W, pairs, n)
        chosen = (np.maximum.reduce(aimed.reshape(len(prior), len(first) * n), 1, initial=0.0) > 0.0).nonzero()[0]
        if chosen.size < len(prior):
            parts = (plus, minus, aimed, masses, prior, factor)
            plus, minus, aimed, masses, prior, factor = (part[chosen] for part in parts)
        minus = math.exp(epsilon) * minus
        promised = (plus - minus) + (2 * error + slack(n)) * (plus + minus)
        promised, aimed = promised.reshape(-1, n), aimed.reshape(-1, n)
        over = np.add.reduce(aimed, 1)
        if np.maximum.reduce(over, initial=0.0) > 0.0:  # as loose as it takes for saying nothing to be allowed
            aimed = aimed - np.multiply.outer(np.maximum(over, 0.0), belief / belief.sum())
        boxes = Boxes.of(masses[:, 1], prior, factor, sides, belief) if values == 2 else None
        return cls(belief, promised, aimed, belief > 0.0, boxes)

    @classmethod
    def joined(cls, parts: Sequence[Bounds], own: Floats) -> Bounds:
        """Of these bounds, under the beliefs of all observers; `own` is that of the stream's own model.

        >>> belief, prior = np.array([0.5, 0.5]), np.array([[0.405, 0.595]])
        >>> one = Bounds.of_windows(belief, belief * np.array([[[0.81, 0.0], [0.19, 1.0]]]), prior, 0.5, "both", 0.0)
        >>> bounds = Bounds.joined([one], belief)
        >>> bounds.promised.shape, [round(float(edge[0]), 5) for edge in (bounds.boxes.low, bounds.boxes.high)]
        ((2, 2), [0.4712, 0.70779])
        """
        if len(parts) == 1 and parts[0].belief is own:
            return parts[0]
        possible = np.logical_and.reduce([own > 0.0, *(part.possible for part in parts)])
        binding = [part for part in parts if len(part.aimed)]
        boxes = [part.boxes for part in binding if part.boxes is not None and part.belief is own]
        return cls(
            own,
            np.concatenate([np.zeros((0, own.size)), *(part.promised for part in binding)]),
            np.concatenate([np.zeros((0, own.size)), *(part.aimed for part in binding)]),
            possible,
            Boxes.joined(boxes) if boxes and len(boxes) == len(binding) else None,
        )

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


@dataclass(frozen=True, eq=False)
class _ByKind:
    """A table, in floats or in integers, by the kinds of symbols."""

    outputs: Ints  # (K,) codes, WITHHELD among them where that is allowed
    kinds: Ints  # (n,) of each symbol
    disclosed: NDArray[Any]  # (R,) with what weight a symbol of this kind is released as it is
    shared: Ints  # (J,) places in `outputs` of the labels that symbols share
    spread: NDArray[Any]  # (R, J)

    @cached_property
    def own(self) -> tuple[Ints, Ints, NDArray[Any]]:
        """Places of the labels that are symbols, these symbols, and the weight with which each is released as it is."""
        places = (self.outputs != WITHHELD).nonzero()[0]
        codes = self.outputs[places]
        return places, codes, self.disclosed[self.kinds[codes]]

    def full(self) -> NDArray[Any]:
        """All weights, (n, K), written out."""
        if self.kinds.size * self.outputs.size > WRITABLE:
            raise InputError(
                f"a table of {self.kinds.size} × {self.outputs.size} weights is too large to write out; "
                "release without looking at it"
            )
        table = np.zeros((self.kinds.size, self.outputs.size), self.spread.dtype)
        table[:, self.shared] = self.spread[self.kinds]
        places, codes, disclosed = self.own
        table[codes, places] += disclosed
        return table


@dataclass(frozen=True, eq=False)
class Draft(_ByKind):
    """A table in floats, what no table can go below, and the label distribution it is mixed with where it fails."""

    least: float
    towards: Floats | None = None  # (K,) None: the marginal

    @classmethod
    def of_rows(cls, outputs: Ints, kinds: Ints, table: Floats, least: float, towards: Floats | None) -> Draft:
        """A table that is written out, a row for each kind."""
        return cls(outputs, kinds, np.zeros(len(table)), np.arange(outputs.size), table, least, towards)

    @classmethod
    def constant(cls, n: int, outputs: Ints, distribution: Floats) -> Draft:
        """The same distribution of labels whatever the truth is."""
        return cls.of_rows(outputs, np.zeros(n, np.int64), distribution[None], -np.inf, distribution)

    def distribution(self, belief: Floats) -> Floats:
        """The distribution of labels that it is mixed with."""
        if self.towards is not None:
            return self.towards
        distribution = np.zeros(self.outputs.size)
        by_kind = np.bincount(self.kinds, belief, self.disclosed.size)
        distribution[self.shared] = (by_kind[:, None] * self.spread).sum(0)  # no BLAS: the same bits on every machine
        places, codes, disclosed = self.own
        distribution[places] += belief[codes] * disclosed
        return np.asarray(distribution / distribution.sum())

    def mixed(self, share: float, distribution: Floats) -> Draft:
        """The table mixed with one distribution for all."""
        spread = np.zeros((self.disclosed.size, self.outputs.size))
        spread[:, self.shared] = (1.0 - share) * self.spread
        made = Draft.of_rows(self.outputs, self.kinds, spread + share * distribution, self.least, distribution)
        return replace(made, disclosed=(1.0 - share) * self.disclosed)


@dataclass(frozen=True, eq=False)
class GuardingTable(_ByKind):
    """An integer table over the labels in use; every row sums to 2**62."""

    belief: Floats
    costs: Distortion
    bound: float = -np.inf  # what no table of these bounds can go below; -inf where it was not computed

    @classmethod
    def of(cls, draft: Draft, belief: Floats, costs: Distortion) -> GuardingTable:
        """Weights rounded down; what that leaves of a row goes to its largest weight."""
        disclosed, spread = (draft.disclosed * ONE).astype(np.int64), (draft.spread * ONE).astype(np.int64)
        spread[draft.disclosed >= 1.0] = 0
        left = DENOMINATOR - disclosed - np.add.reduce(spread, 1)
        moved = (draft.disclosed < 1.0).nonzero()[0]
        if moved.size:
            spread[moved, spread[moved].argmax(1)] += left[moved]
        return cls(draft.outputs, draft.kinds, disclosed, draft.shared, spread, belief, costs, draft.least)

    def pick(self, code: int, uniform: int) -> int:
        """Place in `outputs` that a draw, an integer in [0, 2**62), picks for a symbol."""
        kind = int(self.kinds[code])
        disclosed = int(self.disclosed[kind])
        if uniform < disclosed:
            return int(np.flatnonzero(self.outputs == code)[0])
        return int(self.shared[np.cumsum(self.spread[kind]).searchsorted(uniform - disclosed, side="right")])

    def column(self, index: int) -> Ints:
        """Weights (n,) that each symbol puts on an output."""
        place = np.flatnonzero(self.shared == index)
        column = self.spread[:, place[0]][self.kinds] if place.size else np.zeros(self.kinds.size, np.int64)
        code = int(self.outputs[index])
        if code != WITHHELD:
            column[code] += self.disclosed[self.kinds[code]]
        return column

    def kernels(self) -> Kernels:
        """The same as a stack of one kernel, written out."""
        outputs = self.outputs[None]
        return Kernels(self.kinds.size, outputs, np.zeros_like(outputs), self.full()[None])

    @cached_property
    def error(self) -> float:
        """The expected cost under the belief; a release that says nothing costs 1."""
        codes = self.outputs[self.shared]
        said = codes != WITHHELD
        by_kind = np.bincount(self.kinds, self.belief, self.disclosed.size)
        nothing = float(by_kind @ self.spread[:, ~said].sum(1)) / ONE
        if self.costs.is_hamming:
            wrong = float(by_kind @ self.spread[:, said].sum(1))
            right = float(self.belief[codes[said]] @ self.spread[self.kinds[codes[said]], said.nonzero()[0]])
            return max(0.0, wrong - right) / ONE + nothing
        x = np.flatnonzero(self.belief)
        own = self.costs.between(x, x) * self.disclosed[self.kinds[x]]
        moved = self.costs.between(x[:, None], codes[said][None, :]) * self.spread[:, said][self.kinds[x]]
        return float(self.belief[x] @ (own + moved.sum(1))) / ONE + nothing

    def keeps(self, bounds: Bounds) -> bool:
        """Whether every label keeps to every bound, from the integers, rounded outward."""
        if self.disclosed.size == 1 and not self.disclosed[0]:
            return True  # the same whatever the truth is: nothing moves
        rows = bounds.promised
        if not len(rows):
            return True
        places, codes, disclosed = self.own
        sums = np.zeros((len(rows), self.outputs.size))
        sums[:, places] = rows[:, codes] * disclosed
        sums[:, self.shared] += _by_kind(rows, self.kinds, self.disclosed.size) @ self.spread.astype(np.float64)
        return bool(np.maximum.reduce(sums, None) <= 0.0)

    def within(self, epsilon: float) -> bool:
        """Whether every lift over the whole alphabet is within ε, and the table 2ε-LDP."""
        made = self.kernels()
        return bool(made.leakage(self.belief[None], True)[0] <= epsilon and made.ldp()[0] <= 2 * epsilon)


def _by_kind(numbers: Floats, kinds: Ints, count: int) -> Floats:
    """Sums of rows of numbers (I, n) over the symbols of each kind: (I, count)."""
    bins = kinds + count * np.arange(len(numbers))[:, None]
    sums = np.bincount(bins.ravel(), numbers.ravel(), len(numbers) * count)
    return sums.reshape(-1, count).astype(np.float64, copy=False)
