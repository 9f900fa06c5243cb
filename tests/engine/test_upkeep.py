"""A person is erased from a state file; the budget that was spent stays spent."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import key_mark
from seqveil.core.secrets import ever
from seqveil.engine import sqlite
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.releases import EARLIER
from seqveil.engine.store import Damaged, Erased, NoLongerKept, StoreBusy, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import erase, facts_of, verify
from seqveil.interfaces.cli import main

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
    assert erase(path, ["zq-ann"], KEY) == (40, [])
    assert b"zq-ann" not in bytes_of(path)
    assert [each.name for each in tmp_path.glob("s.db-*")] == ["s.db-erased"]
    found = verify(path)
    assert (found.sound, found.users) == (True, 21)
    with opened(path) as streams:
        assert "zq-ann" not in streams.accounts().users
        assert streams.account("bob").events == 20


@pytest.mark.parametrize(
    "setting",
    [
        TOTAL,
        Policy(epsilon=0.8, budget=Budget(per_window=1.2, releases=3), mechanism="balanced").on(CHAIN),
        pytest.param(
            Policy(epsilon=1.5, batch=2, budget=Budget(total=9.0), mechanism="tree").on(CHAIN),
            marks=pytest.mark.slow,
            id="batches",
        ),
    ],
)
def test_who_comes_back_goes_on_with_the_budget_that_was_spent(tmp_path, setting):
    path = tmp_path / "s.db"
    before, other = filled(path, setting, events=6)
    erase(path, ["zq-ann"], KEY)
    with opened(path, setting) as streams:
        assert streams.next_seqs(["zq-ann"]).tolist() == [6]
        assert streams.account("zq-ann").leakage == before.leakage
        assert b"zq-ann" not in bytes_of(path)  # asking brings nobody back
        with pytest.raises(NoLongerKept, match="erased"):
            streams.releases("zq-ann")
        old = streams.release(["zq-ann"], [[0, 0]] if setting.in_batches else [0], seqs=[3])
        assert (old.codes.tolist(), old.replayed.tolist()) == ([EARLIER], [True])
        one = [[1, 0]] if setting.in_batches else [1]
        made = streams.release(["zq-ann"], one)
        assert made.seqs.tolist() == [6]
        after = streams.account("zq-ann")
        assert (after.events, after.epsilon_spent >= before.epsilon_spent) == (7, True)
        assert after.leakage >= before.leakage - 1e-9 or setting.budget.total is None
        assert streams.account("bob") == other
    with opened(path, setting) as streams:  # by name again, and from her own row
        assert "zq-ann" in streams.accounts().users
        assert streams.account("zq-ann") == after
        assert streams.releases("zq-ann", since=6)[0].path == made.paths[0]
        if setting.budget.total is not None:
            streams.release(["zq-ann"] * 60, one * 60)
            assert streams.account("zq-ann").leakage <= setting.budget.total + 2**-30
    assert verify(path).sound


def test_a_window_is_not_emptied_by_being_erased(tmp_path):
    setting = Policy(
        epsilon=0.8, budget=Budget(per_window=0.8, seconds=100.0, when_spent="stop"), mechanism="balanced"
    ).on(CHAIN)
    path = tmp_path / "s.db"
    filled(path, setting, events=3)
    with opened(path, setting) as streams:
        twin = streams.release(["bob"], [0], times=[4.0])
    erase(path, ["zq-ann"], KEY)
    with opened(path, setting) as streams:
        made = streams.release(["zq-ann"], [0], times=[4.0])
        assert made.epsilons.tolist() == twin.epsilons.tolist()
        with pytest.raises(InputError):
            streams.release(["zq-ann"], [0], times=[1.0])  # her clock does not go back either


def test_who_comes_back_is_let_in_though_not_all_users_fit_in_memory(tmp_path):
    """Looked at in one group and released in another: what is left of a ledger is no state to be read."""
    setting = Policy(epsilon=0.8, budget=Budget(per_window=2.0, seconds=5.0), mechanism="balanced").on(CHAIN)
    path = tmp_path / "s.db"
    filled(path, setting, events=3)
    erase(path, ["zq-ann"], KEY)
    with CodeStreams.open(path, setting, key=KEY, memory=1) as streams:
        users = ["zq-ann", "bob", "cy", "zq-ann", "bob"]
        assert streams.release(users, [0] * 5, times=[20.0] * 5).seqs.tolist() == [3, 3, 0, 4, 4]
        assert streams.names() == ["zq-ann", "bob", "cy"]
    assert verify(path).sound


def test_an_erasure_that_was_refused_is_not_done_later(tmp_path):
    """The file takes no write, in a process of its own: neither file nor list is another afterwards."""
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


def test_the_returned_may_be_erased_again(tmp_path):
    path = tmp_path / "s.db"
    filled(path, events=5)
    for events in (6, 7):
        erase(path, ["zq-ann"], KEY)
        with opened(path) as streams:
            streams.release(["zq-ann"], [0])
            assert streams.account("zq-ann").events == events
            spent = streams.account("zq-ann").epsilon_spent
    erase(path, ["zq-ann"], KEY)
    with pytest.raises(StoreError, match="nobody was erased"):
        erase(path, ["zq-nobody"], KEY)
    erase(path, ["bob"], KEY)
    with opened(path) as streams:
        assert streams.account("zq-ann").epsilon_spent == spent
        assert streams.accounts().users == []


def test_with_declared_secrets_nothing_more_is_released_of_who_was_erased(tmp_path):
    """The accounts of the secrets went with the state, so what is left of each counts as used up."""
    setting = Policy(secrets=ever(2, epsilon=0.4, window=3), mechanism="guarded").on(CHAIN)
    path = tmp_path / "s.db"
    filled(path, setting, events=4)
    erase(path, ["zq-ann"], KEY)
    with opened(path, setting) as streams:
        with pytest.raises(Erased, match="nothing more can be released of this user; all others go on") as refused:
            streams.release(["bob", "zq-ann"], [0, 0])
        assert isinstance(refused.value, Damaged)
        assert refused.value.users == ("zq-ann",)
        assert streams.release(["bob"], [0]).seqs.tolist() == [4]
        assert streams.release(["bob", "new"], [0, 1]).seqs.tolist() == [5, 0]
    assert b"zq-ann" not in bytes_of(path)


def test_without_the_key_nobody_is_erased(tmp_path):
    path = tmp_path / "s.db"
    filled(path, events=2)
    for key, said in ((None, "no key is given"), (OTHER, "this is another one")):
        with pytest.raises(InputError, match=f"the mark {key_mark(KEY)}, and {said}; pass that key"):
            erase(path, ["bob"], key)
        with pytest.raises(InputError, match=said):  # nor to forget, for the list beside the file would name nobody
            erase(path, ["bob"], key, forget=True)
    with opened(path) as streams:
        assert streams.account("bob").events == 2


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
        assert streams.release(["zq-ann"], [0]).seqs.tolist() == [3]
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


def test_a_forgotten_ledger_begins_at_zero(tmp_path, capsys, monkeypatch):
    path = tmp_path / "s.db"
    filled(path, key=None, events=3)
    command = ["state", "erase", str(path), "zq-ann", "--forget-ledger"]
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert main(command) == 2
    disclosed = capsys.readouterr().err
    assert "beyond the budget" in disclosed
    assert "nothing was erased" in disclosed
    assert main([*command, "--yes"]) == 0
    assert "erased  1 users and 3 releases" in capsys.readouterr().out
    assert b"zq-ann" not in bytes_of(path)
    with opened(path, key=None) as streams:
        assert streams.account("zq-ann") is None
        assert streams.release(["zq-ann"], [0]).seqs.tolist() == [0]
        assert streams.accounts().users == ["bob", "zq-ann"]
    assert verify(path).sound


def test_positions_that_have_the_name_are_disclosed(tmp_path, capsys):
    path = tmp_path / "s.db"
    with opened(path, key=None) as streams:
        streams.release(
            ["zé"], [0], positions={"plain": "row of zé", "json": '{"z\\u00e9": 1}', "number": 7, "b": b"x"}
        )
    assert main(["state", "erase", str(path), "zé", "--forget-ledger", "--yes"]) == 0
    disclosed = capsys.readouterr().err
    assert ("what plain wrote" in disclosed, "what json wrote" in disclosed, disclosed.count("note:")) == (
        True,
        True,
        2,
    )


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    path, key = tmp_path / "s.db", tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    filled(path, events=3)
    assert main(["state", "erase", str(path), "zq-ann", "bob", "--key", str(key)]) == 0
    assert "erased  2 users and 6 releases" in capsys.readouterr().out
    assert main(["state", "account", str(path), "--json"]) == 0
    assert capsys.readouterr().out.strip() == "[]"
    for arguments in (["zq-ann"], ["nobody", "--key", str(key)]):
        assert main(["state", "erase", str(path), *arguments]) != 0
        assert capsys.readouterr().err.count("\n") == 1
    with opened(path), pytest.raises(StoreBusy):
        erase(path, ["bob"], KEY)


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


def test_what_comes_after_a_return_is_kept(tmp_path):
    path = tmp_path / "s.db"
    filled(path, events=6)
    erase(path, ["zq-ann"], KEY)
    with opened(path) as streams:
        made = streams.release(["zq-ann"] * 20, [0] * 20)
    assert verify(path).sound
    with opened(path) as streams:
        assert [s.code for s in streams.releases("zq-ann", since=6)] == made.codes.tolist()
        assert [s.code for s in streams.releases("zq-ann", since=9, limit=2)] == made.codes[3:5].tolist()
        assert streams.release(["zq-ann"], [1], seqs=[19]).codes.tolist() == [made.codes[13]]
        with pytest.raises(NoLongerKept, match="before number 6 of this user were erased; ask from 6 on"):
            streams.releases("zq-ann", since=5)


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_who_was_erased_and_comes_back_draws_from_other_randomness(tmp_path, running, forget):
    path = tmp_path / "s.db"
    before, _ = filled(path, events=2)
    epoch = facts_of(path)["epoch"]
    if running:
        with opened(path) as streams:
            assert streams.erase(["zq-ann"], forget) == (2, [])
            assert streams.names() == ["bob"]
    else:
        erase(path, ["zq-ann"], KEY, forget)
    assert facts_of(path)["epoch"] != epoch
    with opened(path) as streams:
        made = streams.release(["zq-ann"], [1])
        assert made.seqs.tolist() == [0 if forget else 2]
        spent = (0 if forget else before.epsilon_spent) + made.epsilons[0]
        assert streams.account("zq-ann").epsilon_spent == pytest.approx(spent)


@pytest.mark.parametrize("forget", [False, True])
def test_a_copy_from_before_is_erased_from_again(tmp_path, forget):
    """Whom the list beside the file names, once: who came back since stays."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"
    before, other = filled(path, events=5)
    with opened(path) as streams:
        streams.backup(copy)
    older = copy.read_bytes()
    erase(path, ["zq-ann"], KEY, forget)
    with opened(path) as streams:  # nothing to do here
        assert streams.release(["zq-ann"], [0]).seqs.tolist() == [0 if forget else 5]
    with opened(path) as streams:
        assert streams.names()[-1 if forget else 0] == "zq-ann"
    path.write_bytes(older)
    with opened(path) as streams:
        assert streams.names() == ["bob"]
        assert streams.account("bob") == other
        assert b"zq-ann" not in bytes_of(path)
        left = streams.account("zq-ann")
        assert left is None if forget else left.leakage == before.leakage
        streams.release(["zq-ann"], [0])
    with opened(path) as streams:
        assert "zq-ann" in streams.names()
    assert verify(path).sound
    listed = path.with_name("s.db-erased")
    content = bytearray(listed.read_bytes())
    content[20] ^= 1
    listed.write_bytes(content)
    with pytest.raises(StoreError, match="the list of whom to erase is damaged"):
        opened(path)


def counting(monkeypatch, at=None):
    """Count the steps of SQLite over connections that are opened from now on; die for real at the one named."""
    steps, real = [0], sqlite.connect

    def step():
        steps[0] += 1
        if steps[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(path):
        made = real(path)
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
            assert streams.release(["zq-ann"], [0]).seqs.tolist() == [20]
