"""One release as a pure step: (setting, state, symbols, randomness) → (release, next state), for one user or many.

The setting and the state are public: an observer who has the model and the releases can compute both. Raw symbols enter
as an argument and leave no trace but the draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering, mechanisms
from seqveil.core import times as clock
from seqveil.core.alphabet import UNKNOWN as UNKNOWN
from seqveil.core.alphabet import WITHHELD as WITHHELD
from seqveil.core.compiled import took_step
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints, Kernels, to_weights
from seqveil.core.leakage import Leakages, cost, weight_range
from seqveil.core.mechanisms.base import Asked, Made
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import Randomness, rows
from seqveil.core.secrets.account import together
from seqveil.core.secrets.tables import GuardingTable
from seqveil.engine import budget
from seqveil.engine.budget import GONE
from seqveil.engine.secrets import Remembered, joint_beliefs, release_each, states_of
from seqveil.engine.state import SecretAccounts
from seqveil.engine.state import State as State
from seqveil.engine.terms import Terms as Terms

OTHER_SECRETS = (
    "a release cannot have come from this mechanism with this model and these secrets; check that model, secrets, "
    "observers, side_information, epsilon and withhold are those of the release"
)
NOTHING = -1  # the code of a release that was not made, because the budget is spent and the policy says stop
REFUSED = -3  # of an event that was not taken, because its call ended before

Part = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Released:
    """What one step made public, one row a user: the release, its ε, and its distribution for each symbol."""

    codes: Ints  # (B,) NOTHING where nothing was released, WITHHELD where that says something
    epsilons: Floats  # (B,)
    columns: Ints  # (B, n) Q(released | x) · 2**62; ones where nothing was released
    beliefs: Floats  # (B, n) before the release
    weights: Weights
    remembered: Ints  # (B, Z) the same as `columns` by what kernels go by, symbol and memory: z = n·m + x

    @cached_property
    def costs(self) -> Floats:
        """What each release cost (`leakage.cost`), 0 where nothing was released: (B,)."""
        return self.weights.costs

    def take(self, users: Part) -> Released:
        """Of some users."""
        return Released(*(getattr(self, f.name)[users] for f in fields(self)))


@dataclass(frozen=True, eq=False)
class Weights:
    """The columns of releases as a chain weighs them: least, largest and mean weight over what it allows, (B,) each."""

    low: Ints
    high: Ints
    marginal: Floats
    terms: int  # of each mean

    @property
    def costs(self) -> Floats:
        """What each release cost (`leakage.cost`): (B,)."""
        return cost(self.low, self.high, self.marginal, self.terms)

    def __getitem__(self, users: Part) -> Weights:
        return Weights(self.low[users], self.high[users], self.marginal[users], self.terms)


def step(
    setting: Terms,
    state: State,
    codes: Ints,
    randomness: Randomness,
    times: Floats | None = None,
    memory: Remembered | None = None,
) -> tuple[Released, State]:
    """Release one symbol for each user and charge it; `memory`, what is remembered of raw streams, goes on in place.

    *Guarantee*: for a sound mechanism each user's lifts are within the ε used, on both sides, and the leakage of the
    stream so far is what the next state's account says; a budget is never passed. A code UNKNOWN, a value outside the
    alphabet, is released by a draw from the kernel's marginal, at the ε that any symbol would have had there: its lift
    is 1, and it is within the LDP level of every symbol (`hidden`).
    """
    known = located(setting, state, times)
    held = memory or Remembered(lost=np.ones(len(state), bool))
    truths = _Truths(setting, known, raw_codes(codes, setting.model.n, state.steps.size), randomness, held)
    return _advance(setting, known, truths, times)


TIMELESS_SECRETS = "secrets that follow the clock (during, windows of a day) need the time of each event; pass time=…"
TIMELESS = "a budget per seconds needs the time of each release; pass time=…"


def check_times(setting: Terms, users: Part, times: Floats | None, latest: Floats) -> None:
    """Refuse, before anything of a call is drawn, times that a budget per seconds cannot use.

    `latest`: for each event, the last time of its user before the call.
    """
    if setting.budget.seconds is None or not users.size:
        return
    if times is None:
        raise InputError(TIMELESS)
    clock.check(times, setting.budget.seconds)
    budget.check_times(users, times, latest)


def raw_codes(codes: Any, n: int, count: int | None = None) -> Ints:
    """The codes of raw symbols, UNKNOWN among them, through the gate.

    >>> raw_codes([0, 1], 2)
    array([0, 1])
    """
    return gate(codes, n, count, (UNKNOWN,))


def hidden(setting: Terms, states: Floats, codes: Ints, randomness: Randomness) -> Ints:
    """The codes to draw for: in place of each UNKNOWN a symbol from the public belief b, by one more draw of its event.

    A draw of x from b and then of y from Q(·|x) is one from the marginal Σ_x b(x) Q(y|x). That is what the belief
    expects of y, so the lift is 1; and it is a mixture of rows with public weights, so every bound on the ratio of two
    rows holds between it and any row. Nothing else of the event differs.
    """
    lost = np.flatnonzero(codes == UNKNOWN)
    if not lost.size:
        return codes
    filled = codes.copy()
    filled[lost] = drawn(filtering.symbols(setting.model, states[lost]), rows(randomness, lost).draw(lost.size))
    return filled


def drawn(distributions: Floats, thrown: Ints) -> Ints:
    """A symbol from each distribution (B, n), by one draw each; what has no probability is never drawn."""
    reached = np.cumsum(to_weights(distributions), axis=1)
    return np.asarray((reached <= thrown[:, None]).sum(1), np.int64)


def observe(
    setting: Terms,
    state: State,
    codes: Ints,
    times: Floats | None = None,
    epsilons: Floats | None = None,
    forgot: NDArray[np.bool_] | None = None,
) -> tuple[Released, State]:
    """The same step as an observer sees it: the release is given, nothing private is needed.

    `forgot` says of whom nothing was remembered from this event on, as the record of the release does.

    Where declared secrets are kept no budget ends, so NOTHING is what was WITHHELD. `epsilons` are those that the
    releases used, where that is known; else they follow from the budget.
    """
    known, given = located(setting, state, times), released_codes(setting, codes, len(state))
    source = _Given(given, Remembered(lost=forgot))
    return _advance(setting, known, source, times, None if epsilons is None else (epsilons, given == NOTHING))


def located(setting: Terms, state: State, times: Floats | None) -> State:
    """The state where it is known when the coming events come: nothing changes, but for secrets that follow the clock.

    Then a stream begins in the slot of its first event, and each later event must lie in the next slot: with an event
    left out, or two in one slot, the secrets would be about other hours than the clock's.
    """
    if setting.in_blocks:
        raise InputError("blocks are released by `engine.step.step`, with a hidden bit for each stream")
    if not setting.clocked:
        return state
    if times is None or len(times) != len(state):
        raise InputError(TIMELESS_SECRETS)
    slots, new = setting.slots.numbers(clock.seconds(times)), state.steps == 0
    check_slots(np.where(new, slots, state.first), state.steps, slots)
    if not new.any():
        return state
    assert state.trackers is not None
    trackers = state.trackers.copy()
    for row in np.flatnonzero(new).tolist():
        trackers[row] = setting.trackers_from(int(slots[row]))
    return replace(state, first=np.where(new, slots, state.first), trackers=trackers)


def check_slots(first: Ints, seqs: Ints, slots: Ints) -> None:
    """Refuse an event that does not lie in its slot: that of its stream's first event, and its number on from there."""
    amiss = slots != first + seqs
    if amiss.any():
        place = int(amiss.argmax())
        raise InputError(
            f"event {place}: secrets that follow the clock need one event in each slot, and this one lies in another "
            "than the next; send each slot's event, with a time in it",
            place,
        )


