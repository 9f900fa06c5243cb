"""A user's state as bytes: what a store keeps beside the ledger and the releases.

A small state is kept as it is. A large one (an alphabet of thousands: a belief over 43,097 symbols is 340 KB) follows
from the releases, so a user who comes back may be replayed from them, which is exact and costs no budget.

What a window budget still counts stands first, so that it can go on for someone who is erased. The accounts of declared
secrets are kept as numbers, to the last bit. What follows from model and secrets alone (the tables of
`core.secrets.ahead`) is not written: the setting has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats
from seqveil.core.leakage import Leakages
from seqveil.core.secrets import SecretTracker, SecretTrackers
from seqveil.core.secrets.account import WindowRecords
from seqveil.engine.accounting import Window
from seqveil.engine.state import State
from seqveil.engine.store import UserRow
from seqveil.engine.stream import Terms

SMALL = 4096  # bytes of state a user may have and still always be kept as it is
_HEAD = 7  # numbers before the account of a secret that say how long its parts are
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


def returned(setting: Terms, row: UserRow) -> State | None:
    """The state of someone who comes back after being erased: a new stream, whose account goes on with the old one's.

    None where the ledger is not enough to go on with: with declared secrets, and where states are large.
    """
    if setting.trackers is not None or not small(setting):
        return None
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
    return np.concatenate([_tracker(tracker) for row in trackers.rows for tracker in row])


def restored_accounts(first: SecretTrackers, packed: Floats) -> SecretTrackers:
    """The accounts behind these numbers; `first` are those before the first release, whatever else follows them."""
    after, at = object.__new__(SecretTrackers), 0
    rows = []
    for row in first.rows:
        found = []
        for tracker in row:
            reader = _PackedReader(packed, at)
            found.append(_restored(tracker, reader))
            at = reader.at
        rows.append(tuple(found))
    after.rows = tuple(rows)
    return after


def _tracker(tracker: SecretTracker) -> Floats:
    records = tracker.records, tracker.current, tracker.gone
    head = (
        tracker.step,
        tracker.disclosed_all,
        len(tracker.now),
        len(tracker.ended),
        *(len(one.index) for one in records),
    )
    distributions = (tracker.states, tracker.unseen, tracker.now, tracker.ended)
    windows = (getattr(found, name) for found in records for name in WindowRecords.__dataclass_fields__)
    return np.concatenate([head, *(part.ravel() for part in (*distributions, *windows))]).astype(np.float64, copy=False)


def _restored(first: SecretTracker, reader: _PackedReader) -> SecretTracker:
    values, size = first.ahead.values, first.model.size
    step, disclosed_all, open_rows, ended, *windows = (int(number) for number in reader.take(_HEAD))
    states, unseen = reader.take(size), reader.take(size)
    now, past = reader.take(open_rows, size), reader.take(ended, values, size)
    records, current, gone = (_records(values, reader, count) for count in windows)
    return replace(
        first,
        step=step,
        states=states,
        unseen=unseen,
        now=now,
        ended=past,
        records=records,
        current=current,
        gone=gone,
        disclosed_all=bool(disclosed_all),
    )


def _records(values: int, reader: _PackedReader, count: int) -> WindowRecords:
    index = reader.take(count).astype(np.int64)
    distributions = reader.take(count, values), reader.take(count, values)
    return WindowRecords(index, *distributions, *(reader.take(count) for _ in range(3)))


class _PackedReader:
    """Takes numbers one part after another."""

    def __init__(self, packed: Floats, at: int) -> None:
        self._packed, self.at = packed, at

    def take(self, *shape: int) -> Floats:
        count = int(np.prod(shape))
        part = self._packed[self.at : self.at + count]
        if part.size != count:
            raise DataError(_MISFIT)
        self.at += count
        return part.reshape(shape).copy()


def packed_accounts(trackers: Sequence[SecretTrackers]) -> Floats:
    """The numbers of several users, one row each, filled up with zeros to the longest."""
    rows = [account_numbers(each) for each in trackers]
    table = np.zeros((len(rows), max((row.size for row in rows), default=0)))
    for k, row in enumerate(rows):
        table[k, : row.size] = row
    return table
