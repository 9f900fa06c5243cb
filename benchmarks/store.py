"""Durable releases per second, 1000 events a transaction, beside a bare keyed map with the same SQLite settings."""

from __future__ import annotations

import ctypes
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from seqveil import MarkovModel
from seqveil.core import bulk
from seqveil.engine.policy import Policy
from seqveil.engine.sqlite import WAL_PAGES
from seqveil.engine.streams import CodeStreams

EVENTS, GROUP, SYMBOLS, EPSILON, TIMES = 200_000, 1000, 17, 1.0, 2
AN_HOUR = 1_800_000


def run(data: Path | None) -> list[dict[str, float]]:
    how = "compiled" if bulk.load() else "plain Python"
    print(
        f"events/s ({how}), n={SYMBOLS}, ε={EPSILON:g}, {EVENTS:,} events, {GROUP} a transaction, synced at each commit"
    )
    names = ("randomized_response", "balanced", "optimal")
    print(f"  {'users':>7}{'bare':>10}" + "".join(f"{name:>28}" for name in names) + f"{'optimal, keyed':>28}")
    rows = []
    for users in (10_000, 100_000):
        stream = list(events(users))
        row = dict.fromkeys(("bare", *names, "keyed"), 0.0)
        for _ in range(TIMES):  # in turn, the best of each: machines are noisy
            row["bare"] = max(row["bare"], bare(stream))
            for name in names:
                row[name] = max(row[name], durable(stream, name))
            row["keyed"] = max(row["keyed"], durable(stream, "optimal", bytes(32)))
        cells = "".join(f"{row[name]:>19,.0f} ({row[name] / row['bare']:.2f}×)" for name in (*names, "keyed"))
        print(f"  {users:>7}{row['bare']:>10,.0f}{cells}", flush=True)
        rows.append({"users": users, **row})
    print(
        "  bare: state, ledger, output and position of a trivial keyed map, one transaction; in brackets: ratio to it"
    )
    rows.append(single())
    rows.append(soak())
    return rows


def single(users: int = 100_000, calls: int = 300) -> dict[str, float]:
    """One event a call, synced each time, in a file that has all these users."""
    setting, rng, took = Policy(epsilon=EPSILON, mechanism="optimal").on(chain()), np.random.default_rng(2), []
    with tempfile.TemporaryDirectory() as folder, CodeStreams.open(Path(folder, "state.db"), setting) as store:
        for at in range(0, users, GROUP):
            store.release([f"user-{user}" for user in range(at, at + GROUP)], rng.integers(0, SYMBOLS, GROUP))
        for user in rng.integers(0, users, calls).tolist():
            start = time.perf_counter()
            store.release([f"user-{user}"], [user % SYMBOLS])
            took.append(1e3 * (time.perf_counter() - start))
    half, most = np.percentile(took, [50, 95])
    print(f"  one event a call, {users:,} users: median {half:.2f} ms, 95 of 100 within {most:.2f} ms")
    return {"single_median": float(half), "single_most": float(most)}


def soak(users: int = 1000) -> dict[str, float]:
    """Resident memory along 1.8 million events in a store that stays open: an hour at 500 a second."""
    setting, quarters, seen, used = Policy(epsilon=EPSILON, mechanism="balanced").on(chain()), 4, [], []
    with tempfile.TemporaryDirectory() as folder, CodeStreams.open(Path(folder, "state.db"), setting) as store:
        for quarter in range(quarters):
            for group in range(AN_HOUR // quarters // users):
                seq = quarter * (AN_HOUR // quarters // users) + group
                names = [f"user-{user}" for user in range(users)]
                store.release(names, np.full(users, seq % SYMBOLS), np.full(users, seq))
            seen.append(resident())
            used.append(in_use())
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    shown, held = (", ".join(f"{each:.0f}" for each in figures) for figures in (seen, used))
    print(f"  {AN_HOUR:,} events of {users} users: resident {shown} MB after each quarter, of which {held} in use")
    print(f"  file {size / 1e6:.0f} MB")
    return {"soak_first": seen[0], "soak_last": seen[-1], "soak_in_use": used[-1], "file": size / 1e6}


def resident() -> float:
    """Megabytes of memory this process holds (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def in_use() -> float:
    """The same without what was freed and the C library has kept, where it can be asked to hand that back (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return resident()


def events(users: int) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
    """Users, sequence numbers and raw codes, a transaction at a time."""
    rng, following = np.random.default_rng(1), np.zeros(users, np.int64)
    for _ in range(EVENTS // GROUP):
        ids = rng.integers(0, users, GROUP)
        seqs = np.empty(GROUP, np.int64)
        for k, user in enumerate(ids.tolist()):
            seqs[k] = following[user]
            following[user] += 1
        yield [f"user-{user}" for user in ids], seqs, rng.integers(0, SYMBOLS, GROUP)


def chain() -> MarkovModel:
    rng = np.random.default_rng(SYMBOLS)
    sticky = 0.6 * np.eye(SYMBOLS) + 0.4 * rng.dirichlet(np.full(SYMBOLS, 0.5), SYMBOLS) + 1e-4
    return MarkovModel(np.full(SYMBOLS, 1 / SYMBOLS), sticky / sticky.sum(1, keepdims=True))


def durable(stream: list[tuple[list[str], np.ndarray, np.ndarray]], mechanism: str, key: bytes | None = None) -> float:
    setting = Policy(epsilon=EPSILON, mechanism=mechanism).on(chain())
    with tempfile.TemporaryDirectory() as folder:
        store = CodeStreams.open(Path(folder, "state.db"), setting, key=key)
        start = time.perf_counter()
        for k, (users, seqs, codes) in enumerate(stream):
            store.release(users, codes, seqs, positions={"source": (k + 1) * GROUP})
        store.close()
        return EVENTS / (time.perf_counter() - start)


def bare(stream: list[tuple[list[str], np.ndarray, np.ndarray]]) -> float:
    """A count and a sum for each user, one row of output an event, the position: all in one transaction."""
    with tempfile.TemporaryDirectory() as folder:
        sql = sqlite3.connect(Path(folder, "bare.db"), isolation_level=None)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "cache_size=-65536"):
            sql.execute(f"PRAGMA {pragma}").fetchall()
        sql.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}").fetchall()
        sql.execute("CREATE TABLE state (user TEXT PRIMARY KEY, seq INT, sum INT, ledger INT) WITHOUT ROWID")
        sql.execute("CREATE TABLE output (id INTEGER PRIMARY KEY, user TEXT, seq INTEGER, value INTEGER)")
        sql.execute("CREATE TABLE position (source TEXT PRIMARY KEY, at INTEGER)")
        ask = "SELECT seq, sum FROM state WHERE user = ?"
        start = time.perf_counter()
        for k, (names, seqs, codes) in enumerate(stream):
            sql.execute("BEGIN IMMEDIATE")
            out, state = [], {user: sql.execute(ask, (user,)).fetchone() or (-1, 0) for user in dict.fromkeys(names)}
            for user, seq, code in zip(names, seqs.tolist(), codes.tolist(), strict=True):
                last, total = state[user]
                if seq == last + 1:
                    state[user] = (seq, total + code)
                    out.append((user, seq, total + code))
            touched = [(user, *now, now[0] + 1) for user, now in state.items()]
            sql.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", touched)
            sql.executemany("INSERT INTO output (user, seq, value) VALUES (?, ?, ?)", out)
            sql.execute("INSERT OR REPLACE INTO position VALUES ('source', ?)", ((k + 1) * GROUP,))
            sql.execute("COMMIT")
        sql.close()
        return EVENTS / (time.perf_counter() - start)
