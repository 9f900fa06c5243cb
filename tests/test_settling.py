"""The log of a state file is folded into its tables a part at a time where somebody waits for a small call."""

from __future__ import annotations

import sqlite3
from itertools import pairwise

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.coins import KeyedCoins
from seqveil.core.errors import SeqveilError
from seqveil.engine.store import database
from seqveil.engine.streams import Streams

WIDE, ROWS, PART = 15, 12, 20


@pytest.fixture
def setting(monkeypatch):
    monkeypatch.setattr(database, "FEW_ROWS", 4)
    monkeypatch.setattr(database, "PART", PART)
    chain = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
    return sv.Policy(epsilon=1.0, mechanism="optimal").on(sv.MarkovModel(np.full(3, 1 / 3), chain))


def filled(path, setting):
    """A store whose log has many users in a few rows, and a stream that is in several of them."""
    store = Streams.open(path, setting, coins=KeyedCoins.seeded(1))
    for row in range(ROWS):
        users = [f"user {row * WIDE + k}" for k in range(WIDE - 1)] + ["often"]
        store.release(users, [0] * WIDE, [0] * (WIDE - 1) + [row])
    return store


def settled(path):
    """How many users have a row of their own, and how many rows the log has."""
    with sqlite3.connect(path) as sql:
        return [sql.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("users", "log")]


def test_a_small_call_folds_a_part_of_the_log(tmp_path, setting):
    path = tmp_path / "state.db"
    with filled(path, setting) as store:
        seen = [settled(path)]
        for seq in range(2 * ROWS):
            store.release(["waiting"], [1], [seq])
            seen.append(settled(path))
    users = [each[0] for each in seen]
    assert users[0] == 0
    assert users[-1] == ROWS * (WIDE - 1) + 2
    assert all(0 <= after - before <= PART for before, after in pairwise(users))
    assert seen[-1][1] <= 4  # the wide rows are gone by then


def test_what_is_folded_in_parts_reads_and_goes_on_as_what_is_not(tmp_path, setting, monkeypatch):
    path, whole = tmp_path / "state.db", tmp_path / "whole.db"
    parts = filled(path, setting)
    for seq in range(3):
        parts.release(["waiting"], [1], [seq])
    assert 0 < settled(path)[0] < parts.account("often").events * WIDE
    parts.close()
    monkeypatch.setattr(database, "FEW_ROWS", 10**9)
    other = filled(whole, setting)
    other.release(["waiting"] * 3, [1] * 3, [0, 1, 2])
    with Streams.open(path, setting, coins=KeyedCoins.seeded(1)) as parts, other:
        again = parts.release(["often", "user 0"], [0, 0], [ROWS - 1, 0])
        assert again.replayed.all()
        for user in ("often", "waiting", "user 0", f"user {ROWS * WIDE - 2}"):
            assert parts.account(user) == other.account(user)
            assert [(s.seq, s.code) for s in parts.releases(user)] == [(s.seq, s.code) for s in other.releases(user)]
        further = [store.release(["often"], [2], [ROWS]).codes.tolist() for store in (parts, other)]
        assert further[0] == further[1]


def test_a_retry_between_two_parts_gets_what_was_drawn(tmp_path, setting):
    path = tmp_path / "state.db"
    with filled(path, setting) as store:
        for seq in range(2 * ROWS):
            store.release(["waiting"], [seq % 3], [seq])
            told = {stored.seq: stored.code for stored in store.releases("often")}
            assert sorted(told) == list(range(ROWS))
            again = store.release(["often"] * 3, [1, 1, 1], [0, ROWS // 2, ROWS - 1])
            assert again.codes.tolist() == [told[0], told[ROWS // 2], told[ROWS - 1]]
            assert again.replayed.all()


def test_what_fails_after_a_part_was_folded_leaves_the_log_as_it_was(tmp_path, setting, monkeypatch):
    path = tmp_path / "state.db"
    with filled(path, setting) as store:
        before, standing = settled(path), store.account("often")

        def full(*_):
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(database.schema, "write_sums", full)
            with pytest.raises(SeqveilError):
                store.release(["waiting"], [1], [0])
        assert settled(path) == before
        assert store.account("often") == standing
        assert not store.release(["waiting"], [1], [0]).replayed.any()
    with Streams.open(path, setting, coins=KeyedCoins.seeded(1)) as store:
        assert store.account("often") == standing


def test_a_user_of_a_damaged_row_stays_set_aside_when_later_rows_are_folded(tmp_path, setting):
    path = tmp_path / "state.db"
    with filled(path, setting) as store, sqlite3.connect(path) as sql:
        sql.execute("UPDATE log SET states = zeroblob(length(states)) WHERE id = 1")
        sql.commit()
        store._store._seen = store._store._data_version()  # as if the disk had changed it
        for seq in range(ROWS):
            store.release(["waiting"], [1], [seq])
    with Streams.open(path, setting, coins=KeyedCoins.seeded(1)) as store:
        with pytest.raises(SeqveilError, match="damaged"):
            store.release(["often"], [0], [ROWS])
        assert store.release([f"user {WIDE}"], [0], [1]).codes.size == 1
