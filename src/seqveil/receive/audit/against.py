"""What a release leaks when the truth follows another chain than the model it was made with.

The kernels are public: they follow from the model, the setting and the releases, whatever the truth is. Under another
chain the same kernels have other marginals, hence other lifts, and the same max-plus filter gives the exact leakage.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import larger_side
from seqveil.core.model import MarkovModel
from seqveil.receive import reweigh as shadow
from seqveil.receive.audit.exact import ROUNDING
from seqveil.release import batches
from seqveil.release.state import rounds
from seqveil.release.stream import NOTHING, Setting

WEIGHED = ("tree", "tree_ldp")  # batched mechanisms whose paths another chain can weigh


@dataclass(frozen=True)
class Departure:
    """What an audit against another chain found; a stream's figures are those of the user with the most."""

    users: int
    releases: int
    paid: int  # releases at ε > 0
    leakage: float  # under the other chain: `most` and `least` are its two sides
    most: float
    least: float
    worst_user: Hashable
    under_model: float  # most that any stream leaked under the model of the release
    epsilon: float  # Σε of the user with the most: what holds if the model is right
    bound: float  # Σ min(2ε, ε - log(1 - τ(e^ε - e^-ε))), τ the distance of the two beliefs before each release
    ldp: float  # whatever the chain is
    worst_release: float  # most that a single release moved the other chain's belief
    distance: float | None  # largest τ; None for batches
    mean_distance: float | None
    within: bool  # every stream within its bound
    exact: bool = True  # False for batches: a bound from above that holds for every chain


