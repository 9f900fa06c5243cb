"""How sure a guess about people can be, when a person gives several windows: people are the units, windows are not.

A guess is a set R of releases, fixed before these people are looked at. Each window of each person has a label (the
secret is true of it, or not), a number k (its place in the stream) and lies in R or not. Windows of one number are
compared with one another: with n1 of them that have the label and n0 that do not, each counts n1·n0/(n1+n0) / n1, or
/ n0 (Mantel and Haenszel). Where Pr(R | E_k) ≤ e^ε Pr(R | not E_k) for every k, the weighted shares keep to e^ε too.

Each share is as sure as n* = p(1-p) / variance independent people would make it, the variance taken over people (Korn
and Graubard), with Student's t in place of the normal. The bound on the log of the ratio is then the one that
docs/contexts.md, "How it is decided", gives. A few people may be in R with all of their windows, and none of them among
those who were looked at: so one more person counts who is, in high(p0) and in n*. With one window a person n* is the
number of people and nobody is added: that false-alarm rate is enumerated in the tests, that of dependent windows
simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, betaincinv, ndtri, stdtrit

from seqveil.core.kernel import Floats, Ints
from seqveil.core.secrets.declared import Sides

Flags = NDArray[np.bool_]

FEW = 5.0  # people in R below which a correlation that narrows the bound is rather not believed
USUAL = 0.05  # the false-alarm rate at which Student's t is compared with the normal
SUREST = 0.1  # the share of people in the set by which a noticeable leak is measured
NOTICED = 0.8  # how likely such a leak is noticed
LARGEST_LEAK = 25.0
MORE = np.geomspace(1, 1e6, 300)  # times as many people as there are; with still more nobody will ever decide


@dataclass(frozen=True)
class Ratio:
    """How much likelier a set is where the label is true: shares, people that each is worth, and their correlation."""

    true: float
    false: float
    worth_true: float
    worth_false: float
    correlation: float = 0.0
    unseen: float = 0.0  # the weight of a person without the label who was not among them and is in the set

    @property
    def estimate(self) -> float:
        """log(p1/p0); where nobody without the label was in the set, half a person counts; -inf where nobody was."""
        return math.log(self.true / self._least) if self.true > 0 else -math.inf

    @property
    def _least(self) -> float:
        return max(self.false, 0.5 / self.worth_false)

    def low(self, false_alarm: float) -> float:
        """A lower bound on log(Pr(R | true) / Pr(R | false)), wrong with a probability of at most `false_alarm`.

        >>> round(Ratio(0.9, 0.1, 100, 100).low(0.05), 3)
        1.699
        """
        if self.true <= 0:
            return -math.inf
        down = math.log(self.true / share_low(self.true * self.worth_true, self.worth_true, false_alarm))
        outside = (1 - self.false) / (1 + self.unseen)
        high = 1 - share_low(outside * self.worth_false, self.worth_false, false_alarm)
        up = math.log(high / self._least)
        return self.estimate - math.sqrt(max(down**2 + up**2 - 2 * self.correlation * down * up, 0.0))


def share_low(count: float, of: float, wrong: float) -> float:
    """Clopper and Pearson's lower bound on a share, wrong with a probability of at most `wrong`."""
    return float(betaincinv(count, of - count + 1, wrong)) if count > 0 else 0.0


