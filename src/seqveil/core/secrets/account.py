"""The exact public account of secrets: a filter over what was released, whatever mechanism released it.

For every user it holds the distribution b(r, s) of the automata's and the chain's state; a window that is over and that
later releases still tell about is a distribution of (v, m, s); a coming window follows from the state and the tables of
`ahead`. The weight of a source z = (x, m), a symbol and what is remembered of the raw stream, is
Pr(v, Z = z | y_<k) = Σ over states s that show x of b h_v, and after a release with column Q(y|·)

    log B = log [Σ_z Pr(E, z | y_<k) Q(y|z) / π] - log [Σ_z Pr(not E, z | y_<k) Q(y|z) / (1-π)],

which telescopes to log Pr(y_1..t | E)/Pr(y_1..t | not E): one number a window, exact, and only what was released is
charged.

*Memory.* Kernels may have rows by (x, m), where m is where the raw stream stands in the automata of those declared
secrets whose windows are in progress (`Automata`). Every distribution here is over m too.

*Retired* is a window that is over once |log B| + r ≤ ε, r = max over (m, s) of |log Pr(m, s|E, y)/Pr(m, s|not E, y)|
for the next event. *Watched* is a coming window by the same rule read backwards, through the state alone
(`ahead.Ahead.lead`). docs/theory.md, sections 18 and 20, has the proofs.

Users at the same event stand in arrays, one row a user, and a `SecretTrackers` is one row. Every sum is taken in the
same order however many rows there are, so nobody's account depends on who else is in a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core import filtering, words
from seqveil.core.bulk import form, in_parts
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.ahead import MARGIN, Ahead, Automata, begun, weigh
from seqveil.core.secrets.declared import Secret
from seqveil.core.secrets.windows import Mask, WindowAccount, WindowRecords, off_by, reach

TOGETHER = 2_000_000  # numbers of the weights of users who are worked on together
BY_USER = ("now", "ended", "records", "current", "gone", "disclosed_all")  # of a `SecretTracker`


def _gathered(distributions: Floats, target: Ints, size: int) -> Floats:
    """Sums (B, size, S) of distributions (B, R, S) that go from each (r, s) to (target(r, s), s)."""
    users, _, width = distributions.shape
    places = (np.arange(users)[:, None, None] * size + target) * width + np.arange(width)
    return filtering.gathered(places.ravel(), distributions.ravel(), users * size * width).reshape(users, size, width)


@dataclass(frozen=True, eq=False)
class SecretTracker:
    """The accounts of one secret under one model, of B users after `step` releases.

    `latest` and `worst` are those of the first user.
    """

    ahead: Ahead
    memory: Automata  # those that kernels may go by: M states
    automata: Automata  # the same, and after them its own where that is not among them: R states, r = K·m + k
    own: Ints  # (R,) where its own automaton stands in each state of all
    remembered: Ints  # (R,) what of that state is remembered, m
    step: int
    now: Floats  # (B, R, S) distribution of the automata and the coming event's state
    unseen: Floats  # (S,) that of the state if nothing had been released, kept up where windows repeat
    ended: Floats  # (B, E, V, M, S) of windows that are over and still live: the first records
    records: WindowRecords  # of the live windows
    current: WindowRecords  # (B, 1) of the window that holds the latest event
    gone: WindowRecords  # (B, 1) of the worst of the windows that are live no more
    disclosed_all: Mask  # (B,) a release the model ruled out: an unsound mechanism's
    kept: bool = False  # by a mechanism, within the secret's ε; else what is released is measured, and no promise made

    @classmethod
    def start(cls, model: MarkovModel, secret: Secret, kept: bool, place: int, memory: Automata) -> SecretTracker:
        """One user before the first release, as `SecretTrackers.start` has it."""
        plan, unseen = begun(model, secret, place), model.initial
        automata = memory if plan in memory.plans else Automata([*memory.plans, plan])
        now = np.zeros((1, automata.size, model.size))
        now[0, 0] = filtering.start(model, 1)[0]
        now = _gathered(now, automata.target(0), automata.size)
        ended = np.zeros((1, 0, plan.values, memory.size, model.size))
        live = WindowRecords.coming(plan, unseen, unseen[None], 0, int(plan.family), 0.0)  # of a family none
        if not plan.length:  # a trait: over before the stream began
            ended = (plan.at_start[:, None] * now[:, None])[:, None]
        none = WindowRecords.fresh(np.full(1, -1), np.full((1, plan.values), 1.0 / plan.values), 1)
        own, current = automata.states[automata.plans.index(plan)], _known_before(plan, unseen, 0, 1)
        remembered = np.arange(automata.size) // (automata.size // memory.size)
        return cls(
            plan, memory, automata, own, remembered, 0, now, unseen, ended, live, current, none, np.zeros(1, bool), kept
        )

    @property
    def rows(self) -> int:
        """M: the rows that a kernel may have a symbol."""
        return self.memory.size

    @cached_property
    def states(self) -> Floats:
        """Distribution of what is remembered and the coming event's state, as probabilities: (B, M, S)."""
        now = filtering.clear(self.now)
        return np.add.reduce(now.reshape(len(now), self.rows, -1, self.ahead.model.size), 2)

    def _shown(self, distributions: Floats) -> Floats:
        """Distributions (…, M, S) of states as distributions (…, Z) of sources, symbols that are remembered alike
        together: z = n·m + x."""
        model, (*shape, _) = self.ahead.model, distributions.shape
        found = filtering.symbols(model, distributions.reshape(-1, model.size))
        return found.reshape(*shape[:-1], shape[-1] * model.n)

    @cached_property
    def belief(self) -> Floats:
        """β(z) = Pr(Z_k = z | y_<k): (B, Z)."""
        return self._shown(self.states)

    @cached_property
    def masses(self) -> Floats:
        """Pr(v, Z_k = z | y_<k) for every window on record, over, in progress or coming: (B, W, V, Z)."""
        plan, over = self.ahead, self.ended.shape[1]
        left = plan.left(self.records.index[:, over:].max(0, initial=-1), self.step)
        here = self._weighed(plan.over_states(left))
        return np.concatenate([self._shown(filtering.clear(self.ended)), here], axis=1) if over else here

    def family_masses(self, windows: Ints) -> Floats:
        """Pr(v, Z_k = z | y_<k) for windows "the first T events" (W,): (B, W, V, Z)."""
        return self._weighed(self.ahead.over_states(windows - self.step - 1))

    def _weighed(self, tables: Floats) -> Floats:
        """Σ over states that show x of their probability times h_v or g_v, (W, V, A, S), as (B, W, V, Z)."""
        model, users = self.ahead.model, len(self.now)
        made = np.empty((users, *tables.shape[:2], self.rows * model.n))
        given = np.ascontiguousarray(tables.reshape(-1, *tables.shape[2:]).transpose(1, 2, 0))
        now, out, code = filtering.clear(self.now), made.reshape(users, -1, made.shape[3]), form(weigh, users)
        in_parts(users, lambda part: code(now[part], given, self.own, model.newest, model.n, out[part]), now[0].size)
        return made

    @property
    def error(self) -> float:
        """Relative error, from above, of any ratio of two probabilities now."""
        return self.rows * self.ahead.error(self.step)

    def after(self, columns: Floats) -> SecretTracker:
        """The accounts after releases with these columns Q(y|·) (B, M, n), each with 1 as its largest number."""
        plan, flat = self.ahead, columns.reshape(len(columns), -1)
        marginal = (self.belief * flat).sum(1)
        everything = self.disclosed_all | (marginal == 0)
        if plan.family:
            found, current = self.records, self._whenever(columns, everything)
        else:
            posterior = (self.masses * flat[:, None, None]).sum(3)
            posterior = posterior / np.maximum(posterior.sum(2, keepdims=True), filtering.TINY)
            found = self.records.after(posterior, self.rows * plan.error(self.step + 1), everything)
            current = self._holding(found)
        held = replace(self, records=found, current=current, disclosed_all=everything)
        return held._moved(columns, marginal == 0)._retired()

    def _whenever(self, columns: Floats, everything: Mask) -> WindowRecords:
        """The window that ends with the event just released, with extremes over all that end then or later."""
        plan, model = self.ahead, self.ahead.model
        shown = columns[:, self.remembered][:, :, model.newest]
        posterior, ratios = plan.family_odds(filtering.clear(self.now) * shown, self.own, self.step)
        error, known = self.rows * plan.error(self.step + 1), _known_before(plan, self.unseen, self.step, len(columns))
        before = replace(known, lowest=self.current.lowest, highest=self.current.highest)
        current = before.after(posterior[:, None], error, everything) if self.step + 1 in plan.open else before
        with np.errstate(divide="ignore"):
            odds = np.log(ratios)
        low, high = odds[:, :1], odds[:, 1:]
        return current.reaching(low - off_by(low, error), high + off_by(high, error))

    def _holding(self, found: WindowRecords) -> WindowRecords:
        """The window that holds the event just released; the only one where windows do not repeat."""
        plan, window = self.ahead, self.ahead.holding(self.step)
        there = found.index.max(0, initial=-1) == window
        if there.any():
            return found[:, there]
        if plan.repeats and (plan.offset + self.step) % plan.length == 0:
            return _known_before(plan, self.unseen, self.step, len(found.index))
        return self.current

    def _moved(self, columns: Floats, ruled_out: Mask) -> SecretTracker:
        """One event on: condition every distribution on the release, then step the chain; windows end and begin."""
        plan, model, users = self.ahead, self.ahead.model, len(self.now)
        distributions = np.concatenate([self.now, self.ended.reshape(users, -1, model.size)], axis=1)
        count, size = distributions.shape[1], self.automata.size
        rows = np.concatenate([self.remembered, np.arange(count - size) % self.rows])
        if ruled_out.any():  # by the model: only which states could have made the release is known
            sums = filtering.clear(distributions).sum(2, keepdims=True)
            distributions = np.where(ruled_out[:, None, None], sums, distributions)
            columns = np.where(columns.any((1, 2), keepdims=True), columns, 1.0)
        given = columns[:, rows].reshape(-1, model.n)
        moved = filtering.carry(model, distributions.reshape(-1, model.size), given).reshape(distributions.shape)
        now, ended, step = moved[:, :size], moved[:, size:].reshape(self.ended.shape), self.step + 1
        if (plan.left(self.records.index, self.step) == 0).any():
            ended = np.concatenate([ended, self._by_value(now)[:, None]], axis=1)
        if self.rows > 1 and ended.size:
            each = ended.reshape(-1, self.rows, model.size)
            ended = _gathered(each, self.memory.target(step), self.rows).reshape(ended.shape)
        now = _gathered(now, self.automata.target(step), size)
        now = filtering.shared(now, filtering.clear(now).reshape(users, -1).sum(1)[:, None, None])
        if ended.size:
            whole = np.asarray(filtering.clear(ended).reshape(users, len(ended[0]), -1).sum(2))
            ended = filtering.shared(ended, np.where(whole > 0, whole, 1.0)[:, :, None, None, None])
        made = replace(self, step=step, now=now, ended=ended)
        return made._with_coming(plan.furthest(self.step) + 1) if plan.repeats else made

    def _with_coming(self, begin: int) -> SecretTracker:
        """With the windows, number `begin` and on, that are watched from now on."""
        unseen, states = self.ahead.model.advance(self.unseen[None])[0], np.add.reduce(self.states, 1)
        coming = WindowRecords.coming(self.ahead, unseen, states, self.step, begin, self.error)
        return replace(
            self, unseen=unseen, records=self.records.and_then(coming) if coming.index.size else self.records
        )

    def _by_value(self, now: Floats) -> Floats:
        """Distribution (B, R, S) at the end of a window as that of its value, what is remembered and the state."""
        labels, size = self.ahead.automaton.labels[self.own], self.ahead.values * self.rows
        target = labels * self.rows + self.remembered
        return _gathered(now, target[:, None], size).reshape(len(now), -1, self.rows, now.shape[2])

    def _retired(self) -> SecretTracker:
        """Without windows that are over and that no later release can break; an only one keeps its account."""
        users, count = self.ended.shape[:2]
        if not count or not self.ahead.repeats:
            return self
        past, scale, sides = self.records[:, :count], self.ahead.scale, self.ahead.secret.sides
        flat = self.ended.reshape(users * count, self.ahead.values, -1)
        prior, error = past.prior.reshape(users * count, -1), 2 * self.error
        up, down = ((np.maximum(reach(flat, prior, way), 0.0) + error).reshape(users, count) for way in (sides, "both"))
        known = np.isinf(past.odds)  # disclosed, by a mechanism that does not keep it
        over = known | (down <= MARGIN * scale)
        if self.kept:
            over |= (past.odds if sides == "up" else np.abs(past.odds)) + up <= scale
        over &= (past.index >= 0) & ~self.disclosed_all[:, None]
        if not over.any():
            return self
        closed = past.reaching(past.odds - np.where(known, 0.0, down), past.odds + np.where(known, 0.0, up))
        gone = self.gone.and_then(replace(closed, index=np.where(over, past.index, -1))).worst(sides)
        index = self.records.index.copy()
        index[:, :count][over] = -1
        kept, ended = index.max(0) >= 0, self.ended.copy()
        ended[index[:, :count] < 0] = 0.0  # which bounds nothing
        return replace(
            self, ended=ended[:, kept[:count]], records=replace(self.records, index=index)[:, kept], gone=gone
        )

    def take(self, rows: Any) -> SecretTracker:
        """Of some users."""
        return replace(self, **{name: getattr(self, name)[rows] for name in BY_USER})

    @staticmethod
    def joined(parts: Sequence[SecretTracker]) -> SecretTracker:
        """All users of several, who stand at the same event; with room for as many windows that are over as any has."""
        most, wide = max(part.ended.shape[1] for part in parts), []
        for part in parts:
            users, over = part.ended.shape[:2]
            if over < most:
                none = np.full((most - over, part.ahead.values), 0.5)
                empty = WindowRecords.fresh(np.full(most - over, -1), none, users)
                ended = np.concatenate([np.zeros((users, most - over, *part.ended.shape[2:])), part.ended], axis=1)
                part = replace(part, ended=ended, records=empty.and_then(part.records))
            wide.append(part)

        def stacked(name: str) -> Any:
            """One part of them all."""
            first, *others = (getattr(part, name) for part in wide)
            arrays = isinstance(first, np.ndarray)
            return np.concatenate([first, *others]) if arrays else first.and_then(*others, axis=0)

        return replace(parts[0], **{name: stacked(name) for name in BY_USER})

    @property
    def secret(self) -> Secret:
        """What is watched."""
        return self.ahead.secret

    @property
    def inside_window(self) -> tuple[bool, bool]:
        """Whether more events of the first window are to come, so that no window is whole; and of a later one."""
        plan, place = self.ahead, self.ahead.offset + self.step
        first = bool(self.step) and not plan.family and place < plan.length
        return first, plan.repeats and place > plan.length and place % plan.length != 0

    @property
    def limit(self) -> int | None:
        """The number of events it goes on for; what is only measured goes on without windows that cannot be counted."""
        return self.ahead.limit if self.kept else self.ahead.foreseen

    @cached_property
    def latest(self) -> WindowAccount:
        """The account of the window that holds the latest event (of the first one, before any)."""
        return self.current.account(self.ahead)

    @property
    def worst(self) -> WindowAccount:
        """The account of the window most was disclosed about, live or not."""
        return self.gone.and_then(self.current, self.records).worst(self.secret.sides).account(self.ahead)

    @property
    def sentence(self) -> str:
        """What is promised, or that nothing is, as a person can read it."""
        return self.secret.sentence if self.kept else words.measured(self.secret)