def wrong_model_bound(epsilon: Floats, distance: Floats, ldp: float = 2.0) -> Floats:
    """The most a sound release at ε leaks to one whose belief is at total variation τ, cut at `ldp`·ε.

        min( ldp·ε, ε - log(1 - τ(e^ε - e^-ε)) )

    >>> wrong_model_bound(np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 0.1, 0.9, 0.9])).round(4).tolist()
    [1.0, 1.2679, 2.0, 0.0]

    Reference: docs/theory.md, section 3(c).
    """
    left = 1.0 - distance * 2.0 * np.sinh(epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(left > 0, epsilon - np.log(np.maximum(left, 0.0)), np.inf)
        floor = np.where(epsilon > 0, ldp * epsilon, 0.0)
    return np.minimum(floor, found)


class Against:
    """Takes releases in the order they were made and accounts for them under another chain, exactly.

    *Guarantee*: nothing private is used. For a sound mechanism the figure is at most `bound` and 2Σε (docs/theory.md,
    section 3).

    `part` = (first, count) follows only that many users from the first-th on, in the order they come: a file of more
    users than fit the memory is read several times.

    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> other = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    >>> against = Against(setting, other)
    >>> against.take(["ann", "ann", "bob"], np.array([0, 1, 0]))
    >>> found = against.report()
    >>> found.worst_user, found.within, found.under_model <= 2.0 <= found.bound <= found.ldp
    ('ann', True, True)

    Reference: docs/theory.md, sections 3 and 7.
    """

    def __init__(self, setting: Setting, other: MarkovModel, part: tuple[int, int] = (0, 1 << 62)) -> None:
        self._shadow = shadow.Shadow(setting, other)
        self._first, self._count = part
        self._index: dict[Hashable, int] = {}
        self._bound = np.zeros(0)
        self._releases = self._told = 0
        self._distances = self._farthest = self._worst_release = 0.0

    @property
    def users(self) -> int:
        """How many users came by, followed or not."""
        return len(self._index)

    def take(self, users: Sequence[Hashable], codes: Ints, times: Floats | None = None) -> None:
        """Account for these releases; NOTHING where an event went without."""
        everyone = np.array([self._index.setdefault(user, len(self._index)) for user in users], np.intp)
        mine = np.flatnonzero((everyone >= self._first) & (everyone < self._first + self._count))
        ids = everyone[mine] - self._first
        self._grow(min(len(self._index) - self._first, self._count))
        for turn in rounds(ids):
            events = mine[turn]
            self._observe(ids[turn], codes[events], None if times is None else times[events])
        self._releases += int((codes[mine] != NOTHING).sum())

    def _grow(self, users: int) -> None:
        if users > len(self._shadow):
            self._shadow.grow(max(users, min(2 * len(self._shadow), self._count)))
            self._bound = np.concatenate([self._bound, np.zeros(len(self._shadow) - len(self._bound))])

    def _observe(self, rows: NDArray[np.intp], codes: Ints, times: Floats | None) -> None:
        seen = self._shadow.observe(rows, codes, times)
        used = seen.released.epsilons
        distance = 0.5 * np.abs(seen.released.beliefs - seen.beliefs).sum(1)
        mechanism = self._shadow.setting.mechanism
        if mechanism.sound:
            self._bound[rows] += wrong_model_bound(used, distance, mechanism.ldp)
        else:
            self._bound[rows] = np.inf
        told = used > 0
        self._worst_release = max(self._worst_release, float(seen.costs.max(initial=0.0)))
        self._farthest = max(self._farthest, float(distance[told].max(initial=0.0)))
        self._distances, self._told = self._distances + float(distance[told].sum()), self._told + int(told.sum())

    def report(self) -> Departure:
        """Everything found so far."""
        names = list(self._index)[self._first : self._first + self._count]
        if not names:
            raise InputError("there is nothing to report: no release was taken in")
        state, bound, rows = self._shadow.state, self._bound[: len(names)], slice(0, len(names))
        own, under = state.own.account.worst[rows], state.account.take(rows)
        worst = int(under.worst.argmax())
        return Departure(
            users=len(names),
            releases=self._releases,
            paid=self._told,
            leakage=float(under.worst[worst]),
            most=float(under.most[worst]),
            least=float(under.least[worst]),
            worst_user=names[worst],
            under_model=float(own.max()),
            epsilon=float(state.own.spent[rows].max()),
            bound=float(bound.max()),
            ldp=float(state.own.ldp[rows].max()),
            worst_release=self._worst_release,
            distance=self._farthest,
            mean_distance=self._distances / max(1, self._told),
            within=bool((under.worst <= bound + ROUNDING * (1 + bound)).all()),
        )


class BatchAgainst:
    """The same for releases in batches, from their paths, one user's batch at a time.

    The tree's path is weighed under the other chain. A table over whole batches is not: with lifts in [e^l, e^m] under
    the model, for every batch in or out of its support, those under *any* chain lie within m - l on both sides, and
    that is what is added up. Either way a stream's total is from above.

    >>> from seqveil import Session
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> session = Session(model, "tree", epsilon=2.0, batch=2, seed=1)
    >>> _ = session.release_batch([0, 0])
    >>> against = BatchAgainst(session.setting, MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]]))
    >>> against.take("ann", session.paths[0], 2)
    >>> found = against.report()
    >>> found.leakage <= found.bound == found.ldp, found.exact
    (True, False)
    """

    def __init__(self, setting: Setting, other: MarkovModel) -> None:
        shadow.check(setting, other)
        self.setting, self._other = setting, other
        self._live: dict[Hashable, shadow.Shadowed] = {}
        self._releases = self._paid = 0
        self._worst = 0.0

    def take(self, user: Hashable, path: tuple[int, ...] | None, length: int, time: float | None = None) -> None:
        """Account for a user's next batch of `length` symbols; None where it went without a release."""
        setting, live = self.setting, self._live.get(user)
        state = live if live is not None else shadow.Shadowed.start(setting, self._other)
        if setting.mechanism.name in WEIGHED:
            cost, after = shadow.observe_batch(setting, self._other, state, path, length, time)
        else:
            cost, after = self._from_above(state, path, length, time)
        self._live[user] = after
        self._releases += path is not None
        self._paid += bool(after.own.spent[0] > state.own.spent[0])
        self._worst = max(self._worst, cost)

    def _from_above(
        self, state: shadow.Shadowed, path: tuple[int, ...] | None, length: int, time: float | None
    ) -> tuple[float, shadow.Shadowed]:
        sent, own = batches.observe(self.setting, state.own, path, length, time)
        cost = 0.0 if sent is None else sent.most - sent.least
        both = np.array([cost])
        return cost, replace(state, own=own, account=state.account.charge_batch(both, -both))

    def report(self) -> Departure:
        """Everything found so far."""
        if not self._live:
            raise InputError("there is nothing to report: no release was taken in")
        names, states = list(self._live), list(self._live.values())
        most = np.array([each.account.most[0] for each in states])
        least = np.array([each.account.least[0] for each in states])
        spent = np.array([each.own.spent[0] for each in states])
        leaked, mechanism = larger_side(most, least), self.setting.mechanism
        level = np.array([each.own.ldp[0] for each in states])
        bound = level if mechanism.sound else np.full(len(states), np.inf)
        worst = int(leaked.argmax())
        return Departure(
            users=len(names),
            releases=self._releases,
            paid=self._paid,
            leakage=float(leaked[worst]),
            most=float(most[worst]),
            least=float(least[worst]),
            worst_user=names[worst],
            under_model=max(float(each.own.account.worst[0]) for each in states),
            epsilon=float(spent.max()),
            bound=float(bound.max()),
            ldp=float(bound.max()),
            worst_release=self._worst,
            distance=None,
            mean_distance=None,
            within=bool((leaked <= bound + ROUNDING * (1 + bound)).all()),
            exact=False,
        )


def merged(parts: Sequence[Departure]) -> Departure:
    """One report of several groups of users."""
    worst = max(parts, key=lambda part: part.leakage)
    paid = sum(part.paid for part in parts)
    top = {name: max(getattr(part, name) for part in parts) for name in _LARGEST}
    far = [part.distance for part in parts if part.distance is not None]
    mean = sum((part.mean_distance or 0.0) * part.paid for part in parts) / max(1, paid)
    return replace(
        worst,
        users=sum(part.users for part in parts),
        releases=sum(part.releases for part in parts),
        paid=paid,
        distance=max(far) if far else None,
        mean_distance=mean if far else None,
        within=all(part.within for part in parts),
        **top,
    )


_LARGEST = ("under_model", "epsilon", "bound", "ldp", "worst_release")
