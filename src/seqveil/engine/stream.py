"""The state of streams and the one pure step: (terms, state, symbols, randomness) → (what was released, next state).

A state holds B streams in arrays, one row a user. All of it is public but `State.private`: an observer who has the
model and the releases computes the same by `observe`. Raw symbols leave no trace but the draw and what is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering, mechanisms
from seqveil.core import times as clock
from seqveil.core.alphabet import UNKNOWN as UNKNOWN
from seqveil.core.alphabet import WITHHELD as WITHHELD
from seqveil.core.bulk import ByUser, places_within, took_step
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints, Kernels, to_weights
from seqveil.core.leakage import Leakages, cost, pass_over, weight_range
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import Blocks
from seqveil.core.randomness import Randomness, rows
from seqveil.core.secrets.account import together
from seqveil.engine.budget import GONE, TIMELESS, Window
from seqveil.engine.policy import Terms as Terms
from seqveil.engine.secrets import NOTHING as NOTHING
from seqveil.engine.secrets import histories, joint_beliefs, release_each, states_of

TIMELESS_SECRETS = "secrets that follow the clock (during, windows of a day) need the time of each event; pass time=…"
REFUSED = -3  # of an event that was not taken, because its call ended before

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
SecretAccounts = NDArray[np.object_]  # of declared secrets: `SecretTrackers`, one a user
Done = TypeVar("Done")


@dataclass(frozen=True, eq=False, repr=False)
class Private(ByUser):
    """What a step needs to know of B streams that is not public, one row a user; None where a mechanism needs nothing.

    It is never in an output, in a repr or on a disk as it is.
    """

    bits: Mask | None = None  # (B,) of the running blocks: whether real
    memory: Ints | None = None  # (B, J) state of the raw stream in the automaton of each remembered secret

    @classmethod
    def start(cls, setting: Terms, users: int = 1) -> Private:
        """Of users of whom nothing was released yet."""
        memory = np.zeros((users, len(setting.remembered)), np.int64) if setting.remembered else None
        return cls(np.zeros(users, bool) if setting.in_blocks else None, memory)

    def __repr__(self) -> str:
        return "Private(…)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses `copy` and `pickle`, which would carry it to where it may be read."""
        raise InputError("what is private of a stream cannot be copied or pickled; derive it from the key, or seal it")


@dataclass(frozen=True, eq=False)
class State(ByUser):
    """State of B streams, one row a user: what the releases so far imply, and what is private of them."""

    window: Window
    states: Floats  # (B, S) distribution of the next state of the chain, as `core.filtering` keeps it
    steps: Ints  # (B,) events so far, released or not
    spent: Floats  # (B,) Σ of the ε used: what basic composition charges
    account: Leakages
    ldp: Floats  # (B,) Σ of (LDP level · ε) of the mechanisms used: what holds without any model
    first: Ints  # (B,) the slot of time of a stream's first event, where secrets follow the clock; else 0
    trackers: SecretAccounts | None = None  # (B,) of declared secrets; None where none is declared
    blocks: Any = None  # `Blocks`: those that run; None where events do not share an ε
    private: Private = Private()  # all else is public

    @classmethod
    def start(cls, setting: Terms, users: int = 1) -> State:
        """The state of users of whom nothing was released yet."""
        model, zeros = setting.model, np.zeros(users)
        account = Leakages.start(model, users, setting.in_batches)
        trackers = None if setting.trackers is None else np.full(users, setting.trackers, object)
        blocks = Blocks.start(setting.rule, users) if setting.in_blocks else None
        window = Window(np.zeros((users, 0)), np.zeros((users, 0)))
        return cls(
            window, filtering.start(model, users), np.zeros(users, np.int64), zeros, account,
            zeros.copy(), np.zeros(users, np.int64), trackers, blocks, Private.start(setting, users),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.steps)

    def put(self, rows: Rows | slice, part: State) -> None:
        """Those of some users, written back in place."""
        super().put(rows, self._as_wide(part))

    def join(self, other: State) -> State:
        """Two groups of users as one."""
        return super().join(self._as_wide(other))

    def _as_wide(self, other: State) -> State:
        """The other state, once windows of both have room for as many costs."""
        ours, theirs = self.window.costs.shape[1], other.window.costs.shape[1]
        if ours == theirs:
            return other
        object.__setattr__(self, "window", self.window.padded(theirs))
        return replace(other, window=other.window.padded(ours))

    def charged(
        self, setting: Terms, states: Floats, account: Leakages, epsilons: Floats, times: Floats | None,
        costs: Callable[[], Floats], trackers: SecretAccounts | None = None, blocks: Any = None,
    ) -> State:  # fmt: skip
        """One event on: where the chain stands, what was disclosed so far, and at which ε and what costs the event was,
        which only a window asks for."""
        window, used = self.window, epsilons > 0  # a mechanism without an LDP level has an infinite one
        spent, ldp = self.spent + epsilons, np.where(used, setting.mechanism.ldp * np.where(used, epsilons, 1.0), 0.0)
        if setting.budget.span is not None:
            window = window.push(moment(setting, self, times), costs(), setting.budget.span)
        figures = self.steps + 1, spent, account, self.ldp + ldp, self.first
        return State(window, states, *figures, trackers, blocks, self.private)

    def grown(self, setting: Terms, users: int) -> State:
        """With room for rows 0..users-1; new ones stand at the start."""
        return self if users <= len(self) else self.join(State.start(setting, users - len(self)))

    def move(self, rows: Rows, act: Callable[[State], tuple[Done, State]]) -> tuple[Done, State]:
        """Let these rows take a step, each once: what it made, and the state of all rows after it.

        Rows are written in place, unless all of them move.
        """
        if rows.size == len(self) and (rows == np.arange(rows.size)).all():
            return act(self)
        made, after = act(self.take(rows))
        self.put(rows, after)
        return made, self


