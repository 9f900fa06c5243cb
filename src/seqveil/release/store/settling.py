"""Moving the log into the users' own rows: it computes nothing, so it may happen whenever and as often as it likes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from seqveil.core.coins import User
from seqveil.core.kernel import Ints
from seqveil.release.store.marks import BROKEN, blob_mark, name_mark, place_mark
from seqveil.release.store.protocol import Codec
from seqveil.release.store.records import LogRow, damaged_file, table_of
from seqveil.release.store.schema import FILED, LEDGER

INSERT = f"INSERT INTO users VALUES ({', '.join('?' * 15)})"
UPDATE = (
    "UPDATE users SET events = ?2, releases = ?3, spent = ?4, most = ?5, least = ?6, ldp = ?7, filed = ?8, mark = ?9,"
    " state = ?10, recent_mark = grown_mark(recent_mark, ?11), recent = CAST(recent || ?11 AS BLOB) WHERE id = ?1"
)


def settle(
    sql: sqlite3.Connection,
    codec: Codec,
    chunk: int,
    rows: Sequence[LogRow | None],
    new: Sequence[tuple[int, User]],
    name: str,
) -> None:
    """Write what the rows of the log say into `users` and `chunks`; users of damaged rows are marked so for good.

    Parameters:
        sql: the connection, inside a transaction.
        codec: how releases are written.
        chunk: how many releases there are in a row of `chunks`.
        rows: the log, from its first row to its last.
        new: numbers and names of the users who have no row in `users`, in the order of their numbers.
        name: of the file, for messages.
    """
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        raise damaged_file(name)
    latest = _Latest([row for row in found if row.whole], int(time.time()))
    known = int(np.searchsorted(latest.users, new[0][0])) if new else latest.users.size
    if known and sql.executemany(UPDATE, latest.rows(range(known))).rowcount != known:
        raise damaged_file(name)
    _insert(sql, new, latest.rows(range(known, latest.users.size)))
    lost = {user for row in found if not row.whole for user in table_of(row.touched, len(LEDGER))[:, 0].tolist()}
    for user in sorted(lost):
        sql.execute("UPDATE users SET mark = ?, recent_mark = ? WHERE id = ?", (BROKEN, BROKEN, user))
    before, after = (latest.events - latest.counts) // chunk, latest.events // chunk
    for at in np.flatnonzero(before < after).tolist():
        if (user := int(latest.users[at])) not in lost:
            _cut(sql, codec, chunk, user, range(int(before[at]), int(after[at])), latest.filed)


class _Latest:
    """The last ledger and state of each user in the log, and the user's records, in the order of the users' numbers."""

    def __init__(self, rows: Sequence[LogRow], filed: int) -> None:
        tables = [table_of(row.touched, len(LEDGER)) for row in rows]
        every = np.concatenate([np.zeros((0, len(LEDGER)), np.int64), *tables])
        self.users, behind = np.unique(every[::-1, 0], return_index=True)
        last = len(every) - 1 - behind
        starts = np.cumsum([0, *map(len, tables)])
        self._row = np.searchsorted(starts, last, side="right") - 1
        self._within = last - starts[self._row]
        self._states = [
            (memoryview(row.states), len(row.states) // max(1, len(table)))
            for row, table in zip(rows, tables, strict=True)
        ]
        self.filed, self.events = filed, every[last, 1]
        self._ledgers = np.column_stack([every[last], np.full(last.size, filed)]).astype("<i8", copy=False)
        self.counts, self._records = _joined(self.users, rows)

    def rows(self, places: Iterable[int]) -> list[tuple[Any, ...]]:
        """Number, ledger, mark, state and new records of the users at these places."""
        packed, size = memoryview(self._ledgers.tobytes()), 8 * len(FILED)
        ledgers, row_of, within = self._ledgers.tolist(), self._row.tolist(), self._within.tolist()
        found: list[tuple[Any, ...]] = []
        for at in places:
            states, width = self._states[row_of[at]]
            begin = within[at] * width
            state = states[begin : begin + width]
            mark = crc32(state, crc32(packed[at * size : at * size + size]))  # as `user_mark` has it
            found.append((*ledgers[at], mark, state, self._records[at]))
        return found


def _insert(sql: sqlite3.Connection, new: Sequence[tuple[int, User]], rows: list[tuple[Any, ...]]) -> None:
    """Rows for users who have none; of some of them nothing was released yet, or it is damaged."""
    told, out = iter(rows), []
    row = next(told, None)
    for user, name in new:
        if row is not None and row[0] == user:
            (_, *ledger, mark, state, records), row = row, next(told, None)
        else:
            ledger, state, records = [0] * (len(FILED) - 1), b"", b""
            mark = place_mark(user, *ledger)
        out.append((user, name, name_mark(name), *ledger, mark, state, 0, crc32(records, place_mark(user, 0)), records))
    sql.executemany(INSERT, out)


def _cut(sql: sqlite3.Connection, codec: Codec, chunk: int, user: int, numbers: Iterable[int], filed: int) -> None:
    """Move these chunks, which are full by now, out of the user's own row."""
    recent, mark, kept = sql.execute("SELECT recent, recent_mark, kept FROM users WHERE id = ?", (user,)).fetchone()
    if blob_mark(place_mark(user, kept), recent) != mark:
        sql.execute("UPDATE users SET recent_mark = ? WHERE id = ?", (BROKEN, user))
        return
    left = memoryview(recent)
    for number in numbers:
        end = codec.cut(left, (number + 1) * chunk - max(number * chunk, kept))
        row = (user, number, filed, blob_mark(place_mark(user, number, filed), left[:end]), left[:end])
        sql.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", row)
        left = left[end:]
    sql.execute(
        "UPDATE users SET recent = ?, recent_mark = ? WHERE id = ?",
        (left, blob_mark(place_mark(user, kept), left), user),
    )


def _joined(users: Ints, rows: Sequence[LogRow]) -> tuple[Ints, list[memoryview | bytes]]:
    """How many records each of these users has in the log, and these records one after another."""
    pieces = np.concatenate([np.zeros((0, 3), np.int64), *(table_of(row.events, 3) for row in rows)])
    order = np.argsort(pieces[:, 0], kind="stable")
    starts = np.cumsum(pieces[:, 1]) - pieces[:, 1]
    who, sizes, counts = pieces[order].T
    ends = np.cumsum(np.append(0, sizes))
    places = np.arange(int(ends[-1])) + np.repeat(starts[order] - ends[:-1], sizes)
    blob = memoryview(np.frombuffer(b"".join(row.releases for row in rows), np.uint8)[places].tobytes())
    low, high = np.searchsorted(who, users), np.searchsorted(who, users, side="right")
    totals = np.append(0, np.cumsum(counts))
    cuts = zip(ends[low].tolist(), ends[high].tolist(), strict=True)
    return totals[high] - totals[low], [blob[begin:end] for begin, end in cuts]