def _known_before(plan: Ahead, unseen: Floats, step: int, users: int) -> WindowRecords:
    """The window that holds an event, before anything was disclosed about it; nothing can be where it is certain."""
    prior = plan.family_priors[step] if plan.family else ((plan.at_start if step else plan.at_first) * unseen).sum(1)
    return WindowRecords.fresh(np.array([plan.holding(step)]), prior[None], users)


@dataclass(frozen=True, eq=False)
class TrackedUsers:
    """The accounts of all secrets, under the models of all observers, of B users who stand at the same event."""

    rows: tuple[tuple[SecretTracker, ...], ...]  # one row a model, one column a secret
    forgot: Ints  # (B,) the event from which kernels go by symbol alone, since nothing is remembered; -1: none

    def __len__(self) -> int:
        return len(self.forgot)

    @property
    def own(self) -> tuple[SecretTracker, ...]:
        """The accounts under the stream's own model."""
        return self.rows[0]

    @property
    def automata(self) -> Automata:
        """Those that a kernel may go by, under the stream's own model."""
        return self.own[0].memory

    @property
    def n(self) -> int:
        """Symbols of the alphabet."""
        return self.own[0].ahead.model.n

    @property
    def memories(self) -> int:
        """M: the rows that a kernel may have a symbol."""
        return self.own[0].rows

    @property
    def step(self) -> int:
        """How many releases there were."""
        return self.own[0].step

    def observe(self, columns: ArrayLike) -> TrackedUsers:
        """The accounts after releases with these columns: (B, n) Q(y|x), or (B, Z) Q(y|x, m) with z = n·m + x."""
        given, n, sources = np.asarray(columns, np.float64), self.n, self.n * self.memories
        fits = given.ndim == 2 and given.shape[1] in (n, sources)
        if not (fits and given.min(initial=0.0) >= 0.0 and given.max(initial=0.0) < np.inf):  # nor where one is NaN
            raise InputError(
                f"a column must hold {n} numbers Q(y|x), or {sources} by what is remembered, finite and not negative; "
                f"got shape {given.shape[1:]}"
            )
        top = given.max(1, keepdims=True)
        given = (given / np.where(top > 0, top, 1.0)).reshape(len(given), -1, n)
        given = np.broadcast_to(given, (len(given), self.memories, n))
        return replace(self, rows=tuple(tuple(one.after(given) for one in row) for row in self.rows))

    def forgetting(self) -> TrackedUsers:
        """From this event on these users' kernels go by symbol alone, for good."""
        return replace(self, forgot=np.where(self.forgot < 0, self.step, self.forgot))

    def take(self, rows: Any) -> TrackedUsers:
        """Of some users."""
        return TrackedUsers(tuple(tuple(one.take(rows) for one in row) for row in self.rows), self.forgot[rows])

    @classmethod
    def joined(cls, parts: Sequence[TrackedUsers]) -> TrackedUsers:
        """All users of several, who stand at the same event."""
        if len(parts) == 1:
            return parts[0]
        columns = (zip(*rows, strict=True) for rows in zip(*(part.rows for part in parts), strict=True))
        rows = tuple(tuple(SecretTracker.joined(one) for one in row) for row in columns)
        return cls(rows, np.concatenate([part.forgot for part in parts]))

    def each(self) -> NDArray[np.object_]:
        """The users one by one."""
        found = np.empty(len(self), object)
        found[:] = [SecretTrackers(self, row) for row in range(len(self))]
        return found


