"""Bulk work: independent rows cut into parts for threads, and the streams of many users laid side by side.

Each row comes out the same to the last bit, however many parts there are. `SEQVEIL_THREADS` in the environment sets
how many threads there may be; by default as many as the cores this process may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

PART = 8192  # rows that are worth a thread: fewer cost more to hand out than they save
NARROW = 128  # numbers up to which a row counts as one; a wider one is as much work as several
BLOCK = 64  # compiled code takes rows in blocks of so many
ANY = 1 << 62  # no limit

Found = TypeVar("Found")
Ints = NDArray[np.int64]


_listening: list[Callable[[int], None]] = []


@contextmanager
def heard(hear: Callable[[int], None]) -> Iterator[None]:
    """Have each step of bulk work in the block disclosed, by how many streams took it: for signs of progress.

    >>> with heard(print):
    ...     took_step(3)
    3
    """
    _listening.append(hear)
    try:
        yield
    finally:
        _listening.remove(hear)


def took_step(rows: int) -> None:
    """Tell whoever listens that so many streams went one event on."""
    for hear in _listening:
        hear(rows)


def use_threads(count: int) -> None:
    """Let bulk work use so many threads from now on, whatever the environment says."""
    if threads() != count:
        os.environ["SEQVEIL_THREADS"] = str(count)
        threads.cache_clear()
        _pool.cache_clear()


@cache
def threads() -> int:
    """How many threads bulk work may use."""
    asked = os.environ.get("SEQVEIL_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(rows: int, work: Callable[[slice], Found], width: int = 1) -> list[Found]:
    """What `work` gives for each part of the rows; the parts run side by side, and in one where there are few rows.

    `width` says how many numbers a row has: of wide rows fewer are worth a thread.

    >>> in_parts(10, lambda part: part.stop - part.start)
    [10]
    """
    if rows < PART and width <= NARROW:  # the usual case
        return [work(slice(0, rows))]
    worth, block = (PART, BLOCK) if width <= NARROW else (max(1, PART * NARROW // (8 * width)), 1)
    count = min(threads(), rows // worth)
    if count <= 1:
        return [work(slice(0, rows))]
    size = -(-rows // (count * block)) * block
    parts = [slice(at, min(rows, at + size)) for at in range(0, rows, size)]
    return list(_pool().map(work, parts))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads(), "seqveil-core")


if hasattr(os, "register_at_fork"):  # the threads of a pool do not come along into a forked process
    os.register_at_fork(after_in_child=_pool.cache_clear)


def places_within(lengths: Ints) -> Ints:
    """0, 1, … within each stream, for streams of these lengths one after another.

    >>> places_within(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


@dataclass(frozen=True, eq=False)
class Layout:
    """The streams of a log, longest first; those of one length in the order of their users' numbers.

    >>> layout = Layout.of(np.array([0, 1, 1, 0, 1]))
    >>> [(places.tolist(), lengths.tolist()) for places, lengths in layout.blocks()]
    [([[1, 2, 4], [0, 3, 0]], [3, 2])]
    >>> [places.tolist() for places in layout.steps()]
    [[1, 0], [2, 3], [4]]
    """

    order: Ints  # (E,) positions of the events, user by user
    begins: Ints  # (U,) where each stream begins in it
    lengths: Ints  # (U,)

    @classmethod
    def of(cls, users: Ints) -> Layout:
        """Of the users of all events, each user's in their order."""
        order = np.argsort(users, kind="stable")
        _, begins, lengths = np.unique(users[order], return_index=True, return_counts=True)
        longest = np.argsort(-lengths, kind="stable")
        return cls(order, begins[longest], lengths[longest])

    def steps(self) -> Iterator[Ints]:
        """Positions of the t-th events of all streams that have one, longest first, for t = 0, 1, …"""
        going = np.searchsorted(-self.lengths, -np.arange(int(self.lengths.max(initial=0))))
        for t, count in enumerate(going.tolist()):
            yield self.order[self.begins[:count] + t]

    def parts(self, events: int = ANY, most: int = ANY) -> Iterator[Layout]:
        """The streams in parts of so many events and streams at most, longest first; one stream is never cut.

        >>> [part.lengths.tolist() for part in Layout.of(np.array([0, 1, 1, 0, 1, 2])).parts(events=4)]
        [[3], [2, 1]]
        """
        at, upto = 0, np.cumsum(self.lengths)
        while at < self.lengths.size:
            before = int(upto[at - 1]) if at else 0
            end = min(max(at + 1, int(np.searchsorted(upto, before + events, side="right"))), at + most)
            yield Layout(self.order, self.begins[at:end], self.lengths[at:end])
            at = end

    def blocks(self, numbers: int = ANY, most: int = ANY) -> Iterator[tuple[Ints, Ints]]:
        """Streams that go together: positions of their events (U, T), any past a stream's end, and lengths (U,).

        numbers: positions that a block may have.
        most: streams that a block may have; the shortest has at least half of the longest's events.
        """
        at = 0
        while at < self.lengths.size:
            longest = int(self.lengths[at])
            part = self.lengths[at : at + max(1, min(most, numbers // longest))]
            part = part[part * 2 >= longest]
            steps = np.arange(longest)
            inside = steps < part[:, None]
            yield self.order[np.where(inside, self.begins[at : at + part.size, None] + steps, 0)], part
            at += part.size


def numbered(index: dict[Hashable, int], users: Iterable[Hashable]) -> NDArray[np.intp]:
    """The number of each user; those who are not in the index yet get the next ones, in the order they come.

    >>> index = {"ann": 0}
    >>> numbered(index, ["bob", "ann", "bob"]).tolist(), index
    ([1, 0, 1], {'ann': 0, 'bob': 1})
    """
    return np.array([index.setdefault(user, len(index)) for user in users], np.intp)
