"""A user's state as bytes: what a store keeps beside the ledger and the releases.

A small state is kept as it is. A large one (an alphabet of thousands: a belief over 43,097 symbols is 340 KB) follows
from the releases, so a user who comes back may be replayed from them, which is exact and costs no budget.

What a window budget still counts stands first, so that it can go on for someone who is erased. The accounts of declared
secrets are kept as numbers, to the last bit. What follows from model and secrets alone (the tables of
`core.secrets.ahead`) is not written: the setting has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.kernel import UNIT, Floats
from seqveil.core.leakage import Leakages
from seqveil.core.secrets import SecretTrackers
from seqveil.core.secrets.account import TrackedSecret, TrackedUsers
from seqveil.engine.accounting import Window
from seqveil.engine.state import State
from seqveil.engine.store import Stored, UserRow
from seqveil.engine.stream import Terms

SMALL = 4096  # bytes of state a user may have and still always be kept as it is
# what changes of the account of a secret
CHANGING = ("step", "now", "unseen", "ended", "records", "current", "gone", "disclosed_all")
_MISFIT = "a user's state does not fit this setting; restore the state file from a backup"


def _sides(setting: Terms) -> int:
    return 1 if setting.in_batches or setting.model.full_support else setting.model.size


def width(setting: Terms) -> int:
    """Bytes of a user's belief and account; with declared secrets about as many as they come to."""
    secrets = 0 if setting.trackers is None else 2 * account_numbers(setting.trackers).size
    return 8 * (setting.model.size + 2 * _sides(setting) + secrets)


def small(setting: Terms) -> bool:
    """Whether states are small enough to be kept as they are, whatever else is kept."""
    return width(setting) <= SMALL


def pack(state: State) -> bytes:
    """These states, exact, all of one size; counts and figures are in the ledger.

    The accounts of declared secrets stand at the end: their length differs from user to user.
    """
    account, window = state.account, state.window
    looks = np.full((len(state), 1), float(window.costs.shape[1]))
    wide: list[Floats] = [looks, window.costs, window.stamps, state.states, account.ahead_most, account.ahead_least]
    if state.trackers is not None:
        wide += [state.first[:, None].astype(np.float64), packed_accounts(state.trackers.tolist())]
    return np.concatenate(wide, axis=1).astype("<f8", copy=False).tobytes()


def unpack(setting: Terms, rows: Sequence[UserRow]) -> State:
    """The states of these users, all of one size."""
    table = np.frombuffer(b"".join(row.state for row in rows), "<f8").reshape(len(rows), -1)
    sides, looks = _sides(setting), int(table[0, 0])
    places = np.cumsum([1, looks, looks, setting.model.size, sides, sides])
    if table.shape[1] < places[-1] or (setting.trackers is None and table.shape[1] != places[-1]):
        raise DataError(_MISFIT)
    _, costs, stamps, states, up, down, more = np.split(table, places, axis=1)
    trackers, first = None, np.zeros(len(rows), np.int64)
    if setting.trackers is not None:
        trackers, first = np.empty(len(rows), object), more[:, 0].astype(np.int64)
        for k, numbers in enumerate(more[:, 1:]):
            begun = setting.trackers_from(int(first[k])) if setting.clocked else setting.trackers
            trackers[k] = restored_accounts(begun, numbers)
    steps = np.array([row.events for row in rows], np.int64)
    spent, most, least, ldp = np.array([(row.spent, row.most, row.least, row.ldp) for row in rows]).T
    return State(states, steps, spent, Leakages(most, least, up, down), Window(costs, stamps), ldp, first, trackers)


def carried(state: bytes) -> bytes:
    """What stays of the state of someone who is erased: what windows still count, and nothing about the person."""
    return state[: 8 + 16 * int(np.frombuffer(state[:8], "<f8")[0])] if state else b""


