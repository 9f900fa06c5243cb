"""The exact public account of one secret: a filter over what was released, whatever mechanism released it.

For the window in progress it holds the distribution b(a, s) of the automaton's and the chain's state; an ended window
that later releases still tell about is the distribution of (v, s); a coming window is the distribution of s and the
tables of `ahead`. The weight of a symbol is Pr(v, X = x | y_<k) = Σ over states s that show x of b h_v, and after a
release with column Q(y|·)

    log B = log [Σ_x Pr(E, x | y_<k) Q(y|x) / π] - log [Σ_x Pr(not E, x | y_<k) Q(y|x) / (1-π)],

which telescopes to log Pr(y_1..t | E)/Pr(y_1..t | not E): one number a window, exact, and only what was released is
charged.

*Inside the box, a constant kernel stays there*: it leaves the distribution of the whole stream, hence every window's
odds, as they are. So whatever happened, the next step can keep every live window at once, also all "first T events" of
a stream that may end at any time; nothing ever has to stop.

*Retired* is an ended window once |log B| + r ≤ ε, with r = max over states s of |log Pr(s|E, y)/Pr(s|not E, y)| for the
next state s: all later releases together depend on E through that state alone, and a ratio of averages lies between the
extreme ratios. *Watched* is a coming window by the same rule read backwards (`ahead.Ahead.lead`). All distributions are
kept as `filtering` keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core import filtering, words
from seqveil.core.errors import InputError
from seqveil.core.kernel import UNIT, Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.ahead import MARGIN, Ahead, ahead
from seqveil.core.secrets.declared import Secret


@dataclass(frozen=True)
class WindowAccount:
    """What the releases so far tell about one window.

    `log_odds` is log B (for a joint secret the log of the largest ratio Pr(y|v)/Pr(y|v')); `lowest` and `highest` are
    its extremes over all times so far, the beginning (0) included, rounded outward. `prior` and `posterior` are Pr(E)
    (a tuple of all values' for a joint secret).
    """

    first: int  # number of its first event, from 0
    events: int
    prior: Any
    posterior: Any
    log_odds: float
    lowest: float
    highest: float

    def worst(self, sides: str = "both") -> float:
        """The largest |log B| so far, or on one side the largest log B."""
        return self.highest if sides == "up" else max(self.highest, -self.lowest)


@dataclass(frozen=True, eq=False)
class WindowRecords:
    """Windows in order: number, prior and posterior (W, V) of the values, log odds and their extremes so far."""

    index: Ints
    prior: Floats
    posterior: Floats
    odds: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def fresh(cls, index: Ints, prior: Floats, disclosed: float = 0.0) -> WindowRecords:
        """Windows about which at most `disclosed` was disclosed."""
        zeros = np.zeros(len(index))
        return cls(index, prior, prior, zeros, zeros - disclosed, zeros + disclosed)

    @classmethod
    def coming(cls, plan: Ahead, unseen: Floats, states: Floats, step: int, begin: int) -> WindowRecords:
        """Windows number `begin` and on that are watched from this event on.

        `states` is the distribution of the event's state after the releases, `unseen` the same without them.
        """
        index = np.arange(begin, plan.furthest(step) + 1)
        waits = index * plan.length - plan.offset - step
        tables = [plan.at_first if wait < 0 else plan.before.at(wait) for wait in waits.tolist()]  # <0: in progress
        prior, posterior = (np.array([(table * over).sum(1) for table in tables]).reshape(-1, plan.values)
                            for over in (unseen, states))  # fmt: skip
        if not step:
            return cls.fresh(index, prior)
        return cls.fresh(index, prior, plan.untracked).after(posterior, plan.error(step)).in_doubt

    @property
    def in_doubt(self) -> WindowRecords:
        """Those of which more than one value can occur; about others nothing can be disclosed."""
        return self.take((self.prior > 0).sum(1) > 1)

    def take(self, kept: NDArray[np.bool_]) -> WindowRecords:
        """Some of the windows."""
        return WindowRecords(*(part[kept] for part in vars(self).values()))

    def and_then(self, other: WindowRecords) -> WindowRecords:
        """These windows, then those."""
        return WindowRecords(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))

    def worst(self, sides: str) -> WindowRecords:
        """The one about which most was disclosed, the first of several; none of none."""
        size = self.highest if sides == "up" else np.maximum(self.highest, -self.lowest)
        return self.take(np.arange(size.size) == size.argmax()) if size.size else self

    def after(self, posterior: Floats, error: float, disclosed_all: bool = False) -> WindowRecords:
        """The records after a release that moved the windows' distributions to `posterior`."""
        odds = log_odds(posterior, self.prior)
        room = np.where(np.isinf(odds), 0.0, error + 8 * UNIT * np.abs(odds))  # by which they may be off
        low, high = np.minimum(self.lowest, odds - room), np.maximum(self.highest, odds + room)
        if disclosed_all:
            low, high = np.full_like(low, -np.inf), np.full_like(high, np.inf)
        return WindowRecords(self.index, self.prior, posterior, odds, low, high)

    def widened(self, down: Floats, up: Floats) -> WindowRecords:
        """With the extremes moved by what later releases can still tell, either way."""
        known = np.isinf(self.odds)
        low = np.minimum(self.lowest, self.odds - np.where(known, 0.0, down))
        high = np.maximum(self.highest, self.odds + np.where(known, 0.0, up))
        return replace(self, lowest=low, highest=high)

    def accounts(self, plan: Ahead) -> tuple[WindowAccount, ...]:
        """Each as an object to look at."""
        columns = (part.tolist() for part in vars(self).values())
        return tuple(_account(plan, *row) for row in zip(*columns, strict=True))


def _account(plan: Ahead, index: int, prior: list[float], posterior: list[float], *odds: float) -> WindowAccount:
    shares = (prior[1], posterior[1]) if plan.values == 2 else (tuple(prior), tuple(posterior))
    return WindowAccount(*plan.span(index), *shares, *odds)


def log_odds(posterior: Floats, prior: Floats) -> Floats:
    """log B of every window; with more than two values the log of the largest ratio Pr(y|v)/Pr(y|v'): (W, V) → (W,).

    >>> log_odds(np.array([[0.25, 0.75]]), np.array([[0.5, 0.5]])).round(4).tolist()
    [1.0986]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(posterior / prior)
        spread = logs[:, 1] - logs[:, 0] if prior.shape[1] == 2 else _spread(logs, prior > 0)
    spread[np.isnan(spread)] = np.inf
    return spread


def reach(distributions: Floats, prior: Floats, sides: str) -> Floats:
    """The most that later releases can move the odds of ended windows, from distributions of (v, next state): (W,).

    >>> reach(np.array([[[0.2, 0.2], [0.4, 0.2]]]), np.array([[0.5, 0.5]]), "both").round(4).tolist()
    [0.4055]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = filtering.as_logs(distributions)
        logs = logs - np.logaddexp.reduce(logs, axis=2, keepdims=True)
        gap = logs[:, 1] - logs[:, 0] if sides == "up" else _spread(logs, (prior > 0)[:, :, None])
    gap[np.isnan(gap)] = -np.inf  # a state that neither value leads to
    return np.asarray(gap.max(1))


def _spread(logs: Floats, possible: NDArray[np.bool_]) -> Floats:
    """The largest difference between the values (axis 1) that can occur."""
    return np.asarray(np.where(possible, logs, -np.inf).max(1) - np.where(possible, logs, np.inf).min(1))


@dataclass(frozen=True, eq=False)
class SecretTracker:
    """The account of one secret under one model, after `step` releases; `observe` gives the next.

    >>> from seqveil.core.secrets.declared import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> tracker = SecretTracker.start(model, ever(1, epsilon=0.5, window="first 3"))
    >>> round(tracker.prior, 6), tracker.masses.round(6).tolist()
    (0.595, [[[0.405, 0.0], [0.095, 0.5]]])
    >>> disclosed = tracker.observe([0.25, 0.75])
    >>> round(disclosed.log_odds, 4), round(disclosed.posterior, 4)
    (0.9861, 0.7975)
    """

    ahead: Ahead
    step: int
    states: Floats  # (S,) distribution of the coming event's state
    unseen: Floats  # (S,) the same if nothing had been released, kept up where windows repeat
    now: Floats  # (A, S) distribution for the window in progress; (0, S) where there is none
    ended: Floats  # (E, V, S) distributions of ended windows that are still live: the first records
    records: WindowRecords  # of the live windows
    current: WindowRecords  # of the window that holds the latest event
    gone: WindowRecords  # of the worst of the windows that are live no more
    disclosed_all: bool = False  # a release the model ruled out: an unsound mechanism's
    kept: bool = False  # by a mechanism, within the secret's ε; else what is released is measured, and no promise made

    @classmethod
    def start(cls, model: MarkovModel, secret: Secret, kept: bool = False, place: int = 0) -> SecretTracker:
        """Before the first release. `kept`: a mechanism keeps the secret; the account of a window that is over is then
        closed, with a bound from above, as soon as it can no longer be broken. Else it stays open until later releases
        can reveal nothing more. `place` is the slot of its week (or day) that the first event is in, for a secret that
        follows the clock."""
        plan, unseen = ahead(model, secret), model.initial
        plan = plan.beginning(place % plan.length) if secret.follows_clock else plan
        states = filtering.start(model, 1)[0]
        now, ended = plan.begun(states)
        if plan.family:
            found = WindowRecords.fresh(np.arange(1, plan.longest + 1), plan.family_priors)
        else:
            found = WindowRecords.coming(plan, unseen, unseen, 0, 0)
        live = found.take(found.index <= (plan.limit or 0)) if plan.family else found
        current, nothing = found.take(found.index == plan.holding(0)), found.take(found.index < 0)
        return cls(plan, 0, states, unseen, now, ended, live.in_doubt, current, nothing, kept=kept)

    @property
    def _place(self) -> int:
        """Where the coming event stands, counted from the beginning of the stream's first window."""
        return self.ahead.offset + self.step

    @property
    def secret(self) -> Secret:
        """What is watched."""
        return self.ahead.secret

    @property
    def model(self) -> MarkovModel:
        """The model the observer believes."""
        return self.ahead.model

    @cached_property
    def belief(self) -> Floats:
        """β(x) = Pr(X_k = x | y_<k): (n,)."""
        return self.ahead.shown(filtering.clear(self.states)[None])[0]

    @cached_property
    def masses(self) -> Floats:
        """Pr(v, X_k = x | y_<k) for every live window, ended, in progress or coming: (W, V, n)."""
        plan, states = self.ahead, filtering.clear(self.states)
        left = plan.left(self.records.index, self.step)
        coming = left >= plan.length
        waits = (left[coming] - plan.length + 1).tolist()
        parts = [filtering.clear(self.ended), plan.within(left[(left >= 0) & ~coming], filtering.clear(self.now))]
        return plan.shown(np.concatenate([*parts, *((plan.before.at(wait) * states)[None] for wait in waits)]))

    def observe(self, column: ArrayLike) -> SecretTracker:
        """The account after a release y with `column` = Q(y|·) (n,), of any mechanism; only proportions matter."""
        self.check_room()
        plan, model = self.ahead, self.model
        weights = _checked(column, model.n)
        marginal = float((self.belief * weights).sum())
        posterior = (self.masses * weights).sum(2)
        posterior = posterior / np.maximum(posterior.sum(1, keepdims=True), filtering.TINY)
        disclosed_all = self.disclosed_all or marginal == 0
        found = self.records.after(posterior, plan.error(self.step + 1), disclosed_all)
        held = replace(self, records=found, current=self._holding(found), disclosed_all=disclosed_all)
        return held._moved(weights, marginal == 0)._retired()

    @property
    def in_first_window(self) -> bool:
        """Whether more events of the first window are to come: if the stream ends here, no window is whole."""
        return bool(self.step) and not self.ahead.family and self._place < self.ahead.length

    @property
    def in_later_window(self) -> bool:
        """Whether there is a whole window and more events of the last one are to come."""
        later = self.ahead.repeats and self._place > self.ahead.length
        return later and self._place % self.ahead.length != 0

    @property
    def limit(self) -> int | None:
        """The number of events it goes on for; what is only measured goes on without windows that cannot be counted."""
        return self.ahead.limit if self.kept else self.ahead.foreseen

    def check_room(self) -> None:
        """Refuse one event more than the promise was made for; whoever releases asks before anything is drawn."""
        if self.limit is not None and self.step >= self.limit:
            what = "was promised for" if self.kept else "can be measured in"
            raise InputError(f"this secret {what} streams of at most {self.limit} events; {self.ahead.beyond}")

    def _holding(self, found: WindowRecords) -> WindowRecords:
        """The window that holds the event just released; the only one where windows do not repeat."""
        plan, window = self.ahead, self.ahead.holding(self.step)
        held = found.take(found.index == window)
        if len(held.index) or not (plan.family or (plan.repeats and self._place % plan.length == 0)):
            return held if len(held.index) else self.current
        # one whose value is known beforehand: nothing can be disclosed about it
        prior = plan.family_priors[self.step] if plan.family else (plan.at_start * self.unseen).sum(1)
        return WindowRecords.fresh(np.array([window]), prior[None])

    def _moved(self, column: Floats, ruled_out: bool) -> SecretTracker:
        """One event on: condition every distribution on the release, then step the chain; windows end and begin."""
        plan, model = self.ahead, self.model
        distributions = np.concatenate([self.states[None], self.now, self.ended.reshape(-1, model.size)])
        if ruled_out:  # by the model: only which states could have made the release is known
            distributions = filtering.clear(distributions).sum(1, keepdims=True) * np.ones(model.size)
            column = column if column.any() else np.ones(model.n)
        moved = filtering.carry(model, distributions, column)
        unseen = model.advance(self.unseen[None])[0] if plan.repeats else self.unseen  # windows to come begin from it
        step, open_rows = self.step + 1, len(self.now)
        states = filtering.shared(moved[0], filtering.clear(moved[0]).sum())
        now, ended = moved[1 : 1 + open_rows], moved[1 + open_rows :].reshape(self.ended.shape)
        found, gone = self.records, self.gone
        if plan.family:
            over = found.index == step
            now, gone = plan.read(now, step), gone.and_then(found.take(over)).worst(self.secret.sides)
            found = found.take(~over)
        elif open_rows and (self._place + 1) % plan.length:
            now = plan.read(now, (self._place + 1) % plan.length)
        elif open_rows:
            if self._place // plan.length in found.index:
                ended = np.concatenate([ended, plan.by_value(now)[None]])
            now = plan.opened(states) if plan.repeats else np.zeros((0, model.size))
        if plan.repeats:
            begin = plan.furthest(self.step) + 1
            found = found.and_then(WindowRecords.coming(plan, unseen, filtering.clear(states), step, begin))
        now = filtering.shared(now, filtering.clear(now).sum()) if len(now) else now
        if len(ended):
            ended = filtering.shared(ended, filtering.clear(ended).sum((1, 2), keepdims=True))
        return replace(self, step=step, states=states, unseen=unseen, now=now, ended=ended, records=found, gone=gone)

    def _retired(self) -> SecretTracker:
        """Without ended windows that no later release can break; a window that is the only one keeps its account."""
        count = len(self.ended)
        if not count or not self.ahead.repeats or self.disclosed_all:
            return self
        found = self.records
        error, prior, odds = 2 * self.ahead.error(self.step), found.prior[:count], found.odds[:count]
        up, down = (np.maximum(reach(self.ended, prior, sides), 0.0) + error for sides in (self.secret.sides, "both"))
        kept_for_good = (odds if self.secret.sides == "up" else np.abs(odds)) + up <= self.ahead.scale
        all_disclosed = np.isinf(odds) | (down <= MARGIN * self.ahead.scale)  # by a mechanism that does not keep it
        over = kept_for_good | all_disclosed if self.kept else all_disclosed
        done = np.concatenate([over, np.zeros(len(found.index) - count, bool)])
        past = found.take(done).widened(down[over], up[over])
        gone = self.gone.and_then(past).worst(self.secret.sides)
        return replace(self, ended=self.ended[~over], records=found.take(~done), gone=gone)

    def __repr__(self) -> str:
        return f"SecretTracker({self.name}, {self.step} released, log odds {self.log_odds:.4g})"

    @property
    def accounts(self) -> tuple[WindowAccount, ...]:
        """The account of every live window, in order."""
        return self.records.accounts(self.ahead)

    @property
    def latest(self) -> WindowAccount:
        """The account of the window that holds the latest event (of the first one, before any)."""
        return self.current.accounts(self.ahead)[0]

    @property
    def worst(self) -> WindowAccount:
        """The account of the window most was disclosed about, live or not."""
        every = self.gone.and_then(self.current).and_then(self.records)
        return every.worst(self.secret.sides).accounts(self.ahead)[0]

    @property
    def epsilon(self) -> float | None:
        """The ε that the secret is kept within; None where it is only measured."""
        return self.secret.epsilon if self.kept else None

    @property
    def name(self) -> str:
        """What is watched, as the command line spells it."""
        return self.secret.name

    @property
    def sentence(self) -> str:
        """What is promised, or that nothing is, as a person can read it."""
        return self.secret.sentence if self.kept else words.measured(self.secret)

    @property
    def prior(self) -> Any:
        """Pr(E) of that window."""
        return self.latest.prior

    @property
    def posterior(self) -> Any:
        """Pr(E | all releases so far), as `prior`."""
        return self.latest.posterior

    @property
    def log_odds(self) -> float:
        """Exact log B of that window."""
        return self.latest.log_odds

    @property
    def lowest(self) -> float:
        """The least log B of that window at any time so far, rounded down."""
        return self.latest.lowest

    @property
    def highest(self) -> float:
        """The largest log B of that window at any time so far, rounded up."""
        return self.latest.highest


def _checked(column: ArrayLike, n: int) -> Floats:
    try:
        weights = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"a column must hold {n} numbers Q(y|x); got other objects") from None
    if weights.shape != (n,) or not (weights.min() >= 0.0 and weights.max() < np.inf):  # nor where one is no number
        raise InputError(f"a column must hold {n} numbers Q(y|x), finite and not negative; got shape {weights.shape}")
    return weights / (weights.max() or 1.0)


class SecretTrackers:
    """The accounts of secrets under the models of several observers: one row a model, one column a secret.

    A promise that holds under one model may fail under another; a kernel that keeps all rows keeps it for every
    observer who believes one of the models. The models share one alphabet; `kept` and `place` are as in
    `SecretTracker.start`.

    >>> from seqveil.core.secrets.declared import ever
    >>> models = [MarkovModel([0.5, 0.5], [[p, 1 - p], [1 - p, p]]) for p in (0.9, 0.6)]
    >>> trackers = SecretTrackers(models, [ever(1, window="first 3", epsilon=0.5)])
    >>> [round(row[0].prior, 4) for row in trackers.rows]
    [0.595, 0.82]
    """

    rows: tuple[tuple[SecretTracker, ...], ...]

    def __init__(
        self,
        models: MarkovModel | Sequence[MarkovModel],
        secrets: Secret | Sequence[Secret],
        kept: bool = False,
        place: int = 0,
    ) -> None:
        chains = [models] if isinstance(models, MarkovModel) else list(models)
        wanted = [secrets] if isinstance(secrets, Secret) else list(secrets)
        if not chains or not wanted or not all(isinstance(one, Secret) for one in wanted):
            raise InputError("give at least one model and one secret, made for instance with secrets.ever; got others")
        if any(chain.alphabet != chains[0].alphabet for chain in chains):
            raise InputError("the models of several observers must share one alphabet; fit them with the same one")
        self.rows = tuple(tuple(SecretTracker.start(chain, one, kept, place) for one in wanted) for chain in chains)

    def observe(self, column: ArrayLike) -> Self:
        """The accounts after a release with `column` = Q(y|·); these stay as they are."""
        after = object.__new__(type(self))
        after.rows = tuple(tuple(tracker.observe(column) for tracker in row) for row in self.rows)
        return after

    def check_room(self) -> None:
        """Refuse one event more than the promises were made for, before anything is drawn."""
        for row in self.rows:
            for tracker in row:
                tracker.check_room()

    @property
    def limit(self) -> int | None:
        """The number of events that the promises were made for; None for no limit."""
        ends = self._first_to_end
        return None if ends is None else ends.limit

    @property
    def beyond(self) -> str:
        """Why the promises go no further, and what to do: the end of a message."""
        ends = self._first_to_end
        return "" if ends is None else ends.ahead.beyond

    @property
    def _first_to_end(self) -> SecretTracker | None:
        limited = ((tracker.limit, tracker) for row in self.rows for tracker in row if tracker.limit is not None)
        return min(limited, key=lambda pair: pair[0], default=(0, None))[1]

    def worst(self) -> list[SecretTracker]:
        """For every secret, the watch of the observer who learned most about it."""
        columns = zip(*self.rows, strict=True)
        return [max(column, key=lambda one: one.worst.worst(one.secret.sides)) for column in columns]
