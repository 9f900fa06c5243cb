"""The state file: each event released once, whatever is repeated, refused, killed or copied, and no raw symbol kept."""

import os
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from reference import streams as ref
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness, SeededRandomness, key_mark
from seqveil.engine import sqlite
from seqveil.engine.budget import Budget
from seqveil.engine.calls import OutOfOrder
from seqveil.engine.policy import Policy
from seqveil.engine.store import GAP, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import accept, backup, key_for, verify
from seqveil.interfaces.cli import main
from served import salt_of

KEY = bytes(range(32))


def chain(seed=0, n=4):
    return MarkovModel(*ref.random_chain(np.random.default_rng(seed), n))


def plain(**options):
    return Policy(epsilon=0.8, mechanism="balanced", **options).on(chain())


# each event once


def test_a_gap_may_be_skipped_and_what_comes_late_is_disclosed_so(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", plain(), key=KEY, gaps="skip") as store:
        made = store.release(["bob", "bob", "bob"], [0, 1, 2], [2, 1, 3])
        assert (made.codes[1], made.replayed.tolist()) == (GAP, [False, True, False])
        with pytest.raises(OutOfOrder, match="at most 10000"):
            store.release(["bob"], [0], [20_000])
        made = {seq: store.release(["ann"], [seq % 4], [seq]).codes[0] for seq in (0, 3, 4, 9, 10)}
        expected = [made.get(seq, GAP) for seq in range(11)]
        assert store.release(["ann"] * 11, [0] * 11, range(11)).codes.tolist() == expected
        assert store.leakages()[0].tolist() == store.accounts().leakage.tolist()
        assert store.leakages()[0].min() > 0
    with CodeStreams.open(tmp_path / "s.db", plain(), key=KEY) as store:
        assert [store.release(["ann"], [0], [seq]).codes[0] for seq in reversed(range(11))] == expected[::-1]
        found = store.releases("ann", since=1, limit=4)
        assert [stored.code for stored in found] == expected[1:5]
        assert [stored.status for stored in found] == ["given-up", "given-up", "released", "released"]
        assert store.account("ann").releases == 5


def test_an_old_event_is_found_without_reading_all_that_came_after_it(tmp_path):
    """Whoever repeats the first event of a long stream holds nobody else up."""
    with CodeStreams.open(tmp_path / "s.db", plain(), key=KEY, gaps="skip") as store:
        seqs = [seq for seq in range(3_600) if seq % 7 and not 995 < seq < 1_005]
        made = store.release(["ann"] * len(seqs), [seq % 4 for seq in seqs], seqs)
        expected = dict(zip(seqs, made.codes.tolist(), strict=True))
        for seq in (0, 1, 994, 998, 1_000, 1_999, 2_000, 3_599):
            assert store.release(["ann"], [0], [seq]).codes.tolist() == [expected.get(seq, GAP)]
            found = store.releases("ann", since=seq, limit=2)
            assert [stored.code for stored in found] == [expected.get(k, GAP) for k in (seq, seq + 1) if k < 3_600]
    with sqlite.reading(tmp_path / "s.db") as records:
        chain = records.sql.execute(sqlite.CHAIN, (records.find(["ann"])[0].id, 10, 12)).fetchall()
        assert chain[0][3] == 1_999  # the first milestone that is there


BAD = [  # users, numbers, codes
    (["a"], [0], [4]), (["a"], [0], [-1]), (["a", "b"], [0], [0]), (["a"], [-1], [0]), (["a"], [2**62], [0]),
    (["a"], [0.5], [0]), ([1.5], [0], [0]), ([True], [0], [0]), (["\ud800"], [0], [0]), (["a"], [0], [[0]]),
]  # fmt: skip


def test_bad_events_are_refused_and_leave_nothing(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", plain()) as store:
        for users, seqs, codes in BAD:
            with pytest.raises(InputError):
                store.release(users, codes, seqs)
            assert store.accounts().users == []
        assert store.release(["a"], [0], [0]).codes.size == 1
    with pytest.raises(StoreError, match="closed"):
        store.release(["a"], [0], [1])
    setting = plain(budget=Budget(per_window=2.0, seconds=10.0))
    with CodeStreams.open(tmp_path / "t.db", setting) as store:
        store.release(["ann"], [0], [0], [100.0])
        for times in (None, [99.0], [np.nan]):
            with pytest.raises(InputError, match="time"):
                store.release(["ann"], [0], [1], times)
        assert store.release(["ann"], [0], [1], [100.0]).codes[0] >= 0


# whose file it is


def test_another_model_setting_or_seed_is_refused_in_one_line(tmp_path):
    path = tmp_path / "s.db"
    CodeStreams.open(path, plain()).close()
    with pytest.raises(ModelError, match=r"another model.*a new file, whose ledger begins at zero"):
        CodeStreams.open(path, Policy(epsilon=0.8, mechanism="balanced").on(chain(9)))
    for other, named in (
        (plain(budget=3.0), "budget"),
        (Policy(epsilon=0.8, mechanism="optimal").on(chain()), "mechanism"),
    ):
        with pytest.raises(InputError, match=f"another {named}") as caught:
            CodeStreams.open(path, other)
        assert "\n" not in str(caught.value)
    costs = np.ones((4, 4)) - np.eye(4)
    CodeStreams.open(tmp_path / "c.db", Policy(epsilon=0.8, mechanism="optimal", distortion=costs).on(chain())).close()
    with pytest.raises(InputError, match=r"another .*distortion"):
        CodeStreams.open(tmp_path / "c.db", Policy(epsilon=0.8, mechanism="optimal", distortion=2 * costs).on(chain()))
    with pytest.raises(InputError, match="a seed cannot go on"):
        CodeStreams.open(path, plain(), randomness=KeyedRandomness.seeded(1))
    with pytest.raises(InputError, match="not both"):
        CodeStreams.open(path, plain(), randomness=SeededRandomness(1), key=KEY)
    with pytest.raises(InputError, match="gaps"):
        CodeStreams.open(path, plain(), gaps="ignore")
    with CodeStreams.open(tmp_path / "seeded.db", plain(), randomness=SeededRandomness(1)) as store:
        store.release(["ann"], [0])
    with CodeStreams.open(tmp_path / "seeded.db", plain()) as store:
        assert not store.account("ann").private


def test_another_key_or_none_is_refused_and_a_lost_one_is_not_made_anew(tmp_path):
    state, key = tmp_path / "s.db", tmp_path / "key"
    secret = key_for(state, key)
    CodeStreams.open(state, plain(), key=secret).close()
    for other, said in ((None, "no key is given"), (bytes(32), "this is another one")):
        with pytest.raises(InputError, match=f"{key_mark(secret)}, and {said}; pass that one by key="):
            CodeStreams.open(state, plain(), key=other)
    key.unlink()
    with pytest.raises(InputError, match="the key cannot be read"):
        key_for(state, key)
    assert not key.exists()


@pytest.mark.slow
def test_a_second_writer_is_refused_and_one_may_look(tmp_path):
    path = tmp_path / "s.db"
    with CodeStreams.open(path, plain()) as store:
        store.release(["ann"], [0], [0])
        opens = f"from seqveil.engine.sqlite import SqliteStore; SqliteStore({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", opens], capture_output=True, text=True)
        assert "another process has this state file open" in other.stderr
        with pytest.raises(StoreError, match="another process has this state file open"):
            CodeStreams.open(path, plain())
        with pytest.raises(StoreError):
            accept(path)
        with sqlite.reading(path) as records:
            store.release(["ann"], [0], [1])  # nobody waits for who reads
            assert records.find(["ann"])[0].events == 1
    assert [each.name for each in tmp_path.iterdir()] == ["s.db"]
    with CodeStreams.open(path, plain()) as store:
        assert store.account("ann").events == 2
        path.rename(tmp_path / "moved.db")
        with pytest.raises(StoreError, match="taken away or another one put in its place"):
            store.release(["ann"], [0], [2])