def rounds(users: Rows) -> list[Rows]:
    """Positions of a chunk's events in rounds that hold each user once, in the order of the events."""
    if users.size < 2:
        return [np.arange(1)] * users.size
    turn = np.empty(users.size, np.int64)
    turn[np.argsort(users, kind="stable")] = places_within(np.unique(users, return_counts=True)[1])
    return np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1])


@dataclass(frozen=True, eq=False)
class Released:
    """What one step made public, one row a user: the release, its ε, and its distribution for each symbol."""

    codes: Ints  # (B,) NOTHING where nothing was released, WITHHELD where that says something
    epsilons: Floats  # (B,)
    columns: Ints  # (B, n) Q(released | x) · 2**62; ones where nothing was released
    beliefs: Floats  # (B, n) before the release
    remembered: Ints  # (B, Z) the same as `columns` by what kernels go by, symbol and memory: z = n·m + x
    low: Ints  # (B,) the least weight in `columns` over what the chain allows
    high: Ints  # (B,) the largest
    marginal: Floats  # (B,) and the mean under the belief
    terms: int  # of each mean

    @cached_property
    def costs(self) -> Floats:
        """What each release cost (`leakage.cost`), 0 where nothing was released: (B,)."""
        return cost(self.low, self.high, self.marginal, self.terms)

    @property
    def posterior(self) -> Floats:
        """What anyone believes of each symbol once it is released: (B, n).

        What the belief ruled out, and only an unsound mechanism releases, leaves what could have made it.
        """
        joint = self.beliefs * self.columns
        joint = np.where(joint.any(1, keepdims=True), joint, self.columns)
        return np.asarray(joint / joint.sum(1, keepdims=True))


def step(
    setting: Terms, state: State, codes: Ints, randomness: Randomness, times: Floats | None = None
) -> tuple[Any, State]:
    """Release one symbol for each user and charge it: `Released`, or `ReleasedInBlocks` where events share an ε; or a
    batch of one user (`batches`).

    *Guarantee*: for a sound mechanism each user's lifts are within the ε used, on both sides, and the leakage of the
    stream so far is what the next state's account says; a budget is never passed. A code UNKNOWN, a value outside the
    alphabet, is released by a draw from the kernel's marginal, at the ε of any other symbol (`hidden`). What is private
    decides draws alone.

    >>> from seqveil import MarkovModel, Policy
    >>> from seqveil.core.randomness import SeededRandomness
    >>> setting = Policy(epsilon=2.0, block=2).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> made, state = step(setting, State.start(setting), np.array([1]), SeededRandomness(1))
    >>> made.places.tolist(), state.blocks.places.tolist(), state.private
    ([0], [1], Private(…))
    """
    if setting.in_batches or setting.in_blocks:
        from seqveil.engine import batches, blocks  # which are made of states as well

        return (batches if setting.in_batches else blocks).step(setting, state, codes, randomness, times)
    known, raw = located(setting, state, times), gate(codes, setting.model.n, state.steps.size)
    drawn_for, memory = hidden(setting, known, raw, randomness)
    return _advance(setting, known, Asked(drawn_for, randomness.draw(raw.size)), times, memory)