def released_codes(setting: Terms, codes: Any, count: int | None = None) -> Ints:
    """The codes of releases through the gate, what was WITHHELD as NOTHING."""
    also = (NOTHING, WITHHELD) if setting.guards else (NOTHING,)
    given = gate(codes, setting.model.n, count, also, DataError)
    return np.where(given == WITHHELD, NOTHING, given) if setting.guards else given


def gate(
    codes: Any, n: int, count: int | None = None, also: tuple[int, ...] = (), problem: type[InputError] = InputError
) -> Ints:
    """The codes as every path takes them, compiled or not: whole numbers 0..n-1, or one of `also`, in `count` places.

    Compiled code looks nothing up in vain: what passes here is all it ever sees.
    """
    given = np.asarray(codes)
    whole = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
    if not whole or (count is not None and given.size != count):
        many = "" if count is None else f"{count} "
        raise problem(f"expected {many}codes as whole numbers, got {given.dtype} of shape {given.shape}; encode first")
    if given.size == 1 and 0 <= given[0] < n:  # one symbol, as of a session: quicker without looking for extremes
        return given.astype(np.int64, copy=False)
    if given.size and not (given.min() >= 0 and given.max() < n):
        wrong = ((given < 0) & ~np.isin(given, also)) | (given >= n)
        if wrong.any():
            place = int(wrong.argmax())
            raise problem(
                f"event {place}: expected codes, whole numbers 0..{n - 1}; encode symbols by the model's alphabet"
            )
    return given.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False, repr=False)
