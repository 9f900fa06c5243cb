"""What a release leaks when the truth follows another chain than the model it was made with.

The kernels come from the setting's own public belief, so Q(y_k | x) is known to anyone. Conditioning another chain on
those very columns gives, with β' its belief before the release,

    ρ'_y(x) = Q(y|x) / Σ_z β'(z) Q(y|z),

and the telescoping and the max-plus account (docs/theory.md, sections 1 and 7) hold for it word for word: the columns
depend on past releases only, whoever's belief chose them. Nothing private is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, outward, slack
from seqveil.core.leakage import Account
from seqveil.core.mechanisms.boxes import forward
from seqveil.core.mechanisms.trees import TreeRelease
from seqveil.core.model import MarkovModel
from seqveil.engine import batches, stream
from seqveil.engine.state import Rows, State
from seqveil.engine.stream import NOTHING, Released, Setting
from seqveil.receiver.audit import within
from seqveil.receiver.follow import charged, numbered, turns

WEIGHED = ("tree", "tree_ldp")  # batched mechanisms whose paths another chain can weigh
Path = tuple[int, ...]


def check(setting: Setting, model: MarkovModel) -> None:
    """Refuse a model that is not over the setting's symbols. Order and support may differ."""
    if setting.model.n != model.n:
        raise InputError(
            f"expected a model over the release's {setting.model.n} symbols, got {model.n}; fit it with that alphabet"
        )
    if setting.model.alphabet.fingerprint() != model.alphabet.fingerprint():
        raise InputError("the other model numbers its symbols differently; fit it with the alphabet of the release")


@dataclass(frozen=True, eq=False)
class Weighed:
    """One step as both sides see it: the release itself, and under the other model belief, marginal and cost."""

    released: Released
    beliefs: Floats  # (B, n) of the other model, before the release
    marginal: Floats  # (B,) probability of the release under the other model
    costs: Floats  # (B,) the most it moved the other model's belief in a symbol, |log lift|, rounded up


class Reweighed:
    """Streams of users, a row each, as their own setting has them and as another model has them.

    *Guarantee*: where `model` is the truth, `account` is the exact leakage of the releases so far, both sides, rounded
    outward. It may pass the setting's budget, which is kept under the setting's own model.

    >>> mine = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> truth = MarkovModel([0.9, 0.1], [[0.9, 0.1], [0.9, 0.1]])
    >>> both = Reweighed(Setting.of(mine, epsilon=1.0), truth, users=1)
    >>> both.observe(np.array([0]), np.array([1])).costs.round(3).tolist()
    [1.194]
    >>> both.account.worst.round(3).tolist(), both.own.account.worst.round(3).tolist()
    ([1.194], [1.0])
    """

    def __init__(self, setting: Setting, model: MarkovModel, users: int = 0) -> None:
        check(setting, model)
        self.setting, self.model = setting, model
        self.own = State.start(setting, users)
        self.other = State.start(replace(setting, model=model), users)

    def __len__(self) -> int:
        """How many rows there is room for."""
        return len(self.own)

    @property
    def account(self) -> Account:
        """What was leaked if the other model is the truth."""
        return self.other.account

    def grow(self, users: int) -> None:
        """Make room for rows 0..users-1."""
        self.own = self.own.grown(self.setting, users)
        self.other = self.other.grown(replace(self.setting, model=self.model), users)

    def observe(self, rows: Rows, codes: Ints, times: Floats | None = None) -> Weighed:
        """Take in one release for each of these rows, NOTHING where there was none; no row twice."""
        return self._move(rows, lambda part: stream.observe(self.setting, part, codes, times))

    def release(self, rows: Rows, codes: Ints, coins: Coins, times: Floats | None = None) -> Weighed:
        """Release one symbol for each of these rows under the setting, and charge it under the model too."""
        if self.setting.budget.limited and self.setting.budget.when_spent == "error":
            raise InputError('a release that is weighed under two models takes the policy "hold" or "stop"')
        return self._move(rows, lambda part: stream.step(self.setting, part, codes, coins, times))

    def _move(self, rows: Rows, act: Callable[[State], tuple[Released, State]]) -> Weighed:
        released, self.own = self.own.move(rows, act)
        beliefs = filtering.symbols(self.model, self.other.states[rows])
        weights, self.other = charged(self.model, self.other, rows, released.columns)
        return Weighed(released, beliefs, weights.marginal / DENOMINATOR, weights.costs)

    def observe_batch(self, row: int, path: Path | None, length: int, time: float | None = None) -> float:
        """Take in the next batch of one row; returns the most it moved the other model's belief in a batch.

        The law of a batch given its path is a(y|o) = c + λ·Π_t φ_t(o_t), which any chain can weigh. Both extremes of a
        are taken over all batches, as under the setting's own model, so totals are from above. Only `tree` and
        `tree_ldp` publish such a path. A table over whole batches (`batch_lp`, `batch_descent`) cannot
        be weighed: with lifts in [e^l, e^m] under the setting's model, for every batch in or out of its support, those
        under *any* chain lie within m - l on both sides, and that is what it is charged.
        """
        rows = np.array([row])
        own, other = self.own.take(rows), self.other.take(rows)
        sent, own = batches.observe(self.setting, own, path, length, time)
        ahead, account, cost = other.states, other.account, 0.0
        if sent is None:
            for _ in range(length):
                ahead = filtering.predict(self.model, ahead)
        elif isinstance(sent, TreeRelease) and self.setting.mechanism.name in WEIGHED:
            posterior, most, least = _weigh_tree(self.model, filtering.clear(ahead)[0], sent, length)
            ahead, cost = filtering.predict(self.model, posterior[None]), max(most, -least)
            account = account.charge_batch(np.array([most]), np.array([least]))
            account = account.blur(filtering.lost(self.model, other.states, length, ahead))
        else:
            cost = sent.most - sent.least
            account = account.charge_batch(np.array([cost]), np.array([-cost]))
        self.own.put(rows, own)
        self.other.put(rows, replace(other, states=ahead, account=account))
        return cost


