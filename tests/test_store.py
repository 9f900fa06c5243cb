"""The store against a twin in memory: each event released once, whatever is repeated, reopened, undone or cut off."""

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import reference_streams as ref
from seqveil.core import filtering
from seqveil.core.coins import KeyedCoins, SeededCoins
from seqveil.core.errors import BudgetSpent, DataError, InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.release import batches, stream
from seqveil.release.accounting import Budget
from seqveil.release.store import database, packing, schema
from seqveil.release.store.packing import nats, units
from seqveil.release.streams import GAP, NOTHING, OutOfOrder, StoreBusy, StoreError, Streams

KEY = bytes(range(32))


def chain(seed=0, n=4, zeros=False):
    return MarkovModel(*ref.random_chain(np.random.default_rng(seed), n, 1, zeros))


def plain(**options):
    return stream.Setting.of(chain(), "balanced", 0.8, **options)


class Twin:
    """What a store with this key does, kept in dictionaries and computed one event at a time."""

    def __init__(self, setting, gaps="refuse"):
        self.setting, self.gaps, self.coins = setting, gaps, KeyedCoins(KEY, setting.signature.encode())
        self.states, self.told = {}, {}

    def copy(self):
        other = Twin(self.setting, self.gaps)
        other.states, other.told = dict(self.states), {user: list(told) for user, told in self.told.items()}
        return other

    def release(self, user, seq, raw, time=None):
        told, state = self.told.setdefault(user, []), self.states.get(user, stream.State.start(self.setting))
        if seq < len(told):
            return (*told[seq], True)
        while self.gaps == "skip" and len(told) < seq:
            told.append((GAP if not self.setting.in_batches else None, 0.0))
            state = self.given_up(state)
        assert len(told) == seq
        source = self.coins.of([user], [seq])
        if self.setting.in_batches:
            spend = float(stream.allowance(self.setting, state, None if time is None else np.array([time]))[0][0])
            sent, state = batches.step(self.setting, state, np.array(raw), source, time)
            told.append((None if sent is None else sent.path, spend))
        else:
            stamp = None if time is None else np.array([time])
            made, state = stream.step(self.setting, state, np.array([raw]), source, stamp)
            told.append((int(made.codes[0]), float(made.epsilons[0])))
        self.states[user] = state
        return (*told[seq], False)

    def given_up(self, state):
        """The belief moves on by as many symbols as an event has; the account and the savings stay."""
        moved = state.states
        for _ in range(self.setting.batch):
            moved = filtering.predict(self.setting.model, moved)
        return replace(state, states=moved, steps=state.steps + 1)

    def ledger(self, user):
        account, told = self.states[user].account, self.told[user]
        made = [code for code, _ in told if code is not None and code not in (GAP, NOTHING)]
        return (
            len(told),
            len(made),
            int(units(self.states[user].spent)[0]),
            int(units(account.most)[0]),
            -int(units(-account.least)[0]),
            int(units(self.states[user].ldp)[0]),
        )


def ledger(store, user):
    found = store.standing(user)
    figures = (found.by_composition, found.most, found.least, found.ldp)
    return (found.events, found.releases, *(round(figure * 2**32) for figure in figures))


SETTINGS = {
    "plain": {},
    "stop": {"budget": Budget(total=2.0, when_spent="stop")},
    "window": {"budget": Budget(per_window=1.2, releases=3)},
    "seconds": {"budget": Budget(per_window=1.2, seconds=2.5)},
}
USERS = ["ann", "bob", "1", 1, "ü"]  # 1 and "1" are one user


def full_disk(positions):
    raise sqlite3.OperationalError("database or disk is full")


