"""Counting runs of symbols in streams, in one pass and in chunks, and turning the counts into a distribution.

A context of length j followed by x is a run of j+1 symbols, so runs of length 1..m+1 are all that an order-m fit needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.alphabet import Alphabet, Codes, Floats, Symbols, comes_from, symbols_of
from seqveil.core.bulk import places_within
from seqveil.core.errors import DataError, ModelError, UnknownSymbol
from seqveil.core.states import States, checked_order, from_contexts

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

# Pseudo-events of a context, spread as all events are: without any, what nobody did would count as impossible, and an
# account would take nobody to ever do it. More predicts rare events better and makes releases err more.
SMOOTHING = 1.0
_DENSE = 2**22  # below this many possible runs a table is quicker than a sort


@dataclass
class _Tally:
    """How often each integer was seen; merges are put off until they are worth a sort."""

    span: int
    numbers: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    waiting: list[tuple[Codes, Codes]] = field(default_factory=list)

    def add(self, numbers: Codes) -> None:
        """Count these numbers; what waits is merged once it outgrows what was counted before."""
        if len(numbers) == 0:
            return
        if self.span <= _DENSE and len(numbers) * 8 >= self.span:
            table = np.bincount(numbers, minlength=self.span)
            seen = np.flatnonzero(table)
            self.waiting.append((seen, table[seen]))
        else:
            self.waiting.append(np.unique(numbers, return_counts=True))
        if sum(len(part) for part, _ in self.waiting) > len(self.numbers) + 100_000:
            self.merge()

    def merge(self) -> tuple[Codes, Codes]:
        """Numbers in increasing order, and their counts."""
        if self.waiting:
            parts = [(self.numbers, self.counts), *self.waiting]
            self.numbers, place = np.unique(np.concatenate([part for part, _ in parts]), return_inverse=True)
            counts = np.zeros(len(self.numbers), np.int64)
            np.add.at(counts, place, np.concatenate([count for _, count in parts]))
            self.counts, self.waiting = counts, []
        return self.numbers, self.counts


class RunCounts:
    """Counts of runs of 1..order+1 symbols over many users' streams, fed in chunks.

    Between chunks only each user's last `order` codes are kept, so memory is O(users + distinct runs).
    """

    def __init__(self, n: int, order: int = 1) -> None:
        if n < 1:
            raise ModelError(f"an alphabet needs n >= 1 symbols; got n={n}")
        self.n = n
        self.order = checked_order(order, n)
        self.events = 0
        self._runs = [_Tally(n**length) for length in range(1, self.order + 2)]
        self._first = np.zeros(n, np.int64)
        self._slots: dict[Hashable, int] = {}
        self._tails = np.full((0, self.order), -1, np.int64)
        self._seen = np.zeros(0, np.int64)

    def add(self, users: Any, codes: ArrayLike) -> None:
        """Count a chunk: who, and which code, row by row, in time order within each user."""
        array = np.asarray(codes)
        if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
            raise DataError("codes must be a flat sequence of integers; encode the values with the alphabet first")
        wrong = (array < 0) | (array >= self.n)
        if wrong.any():
            raise DataError(f"code {int(wrong.argmax())} of the chunk is outside 0..{self.n - 1}; encode it first")
        rows = self._rows_of(users)
        if len(rows) != len(array):
            raise DataError(f"each event needs a user; got {len(rows)} users for {len(array)} codes")
        if len(array):
            self._count(rows, array.astype(np.int64))
            self.events += len(array)

    def _rows_of(self, users: Any) -> Codes:
        """A small integer for each event's user; new users get the next one."""
        if comes_from(users, "polars", "pandas"):
            users = users.to_numpy()
        listed, place = users.tolist() if isinstance(users, np.ndarray) else list(users), None
        plain = np.asarray(users)
        if plain.ndim == 1 and plain.dtype.kind in "iuf":  # numbers: each is looked up once
            distinct, place = np.unique(plain, return_inverse=True)
            listed = distinct.tolist()
        missing = [k for k, user in enumerate(listed) if user is None or user != user]
        if missing:
            first = missing[0] if place is None else int((place == missing[0]).argmax())
            raise DataError(f"event {first} of the chunk has no user; name the user or drop the row")
        slots = self._slots
        known = np.fromiter((slots.setdefault(user, len(slots)) for user in listed), np.int64, len(listed))
        return known if place is None else known[place]

    def _count(self, rows: Codes, codes: Codes) -> None:
        """Count the runs that end in these events: whose they are, and their codes."""
        if len(self._slots) > len(self._seen):  # grow by doubling: many small chunks stay cheap
            room = max(len(self._slots), 2 * len(self._seen)) - len(self._seen)
            self._tails = np.concatenate([self._tails, np.full((room, self.order), -1, np.int64)])
            self._seen = np.pad(self._seen, (0, room))
        present = np.unique(rows)
        old_rows, old_codes = np.repeat(present, self.order), self._tails[present].ravel()
        kept = old_codes >= 0
        is_new = np.concatenate([np.zeros(int(kept.sum()), bool), np.ones(len(rows), bool)])
        rows = np.concatenate([old_rows[kept], rows])
        order = np.argsort(rows, kind="stable")  # a user's tail comes before the user's new events
        rows, is_new = rows[order], is_new[order]
        codes = np.concatenate([old_codes[kept], codes])[order]
        begins = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        lengths, seen = np.diff(np.append(begins, rows.size)), self._seen[present]
        places = places_within(lengths) + np.repeat(seen - np.minimum(seen, self.order), lengths)
        number = codes.copy()
        for back in range(self.order + 1):
            number[back:] += codes[: len(codes) - back] * self.n**back if back else 0
            whole = is_new & (places >= back)
            self._note(back, rows[whole], number[whole], places[whole])
        ends = np.cumsum(lengths) - 1
        self._seen[present] = places[ends] + 1
        for back in range(self.order):
            last = np.where(places[ends] >= back, codes[np.maximum(ends - back, 0)], -1)
            self._tails[present, self.order - 1 - back] = last

    def _note(self, back: int, rows: Codes, runs: Codes, places: Codes) -> None:
        """Called with the runs of back+1 symbols that end in a new event, user by user, and the places of these."""
        self._runs[back].add(runs)
        if back == 0:
            self._first += np.bincount(runs[places == 0], minlength=self.n)

    def states(self, smoothing: float = SMOOTHING) -> States:
        """The fitted distribution; see `MarkovModel.fit`."""
        if not np.isfinite(smoothing) or smoothing < 0:
            raise ModelError("smoothing must be a finite number >= 0, the pseudo-count given to each context")
        n, order, runs, base = self.n, self.order, self.runs(), self.base(smoothing)
        contexts, edges, backoff = self.contexts(), [], []
        for length, numbers in contexts.items():
            run, count = runs[length]
            place = np.searchsorted(numbers, run // n)
            total = np.bincount(place, count, minlength=len(numbers)) + smoothing
            target = (length + 1, run) if length < order else (order, run % n**order)
            edges.append((length, run // n, *target, count / total[place]))
            backoff.append(np.divide(smoothing, total, out=np.ones(len(total)), where=total > 0))
        first = (self._first + smoothing * base) / (self._first.sum() + smoothing)
        return from_contexts(order, n, contexts, edges, first, base, np.concatenate(backoff))

    def runs(self) -> list[tuple[Codes, Codes]]:
        """Numbers of the runs of 1, 2, … order+1 symbols, and how often each was seen."""
        if self.events == 0:
            raise DataError("there is nothing to fit: the data hold no events")
        return [tally.merge() for tally in self._runs]

    def contexts(self) -> dict[int, Codes]:
        """Numbers of the contexts of 1, 2, … order symbols, by their length: all symbols, and the runs that occur."""
        runs = self.runs()
        return {1: np.arange(self.n), **{length: runs[length - 1][0] for length in range(2, self.order + 1)}}

    def base(self, smoothing: float) -> Floats:
        """Distribution of a symbol, whatever came before it."""
        seen, counts = self.runs()[0]
        frequency = np.zeros(self.n)
        frequency[seen] = counts
        return (frequency + smoothing / self.n) / (self.events + smoothing)


class Counts(RunCounts):
    """Fit a model chunk by chunk, in memory O(users + distinct contexts).

    >>> counts = Counts(n=2)
    >>> counts.add(["ann", "bob", "ann"], [0, 1, 1])
    >>> counts.add(["ann", "bob"], [0, 1])
    >>> counts.model()
    MarkovModel(order=1, 2 symbols, 3 transitions)
    """

    def model(self, alphabet: Symbols | Sequence[Any] | None = None, smoothing: float = SMOOTHING) -> MarkovModel:
        """The model of what was counted so far; see `MarkovModel.fit` for smoothing."""
        from seqveil.core.model import MarkovModel

        return MarkovModel._of(self.states(smoothing), symbols_of(alphabet, self.n))


def read_streams(streams: Any, alphabet: Symbols | None) -> tuple[Symbols, Codes, Codes]:
    """The alphabet (made from the data where None), and the number of the stream and the code of every event."""
    unlisted = isinstance(streams, str | bytes) or not hasattr(streams, "__iter__")
    if unlisted or comes_from(streams, "polars", "pandas", "pyarrow"):
        raise DataError("streams must be a list of sequences; a frame or a file is fitted by sv.fit")
    listed = [stream.to_numpy() if comes_from(stream, "polars", "pandas") else stream for stream in streams]
    for place, stream in enumerate(listed):
        if isinstance(stream, str | bytes) or not hasattr(stream, "__len__"):
            raise DataError(f"stream {place} must be a sequence of values; wrap a single stream in a list: [stream]")
    lengths = np.array([len(stream) for stream in listed], dtype=np.int64)
    if len(listed) == 0:
        raise DataError("there is nothing to fit: the data hold no streams")
    if (lengths == 0).any():
        raise DataError(f"stream {int((lengths == 0).argmax())} has no events; drop empty streams first")
    values: Any
    if all(isinstance(stream, np.ndarray) for stream in listed) and len({stream.dtype.kind for stream in listed}) == 1:
        values = np.concatenate(listed)
    else:
        plain = (stream.tolist() if isinstance(stream, np.ndarray) else stream for stream in listed)
        values = [value for stream in plain for value in stream]
    alphabet = alphabet or Alphabet.of(values)
    try:
        codes = alphabet.strict.encode(values)
    except UnknownSymbol as error:
        place = int(vars(error)["position"])
        stream = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        event = place - int(lengths[:stream].sum())
        located = UnknownSymbol(f"stream {stream}, event {event}: {error}")
        vars(located)["position"] = place
        raise located from None
    return alphabet, np.repeat(np.arange(len(listed)), lengths), codes