def observe(
    setting: Terms, state: State, codes: Ints, times: Floats | None = None, epsilons: Floats | None = None
) -> tuple[Any, State]:
    """The same step as an observer sees it: the release is given, and nothing private is needed or moved.

    Where declared secrets are kept no budget ends, so NOTHING is what was WITHHELD. `epsilons` are those of the record,
    where it is at hand: what was used whatever the budget says, and where blocks begin; else they follow from the
    budget.
    """
    if setting.in_blocks:
        from seqveil.engine import blocks

        return blocks.observe(setting, state, codes, times, epsilons)
    also = (NOTHING, WITHHELD) if setting.guards else (NOTHING,)
    known, given = located(setting, state, times), gate(codes, setting.model.n, len(state), also, DataError)
    given = np.where(given == WITHHELD, NOTHING, given)
    used = None if epsilons is None else (epsilons, given == NOTHING)
    return _advance(setting, known, Asked(given=given), times, None, used)


def located(setting: Terms, state: State, times: Floats | None) -> State:
    """The state where it is known when the coming events come: nothing changes, but for secrets that follow the clock.

    Then a stream begins in the slot of its first event, and each later event must lie in the next slot.
    """
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


def _advance(
    setting: Terms, state: State, asked: Asked, times: Floats | None, memory: Ints | None,
    used: tuple[Floats, Mask] | None = None,
) -> tuple[Released, State]:  # fmt: skip
    """One step from `state`. `used` is what `allowance` was, where that is known."""
    took_step(state.steps.size)
    epsilons, gone = allowance(setting, state, times) if used is None else used
    beliefs = filtering.symbols(setting.model, state.states)
    trackers = state.trackers
    if trackers is None:
        codes, wide = _within_budget(setting, beliefs, epsilons, gone, asked)
    else:
        check_room(trackers)
        codes, wide, trackers, memory = release_each(setting, trackers, asked, memory)
    weights, after = take_in(setting, state, wide, epsilons, times, trackers)
    if memory is not None:
        after = replace(after, private=Private(None, memory))
    return Released(codes, epsilons, _by_symbol(state, wide), beliefs, wide, *weights, setting.model.size), after


def skipped(setting: Terms, state: State, events: int = 1) -> State:
    """The state after events that nobody read or released: the belief moves on, nothing is charged, and kernels go by
    symbol alone from there on, for nobody knows what to remember."""
    if setting.in_blocks:
        from seqveil.engine import blocks

        return blocks.passed(setting, state, events)
    trackers = state.trackers
    states, account = pass_over(setting.model, state.states, state.account, events * setting.batch)
    if trackers is not None:  # as a release that says the same whatever the truth is
        for _ in range(events):
            trackers = observed(trackers, np.ones((len(state), setting.model.n), np.int64), bool(setting.remembered))
    return replace(state, states=states, steps=state.steps + events, account=account, trackers=trackers)


def gate(
    codes: Any, n: int, count: int | None = None, also: tuple[int, ...] = (UNKNOWN,),
    problem: type[InputError] = InputError,
) -> Ints:  # fmt: skip
    """The codes as every path takes them: whole numbers 0..n-1, or one of `also`, in `count` places. Compiled code
    checks no bounds, and sees nothing but what passes here."""
    given = np.asarray(codes)
    whole = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
    if not whole or (count is not None and given.size != count):
        many = "" if count is None else f"{count} "
        raise problem(f"expected {many}codes as whole numbers, got {given.dtype} of shape {given.shape}; encode first")
    wrong = (given < 0) | (given >= n)
    if wrong.any() and (wrong := wrong & ~np.isin(given, also)).any():
        place = int(wrong.argmax())
        raise problem(
            f"event {place}: expected codes, whole numbers 0..{n - 1}; encode symbols by the model's alphabet"
        )
    return given.astype(np.int64, copy=False)


