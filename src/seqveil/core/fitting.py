"""Fitting: the runs of symbols in people's streams, and the chain, or the mixture of chains, that follows from them.

A context of length j followed by x is a run of j+1 symbols, so runs of length 1..m+1 are all that an order-m fit needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seqveil.core.alphabet import Alphabet, Codes, Symbols, listed, symbols_of
from seqveil.core.bulk import places_within
from seqveil.core.errors import DataError, ModelError, UnknownSymbol
from seqveil.core.filtering import log_likelihoods
from seqveil.core.kernel import Ints
from seqveil.core.mixture import answers_among, fit_types, piece_of, side_by_side
from seqveil.core.model import LEAST_PEOPLE, SMOOTHING, SWITCH, MarkovModel, Progress
from seqveil.core.states import States, checked_order, from_contexts, named_labels

TRIED_TYPES = (1, 2, 4, 8, 16)  # of an answer to a trait, where their number is not given


@dataclass(frozen=True, eq=False)
class RunCounts:
    """The run of symbols that ends in each event: the last order+1 of the stream, fewer near its beginning.

    Every shorter run is the end of one of them. Equal ones may stand together, with a count.
    """

    n: int
    order: int
    back: Codes  # symbols before the last one: 0 to order
    number: Codes  # the run in base n, oldest symbol first
    count: Codes
    person: Codes
    piece: Codes  # of the stream, that the run ends in

    @classmethod
    def of(cls, users: Any, codes: Codes, n: int, order: int = 1, piece: int = 0) -> RunCounts:
        """Of all events: who, and which code, in time order within each user; in pieces of so many events (0: one)."""
        order = checked_order(order, n)
        if len(users) != codes.size or not codes.size:
            raise DataError(f"a fit needs events, and a user for each; got {len(users)} users and {codes.size} codes")
        _, rows = np.unique(users, return_inverse=True)
        by_user = np.argsort(rows, kind="stable")
        codes, places = codes[by_user], places_within(np.bincount(rows))
        number = codes.copy()
        for back in range(1, order + 1):
            number[back:] += np.where(places[back:] >= back, codes[:-back], 0) * n**back
        ones, pieces = np.ones(codes.size, np.int64), places // piece if piece else np.zeros(codes.size, np.int64)
        return cls(n, order, np.minimum(places, order), number, ones, rows[by_user], pieces)

    @property
    def events(self) -> int:
        """How many there are."""
        return int(self.count.sum())

    @cached_property
    def tallies(self) -> list[tuple[Codes, Codes]]:
        """Numbers of the runs of 1, 2, … order+1 symbols in increasing order, and how often each occurs."""
        found = []
        for length in range(1, self.order + 2):
            whole = self.back >= length - 1
            seen, place = np.unique(self.number[whole] % self.n**length, return_inverse=True)
            found.append((seen, np.bincount(place, self.count[whole]).astype(np.int64)))
        return found

    @property
    def first(self) -> Codes:
        """How often each symbol opens a stream: (n,)."""
        opening = self.back == 0
        return np.bincount(self.number[opening], self.count[opening], self.n).astype(np.int64)

    @cached_property
    def contexts(self) -> dict[int, Codes]:
        """Numbers of the contexts of 1, 2, … order symbols, by their length: all symbols, and the runs that occur."""
        return {1: np.arange(self.n), **{length: self.tallies[length - 1][0] for length in range(2, self.order + 1)}}

    def states(self, smoothing: float = SMOOTHING) -> States:
        """The fitted distribution; see `MarkovModel.fit`."""
        if not np.isfinite(smoothing) or smoothing < 0:
            raise ModelError("smoothing must be a finite number >= 0, the pseudo-count given to each context")
        n, order, first = self.n, self.order, self.first
        frequency = np.bincount(self.number % n, self.count, n).astype(np.float64)
        base = (frequency + smoothing / n) / (self.events + smoothing)
        edges, backoff = [], []
        for length, numbers in self.contexts.items():
            run, count = self.tallies[length]
            place = np.searchsorted(numbers, run // n)
            total = np.bincount(place, count, minlength=len(numbers)) + smoothing
            target = (length + 1, run) if length < order else (order, run % n**order)
            edges.append((length, run // n, *target, count / total[place]))
            backoff.append(np.divide(smoothing, total, out=np.ones(len(total)), where=total > 0))
        prior = (first + smoothing * base) / (first.sum() + smoothing)
        return from_contexts(order, n, edges, prior, base, np.concatenate(backoff))

    def steps(self, states: States) -> Codes:
        """Which step of the chain each run is: n + its place among the entries, or the symbol that opens a stream."""
        n, size = self.n, len(states.newest)
        begins = dict(zip(self.contexts, np.cumsum([0, *map(len, self.contexts.values())]).tolist(), strict=False))
        source, target = np.zeros((2, self.number.size), np.int64)
        for back, numbers in self.contexts.items():
            here, ahead = self.back == back, min(back + 1, self.order)
            source[here] = begins[back] + np.searchsorted(numbers, self.number[here] // n)
            target[here] = begins[ahead] + np.searchsorted(self.contexts[ahead], self.number[here] % n**ahead)
        row = np.repeat(np.arange(size), np.diff(states.chain.indptr))
        entry = np.searchsorted(row * size + states.chain.indices, source * size + target)
        return np.where(self.back == 0, self.number, n + entry)


def fit_codes(
    users: Any,
    codes: Codes,
    alphabet: Symbols,
    *,
    order: int = 1,
    smoothing: float = SMOOTHING,
    types: int | None = None,
    trait: tuple[str, Sequence[Any]] | None = None,
    seed: int = 0,
    switch: float = SWITCH,
    least_people: int = LEAST_PEOPLE,
    progress: Progress | None = None,
) -> MarkovModel:
    """The model of a whole log: who, and which code, event by event, in time order within each user.

    Parameters as in `MarkovModel.fit`; with a `trait`, users are numbers from 0 on, in the order of its labels, and
    without `types` each answer has as many as predict held-out people.
    """
    if trait is not None:
        how: dict[str, Any] = {"order": order, "smoothing": smoothing, "seed": seed}
        how |= {"switch": switch, "least_people": least_people}
        name, labels = named_labels(trait)
        answers, of_person = answers_among(labels, int(users.max(initial=-1)) + 1, least_people)
        parts: list[MarkovModel] = []
        for number in range(len(answers)):
            here = of_person[users] == number
            asked = _types_for(users[here], codes[here], alphabet, how) if types is None else types
            parts.append(fit_codes(users[here], codes[here], alphabet, types=asked, **how))
            if progress is not None:
                progress((number + 1) / len(answers))
        return side_by_side(name, answers, of_person, parts)
    if types is None:
        return MarkovModel._of(RunCounts.of(users, codes, alphabet.n, order).states(smoothing), alphabet)
    runs = RunCounts.of(users, codes, alphabet.n, order, piece_of(switch))
    return fit_types(runs, alphabet, types, switch, smoothing, seed, least_people, progress)


def _types_for(users: Ints, codes: Codes, alphabet: Symbols, how: dict[str, Any]) -> int:
    """The fewest types that predict held-out people of one answer within a standard error of the best."""
    people = np.random.default_rng(how["seed"]).permutation(np.unique(users))
    held, tried = np.isin(users, people[: people.size // 5]), list[tuple[int, Any]]()
    for types in TRIED_TYPES:
        if types == 1 or types * how["least_people"] <= people.size - people.size // 5:
            model = fit_codes(users[~held], codes[~held], alphabet, types=types, **how)
            tried.append((types, log_likelihoods(model, users[held], codes[held])))
    _, best = max(tried, key=lambda one: one[1].sum())
    lost = ((types, best - scores) for types, scores in tried)
    return next(types for types, less in lost if less.sum() <= less.std() * np.sqrt(less.size))


def read_streams(streams: Any, alphabet: Symbols | Sequence[Any] | None) -> tuple[Symbols, Codes, Codes]:
    """The alphabet (made from the data where None), and the number of the stream and the code of every event."""
    column = hasattr(streams, "to_numpy") or hasattr(streams, "to_pandas")  # of any package, or a frame
    if column or isinstance(streams, str | bytes) or not hasattr(streams, "__iter__"):
        raise DataError("streams must be a list of sequences; a frame or a file is fitted by sv.fit")
    lengths, values = list[int](), list[Any]()
    for place, stream in enumerate(streams):
        if isinstance(stream, str | bytes) or not hasattr(stream, "__len__"):
            raise DataError(f"stream {place} must be a sequence of values; wrap a single stream in a list: [stream]")
        if not len(stream):
            raise DataError(f"stream {place} has no events; drop empty streams first")
        lengths.append(len(stream))
        values += listed(stream)
    if not lengths:
        raise DataError("there is nothing to fit: the data hold no streams")
    symbols = Alphabet.of(values) if alphabet is None else symbols_of(alphabet)
    users = np.repeat(np.arange(len(lengths)), lengths)
    try:
        return symbols, users, symbols.strict.encode(values)
    except UnknownSymbol as error:
        stream = int(users[error.position])
        event = error.position - sum(lengths[:stream])
        raise UnknownSymbol(f"stream {stream}, event {event}: {error}", error.position) from None