def latest(state: bytes) -> float | None:
    """The time of the latest event that a window budget counts; None where none is kept."""
    stamps = np.frombuffer(carried(state), "<f8")[1:]
    found = stamps[stamps.size // 2 :].max(initial=-np.inf)
    return float(found) if np.isfinite(found) else None


def beyond(setting: Terms, erased: Stored) -> UserRow:
    """The ledger of someone who was erased, where another model was adopted since.

    What the releases disclosed under that model can no longer be computed. Their LDP level bounds it, under any model;
    and what a window budget counts is as much as it allows.
    """
    most = erased.epsilon * (1 + (erased.seq + 5) * UNIT)  # whichever way its sum was rounded
    window = [0.0]
    if setting.budget.per_window is not None and erased.time is not None:
        window = [1.0, setting.budget.per_window, erased.time]
    return UserRow(0, erased.seq + 1, 0, 0.0, most, 0.0 - most, erased.epsilon, np.array(window, "<f8").tobytes(), True)


def returned(setting: Terms, row: UserRow) -> State:
    """The state of someone who comes back after being erased: a new stream, whose account goes on with the old one's.

    The ledger is not enough for this with declared secrets.
    """
    costs, stamps = np.split(np.frombuffer(row.state, "<f8")[None, 1:], 2, axis=1)
    start = State.start(setting)
    account = replace(start.account, most=np.array([row.most]), least=np.array([row.least])).restarted(setting.model)
    numbers = {"spent": np.array([row.spent]), "steps": np.array([row.events], np.int64), "ldp": np.array([row.ldp])}
    return replace(start, **numbers, account=account, window=Window(costs.copy(), stamps.copy()))


def account_numbers(trackers: SecretTrackers) -> Floats:
    """All that changes of the accounts of one user.

    >>> from seqveil import MarkovModel, secrets
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> first = SecretTrackers(model, secrets.ever(1, epsilon=1.0, window="first 3"))
    >>> disclosed = first.observe([0.6, 0.4])
    >>> numbers = account_numbers(disclosed)
    >>> bool((account_numbers(restored_accounts(first, numbers)) == numbers).all())
    True
    """
    users = trackers.users.take([trackers.row])
    parts: list[Any] = [users.forgot]
    for tracked in (tracked for row in users.rows for tracked in row):
        parts += [part for name in CHANGING for part in _numbers(getattr(tracked, name))]
    return np.concatenate(parts).astype(np.float64, copy=False)


def restored_accounts(first: SecretTrackers, packed: Floats) -> SecretTrackers:
    """The accounts behind these numbers; `first` are those before the first release, whatever else follows them."""
    reader = _PackedReader(packed)
    forgot = reader.take(1).astype(np.int64)
    rows = tuple(tuple(reader.tracked(tracked) for tracked in row) for row in first.users.rows)
    return SecretTrackers.of(TrackedUsers(rows, forgot))


def _numbers(value: Any) -> Iterator[Any]:
    """A part of an account as numbers: an array with its shape before it."""
    if isinstance(value, np.ndarray):
        yield [value.ndim, *value.shape]
        yield value.ravel()
    elif is_dataclass(value):
        yield from (part for each in fields(value) for part in _numbers(getattr(value, each.name)))
    else:
        yield np.ravel(value)


class _PackedReader:
    """Takes numbers one part after another."""

    def __init__(self, packed: Floats) -> None:
        self._packed, self._at = packed, 0

    def take(self, count: int) -> Floats:
        """The next so many numbers."""
        part = self._packed[self._at : self._at + count]
        if part.size != count:
            raise DataError(_MISFIT)
        self._at += count
        return part.copy()

    def like(self, first: Any) -> Any:
        """The next part, of the same kind as this one."""
        if isinstance(first, np.ndarray):
            shape = self.take(int(self.take(1)[0])).astype(np.int64)
            return self.take(int(shape.prod())).reshape(shape).astype(first.dtype)
        if isinstance(first, tuple):
            return tuple(self.take(len(first)).tolist())
        if is_dataclass(first) and not isinstance(first, type):
            return replace(first, **{each.name: self.like(getattr(first, each.name)) for each in fields(first)})
        return type(first)(self.take(1)[0])

    def tracked(self, first: TrackedSecret) -> TrackedSecret:
        """The account of one secret."""
        return replace(first, **{name: self.like(getattr(first, name)) for name in CHANGING})


def packed_accounts(trackers: Sequence[SecretTrackers]) -> Floats:
    """The numbers of several users, one row each, filled up with zeros to the longest."""
    rows = [account_numbers(each) for each in trackers]
    table = np.zeros((len(rows), max((row.size for row in rows), default=0)))
    for k, row in enumerate(rows):
        table[k, : row.size] = row
    return table
