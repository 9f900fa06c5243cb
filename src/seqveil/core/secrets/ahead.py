"""What the future holds: the probability of each value of a secret from where a window stands, swept backwards.

With `left` events of a window still to come after the present one, state s of the chain and state a of the automaton,

    h_v(a, s; 0)      = [label of a is v]
    h_v(a, s; left+1) = Σ_s' P(s'|s) h_v(δ(a, symbol of s'), s'; left),

and d events before a window begins

    g_v(s; 0)   = h_v(δ(0, symbol of s), s; N-1)
    g_v(s; d+1) = Σ_s' P(s'|s) g_v(s'; d).

A *trait* is a window that was over before the stream began, and that later releases still tell about: the state says
the answer, h_v(s) = [s gives answer v]. All are sums of products that are not negative, so their relative error is that
of adding and multiplying, however rare a secret is; nothing is ever got by subtracting from one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.bulk import compiled, form, in_parts
from seqveil.core.errors import InputError, option
from seqveil.core.kernel import UNIT, Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Secret

LONGEST = 1000  # events of a stream, where a promise needs an end
MARGIN = 1e-9  # kernels aim at ε(1-MARGIN), so that what later releases tell may be forgotten once it is below MARGIN·ε
ROWS = 8  # the most that is remembered of a raw stream: beyond so many states of the automata rows go by symbol alone
CERTAIN = 1e-12
FAINTEST = 1e-280  # a window whose value is less likely than that cannot be counted in floating point
MEMORY = 1_000_000_000  # bytes that the tables of a secret may take
TILE = 128  # windows whose numbers are added at once
_WINDOWS_TRIED = 64


def swept(first: Floats, step: Callable[[int, Floats], Floats], count: int) -> Floats:
    """tables[0] = first, tables[i+1] = step(i, tables[i]): so many, stacked.

    >>> swept(np.ones(1), lambda i, table: table + i, 5)[:, 0].tolist()
    [1.0, 1.0, 2.0, 4.0, 7.0]
    """
    size = count * first.nbytes
    if size > MEMORY:
        raise InputError(
            f"the tables of this secret need {size / 1e9:.1f} GB, more than {MEMORY / 1e9:g}; give it a shorter window "
            "or use a model with fewer states"
        )
    tables = np.empty((count, *first.shape))
    tables[0] = first
    for i in range(count - 1):
        tables[i + 1] = step(i, tables[i])
    return tables


class Ahead:
    """The backward tables of one secret under one model, and what follows from them for any stream; never changes.

    `length` events make a window; for the stream as the session ends it, the windows are the first T events for all
    T up to LONGEST, and `family` is true. `offset` is the place in its window of a stream's first event: a stream that
    begins in the middle of a day has a first window that is the rest of it.
    """

    offset = 0

    def __init__(self, model: MarkovModel, secret: Secret) -> None:
        self.model, self.secret, self.longest = model, secret, LONGEST
        self.scale = 1.0 if secret.epsilon is None else secret.epsilon  # of which MARGIN is next to nothing
        self.aim, self._places = self.scale * (1 - MARGIN), np.arange(model.size)
        self._prepare()

    def _prepare(self) -> None:
        model, secret = self.model, self.secret
        compiled = secret.over(model.alphabet)
        self.automaton = compiled.automaton
        self.values, self.memory = self.automaton.values, self.automaton.size
        self.family = compiled.length is None
        self.length = LONGEST if compiled.length is None else compiled.length
        self.repeats = secret.repeats
        self._clock = compiled.clock
        ticks = model.n * np.arange(int(compiled.clock.max()) + 1)
        self._targets: list[Ints] = [self.automaton.moves[:, model.newest + tick] for tick in ticks]  # (A, S) each
        self._labelled = (self.automaton.labels[None, :] == np.arange(self.values)[:, None]).astype(np.float64)
        first = np.repeat(self._labelled[:, :, None], model.size, axis=2)
        self.inside = swept(first, self._back, self.length)  # h_v(a, s; left): (N, V, A, S)
        if self.family:  # side by side, as `_extremes` reads them
            self._laid = np.ascontiguousarray(np.moveaxis(self.inside, 0, -1))
            self.inside = np.moveaxis(self._laid, -1, 0)
        self.at_start = self._from_place(0)  # g_v(s; 0): (V, S)
        self._check_uncertain()
        self.lead, self.untracked = self._watched()
        self.before = swept(self.at_start, lambda _, table: filtering.pull(model, table), self.lead)  # g_v(s; d)
        self._beginnings: dict[int, Ahead] = {0: self}

    def beginning(self, offset: int) -> Ahead:
        """The same for streams whose first event stands at this place of its window; all tables are shared."""
        if offset not in self._beginnings:
            _ = self.disclosed_later, self._possible  # made once, for all beginnings
            made = copy.copy(self)
            for name in ("countable", "at_first"):
                made.__dict__.pop(name, None)
            made.offset = offset
            self._beginnings[offset] = made
        return self._beginnings[offset]

    def target(self, position: int) -> Ints:
        """State of the automaton after reading each state's symbol at this event of a window: (A, S)."""
        return self._targets[int(self._clock[position % len(self._clock)])]

    def read(self, distribution: Floats, position: int) -> Floats:
        """Distribution (A, S) of automaton and next state before that state's symbol is read, as the one after."""
        return filtering.read(distribution, self.target(position))

    def opened(self, states: Floats, place: int = 0) -> Floats:
        """Distribution (A, S) at the first event of a window, at this place, from that of the event's state."""
        distribution = np.zeros((self.automaton.size, self.model.size))
        distribution[0] = states
        return self.read(distribution, place)

    def by_value(self, distribution: Floats) -> Floats:
        """Distribution (A, S) at the end of a window as the distribution of its value and the state: (V, S)."""
        flat = self.automaton.labels[:, None] * self.model.size + self._places
        size = self.values * self.model.size
        return filtering.gathered(flat.ravel(), distribution.ravel(), size).reshape(self.values, self.model.size)

    def _back(self, left: int, table: Floats) -> Floats:
        values, size, states = table.shape
        moved = table[:, self.target(self.length - 1 - left), self._places]
        return filtering.pull(self.model, moved.reshape(-1, states)).reshape(values, size, states)

    @cached_property
    def at_first(self) -> Floats:
        """g_v(s; 0) for the first window of a stream, which may begin in the middle of one: (V, S)."""
        return self._from_place(self.offset)

    def _from_place(self, place: int) -> Floats:
        left = self.length - 1 - place
        return self.inside[left][:, self.target(place)[0], self._places]

    def _watched(self) -> tuple[int, float]:
        """How many events before it begins a window is watched, its first event counting as one, and the most that can
        have been disclosed about it before that.

        Releases up to d events before a window tell at most R_d = max over states of log g_v(s; d)/g_v'(s; d) minus the
        least of it, because the window depends on them through the state alone. R_d never grows with d: a state's g is
        an average of those one step later. Once R_d is below MARGIN·ε the window need not be watched yet; where the
        tables would take too much memory, once R_d is below ε, when it could still not be broken.
        """
        table, count = self.at_start, 1
        while self.repeats:
            table = filtering.pull(self.model, table)
            disclosed = self._disclosed(table)
            full = count == self.longest or (count + 1) * table.nbytes > MEMORY
            if disclosed <= MARGIN * self.scale or count == self.longest or (full and disclosed <= self.aim):
                return count, disclosed
            count += 1
        return count, 0.0

    @cached_property
    def disclosed_later(self) -> float:
        """The most that all releases after the end of the first window can tell about it: by the state that follows."""
        distribution = self.opened(self.model.initial)
        for position in range(1, self.length):
            distribution = self.read(self.model.advance(distribution), position)
        return self._disclosed(self.model.advance(self.by_value(distribution)))

    @property
    def limit(self) -> int | None:
        """The number of events that can be promised for; None for no limit."""
        return min((each for each in (self.foreseen, self.countable) if each is not None), default=None)

    @property
    def foreseen(self) -> int | None:
        """The number of events up to which every window is watched in time; None for all."""
        if self.family:
            return self.longest
        if self.repeats and self.untracked > self.aim:
            return max(self.length, self.longest // self.length * self.length) - self.offset
        return None

    @property
    def beyond(self) -> str:
        """Why there is no promise about longer streams, and what to do: the end of a message."""
        why, remedy = "", "this model hardly forgets: fit types that switch (in Python switch=0.01), or longer slots"
        if self.limit != self.foreseen:
            faint = f"less likely than {FAINTEST:g}, and such odds cannot be counted"
            why, remedy = f"beyond that the model makes the secret, or its opposite, {faint}: ", "smooth the model"
        remedy = "give the secret a window" if self.family else remedy
        return f"{why}{remedy}; what two streams reveal about one person adds up"

    @cached_property
    def countable(self) -> int | None:
        """Events before the end of the first window that has a value less likely than FAINTEST; None: there is none.

        On a chain with states that it leaves for good, the probability of coming back falls without end, and in the end
        no float holds it: odds of such a window would be rounded to anything. What the model rules out altogether is no
        value of a window. Where no promise needs an end (`foreseen` is None), the odds of all windows after the first
        `lead` events agree within e^ε, so that these tell of all others.
        """
        if all((priors >= FAINTEST).all() for priors in self._priors(self._windows)):
            return None
        before = 0
        for events, priors in self._log_priors():
            if (np.isfinite(priors) & (priors < np.log(FAINTEST))).any():
                return before
            before = events
        return None

    def _priors(self, windows: int) -> Iterator[Floats]:
        """Pr(v) (V,) of so many windows, from the first on; of a family, of all."""
        if self.family:
            yield from self.family_priors
            return
        distribution = self.model.initial
        for window in range(windows):
            yield ((self.at_start if window else self.at_first) * distribution).sum(1)
            for _ in range(min(self.span(window)[1], self.longest)):
                distribution = self.model.advance(distribution)

    @property
    def _windows(self) -> int:
        """How many windows, from the first on, tell of all."""
        if not self.repeats:
            return 1
        reach = self.lead + self.length if self.foreseen is None else self.foreseen + self.offset
        return max(1, reach // self.length)

    def span(self, window: int) -> tuple[int, int]:
        """The number of a window's first event, and how many it has: the first one what is left of it."""
        if self.family:
            return 0, window
        return (window * self.length - self.offset, self.length) if window else (0, self.length - self.offset)

    def holding(self, step: int) -> int:
        """Number of the window that holds an event; of those of a family, the one that ends with it."""
        if self.family:
            return step + 1
        return (self.offset + step) // self.length if self.repeats else 0

    def furthest(self, step: int) -> int:
        """Number of the last window that is watched at an event."""
        if not self.repeats:
            return 0
        reached = (self.offset + step + self.lead - 1) // self.length
        return reached if self.limit is None else min(reached, (self.offset + self.limit) // self.length - 1)

    def left(self, windows: Ints, step: int) -> Ints:
        """How many events of these windows come after an event: below 0 once they ended, `length` before they begin."""
        ends = windows if self.family else (windows + 1) * self.length - self.offset
        return ends - step - 1

    def over_states(self, left: Ints) -> Floats:
        """h_v(a, s; left) of windows in progress, and g_v(s) of coming ones, for every a: (W, V, A, S)."""
        inside = self.inside[left[left < self.length]]
        coming = self.before[left[left >= self.length] - self.length + 1][:, :, None]
        if not coming.size:
            return inside
        return np.concatenate([inside, np.repeat(coming, inside.shape[2], axis=2)])

    def _log_priors(self) -> Iterator[tuple[int, Floats]]:
        """The event that each window ends with, and log Pr(v) of it (V,), however small, carried forward."""
        disclosed_nothing, start = np.ones(self.model.n), filtering.start(self.model, 1)
        distribution, events = self.opened(start[0], self.offset), 0
        for window in range(self.length if self.family else self._windows):
            here = 0 if window else self.offset
            for position in range(here + 1, 1 if self.family else self.length):
                distribution = self.read(filtering.carry(self.model, distribution, disclosed_nothing), position)
            events += 1 if self.family else self.span(window)[1]
            yield events, np.logaddexp.reduce(filtering.as_logs(self.by_value(distribution)), axis=1)
            distribution = filtering.carry(self.model, distribution, disclosed_nothing)
            if self.family:
                distribution = self.read(distribution, events)
            else:
                places = np.tile(self._places, len(distribution))
                distribution = self.opened(filtering.gathered(places, distribution.ravel(), self.model.size))

    def _disclosed(self, table: Floats) -> float:
        with np.errstate(divide="ignore"):
            logs = np.log(table[:, self._possible])
        return _span(logs)

    @cached_property
    def _possible(self) -> NDArray[np.bool_]:
        """States that a stream can come to."""
        found = self.model.initial > 0
        while True:
            more = found | (self.model.advance(found.astype(np.float64)) > 0)
            if (more == found).all():
                return found
            found = more

    @cached_property
    def family_priors(self) -> Floats:
        """Pr(v) for the first T events, T = 1..LONGEST: (T, V)."""
        distribution = self.opened(self.model.initial)
        return np.array([(table * distribution).sum((1, 2)) for table in self.inside])

    @cached_property
    def open(self) -> Ints:
        """The T of all windows "the first T events" that are promised and about which something can be disclosed."""
        windows = np.flatnonzero((self.family_priors > 0.0).sum(1) > 1) + 1
        return windows[windows <= (self.limit or 0)]

    @cached_property
    def _scales(self) -> Floats:
        """1/Pr(v) of all windows of a family, 0 where nothing can be disclosed: (V, T)."""
        priors, scales = self.family_priors[self.open - 1].T, np.zeros(self.family_priors.T.shape)
        scales[:, self.open - 1] = np.where(priors > 0.0, 1.0 / np.where(priors > 0.0, priors, 1.0), 0.0)
        return scales

    def family_odds(self, joint: Floats, own: Ints, step: int) -> tuple[Floats, Floats]:
        """What a release as event number `step` says about the windows that end with it or later.

        `joint` (B, R, S) is the probability of the automata's and the chain's state and of the release, `own` (R,) the
        state of the secret's automaton. The distribution (B, V) of the value of the window that ends now, and the least
        and the largest e^(log odds) of any, 1 among them: (B, 2).
        """
        first, ratios = np.zeros((len(joint), self.values)), np.ones((len(joint), 2))
        code, left = form(_extremes, len(joint)), int(self.open.max(initial=step)) - step
        tables, scales = self._laid[..., :left], self._scales[:, step : step + left]
        in_parts(len(joint), lambda part: code(joint[part], tables, own, scales, ratios[part]), joint[0].size)
        now = np.add.reduce(joint, 2)
        for state, value in enumerate(self.automaton.labels[own].tolist()):
            first[:, value] += now[:, state]
        return first / np.maximum(first.sum(1, keepdims=True), filtering.TINY), ratios

    def error(self, step: int) -> float:
        """Relative error, from above, of any ratio of two probabilities of this secret after `step` releases.

        Every table and distribution is a chain of sums of products of numbers that are not negative; each link adds at
        most the number of its terms, in units of rounding. Doubled twice: two probabilities, each with its prior.
        """
        links = step + 2 + self.length + (0 if self.family else self.lead)
        return 4 * UNIT * (links * self._terms + self.memory * self.model.size + self.model.n + 32)

    @cached_property
    def _terms(self) -> int:
        """The most terms a sum of one step forward or back has, with room for its products."""
        chain, whole = self.model.chain, self.model.n + self.model.size
        direct = max(np.diff(chain.indptr).max(), np.bincount(chain.indices, minlength=1).max())
        return int(direct) + 8 + (whole if self.model.backoff.any() else 0)

    def _check_uncertain(self) -> None:
        """Refuse a secret whose answer the model knows beforehand."""
        tried = self._priors(_WINDOWS_TRIED if self.repeats else 1)
        if not any(np.sort(priors)[-2] > CERTAIN for priors in tried):
            raise InputError(
                "under this model the secret is certain or impossible, so there is nothing to keep; "
                "check its values, its window and the model"
            )

    def check_countable(self) -> None:
        """Refuse a secret that is so unlikely, or so certain, from the first window on that its odds round away."""
        if self.countable == 0:
            raise InputError(
                f"the model makes the secret, its opposite, or a combination of answers less likely than {FAINTEST:g} "
                "from the first window on, and such odds cannot be counted; choose another window, or smooth the model"
            )


@compiled
def weigh(now: Any, tables: Any, own: Any, newest: Any, n: int, out: Any) -> None:
    """What each source (Z,) weighs for users, (B, C, Z): the sum over states s that show its symbol of the chance `now`
    (B, R, S) of (r, s) times the number of (own(r), s) in each of C tables, (A, S, C)."""
    rows, states, count = now.shape[1], now.shape[2], tables.shape[2]
    each, part, sums = rows * n // out.shape[2], np.zeros(count), np.zeros((out.shape[2], count))
    for user in range(len(now)):
        sums[:] = 0.0
        for r in range(rows):
            for s in range(states):
                chance = now[user, r, s]
                if chance > 0.0:
                    np.multiply(tables[own[r], s], chance, part)
                    z = r // each * n + newest[s]
                    np.add(sums[z], part, sums[z])
        out[user] = sums.T


@compiled
def _extremes(joint: Any, tables: Any, own: Any, scales: Any, ratios: Any) -> None:
    """Widen the extremes of each user's odds (B, 2) by those of windows whose tables lie side by side: (V, A, S, L).

    Numbers of many windows are added at once, those of one window in the order of the states: the same bits for
    everybody, compiled or not.
    """
    values, count, rows, states = len(tables), tables.shape[3], joint.shape[1], joint.shape[2]
    sums, part = np.zeros((values, TILE)), np.zeros(TILE)
    for begin in range(0, count, TILE):
        size = min(TILE, count - begin)
        for user in range(len(joint)):
            sums[:] = 0.0
            for v in range(values):
                for r in range(rows):
                    for s in range(states):
                        chance = joint[user, r, s]
                        if chance > 0.0:
                            np.multiply(tables[v, own[r], s, begin : begin + size], chance, part[:size])
                            np.add(sums[v, :size], part[:size], sums[v, :size])
            low, high = ratios[user, 0], ratios[user, 1]
            for k in range(begin, begin + size):
                least, most = sums[0, k - begin] * scales[0, k], sums[1, k - begin] * scales[1, k]
                seen = scales[0, k] > 0.0 and scales[1, k] > 0.0
                if values > 2:
                    least, most, seen = np.inf, 0.0, False
                    for v in range(values):
                        if scales[v, k] > 0.0:
                            lift, seen = sums[v, k - begin] * scales[v, k], seen or least < np.inf
                            least, most = min(least, lift), max(most, lift)
                if seen:
                    ratio = most / least if least > 0.0 else np.inf
                    low, high = min(low, ratio), max(high, ratio)
            ratios[user, 0], ratios[user, 1] = low, high


class Answered(Ahead):
    """What `Ahead` is for windows, for a trait: the answer of each state."""

    automaton: Any = None
    family, repeats, countable, length, lead, untracked, memory = False, False, None, 0, 1, 0.0, 1

    def _prepare(self) -> None:
        model = self.model
        if model.trait is None or model.trait.name != self.secret.text:
            raise InputError(f"the model does not know this trait; fit it to people's answers, with {option('trait')}")
        self.values = len(model.trait.answers)
        self.at_start = self.at_first = (model.answers == np.arange(self.values)[:, None]).astype(np.float64)
        self.before, self.inside = self.at_start[None], np.zeros((0, self.values, 1, model.size))
        if (self.at_start @ model.initial).min() <= CERTAIN:
            raise InputError("under this model an answer to the trait is certain or impossible; check its weights")


def _span(logs: Floats) -> float:
    """The most that any pair of rows differ by, seen from one column, against another column: (V, S) → a number."""
    worst = 0.0
    for one in range(len(logs)):
        for two in range(one):
            with np.errstate(invalid="ignore"):
                gap = logs[one] - logs[two]
            gap = gap[~np.isnan(gap)]  # a state from which neither can come
            if gap.size and gap.max() > gap.min():
                worst = max(worst, float(gap.max() - gap.min()))
    return worst


@lru_cache(maxsize=16)
def ahead(model: MarkovModel, secret: Secret) -> Ahead:
    """The tables of a secret under a model, shared by all streams that watch it."""
    return (Answered if secret.kind == "trait" else Ahead)(model, secret)


def begun(model: MarkovModel, secret: Secret, place: int) -> Ahead:
    """The same for streams whose first event is in this slot of its day or week, where the secret follows the clock."""
    plan = ahead(model, secret)
    return plan.beginning(place % plan.length) if secret.follows_clock else plan


class Automata:
    """The automata of some secrets, read side by side along a stream: one state r says where each of them stands.

    An automaton is in its first state where no window of its secret is in progress, so nothing here goes by a window
    that is over. A trait has none.

    >>> from seqveil.core.secrets.declared import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> plans = [ahead(model, ever(code, epsilon=0.5, window=2)) for code in (0, 1)]
    >>> automata = Automata(plans)
    >>> automata.read(np.array([[0, 0], [1, 0]]), np.array([1, 1]), 1).tolist()
    [[0, 1], [1, 1]]
    """

    def __init__(self, plans: Sequence[Ahead]) -> None:
        self.plans = tuple(plans)
        sizes = [plan.memory for plan in plans]
        self.size = math.prod(sizes)
        self._strides = np.cumprod([1, *sizes[:0:-1]])[::-1][: len(sizes)]
        self.states = np.arange(self.size) // self._strides[:, None] % np.array(sizes, np.int64)[:, None]  # (J, R)
        self._targets: dict[Any, Ints] = {}

    def target(self, step: int) -> Ints:
        """The state after reading the symbol that each state of the chain shows, at this event: (R, S)."""
        reads = []  # what each automaton does, and whether it begins anew; None where it is in no window
        for plan in self.plans:
            place = plan.offset + step
            position = place % plan.length if plan.repeats else place
            inside = plan.length and (plan.family or plan.repeats or place < plan.length)
            reads.append((plan.target(position), position == 0 or step == 0) if inside else None)
        key = tuple(None if read is None else (id(read[0]), read[1]) for read in reads)
        if key not in self._targets:
            made = np.zeros((self.size, self.plans[0].model.size), np.int64)
            for read, states, stride in zip(reads, self.states, self._strides.tolist(), strict=True):
                if read is not None:
                    made += stride * read[0][np.zeros_like(states) if read[1] else states]
            self._targets[key] = made
        return self._targets[key]

    def by_symbol(self, step: int) -> Ints:
        """The same by the symbol itself: (R, n)."""
        return self.target(step)[:, self._showing]

    def row(self, memory: Ints) -> Ints:
        """The states r of users (B,) from those of each automaton (B, J)."""
        return np.asarray((memory * self._strides).sum(1), np.int64)

    def read(self, memory: Ints, codes: Ints, step: int) -> Ints:
        """Where the automata stand (B, J) once these raw symbols (B,) came as event number `step`."""
        return self.states[:, self.by_symbol(step)[self.row(memory), codes]].T

    @cached_property
    def _showing(self) -> Ints:
        """A state of the chain that shows each symbol: (n,)."""
        model = self.plans[0].model
        showing = np.zeros(model.n, np.int64)
        showing[model.newest] = np.arange(model.size)
        return showing
