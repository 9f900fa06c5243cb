"""Many users side by side: what is known of each in rows of arrays; their streams, step by step and in blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

ANY = 1 << 62  # no limit

Ints = NDArray[np.int64]


class ByUser:
    """A dataclass of arrays that have a row for each user; and of others such. None stays None.

    >>> @dataclass
    ... class Figures(ByUser):
    ...     ages: Ints
    ...     pairs: Ints
    >>> both = Figures(np.array([3, 5]), np.array([[1, 2], [3, 4]]))
    >>> both.take(np.array([1]))
    Figures(ages=array([5]), pairs=array([[3, 4]]))
    >>> both.where(np.array([True, False]), both.take(np.array([1, 0]))).pairs.tolist()
    [[1, 2], [1, 2]]
    """

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """Of some users."""
        return self.mapped(lambda mine: mine[rows])

    def put(self, rows: NDArray[Any] | slice, part: Self) -> None:
        """Write those of some users back in place."""
        self.mapped(lambda mine, other: mine.__setitem__(rows, other), part)

    def join(self, other: Self) -> Self:
        """Two groups of users as one."""
        return self.mapped(lambda mine, other: np.concatenate([mine, other]), other)

    def where(self, who: NDArray[np.bool_], other: Self) -> Self:
        """These for some users, the others for the rest; in arrays of their own."""
        return self.mapped(lambda mine, other: np.where(who.reshape(-1, *(1,) * (mine.ndim - 1)), mine, other), other)

    def mapped(self, act: Callable[..., Any], *others: Self) -> Self:
        """The result of `act` for each array and those of others like it."""
        made: list[Any] = []
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            value, rest = getattr(self, name), [getattr(other, name) for other in others]
            if isinstance(value, ByUser):
                made.append(value.mapped(act, *rest))
            else:
                made.append(None if value is None else act(value, *rest))
        return type(self)(*made)


def places_within(lengths: Ints) -> Ints:
    """0, 1, … within each stream, for streams of these lengths one after another.

    >>> places_within(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def row_entries(pointers: NDArray[Any], rows: Ints) -> tuple[Ints, Ints]:
    """How many entries each of some rows of a sparse matrix has, and where they all stand, row after row.

    >>> [part.tolist() for part in row_entries(np.array([0, 2, 2, 5]), np.array([2, 0, 1]))]
    [[3, 2, 0], [2, 3, 4, 0, 1]]
    """
    begins = pointers[rows].astype(np.int64)
    counts = pointers[rows + 1] - begins
    return counts, np.repeat(begins, counts) + places_within(counts)


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