def test_no_second_name_makes_a_second_writer(tmp_path):
    """By a symbolic link the same lock is found; a hard link is refused; who got past the lock commits nothing."""
    path, setting = tmp_path / "s.db", Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]))
    with CodeStreams.open(path, setting) as first:
        first.release(["ann"], [0])
        (tmp_path / "link.db").symlink_to(path)
        with pytest.raises(StoreError):
            CodeStreams.open(tmp_path / "link.db", setting)
        os.unlink(f"{path}-lock")
        with CodeStreams.open(path, setting) as second:
            second.release(["ann"], [1])
            with pytest.raises(StoreError, match="another process has written to it"):
                first.release(["ann"], [1])
            assert second.account("ann").events == 2
    os.link(path, tmp_path / "hard.db")
    for name in ("s.db", "hard.db"):
        with pytest.raises(StoreError, match="a hard link"):
            CodeStreams.open(tmp_path / name, setting)


def test_what_is_no_state_file_is_refused(tmp_path):
    text, other, versioned = tmp_path / "t.db", tmp_path / "o.db", tmp_path / "v.db"
    text.write_text("user,value\n" * 500)
    with pytest.raises(StoreError, match="no state file"):
        CodeStreams.open(text, plain())
    with sqlite3.connect(other) as sql:
        sql.execute("CREATE TABLE mine (x)")
    sql.close()
    with pytest.raises(DataError, match="not a state file"):
        CodeStreams.open(other, plain())
    CodeStreams.open(versioned, plain()).close()
    with sqlite3.connect(versioned) as sql:
        sql.execute("PRAGMA user_version = 99")
    sql.close()
    content = versioned.read_bytes()
    for use in (lambda: CodeStreams.open(versioned, plain()), lambda: verify(versioned)):
        with pytest.raises(DataError, match="not a state file of this seqveil") as said:
            use()
        assert "\n" not in str(said.value)
    assert versioned.read_bytes() == content
    with pytest.raises(StoreError, match="cannot be opened"):
        CodeStreams.open(tmp_path / "none" / "s.db", plain())
    with CodeStreams.open(tmp_path / "s.db", plain()) as store:
        store.release(["zq-secret"], [0])
        assert "zq-secret" not in repr(store)


