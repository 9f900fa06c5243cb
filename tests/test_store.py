"""The store: each event released once, whatever is repeated, reopened, refused or cut off, and no raw symbol kept."""

import json
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store.backup import verify
from seqveil.engine.store.packing import nats, units
from seqveil.engine.streams import GAP, OutOfOrder, StoreBusy, StoreError, Streams

KEY = bytes(range(32))


def chain(seed=0, n=4, zeros=False):
    return MarkovModel(*ref.random_chain(np.random.default_rng(seed), n, 1, zeros))


def plain(**options):
    return Policy(epsilon=0.8, mechanism="balanced", **options).on(chain())


@pytest.mark.slow
def test_a_user_is_released_as_in_a_fleet_of_its_own_whatever_the_groups(tmp_path):
    setting, rng = plain(), np.random.default_rng(3)
    users = [f"u{k}" for k in rng.integers(0, 20, 400)]
    seqs = [users[:k].count(user) for k, user in enumerate(users)]
    codes = rng.integers(0, 4, 400)
    found = []
    for size, memory in ((400, 1 << 20), (7, 1 << 20), (50, 3000)):
        with Streams.open(tmp_path / f"{size}.db", setting, coins=KeyedCoins.seeded(1), memory=memory) as store:
            parts = [
                store.release(users[at : at + size], codes[at : at + size], seqs[at : at + size]).codes
                for at in range(0, 400, size)
            ]
            accounts = store.accounts()
            found.append((np.concatenate(parts).tolist(), accounts.users, accounts.most.tolist()))
            assert len(store._live) <= max(4, store._live.room)
    assert found[0] == found[1] == found[2]


