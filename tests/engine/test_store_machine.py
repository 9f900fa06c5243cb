"""Any order of releases, retries, failures, reopenings and crashes: the state file says what memory says."""

import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference import streams as ref
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness
from seqveil.engine import sqlite
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store import StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import verify

SETTINGS = {
    "plain": {},
    "stop": {"budget": Budget(total=2.0, when_spent="stop")},
    "window": {"budget": Budget(per_window=1.2, releases=3)},
    "seconds": {"budget": Budget(per_window=1.2, seconds=2.5)},
}
USERS = ["ann", "bob", "1", 1, "ü"]  # 1 and "1" are one user


def full_disk(*_):
    raise sqlite3.OperationalError("database or disk is full")


class Machine(RuleBasedStateMachine):
    """Every call goes to a state file and to memory; after a power cut memory takes the calls that were left."""

    large = batched = False

    def __init__(self):
        super().__init__()
        self.folder, self.patch = Path(tempfile.mkdtemp()), pytest.MonkeyPatch()
        self.crashes, self.clock, self.calls, self.store = 0, 0.0, [], None

    @initialize(kind=st.sampled_from(list(SETTINGS)), gaps=st.sampled_from(["refuse", "skip"]), zeros=st.booleans())
    def begin(self, kind, gaps, zeros):
        size = {"mechanism": "tree", "epsilon": 1.5, "batch": 2} if self.batched else {"mechanism": "balanced"}
        chain = MarkovModel(*ref.random_chain(np.random.default_rng(1), 3, 1, zeros))
        self.setting, self.gaps = Policy(**{"epsilon": 0.8, **size}, **SETTINGS[kind]).on(chain), gaps
        self.reopen()
        self.twin = self.memory([])

    def memory(self, calls):
        twin = CodeStreams(self.setting, randomness=KeyedRandomness.seeded(1), gaps=self.gaps)
        for call in calls:
            twin.release(*call)
        return twin

    @property
    def path(self):
        return self.folder / f"{self.crashes}" / "state.db"

    def reopen(self):
        self.path.parent.mkdir(exist_ok=True)
        room = 150 if self.large else 1 << 20  # for one or two states
        self.store = CodeStreams.open(
            self.path, self.setting, randomness=KeyedRandomness.seeded(1), gaps=self.gaps, memory=room
        )

    def drawn(self, data):
        """Events of some users, new and old ones, as a call takes them."""
        upcoming = {str(user): int(self.twin.next_seqs([user])[0]) for user in USERS}
        users, raw, seqs, times = [], [], [], []
        for _ in range(data.draw(st.integers(0, 6))):
            user = data.draw(st.sampled_from(USERS))
            ahead = upcoming[str(user)]
            seq = data.draw(st.integers(max(0, ahead - 9), ahead + (2 if self.gaps == "skip" else 0)))
            one = st.integers(0, 2)
            raw.append(data.draw(st.lists(one, min_size=1, max_size=2) if self.batched else one))
            self.clock += data.draw(st.sampled_from([0.0, 1.0]))
            users.append(user)
            seqs.append(seq)
            times.append(self.clock)
            upcoming[str(user)] = max(ahead, seq + 1)
        return users, raw, seqs, times if self.setting.timed else None

    @rule(data=st.data())
    def release(self, data):
        call = self.drawn(data)
        mine, other = self.store.release(*call, {"calls": len(self.calls) + 1}), self.twin.release(*call)
        self.calls.append(call)
        for name in ("codes", "seqs", "epsilons", "replayed"):
            assert getattr(mine, name).tolist() == getattr(other, name).tolist()
        assert mine.paths == other.paths

    @rule(data=st.data())
    def fail(self, data):
        """A transaction that the disk cannot take: nothing of it happened."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite.SqliteStore, "set_facts", full_disk)
            with pytest.raises(StoreError, match="nothing was written"):
                self.store.release(*self.drawn(data), {"unheard of": 1})
        assert self.store.position("unheard of") is None

    @rule()
    def close(self):
        self.store.close()
        assert verify(self.path).sound
        self.reopen()

    @rule()
    def crash(self):
        """What a killed process leaves, copied elsewhere."""
        self.leave(1.0)
        assert self.store.position("calls") == (len(self.calls) or None)

    @precondition(lambda self: self.path.with_name("state.db-wal").exists())
    @rule(share=st.floats(0, 1))
    def lose_power(self, share):
        """The end of the WAL is lost: the file is as after some earlier commit, and goes on from there."""
        self.leave(share)
        self.calls = self.calls[: self.store.position("calls") or 0]
        self.twin = self.memory(self.calls)

    def leave(self, share):
        before, old = self.path, self.store
        self.crashes += 1
        self.path.parent.mkdir()
        shutil.copy(before, self.path)
        wal = before.with_name("state.db-wal")
        if wal.exists():
            content = wal.read_bytes()
            self.path.with_name("state.db-wal").write_bytes(content[: int(share * len(content))])
        old.close()
        self.reopen()

    @invariant()
    def both_say_the_same(self):
        if self.store is None:
            return
        mine, other = self.store.accounts(), self.twin.accounts()
        assert mine.users == other.users
        for name in ("events", "releases", "epsilon_spent", "most", "least", "ldp"):
            assert getattr(mine, name).tolist() == getattr(other, name).tolist()

    def teardown(self):
        if self.store is not None:
            for user in self.twin.accounts().users:
                assert self.store.releases(user, since=2) == self.twin.releases(user, since=2)
            self.store.close()
        self.patch.undo()
        shutil.rmtree(self.folder)


class LargeMachine(Machine):
    """Little room: users are put aside and come back."""

    large = True


class BatchMachine(Machine):
    """Batches."""

    batched = True


for machine, examples in ((Machine, 25), (LargeMachine, 20), (BatchMachine, 10)):
    machine.TestCase.settings = settings(deadline=None, max_examples=examples, stateful_step_count=15)
    machine.TestCase.pytestmark = [pytest.mark.slow]
TestMachine, TestLargeMachine, TestBatchMachine = Machine.TestCase, LargeMachine.TestCase, BatchMachine.TestCase
