"""The accounts of declared secrets as numbers and back, to the last bit: what a store keeps of them beside a state.

What follows from model and secrets alone (the tables of `core.secrets.ahead`) is not written: the setting has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqveil.core.errors import DataError
from seqveil.core.kernel import Floats
from seqveil.core.secrets import Watch, Watches, WindowAccount
from seqveil.core.secrets.windows import Records

_HEAD = 6  # numbers that say how long the parts are


def numbers(watches: Watches) -> Floats:
    """All that changes of the accounts of one user.

    >>> from seqveil import MarkovModel, secrets
    >>> first = Watches(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), secrets.ever(1, window="first 3"))
    >>> told = first.observe([0.6, 0.4])
    >>> bool((numbers(restored(first, numbers(told))) == numbers(told)).all())
    True
    """
    return np.concatenate([_watch(watch) for row in watches.rows for watch in row])


def restored(first: Watches, packed: Floats) -> Watches:
    """The accounts behind these numbers; `first` are those before the first release, whatever else follows them."""
    after, at = object.__new__(Watches), 0
    rows = []
    for row in first.rows:
        found = []
        for watch in row:
            reader = _Reader(packed, at)
            found.append(_restored(watch, reader))
            at = reader.at
        rows.append(tuple(found))
    after.rows = tuple(rows)
    return after


def _watch(watch: Watch) -> Floats:
    found, gone = watch.records, watch.gone
    head = [watch.step, watch.told_all, len(watch.now), len(watch.ended), len(found.index), gone is not None]
    laws = (watch.states, watch.unseen, watch.now.ravel(), watch.ended.ravel())
    windows = (getattr(found, name).ravel() for name in Records.__dataclass_fields__)
    accounts = [_account(watch.latest), *([] if gone is None else [_account(gone)])]
    return np.concatenate([head, *laws, *windows, *accounts]).astype(np.float64, copy=False)


def _account(one: WindowAccount) -> list[float]:
    laws = [part for law in (one.prior, one.posterior) for part in (law if isinstance(law, tuple) else (law,))]
    return [one.first, one.events, *laws, one.log_odds, one.log_odds_low, one.log_odds_high, one.lowest, one.highest]


def _restored(first: Watch, reader: _Reader) -> Watch:
    plan, size = first.ahead, first.model.size
    step, told_all, open_rows, ended, windows, gone = (int(number) for number in reader.take(_HEAD))
    states, unseen = reader.take(size), reader.take(size)
    now, past = reader.take(open_rows, size), reader.take(ended, plan.values, size)
    index = reader.take(windows).astype(np.int64)
    laws = reader.take(windows, plan.values), reader.take(windows, plan.values)
    records = Records(index, *laws, *(reader.take(windows) for _ in range(3)))
    latest = _window(plan.values, reader)
    return replace(
        first,
        step=step,
        states=states,
        unseen=unseen,
        now=now,
        ended=past,
        records=records,
        latest=latest,
        gone=_window(plan.values, reader) if gone else None,
        told_all=bool(told_all),
    )


def _window(values: int, reader: _Reader) -> WindowAccount:
    first, events = reader.take(2).tolist()
    alone = values == 2  # of a secret that is true or not, one probability says both
    prior, posterior = (reader.take(1 if alone else values).tolist() for _ in range(2))
    laws = (prior[0], posterior[0]) if alone else (tuple(prior), tuple(posterior))
    return WindowAccount(int(first), int(events), *laws, *reader.take(5).tolist())


class _Reader:
    """Takes numbers one part after another."""

    def __init__(self, packed: Floats, at: int) -> None:
        self._packed, self.at = packed, at

    def take(self, *shape: int) -> Floats:
        count = int(np.prod(shape))
        part = self._packed[self.at : self.at + count]
        if part.size != count:
            raise DataError("a user's state does not fit this setting; restore the state file from a backup")
        self.at += count
        return part.reshape(shape).copy()


def packed(watches: Sequence[Watches]) -> Floats:
    """The numbers of several users, one row each, filled up with zeros to the longest."""
    rows = [numbers(each) for each in watches]
    table = np.zeros((len(rows), max((row.size for row in rows), default=0)))
    for k, row in enumerate(rows):
        table[k, : row.size] = row
    return table
