"""What a state file comes to, what its log holds and what every user was told, as the writer keeps it in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from seqveil.core.coins import User
from seqveil.core.kernel import Floats, Ints


class Log:
    """Which rows of the log each user is in, and who is in the log alone.

    A user's rows are a chain: the latest row of each user is kept, and each row says which one came before it for each
    of its users. So a row is noted and undone with a few array operations, however many users it has. Readers on other
    threads walk along while the writer goes on.

    Parameters:
        first: the number of the first user who has no row in the tables yet.

    >>> log = Log(first=1)
    >>> log.note(5, np.array([1, 2]))
    >>> log.note(6, np.array([2]))
    >>> log.rows_of(2), log.rows_of(1), log.rows_of(9)
    ([6, 5], [5], [])
    >>> log.oldest(most=2), log.oldest(most=1), log.oldest(most=3)
    (5, 5, 6)
    >>> log.after(5, []).rows_of(2)
    [6]
    >>> log.undo(6)
    >>> log.rows_of(2)
    [5]
    """

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.new: dict[User, int] = {}  # users who are in the log alone, by name
        self._rows: dict[int, tuple[Ints, Ints]] = {}  # the users of each row, and the row before it for each
        self._latest = np.zeros(0, np.int64)  # by the number of the user; 0: none

    def note(self, row: int, ids: Ints) -> None:
        """One more row, with these users."""
        size = int(ids.max(initial=0)) + 1
        if size > self._latest.size:
            more = max(size, 2 * self._latest.size) - self._latest.size
            self._latest = np.concatenate([self._latest, np.zeros(more, np.int64)])
        self._rows[row] = ids, self._latest[ids]  # first, so that whoever finds its number finds it
        self._latest[ids] = row

    def undo(self, row: int) -> None:
        """Take the last row back."""
        ids, before = self._rows[row]
        self._latest[ids] = before
        del self._rows[row]

    def oldest(self, most: int) -> int:
        """The last of the oldest rows that have at most so many users together; the first row in any case."""
        users = np.cumsum([ids.size for ids, _ in self._rows.values()])
        fitting = int(np.searchsorted(users, most, side="right"))
        return list(self._rows)[max(fitting, 1) - 1]

    def after(self, row: int, new: Sequence[User]) -> Log:
        """What is left of the log behind a row, and of those who are in it alone."""
        left = Log(self.first + len(self.new) - len(new))
        left.new = {name: left.first + k for k, name in enumerate(new)}
        left._latest = np.zeros_like(self._latest)
        for later, (ids, _) in self._rows.items():
            if later > row:
                left.note(later, ids)
        return left

    def rows_of(self, user: int) -> list[int]:
        """The rows that a user is in, the latest one first."""
        found: list[int] = []
        row = self._last(user)
        while row:
            ids, before = self._rows.get(row, (np.zeros(0, np.int64),) * 2)
            place = np.flatnonzero(ids == user)
            if place.size:
                found.append(row)
                row = int(before[place[0]])
            else:  # it was undone a moment ago
                found, row = [], self._last(user)
        return found

    def _last(self, user: int) -> int:
        latest = self._latest
        return int(latest[user]) if user < latest.size else 0

    def holds(self, user: int) -> bool:
        """Whether a user is in any row."""
        return self._last(user) > 0


@dataclass
class Book:
    """What the tables come to, as `sums` has it, and what the log holds."""

    users: int = 0  # those who are in the log alone among them
    first: int = 1  # row of the log; the numbers go on when it is settled, so that no reader takes one for another
    last: int = 0
    positions: int = 0  # the sum of the marks, as of the next one
    facts: int = 0
    commits: int = 0  # transactions that changed anything
    events: int = 0
    size: int = 0
    log: Log = field(default_factory=Log)

    @classmethod
    def of(cls, sums: Sequence[int]) -> Book:
        """What a row of `sums` says, without its mark; the log is still to be noted."""
        users, first, last, positions, facts, commits = sums
        return cls(users, first, last, positions, facts, commits)

    def copy(self) -> Book:
        """The same figures, to go back to; the log is the same one, which is undone row by row."""
        return Book(**vars(self))

    @property
    def rows(self) -> int:
        """How many rows the log has."""
        return self.last - self.first + 1

    @property
    def sums(self) -> tuple[int, ...]:
        """The row of `sums`, without its mark."""
        return self.users, self.first, self.last, self.positions, self.facts, self.commits


class Leakages:
    """Leakage in nats by the number of the user; those who have not come since the file was opened are read once.

    >>> leakages = Leakages()
    >>> before = leakages.put(np.array([2]), np.array([0.5]), np.array([-0.75]))
    >>> leakages.fill(lambda after: [] if after >= 2 else [(1, 0.25), (2, 0.5)]).tolist()
    [0.25, 0.75]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for moments: the writer goes by here
        self._known = np.full(0, np.nan)  # nan: to be read

    def put(self, ids: Ints, most: Floats, least: Floats) -> Floats:
        """Where these users stand now; what was known of them before."""
        with self._lock:
            self._grow(int(ids.max(initial=0)))
            places = ids - 1
            before = self._known[places]
            self._known[places] = np.maximum(np.maximum(most, -least), 0.0)
        return before

    def restore(self, ids: Ints, before: Floats | float = np.nan) -> None:
        """What was put last of these users was undone; without what was known before, they are read again."""
        with self._lock:
            known = ids <= self._known.size
            self._known[ids[known] - 1] = before[known] if isinstance(before, np.ndarray) else before

    def fill(self, page: Callable[[int], Iterable[tuple[int, float]]]) -> Floats:
        """Everybody's leakage, in the order they came; `page` gives some of those behind a number, which are read."""
        after = self._next(0)
        while found := list(page(after)):
            ids, values = (np.array(part) for part in zip(*found, strict=True))
            with self._lock:
                self._grow(int(ids[-1]))
                new = np.isnan(self._known[ids - 1])
                self._known[ids[new] - 1] = values[new]
            after = self._next(int(ids[-1]))
        with self._lock:
            return self._known[~np.isnan(self._known)]

    def _next(self, after: int) -> int:
        """The last number before one that is to be read; users beyond those known are always looked for."""
        with self._lock:
            lacking = np.flatnonzero(np.isnan(self._known[after:]))
            return after + int(lacking[0]) if lacking.size else self._known.size

    def _grow(self, size: int) -> None:
        if size > self._known.size:
            more = np.full(max(size, 2 * self._known.size) - self._known.size, np.nan)
            self._known = np.concatenate([self._known, more])
