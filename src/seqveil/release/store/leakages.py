"""What every user's stream has told, kept along with the log: figures over all users then cost no look at the file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np

from seqveil.core.kernel import Floats, Ints


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
            before = self._known[ids - 1]
            self._known[ids - 1] = np.maximum(np.maximum(most, -least), 0.0)
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