def hidden(setting: Terms, state: State, codes: Ints, randomness: Randomness) -> tuple[Ints, Ints | None]:
    """The codes to draw for, and what is remembered of the raw streams before them (`Private.memory`): in place of each
    UNKNOWN a symbol from the public belief, by one more draw of its event.

    The release is then a draw from the marginal, of lift 1; and a mixture of rows with public weights, so that every
    bound on the ratio of two rows holds between it and any row. Where kernels remember, a symbol and what is remembered
    are drawn together, and the stream goes on from both as if they were true: to lose them would show that the value
    was unknown.
    """
    memory, lost = state.private.memory, np.flatnonzero(codes == UNKNOWN)
    if not lost.size:
        return codes, memory
    filled, thrown = codes.copy(), rows(randomness, lost).draw(lost.size)
    if memory is None or state.trackers is None:
        filled[lost] = drawn(filtering.symbols(setting.model, state.states[lost]), thrown)
        return filled, None
    trackers, memory = state.trackers[lost], memory.copy()
    filled[lost], memory[lost] = histories(trackers, drawn(joint_beliefs(trackers), thrown))
    return filled, memory


def drawn(distributions: Floats, thrown: Ints) -> Ints:
    """A symbol from each distribution (B, n), by one draw each; what has no probability is never drawn."""
    reached = np.cumsum(to_weights(distributions), axis=1)
    return np.asarray((reached <= thrown[:, None]).sum(1), np.int64)


def kernels(setting: Terms, beliefs: Floats, epsilon: float) -> Kernels:
    """The kernels for these beliefs at one ε; 0 gives the best guess, which leaks nothing."""
    if epsilon < GONE:
        return mechanisms.constant(beliefs, setting.distortion)
    return mechanisms.get(setting.mechanism).kernels(beliefs, epsilon, setting.distortion)


def _within_budget(setting: Terms, beliefs: Floats, epsilons: Floats, gone: Mask, asked: Asked) -> tuple[Ints, Ints]:
    """The release of each user and its column, at these ε; where the budget is gone its policy decides."""
    silent = gone & (setting.budget.when_spent == "stop")
    if asked.given.size and ((asked.given == NOTHING) != silent).any():
        raise DataError(
            "a release stands where the budget allows none, or is missing where it allows one; check epsilon and "
            "budget, and that no row was lost"
        )
    users, n = beliefs.shape
    if users and (epsilons == epsilons[0]).all() and not silent.any():  # nothing to put together
        return _choose(setting, beliefs, float(epsilons[0]), asked)
    codes, columns = np.full(users, NOTHING, np.int64), np.ones((users, n), np.int64)
    for epsilon in np.unique(epsilons[~silent]).tolist():
        part = np.flatnonzero((epsilons == epsilon) & ~silent)
        codes[part], columns[part] = _choose(setting, beliefs[part], epsilon, asked.take(part))
    return codes, columns


