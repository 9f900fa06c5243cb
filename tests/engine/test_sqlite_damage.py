"""What is damaged, cut off or lost of a state file is found, or changes nothing: no release, no ledger, no position."""

import shutil
import sqlite3

import pytest

from benchmarks.damage import cut, flipped, make, opened, silent_changes
from seqveil.core.errors import DataError
from seqveil.engine.sqlite import reading
from seqveil.engine.store import Damaged, StoreError
from seqveil.engine.upkeep import backup, erase, verify
from seqveil.interfaces.events import EventJob, release_together

ROOTS = "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'users' ORDER BY rootpage"


def made(path):
    make(path)
    return path


def killed(folder, calls=30):
    """What a killed process leaves of a store: its files as they are."""
    (folder / "live").mkdir()
    (folder / "left").mkdir()
    with opened(folder / "live" / "s.db") as streams:
        for k in range(calls):
            streams.release(["ann", f"user {k}"], [k % 3, 0])
        for each in (folder / "live").iterdir():
            if not each.name.endswith("-shm"):
                shutil.copy2(each, folder / "left")
    return folder / "left" / "s.db"


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", [flipped, cut])
@pytest.mark.parametrize("killed", [False, True])
def test_a_flipped_bit_or_a_cut_is_found_or_harmless(tmp_path, spoiled, killed):
    """`python -m benchmarks damage` has a thousand of them."""
    silent, seen = silent_changes(tmp_path, spoiled, 60, killed)
    assert silent == []
    assert seen["seen when opened"] > (50 if spoiled == cut else 10)


@pytest.mark.parametrize("size", [1, 60, 4096])
def test_a_file_cut_to_a_few_bytes_is_refused_and_left_as_it_is(tmp_path, size):
    path = made(tmp_path / "s.db")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises((StoreError, DataError)):
        opened(path)
    assert path.stat().st_size == size


def damage(path, statement):
    with sqlite3.connect(path) as sql:
        assert sql.execute(statement).rowcount == 1
    sql.close()


def test_a_damaged_user_is_set_apart_and_the_others_go_on(tmp_path):
    path = made(tmp_path / "s.db")
    damage(path, "UPDATE users SET spent = spent - 1 WHERE name = 'user 3'")
    with opened(path) as streams:
        with pytest.raises(Damaged, match=r"user number 4 are damaged.*seqveil state verify.*backup") as refused:
            streams.account("user 3")
        assert "\n" not in str(refused.value)
        with pytest.raises(Damaged):
            streams.release(["user 1", "user 3"], [0, 0])
        jobs = [EventJob([user], [21], [0], None) for user in ("user 1", "user 3", "user 5")]
        release_together(streams, jobs)
        assert isinstance(jobs[1].outcome, Damaged)
        assert [job.outcome.seqs.tolist() for job in (jobs[0], jobs[2])] == [[21], [21]]
        assert streams.leakages()[1] == 1
        assert "user 3" in streams.names()
    assert verify(path).damaged_users == {4}


def test_a_file_that_does_not_say_what_it_is_for_is_refused(tmp_path):
    """Else it would go on under any model and any budget."""
    path = made(tmp_path / "s.db")
    damage(path, "DELETE FROM facts WHERE name = 'setting'")
    with pytest.raises(StoreError, match="is damaged"):
        opened(path)


def test_a_name_that_is_no_text_any_more_is_damage_of_one_user(tmp_path):
    path = made(tmp_path / "s.db")
    damage(path, "UPDATE users SET name = CAST(x'75ff' AS TEXT) WHERE name = 'user 3'")
    with opened(path) as streams:
        with pytest.raises(Damaged):
            streams.account("user 3")
        assert len(streams.names()) == 8
        assert streams.release(["user 1"], [0]).seqs.tolist() == [21]
    assert verify(path).damaged_users == {4}


@pytest.mark.slow
def test_many_users_are_found_as_each_of_them_is(tmp_path):
    names = [f"user-{k}" for k in range(1200)]
    with opened(tmp_path / "s.db") as streams:
        streams.release(names[:800], [0] * 800)
        asked = [*reversed(names), names[5], names[650]]
        assert streams.next_seqs(asked).tolist() == [streams.next_seqs([name])[0] for name in asked]
    damage(tmp_path / "s.db", "UPDATE users SET spent = spent - 1 WHERE name = 'user-7'")
    damage(tmp_path / "s.db", "UPDATE users SET name = 'user-x' WHERE name = 'user-9'")  # the other index finds it
    with opened(tmp_path / "s.db") as streams:
        for part, damaged in ((names[:9], "user-7"), (names[8:28], "user-9")):
            with pytest.raises(Damaged) as refused:
                streams.release(part, [0] * len(part))
            assert list(refused.value.users) == [damaged]
        assert streams.release(names[10:30], [0] * 20).seqs.tolist() == [1] * 20


