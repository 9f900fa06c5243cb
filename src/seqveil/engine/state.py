"""The state of many streams in arrays, one row a user: what is public of them, and what is not (`Private`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqveil.core import filtering
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import Leakages
from seqveil.core.mechanisms.blocks import Blocks
from seqveil.engine.budget import Window

if TYPE_CHECKING:
    from seqveil.engine.stream import Terms

Rows = NDArray[np.intp]
Made = TypeVar("Made")
SecretAccounts = NDArray[np.object_]  # of declared secrets: `SecretTrackers`, one a user
ARRAYS = ("states", "steps", "spent", "ldp", "first")
FEW = 64  # events of a call that are looked at one by one before they are sorted


@dataclass(frozen=True, eq=False)
class State:
    """Public state of B streams, one row a user: what the releases so far imply.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.stream import step
    >>> from seqveil.engine.policy import Policy
    >>> setting = Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    >>> state, randomness = State.start(setting, users=3), SeededRandomness(1)
    >>> made, state = state.move(np.array([0, 2]), lambda some: step(setting, some, np.array([1, 0]), randomness))
    >>> made.codes.shape, state.steps.tolist()
    ((2,), [1, 0, 1])
    """

    states: Floats  # (B, S) distribution of the next state of the chain, as `core.filtering` keeps it
    steps: Ints  # (B,) events so far, released or not
    spent: Floats  # (B,) Σ of the ε used: what basic composition charges
    account: Leakages
    window: Window
    ldp: Floats  # (B,) Σ of (LDP level · ε) of the mechanisms used: what holds without any model
    first: Ints  # (B,) the slot of time of a stream's first event, where secrets follow the clock; else 0
    trackers: SecretAccounts | None = None  # (B,) of declared secrets; None where none is declared
    blocks: Any = None  # `Blocks`: those that run; None where events do not share an ε

    @classmethod
    def start(cls, setting: Terms, users: int = 1) -> State:
        """The state of users of whom nothing was released yet."""
        model = setting.model
        states = filtering.start(model, users)
        steps, spent = np.zeros(users, np.int64), np.zeros(users)
        account, window = Leakages.start(model, users, setting.in_batches), Window.start(users)
        trackers = None if setting.trackers is None else np.full(users, setting.trackers, object)
        blocks = Blocks.start(setting.rule, users) if setting.in_blocks else None
        return cls(states, steps, spent, account, window, np.zeros(users), np.zeros(users, np.int64), trackers, blocks)

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Rows | slice) -> State:
        """The rows of some users."""
        arrays = (self.states[rows], self.steps[rows], self.spent[rows])
        trackers, more = None if self.trackers is None else self.trackers[rows], (self.ldp[rows], self.first[rows])
        blocks = None if self.blocks is None else self.blocks.take(rows)
        window = Window(self.window.costs[rows], self.window.stamps[rows])
        return State(*arrays, self.account.take(rows), window, *more, trackers, blocks)

    def put(self, rows: Rows, part: State) -> None:
        """Write the rows of some users back in place."""
        self.states[rows], self.steps[rows], self.spent[rows] = part.states, part.steps, part.spent
        self.ldp[rows], self.first[rows] = part.ldp, part.first
        ours, theirs = self.account, part.account
        ours.most[rows], ours.least[rows] = theirs.most, theirs.least
        ours.ahead_most[rows], ours.ahead_least[rows] = theirs.ahead_most, theirs.ahead_least
        if self.window.costs.shape[1] or part.window.costs.shape[1]:
            wide, narrow = _same_width(self.window, part.window)
            wide.costs[rows], wide.stamps[rows] = narrow.costs, narrow.stamps
            object.__setattr__(self, "window", wide)
        if self.trackers is not None:
            self.trackers[rows] = part.trackers
        if self.blocks is not None:
            self.blocks.put(rows, part.blocks)

    def join(self, other: State) -> State:
        """Two groups of users as one."""
        one, two = _same_width(self.window, other.window)
        account = Leakages(
            *(np.concatenate([getattr(self.account, f.name), getattr(other.account, f.name)]) for f in fields(Leakages))
        )
        arrays = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in ARRAYS}
        window = Window(np.concatenate([one.costs, two.costs]), np.concatenate([one.stamps, two.stamps]))
        trackers = None
        if self.trackers is not None and other.trackers is not None:
            trackers = np.concatenate([self.trackers, other.trackers])
        blocks = None if self.blocks is None else self.blocks.join(other.blocks)
        return State(**arrays, account=account, window=window, trackers=trackers, blocks=blocks)

    def grown(self, setting: Terms, users: int) -> State:
        """With room for rows 0..users-1; new ones stand at the start."""
        return self if users <= len(self) else self.join(State.start(setting, users - len(self)))

    def move(self, rows: Rows, act: Callable[[State], tuple[Made, State]]) -> tuple[Made, State]:
        """Let these rows take a step, each once: what it made, and the state of all rows after it.

        Rows are written in place, unless all of them move.
        """
        if rows.size == len(self) and (rows == np.arange(rows.size)).all():
            return act(self)
        check_rows(rows, len(self))
        made, after = act(self.take(rows))
        self.put(rows, after)
        return made, self


@dataclass(frozen=True, eq=False, repr=False)
class Private:
    """What a step needs to know of B streams that is not public, one row a user; None where a mechanism needs nothing.

    It is never in an output, in a repr or on a disk as it is: whoever keeps it keeps it in memory, seals it, or derives
    it from a key again. `step` takes it and gives it back beside the public state.
    """

    bits: NDArray[np.bool_] | None = None  # (B,) of the running blocks: whether real
    memory: Ints | None = None  # (B, J) state of the raw stream in the automaton of each remembered secret; -1: lost

    @classmethod
    def start(cls, setting: Terms, users: int = 1) -> Private:
        """Of users of whom nothing was released yet."""
        memory = np.zeros((users, len(setting.remembered)), np.int64) if setting.remembered else None
        return cls(np.zeros(users, bool) if setting.in_blocks else None, memory)

    @property
    def held(self) -> bool:
        """Whether there is anything private to keep."""
        return self.bits is not None or self.memory is not None

    def take(self, rows: Rows | slice) -> Private:
        """The rows of some users."""
        memory = None if self.memory is None else self.memory[rows]
        return Private(None if self.bits is None else self.bits[rows], memory)

    def put(self, rows: Rows, part: Private) -> None:
        """Write the rows of some users back in place."""
        if self.bits is not None and part.bits is not None:
            self.bits[rows] = part.bits
        if self.memory is not None and part.memory is not None:
            self.memory[rows] = part.memory

    def join(self, other: Private) -> Private:
        """Two groups of users as one."""

        def both(one: Any, two: Any) -> Any:
            return None if one is None or two is None else np.concatenate([one, two])

        return Private(both(self.bits, other.bits), both(self.memory, other.memory))

    def __repr__(self) -> str:
        return "Private(…)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses `copy` and `pickle`, which would carry it to where it may be read."""
        raise InputError("what is private of a stream cannot be copied or pickled; derive it from the key, or seal it")