class Machine(RuleBasedStateMachine):
    """Releases, retries, reopenings and crashes in any order; the twin says what must come out."""

    large = batched = False

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.crashes, self.clock, self.kept, self.store = 0, 0.0, [], None
        self.limits = database.SETTLE_EVENTS, packing.SMALL, schema.CHUNK
        schema.CHUNK = 4
        if self.large:
            packing.SMALL = 0

    @initialize(kind=st.sampled_from(list(SETTINGS)), gaps=st.sampled_from(["refuse", "skip"]), zeros=st.booleans())
    def begin(self, kind, gaps, zeros):
        size = {"mechanism": "tree", "epsilon": 1.5, "batch": 2} if self.batched else {"mechanism": "balanced"}
        self.setting = stream.Setting.of(chain(1, 3, zeros), **{"epsilon": 0.8, **size}, **SETTINGS[kind])
        self.twin, self.gaps, self.commits = Twin(self.setting, gaps), gaps, 0
        self.reopen()

    @property
    def path(self):
        return self.folder / f"{self.crashes}" / "state.db"

    def reopen(self):
        self.path.parent.mkdir(exist_ok=True)
        # room for one or two large states, so that users are put aside and come back
        self.store = Streams.open(
            self.path, self.setting, key=KEY, gaps=self.gaps, memory=150 if self.large else 1 << 20
        )

    def call(self, events, positions):
        users, seqs, raw, times = zip(*events, strict=True) if events else ((), (), (), ())
        timed = list(times) if self.setting.budget.seconds is not None else None
        return self.store.release(list(users), list(raw), list(seqs), timed, positions)

    def check(self, made, expected):
        codes = made.paths if self.batched else made.codes.tolist()
        got = list(zip(codes, made.epsilons.tolist(), made.replayed.tolist(), strict=True))
        assert got == expected

    def draw_events(self, data, twin):
        events, expected = [], []
        for _ in range(data.draw(st.integers(0, 6))):
            user = data.draw(st.sampled_from(USERS))
            ahead = len(twin.told.get(str(user), []))
            seq = data.draw(st.integers(max(0, ahead - 9), ahead + (2 if self.gaps == "skip" else 0)))
            one = st.integers(0, 2)
            raw = data.draw(st.lists(one, min_size=1, max_size=2) if self.batched else one)
            self.clock += data.draw(st.sampled_from([0.0, 1.0]))
            time = self.clock if self.setting.budget.seconds is not None else None
            events.append((user, seq, raw, time))
            expected.append(twin.release(str(user), *events[-1][1:]))
        return events, expected

    @rule(data=st.data())
    def release(self, data):
        events, expected = self.draw_events(data, self.twin)
        self.commits += 1
        self.check(self.call(events, {"commits": self.commits}), expected)
        self.kept.append((self.commits, self.twin.copy()))

    @rule(data=st.data())
    def undone(self, data):
        """A transaction that the database cannot take: nothing of it happened."""
        events, _ = self.draw_events(data, self.twin.copy())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.store._store, "set_positions", full_disk)
            with pytest.raises(StoreError):
                self.call(events, {"unheard of": 1})

    @rule()
    def settle(self):
        with self.store._store.transaction():
            self.store._store.settle()

    @rule()
    def close(self):
        self.store.close()
        self.reopen()

    @rule()
    def crash(self):
        """What a killed process leaves: both files as they are."""
        self.leave(None)
        assert self.store.position("commits") == (self.commits or None)

    @precondition(lambda self: self.path.with_name("state.db-wal").exists())
    @rule(share=st.floats(0, 1))
    def power_cut(self, share):
        """The end of the WAL is lost: the file is as after some earlier commit, and goes on from there."""
        self.leave(share)
        self.commits = self.store.position("commits") or 0
        copies = [twin for commits, twin in self.kept if commits == self.commits]
        self.twin = copies[-1].copy() if self.commits else Twin(self.setting, self.gaps)
        self.kept = [(commits, twin) for commits, twin in self.kept if commits <= self.commits]

    def leave(self, share):
        before, old = self.path, self.store
        self.crashes += 1
        self.path.parent.mkdir()
        shutil.copy(before, self.path)
        wal = before.with_name("state.db-wal")
        if wal.exists():
            content = wal.read_bytes()
            self.path.with_name("state.db-wal").write_bytes(
                content if share is None else content[: int(share * len(content))]
            )
        old.close()
        self.reopen()

    @invariant()
    def accounts_are_the_twins(self):
        if self.store is None:
            return
        for user, told in self.twin.told.items():
            if told:
                assert ledger(self.store, user) == self.twin.ledger(user)

    def teardown(self):
        if self.store is not None:
            for user, told in self.twin.told.items():
                kept = self.store.releases(user, since=2)
                made = [(s.path if self.batched else s.code, s.epsilon) for s in kept]
                assert made == told[2:]
                assert [s.seq for s in kept] == list(range(2, len(told)))
            self.store.close()
        database.SETTLE_EVENTS, packing.SMALL, schema.CHUNK = self.limits
        shutil.rmtree(self.folder)


