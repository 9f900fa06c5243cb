"""Any order of releases, retries, reopenings and crashes: the store says what a twin in memory says."""

import shutil
import sqlite3
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
from seqveil.core.coins import KeyedCoins
from seqveil.core.model import MarkovModel
from seqveil.engine import batches, stream
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store import database, packing, schema
from seqveil.engine.store.packing import units
from seqveil.engine.streams import GAP, NOTHING, StoreError, Streams

KEY = bytes(range(32))


class Twin:
    """What a store with this key and salt does, kept in dictionaries and computed one event at a time."""

    def __init__(self, setting, gaps="refuse"):
        self.setting, self.gaps, self.coins = setting, gaps, None
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
    found = store.account(user)
    figures = (found.epsilon_spent, found.most, found.least, found.ldp)
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
        self.limits = database.FEW_ROWS, database.PART, packing.SMALL, schema.CHUNK
        database.FEW_ROWS, database.PART = 2, 2  # the log is folded a little at a time
        schema.CHUNK = 4
        if self.large:
            packing.SMALL = 0

    @initialize(kind=st.sampled_from(list(SETTINGS)), gaps=st.sampled_from(["refuse", "skip"]), zeros=st.booleans())
    def begin(self, kind, gaps, zeros):
        size = {"mechanism": "tree", "epsilon": 1.5, "batch": 2} if self.batched else {"mechanism": "balanced"}
        self.setting = Policy(**{"epsilon": 0.8, **size}, **SETTINGS[kind]).on(
            MarkovModel(*ref.random_chain(np.random.default_rng(1), 3, 1, zeros))
        )
        self.twin, self.gaps, self.commits = Twin(self.setting, gaps), gaps, 0
        self.reopen()
        self.salts = [self.store._store.salt]

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
        twin.coins = KeyedCoins(KEY).of_state(self.setting.signature, self.store._store.salt)
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
        assert self.store._store.salt == self.salts[-1]

    @rule()
    def crash(self):
        """What a killed process leaves, both files as they are, copied elsewhere: it draws from a salt of its own."""
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
        assert self.store._store.salt not in self.salts
        self.salts.append(self.store._store.salt)

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
        database.FEW_ROWS, database.PART, packing.SMALL, schema.CHUNK = self.limits
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
