"""Moving the log into the users' own rows: it computes nothing, so it may happen whenever and as often as it likes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from seqveil.core.coins import User
from seqveil.core.kernel import Ints
from seqveil.engine.store.connections import damaged_file
from seqveil.engine.store.protocol import Codec
from seqveil.engine.store.records import LogRow, table_of
from seqveil.engine.store.schema import BROKEN, LEDGER, blob_mark, name_mark, place_mark

INSERT = f"INSERT INTO users VALUES ({', '.join('?' * 14)})"
UPDATE = (
    "UPDATE users SET events = ?2, releases = ?3, spent = ?4, most = ?5, least = ?6, ldp = ?7,"
    f" mark = iif(mark = {BROKEN}, mark, ?8), state = ?9,"
    " recent_mark = grown_mark(recent_mark, ?10), recent = CAST(recent || ?10 AS BLOB) WHERE id = ?1"
)


def settle(
    sql: sqlite3.Connection,
    codec: Codec,
    chunk: int,
    rows: Sequence[LogRow],
    new: Sequence[User],
    first: int,
    name: str,
) -> None:
    """Write what the rows of the log say into `users` and `chunks`; users of damaged rows are marked so for good.

    Parameters:
        sql: the connection, inside a transaction.
        codec: how releases are written.
        chunk: how many releases there are in a row of `chunks`.
        rows: the log, from its first row to its last.
        new: names of the users who have no row in `users`, in the order of their numbers.
        first: the number of the first of them.
        name: of the file, for messages.
    """
    latest = _Latest([row for row in rows if row.whole])
    known = int(np.searchsorted(latest.users, first))
    if known and sql.executemany(UPDATE, latest.updates(known)).rowcount != known:
        raise damaged_file(name)
    sql.executemany(INSERT, latest.inserts(known, first, new))
    told = set((latest.users[known:] - first).tolist())
    untold = [k for k in range(len(new)) if k not in told] if len(told) < len(new) else []
    sql.executemany(INSERT, (_first_row(first + k, new[k]) for k in untold))
    lost = {user for row in rows if not row.whole for user in table_of(row.touched, len(LEDGER))[:, 0].tolist()}
    for user in sorted(lost):
        sql.execute("UPDATE users SET mark = ?, recent_mark = ? WHERE id = ?", (BROKEN, BROKEN, user))
    before, after = (latest.events - latest.counts) // chunk, latest.events // chunk
    for at in np.flatnonzero(before < after).tolist():
        if (user := int(latest.users[at])) not in lost:
            _cut(sql, codec, chunk, user, range(int(before[at]), int(after[at])))


class _Latest:
    """The last ledger and state of each user in the log, and the user's records, in the order of the users' numbers.

    What is handed to SQLite is made of columns, so that nothing but numbers and bytes is kept of a hundred thousand
    users: Python looks through all objects that could hold others, again and again, as they become more.
    """

    def __init__(self, rows: Sequence[LogRow]) -> None:
        tables = [table_of(row.touched, len(LEDGER)) for row in rows]
        every = np.concatenate([np.zeros((0, len(LEDGER)), np.int64), *tables])
        self.users, behind = np.unique(every[::-1, 0], return_index=True)
        last = len(every) - 1 - behind
        starts = np.cumsum([0, *map(len, tables)])
        row = np.searchsorted(starts, last, side="right") - 1
        widths = np.array(
            [len(each.states) // max(1, len(table)) for each, table in zip(rows, tables, strict=True)], int
        )
        ends = (last - starts[row] + 1) * widths[row]
        states, begins = [each.states for each in rows], (ends - widths[row]).tolist()
        self._states = [states[k][begin:end] for k, begin, end in zip(row.tolist(), begins, ends.tolist(), strict=True)]
        self.events, self._ledgers = every[last, 1], every[last].astype("<i8", copy=False)
        packed, size = self._ledgers.tobytes(), 8 * len(LEDGER)
        places = range(0, len(packed), size)
        # as `user_mark` has them
        self._marks = [crc32(state, crc32(packed[k : k + size])) for k, state in zip(places, self._states, strict=True)]
        self.counts, self._records = _joined(self.users, rows)

    def updates(self, known: int) -> Iterator[tuple[Any, ...]]:
        """Number, ledger, mark, state and new records of the first so many users."""
        columns = self._ledgers[:known].T.tolist()
        return zip(*columns, self._marks[:known], self._states[:known], self._records[:known], strict=True)

    def inserts(self, known: int, first: int, new: Sequence[User]) -> Iterator[tuple[Any, ...]]:
        """The rows of all others, who have none yet."""
        users, *ledger = self._ledgers[known:].T.tolist()
        names = [new[user - first] for user in users]
        records = self._records[known:]
        told = [crc32(each, place_mark(user, 0)) for user, each in zip(users, records, strict=True)]
        own = (*ledger, self._marks[known:], self._states[known:])
        return zip(users, names, map(name_mark, names), *own, [0] * len(users), told, records, strict=True)


def _first_row(user: int, name: User) -> tuple[Any, ...]:
    """The row of a user of whom nothing was released yet, or it is damaged."""
    ledger = [0] * (len(LEDGER) - 1)
    return user, name, name_mark(name), *ledger, place_mark(user, *ledger), b"", 0, place_mark(user, 0), b""


def _cut(sql: sqlite3.Connection, codec: Codec, chunk: int, user: int, numbers: Iterable[int]) -> None:
    """Move these chunks, which are full by now, out of the user's own row."""
    recent, mark, kept = sql.execute("SELECT recent, recent_mark, kept FROM users WHERE id = ?", (user,)).fetchone()
    if blob_mark(place_mark(user, kept), recent) != mark:
        sql.execute("UPDATE users SET recent_mark = ? WHERE id = ?", (BROKEN, user))
        return
    left = memoryview(recent)
    for number in numbers:
        end = codec.cut(left, (number + 1) * chunk - max(number * chunk, kept))
        row = (user, number, blob_mark(place_mark(user, number), left[:end]), left[:end])
        sql.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", row)
        left = left[end:]
    sql.execute(
        "UPDATE users SET recent = ?, recent_mark = ? WHERE id = ?",
        (left, blob_mark(place_mark(user, kept), left), user),
    )


def _joined(users: Ints, rows: Sequence[LogRow]) -> tuple[Ints, list[bytes]]:
    """How many records each of these users has in the log, and these records one after another."""
    pieces = np.concatenate([np.zeros((0, 3), np.int64), *(table_of(row.events, 3) for row in rows)])
    order = np.argsort(pieces[:, 0], kind="stable")
    starts = np.cumsum(pieces[:, 1]) - pieces[:, 1]
    who, sizes, counts = pieces[order].T
    ends = np.cumsum(np.append(0, sizes))
    places = np.arange(int(ends[-1])) + np.repeat(starts[order] - ends[:-1], sizes)
    blob = np.frombuffer(b"".join(row.releases for row in rows), np.uint8)[places].tobytes()
    low, high = np.searchsorted(who, users), np.searchsorted(who, users, side="right")
    totals = np.append(0, np.cumsum(counts))
    cuts = zip(ends[low].tolist(), ends[high].tolist(), strict=True)
    return totals[high] - totals[low], [blob[begin:end] for begin, end in cuts]