class LargeMachine(Machine):
    """States too large to keep: users come back by replay."""

    large = True


class BatchMachine(Machine):
    """Batches."""

    batched = True


for machine, examples in ((Machine, 25), (LargeMachine, 20), (BatchMachine, 10)):
    machine.TestCase.settings = settings(deadline=None, max_examples=examples, stateful_step_count=15)
    machine.TestCase.pytestmark = [pytest.mark.slow]
TestMachine, TestLargeMachine, TestBatchMachine = Machine.TestCase, LargeMachine.TestCase, BatchMachine.TestCase


@pytest.mark.slow
def test_a_user_is_released_as_in_a_fleet_of_its_own_whatever_the_groups(tmp_path):
    setting, rng = plain(), np.random.default_rng(3)
    users = [f"u{k}" for k in rng.integers(0, 20, 400)]
    seqs = [users[:k].count(user) for k, user in enumerate(users)]
    codes = rng.integers(0, 4, 400)
    found = []
    for size, memory in ((400, 1 << 20), (7, 1 << 20), (50, 3000)):
        with Streams.open(tmp_path / f"{size}.db", setting, key=KEY, memory=memory) as store:
            parts = [
                store.release(users[at : at + size], codes[at : at + size], seqs[at : at + size]).codes
                for at in range(0, 400, size)
            ]
            accounts = store.standings()
            found.append((np.concatenate(parts).tolist(), accounts.users, accounts.most.tolist()))
            assert len(store._live) <= max(4, store._live.room)
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_a_repeated_event_is_given_back_whatever_comes_with_it(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        first = store.release(["ann"] * 200, np.arange(200) % 4, range(200))
        before = store.standing("ann")
        for _ in range(2):
            again = store.release(["ann"] * 200, np.arange(1, 201) % 4, range(200))
            assert again.codes.tolist() == first.codes.tolist()
            assert again.replayed.all()
            assert store.standing("ann") == before
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
        assert store.standing("ann").events == 1
        with pytest.raises(OutOfOrder, match="0 is next"):
            store.release(["bob"], [0], [1])
        assert store.standing("bob") is None


def test_a_gap_may_be_skipped_and_what_comes_late_is_told_so(tmp_path):
    with Streams.open(tmp_path / "s.db", plain(), gaps="skip") as store:
        made = store.release(["ann", "ann", "ann"], [0, 1, 2], [2, 1, 3])
        assert made.codes[1] == GAP
        assert made.replayed.tolist() == [False, True, False]
        assert [s.code for s in store.releases("ann")][:2] == [GAP, GAP]
        assert store.standing("ann").releases == 2
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


def test_a_budget_that_runs_out_in_a_call_leaves_the_rest_of_it_released(tmp_path):
    setting = plain(budget=Budget(total=2.0, when_spent="error"))
    call = ["bob"] + ["ann"] * 40, [0] * 41, [0, *range(1, 41)]
    with Streams.open(tmp_path / "s.db", setting) as store:
        store.release(["ann"], [0], [0])
        with pytest.raises(BudgetSpent, match="refused, the others are released") as first:
            store.release(*call, positions={"source": 7})
        made, events = first.value.made, store.standing("ann").events
        assert made.codes[0] >= 0
        assert first.value.places == np.flatnonzero(made.refused).tolist() == list(range(events, 41))
        assert (made.epsilons[events:] == 0).all()
        assert store.standing("ann").budget_left < 1e-6
        assert store.position("source") is None
    with Streams.open(tmp_path / "s.db", setting) as store:
        with pytest.raises(BudgetSpent) as again:
            store.release(*call)
        assert again.value.made.codes.tolist() == made.codes.tolist()
        assert again.value.made.replayed.tolist() == [True] * events + [False] * (41 - events)
        assert store.standings().users == ["ann", "bob"]


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
        assert store.standings().users == []
        assert store.release(["a"], [0], [0]).codes.size == 1


def test_each_setting_has_its_own_call(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store, pytest.raises(InputError, match="whole numbers"):
        store.release(["a"], [[0]], [0])
    setting = stream.Setting.of(chain(), "tree", 1.0, batch=2)
    with Streams.open(tmp_path / "b.db", setting) as store:
        with pytest.raises(InputError, match="event 0: expected a batch of 1 to 2"):
            store.release(["a"], [0], [0])
        with pytest.raises(InputError, match="event 1: expected a batch of 1 to 2"):
            store.release(["a", "a"], [[0, 1], [0, 1, 2]], [0, 1])
        assert store.standing("a") is None
    with pytest.raises(StoreError, match="closed"):
        store.release(["a"], [[0, 1]], [0])


def test_another_model_or_setting_is_refused_in_one_line(tmp_path):
    path = tmp_path / "s.db"
    Streams.open(path, plain()).close()
    with pytest.raises(ModelError, match="another model"):
        Streams.open(path, stream.Setting.of(chain(9), "balanced", 0.8))
    for other, named in ((plain(budget=3.0), "budget"), (stream.Setting.of(chain(), "optimal", 0.8), "mechanism")):
        with pytest.raises(InputError, match=f"another {named}") as caught:
            Streams.open(path, other)
        assert "\n" not in str(caught.value)
    costs = np.ones((4, 4)) - np.eye(4)
    first = stream.Setting.of(chain(), "optimal", 0.8, costs)
    Streams.open(tmp_path / "c.db", first).close()
    with pytest.raises(InputError, match="another costs"):
        Streams.open(tmp_path / "c.db", stream.Setting.of(chain(), "optimal", 0.8, 2 * costs))


def test_a_seed_marks_the_file_for_good(tmp_path):
    with Streams.open(tmp_path / "s.db", plain(), coins=SeededCoins(1)) as store:
        store.release(["ann"], [0], [0])
        assert not store.standing("ann").private
    with Streams.open(tmp_path / "s.db", plain()) as store:
        assert not store.standing("ann").private
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
        assert store.standing("ann").events == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s.db"]


OPENS = "from seqveil.release.store.database import Database; Database({!r}, None)"


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
    text, other, newer = tmp_path / "t.db", tmp_path / "o.db", tmp_path / "n.db"
    text.write_text("user,value\n" * 500)
    with pytest.raises(StoreError, match="no state file"):
        Streams.open(text, plain())
    with sqlite3.connect(other) as sql:
        sql.execute("CREATE TABLE mine (x)")
    sql.close()
    with pytest.raises(DataError, match="not a state file"):
        Streams.open(other, plain())
    Streams.open(newer, plain()).close()
    with sqlite3.connect(newer) as sql:
        sql.execute("PRAGMA user_version = 99")
    sql.close()
    with pytest.raises(DataError, match="newer seqveil"):
        Streams.open(newer, plain())
    with pytest.raises(StoreError, match="cannot be opened"):
        Streams.open(tmp_path / "none" / "s.db", plain())


def test_an_older_version_is_brought_forward(tmp_path, monkeypatch):
    path, now = tmp_path / "s.db", database.VERSION
    with Streams.open(path, plain()) as store:
        store.release(["ann"], [0], [0])
    monkeypatch.setattr(database, "VERSION", now + 2)
    steps = {now: "CREATE TABLE first (x)", now + 1: "CREATE TABLE second (x)"}
    for version, statement in steps.items():
        monkeypatch.setitem(database.MIGRATIONS, version, lambda sql, _, statement=statement: sql.execute(statement))
    with Streams.open(path, plain()) as store:
        assert store.standing("ann").events == 1
    with sqlite3.connect(path) as sql:
        assert sql.execute("PRAGMA user_version").fetchone() == (now + 2,)
        assert {"first", "second"} <= {row[0] for row in sql.execute("SELECT name FROM sqlite_master")}
    sql.close()


@pytest.mark.slow
def test_a_full_disk_undoes_the_call_and_no_more(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        store.release(["ann"], [0], [0])
        (pages,) = store._store.sql.execute("PRAGMA page_count").fetchone()
        store._store.sql.execute(f"PRAGMA max_page_count = {pages + 2}")
        names = [f"user {k}" for k in range(2000)]
        with pytest.raises(StoreError, match="the disk is full, so nothing was released"):
            store.release(["ann", *names], [0] * 2001, [1] + [0] * 2000, positions={"source": 1})
        assert store.standing("ann").events == 1
        assert store.standing("user 0") is None
        assert store.position("source") is None
        store._store.sql.execute("PRAGMA max_page_count = 1000000")
        store.release(["ann", *names], [0] * 2001, [1] + [0] * 2000, positions={"source": 1})
    with Streams.open(tmp_path / "s.db", plain()) as store:
        assert len(store.standings().users) == 2001
        assert store.position("source") == 1


def test_a_ledger_is_never_below_the_truth():
    values = np.array([0.0, 1e-300, 0.1, 1 / 3, 1e6 / 7, 3e6 + 1e-9])
    assert all(nats(count) >= value for count, value in zip(units(values).tolist(), values, strict=True))
    assert all(-nats(-count) >= value for count, value in zip(units(values).tolist(), values, strict=True))
    assert nats(int(units(np.array([np.inf]))[0])) == np.inf
    assert nats(-int(units(np.array([np.inf]))[0])) == -np.inf


def test_an_unsound_mechanism_is_told_without_bound(tmp_path):
    model = MarkovModel([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    with Streams.open(tmp_path / "s.db", stream.Setting.of(model, "crr", 1.0), key=KEY) as store:
        store.release(["ann"] * 30, [1] * 30, range(30))
        assert store.standing("ann").leakage == np.inf
        assert store.standings().leakage.tolist() == [np.inf]


@pytest.mark.slow
def test_large_states_are_not_written(tmp_path):
    rng = np.random.default_rng(5)
    rows = rng.dirichlet(np.ones(700), 700)
    setting = stream.Setting.of(MarkovModel(rows[0], rows), "balanced", 1.0)
    users = [f"u{k}" for k in range(30)]
    with Streams.open(tmp_path / "s.db", setting, key=KEY, memory=1) as store:
        for t in range(3):
            store.release(users, rng.integers(0, 700, 30), [t] * 30)
        assert store._live.room == 1
        kept = store.standings()
    assert (tmp_path / "s.db").stat().st_size < 30 * 2000 + 50_000
    twin = Streams(setting)
    with Streams.open(tmp_path / "s.db", setting, key=KEY) as store:
        for user in users:
            twin.observe([user] * 3, np.array([s.code for s in store.releases(user)]))
    assert (units(twin.standings().most) == units(kept.most)).all()


@pytest.mark.slow
def test_no_raw_symbol_is_written(tmp_path, monkeypatch):
    """One user whose raw symbol is always 3; a constant release (budget spent) never says so."""
    monkeypatch.setattr("seqveil.release.streams.time.time", lambda: 1e9)  # when it began is written
    setting = stream.Setting.of(chain(2, 6), "balanced", 0.5, budget=Budget(total=1e-7))
    with (
        Streams.open(tmp_path / "one.db", setting, key=KEY) as one,
        Streams.open(tmp_path / "two.db", setting, key=KEY) as two,
    ):
        one.release(["ann"] * 50, [3] * 50, range(50))
        two.release(["ann"] * 50, [5] * 50, range(50))
    assert (tmp_path / "one.db").read_bytes() == (tmp_path / "two.db").read_bytes()


def test_what_is_shown_of_a_store_holds_no_data(tmp_path):
    with Streams.open(tmp_path / "s.db", plain()) as store:
        store.release(["zq-secret"], [0], [0])
        assert "zq-secret" not in repr(store)
    described = json.loads(plain().signature)
    assert described["model"] == chain().fingerprint
