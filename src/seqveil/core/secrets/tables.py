"""What must hold of every label of the next release, and tables of a few different rows that are checked for it.

A table has a row for each source z = (x, m), a symbol and what is remembered of the raw stream (`ahead.Automata`). Its
number is n·m + x, and where nothing is remembered it is the symbol.

*Bounds.* A release y by a kernel Q moves the odds of a window to Σ_z m_v(z) Q(y|z) / π_v against the same for v', where
m_v(z) = Pr(v, Z = z | y_<k) and π_v is the window's prior. So every promise, of all declared secrets and to all
observers at once, is a row of numbers with

    Σ_z [m_v(z)/π_v - e^ε m_v'(z)/π_v'] Q(y|z) ≤ 0      for every label y.

The rows *promised* are what integers are checked against, every label from the integers that are drawn from, every
rounding going outward. The rows *aimed* at are a little tighter, for a solver's error and the rounding, and tighter
still where a box opens with time; where the last release came to rest between the two, they are as loose as it takes
for saying nothing to be allowed.

*Tables.* A source has a *kind*; all sources of a kind put the same weight on the label of their symbol, and the same
weights on the labels that are shared:

    Q(y|z)  =  disclosed(kind of z) · [y is the symbol of z]  +  spread(kind of z, y).

So a table over 10⁴ symbols, most of which are released as they are or moved alike, is never written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, Kernels, slack, to_weights
from seqveil.core.secrets.account import SecretTracker, TrackedUsers
from seqveil.core.secrets.pools import UNLIKELY, WRITABLE
from seqveil.core.secrets.windows import cover, pairs

TIGHTER = 1e-6  # of ε: how much less than promised is aimed at
START = 0.5  # share of ε that a window of known length begins with
REMEMBERING = 0.7  # the same where kernels go by what is remembered, which spend less early
FIRST = 0.2  # share of ε that the first event may reveal about a trait, whose events nobody can count beforehand
LEAST = 0.2  # share of what is left to a promise that the next release may take, whatever was to be kept for later
HALF = 0.5  # the most that it may take where nobody knows when a stream ends
OPENING = 4.0  # events in which half of what is left of it opens
TOGETHER = 40_000  # sources times labels up to which several windows are kept together without another solver
ONE = float(DENOMINATOR)


def schedule(tracker: SecretTracker) -> Floats:
    """The ε aimed at now for every live window of a secret (B, W).

    What is spent early is missed later: a window of known length may move its odds by e^(ε/2) at its first event, by
    e^ε at its last, and linearly in between. Windows of N events that follow one another keep 1/(2√N) of ε at their
    last event, or what all later releases together can reveal about them where that is less, and half of what is left
    is added at each event after it: the next events reveal much about a window that is over, and at the edge of its box
    they would have to say nothing of it. A trait has no last event: it opens ever more slowly, and at the edge releases
    go on that say nothing of it. Beyond all this a release may take a share of what is left (`LEAST`). All this is
    public, so it costs nothing.
    """
    plan, windows = tracker.ahead, tracker.records.index
    if not plan.length:  # a trait: all of a person's events, however many will come
        return np.full(windows.shape, plan.aim * (1.0 - (1.0 - FIRST) * 0.5 ** (tracker.step / OPENING)))
    events = plan.offset + tracker.step - windows * plan.length
    start = START if tracker.rows == 1 or plan.length == 1 else REMEMBERING
    kept = min(1.0 - start, 0.5 / plan.length**0.5, plan.disclosed_later / plan.aim) if plan.repeats else 0.0
    return np.asarray(plan.aim * _shares(plan.length, events, kept, start))


def _shares(length: int, events: Ints, kept: float, start: float = START) -> Floats:
    """Shares of ε so many events after the first one of windows that keep this share for after their end.

    >>> _shares(5, np.arange(5), 0.0).tolist()
    [0.5, 0.625, 0.75, 0.875, 1.0]
    >>> _shares(1, np.arange(-1, 3), 0.5).tolist(), _shares(5, np.arange(3, 6), 0.1).round(9).tolist()
    ([0.5, 0.5, 0.75, 0.875], [0.8, 0.9, 0.95])
    """
    inside = np.minimum(np.maximum(events, 0), length - 1)
    if length == 1:  # half of the way before its event, as at the first event of longer ones
        inside = events >= 0
    shares = start + (1.0 - start) * inside / max(1, length - 1)
    within = start + (shares - start) * (1.0 - kept / (1.0 - start))
    return np.asarray(within + kept * (1.0 - 0.5 ** np.maximum(events - (length - 1), 0)))


@dataclass(frozen=True)
class Dial:
    """How many rows a symbol has, and how far they may differ: |log Q(y|x,m)/Q(y|x,m')| ≤ c.

    >>> Dial(2, 2, math.log(3.0)).noise.round(6).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """

    n: int
    rows: int = 1
    c: float = math.inf

    @cached_property
    def noise(self) -> Floats:
        """The probability that a kernel reads m̃ (second) where m is remembered: (M, M); `pools` says why."""
        if self.rows == 1 or math.isinf(self.c):
            return np.eye(self.rows)
        stays = math.exp(self.c * (1.0 - TIGHTER))
        return (1.0 + (stays - 1.0) * np.eye(self.rows)) / (stays + self.rows - 1.0)

    @property
    def ratio(self) -> float:
        """e^c, rounded down; infinite where nothing is asked."""
        return math.exp(self.c) * (1.0 - 8 * UNIT) if self.rows > 1 else math.inf

    def check(self, sources: int) -> None:
        """Refuse accounts of another number of sources: compiled code would read beyond their end."""
        if sources != self.n * self.rows:
            raise InputError(
                f"the accounts are over {sources} sources, and the terms ask for {self.n * self.rows}; start the "
                "accounts from the same terms"
            )

    def read(self, numbers: Floats) -> Floats:
        """Numbers (…, Z) by what is remembered as numbers by what is read; and back, since the noise is symmetric."""
        if self.rows == 1 or math.isinf(self.c):
            return numbers
        wide, out = numbers.reshape(*numbers.shape[:-1], self.rows, self.n), np.zeros(numbers.shape)
        for m, chances in enumerate(self.noise):  # one after another: the same bits on every machine
            out += (wide[..., m, None, :] * chances[:, None]).reshape(out.shape)
        return out

    def collapsed(self, numbers: Floats) -> Floats:
        """Numbers (…, Z) summed over what is remembered: (…, n)."""
        return np.add.reduce(numbers.reshape(*numbers.shape[:-1], self.rows, self.n), -2)


@dataclass(frozen=True, eq=False)
class AskedOfUsers:
    """What the W windows of one secret ask of the next releases of B users, as one observer sees them."""

    belief: Floats  # (B, Z)
    promised: Floats  # (B, W, P, Z) for every pair of values
    aimed: Floats  # the same, before they are made as loose as it takes
    binding: NDArray[np.bool_]  # (B, W): some source, released as it is, could break it
    weights: Floats  # (B, W, Z) of a secret that is true or not Pr(v, Z = z | y_<k) of its rarer answer
    low: Floats  # (B, W) the box of these weights
    high: Floats

    @classmethod
    def of_windows(
        cls, belief: Floats, masses: Floats, prior: Floats, epsilon: Floats | float, sides: str, error: float,
        aims: Floats | float = math.inf, most: float = 1.0,
    ) -> AskedOfUsers:  # fmt: skip
        """`masses` are Pr(v, Z = z | y_<k) (B, W, V, Z), `prior` those of the values (B, W, V), `epsilon` (W,) is what
        is promised, `aims` (B, W) what is aimed at where that is less, and `most` the share of what is left to the
        promise that is aimed at."""
        size, values = belief.shape[1], prior.shape[2]
        promise = np.zeros(prior.shape[:2]) + epsilon
        room = np.maximum(TIGHTER * promise, 4 * (error + slack(size)))
        first, second = pairs(values, sides)
        everywhere = bool(prior.all())
        lifts = masses / (prior if everywhere else np.where(prior > 0.0, prior, np.inf))[..., None]
        plus, minus = lifts[:, :, first], lifts[:, :, second]
        if not everywhere:  # a value of prior 0 cannot occur and bounds nothing
            bounded = ((prior[:, :, first] > 0.0) & (prior[:, :, second] > 0.0))[..., None]
            plus, minus = np.where(bounded, plus, 0.0), np.where(bounded, minus, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.add.reduce(masses, 3) / prior)
            now = logs[:, :, first] - logs[:, :, second]  # how far the odds of each pair moved so far
        now[~np.isfinite(now)] = 0.0
        left, ahead = (promise - room)[..., None] - now, (np.zeros(promise.shape) + aims)[..., None] - now
        factor = np.exp(now + np.maximum(0.0, np.maximum(LEAST * left, np.minimum(most * left, ahead))))
        aimed = plus - factor[..., None] * minus  # (B, W, pairs, Z)
        binding = np.asarray((aimed > 0.0).any((2, 3)))
        minus = np.exp(promise)[:, :, None, None] * minus
        promised = (plus - minus) + (2 * error + slack(size)) * (plus + minus)
        whole = np.add.reduce(belief, 1)
        common = prior[:, :, 1] > 0.5
        rare, other = np.where(common, prior[:, :, 0], prior[:, :, 1]), np.where(common, prior[:, :, 1], prior[:, :, 0])
        weights = np.where(common[..., None], masses[:, :, 0], masses[:, :, 1])
        up, down = factor[..., 0], factor[..., -1]  # of one side the same
        down, up = np.where(common, up, down), np.where(common, down, up)
        with np.errstate(invalid="ignore"):  # of several answers two may be impossible, but only of two there is a box
            low, high = rare / (rare + other * down), rare * up / (rare * up + other)
        if sides == "up":
            low, high = np.where(common, low, 0.0), np.where(common, 1.0, high)
        mean = np.add.reduce(weights, 2) / whole[:, None]
        return cls(belief, promised, aimed, binding, weights, np.minimum(low, mean), np.maximum(high, mean))

    @classmethod
    def of(cls, one: SecretTracker, dial: Dial) -> AskedOfUsers:
        """Of the live windows of a secret; by symbol alone where the dial has one row a symbol."""
        plan, belief = one.ahead, one.belief
        if plan.family:  # whose end is unknown
            windows, epsilon = cover(plan).at(one.step)
            masses, aims = one.family_masses(windows), np.array(plan.aim)
            prior = np.broadcast_to(plan.family_priors[windows - 1], masses.shape[:3])
        else:
            masses, prior, epsilon, aims = one.masses, one.records.prior, np.array(plan.aim), schedule(one)
        if dial.rows < one.rows:
            wide = Dial(dial.n, one.rows)
            belief, masses = wide.collapsed(belief), wide.collapsed(masses)
        most = HALF if plan.family else 1.0
        return cls.of_windows(belief, masses, prior, epsilon, plan.secret.sides, one.error, aims, most)

    def of_those_bound(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Weights, boxes and promises of the windows that are asked of anyone; a window that is not asked of a user
        asks for nothing of them, whoever else is there."""
        there = self.binding.any(0)
        asks = self.binding[:, there]
        weights, promised = np.where(asks[..., None], self.weights[:, there], 0.0), self.promised[:, there]
        low, high = np.where(asks, self.low[:, there], 0.0), np.where(asks, self.high[:, there], 1.0)
        promised = np.where(asks[..., None, None], promised, 0.0)
        return weights, low, high, promised.reshape(len(asks), -1, weights.shape[2])

    def one(self, user: int) -> Bounds:
        """What is asked of the next release of one user."""
        chosen = np.flatnonzero(self.binding[user])
        promised, aimed, weights, low, high = (
            part[user, chosen] for part in (self.promised, self.aimed, self.weights, self.low, self.high)
        )
        boxes, belief = (weights, low, high) if promised.shape[1] <= 2 else None, self.belief[user]  # true or not
        over = np.maximum(np.add.reduce(aimed, 2), 0.0)  # as loose as it takes for saying nothing to be allowed
        aimed = aimed - over[..., None] * (belief / np.add.reduce(belief))
        promised, aimed = (part.reshape(-1, belief.size) for part in (promised, aimed))
        return Bounds(belief, promised, aimed, belief > 0.0, boxes)


@dataclass(frozen=True, eq=False)
class Bounds:
    """Rows (I, Z) with Σ_z row(z) Q(y|z) ≤ 0 for every label y, under a belief (Z,).

    Each number of the promised rows is raised by as much as it may be off. `possible` are the sources that no observer
    rules out; the others are never disclosed. Where all rows come from secrets that are true or not, under the stream's
    own model, `boxes` are m(z) = Pr(v, Z = z | y_<k) (W, Z) of the rarer answer v in their windows, and the least and
    the largest weight Σ_z m(z) Q(y|z) / p(y) of a label, [low, high] (W,).
    """

    belief: Floats
    promised: Floats
    aimed: Floats
    possible: NDArray[np.bool_]
    boxes: tuple[Floats, Floats, Floats] | None = None

    @classmethod
    def of(cls, users: TrackedUsers, dial: Dial | None = None) -> Bounds:
        """Of all live windows of all secrets of one user, as every observer sees them."""
        asks = dial or Dial(users.n)
        own, *others = ([AskedOfUsers.of(one, asks).one(0) for one in row] for row in users.rows)
        return cls.joined(own, [each for row in others for each in row])

    def by(self, change: Callable[[Floats], Floats]) -> Bounds:
        """The same for the program, with rows by symbol alone (`Dial.collapsed`), or by what is read of the memory
        (`Dial.read`)."""
        possible = change(self.possible.astype(np.float64)) > 0.0
        return Bounds(change(self.belief), change(self.promised), change(self.aimed), possible)

    @classmethod
    def joined(cls, own: Sequence[Bounds], others: Sequence[Bounds] = ()) -> Bounds:
        """Of these bounds under the stream's own model, and of those of other observers.

        >>> belief, prior = np.array([0.5, 0.5]), np.array([[[0.405, 0.595]]])
        >>> masses = belief * np.array([[[[0.81, 0.0], [0.19, 1.0]]]])
        >>> asked = AskedOfUsers.of_windows(belief[None], masses, prior, 0.5, "both", 0.0)
        >>> bounds = Bounds.joined([asked.one(0)])
        >>> bounds.promised.shape, [round(float(edge[0]), 5) for edge in bounds.boxes[1:]]
        ((2, 2), [0.29221, 0.5288])
        """
        if len(own) == 1 and not others:
            return own[0]
        parts = [*own, *others]
        promised, aimed = (
            np.concatenate([each.promised for each in parts]),
            np.concatenate([each.aimed for each in parts]),
        )
        possible = np.logical_and.reduce([each.possible for each in parts])
        boxes = [each.boxes for each in own if each.boxes is not None]
        made = cls(own[0].belief, promised, aimed, possible)
        if any(len(each.aimed) for each in others) or any(each.boxes is None and len(each.aimed) for each in own):
            return made
        weights, low, high = map(np.concatenate, zip(*boxes, strict=True))
        return replace(made, boxes=(weights, low, high))

    def free(self) -> NDArray[np.bool_]:
        """Sources that may be released as they are: alone on their label they keep every bound."""
        return np.asarray((self.aimed <= 0.0).all(0))

    def distinguished(self) -> Bounds:
        """The same over the sources that are released at all; the others draw from the marginal of these.

        A source that is released by that draw adds the same to every label, in proportion to the label's probability,
        so that its rows may be shared out over the others by their belief.
        """
        if np.minimum.reduce(self.belief) >= UNLIKELY and self.possible.all():
            return self
        taken = self.possible & (self.free() | (self.belief >= UNLIKELY))
        if not taken.any():
            taken = self.belief == self.belief.max()
        belief = np.where(taken, self.belief, 0.0)
        rest = self.aimed[:, ~taken].sum(1)
        belief, aimed = belief / belief.sum(), self.aimed
        if self.belief[~taken].any():
            aimed = np.where(taken, self.aimed + np.multiply.outer(rest, belief), 0.0)
        return Bounds(belief, self.promised, aimed, taken)


@dataclass(frozen=True, eq=False)
class _ByKind:
    """A table, in floats or in integers, by the kinds of sources."""

    n: int  # symbols
    outputs: Ints  # (K,) codes, WITHHELD among them where that is allowed
    kinds: Ints  # (Z,) of each source
    disclosed: NDArray[Any]  # (R,) with what weight a source of this kind is released as it is
    shared: Ints  # (J,) places in `outputs` of the labels that sources share
    spread: NDArray[Any]  # (R, J)

    @cached_property
    def own(self) -> tuple[Ints, Ints, NDArray[Any]]:
        """Places of the labels that are symbols, these symbols (L,), and the weights with which the sources of each are
        released as they are (M, L)."""
        places = (self.outputs != WITHHELD).nonzero()[0]
        codes = self.outputs[places]
        return places, codes, self.disclosed[self.kinds].reshape(-1, self.n)[:, codes]

    def full(self) -> NDArray[Any]:
        """All weights, (Z, K), written out."""
        if self.kinds.size * self.outputs.size > WRITABLE:
            raise InputError(
                f"a table of {self.kinds.size} × {self.outputs.size} weights is too large to write out; "
                "release without looking at it"
            )
        table = np.zeros((self.kinds.size, self.outputs.size), self.spread.dtype)
        table[:, self.shared] = self.spread[self.kinds]
        places, codes, disclosed = self.own
        for m, weights in enumerate(disclosed):
            table[m * self.n + codes, places] += weights
        return table


@dataclass(frozen=True, eq=False)
class Draft(_ByKind):
    """A table in floats, and what no table can go below."""

    least: float = -np.inf

    @classmethod
    def of_rows(cls, n: int, outputs: Ints, kinds: Ints, table: Floats, least: float = -np.inf) -> Draft:
        """A table that is written out, a row for each kind."""
        return cls(n, outputs, kinds, np.zeros(len(table)), np.arange(outputs.size), table, least)

    @classmethod
    def constant(cls, n: int, sources: int, outputs: Ints, distribution: Floats) -> Draft:
        """The same distribution of labels whatever the truth is."""
        return cls.of_rows(n, outputs, np.zeros(sources, np.int64), distribution[None])

    def distribution(self, belief: Floats) -> Floats:
        """The distribution of labels that it is mixed with where it fails: the marginal, or nothing where that is
        among the labels, since what may be withheld is never released wrong."""
        if (self.outputs == WITHHELD).any():
            return (self.outputs == WITHHELD).astype(np.float64)
        distribution = np.zeros(self.outputs.size)
        by_kind = np.bincount(self.kinds, belief, self.disclosed.size)
        distribution[self.shared] = (by_kind[:, None] * self.spread).sum(0)  # no BLAS: the same bits on every machine
        places, codes, disclosed = self.own
        distribution[places] += (belief.reshape(-1, self.n)[:, codes] * disclosed).sum(0)
        return np.asarray(distribution / distribution.sum())

    def mixed(self, share: float, distribution: Floats) -> Draft:
        """The table mixed with one distribution for all."""
        spread = np.zeros((self.disclosed.size, self.outputs.size))
        spread[:, self.shared] = (1.0 - share) * self.spread
        made = Draft.of_rows(self.n, self.outputs, self.kinds, spread + share * distribution, self.least)
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
        # both may be rounded up to floats that are more than one together: what is too much is not disclosed
        disclosed = np.maximum(np.minimum(disclosed, DENOMINATOR - np.add.reduce(spread, 1)), 0)
        left = DENOMINATOR - disclosed - np.add.reduce(spread, 1)
        moved = (draft.disclosed < 1.0).nonzero()[0]
        if moved.size:
            spread[moved, spread[moved].argmax(1)] += left[moved]
        return cls(draft.n, draft.outputs, draft.kinds, disclosed, draft.shared, spread, belief, costs, draft.least)

    def pick(self, source: int, uniform: int) -> int:
        """Place in `outputs` that a draw, an integer in [0, 2**62), picks for a source."""
        kind = int(self.kinds[source])
        disclosed = int(self.disclosed[kind])
        if uniform < disclosed:
            return int(np.flatnonzero(self.outputs == source % self.n)[0])
        return int(self.shared[np.cumsum(self.spread[kind]).searchsorted(uniform - disclosed, side="right")])

    def column(self, index: int) -> Ints:
        """Weights (Z,) that each source puts on an output."""
        place = np.flatnonzero(self.shared == index)
        column = self.spread[:, place[0]][self.kinds] if place.size else np.zeros(self.kinds.size, np.int64)
        code = int(self.outputs[index])
        if code != WITHHELD:
            column[code :: self.n] += self.disclosed[self.kinds[code :: self.n]]
        return column

    def kernels(self) -> Kernels:
        """The same as a stack of one kernel, written out: a row for each source."""
        outputs = self.outputs[None]
        return Kernels(self.kinds.size, outputs, np.zeros_like(outputs), self.full()[None])

    def by_symbol(self) -> Kernels:
        """The kernel as those see it who know the releases so far: the rows of a symbol averaged by their belief."""
        rows = self.kinds.size // self.n
        if rows == 1:
            return self.kernels()
        belief = self.belief.reshape(rows, self.n, 1)
        whole = belief.sum(0)
        shares = np.where(whole > 0, belief / np.where(whole > 0, whole, 1.0), 1.0 / rows)
        table = (shares * self.full().reshape(rows, self.n, -1)).sum(0) / ONE
        outputs = self.outputs[None]
        return Kernels(self.n, outputs, np.zeros_like(outputs), to_weights(table[None]))

    @cached_property
    def error(self) -> float:
        """The expected cost under the belief; a release that says nothing costs 1."""
        codes = self.outputs[self.shared]
        said = codes != WITHHELD
        spread = self.spread[:, said] / ONE
        cost = (self.spread[:, ~said].sum(1) / ONE)[self.kinds]
        symbols = np.tile(np.arange(self.n), self.kinds.size // self.n)
        if self.costs.is_hamming:
            right = np.zeros(self.kinds.size)
            for place, code in enumerate(codes[said].tolist()):
                right[code :: self.n] = spread[self.kinds[code :: self.n], place]
            return float(self.belief @ (np.maximum(0.0, spread.sum(1)[self.kinds] - right) + cost))
        z = np.flatnonzero(self.belief)
        own = self.costs.between(symbols[z], symbols[z]) * self.disclosed[self.kinds[z]] / ONE
        moved = self.costs.between(symbols[z, None], codes[said][None, :]) * spread[self.kinds[z]]
        return float(self.belief[z] @ (cost[z] + own + moved.sum(1)))

    def keeps(self, bounds: Bounds) -> bool:
        """Whether every label keeps to every bound, from the integers, rounded outward."""
        if self.disclosed.size == 1 and not self.disclosed[0]:
            return True  # the same whatever the truth is: nothing moves
        rows = bounds.promised
        if not len(rows):
            return True
        places, codes, disclosed = self.own
        sums, count = np.zeros((len(rows), self.outputs.size)), self.disclosed.size
        sums[:, places] = (rows.reshape(len(rows), -1, self.n)[:, :, codes] * disclosed).sum(1)
        bins = self.kinds + count * np.arange(len(rows))[:, None]
        by_kind = np.bincount(bins.ravel(), rows.ravel(), len(rows) * count).reshape(-1, count)
        sums[:, self.shared] += by_kind @ self.spread.astype(np.float64)
        return bool(np.maximum.reduce(sums, None) <= 0.0)

    def dials(self, dial: Dial) -> bool:
        """Whether the rows of every symbol differ by at most e^c, from the integers."""
        if math.isinf(dial.ratio):
            return True
        rows = self.full().reshape(dial.rows, dial.n, -1).astype(np.float64)
        return bool((rows.max(0) <= dial.ratio * rows.min(0)).all())

    def within(self, epsilon: float) -> bool:
        """Whether every lift over the whole alphabet is within ε, and the table 2ε-LDP."""
        made = self.kernels()
        return bool(made.leakage(self.belief[None], True)[0] <= epsilon and made.ldp()[0] <= 2 * epsilon)
