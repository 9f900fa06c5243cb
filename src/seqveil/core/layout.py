"""Streams of many users laid side by side: from a log in which their events are mixed to blocks of like length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqveil.core.kernel import Ints

ANY = 1 << 62  # no limit


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
        for t in range(int(self.lengths.max(initial=0))):
            yield self.order[self.begins[: int((self.lengths > t).sum())] + t]

    def blocks(self, numbers: int = ANY, most: int = ANY, alike: bool = False) -> Iterator[tuple[Ints, Ints]]:
        """Streams that go together: positions of their events (U, T), any past a stream's end, and lengths (U,).

        numbers: positions that a block may have.
        most: streams that a block may have.
        alike: whether all streams of a block must have one length; else the shortest has at least half of the longest.
        """
        at = 0
        while at < self.lengths.size:
            longest = int(self.lengths[at])
            part = self.lengths[at : at + max(1, min(most, numbers // longest))]
            part = part[part == longest] if alike else part[part * 2 >= longest]
            steps = np.arange(longest)
            inside = steps < part[:, None]
            yield self.order[np.where(inside, self.begins[at : at + part.size, None] + steps, 0)], part
            at += part.size