class _Truths:
    """Raw symbols and the randomness that decide what is released for them."""

    setting: Terms
    state: State
    codes: Ints
    randomness: Randomness
    memory: Remembered

    def fit(self, silent: NDArray[np.bool_]) -> None:
        """Raw symbols come whether or not they are released."""

    def everyone(self) -> _Thrown:
        return self._thrown(self.codes, self.state.states, self.randomness)

    def of(self, part: Part) -> _Thrown:
        return self._thrown(self.codes[part], self.state.states[part], rows(self.randomness, part))

    def _thrown(self, codes: Ints, states: Floats, randomness: Randomness) -> _Thrown:
        if np.count_nonzero(codes == UNKNOWN):  # many times quicker than `any` where there are few
            codes = hidden(self.setting, states, codes, randomness)
        return _Thrown(codes, randomness.draw(codes.size), self.memory)


@dataclass(frozen=True, eq=False, repr=False)
class _Thrown:
    """Raw symbols of some users, and a draw thrown for each."""

    codes: Ints
    randomness: Ints
    memory: Remembered

    def some(self, part: Part) -> _Thrown:
        return _Thrown(self.codes[part], self.randomness[part], self.memory)

    def quickly(self, setting: Terms, beliefs: Floats, epsilon: float) -> Made | None:
        asked = Asked(self.codes, self.randomness)
        return mechanisms.get(setting.mechanism).release(beliefs, epsilon, setting.distortion, asked)

    def pick(self, built: Kernels) -> Ints:
        return built.pick(self.codes, self.randomness)

    def pick_one(self, user: int, made: GuardingTable, row: int) -> int:
        return made.pick(row + int(self.codes[user]), int(self.randomness[user]))

    def asked(self, part: Part, rows: Ints) -> tuple[Ints | None, Ints | None, Ints | None]:
        """The sources of some users, whose rows begin there, and their draws; no releases."""
        return rows + self.codes[part], self.randomness[part], None


@dataclass(frozen=True, eq=False, repr=False)
class _Given:
    """Releases that were made."""

    codes: Ints
    memory: Remembered

    def fit(self, silent: NDArray[np.bool_]) -> None:
        """Nothing stands exactly where the budget's policy says that nothing is released."""
        if ((self.codes == NOTHING) != silent).any():
            raise DataError(
                "a release stands where the budget allows none, or is missing where it allows one; check epsilon "
                "and budget, and that no row was lost"
            )

    def everyone(self) -> _Given:
        return self

    def of(self, part: Part) -> _Given:
        return _Given(self.codes[part], self.memory)

    some = of

    def quickly(self, setting: Terms, beliefs: Floats, epsilon: float) -> Made | None:
        asked = Asked(given=self.codes)
        made = mechanisms.get(setting.mechanism).release(beliefs, epsilon, setting.distortion, asked)
        return None if made is not None and made.impossible else made

    def pick(self, built: Kernels) -> Ints:
        match = (built.outputs == self.codes[:, None]) & (built.extremes()[1] > 0)
        if not match.any(1).all():
            raise DataError(
                "a release cannot have come from this mechanism with this model and ε; check that model, mechanism, "
                "epsilon and budget are those of the release"
            )
        return match.argmax(1)

    def pick_one(self, user: int, made: GuardingTable, row: int) -> int:
        code = int(self.codes[user])
        place = np.flatnonzero(made.outputs == (WITHHELD if code == NOTHING else code))
        if not place.size:
            raise DataError(OTHER_SECRETS)
        return int(place[0])

    def asked(self, part: Part, rows: Ints) -> tuple[Ints | None, Ints | None, Ints | None]:
        """The releases of some users; no sources and draws."""
        if (self.codes[part] < 0).any():
            raise DataError(OTHER_SECRETS)
        return None, None, self.codes[part]


def kernels(setting: Terms, beliefs: Floats, epsilon: float) -> Kernels:
    """The kernels for these beliefs at one ε; 0 gives the best guess, which leaks nothing."""
    if epsilon < GONE:
        return mechanisms.constant(beliefs, setting.distortion)
    return mechanisms.get(setting.mechanism).kernels(beliefs, epsilon, setting.distortion)


