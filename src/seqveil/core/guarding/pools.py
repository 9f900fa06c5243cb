"""The least error for one secret and wrong symbols, in closed form.

Given the belief β(x), the secret's weights σ(x) = Pr(E | x, past releases) and a box [lo, hi] around Pr(E | past), find
the kernel Q of least error Σ β(x) (1 - Q(x|x)) such that Pr(E | y, past) lies in the box for every label y:

    lo · p(y) ≤ Σ_x β(x) σ(x) Q(y|x) ≤ hi · p(y).

*Theorem.* Call a symbol high where σ > hi, low where σ < lo, and free otherwise. Let r(x) be the mass of x that is not
told as it is; of a free symbol, a(x) of it covers high labels and b(x) covers low ones. The least error is the least
total of these masses subject to

    (1)  Σ_high r(x)(σ(x)-hi) + Σ_low r(x)(hi-σ(x)) + Σ_free a(x)(hi-σ(x))  ≥  Σ_high β(x)(σ(x)-hi)
    (2)  Σ_low r(x)(lo-σ(x)) + Σ_high r(x)(σ(x)-lo) + Σ_free b(x)(σ(x)-lo)  ≥  Σ_low β(x)(lo-σ(x)),

with 0 ≤ r ≤ β and a + b ≤ β.

*Necessary.* Add the upper bounds of all high labels. What is told there exceeds hi by Σ_high (β-r)(σ-hi). Only mass
from elsewhere with σ < hi makes up for it, each unit hi-σ of it, and untold mass is all there is: low symbols and a(x)
of free ones (untold high mass only adds to the excess). That is (1); the lower bounds of the low labels give (2).

*Sufficient.* Put the cover of (1) on high labels, that of (2) on low labels. Then high labels have mean at most hi and
low labels at least lo. If high labels got so much that they fall below lo, take some of it back and put it on free
labels, or on low ones: their mean then rises or falls towards that of everything, which lies in the box. A group's
cover is shared out so that all its labels have the mean of the group.

*Closed form.* In (1) and (2) the gain of a high symbol grows with σ, that of a low one with -σ, and free symbols come
after them in the same orders: so some mass u off the top and v off the bottom is moved, in the order of σ. Both sides
of (1) and (2) are then concave, piecewise linear functions of u plus one of v, and the least u + v lies at a corner of
one of them or where both are tight: a sort and a few interpolations, O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqveil.core.kernel import Floats, Ints

NEVER = 1e-12  # relative excess of a need over all there is that is rounding, not a need
HIGH, FREE, LOW = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Pooled:
    """Masses β(x) Q(y|x) by groups of labels: told(x) of x is told as it is, moved(g, x) of it goes to group g.

    What goes to a group is spread over its labels by share(g, y), which sums to one over each group in use.
    """

    told: Floats  # (n,)
    moved: Floats  # (3, n)
    share: Floats  # (3, n)

    @property
    def error(self) -> float:
        """Probability of a wrong symbol; a symbol that comes back to its own label is not wrong."""
        return float((self.moved * (1.0 - self.share)).sum())

    def joint(self) -> Any:
        """β(x) Q(y|x) as a sparse table (n, n): most symbols go nowhere but to their own label."""
        from scipy import sparse

        return sparse.diags_array(self.told).tocsr() + sparse.csr_array(self.moved.T) @ sparse.csr_array(self.share)


def pooled(belief: Floats, weights: Floats, lo: float, hi: float) -> Pooled:
    """The kernel of least error for one secret.

    >>> made = pooled(np.array([0.5, 0.5]), np.array([0.19, 1.0]), 0.360886, 0.754355)
    >>> round(made.error, 5), (made.joint().toarray() / 0.5).round(4).tolist()
    (0.26589, [[0.6391, 0.3609], [0.1709, 0.8291]])
    """
    top, bottom = _orders(weights, lo, hi)
    off_top, off_bottom = least_moved(belief, weights, lo, hi, top, bottom)
    from_top, from_bottom = _taken(belief, top, off_top), _taken(belief, bottom, off_bottom)
    over = np.maximum(from_top + from_bottom - belief, 0.0)  # rounding, where both ends meet
    from_bottom = from_bottom - over
    told = np.maximum(belief - from_top - from_bottom, 0.0)
    group = np.where(weights > hi, HIGH, np.where(weights < lo, LOW, FREE))
    moved = _placed(told, from_bottom, from_top, weights, group, (lo, hi))
    return Pooled(told, moved, _shares(told, moved, weights, group, (lo, hi)))


def least_moved(belief: Floats, weights: Floats, lo: float, hi: float, top: Ints, bottom: Ints) -> tuple[float, float]:
    """The masses u off the top and v off the bottom that are moved."""
    over, under = weights - hi, lo - weights
    need = float((belief * np.maximum(over, 0.0)).sum()), float((belief * np.maximum(under, 0.0)).sum())
    if need[0] <= 0.0 and need[1] <= 0.0:
        return 0.0, 0.0
    u, *up = _curves(belief, top, (np.maximum(over, 0.0), np.maximum(-under, 0.0)))
    v, *down = _curves(belief, bottom, (np.maximum(-over, 0.0), np.maximum(under, 0.0)))

    def rest(off: Floats, which: int) -> Floats:
        """The least v that meets one need once `off` is off the top."""
        return _reached(v, down[which], need[which] - np.interp(off, u, up[which]))

    corners = np.concatenate([u, *(_reached(u, up[k], need[k] - down[k]) for k in (0, 1))])
    off = np.unique(corners[np.isfinite(corners)])
    gap = _difference(rest(off, 0), rest(off, 1))
    turn = np.flatnonzero(gap[:-1] * gap[1:] < 0.0)  # both needs are met exactly between these corners
    part = gap[turn] / (gap[turn] - gap[turn + 1])
    off = np.concatenate([off, off[turn] + part * (off[turn + 1] - off[turn])])
    left = np.maximum(rest(off, 0), rest(off, 1))
    best = int((off + left).argmin())
    return float(off[best]), float(left[best])


def _orders(weights: Floats, lo: float, hi: float) -> tuple[Ints, Ints]:
    """Symbols that may cover low labels, the highest first, and those that may cover high labels, the lowest first."""
    order = np.argsort(weights, kind="stable")
    ranked = weights[order]
    return order[ranked > lo][::-1], order[ranked < hi]


def _curves(belief: Floats, order: Ints, gains: tuple[Floats, Floats]) -> tuple[Floats, Floats, Floats]:
    """Mass moved so far in this order, and what it gains for either need: corners of concave functions."""
    mass = belief[order]
    parts = (mass, mass * gains[0][order], mass * gains[1][order])
    return tuple(np.concatenate([[0.0], np.cumsum(part)]) for part in parts)  # type: ignore[return-value]


def _reached(mass: Floats, gain: Floats, need: Floats) -> Floats:
    """The least mass whose gain meets each need; infinite where none does."""
    end = int(np.searchsorted(gain, gain[-1])) + 1  # from here on it gains nothing
    found = np.interp(need, gain[:end], mass[:end])
    return np.where(need <= 0.0, 0.0, np.where(need > gain[-1] * (1 + NEVER) + NEVER**1.25, np.inf, found))


def _difference(first: Floats, second: Floats) -> Floats:
    """first - second, 0 where either is infinite."""
    both = np.isfinite(first) & np.isfinite(second)
    return np.where(both, first, 0.0) - np.where(both, second, 0.0)


def _taken(belief: Floats, order: Ints, mass: float) -> Floats:
    """The first `mass` of the belief in this order, symbol by symbol."""
    taken = np.zeros_like(belief)
    held = belief[order]
    taken[order] = np.clip(mass - (np.cumsum(held) - held), 0.0, held)
    return taken


def _placed(
    told: Floats, from_bottom: Floats, from_top: Floats, weights: Floats, group: Ints, box: tuple[float, float]
) -> Floats:
    """Where the moved masses go, (3, n): to the labels they cover, and what would be too much to a third group."""
    lo, hi = box
    held = np.array([told[group == g].sum() for g in (HIGH, FREE, LOW)])
    up, down = _Part.of(told, weights, group == HIGH), _Part.of(told, weights, group == LOW)
    low, high = _Part.of(from_bottom, weights), _Part.of(from_top, weights)
    # shares of the two covers that go where they are needed: the most that leaves these labels inside the box
    phi, psi = _most(low.under(lo), up.over(lo), held[HIGH]), _most(high.over(hi), down.under(hi), held[LOW])
    least_phi = _least(up.over(hi), low.under(hi), held[HIGH])
    least_psi = _least(down.under(lo), high.over(lo), held[LOW])
    sinks = _sink(held, FREE, LOW, HIGH), _sink(held, FREE, HIGH, LOW)
    if sinks[0] == sinks[1]:
        sink = _Part.of(told, weights, group == sinks[0])
        excess = sink.over(hi) - (1 - phi) * low.under(hi) + (1 - psi) * high.over(hi)
        if excess > 0.0 and low.under(hi) > 0.0:
            phi = max(least_phi, phi - excess / low.under(hi))
        lack = sink.under(lo) + (1 - phi) * low.under(lo) - (1 - psi) * high.over(lo)
        if lack > 0.0 and high.over(lo) > 0.0:
            psi = max(least_psi, psi - lack / high.over(lo))
    moved = np.zeros((3, told.size))
    moved[HIGH] += phi * from_bottom
    moved[sinks[0]] += (1 - phi) * from_bottom
    moved[LOW] += psi * from_top
    moved[sinks[1]] += (1 - psi) * from_top
    return moved


@dataclass(frozen=True)
class _Part:
    """Some mass and the mass of E in it."""

    mass: float
    secret: float

    @classmethod
    def of(cls, masses: Floats, weights: Floats, where: Floats | bool = True) -> _Part:
        some = np.where(where, masses, 0.0)
        return cls(float(some.sum()), float((some * weights).sum()))

    def over(self, bound: float) -> float:
        return self.secret - bound * self.mass

    def under(self, bound: float) -> float:
        return bound * self.mass - self.secret


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


def _sink(held: Floats, *groups: int) -> int:
    """The first of these groups that has labels."""
    return next((g for g in groups if held[g] > 0.0), groups[0])


def _shares(told: Floats, moved: Floats, weights: Floats, group: Ints, box: tuple[float, float]) -> Floats:
    """How what goes to a group is spread over its labels, (3, n): each ends up inside the box."""
    share = np.zeros((3, told.size))
    for g in (HIGH, FREE, LOW):
        own, cover = np.where(group == g, told, 0.0), _Part.of(moved[g], weights)
        if cover.mass <= 0.0:
            continue
        middle, at = cover.secret / cover.mass, _Part.of(own, weights)
        mean = (at.secret + cover.secret) / (at.mass + cover.mass)
        if g == FREE:
            # towards the bound that the cover draws to, as far as each label may go
            bound = box[1] if middle > box[1] else box[0] if middle < box[0] else None
            room = own if bound is None else own * np.abs(weights - bound)
        else:
            room = own * np.abs(weights - mean)
        share[g] = room / room.sum() if room.sum() > 0.0 else own / at.mass
    return share
