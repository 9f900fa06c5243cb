"""What an attacker counts in releases: in a window, and in everything else that was released of the same person.

A row is a window. What belongs to the person is the same in all rows of that person: somebody who looks at one week of
a stranger has seen the other weeks, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from seqveil.core.bulk import places_within
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints

SYMBOLS = 400  # the most frequent ones, which the attacker looks at; the others count as one
RHYTHMS = 10  # the most frequent ones, whose periods and pauses are looked at
GRAMS = 300  # the most frequent pairs and triples
PLACES = 600  # numbers that the positions of a window may take
PERIODS = (2, 3, 4, 5, 6, 7, 8, 12, 24)
DAY, WEEK = 86_400, 7
MONDAY = 4 * DAY  # the first one after the beginning of 1970, in seconds
NEAR = 2  # releases before and after a window that are looked at


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows that are attacked: whose each is, its number in the stream, where it begins, and the secret's value.

    `length`: events of a window; None for whole streams.
    """

    owners: Ints
    numbers: Ints
    begins: Ints
    values: Ints
    length: int | None


def features(releases: Sequence[Ints], n: int, windows: Windows, times: Sequence[Floats] | None = None) -> Any:
    """What an attacker counts, as a sparse table with a row a window.

    Of the person: how often each symbol was released and whether it was, the first and last three releases, the most
    frequent pairs and triples, positions modulo small periods and how regular they are, repetitions after so many
    events, runs, pauses between two of a kind, hours of the day and days of the week where times are known, and the
    number of releases. Of the window, where it is a part of what was released: counts, pairs, the positions in it, and
    the releases next to it.
    """
    lengths = np.array([len(codes) for codes in releases], np.int64)
    if not lengths.size or not lengths.all():
        raise InputError("an attack needs at least one release of every person; leave out people without any")
    streams = _Streams.of(np.concatenate(releases), n, lengths)
    stamps = None if times is None else np.concatenate(times)
    own = sparse.csr_array(sparse.hstack(_of_people(streams, stamps), format="csr"))
    parts = [own[windows.owners], *_of_windows(streams, windows)]
    return sparse.csr_array(sparse.hstack(parts, format="csr"), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Streams:
    """All releases, one person behind another."""

    symbols: Ints  # the most frequent keep a number of their own, the lower the more frequent
    m: int
    who: Ints
    begins: Ints
    lengths: Ints

    @classmethod
    def of(cls, codes: Ints, n: int, lengths: Ints) -> _Streams:
        """Streams from their codes, one behind another; all but the most frequent symbols share a number."""
        codes = np.where(codes < 0, n, codes)  # a release that says nothing counts as a symbol of its own
        often = np.argsort(-np.bincount(codes, minlength=n + 1), kind="stable")
        number = np.full(n + 1, SYMBOLS)
        number[often[:SYMBOLS]] = np.arange(min(SYMBOLS, n + 1))
        symbols = number[codes]
        m = int(symbols.max()) + 1
        return cls(symbols, m, np.repeat(np.arange(lengths.size), lengths), np.cumsum(lengths) - lengths, lengths)

    @property
    def people(self) -> int:
        """How many people there are."""
        return self.lengths.size

    @property
    def places(self) -> Ints:
        """The place of each release in its stream."""
        return places_within(self.lengths)


def _of_people(streams: _Streams, stamps: Floats | None) -> list[Any]:
    people, m, begins, lengths = streams.people, streams.m, streams.begins, streams.lengths
    counts = counted(streams.who, streams.symbols, people, m)
    parts = [counts, counts.sign(), sparse.csr_array(np.log1p(lengths)[:, None])]
    edges = [begins + np.minimum(k, lengths - 1) for k in range(3)]
    edges += [begins + np.maximum(lengths - 1 - k, 0) for k in range(3)]
    parts += [counted(np.arange(people), streams.symbols[edge], people, m) for edge in edges]
    parts += [_grams(streams.symbols, streams.who, people, size) for size in (2, 3)]
    for period in PERIODS:
        if 2 * period <= int(lengths.max()):
            parts += _phases(streams, streams.places % period, period)
            parts.append(_echoes(streams, period))
    if stamps is not None:
        parts += _phases(streams, (stamps // 3600 % 24).astype(np.int64), 24)
        parts += _phases(streams, ((stamps - MONDAY) // DAY % WEEK).astype(np.int64), WEEK)
    parts.append(_pauses(streams))
    return parts


def _of_windows(streams: _Streams, windows: Windows) -> list[Any]:
    """Of each window what its person's releases do not say: what is inside it, and where."""
    size, m = windows.owners.size, streams.m
    if windows.length is None:
        return []
    at = streams.begins[windows.owners] + windows.begins
    ends = (streams.begins + streams.lengths)[windows.owners]
    sizes = np.clip(ends - at, 0, windows.length)
    rows = np.repeat(np.arange(size), sizes)
    place = places_within(sizes)
    symbols = streams.symbols[np.repeat(at, sizes) + place]
    bins = min(windows.length, max(PLACES // m, 2))
    parts = [counted(rows, place * bins // windows.length * m + symbols, size, bins * m)]
    if (sizes == streams.lengths[windows.owners]).all():
        return parts
    counts = counted(rows, symbols, size, m)
    parts += [counts, counts.sign(), _grams(symbols, rows, size, 2)]
    for beside in (*(at - 1 - k for k in range(NEAR)), *(at + sizes + k for k in range(NEAR))):
        there = np.flatnonzero((beside >= streams.begins[windows.owners]) & (beside < ends))
        parts.append(counted(there, streams.symbols[beside[there]], size, m))
    return parts


def counted(rows: Ints, columns: Ints, height: int, width: int) -> Any:
    """How often each column occurs in each row."""
    return sparse.coo_array((np.ones(rows.size), (rows, columns)), shape=(height, width)).tocsr()


def _grams(symbols: Ints, rows: Ints, height: int, size: int) -> Any:
    """The most frequent runs of so many symbols in a row."""
    inside = np.flatnonzero(rows[: 1 - size] == rows[size - 1 :])
    names = np.zeros(inside.size, np.int64)
    for k in range(size):
        names = names * (SYMBOLS + 1) + symbols[inside + k]
    kinds, number, often = np.unique(names, return_inverse=True, return_counts=True)
    kept = np.argsort(-often, kind="stable")[:GRAMS]
    column = np.full(kinds.size, -1)
    column[kept] = np.arange(kept.size)
    there = column[number] >= 0
    return counted(rows[inside][there], column[number][there], height, kept.size)


def _phases(streams: _Streams, phase: Ints, period: int) -> list[Any]:
    """How often each frequent symbol was released in each phase, and its share in its fullest and emptiest one.

    A habit of one phase shows in the fullest, whichever phase it is.
    """
    top, people = min(RHYTHMS, streams.m), streams.people
    there = streams.symbols < top
    found = counted(streams.who[there], (streams.symbols * period + phase)[there], people, top * period)
    of = counted(streams.who, phase, people, period).toarray()[:, None, :]
    share = found.toarray().reshape(people, top, period) / np.maximum(of, 1)
    fullest = np.where(of > 0, share, 0.0).max(2)
    emptiest = np.where(of > 0, share, 1.0).min(2)
    return [found, sparse.csr_array(np.hstack([fullest, emptiest]))]


def _echoes(streams: _Streams, lag: int) -> Any:
    """How often each frequent symbol was released again so many events later, and the share of all that were."""
    top, people = min(RHYTHMS, streams.m), streams.people
    both = np.flatnonzero(streams.who[:-lag] == streams.who[lag:])
    same = both[streams.symbols[both] == streams.symbols[both + lag]]
    share = np.bincount(streams.who[same], minlength=people) / np.maximum(streams.lengths - lag, 1)
    known = same[streams.symbols[same] < top]
    again = counted(streams.who[known], streams.symbols[known], people, top)
    return sparse.hstack([again, sparse.csr_array(share[:, None])])


def _pauses(streams: _Streams) -> Any:
    """Of each frequent symbol: where it first and last was, the longest run, and the longest and mean pause."""
    top, people = min(RHYTHMS, streams.m), streams.people
    first, last, run, longest, total, pauses = np.zeros((6, people * top))
    ends = np.flatnonzero(np.append((np.diff(streams.symbols) != 0) | (np.diff(streams.who) != 0), True))
    kept = streams.symbols < top
    names, places = (streams.who * top + streams.symbols)[kept], streams.places[kept]
    short = kept[ends]
    run_names = (streams.who * top + streams.symbols)[ends][short]
    np.maximum.at(run, run_names, np.diff(ends, prepend=-1)[short])
    order = np.argsort(names, kind="stable")
    names, places = names[order], places[order]
    begins, closes = np.diff(names, prepend=-1) != 0, np.diff(names, append=-1) != 0
    first[names[begins]] = places[begins] + 1
    last[names[closes]] = streams.lengths[names[closes] // top] - places[closes]
    pause, later = np.diff(places, prepend=0)[~begins], names[~begins]
    np.maximum.at(longest, later, pause)
    np.add.at(total, later, pause)
    np.add.at(pauses, later, 1.0)
    parts = (first, last, run, longest, total / np.maximum(pauses, 1))
    return sparse.csr_array(np.hstack([part.reshape(people, top) for part in parts]))