def test_a_file_that_must_exist_is_not_begun(tmp_path):
    path = tmp_path / "s.db"
    for _ in range(2):
        with pytest.raises(DataError, match=r"expected a state file, and there is none or it is empty.*starts at zero"):
            CodeStreams.open(path, plain(), must_exist=True)
        assert not [each for each in tmp_path.iterdir() if each != path]
        path.touch()
    with sqlite3.connect(path) as sql:  # a file of SQLite in which nothing was ever written
        sql.execute("VACUUM")
    sql.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="there is none or it is empty"):
        CodeStreams.open(path, plain(), must_exist=True)
    assert path.read_bytes() == before != b""
    assert list(tmp_path.iterdir()) == [path]
    with CodeStreams.open(path, plain()) as first:
        assert first.begun
    with CodeStreams.open(path, plain(), must_exist=True) as again:
        assert (again.begun, again.began) == (False, first.began)


# what is written


def test_an_unsound_mechanism_is_disclosed_without_bound(tmp_path):
    model = MarkovModel([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    for _ in range(2):
        with CodeStreams.open(tmp_path / "s.db", Policy(epsilon=1.0, mechanism="crr").on(model), key=KEY) as store:
            store.release(["ann"] * 30, [1] * 30)
            assert store.account("ann").leakage == np.inf
            assert store.accounts().leakage.tolist() == [np.inf]


def test_no_raw_symbol_is_written(tmp_path, monkeypatch):
    """One user whose raw symbol is always 3, one whose is 5; a constant release (budget spent) never says so."""
    monkeypatch.setattr("seqveil.engine.upkeep.time.time", lambda: 1e9)  # when it began is written
    setting = Policy(epsilon=0.5, budget=Budget(total=1e-7), mechanism="balanced").on(chain(2, 6))
    for name, symbol in (("one.db", 3), ("two.db", 5)):
        with CodeStreams.open(tmp_path / name, setting, key=KEY) as store:
            store.release(["ann"] * 50, [symbol] * 50, range(50))
        with sqlite3.connect(tmp_path / name) as sql:  # all but what is drawn for each file
            sql.execute("DELETE FROM facts WHERE name IN ('salt', 'epoch')")
        sql.execute("VACUUM")
        sql.close()
    assert (tmp_path / "one.db").read_bytes()[100:] == (tmp_path / "two.db").read_bytes()[100:]


# crashes and full disks


@pytest.mark.slow
def test_a_file_that_may_not_grow_undoes_the_call_and_no_more(tmp_path):
    """The operating system refuses to write beyond a size, in a process of its own."""
    script = f"""
import resource, sys
sys.path[:0] = {[os.path.dirname(__file__), *sys.path]!r}
import test_sqlite as t
store = t.CodeStreams.open({str(tmp_path / "s.db")!r}, t.plain())
store.release(["ann"], [0], [0])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
names = [f"user {{k}}" for k in range(3000)]
try:
    store.release(["ann", *names], [0] * 3001, [1] + [0] * 3000, positions={{"source": 1}})
except t.StoreError as error:
    print(error)
print(store.account("ann").events, store.account("user 0"), store.position("source"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.release(["ann"], [0], [1]).replayed[0])
store.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert "nothing was written" in first
    assert (second, third) == ("1 None None", "False")
    with CodeStreams.open(tmp_path / "s.db", plain()) as store:
        assert store.accounts().users == ["ann"]
        assert store.account("ann").events == 2
    assert verify(tmp_path / "s.db").sound


# randomness is of one file and its epoch alone


def test_two_files_with_one_key_draw_independently(tmp_path):
    """Equal symbols get equal releases as often as by chance: false alarms 2 in 10⁹."""
    setting = Policy(epsilon=1.0, mechanism="randomized_response").on(MarkovModel([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]]))
    users, made = [f"user {k}" for k in range(600)], []
    for name in ("one.db", "two.db"):
        with CodeStreams.open(tmp_path / name, setting, key=KEY) as streams:
            made.append(streams.release(users, np.zeros(600, np.int64)).codes)
    assert salt_of(tmp_path / "one.db") != salt_of(tmp_path / "two.db")
    kept = np.exp(1.0) / (np.exp(1.0) + 1)
    low, high = stats.binom.ppf([1e-9, 1 - 1e-9], 600, kept**2 + (1 - kept) ** 2)
    assert low <= (made[0] == made[1]).sum() <= high


def test_a_draw_that_was_lost_comes_out_the_same(tmp_path):
    path, users, raw = tmp_path / "s.db", [f"user {k}" for k in range(50)], [0, 1] * 25
    CodeStreams.open(path, plain(), key=KEY).close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # it dies between the draw and the commit
        lose = lambda made: (os.write(writing, bytes(made.codes.tolist())), os._exit(0))  # noqa: E731
        CodeStreams.open(path, plain(), key=KEY).release(users, raw, positions=lose)
    os.waitpid(child, 0)
    lost = list(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    with CodeStreams.open(path, plain(), key=KEY) as streams:
        assert streams.next_seqs(users).tolist() == [0] * 50
        assert streams.release(users, raw).codes.tolist() == lost


def test_a_copy_never_draws_from_the_randomness_of_its_original(tmp_path, capsys):
    """Put back by `backup`, copied by hand, moved, or set back by a snapshot of the disk and adopted."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"

    def opened(file=path):
        CodeStreams.open(file, plain(), key=KEY).close()
        return salt_of(file)

    with CodeStreams.open(path, plain(), key=KEY) as streams:
        first = streams.release(["ann"] * 3, [0, 1, 2])
        backup(streams.file, copy)
        streams.release(["ann"], [0])
    salts = [opened()]
    path.rename(tmp_path / "moved.db")
    assert opened(tmp_path / "moved.db") == salts[0]
    (tmp_path / "moved.db").rename(path)
    before, content = path.read_bytes(), copy.read_bytes()
    for _ in range(2):  # written over the file itself, which keeps its place on the disk
        path.write_bytes(content)
        salts.append(opened())
        assert opened() == salts[-1]
    shutil.copy2(path, tmp_path / "by_hand.db")
    salts += [opened(copy), opened(tmp_path / "by_hand.db")]
    for _ in range(2):
        path.write_bytes(before)
        assert main(["state", "adopt", str(path)]) == 0
        assert "adopted" in capsys.readouterr().out
        salts.append(opened())
    assert len(set(salts)) == len(salts)
    with CodeStreams.open(copy, plain(), key=KEY) as streams:
        assert [stored.code for stored in streams.releases("ann")] == first.codes.tolist()
    with pytest.raises(DataError, match="there is none"):
        accept(tmp_path / "none.db")
