"""A released file beside the raw file it was made from, event by event: for whoever holds both.

Rows are paired by user and by the order of each user's events, by time where rows have one. The order of users in
either file does not matter, and an event without a release moves no other one: the columns `event` and `batch` of a
release say which event a row is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.stream import NOTHING
from seqveil.interfaces.files.ordering import plain_type, seconds
from seqveil.interfaces.files.reading import read
from seqveil.interfaces.files.rows import Coded, Progress, Source
from seqveil.interfaces.files.writing import BATCH, EVENT

if TYPE_CHECKING:
    import polars as pl


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


def paired(
    released: Source, raw: Source, alphabet: Symbols, batch: int = 1, progress: Progress | None = None
) -> Paired:
    """The rows of both files, person by person and event by event.

    released: the released file, each user's rows in order.
    raw: the raw file, as `Source.released` reads it.
    alphabet: of the raw values; one that it would refuse is hidden.
    batch: rows that were released together.
    """
    import polars as pl

    kind = plain_type(released.columns)
    users = pl.concat([chunk.users for chunk in released.chunks(kind, again=True, holes="any")]).rename("user")
    parts = list(raw.coded(alphabet.tracked(), progress))
    owners = pl.concat([part.chunk.users for part in parts]).rename("user")
    if users.dtype != owners.dtype:
        users, owners = users.cast(pl.String), owners.cast(pl.String)
    names = pl.DataFrame({"user": users.unique(maintain_order=True)}).with_row_index("number")
    number = names.join(pl.DataFrame({"user": owners.unique()}), on="user", how="full")
    apart = number["user"].null_count() + number["user_right"].null_count()
    if apart:
        raise DataError(
            f"{released.name} and {raw.name} must hold the same people; {apart} are in one of them only, name the raw "
            "file that the release was made from"
        )
    ids, raw_ids = (_numbered(column, names) for column in (users, owners))
    sizes = np.bincount(raw_ids)
    events = _events(released, ids, batch)
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
    order = np.argsort(raw_ids, kind="stable")
    codes = np.concatenate([part.codes for part in parts])[order]
    cuts = np.cumsum(sizes)[:-1]
    stamps = _times(parts, raw.name)
    times = None if stamps is None else np.split(stamps[order], cuts)
    return Paired(np.split(codes, cuts), times, ids, events)


def _numbered(users: pl.Series, names: pl.DataFrame) -> Ints:
    import polars as pl

    found = pl.DataFrame({"user": users}).join(names, on="user", how="left", maintain_order="left")
    return np.asarray(found["number"].to_numpy(), np.int64)


def _ranks(*keys: Ints) -> Ints:
    """How many rows with the same keys come before each."""
    order = np.lexsort(keys)
    new = np.ones(order.size, bool)
    new[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    begins = np.flatnonzero(new)
    ranks = np.empty(order.size, np.int64)
    ranks[order] = np.arange(order.size) - np.repeat(begins, np.diff(begins, append=order.size))
    return ranks


def _events(released: Source, ids: Ints, batch: int) -> Ints | None:
    """Which event of its user each row is, where the release says so."""
    name, columns = BATCH if batch > 1 else EVENT, released.columns
    if name in (*columns.user_columns, *columns.value_columns, *columns.time_columns):
        return None
    try:
        rows = read(released.path, replace(columns, value=name), released.chunk, released.format, "number")
        number = np.concatenate([np.asarray(part.values, np.float64) for part in rows]).ravel().astype(np.int64)
    except (DataError, InputError):
        return None
    return number * batch + _ranks(ids, number) if batch > 1 else number


def _times(parts: list[Coded], name: str) -> Floats | None:
    """When each event was, in seconds; None where the order is no time."""
    if any(part.chunk.order is None or part.chunk.counts for part in parts):
        return None
    try:
        return np.concatenate([seconds(part.chunk, name) for part in parts])
    except (DataError, InputError):
        return None
