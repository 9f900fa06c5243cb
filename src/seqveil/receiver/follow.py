"""Streams of many users as anyone who has the releases can follow them: one row of public state a user.

Audits, drift, statistics and learning all go through releases in this way. Nothing private is needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from seqveil.core.kernel import Floats, Ints
from seqveil.engine import stream
from seqveil.engine.state import Rows, State, rounds
from seqveil.engine.stream import Released, Terms


def numbered(index: dict[Hashable, int], users: Iterable[Hashable]) -> Rows:
    """The number of each user; those who are not in the index yet get the next ones, in the order they come.

    >>> index = {"ann": 0}
    >>> numbered(index, ["bob", "ann", "bob"]).tolist(), index
    ([1, 0, 1], {'ann': 0, 'bob': 1})
    """
    return np.array([index.setdefault(user, len(index)) for user in users], np.intp)


def turns(rows: Rows, codes: Ints, times: Floats | None = None) -> Iterator[tuple[Rows, Rows, Ints, Floats | None]]:
    """A call's events in rounds that hold each row once: their places in the call, their rows, codes and times."""
    for turn in rounds(rows):
        yield turn, rows[turn], codes[turn], None if times is None else times[turn]


class Followed:
    """Streams of users under one setting, by name or by row.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> followed = Followed(Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])))
    >>> for turn, rows, codes, times in turns(followed.rows(["ann", "bob", "ann"]), np.array([0, 1, 0])):
    ...     _ = followed.observe(rows, codes, times)
    >>> followed.users, followed.state.steps.tolist()
    (['ann', 'bob'], [2, 1])
    """

    def __init__(self, setting: Terms, users: int = 0) -> None:
        self.setting, self.state = setting, State.start(setting, users)
        self._index: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """How many rows there is room for."""
        return len(self.state)

    @property
    def users(self) -> list[Hashable]:
        """The names so far, in the order of their rows."""
        return list(self._index)

    def rows(self, users: Iterable[Hashable]) -> Rows:
        """The rows of these users. Room for new ones is made ahead of need, so that most calls copy nothing."""
        found = numbered(self._index, users)
        if len(self._index) > len(self):
            self.grow(max(len(self._index), 2 * len(self)))
        return found

    def grow(self, users: int) -> None:
        """Make room for rows 0..users-1."""
        self.state = self.state.grown(self.setting, users)

    def observe(self, rows: Rows, codes: Ints, times: Floats | None = None) -> Released:
        """Take in one release for each of these rows, NOTHING where there was none; no row twice."""
        seen, self.state = self.state.move(rows, lambda part: stream.observe(self.setting, part, codes, times))
        return seen