def test_a_repeated_event_is_given_back_whatever_comes_with_it(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        first = store.release(["ann"] * 200, np.arange(200) % 4, range(200))
        before = store.account("ann")
        for _ in range(2):
            again = store.release(["ann"] * 200, np.arange(1, 201) % 4, range(200))
            assert again.codes.tolist() == first.codes.tolist()
            assert again.replayed.all()
            assert store.account("ann") == before
            store.close()
            store = Streams.open(tmp_path / "s.db", plain())
        twice = store.release(["ann"] * 3, [0, 1, 2], [200, 200, 201])
        assert twice.codes[0] == twice.codes[1]
        assert twice.replayed.tolist() == [False, True, False]
        store.close()


def test_a_gap_is_refused_whole(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        store.release(["ann"], [0], [0])
        with pytest.raises(OutOfOrder, match="event 1 has sequence number 3, and 2 is next") as caught:
            store.release(["ann", "ann"], [0, 0], [1, 3])
        assert caught.value.position == 1
        assert store.account("ann").events == 1
        with pytest.raises(OutOfOrder, match="0 is next"):
            store.release(["bob"], [0], [1])
        assert store.account("bob") is None


def test_a_gap_may_be_skipped_and_what_comes_late_is_told_so(tmp_path):
    with Streams.open(tmp_path / "s.db", plain(), gaps="skip") as store:
        made = store.release(["ann", "ann", "ann"], [0, 1, 2], [2, 1, 3])
        assert made.codes[1] == GAP
        assert made.replayed.tolist() == [False, True, False]
        assert [s.code for s in store.releases("ann")][:2] == [GAP, GAP]
        assert store.account("ann").releases == 2
        assert store.release(["ann"], [0], [0]).codes.tolist() == [GAP]
        with pytest.raises(OutOfOrder, match="at most 10000"):
            store.release(["ann"], [0], [20_000])


def test_what_was_released_around_gaps_is_given_back_before_and_after_settling(tmp_path):
    with Streams.open(tmp_path / "s.db", plain(), key=KEY, gaps="skip") as store:
        made = {seq: store.release(["ann"], [seq % 4], [seq]).codes[0] for seq in (0, 3, 4, 9, 10)}
        expected = [made.get(seq, GAP) for seq in range(11)]
        assert [store.release(["ann"], [0], [seq]).codes[0] for seq in range(11)] == expected
        assert store.release(["ann"] * 11, [0] * 11, range(11)).codes.tolist() == expected
        store.close()
        store = Streams.open(tmp_path / "s.db", plain(), key=KEY)
        assert [store.release(["ann"], [0], [seq]).codes[0] for seq in reversed(range(11))] == expected[::-1]
        store.close()


def test_positions_that_cannot_be_made_take_no_release_back(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        seen = []

        def fail(made):
            seen.extend(made.codes.tolist())
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.release(["ann"] * 3, [0, 1, 2], range(3), positions=fail)
        again = store.release(["ann"] * 3, [0, 1, 2], range(3))
        assert (again.codes.tolist(), again.replayed.tolist()) == (seen, [True] * 3)


def test_the_clock_may_not_go_back(tmp_path):
    setting = plain(budget=Budget(per_window=2.0, seconds=10.0))
    with Streams.open(tmp_path / "s.db", setting) as store:
        store.release(["ann"], [0], [0], [100.0])
        for times in (None, [99.0], [np.nan]):
            with pytest.raises(InputError, match="time"):
                store.release(["ann"], [0], [1], times)
        assert store.release(["ann"], [0], [1], [100.0]).codes[0] >= 0


BAD = {
    "codes": (["a"], [0], [4]),
    "negative codes": (["a"], [0], [-1]),
    "lengths": (["a", "b"], [0], [0]),
    "seq": (["a"], [-1], [0]),
    "large seq": (["a"], [2**62], [0]),
    "fraction": (["a"], [0.5], [0]),
    "user": ([1.5], [0], [0]),
    "bool": ([True], [0], [0]),
    "surrogate": (["\ud800"], [0], [0]),
}


@pytest.mark.parametrize("call", BAD.values(), ids=BAD.keys())
def test_bad_events_are_refused_and_leave_nothing(tmp_path, call):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        with pytest.raises(InputError):
            store.release(call[0], call[2], call[1], *call[3:])
        assert store.accounts().users == []
        assert store.release(["a"], [0], [0]).codes.size == 1


def test_each_setting_has_its_own_call(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store, pytest.raises(InputError, match="whole numbers"):
        store.release(["a"], [[0]], [0])
    setting = Policy(epsilon=1.0, batch=2, mechanism="tree").on(chain())
    with Streams.open(tmp_path / "b.db", setting) as store:
        with pytest.raises(InputError, match="event 0: expected a batch of 1 to 2"):
            store.release(["a"], [0], [0])
        with pytest.raises(InputError, match="event 1: expected a batch of 1 to 2"):
            store.release(["a", "a"], [[0, 1], [0, 1, 2]], [0, 1])
        assert store.account("a") is None
    with pytest.raises(StoreError, match="closed"):
        store.release(["a"], [[0, 1]], [0])


def test_another_model_or_setting_is_refused_in_one_line(tmp_path):
    path = tmp_path / "s.db"
    Streams.open(path, plain()).close()
    with pytest.raises(ModelError, match="another model"):
        Streams.open(path, Policy(epsilon=0.8, mechanism="balanced").on(chain(9)))
    for other, named in (
        (plain(budget=3.0), "budget"),
        (Policy(epsilon=0.8, mechanism="optimal").on(chain()), "mechanism"),
    ):
        with pytest.raises(InputError, match=f"another {named}") as caught:
            Streams.open(path, other)
        assert "\n" not in str(caught.value)
    costs = np.ones((4, 4)) - np.eye(4)
    first = Policy(epsilon=0.8, mechanism="optimal", distortion=costs).on(chain())
    Streams.open(tmp_path / "c.db", first).close()
    with pytest.raises(InputError, match="another costs"):
        Streams.open(tmp_path / "c.db", Policy(epsilon=0.8, mechanism="optimal", distortion=2 * costs).on(chain()))


def test_a_seed_marks_the_file_for_good(tmp_path):
    with Streams.open(tmp_path / "s.db", plain(), coins=SeededCoins(1)) as store:
        store.release(["ann"], [0], [0])
        assert not store.account("ann").private
    with Streams.open(tmp_path / "s.db", plain()) as store:
        assert not store.account("ann").private
    Streams.open(tmp_path / "p.db", plain()).close()
    with pytest.raises(InputError, match="a seed cannot go on"):
        Streams.open(tmp_path / "p.db", plain(), coins=KeyedCoins.seeded(1))
    with pytest.raises(InputError, match="not both"):
        Streams.open(tmp_path / "p.db", plain(), coins=SeededCoins(1), key=KEY)
    with pytest.raises(InputError, match="gaps"):
        Streams.open(tmp_path / "p.db", plain(), gaps="ignore")


@pytest.mark.slow
def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "s.db"
    with Streams.open(path, plain()) as store:
        store.release(["ann"], [0], [0])
        with pytest.raises(StoreBusy, match="another process has this state file open"):
            Streams.open(path, plain())
        # from another process too; one may look, as a backup does
        other = subprocess.run([sys.executable, "-c", OPENS.format(str(path))], capture_output=True, text=True)
        assert "another process has this state file open" in other.stderr
        look = f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute('SELECT users FROM sums').fetchone())"
        other = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
        assert other.stdout == "(1,)\n"
        store.release(["ann"], [0], [1])
    with Streams.open(path, plain()) as store:
        assert store.account("ann").events == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s.db"]


OPENS = "from seqveil.engine.store.database import Database; Database({!r}, None)"


def test_whatever_else_writes_into_the_file_is_noticed(tmp_path):
    path = tmp_path / "s.db"
    with Streams.open(path, plain()) as store:
        store.release(["ann"], [0], [0])
        with sqlite3.connect(path) as sql:
            sql.execute("UPDATE sums SET users = 7")
        sql.close()
        with pytest.raises(StoreError, match="something else has written into the state file"):
            store.release(["ann"], [0], [1])


def test_a_copy_can_be_taken_while_it_is_open(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        first = store.release(["ann"] * 3, [0, 1, 2], range(3))
        store.backup(tmp_path / "copy.db")
        store.release(["ann"], [0], [3])
    with Streams.open(tmp_path / "copy.db", plain()) as store:
        assert [s.code for s in store.releases("ann")] == first.codes.tolist()
        assert store.next_seqs(["ann", "bob"]).tolist() == [3, 0]


def test_what_is_no_state_file_is_refused(tmp_path):
    text, other, versioned = tmp_path / "t.db", tmp_path / "o.db", tmp_path / "v.db"
    text.write_text("user,value\n" * 500)
    with pytest.raises(StoreError, match="no state file"):
        Streams.open(text, plain())
    with sqlite3.connect(other) as sql:
        sql.execute("CREATE TABLE mine (x)")
    sql.close()
    with pytest.raises(DataError, match="not a state file"):
        Streams.open(other, plain())
    Streams.open(versioned, plain()).close()
    for version in (0, 2, 99):
        with sqlite3.connect(versioned) as sql:
            sql.execute(f"PRAGMA user_version = {version}")
        sql.close()
        content = versioned.read_bytes()
        for use in (lambda: Streams.open(versioned, plain()), lambda: verify(versioned)):
            with pytest.raises(DataError, match=f"of version {version}, and this seqveil reads version 1; use") as said:
                use()
            assert "\n" not in str(said.value)
        assert versioned.read_bytes() == content
    with pytest.raises(StoreError, match="cannot be opened"):
        Streams.open(tmp_path / "none" / "s.db", plain())


def test_a_full_disk_undoes_the_call_and_no_more(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        store.release(["ann"], [0], [0])
        (pages,) = store._store.sql.execute("PRAGMA page_count").fetchone()
        store._store.sql.execute(f"PRAGMA max_page_count = {pages + 2}")
        names = [f"user {k}" for k in range(2000)]
        with pytest.raises(StoreError, match="the disk is full, so nothing was written"):
            store.release(["ann", *names], [0] * 2001, [1] + [0] * 2000, positions={"source": 1})
        assert store.account("ann").events == 1
        assert store.account("user 0") is None
        assert store.position("source") is None
        store._store.sql.execute("PRAGMA max_page_count = 1000000")
        store.release(["ann", *names], [0] * 2001, [1] + [0] * 2000, positions={"source": 1})
    with Streams.open(tmp_path / "s.db", plain()) as store:
        assert len(store.accounts().users) == 2001
        assert store.position("source") == 1


def test_a_ledger_is_never_below_the_truth():
    values = np.array([0.0, 1e-300, 0.1, 1 / 3, 1e6 / 7, 3e6 + 1e-9])
    assert all(nats(count) >= value for count, value in zip(units(values).tolist(), values, strict=True))
    assert all(-nats(-count) >= value for count, value in zip(units(values).tolist(), values, strict=True))
    assert nats(int(units(np.array([np.inf]))[0])) == np.inf
    assert nats(-int(units(np.array([np.inf]))[0])) == -np.inf


def test_an_unsound_mechanism_is_told_without_bound(tmp_path):
    model = MarkovModel([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    with Streams.open(tmp_path / "s.db", Policy(epsilon=1.0, mechanism="crr").on(model), key=KEY) as store:
        store.release(["ann"] * 30, [1] * 30, range(30))
        assert store.account("ann").leakage == np.inf
        assert store.accounts().leakage.tolist() == [np.inf]


@pytest.mark.slow
def test_large_states_are_not_written(tmp_path):
    rng = np.random.default_rng(5)
    rows = rng.dirichlet(np.ones(700), 700)
    setting = Policy(epsilon=1.0, mechanism="balanced").on(MarkovModel(rows[0], rows))
    users = [f"u{k}" for k in range(30)]
    with Streams.open(tmp_path / "s.db", setting, key=KEY, memory=1) as store:
        for t in range(3):
            store.release(users, rng.integers(0, 700, 30), [t] * 30)
        assert store._live.room == 1
        kept = store.accounts()
    assert (tmp_path / "s.db").stat().st_size < 30 * 2000 + 50_000
    twin = Streams(setting)
    with Streams.open(tmp_path / "s.db", setting, key=KEY) as store:
        for user in users:
            twin.observe([user] * 3, np.array([s.code for s in store.releases(user)]))
    assert (units(twin.accounts().most) == units(kept.most)).all()


def test_no_raw_symbol_is_written(tmp_path, monkeypatch):
    """One user whose raw symbol is always 3; a constant release (budget spent) never says so."""
    monkeypatch.setattr("seqveil.engine.streams.time.time", lambda: 1e9)  # when it began is written
    setting = Policy(epsilon=0.5, budget=Budget(total=1e-7), mechanism="balanced").on(chain(2, 6))
    with (
        Streams.open(tmp_path / "one.db", setting, key=KEY) as one,
        Streams.open(tmp_path / "two.db", setting, key=KEY) as two,
    ):
        one.release(["ann"] * 50, [3] * 50, range(50))
        two.release(["ann"] * 50, [5] * 50, range(50))
    for name in ("one.db", "two.db"):
        with sqlite3.connect(tmp_path / name) as sql:  # all but what is drawn for each file
            sql.execute("DELETE FROM facts WHERE name IN ('salt', 'epoch')")
            sql.execute("UPDATE sums SET facts = 0, mark = 0")
        sql.execute("VACUUM")
        sql.close()
    assert (tmp_path / "one.db").read_bytes()[100:] == (tmp_path / "two.db").read_bytes()[100:]


def test_what_is_shown_of_a_store_holds_no_data(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        store.release(["zq-secret"], [0], [0])
        assert "zq-secret" not in repr(store)
    described = json.loads(plain().signature)
    assert described["model"] == chain().fingerprint
