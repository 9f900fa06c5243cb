"""A person is erased from a state file, and nothing more is released; copies of a state file."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from reference import streams as ref
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import key_mark
from seqveil.core.secrets import ever
from seqveil.engine import sqlite
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store import Damaged, Erased, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import backup, erase, verify

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
CHAIN = MarkovModel(*ref.random_chain(np.random.default_rng(1), 3, 1, zeros=True))
TOTAL = Policy(epsilon=0.8, budget=Budget(total=4.0), mechanism="balanced").on(CHAIN)


def opened(path, setting=TOTAL, key=KEY):
    return CodeStreams.open(path, setting, key=key)


def filled(path, setting=TOTAL, key=KEY, events=70):
    """A file with two users; where both stand."""
    with opened(path, setting, key) as streams:
        for k in range(events):
            batch = [[k % 3, 0]] * 2 if setting.in_batches else [k % 3, 0]
            streams.release(["zq-ann", "bob"], batch, times=[k, k] if setting.timed else None)
        return streams.account("zq-ann"), streams.account("bob")


def bytes_of(path):
    return b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))


def test_nothing_of_a_person_is_left_in_the_file(tmp_path):
    path = tmp_path / "s.db"
    with opened(path) as streams:
        for k in range(20):
            streams.release(["zq-ann", f"user {k}"], [0, 1])
    filled(path, events=20)
    assert b"zq-ann" in bytes_of(path)
    assert erase(path, ["zq-ann"], KEY) == 40
    assert b"zq-ann" not in bytes_of(path)
    assert list(tmp_path.glob("s.db-*")) == []
    found = verify(path)
    assert (found.sound, found.users) == (True, 21)
    with opened(path) as streams:
        assert "zq-ann" not in streams.accounts().users
        assert streams.account("bob").events == 20


def test_an_erasure_that_was_refused_is_not_done_later(tmp_path):
    """The file takes no write, in a process of its own: it is no other afterwards."""
    path, names = tmp_path / "s.db", [f"user {k}" for k in range(300)]
    filled(path, events=3)
    with opened(path) as streams:
        streams.release(names, [0] * 300)
    erase(path, ["zq-ann"], KEY)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    script = f"""