@dataclass(frozen=True, eq=False)
class AttackSample:
    """Windows of people: whose each is, its number in the stream, and whether the label is true of it."""

    owners: Ints
    numbers: Ints
    truth: Flags

    @cached_property
    def _people(self) -> tuple[Ints, int]:
        names, ids = np.unique(self.owners, return_inverse=True)
        return ids, len(names)

    @cached_property
    def weights(self) -> tuple[Floats, Floats]:
        """What each window counts among those with the label and those without; each sums to 1."""
        _, number = np.unique(self.numbers, return_inverse=True)
        true, false = np.bincount(number, self.truth), np.bincount(number, ~self.truth)
        both = true * false / (true + false)
        parts = []
        for kind, own in ((true, self.truth), (false, ~self.truth)):
            part = (both / np.maximum(kind, 1))[number] * own
            parts.append(part / max(part.sum(), 1e-300))
        return parts[0], parts[1]

    def at(self, chosen: Flags) -> AttackSample:
        """Some of the windows."""
        return AttackSample(self.owners[chosen], self.numbers[chosen], self.truth[chosen])

    def people_with(self) -> tuple[int, int]:
        """How many people have a window with the label, and how many one without."""
        ids, _ = self._people
        return len(np.unique(ids[self.truth])), len(np.unique(ids[~self.truth]))

    def ratio(self, inside: Flags, up: bool = True) -> Ratio:
        """How much likelier the set is where the label is true; with `up` false, where it is not."""
        weights = self.weights if up else self.weights[::-1]
        ids, people = self._people
        shares = [float(own @ inside) for own in weights]
        apart = [np.bincount(ids, own * (inside - share), people) for own, share in zip(weights, shares, strict=True)]
        hits = int(np.unique(ids[inside & (weights[0] + weights[1] > 0)]).size)
        norms = [float(own @ own) for own in apart]
        together = float(apart[0] @ apart[1]) / math.sqrt(norms[0] * norms[1]) if min(norms) > 0 else 0.0
        together *= hits / (hits + FEW) if together > 0 else 1.0
        alone, whole = self._spreads(weights[1])
        unseen = whole - alone if whole > alone else 0.0  # Clopper and Pearson count one more window already
        true = self._worth(weights[0], shares[0], norms[0], inside, 0.0)
        false = self._worth(weights[1], shares[1], norms[1], inside, unseen)
        return Ratio(shares[0], shares[1], true, false, together, unseen)

    def _spreads(self, weights: Floats) -> tuple[float, float]:
        """The variance of a share, but for a factor, if windows were independent, and if those of a person were one.

        With one window a person they are the same.
        """
        ids, people = self._people
        alone, whole = float(weights @ weights), float((np.bincount(ids, weights, people) ** 2).sum())
        return alone, whole if whole > alone * (1 + 1e-9) else alone

    def _worth(self, weights: Floats, share: float, spread: float, inside: Flags, unseen: float) -> float:
        """How many independent people would make a share as sure as these windows do."""
        alone, whole = self._spreads(weights)
        if whole == alone:
            return 1 / alone if alone else 1.0  # nothing to compare with says as little as one person
        ids, _ = self._people
        count, hits = (int(np.unique(ids[rows]).size) for rows in (weights > 0, inside & (weights > 0)))
        share = (share + unseen) / (1 + unseen)
        spread = (spread + (unseen * (1 - share)) ** 2) / (1 + unseen) ** 2
        found = spread * count / max(count - 1, 1) / (share * (1 - share)) if 0 < share < 1 else whole
        mixed = max((hits * found + max(whole, found)) / (hits + 1), alone)
        student = stdtrit(max(1 / whole - 1, 1), 1 - USUAL) / ndtri(1 - USUAL)
        return float(1 / (mixed * student**2))


def noticeable(of: Ratio, epsilon: float, sides: Sides, false_alarm: float) -> float | None:
    """The smallest leak that these people would have shown to be above ε, in four of five attacks; None for any size.

    A leak is a set that is e^leak times likelier for one kind of people, and that the surest tenth of the others is in.

    >>> round(noticeable(Ratio(0.1, 0.1, 300, 700), 0.5, "both", 0.05), 2)
    1.06
    """
    low, high = epsilon, epsilon + LARGEST_LEAK
    if not is_noticed(of, epsilon, high, sides, false_alarm):
        return None
    while high - low > 1e-3:
        leak = (low + high) / 2
        low, high = (low, leak) if is_noticed(of, epsilon, leak, sides, false_alarm) else (leak, high)
    return high


def is_noticed(of: Ratio, epsilon: float, leak: float, sides: Sides, false_alarm: float) -> bool:
    """Whether a leak of this size gives a bound above ε, on every side, with counts that are seldom less telling."""
    wrong = min(SUREST, 0.9 * math.exp(-leak))
    right = wrong * math.exp(leak)
    seldom, worth = (1 - NOTICED) / 2, (of.worth_true, of.worth_false)
    for yes, no in (worth,) if sides == "up" else (worth, worth[::-1]):
        least = max(float(np.ceil(bdtrik(seldom, yes, right))), 0.0)
        most = min(float(np.ceil(bdtrik(1 - seldom, no, wrong))), no)
        if not Ratio(least / yes, most / no, yes, no, unseen=of.unseen).low(false_alarm) > epsilon:
            return False
    return True


def times_needed(of: Ratio, epsilon: float, sides: Sides, false_alarm: float) -> float | None:
    """How many times the people it takes to show that an estimate above ε is, or else to notice a leak of twice ε."""
    above = of.estimate > epsilon
    for times in MORE.tolist():
        true, false = of.worth_true * times, of.worth_false * times
        more = replace(of, worth_true=true, worth_false=false, unseen=of.unseen / times)
        if more.low(false_alarm) > epsilon if above else is_noticed(more, epsilon, 2 * epsilon, sides, false_alarm):
            return float(times)
    return None
