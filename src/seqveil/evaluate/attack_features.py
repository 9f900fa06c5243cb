"""What an attacker counts in releases: a sparse table with a row for each person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints

PAIRS = 40  # symbols up to which transitions are looked at
SYMBOLS = 400  # the most frequent ones, which the attacker looks at


def features(releases: Sequence[Ints], n: int, times: Sequence[Floats] | None = None, at: Ints | None = None) -> Any:
    """What an attacker counts in the releases of each person, as a sparse table with a row a person.

    Counts of every symbol and whether it occurs, the first three and last three releases, transitions (where symbols
    are few), the number of releases, and the hours of day and pauses where times are known. With `at`, the releases
    around that event as well. Only the most frequent symbols are looked at; the others count as one.
    """
    from scipy import sparse

    lengths = np.array([len(codes) for codes in releases], np.int64)
    people = len(releases)
    if not people or not lengths.all():
        raise InputError("an attack needs at least one release of every person; leave out people without any")
    codes = np.concatenate(releases)
    if (codes < 0).any():  # a release that says nothing counts as a symbol of its own
        codes, n = np.where(codes < 0, n, codes), n + 1
    symbols, m = _pooled(codes, n)
    begins = np.cumsum(lengths) - lengths
    who = np.repeat(np.arange(people), lengths)
    counts = _counted(who, symbols, people, m)
    parts = [counts, counts.sign(), sparse.csr_array(np.log1p(lengths)[:, None])]
    offsets = [begins + np.minimum(k, lengths - 1) for k in range(3)]
    offsets += [begins + np.maximum(lengths - 1 - k, 0) for k in range(3)]
    if at is not None:
        offsets += [begins + np.clip(at + k, 0, lengths - 1) for k in (-2, -1, 0, 1, 2)]
    parts += [_counted(np.arange(people), symbols[place], people, m) for place in offsets]
    if m <= PAIRS:
        inside = np.flatnonzero(np.diff(who) == 0)
        parts.append(_counted(who[inside], symbols[inside] * m + symbols[inside + 1], people, m * m))
    if times is not None:
        parts.append(sparse.csr_array(_clock(np.concatenate(times), who, people)))
    return sparse.csr_array(sparse.hstack(parts, format="csr"), dtype=np.float64)


def _pooled(codes: Ints, n: int) -> tuple[Ints, int]:
    """Codes renumbered so that the most frequent keep their own and the others share one."""
    if n <= SYMBOLS:
        return codes, n
    often = np.argsort(-np.bincount(codes, minlength=n), kind="stable")[:SYMBOLS]
    number = np.full(n, SYMBOLS)
    number[often] = np.arange(SYMBOLS)
    return number[codes], SYMBOLS + 1


def _counted(rows: Ints, columns: Ints, height: int, width: int) -> Any:
    from scipy import sparse

    return sparse.coo_array((np.ones(rows.size), (rows, columns)), shape=(height, width)).tocsr()


def _clock(times: Floats, who: Ints, people: int) -> Floats:
    """How many releases fall in each hour of the day, and the mean pause between two."""
    hours = np.zeros((people, 24))
    np.add.at(hours, (who, (times / 3600 % 24).astype(np.int64)), 1.0)
    first = np.full(people, np.inf)
    last = np.full(people, -np.inf)
    np.minimum.at(first, who, times)
    np.maximum.at(last, who, times)
    pause = np.log1p((last - first) / np.maximum(np.bincount(who, minlength=people) - 1, 1))
    return np.column_stack([hours, pause])
