"""What is gone from a state file without a trace in it is noticed by what lies beside it."""

import shutil

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.store.upkeep import adopt
from seqveil.engine.streams import StoreError, Streams

KEY = bytes(range(32))
CHAIN = MarkovModel(*ref.random_chain(np.random.default_rng(1), 3, 1))
SETTING = Policy(epsilon=0.8, mechanism="balanced").on(CHAIN)


def killed(folder, calls=30):
    """What a killed process leaves of a store: its files as they are."""
    (folder / "live").mkdir()
    (folder / "left").mkdir()
    with Streams.open(folder / "live" / "s.db", SETTING, key=KEY) as streams:
        for k in range(calls):
            streams.release(["ann", f"user {k}"], [k % 3, 0])
        for each in (folder / "live").iterdir():
            if not each.name.endswith(("-lock", "-shm")):
                shutil.copy(each, folder / "left")
    return folder / "left" / "s.db"


def test_a_kill_alone_loses_nothing(tmp_path):
    path = killed(tmp_path)
    assert (tmp_path / "left" / "s.db-commits").stat().st_mode & 0o777 == 0o600
    with Streams.open(path, SETTING, key=KEY) as streams:
        assert streams.account("ann").events == 30
    assert [each.name for each in path.parent.iterdir()] == ["s.db"]


@pytest.mark.parametrize("where", [0.3, 0.6, 0.95])
def test_a_bit_that_flips_in_the_wal_is_noticed(tmp_path, where):
    path = killed(tmp_path)
    wal = path.with_name("s.db-wal")
    content = bytearray(wal.read_bytes())
    content[int(where * len(content))] ^= 8
    wal.write_bytes(content)
    with pytest.raises(StoreError, match=r"\d+ committed transactions are missing.*not in this ledger") as refused:
        Streams.open(path, SETTING, key=KEY)
    assert "\n" not in str(refused.value)
    with pytest.raises(StoreError, match="are missing"):  # and again
        Streams.open(path, SETTING, key=KEY)
    adopt(path)
    with Streams.open(path, SETTING, key=KEY) as streams:
        assert streams.next_seqs(["ann"])[0] < 30


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_a_file_that_is_gone_beside_its_wal_does_not_begin_anew(tmp_path, how):
    path = killed(tmp_path)
    path.write_bytes(b"") if how == "empty" else path.unlink()
    for beside in ("s.db-commits", "s.db-wal"):
        with pytest.raises(StoreError, match=r"is missing or empty.*it was in use.*put it back"):
            Streams.open(path, SETTING, key=KEY)
        assert not path.exists() or path.stat().st_size == 0
        path.with_name(beside).unlink()
    with Streams.open(path, SETTING, key=KEY) as streams:
        assert streams.begun


def test_a_lost_wal_is_noticed(tmp_path):
    path = killed(tmp_path)
    path.with_name("s.db-wal").unlink()
    with pytest.raises(StoreError, match=r"\d+ committed transactions are missing"):
        Streams.open(path, SETTING, key=KEY)


def test_an_unreadable_count_is_no_reason_to_stop(tmp_path):
    path = killed(tmp_path)
    for content in (b"", b"x" * 80, b"00000000000000000099 00000000\n", b"\xff\xfe"):
        path.with_name("s.db-commits").write_bytes(content)
        with Streams.open(path, SETTING, key=KEY) as streams:
            assert streams.account("ann").events == 30


def test_standings_of_users_undone_in_memory_stay_what_they_were(tmp_path):
    """A call that the disk refuses leaves figures of users who are in the log alone as they were."""
    with Streams.open(tmp_path / "s.db", SETTING, key=KEY) as streams:
        streams.release(["ann", "bob"], [0, 1])
        before = streams.leakages()[0].tolist()
        real, streams._store.set_positions = streams._store.set_positions, None
        with pytest.raises(TypeError):
            streams.release(["bob", "cleo"], [0, 1], positions={"x": 1})
        streams._store.set_positions = real
        assert streams.leakages()[0].tolist() == before
        assert streams.account("cleo") is None
        assert streams.release(["cleo", "bob"], [0, 0]).seqs.tolist() == [0, 1]
        assert streams._store.find(["cleo"])[0].id == 3