def check_rows(rows: Rows, users: int) -> None:
    """Refuse rows that are not there, and those named twice; one counted from the end would be another name of a row.

    >>> check_rows(np.array([2, 0]), 3)
    """
    if rows.size == 1 and rows.dtype.kind in "iu" and 0 <= rows[0] < users:  # the usual case of a call of one event
        return
    ordered = np.sort(rows)  # some eight times as fast as looking for the different ones
    if rows.size and (rows.dtype.kind not in "iu" or ordered[0] < 0 or ordered[-1] >= users):
        raise InputError(f"expected rows 0..{users - 1}; make room for more first")
    if (ordered[1:] == ordered[:-1]).any():
        raise InputError("expected each user at most once in a call; release a user's events one after another")


def rounds(users: Rows) -> list[NDArray[np.intp]]:
    """Positions of a chunk's events in rounds that hold each user once, in the order of the events.

    >>> [r.tolist() for r in rounds(np.array([0, 1, 0, 0, 2]))]
    [[0, 1, 4], [2], [3]]
    """
    if not users.size:
        return []
    if users.size <= FEW and len(set(users.tolist())) == users.size:  # as in most small calls: nothing to sort
        return [np.arange(users.size)]
    order = np.argsort(users, kind="stable")
    ordered = users[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    nth = np.arange(users.size) - np.repeat(starts, np.diff(np.r_[starts, users.size]))
    turn = np.empty_like(nth)
    turn[order] = nth
    return np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1])


def _same_width(first: Window, second: Window) -> tuple[Window, Window]:
    width = max(first.costs.shape[1], second.costs.shape[1])
    return first.padded(width), second.padded(width)
