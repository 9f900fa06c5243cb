"""The least error for one secret and wrong symbols, in closed form.

Given the belief β(x), the secret's weights σ(x) = Pr(E | x, past releases) and a box [lo, hi] around Pr(E | past), find
the kernel Q of least error Σ β(x) (1 - Q(x|x)) such that Pr(E | y, past) lies in the box for every label y:

    lo · p(y) ≤ Σ_x β(x) σ(x) Q(y|x) ≤ hi · p(y).

*Theorem.* Call a symbol high where σ > hi, low where σ < lo, and free otherwise. Let r(x) be the mass of x that is not
released as it is; of a free symbol, a(x) of it covers high labels and b(x) covers low ones. The least error is the
least total of these masses subject to

    (1)  Σ_high r(x)(σ(x)-hi) + Σ_low r(x)(hi-σ(x)) + Σ_free a(x)(hi-σ(x))  ≥  Σ_high β(x)(σ(x)-hi)
    (2)  Σ_low r(x)(lo-σ(x)) + Σ_high r(x)(σ(x)-lo) + Σ_free b(x)(σ(x)-lo)  ≥  Σ_low β(x)(lo-σ(x)),

with 0 ≤ r ≤ β and a + b ≤ β.

*Necessary.* Add the upper bounds of all high labels. What is disclosed there exceeds hi by Σ_high (β-r)(σ-hi). Only
mass from elsewhere with σ < hi makes up for it, each unit hi-σ of it, and untold mass is all there is: low symbols and
a(x) of free ones (untold high mass only adds to the excess). That is (1); the lower bounds of the low labels give (2).

*Sufficient.* Put the cover of (1) on high labels, that of (2) on low labels. Then high labels have mean at most hi and
low labels at least lo. If high labels got so much that they fall below lo, take some of it back and put it on free
labels, or on low ones: their mean then rises or falls towards that of everything, which lies in the box. A group's
cover is shared out so that all its labels have the mean of the group.

*Closed form.* In (1) and (2) the gain of a high symbol grows with σ, that of a low one with -σ, and free symbols come
after them in the same orders: so some mass u off the top and v off the bottom is moved, in the order of σ. What u and v
gain for each need are concave functions, so for each need the least v for a given u, and with it the total, is a convex
function of u. The total for one need alone is least where the symbols furthest from its bound are moved first, on
either side. Where that meets the other need too, it is the optimum. Where neither does, the larger of the two convex
functions is least between their own least points, and there the one rises while the other falls: both needs are met
exactly where they cross. A sort, two cumulative sums and a search, O(n log n).

*Form.* What is moved off the top goes to labels by one distribution, whichever symbol it comes from, and so does what
is moved off the bottom. At most two symbols are moved in part. So the table has a handful of different rows, besides
those of symbols that are released as they are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqveil.core.kernel import Floats

NEVER = 1e-12  # relative excess of a need over all there is that is rounding, not a need
NEGLIGIBLE = 1e-7  # mass below which nothing is left on a label that others are released as
HIGH, FREE, LOW = 2, 1, 0
_STEPS = 200  # of the search for where both needs are met; about ten are taken
_NEAR = 1e-13
_FEW = 500  # symbols up to which lists are quicker to search than arrays
_Gains = tuple[tuple[Sequence[float], Sequence[float]], tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True, eq=False)
class Pooled:
    """Masses β(x) Q(y|x): disclosed(x) of x is released as it is, the rest on labels of the end it comes off."""

    disclosed: Floats  # (n,)
    moved: Floats  # (2, n) off the bottom, off the top
    distributions: Floats  # (2, n) of the labels that either goes to; each sums to one where it is in use

    @property
    def error(self) -> float:
        """Probability of a wrong symbol; a symbol that comes back to its own label is not wrong."""
        return float((self.moved * (1.0 - self.distributions)).sum())

    def joint(self) -> Floats:
        """β(x) Q(y|x) written out: (n, n)."""
        return np.asarray(np.diag(self.disclosed) + self.moved.T @ self.distributions)


def pooled(belief: Floats, weights: Floats, lo: float, hi: float) -> Pooled:
    """The kernel of least error for one secret.

    >>> made = pooled(np.array([0.5, 0.5]), np.array([0.19, 1.0]), 0.360886, 0.754355)
    >>> round(made.error, 5), (made.joint() / 0.5).round(4).tolist()
    (0.26589, [[0.6391, 0.3609], [0.1709, 0.8291]])
    """
    order = np.argsort(weights, kind="stable")
    line = _PoolLine(belief[order], weights[order], lo, hi)
    disclosed, moved = line.apart(*line.least_moved())
    back = np.empty((5, order.size))
    back[:, order] = np.concatenate([disclosed[None], moved, line.distributions(disclosed, moved)])
    return Pooled(back[0], back[1:3], back[3:])


class _PoolLine:
    """The symbols in the order of their weights: low ones, free ones, high ones."""

    def __init__(self, belief: Floats, weights: Floats, lo: float, hi: float) -> None:
        self.belief, self.weights, self.lo, self.hi = belief, weights, lo, hi
        self.first, self.last = int(weights.searchsorted(lo, "left")), int(weights.searchsorted(hi, "right"))
        self.secret = belief * weights
        self.over, self.under = self.secret - hi * belief, lo * belief - self.secret

    def least_moved(self) -> tuple[float, float]:
        """The masses v off the bottom and u off the top that are moved."""
        need = _sum(self.over[self.last :]), _sum(self.under[: self.first])
        if need[0] <= 0.0 and need[1] <= 0.0:
            return 0.0, 0.0
        alone = []
        for which in (0, 1):
            if need[which] > 0.0:
                v, u, other = self._for_one(which, need[which])
                if other >= need[1 - which]:
                    return v, u
                alone.append(u)
        up, down = self._from_top(), self._from_bottom()

        def rest(off: float, which: int) -> float:
            """The least v that meets one need once `off` is off the top."""
            return _reached(*down[which], need[which] - _at(off, *up[which]))

        u = _crossing(lambda off: (rest(off, 0), rest(off, 1)), *alone)
        return max(rest(u, 0), rest(u, 1)), u

    def _for_one(self, which: int, need: float) -> tuple[float, float, float]:
        """v and u of the least v + u that meets one need alone, and what they gain for the other need.

        What is furthest from the bound is moved first, on either side.
        """
        bound, own, others = (self.lo, self.under, self.over) if which else (self.hi, self.over, self.under)
        order = (-np.abs(self.weights - bound)).argsort(kind="stable")
        gains = np.abs(own)[order]
        reached = np.cumsum(gains)
        whole = min(int(reached.searchsorted(need)), order.size - 1)
        before = float(reached[whole - 1]) if whole else 0.0
        gain = float(gains[whole])
        taken = order[: whole + 1]
        masses, other = self.belief[taken], others[taken]
        part = min(1.0, max(0.0, need - before) / gain) if gain > 0.0 else 1.0
        masses[whole] *= part
        off_top = self.weights[taken] > bound
        other = np.where(off_top != bool(which), -other, np.maximum(other, 0.0))
        other[whole] *= part
        return _sum(masses[~off_top]), _sum(masses[off_top]), _sum(other)

    def _from_top(self) -> _Gains:
        """Mass off the top, and what it gains for either need: corners of concave functions."""
        begin = int(self.weights.searchsorted(self.lo, "right"))
        mass, first, second = (
            _running(part[begin:][::-1]) for part in (self.belief, np.maximum(self.over, 0.0), -self.under)
        )
        return (mass, first), (mass, second)

    def _from_bottom(self) -> _Gains:
        end = int(self.weights.searchsorted(self.hi, "left"))
        mass, first, second = (_running(part[:end]) for part in (self.belief, -self.over, np.maximum(self.under, 0.0)))
        return (mass, first), (mass, second)

    def apart(self, off_bottom: float, off_top: float) -> tuple[Floats, Floats]:
        """Masses released as they are (n,), and moved off the bottom and off the top (2, n)."""
        moved = np.zeros((2, self.belief.size))
        up, down = self.belief[::-1], moved[1, ::-1]
        if off_top > 0.0:
            _take(up, off_top, down, int(self.weights.size - self.weights.searchsorted(self.lo, "right")))
        if off_bottom > 0.0:
            left = self.belief - moved[1]  # where both ends meet
            _take(left, off_bottom, moved[0], int(self.weights.searchsorted(self.hi, "left")))
        disclosed = self.belief - moved[0] - moved[1]
        disclosed[disclosed < 0.0] = 0.0
        return disclosed, moved

    def distributions(self, disclosed: Floats, moved: Floats) -> Floats:
        """The distributions of labels, (2, n), by which what is off the bottom and off the top is spread."""
        distributions = np.zeros((2, disclosed.size))
        low, high = (_Part(_sum(part), _sum(part * self.weights)) for part in moved)
        if low.mass + high.mass <= 0.0:
            return distributions
        groups = slice(0, self.first), slice(self.first, self.last), slice(self.last, None)
        both = np.stack([disclosed, disclosed * self.weights])
        if 0 < self.first < self.last < disclosed.size:
            held = [_Part(*sums) for sums in np.add.reduceat(both, [0, self.first, self.last], axis=1).T.tolist()]
        else:  # a group is empty
            held = [_Part(_sum(both[0, group]), _sum(both[1, group])) for group in groups]
        gets = self._placed(held, low, high)
        for g, group in enumerate(groups):
            one, two = gets[0].get(g, 0.0), gets[1].get(g, 0.0)
            cover = _Part(one * low.mass + two * high.mass, one * low.secret + two * high.secret)
            if cover.mass > 0.0 and held[g].mass > 0.0:
                spread = self._shares(disclosed[group], self.weights[group], g, held[g], cover)
                distributions[0, group], distributions[1, group] = one * spread, two * spread
        return distributions

    def _placed(self, held: list[_Part], low: _Part, high: _Part) -> tuple[dict[int, float], dict[int, float]]:
        """What shares of the masses off the bottom and off the top go to which group: where they are needed, as much
        as leaves these labels inside the box, and what would be too much to a third group."""
        lo, hi = self.lo, self.hi
        up, down = held[HIGH], held[LOW]
        phi, psi = _most(low.under(lo), up.over(lo), up.mass), _most(high.over(hi), down.under(hi), down.mass)
        least_phi = _least(up.over(hi), low.under(hi), up.mass)
        least_psi = _least(down.under(lo), high.over(lo), down.mass)
        sinks = _sink(held, FREE, LOW, HIGH), _sink(held, FREE, HIGH, LOW)
        if sinks[0] == sinks[1]:
            sink = held[sinks[0]]
            excess = sink.over(hi) - (1 - phi) * low.under(hi) + (1 - psi) * high.over(hi)
            if excess > 0.0 and low.under(hi) > 0.0:
                phi = max(least_phi, phi - excess / low.under(hi))
            lack = sink.under(lo) + (1 - phi) * low.under(lo) - (1 - psi) * high.over(lo)
            if lack > 0.0 and high.over(lo) > 0.0:
                psi = max(least_psi, psi - lack / high.over(lo))
        return _two(HIGH, phi, sinks[0]), _two(LOW, psi, sinks[1])

    def _shares(self, own: Floats, weights: Floats, group: int, held: _Part, cover: _Part) -> Floats:
        """How what goes to a group is spread over its labels: each ends up inside the box."""
        if group == FREE:
            # towards the bound that the cover draws to, as far as each label may go
            middle = cover.secret / cover.mass
            bound = self.hi if middle > self.hi else self.lo if middle < self.lo else None
            room = own if bound is None else own * np.abs(weights - bound)
            large = np.where(own >= NEGLIGIBLE, room, 0.0)
            room = large if large.any() else room
        else:
            mean = (held.secret + cover.secret) / (held.mass + cover.mass)
            room = own * np.abs(weights - mean)
        total = _sum(room)
        return np.asarray(room / total if total > 0.0 else own / held.mass)


class _Part(NamedTuple):
    """Some mass and the mass of E in it."""

    mass: float
    secret: float

    def over(self, bound: float) -> float:
        return self.secret - bound * self.mass

    def under(self, bound: float) -> float:
        return bound * self.mass - self.secret


def _sum(numbers: Floats) -> float:
    """Their sum; the method of arrays takes twice as long for a few of them."""
    return float(np.add.reduce(numbers))


def _take(masses: Floats, total: float, taken: Floats, end: int) -> None:
    """Fill `taken` with the first `total` of the masses, from the first `end` of them alone.

    A little that would be left of the last one is taken too: it would be a label that rounding may spoil.
    """
    running = np.cumsum(masses[:end])
    whole = int(running.searchsorted(total))
    taken[:whole] = masses[:whole]
    if whole < end:
        part = total - float(running[whole - 1]) if whole else total
        left = float(masses[whole]) - part
        taken[whole] = masses[whole] if left < NEGLIGIBLE else part


def _running(parts: Floats) -> Sequence[float]:
    """0 and all partial sums."""
    sums = np.zeros(parts.size + 1)
    np.cumsum(parts, out=sums[1:])
    return sums.tolist() if sums.size <= _FEW else sums  # type: ignore[return-value]


def _at(place: float, along: Sequence[float], values: Sequence[float]) -> float:
    """A piecewise linear function given by its corners; flat beyond them."""
    k = bisect_left(along, place)
    if k == 0 or k >= len(along):
        return float(values[0 if k == 0 else -1])
    part = (place - along[k - 1]) / (along[k] - along[k - 1])
    return float(values[k - 1] + part * (values[k] - values[k - 1]))


def _reached(mass: Sequence[float], gain: Sequence[float], need: float) -> float:
    """The least mass whose gain meets a need; infinite where none does."""
    if need <= 0.0:
        return 0.0
    if need > gain[-1] * (1 + NEVER) + NEVER**1.25:
        return math.inf
    return _at(min(need, gain[-1]), gain, mass)


def _crossing(both: Callable[[float], tuple[float, float]], one: float, two: float) -> float:
    """Where two functions of u are equal: at `one` the second is the larger, at `two` the first.

    They are straight but for a few corners, so the chord finds it soon; an end that stays twice is given half its
    weight, so that the other end moves too.
    """
    left, right = _difference(*both(one)), _difference(*both(two))
    moved = 0  # which end moved last
    for _ in range(_STEPS):
        if abs(two - one) <= _NEAR * (abs(one) + abs(two)):
            break
        chord = math.isfinite(left) and math.isfinite(right) and right > left
        middle = one - left * (two - one) / (right - left) if chord else 0.5 * (one + two)
        gap = _difference(*both(middle))
        if abs(gap) <= _NEAR * middle:
            return middle
        if gap < 0.0:
            one, left, right = middle, gap, right if moved >= 0 else 0.5 * right
        else:
            two, right, left = middle, gap, left if moved <= 0 else 0.5 * left
        moved = -1 if gap < 0.0 else 1
    return one if max(both(one)) < math.inf else two


def _difference(first: float, second: float) -> float:
    """first - second; 0 where both are infinite."""
    return 0.0 if first == second else first - second


def _most(harm: float, room: float, held: float) -> float:
    """The largest share of a cover that its labels can take, each whole of it doing so much harm."""
    if held <= 0.0:
        return 0.0
    return 1.0 if harm <= room else max(0.0, room / harm)


def _least(need: float, help: float, held: float) -> float:
    """The least share of a cover that its labels need."""
    if held <= 0.0 or need <= 0.0:
        return 0.0
    return 1.0 if need >= help else need / help


def _sink(held: list[_Part], *groups: int) -> int:
    """The first of these groups that has labels."""
    return next((g for g in groups if held[g].mass > 0.0), groups[0])


def _two(group: int, share: float, sink: int) -> dict[int, float]:
    """A share to a group and the rest to another, which may be the same."""
    return {group: 1.0} if group == sink else {group: share, sink: 1.0 - share}