import resource
from seqveil.engine.upkeep import erase
resource.setrlimit(resource.RLIMIT_FSIZE, (33_000, 33_000))
erase({str(path)!r}, {names!r}, {KEY!r})
"""
    refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "nothing was written" in refused.stderr
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.name in before} == before
    with opened(path) as streams:
        assert streams.names() == ["bob", *names]


@pytest.mark.parametrize("setting", [TOTAL, Policy(secrets=ever(2, epsilon=0.4, window=3)).on(CHAIN)])
def test_nothing_more_is_released_of_who_was_erased(tmp_path, setting):
    path = tmp_path / "s.db"
    before, other = filled(path, setting, events=4)
    erase(path, ["zq-ann"], KEY)
    with opened(path, setting) as streams:
        assert streams.account("bob") == other
        for seqs in ([4, 4], [4, 0]):
            with pytest.raises(Erased, match="nothing more is released of this user; all others go on") as refused:
                streams.release(["bob", "zq-ann"], [0, 0], seqs)
            assert isinstance(refused.value, Damaged)
            assert refused.value.users == ("zq-ann",)
        with pytest.raises(Erased):
            streams.releases("zq-ann")
        assert streams.next_seqs(["zq-ann"]).tolist() == [4]
        if setting is TOTAL:
            assert streams.account("zq-ann").leakage == before.leakage
        assert streams.release(["bob"], [0]).seqs.tolist() == [4]
        assert streams.release(["bob", "new"], [0, 1]).seqs.tolist() == [5, 0]
        assert streams.erase(["new"]) == 1  # and so of who is erased while streams are open
        with pytest.raises(Erased):
            streams.release(["new"], [0])
        assert streams.release(["bob"], [0]).seqs.tolist() == [6]
    assert b"zq-ann" not in bytes_of(path)
    assert verify(path).sound


def test_who_was_erased_may_be_erased_again(tmp_path):
    path = tmp_path / "s.db"
    filled(path, events=5)
    assert [erase(path, ["zq-ann"], KEY) for _ in range(2)] == [5, 0]
    with pytest.raises(StoreError, match="nobody was erased"):
        erase(path, ["zq-nobody"], KEY)
    erase(path, ["bob"], KEY)
    with opened(path) as streams:
        assert streams.accounts().users == []
        streams.release([""], [0], positions={"queue": 7})
        assert (streams.erase([""]), streams.position("queue")) == (1, 7)
    assert verify(path).sound


def test_without_the_key_nobody_is_erased(tmp_path):
    path = tmp_path / "s.db"
    filled(path, events=2)
    for key, said in ((None, "no key is given"), (OTHER, "this is another one")):
        with pytest.raises(InputError, match=f"the mark {key_mark(KEY)}, and {said}; pass that one by key="):
            erase(path, ["bob"], key)
    with opened(path) as streams:
        assert streams.account("bob").events == 2
        with pytest.raises(StoreError, match="another process"):
            erase(path, ["bob"], KEY)


def test_a_file_without_a_key_keeps_the_ledger_too(tmp_path):
    path = tmp_path / "s.db"
    before, _ = filled(path, key=None, events=3)
    with pytest.raises(InputError, match="was begun without a key; leave it out"):
        erase(path, ["zq-ann"], KEY)
    erase(path, ["zq-ann"], None)
    assert b"zq-ann" not in bytes_of(path)
    with opened(path, key=None) as streams:
        assert streams.account("zq-ann").leakage == before.leakage
        assert streams.account("someone else") is None
        with pytest.raises(Erased):
            streams.release(["zq-ann"], [0])
    with pytest.raises(InputError, match="was begun without a key; leave it out"):
        opened(path)


def test_whose_ledger_it_is_follows_from_file_and_key_together(tmp_path):
    """What stands in place of a name differs from file to file, and with the key."""
    hashes = set()
    for k, key in enumerate((KEY, KEY, OTHER, None)):
        path = tmp_path / f"{k}.db"
        filled(path, key=key, events=1)
        erase(path, ["zq-ann"], key)
        with sqlite.reading(path) as records:
            hashes |= {name for _, name, _ in records.users() if isinstance(name, bytes)}
    assert len(hashes) == 4


def test_a_name_that_looks_like_a_hash_is_a_name(tmp_path):
    path = tmp_path / "s.db"
    filled(path, events=2)
    erase(path, ["zq-ann"], KEY)
    with sqlite.reading(path) as records:
        (hidden,) = [name for _, name, _ in records.users() if isinstance(name, bytes)]
    with opened(path) as streams:
        strange = [hidden.hex(), hidden.decode("latin1"), "erased", "\x00"]
        assert streams.release(strange, [0] * 4).seqs.tolist() == [0] * 4
        assert streams.account("zq-ann").events == 2
    assert verify(path).sound


def test_a_copy_from_before_has_the_person_still_and_is_erased_from_again(tmp_path):
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"
    before, other = filled(path, events=5)
    with opened(path) as streams:
        backup(streams.file, copy)
    erase(path, ["zq-ann"], KEY)
    path.write_bytes(copy.read_bytes())
    with opened(path) as streams:
        assert streams.names() == ["zq-ann", "bob"]
    erase(path, ["zq-ann"], KEY)
    with opened(path) as streams:
        assert (streams.names(), streams.account("bob")) == (["bob"], other)
        assert streams.account("zq-ann").leakage == before.leakage


def counting(monkeypatch, at=None):
    """Count the steps of SQLite over connections that are opened from now on; die for real at the one named."""
    steps, real = [0], sqlite.connect

    def step():
        steps[0] += 1
        if steps[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(path, **how):
        made = real(path, **how)
        made.set_progress_handler(step, 100)
        return made

    monkeypatch.setattr(sqlite, "connect", connect)
    return steps


@pytest.mark.slow
def test_kills_in_the_middle_leave_a_file_that_is_whole(tmp_path, monkeypatch):
    """Killed at moments all over an erasure: the file is sound, she is there or not, and the same command finishes."""
    path, names = tmp_path / "s.db", ["zq-ann", *(f"user {k}" for k in range(200))]
    with opened(path) as streams:
        for k in range(20):
            streams.release(names, np.full(201, k % 3))
        before = streams.account("zq-ann")
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        steps = counting(patch)
        erase(path, ["zq-ann"], KEY)
    for at in np.linspace(1, steps[0], 12).astype(int).tolist():
        for each_file in tmp_path.glob("s.db*"):
            each_file.unlink()
        path.write_bytes(whole)
        child = os.fork()
        if child == 0:
            try:
                counting(monkeypatch, at)
                erase(path, ["zq-ann"], KEY)
            finally:
                os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert verify(path).sound
        erase(path, ["zq-ann"], KEY)
        assert b"zq-ann" not in bytes_of(path)
        with opened(path) as streams:
            assert len(streams.accounts().users) == 200
            assert streams.account("zq-ann").leakage == before.leakage
            with pytest.raises(Erased):
                streams.release(["zq-ann"], [0])


def test_who_may_not_write_to_the_file_erases_nobody_now_or_later():
    """Nothing is left beside the file, so nothing of what was refused happens when it may be written to again."""
    erasing = (
        "import os; from seqveil.engine import upkeep\n"
        "if os.getuid() == 0: os.setuid(65534)  # root may write to anything\n"
        "try: upkeep.erase('s.db', ['ann'], None)\n"
        "except upkeep.StoreError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.db")
        with opened(path, key=None) as streams:
            streams.release(["ann", "bob"], [0, 1])
        path.chmod(0o444)
        Path(folder).chmod(0o777)
        found = subprocess.run([sys.executable, "-c", erasing], cwd=folder, capture_output=True, text=True, check=True)
        assert "may not be written to" in found.stdout
        assert os.listdir(folder) == ["s.db"]
        path.chmod(0o600)
        with opened(path, key=None) as streams:
            assert streams.names() == ["ann", "bob"]


# copies


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def open_handed():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_handed")
def test_a_copy_of_a_state_file_is_for_its_owner_alone(tmp_path):
    setting = Policy(epsilon=0.5).on(CHAIN)
    with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as store:
        store.release(["ann"], [0], [0])
        for name in ("new.db", "shared.db"):
            copy = tmp_path / name
            if name != "new.db":
                for beside in ("-wal", "-journal"):
                    Path(f"{copy}{beside}").touch(0o644)
            backup(store.file, copy)
            found = [path for path in tmp_path.iterdir() if path.name.startswith(name)]
            assert {mode(path) for path in found} == {0o600}
            assert copy in found
    assert mode(tmp_path / "s.db") == 0o600
    with CodeStreams.open(tmp_path / "new.db", setting, key=KEY) as store:
        assert store.account("ann").events == 1
        assert {mode(path) for path in tmp_path.iterdir() if path.name.startswith("new.db")} == {0o600}
