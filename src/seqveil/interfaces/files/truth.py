"""A released file beside the raw file it was made from, event by event: for whoever holds both.

Rows are paired by user and by the order of each user's events, by time where rows have one. The order of users in
either file does not matter, and an event without a release moves no other one: the columns `event` and `batch` of a
release say which event a row is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.stream import NOTHING
from seqveil.interfaces.files.events import Events
from seqveil.interfaces.files.writing import BATCH, EVENT


@dataclass(frozen=True, eq=False)
class Paired:
    """Released rows and the raw events that they were made from. Users are numbered as the released file has them.

    `truth`, `times`: of each user all raw events, in order; negative codes are outside the alphabet. `users`, `events`:
    of each released row its user, and which of that user's events it was.
    """

    truth: list[Ints]
    times: list[Floats] | None
    users: Ints
    events: Ints

    @property
    def codes(self) -> Ints:
        """The true code of each released row."""
        begins = np.cumsum([0, *(own.size for own in self.truth[:-1])])
        return np.concatenate(self.truth)[begins[self.users] + self.events]

    def aligned(self, codes: Ints) -> list[Ints]:
        """What was released at each event of each user, from the codes of the rows; NOTHING where nothing was."""
        found = [np.full(own.size, NOTHING, np.int64) for own in self.truth]
        order = np.argsort(self.users, kind="stable")
        for user, rows in enumerate(np.split(order, np.cumsum(np.bincount(self.users))[:-1])):
            found[user][self.events[rows]] = codes[rows]
        return found


def paired(released: Events, raw: Events, codes: Ints, batch: int = 1) -> Paired:
    """The rows of both, person by person and event by event.

    Parameters:
        released: read with the columns `event` and `batch` beside it.
        raw: as the release read them.
        codes: of the raw events; negative outside the alphabet.
        batch: rows that were released together.
    """
    (names, ids), (owners, raw_ids) = released.people, raw.people
    number = {str(name): k for k, name in enumerate(names)}
    apart = len(number.keys() ^ {str(name) for name in owners})
    if apart:
        raise DataError(
            f"{released.name} and {raw.name} must hold the same people; {apart} are in one of them only, name the raw "
            "file that the release was made from"
        )
    raw_ids = np.array([number[str(name)] for name in owners], np.int64)[raw_ids]
    sizes = np.bincount(raw_ids)
    events = _which(released, ids, batch)
    if events is None:
        events = _ranks(ids)
        other = int((np.bincount(ids) != sizes).sum())
    else:
        other = int(np.unique(ids[events >= sizes[ids]]).size)
    if other:
        raise DataError(
            f"{released.name} and {raw.name} must hold the same events of the same users, and {other} have others; "
            "name the raw file that was released, and keep all columns of the release"
        )
    order, cuts, stamps = np.argsort(raw_ids, kind="stable"), np.cumsum(sizes)[:-1], _times(raw)
    times = None if stamps is None else np.split(stamps[order], cuts)
    return Paired(np.split(codes[order], cuts), times, ids, events)


def _ranks(*keys: Ints) -> Ints:
    """How many rows with the same keys come before each."""
    order = np.lexsort(keys)
    new = np.ones(order.size, bool)
    new[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    begins = np.flatnonzero(new)
    ranks = np.empty(order.size, np.int64)
    ranks[order] = np.arange(order.size) - np.repeat(begins, np.diff(begins, append=order.size))
    return ranks


def _which(released: Events, ids: Ints, batch: int) -> Ints | None:
    """Which event of its user each row is, where the release says so."""
    import polars as pl

    name = BATCH if batch > 1 else EVENT
    column = released.frame[name].cast(pl.Int64, strict=False) if name in released.frame.columns else None
    if column is None or column.null_count():
        return None
    number = np.asarray(column.to_numpy(), np.int64)
    return number * batch + _ranks(ids, number) if batch > 1 else number


def _times(raw: Events) -> Floats | None:
    """When each event was, in seconds; None where the order is no time."""
    try:
        return raw.seconds()
    except InputError:
        return None