def _choose(setting: Terms, beliefs: Floats, epsilon: float, asked: Asked) -> tuple[Ints, Ints]:
    """The release of each user and its column: compiled where that is there, else from the kernels, part by part."""
    users, n = beliefs.shape
    made = None
    if epsilon >= GONE:  # all releases without a stack of kernels, if it can
        made = mechanisms.get(setting.mechanism).release(beliefs, epsilon, setting.distortion, asked)
    if made is not None and not made.impossible:
        codes, columns, left = made.codes, made.columns, made.left
    else:
        codes, columns, left = np.empty(users, np.int64), np.empty((users, n), np.int64), np.arange(users)
    if not left.size:
        return codes, columns
    table = n * min(n, math.ceil(1 + math.exp(min(epsilon, 12.0))))
    size = max(1, 1_000_000 // table)  # of parts whose kernels fit the memory of a few megabytes
    for at in range(0, left.size, size):
        part = left[at : at + size]
        built = kernels(setting, beliefs[part], epsilon)
        chosen = _picked(built, asked.take(part))
        codes[part], columns[part] = built.outputs[np.arange(part.size), chosen], built.column(chosen)
    return codes, columns


def _picked(built: Kernels, asked: Asked) -> Ints:
    """The place of each release among the outputs of its kernel."""
    if asked.truths.size:
        return built.pick(asked.truths, asked.randomness)
    match = (built.outputs == asked.given[:, None]) & (built.extremes()[1] > 0)
    if not match.any(1).all():
        raise DataError(
            "a release cannot have come from this mechanism with this model and ε; check that model, mechanism, "
            "epsilon and budget are those of the release"
        )
    return match.argmax(1)


def allowance(setting: Terms, state: State, times: Floats | None = None) -> tuple[Floats, Mask]:
    """ε of each user's next release, and whether the budget is gone for it."""
    if setting.budget.seconds is not None:
        if times is None:
            raise InputError(TIMELESS)
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


def moment(setting: Terms, state: State, times: Floats | None) -> Floats:
    """What a window counts in: the times of releases, or each user's events so far."""
    return state.steps.astype(np.float64) if setting.budget.seconds is None or times is None else times


def take_in(
    setting: Terms, state: State, columns: Ints, epsilons: Floats, times: Floats | None = None,
    trackers: SecretAccounts | None = None,
) -> tuple[tuple[Ints, Ints, Floats], State]:  # fmt: skip
    """Charge releases at these ε by their columns, from whichever terms' kernels they were drawn; the least, largest
    and mean weight of each. `trackers` are the accounts of declared secrets after them, where these are known.

    Where rows go by memory too, what is charged about the whole sequence is a bound: a symbol counts with its largest
    and its least row.
    """
    model, possible = setting.model, filtering.possible(setting.model, state.states)
    if trackers is None and state.trackers is not None:
        trackers = observed(state.trackers, columns)
    if columns.shape[1] == model.n:
        states, marginal = filtering.move(model, state.states, columns)
        low, high = weight_range(columns, possible)
        account = state.account.charge(model, columns, marginal, low, high)
    else:
        assert state.trackers is not None
        assert trackers is not None
        rows, marginal = columns.reshape(len(columns), -1, model.n), (joint_beliefs(state.trackers) * columns).sum(1)
        low, high = weight_range(rows.min(1), possible)[0], weight_range(rows.max(1), possible)[1]
        account = state.account.charge(model, rows.max(1), marginal, low, high, rows.min(1))
        states = states_of(trackers).sum(1)
    charged = setting, states, account, epsilons, times, lambda: cost(low, high, marginal, model.size)
    return (low, high, marginal), state.charged(*charged, trackers=trackers)


def check_room(trackers: SecretAccounts) -> None:
    """Refuse one event more than declared secrets were promised for, before anything is drawn."""
    for each in {id(each.users): each for each in trackers}.values():  # asked once of those who stand together
        each.check_room()


def observed(trackers: SecretAccounts, columns: Ints, forgotten: bool = False) -> SecretAccounts:
    """The accounts of declared secrets after releases with these columns, each user's with its own.

    Where the raw streams are `forgotten`, kernels go by symbol alone from these events on.
    """
    after = np.empty(len(trackers), object)
    for places, users in together(trackers):
        some = users.forgetting() if forgotten else users
        after[places] = some.observe(columns[places]).each()
    return after


def _by_symbol(state: State, wide: Ints) -> Ints:
    """Columns by symbol and memory as those by symbol, for somebody who knows the releases so far: (B, Z) → (B, n)."""
    if state.trackers is None or wide.shape[1] == state.trackers[0].users.n:
        return wide
    shape = len(wide), -1, state.trackers[0].users.n
    beliefs = np.asarray(joint_beliefs(state.trackers)).reshape(shape)
    shares = beliefs / np.where(beliefs.sum(1, keepdims=True) > 0, beliefs.sum(1, keepdims=True), 1.0)
    return np.asarray((shares * wide.reshape(shape)).sum(1), np.int64)