def allowance(setting: Terms, state: State, times: Floats | None = None) -> tuple[Floats, NDArray[np.bool_]]:
    """ε of each user's next release, and whether the budget is gone for it."""
    if setting.budget.seconds is not None and times is None:
        raise InputError(TIMELESS)
    if setting.budget.seconds is not None and times is not None:
        clock.check(times, setting.budget.seconds)
    wanted = np.full(state.steps.shape, setting.epsilon)
    if not setting.budget.limited:  # what is wanted is nothing, or enough to disclose something
        return wanted, np.zeros(wanted.size, bool)
    recent = state.window.within(moment(setting, state, times), setting.budget.span)
    allowed = setting.budget.allow(wanted, state.account.worst, recent)
    if setting.budget.ldp_total is not None:
        allowed = np.minimum(allowed, setting.budget.ldp_left(state.ldp, state.steps) / setting.mechanism.ldp)
    if setting.budget.delta is not None:  # what was composed is so many releases, and no more
        allowed = np.where(state.steps < (setting.budget.over or 0), allowed, 0.0)
    faint = allowed < GONE
    return np.where(faint, 0.0, allowed), faint & (wanted > 0)


def ldp_cost(setting: Terms, epsilons: Floats) -> Floats:
    """What releases at these ε add to the LDP level of a stream, whatever model is true."""
    spent = epsilons > 0
    if np.count_nonzero(spent) == spent.size:
        return setting.mechanism.ldp * epsilons
    return np.where(spent, setting.mechanism.ldp * np.where(spent, epsilons, 1.0), 0.0)


def moment(setting: Terms, state: State, times: Floats | None) -> Floats:
    """What a window counts in: the times of releases, or each user's events so far."""
    return state.steps.astype(np.float64) if setting.budget.seconds is None or times is None else times


def _advance(
    setting: Terms,
    state: State,
    source: _Truths | _Given,
    times: Floats | None,
    used: tuple[Floats, Mask] | None = None,
) -> tuple[Released, State]:
    """One step from `state`; who is refused stays there. `used` is what `allowance` was, where that is known."""
    took_step(state.steps.size)
    epsilons, gone = allowance(setting, state, times) if used is None else used
    beliefs = filtering.symbols(setting.model, state.states)
    if state.trackers is not None:
        check_room(state.trackers)
    if setting.guards:
        assert state.trackers is not None
        codes, wide, trackers = release_each(setting, state.trackers, source.everyone(), source.memory)
        weights, after = _take_in_guarded(setting, state, wide, trackers, epsilons)
        return Released(codes, epsilons, _by_symbol(state, wide), beliefs, weights, wide), after
    codes, columns = _within_budget(setting, beliefs, epsilons, gone, source)
    weights, after = take_in(setting, state, columns, epsilons, times)
    return Released(codes, epsilons, columns, beliefs, weights, columns), after


def _take_in_guarded(
    setting: Terms, state: State, wide: Ints, trackers: SecretAccounts, epsilons: Floats
) -> tuple[Weights, State]:
    """Charge releases by kernels that keep secrets, whose accounts after them are known; what they weigh.

    Where rows go by memory too, the filter of the stream is that of the accounts, and what is charged about the whole
    sequence is a bound: a symbol counts with its largest and its least row.
    """
    n = setting.model.n
    if wide.shape[1] == n:
        states, account, weights = charge(setting.model, state.states, state.account, wide)
    else:
        assert state.trackers is not None
        rows = wide.reshape(len(wide), -1, n)
        marginal = (joint_beliefs(state.trackers) * wide).sum(1)
        possible = filtering.possible(setting.model, state.states)
        low, high = weight_range(rows.min(1), possible)[0], weight_range(rows.max(1), possible)[1]
        account = state.account.charge_between(setting.model, rows.min(1), rows.max(1), marginal, low, high)
        states, weights = states_of(trackers).sum(1), Weights(low, high, marginal, setting.model.size)
    spent, ldp = state.spent + epsilons, state.ldp + ldp_cost(setting, epsilons)
    return weights, State(states, state.steps + 1, spent, account, state.window, ldp, state.first, trackers)


