"""Many users' streams at once, in arrays: the same step as a session, one row a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from seqveil.core.coins import Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.leakage import Account
from seqveil.release import stream
from seqveil.release.accounting import Window

Rows = NDArray[np.intp]
Play = Callable[[Rows, NDArray[np.intp]], stream.Released]
ARRAYS = ("states", "steps", "spent", "saved", "ldp")


class Fleet:
    """Streams of many users that share a setting, one row each; a call takes at most one event of each row.

    *Guarantee*: each row is released exactly as by a `Session` of its own. A fleet is for one thread.

    >>> from seqveil.core.coins import SeededCoins
    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> fleet = Fleet(stream.Setting.of(model, epsilon=1.0), users=3)
    >>> fleet.release(np.array([0, 2]), np.array([1, 0]), SeededCoins(1)).codes.shape
    (2,)
    >>> fleet.state.steps.tolist()
    [1, 0, 1]
    """

    def __init__(self, setting: stream.Setting, users: int = 0) -> None:
        self.setting = setting
        self.state = stream.State.start(setting, users)

    def __len__(self) -> int:
        return len(self.state)

    def grow(self, users: int) -> None:
        """Make room for rows 0..users-1; new ones start with the model's prior."""
        if users > len(self):
            self.state = join(self.state, stream.State.start(self.setting, users - len(self)))

    def reset(self, rows: Rows) -> None:
        """Start these rows anew."""
        if rows.size:
            put(self.state, rows, stream.State.start(self.setting, rows.size))

    def release(self, rows: Rows, codes: Ints, coins: Coins, times: Floats | None = None) -> stream.Released:
        """Release one symbol for each of the rows named; no row twice.

        Where budgets are spent and the policy is "error", the other rows are released and kept, then BudgetSpent is
        raised with what was released.
        """
        made = self.attempt(rows, codes, coins, times)
        refused = made.codes == stream.REFUSED
        if refused.any():
            raise stream.budget_spent(self.setting, refused, made)
        return made

    def attempt(self, rows: Rows, codes: Ints, coins: Coins, times: Floats | None = None) -> stream.Released:
        """As `release`, for a caller who has more to keep before it raises: rows refused have the code REFUSED."""
        return self._move(rows, lambda state: stream.step(self.setting, state, codes, coins, times))

    def observe(self, rows: Rows, codes: Ints, times: Floats | None = None) -> stream.Released:
        """Take in one release for each of the rows named, as a receiver does."""
        return self._move(rows, lambda state: stream.observe(self.setting, state, codes, times))

    def _move(self, rows: Rows, act: Callable[[stream.State], tuple[stream.Released, stream.State]]) -> stream.Released:
        if rows.size == len(self) and (rows == np.arange(rows.size)).all():
            released, self.state = act(self.state)
            return released
        check_rows(rows, len(self))
        released, after = act(take(self.state, rows))
        put(self.state, rows, after)
        return released


def check_rows(rows: Rows, users: int) -> None:
    """Refuse rows that are not there, and those named twice; one counted from the end would be another name of a row.

    >>> check_rows(np.array([2, 0]), 3)
    """
    if rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= users):
        raise InputError(f"expected rows 0..{users - 1}; make room for more with grow")
    if np.unique(rows).size != rows.size:
        raise InputError("expected each user at most once in a call; release a user's events one after another")


def rounds(users: Rows) -> list[NDArray[np.intp]]:
    """Positions of a chunk's events in rounds that hold each user once, in the order of the events.

    >>> [r.tolist() for r in rounds(np.array([0, 1, 0, 0, 2]))]
    [[0, 1, 4], [2], [3]]
    """
    if not users.size:
        return []
    order = np.argsort(users, kind="stable")
    ordered = users[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    nth = np.arange(users.size) - np.repeat(starts, np.diff(np.r_[starts, users.size]))
    turn = np.empty_like(nth)
    turn[order] = nth
    return np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1])


def take(state: stream.State, rows: Rows) -> stream.State:
    """The rows of some users."""
    arrays = {name: getattr(state, name)[rows] for name in ARRAYS}
    return stream.State(**arrays, account=state.account.take(rows), window=state.window.take(rows))


def put(state: stream.State, rows: Rows, part: stream.State) -> None:
    """Write the rows of some users back in place."""
    for name in ARRAYS:
        getattr(state, name)[rows] = getattr(part, name)
    for f in fields(Account):
        getattr(state.account, f.name)[rows] = getattr(part.account, f.name)
    wide, narrow = _same_width(state.window, part.window)
    wide.costs[rows], wide.stamps[rows] = narrow.costs, narrow.stamps
    object.__setattr__(state, "window", wide)


def join(first: stream.State, second: stream.State) -> stream.State:
    """Two groups of users as one."""
    one, two = _same_width(first.window, second.window)
    account = Account(
        *(np.concatenate([getattr(first.account, f.name), getattr(second.account, f.name)]) for f in fields(Account))
    )
    arrays = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in ARRAYS}
    window = Window(np.concatenate([one.costs, two.costs]), np.concatenate([one.stamps, two.stamps]))
    return stream.State(**arrays, account=account, window=window)


def _same_width(first: Window, second: Window) -> tuple[Window, Window]:
    width = max(first.costs.shape[1], second.costs.shape[1])
    return first.padded(width), second.padded(width)
