"""What can be learned from: releases as likelihoods, and nothing else.

A release y made by a known kernel says of the truth x only Q(y|x). `Evidence` holds those numbers, event by event, and
whose event it was. Mechanism, ε and history may differ from event to event; the numbers do not care. There is no field
a raw symbol could be in, so whatever is computed from it is post-processing and costs no budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.bulk import Layout, places_within
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.engine import stream
from seqveil.engine.state import Rows
from seqveil.receiver.follow import Followed


@dataclass(frozen=True, eq=False)
class Evidence:
    """A log of releases, in the order of each user's events: `table[index[k], x]` = Q(y_k | x), of user `users[k]`.

    Only proportions within a row matter. A row of ones says nothing: an event without a release, or a held one.

    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> from seqveil import Policy
    >>> setting = Policy(epsilon=1.0, mechanism="randomized_response").on(model)
    >>> Evidence.of(setting, [[0, 0, 1], [1]])
    Evidence(2 users, 4 releases, 2 symbols)
    """

    table: Floats  # (R, n)
    users: Ints  # (E,) 0..U-1
    index: Ints  # (E,) 0..R-1

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or self.users.shape != self.index.shape or self.users.ndim != 1:
            raise InputError("expected a table (rows, n) and one user and one row number for each event")
        if not (np.isfinite(self.table).all() and (self.table >= 0).all() and (self.table.max(1) > 0).all()):
            raise InputError("expected likelihoods that are finite, not negative, and not all zero in a row")
        if self.index.size and not (self.index.min() >= 0 and self.index.max() < len(self.table)):
            raise InputError(f"expected row numbers 0..{len(self.table) - 1}")
        if self.users.size and self.users.min() < 0:
            raise InputError("expected users numbered from 0")

    @property
    def n(self) -> int:
        """Symbols of the alphabet."""
        return int(self.table.shape[1])

    @property
    def events(self) -> int:
        """How many releases it holds."""
        return int(self.users.size)

    @cached_property
    def people(self) -> int:
        """Users with at least one event."""
        return int(np.unique(self.users).size)

    @classmethod
    def of(
        cls,
        setting: stream.Terms,
        released: Iterable[ArrayLike],
        times: Iterable[ArrayLike] | None = None,
    ) -> Evidence:
        """Of released codes, one sequence a user (NOTHING where nothing was released), made under `setting`.

        Events come user by user. Releases in batches are refused: the likelihood of a path joins several symbols, which
        this log has no place for. Release one by one what shall be learned from.
        """
        if setting.in_batches:
            raise InputError("a release in batches cannot be learned from; use a mechanism that releases one by one")
        streams = [np.asarray(codes, np.int64) for codes in released]
        stamps = None if times is None else [np.asarray(each, np.float64) for each in times]
        if not streams or any(codes.ndim != 1 for codes in streams):
            raise DataError("expected one sequence of released codes a user")
        users = np.repeat(np.arange(len(streams)), [codes.size for codes in streams])
        moments = None if stamps is None else np.concatenate(stamps)
        return cls.of_streams(setting, users, np.concatenate(streams), moments)

    @classmethod
    def of_streams(
        cls,
        setting: stream.Terms,
        users: Rows,
        codes: Ints,
        times: Floats | None = None,
    ) -> Evidence:
        """Of releases in the order they were made.

        Parameters:
          setting: what they were made with.
          users: whose each is, numbered from 0.
          codes: what was released.
          times: when, in seconds.
        """
        tables, count, index = [np.zeros((0, setting.model.n))], 0, np.empty(users.size, np.int64)
        for turn, seen in Followed(setting).observe(users, codes, times):
            # many releases of a round are alike
            whole = np.ascontiguousarray(seen.columns).view(np.dtype((np.void, seen.columns[0].nbytes))).ravel()
            _, first, which = np.unique(whole, return_index=True, return_inverse=True)
            index[turn] = count + which
            tables.append(seen.columns[first] / float(DENOMINATOR))
            count += first.size
        return cls(np.concatenate(tables), users.astype(np.int64), index)

    def of_users(self, chosen: NDArray[np.bool_]) -> Evidence:
        """The events of the users for which `chosen` is true."""
        kept = chosen[self.users]
        return Evidence(self.table, self.users[kept], self.index[kept])

    def cut(self, length: int) -> Evidence:
        """The same events with every stream cut into pieces of at most `length`, each a user of its own."""
        lengths = np.bincount(self.users)
        if lengths.max(initial=0) <= length:
            return self
        order = np.argsort(self.users, kind="stable")
        place = np.empty(self.events, np.int64)
        place[order] = places_within(lengths)
        pieces = -(-lengths // length)
        return Evidence(self.table, (np.cumsum(pieces) - pieces)[self.users] + place // length, self.index)

    def __repr__(self) -> str:
        return f"Evidence({self.people} users, {self.events} releases, {self.n} symbols)"

    @cached_property
    def layout(self) -> Layout:
        """The streams side by side."""
        return Layout.of(self.users)

    def blocks(self, numbers: int, most: int) -> Iterator[tuple[Ints, Ints]]:
        """Users of like length together: row numbers (U, T), any past a stream's end, and lengths, longest first.

        A block has about `numbers` entries and at most so many users.
        """
        for places, lengths in self.layout.blocks(numbers, most):
            yield self.index[places], lengths