@pytest.mark.parametrize(
    "change", ["UPDATE releases SET code = 1 - code", "UPDATE releases SET batch = 0", "DELETE FROM releases"]
)
def test_damaged_releases_are_never_given_back_nor_replayed(tmp_path, change):
    path = made(tmp_path / "s.db")
    damage(path, f"{change} WHERE user = 4 AND seq = 8")
    with opened(path) as streams:
        assert streams.account("user 3").events == 21
        assert len(streams.releases("user 3", since=9)) == 12  # those after it are whole
        with pytest.raises(Damaged):
            streams.releases("user 3")
        with pytest.raises(Damaged):
            streams.release(["user 3"], [0], seqs=[5])
        assert streams.release(["user 3"], [0]).seqs.tolist() == [21]
    assert verify(path).damaged_users == {4}


@pytest.mark.parametrize("index", ["sqlite_autoindex_users_1", "sqlite_autoindex_users_2"])
def test_a_user_who_vanished_from_an_index_does_not_begin_anew(tmp_path, index):
    path = made(tmp_path / "s.db")
    with sqlite3.connect(path) as sql:
        (page,) = sql.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
        (size,) = sql.execute("PRAGMA page_size").fetchone()
        (hashed,) = sql.execute("SELECT hash FROM users WHERE name = 'user 7'").fetchone()
    sql.close()
    content = bytearray(path.read_bytes())
    entry = b"user 7" if index.endswith("1") else hashed
    at = content.index(entry, (page - 1) * size)
    content[at + 5] ^= 64
    path.write_bytes(content)
    with opened(path) as streams:
        # by the other index the user is found as ever
        assert streams.release(["user 7"], [0], seqs=[0]).replayed.tolist() == [True]
        assert streams.account("user 6").events > 0
    assert not verify(path).sound


@pytest.mark.parametrize("how", ["stale", "swapped"])
def test_an_older_page_put_back_and_pages_in_each_others_place_are_refused(tmp_path, how):
    """Else a user would go on from an older row, or begin anew, and be drawn for a second time."""
    path = made(tmp_path / "s.db")
    before = path.read_bytes()
    with opened(path) as streams:
        streams.release(["user 3"], [0])
    content = bytearray(path.read_bytes())
    with sqlite3.connect(path) as sql:
        table, *indexes = (slice(4096 * (k - 1), 4096 * k) for (k,) in sql.execute(ROOTS))
    sql.close()
    if how == "stale":
        content[table] = before[table]
    else:
        content[indexes[0]], content[indexes[1]] = content[indexes[1]], content[indexes[0]]
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        opened(path)


def test_a_kill_alone_loses_nothing(tmp_path):
    path = killed(tmp_path)
    assert path.with_name("s.db-lock").stat().st_mode & 0o777 == 0o600
    with opened(path) as streams:
        assert streams.account("ann").events == 30
    assert [each.name for each in path.parent.iterdir()] == ["s.db"]


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_a_file_that_is_gone_beside_its_wal_does_not_begin_anew(tmp_path, how):
    path = killed(tmp_path)
    path.write_bytes(b"") if how == "empty" else path.unlink()
    with pytest.raises(StoreError, match=r"is missing or empty.*it was in use.*put it back"):
        opened(path)
    assert not path.exists() or path.stat().st_size == 0
    path.with_name("s.db-wal").unlink()
    with pytest.raises(StoreError, match=r"lacks all that was committed, as s\.db-lock knows"):
        opened(path)
    path.with_name("s.db-lock").unlink()
    with opened(path) as streams:
        assert streams.begun