def together(trackers: NDArray[np.object_]) -> Iterator[tuple[NDArray[np.intp], TrackedUsers]]:
    """Users who stand at the same event, with their places in the call, so many at a time as fit the memory."""
    held: dict[int, list[int]] = {}  # the places of those who already stand in the same arrays
    for place, each in enumerate(trackers):
        held.setdefault(id(each.users), []).append(place)
    found: dict[tuple[int, ...], list[list[int]]] = {}
    for places in held.values():
        users = trackers[places[0]].users
        found.setdefault((users.step, *(own.ahead.offset for own in users.own)), []).append(places)
    for groups in found.values():
        everyone, where = (
            TrackedUsers.joined([_standing(trackers[places]) for places in groups]),
            np.concatenate(groups),
        )
        numbers = sum((1 + one.records.index.shape[1]) * one.ahead.values * one.rows * one.ahead.model.size
                      for row in everyone.rows for one in row)  # fmt: skip
        size = max(1, TOGETHER // numbers)
        for at in range(0, where.size, size):
            some = slice(at, at + size)
            yield where[some], everyone if where.size <= size else everyone.take(some)


def _standing(trackers: NDArray[np.object_]) -> TrackedUsers:
    """Users who stand in the same arrays, as arrays of them alone."""
    users: TrackedUsers = trackers[0].users
    rows = [each.row for each in trackers]
    return users if rows == list(range(len(users))) else users.take(rows)


@dataclass(frozen=True, eq=False, slots=True)
class SecretTrackers:
    """The accounts of secrets under the models of several observers, of one user: one row a model, one column a secret.

    A promise that holds under one model may fail under another; a kernel that keeps all rows keeps it for every
    observer who believes one of the models.

    >>> from seqveil.core.secrets.declared import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> trackers = SecretTrackers.start(model, ever(1, epsilon=0.5, window="first 3"))
    >>> trackers.rows[0][0].masses.round(6).tolist()
    [[[[0.405, 0.0], [0.095, 0.5]]]]
    >>> disclosed = trackers.observe([0.25, 0.75]).rows[0][0].latest
    >>> round(disclosed.prior, 6), round(disclosed.log_odds, 4), round(disclosed.posterior, 4)
    (0.595, 0.9861, 0.7975)
    """

    users: TrackedUsers
    row: int = 0

    @classmethod
    def start(
        cls,
        models: MarkovModel | Sequence[MarkovModel],
        secrets: Secret | Sequence[Secret],
        kept: bool = False,
        place: int = 0,
        memory: Sequence[Secret] = (),
    ) -> SecretTrackers:
        """One user before the first release. The models share one alphabet.

        Parameters:
            kept: a mechanism keeps the secrets; the account of a window that is over is then closed, with a bound from
                above, as soon as it can no longer be broken. Else it stays open until later releases can reveal
                nothing more.
            place: the slot of its week (or day) that the first event is in, for secrets that follow the clock.
            memory: the secrets by whose automata kernels may go.
        """
        chains = [models] if isinstance(models, MarkovModel) else list(models)
        wanted = [secrets] if isinstance(secrets, Secret) else list(secrets)
        if any(chain.alphabet != chains[0].alphabet for chain in chains):
            raise InputError("the models of several observers must share one alphabet; fit them with the same one")
        rows = []
        for chain in chains:
            automata = Automata([begun(chain, secret, place) for secret in memory])
            rows.append(tuple(SecretTracker.start(chain, secret, kept, place, automata) for secret in wanted))
        return cls(TrackedUsers(tuple(rows), np.full(1, -1)))

    @property
    def alone(self) -> TrackedUsers:
        """The accounts of this user alone."""
        return self.users.take(slice(self.row, self.row + 1))

    @property
    def rows(self) -> tuple[tuple[SecretTracker, ...], ...]:
        """The account of each secret under each model."""
        return self.alone.rows

    @property
    def forgot(self) -> int:
        """The event from which kernels go by symbol alone, since nothing is remembered of the raw stream; -1: none."""
        return int(self.users.forgot[self.row])

    def observe(self, column: ArrayLike) -> SecretTrackers:
        """The accounts after a release with `column` = Q(y|·), of any mechanism; only proportions matter."""
        self.check_room()
        return SecretTrackers(self.alone.observe(np.array([column], np.float64)))

    def check_room(self) -> None:
        """Refuse one event more than the promises were made for, before anything is drawn."""
        if self.limit is not None and self.users.step >= self.limit:
            what = "was promised for" if self.users.own[0].kept else "can be measured in"
            raise InputError(f"this secret {what} streams of at most {self.limit} events; {self.beyond}")

    @property
    def limit(self) -> int | None:
        """The number of events that the promises were made for; None for no limit."""
        limits = (tracker.limit for row in self.users.rows for tracker in row)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def beyond(self) -> str:
        """Why the promises go no further, and what to do: the end of a message."""
        every = (tracker for row in self.users.rows for tracker in row)
        return "" if self.limit is None else next(one.ahead.beyond for one in every if one.limit == self.limit)

    def worst(self) -> list[SecretTracker]:
        """For every secret, the account of the observer who learned most about it."""
        columns = zip(*self.rows, strict=True)
        return [max(column, key=lambda one: one.worst.worst(one.secret.sides)) for column in columns]