def _weigh_tree(model: MarkovModel, states: Floats, sent: TreeRelease, length: int) -> tuple[Floats, float, float]:
    """The other chain's law of the last state given the batch, and the logs of its largest and least lift."""
    whole, inside = (forward(model, states, length, box)[-1] for box in ({}, sent.box))
    joint = sent.rest * sent.fresh * whole + sent.told * inside
    marginal = float(joint.sum())
    if not sent.path:
        return joint / marginal, 0.0, 0.0
    extent = [np.prod([pick(weights) for weights in sent.box.values()]) for pick in (np.max, np.min)]
    high, low = (np.log((sent.rest * sent.fresh + sent.told * value) / marginal) for value in extent)
    terms = slack(model.size * length)
    return joint / marginal, float(outward(high, terms, +1)), float(outward(low, terms, -1))


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
    with np.errstate(divide="ignore", invalid="ignore"):  # an ε without bound bounds nothing
        left = 1.0 - distance * 2.0 * np.sinh(epsilon)
        found = np.where(left > 0, epsilon - np.log(np.maximum(left, 0.0)), np.inf)
        floor = np.where(epsilon > 0, ldp * epsilon, 0.0)
    return np.minimum(floor, found)


class Against:
    """Takes releases in the order they were made and accounts for them under another chain, exactly.

    *Guarantee*: nothing private is used. For a sound mechanism the figure is at most `bound` and 2Σε (docs/theory.md,
    section 3). Batches are taken by their paths; a stream's total is then from above (`Reweighed.observe_batch`), and
    its bound is the LDP level.

    Parameters:
        setting: that of the release.
        other: the chain that the truth may follow instead, over the same alphabet.
        part: (first, count) follows only that many users from the first-th on, in the order they come: a file of more
            users than fit the memory is read several times.

    >>> setting = Setting.of(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0)
    >>> other = MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]])
    >>> against = Against(setting, other)
    >>> against.take(["ann", "ann", "bob"], np.array([0, 1, 0]))
    >>> found = against.report()
    >>> found.worst_user, found.within, found.under_model <= 2.0 <= found.bound <= found.ldp
    ('ann', True, True)

    >>> from seqveil import Session
    >>> session = Session(setting.model, "tree", epsilon=2.0, batch=2, seed=1)
    >>> _ = session.release_batch([0, 0])
    >>> against = Against(session.setting, other)
    >>> against.take_batch("ann", session.paths[0], 2)
    >>> found = against.report()
    >>> found.leakage <= found.bound == found.ldp, found.exact
    (True, False)

    Reference: docs/theory.md, sections 3 and 7.
    """

    def __init__(self, setting: Setting, other: MarkovModel, part: tuple[int, int] = (0, 1 << 62)) -> None:
        self._both = Reweighed(setting, other)
        self._first, self._count = part
        self._index: dict[Hashable, int] = {}
        self._bound = np.zeros(0)
        self._releases = self._paid = 0
        self._distances = self._farthest = self._worst_release = 0.0

    @property
    def users(self) -> int:
        """How many users came by, followed or not."""
        return len(self._index)

    def take(self, users: Sequence[Hashable], codes: Ints, times: Floats | None = None) -> None:
        """Account for these releases; NOTHING where an event went without."""
        mine, rows = self._rows(users)
        stamps = None if times is None else times[mine]
        for _, some, told, when in turns(rows, codes[mine], stamps):
            self._observe(some, told, when)
        self._releases += int((codes[mine] != NOTHING).sum())

    def take_batch(self, user: Hashable, path: Path | None, length: int, time: float | None = None) -> None:
        """Account for a user's next batch of `length` symbols; None where it went without a release."""
        for row in self._rows([user])[1].tolist():
            before = self._both.own.spent[row]
            cost = self._both.observe_batch(row, path, length, time)
            self._releases += path is not None
            self._paid += bool(self._both.own.spent[row] > before)
            self._worst_release = max(self._worst_release, cost)

    def _rows(self, users: Sequence[Hashable]) -> tuple[Rows, Rows]:
        """Which of these events are of users who are followed, and the rows of those; room is made for new ones."""
        everyone = numbered(self._index, users)
        mine = np.flatnonzero((everyone >= self._first) & (everyone < self._first + self._count))
        followed, room = len(self._names), len(self._both)
        if followed > room:
            self._both.grow(max(followed, min(2 * room, self._count)))
            self._bound = np.pad(self._bound, (0, len(self._both) - room))
        return mine, everyone[mine] - self._first

    @property
    def _names(self) -> list[Hashable]:
        return list(self._index)[self._first : self._first + self._count]

    def _observe(self, rows: Rows, codes: Ints, times: Floats | None) -> None:
        seen, mechanism = self._both.observe(rows, codes, times), self._both.setting.mechanism
        used = seen.released.epsilons
        distance = 0.5 * np.abs(seen.released.beliefs - seen.beliefs).sum(1)
        self._bound[rows] += wrong_model_bound(used, distance, mechanism.ldp) if mechanism.sound else np.inf
        paid = used > 0
        self._worst_release = max(self._worst_release, float(seen.costs.max(initial=0.0)))
        self._farthest = max(self._farthest, float(distance[paid].max(initial=0.0)))
        self._distances, self._paid = self._distances + float(distance[paid].sum()), self._paid + int(paid.sum())

    def report(self) -> Departure:
        """Everything found so far."""
        names, setting = self._names, self._both.setting
        if not names:
            raise InputError("there is nothing to report: no release was taken in")
        rows, exact = np.arange(len(names)), not setting.in_batches
        own, under = self._both.own.take(rows), self._both.account.take(rows)
        bound = self._bound[rows] if exact else own.ldp if setting.mechanism.sound else np.full(len(names), np.inf)
        worst = int(under.worst.argmax())
        return Departure(
            users=len(names),
            releases=self._releases,
            paid=self._paid,
            leakage=float(under.worst[worst]),
            most=float(under.most[worst]),
            least=float(under.least[worst]),
            worst_user=names[worst],
            under_model=float(own.account.worst.max()),
            epsilon=float(own.spent.max()),
            bound=float(bound.max()),
            ldp=float(own.ldp.max() if exact else bound.max()),
            worst_release=self._worst_release,
            distance=self._farthest if exact else None,
            mean_distance=self._distances / max(1, self._paid) if exact else None,
            within=within(under.worst, bound),
            exact=exact,
        )


def merged(parts: Sequence[Departure]) -> Departure:
    """One report of several groups of users."""
    worst = max(parts, key=lambda part: part.leakage)
    paid = sum(part.paid for part in parts)
    largest = ("under_model", "epsilon", "bound", "ldp", "worst_release")
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
        **{name: max(getattr(part, name) for part in parts) for name in largest},
    )