@pytest.mark.parametrize("at", [3, 40, -3000])
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_after_a_kill_damage_to_what_was_committed_last_is_seen(tmp_path, at, how):
    """SQLite goes on from before the damage without a word, from the very beginning where no checkpoint has been."""
    path, copy = killed(tmp_path), tmp_path / "copy.db"
    wal = path.with_name("s.db-wal")
    content = bytearray(wal.read_bytes())
    content[at] ^= 1
    wal.write_bytes(content if how == "flipped" else content[:at])
    left = wal.read_bytes()
    for _ in range(2):  # what is refused once stays refused
        with pytest.raises(StoreError, match=r"lacks (the last \d+ changes that were|all that was) committed"):
            opened(path)
    if at < 0:  # else there are no tables
        assert "lacks the last" in verify(path).problems[0]
        with pytest.raises(StoreError, match="no copy was made"):
            backup(path, copy)
        assert not copy.exists()
    assert wal.read_bytes() == left  # nobody who looks takes away what may be put right
    content[at] ^= 1
    wal.write_bytes(content)
    with opened(path) as streams:
        assert streams.account("ann").events == 30


def test_an_older_copy_is_seen_also_where_who_was_erased_had_more_releases(tmp_path):
    path = made(tmp_path / "s.db")
    backup(path, tmp_path / "copy.db")
    erase(path, ["user 0"], None)
    with opened(path) as streams:
        streams.release(["user 1"], [0])
        shutil.copy(path.with_name("s.db-lock"), tmp_path / "copy.db-lock")
    with pytest.raises(StoreError, match="lacks the last 2 changes"):
        opened(tmp_path / "copy.db")


def test_the_lock_is_of_one_file_and_says_so_where_it_is_damaged(tmp_path):
    path, lock, link = killed(tmp_path), tmp_path / "left" / "s.db-lock", tmp_path / "link.db"
    true = lock.read_bytes()
    for k in range(len(true)):
        lock.write_bytes(bytes(byte ^ (at == k) for at, byte in enumerate(true)))
        with pytest.raises(StoreError, match=r"is not the file that s\.db-lock is of, or one of the two is damaged"):
            opened(path)
    other = made(tmp_path / "other.db")
    lock.write_bytes(true)
    shutil.copy(lock, f"{other}-lock")
    with pytest.raises(StoreError, match=r"is not the file that other\.db-lock is of"):
        opened(other)
    shutil.copy(lock, tmp_path / "new.db-lock")
    with pytest.raises(StoreError, match=r"new\.db-lock is left of a file that was here; move it away"):
        backup(path, tmp_path / "new.db")
    lock.write_bytes(bytes(len(true)))  # as a power cut may leave it
    opened(path).close()
    link.with_name("link.db-lock").symlink_to(path)
    with pytest.raises(StoreError, match=r"link\.db-lock: cannot be opened"):
        opened(link)
    assert verify(path).sound


def test_the_lock_stays_while_the_wal_is_needed(tmp_path):
    path = killed(tmp_path)
    lock, wal = path.with_name("s.db-lock"), path.with_name("s.db-wal")
    content, true = path.read_bytes(), lock.read_bytes()
    wal.rename(tmp_path / "wal")
    path.write_bytes(b"garbage!" * 512)
    with pytest.raises(StoreError, match="is damaged"):
        opened(path)
    assert lock.read_bytes() == true
    path.write_bytes(content)
    (tmp_path / "wal").rename(wal)
    streams = opened(path)
    with reading(path) as records:
        streams.release(["ann"], [0])
        streams.close()
        assert records.newest() > 0
    assert lock.exists()
    assert wal.stat().st_size > 0
    with opened(path) as streams:
        assert streams.account("ann").events == 31
    assert [each.name for each in path.parent.iterdir()] == ["s.db"]


def test_an_older_copy_put_back_after_a_kill_is_seen_and_one_who_is_erased_is_not_missed(tmp_path):
    path = killed(tmp_path)
    backup(path, tmp_path / "copy.db")
    with opened(path) as streams:
        streams.release(["ann"], [0])
        shutil.copy(path.with_name("s.db-lock"), tmp_path / "copy.db-lock")
        with pytest.raises(StoreError, match="lacks the last 2 changes"):
            opened(tmp_path / "copy.db")
        streams.erase(["ann"])
        assert verify(path).sound
        shutil.copy(path, tmp_path / "erased.db")
        shutil.copy(path.with_name("s.db-lock"), tmp_path / "erased.db-lock")
    with opened(tmp_path / "erased.db") as streams:
        assert streams.names() == [f"user {k}" for k in range(30)]