def _by_symbol(state: State, wide: Ints) -> Ints:
    """Columns by symbol and memory as those by symbol, for somebody who knows the releases so far: (B, Z) → (B, n)."""
    if state.trackers is None or wide.shape[1] == state.trackers[0].users.n:
        return wide
    shape = len(wide), -1, state.trackers[0].users.n
    beliefs = np.asarray(joint_beliefs(state.trackers)).reshape(shape)
    shares = beliefs / np.where(beliefs.sum(1, keepdims=True) > 0, beliefs.sum(1, keepdims=True), 1.0)
    return np.asarray((shares * wide.reshape(shape)).sum(1), np.int64)


def take_in(
    setting: Terms, state: State, columns: Ints, epsilons: Floats, times: Floats | None = None
) -> tuple[Weights, State]:
    """Charge releases at these ε by their columns, from whichever terms' kernels they were drawn; what they weigh."""
    states, account, weights = charge(setting.model, state.states, state.account, columns)
    window = state.window
    if setting.budget.span is not None:
        window = window.push(moment(setting, state, times), weights.costs, setting.budget.span)
    spent, ldp = state.spent + epsilons, state.ldp + ldp_cost(setting, epsilons)
    trackers = None if state.trackers is None else observed(state.trackers, columns)
    return weights, State(states, state.steps + 1, spent, account, window, ldp, state.first, trackers)


def _within_budget(
    setting: Terms, beliefs: Floats, epsilons: Floats, gone: Mask, source: _Truths | _Given
) -> tuple[Ints, Ints]:
    """The release of each user and its column, at these ε; where the budget is gone its policy decides."""
    silent = gone & (setting.budget.when_spent == "stop")
    source.fit(silent)
    users, n = beliefs.shape
    alike = users == 1 or (users > 0 and (epsilons == epsilons[0]).all())
    if alike and not np.count_nonzero(silent):  # nothing to put together
        return _choose(setting, beliefs, float(epsilons[0]), source.everyone())
    codes, columns = np.full(users, NOTHING, np.int64), np.ones((users, n), np.int64)
    for epsilon in np.unique(epsilons[~silent]).tolist():
        part = np.flatnonzero((epsilons == epsilon) & ~silent)
        codes[part], columns[part] = _choose(setting, beliefs[part], epsilon, source.of(part))
    return codes, columns


def check_room(trackers: SecretAccounts) -> None:
    """Refuse one event more than declared secrets were promised for, before anything is drawn."""
    for each in trackers:
        each.check_room()


def observed(trackers: SecretAccounts, columns: Ints) -> SecretAccounts:
    """The accounts of declared secrets after releases with these columns, each user's with its own."""
    after = np.empty(len(trackers), object)
    for places, users in together(trackers):
        after[places] = users.observe(columns[places]).each()
    return after


def _choose(setting: Terms, beliefs: Floats, epsilon: float, source: _Thrown | _Given) -> tuple[Ints, Ints]:
    """The release of each user and its column: compiled where that is there, else from the kernels, part by part."""
    made = None if epsilon < GONE else source.quickly(setting, beliefs, epsilon)
    if made is not None and not made.left.size:
        return made.codes, made.columns
    users, n = beliefs.shape
    codes, columns = np.empty(users, np.int64), np.empty((users, n), np.int64)
    left = np.arange(users)
    if made is not None:
        codes, columns, left = made.codes, made.columns, made.left
    for part in _parts(setting, left, epsilon):
        built = kernels(setting, beliefs[part], epsilon)
        drawn = source.some(part).pick(built)
        codes[part], columns[part] = built.outputs[np.arange(part.size), drawn], built.column(drawn)
    return codes, columns


def charge(model: MarkovModel, states: Floats, account: Leakages, columns: Ints) -> tuple[Floats, Leakages, Weights]:
    """Take in releases by their columns under a chain: the next states, the account, and what they weigh.

    Whichever model had chosen the kernels, the columns are public, and any chain can weigh them.
    """
    ahead, marginal = filtering.move(model, states, columns)
    low, high = weight_range(columns, filtering.possible(model, states))
    after = account.charge(model, columns, marginal, low, high)
    return ahead, after, Weights(low, high, marginal, model.size)


def _parts(setting: Terms, users: NDArray[np.intp], epsilon: float) -> list[NDArray[np.intp]]:
    """Users in parts whose kernels fit the memory of a few megabytes."""
    n, wide = setting.model.n, getattr(setting.mechanism, "wide", False)
    table = n * (n if wide else min(n, math.ceil(1 + math.exp(min(epsilon, 12.0)))))
    size = max(1, 1_000_000 // table)
    return [users[at : at + size] for at in range(0, users.size, size)]
