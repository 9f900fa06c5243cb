"""Old releases are dropped from a state file; everything else stays as if they were still there."""

import os
import signal
import time

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import ever
from seqveil.engine.accounting import Budget
from seqveil.engine.store import database, packing, schema, settling
from seqveil.engine.store.backup import verify
from seqveil.engine.store.protocol import Compacted, StoreBusy
from seqveil.engine.store.upkeep import compact
from seqveil.engine.stream import Setting
from seqveil.engine.streams import EARLIER, Streams
from seqveil.interfaces.cli import main
from seqveil.receiver.upgrade import upgrade
from served import running, words_model, words_setting

KEY = bytes(range(32))
USERS = ["ann", "bob", "cé"]
CHAIN = MarkovModel(*ref.random_chain(np.random.default_rng(1), 3, 1, zeros=True))
HOURS = 3600.0
SETTINGS = {
    "symbols": Setting.of(CHAIN, "balanced", 0.8),
    "total": Setting.of(CHAIN, "balanced", 0.8, budget=Budget(total=9.0)),
    "window": Setting.of(CHAIN, "balanced", 0.8, budget=Budget(per_window=1.2, releases=3)),
    "seconds": Setting.of(CHAIN, "balanced", 0.8, budget=Budget(per_window=2.0, seconds=10.0)),
    "batches": Setting.of(CHAIN, "tree", 1.5, batch=2),
    "apart": Setting.of(CHAIN, "balanced", 0.8, restarts=True),
    "guarded": Setting.of(CHAIN, "guarded", secrets=ever(2, epsilon=0.4, window=3)),
}


QUICK = ["apart"]


def event(user, seq):
    return {"user": user, "seq": seq, "value": "gym"}


@pytest.fixture
def clock(monkeypatch):
    """When records are filed."""
    now = [1000.0]
    monkeypatch.setattr(settling.time, "time", lambda: now[0])
    monkeypatch.setattr(schema, "CHUNK", 4)
    return now


def part(setting, streams, seed, count=15):
    """Some events of three users, the last of whom comes only with an even seed."""
    rng = np.random.default_rng(seed)
    users = [USERS[k] for k in rng.integers(0, 2 + (seed % 2 == 0), count)]
    raw = rng.integers(0, 3, (count, 2)).tolist() if setting.in_batches else rng.integers(0, 3, count)
    times = [seed * 100 + k / 7 for k in range(count)] if setting.timed else None
    begins = rng.random(count) < 0.1 if setting.restarts else None
    return streams.release(users, raw, times=times, begins=begins)


def filled(path, setting, clock, parts):
    """A file that was closed after each part, an hour apart; what was released."""
    made = []
    for seed in parts:
        with Streams.open(path, setting, key=KEY) as streams:
            made.append(part(setting, streams, seed).paths)
        clock[0] += HOURS
    return made


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS if name not in QUICK)]
)
def test_releases_go_on_as_those_of_a_file_that_was_not_compacted(tmp_path, clock, name):
    setting, files = SETTINGS[name], (tmp_path / "one.db", tmp_path / "two.db")
    for path in files:
        clock[0] = 1000.0
        filled(path, setting, clock, range(4))
    done = compact(files[0], 1000.0 + 3 * HOURS)
    assert (done.releases > 15, done.users, done.kept) == (True, 3, 0)
    assert verify(files[0]).sound
    found = []
    for path in files:
        with Streams.open(path, setting, key=KEY) as streams:
            made = part(setting, streams, 4)
            again = part(setting, streams, 5)
            standings = [streams.standing(user) for user in USERS]
            told = [(s.events, s.releases, s.leakage, s.by_composition, s.ldp, s.budget_left) for s in standings]
            found.append((made.paths, again.paths, made.seqs.tolist(), told, streams.next_seqs(USERS).tolist()))
    assert found[0] == found[1]
    assert verify(files[0]).sound


def test_what_was_dropped_is_told_and_not_drawn_again(tmp_path, clock):
    path, setting = tmp_path / "s.db", SETTINGS["symbols"]
    filled(path, setting, clock, range(6))
    with Streams.open(path, setting, key=KEY) as streams:
        before, all_told = streams.standing("ann"), streams.releases("ann")
    compact(path, 1000.0 + 3 * HOURS)
    with Streams.open(path, setting, key=KEY) as streams:
        with pytest.raises(Compacted, match=r"releases before number \d+ of this user were compacted away") as gone:
            streams.releases("ann")
        kept = gone.value.kept
        assert streams.releases("ann", since=kept) == all_told[kept:]
        assert streams.releases("ann", since=kept + 3, limit=2) == all_told[kept + 3 : kept + 5]
        with pytest.raises(Compacted):
            streams.releases("ann", since=kept - 1)
        again = streams.release(["ann"] * 3, [0, 0, 0], seqs=[0, kept - 1, kept])
        assert (again.codes.tolist()[:2], again.replayed.all()) == ([EARLIER] * 2, True)
        assert again.codes[2] == all_told[kept].code
        assert streams.standing("ann") == before


def test_who_did_not_come_since_keeps_nothing_but_state_and_ledger(tmp_path, clock):
    path, setting = tmp_path / "s.db", SETTINGS["symbols"]
    filled(path, setting, clock, [0])
    compact(path, clock[0])
    with Streams.open(path, setting, key=KEY) as streams:
        events = [streams.standing(user).events for user in USERS]
        made = streams.release(["ann"] * 20, [0] * 20)  # over the ends of chunks, the first of which is short
        assert [s.code for s in streams.releases("ann", since=events[0])] == made.codes.tolist()
    with Streams.open(path, setting, key=KEY) as streams:
        assert [s.code for s in streams.releases("ann", since=events[0])] == made.codes.tolist()
        seq = events[0] + 13
        assert streams.release(["ann"], [1], seqs=[seq]).codes.tolist() == [made.codes[13]]
        with pytest.raises(Compacted, match=f"before number {events[0]} "):
            streams.releases("ann")
    assert verify(path).sound
    assert compact(path, 0.0).releases == 0
    assert compact(path, clock[0] + 1e9).releases == 20


def test_the_size_falls(tmp_path, clock):
    path, setting = tmp_path / "s.db", SETTINGS["symbols"]
    with Streams.open(path, setting, key=KEY) as streams:
        for _ in range(40):
            streams.release([f"user {k}" for k in range(300)], np.zeros(300, np.int64))
    done = compact(path, clock[0] + 1)
    assert done.after == path.stat().st_size < done.before / 2
    assert not list(tmp_path.glob("s.db-*"))


def test_releases_that_a_state_is_computed_from_stay(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(packing, "SMALL", 0)
    path, setting = tmp_path / "s.db", SETTINGS["symbols"]
    filled(path, setting, clock, range(2))
    done = compact(path, clock[0])
    assert (done.releases, done.kept) == (0, 3)
    with Streams.open(path, setting, key=KEY) as streams:
        assert streams.releases("ann")[0].seq == 0


def test_a_file_in_use_is_left_alone(tmp_path, capsys):
    path = tmp_path / "s.db"
    with Streams.open(path, words_setting(), key=KEY) as streams:
        streams.release(["ann"], [0])
        with pytest.raises(StoreBusy, match="a service or another command has it open; stop that first"):
            compact(path, time.time())
        assert main(["state", "compact", str(path), "--keep-days", "1"]) != 0
        assert capsys.readouterr().err.count("\n") == 1


def test_a_compacted_file_does_not_move_to_another_model(tmp_path, clock):
    path, old = tmp_path / "s.db", SETTINGS["symbols"]
    filled(path, old, clock, [0])
    compact(path, clock[0])
    with pytest.raises(Compacted, match="compacted away"):
        upgrade(path, [old], Setting.of(CHAIN, "randomized_response", 0.8))
    with Streams.open(path, old, key=KEY) as streams:
        assert streams.standing("ann").events > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "expected what to drop"),
        (["--before", "yesterday"], "expected --before as a time"),
        (["--keep-days", "-1"], "expected --keep-days as a number of days"),
        (["--keep-days", "nan"], "expected --keep-days as a number of days"),
    ],
)
def test_bad_options_get_one_line(tmp_path, capsys, options, said):
    path = tmp_path / "s.db"
    Streams.open(path, words_setting()).close()
    assert main(["state", "compact", str(path), *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_command_says_what_it_did_and_export_where_it_begins(tmp_path, capsys):
    words_model().save(tmp_path / "model")
    path = tmp_path / "s.db"
    with Streams.open(path, words_setting()) as streams:
        streams.release(["ann"] * 5 + ["bob"], [0] * 6)
    assert main(["state", "compact", str(path), "--keep-days", "1", "--before", "2099-01-01"]) == 0
    assert "dropped  0 releases of 0 users" in capsys.readouterr().out
    assert main(["state", "compact", str(path), "--before", "2099-01-01"]) == 0
    assert "dropped  6 releases of 2 users" in capsys.readouterr().out
    with Streams.open(path, words_setting()) as streams:
        streams.release(["ann"], [0])
    assert main(["state", "export", str(path), "-m", str(tmp_path / "model"), "--out", str(tmp_path / "o")]) == 0
    told = capsys.readouterr()
    assert "wrote  1 releases" in told.out
    assert "the releases of 2 users begin later than with number 0" in told.err
    assert '"seq": 5' in (tmp_path / "o").read_text()
    assert main(["state", "account", str(path), "--user", "ann", "--json"]) == 0
    assert '"kept_from": 5' in capsys.readouterr().out


@pytest.mark.slow
def test_the_service_says_what_is_gone(tmp_path):
    path = tmp_path / "state.db"
    with running(tmp_path, words_setting()) as service:
        for seq in range(3):
            service.release(event("ann", seq))
    compact(path, time.time() + 10)
    with running(tmp_path, words_setting()) as service:
        answer = service.ask("GET", "/v1/users/ann/releases")
        assert (answer.status, answer.reason, answer.json["kept_from"]) == (410, "gone", 3)
        assert "releases before number 3" in answer.json["detail"]
        again = service.release(event("ann", 1), event("ann", 3))
        assert [row["status"] for row in again.json["releases"]] == ["compacted", "released"]
        assert service.ask("GET", "/v1/users/ann/releases?since=3").json["releases"][0]["seq"] == 3


def counting(monkeypatch, at=None):
    """Count the steps of SQLite in stores that are opened from now on; die for real at the one that is named."""
    steps, real = [0], database.Database._load

    def step():
        steps[0] += 1
        if steps[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def load(self):
        real(self)
        self.sql.set_progress_handler(step, 100)

    monkeypatch.setattr(database.Database, "_load", load)
    return steps


@pytest.mark.slow
def test_kills_in_the_middle_leave_a_file_that_is_whole(tmp_path, monkeypatch):
    """Killed at moments all over a run: the file is sound, ledgers are as before, and it goes on as its twin."""
    path, setting, names = tmp_path / "s.db", SETTINGS["symbols"], [f"user {k}" for k in range(200)]
    with Streams.open(path, setting, key=KEY) as streams:
        for k in range(80):
            streams.release(names, np.full(200, k % 3))
        before = streams.standings()
    whole, after = path.read_bytes(), time.time() + 10
    with monkeypatch.context() as patch:
        steps = counting(patch)
        compact(path, after)
    with Streams.open(path, setting, key=KEY) as streams:
        expected = streams.release(names, np.ones(200, np.int64)).codes.tolist()
    for at in np.linspace(1, steps[0], 12).astype(int).tolist():
        for each_file in tmp_path.glob("s.db*"):
            each_file.unlink()
        path.write_bytes(whole)
        child = os.fork()
        if child == 0:
            try:
                counting(monkeypatch, at)
                compact(path, after)
            finally:
                os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert verify(path).sound
        compact(path, after)
        assert path.stat().st_size < len(whole) / 2
        with Streams.open(path, setting, key=KEY) as streams:
            standings = streams.standings()
            assert standings.events.tolist() == before.events.tolist()
            assert standings.leakage.tolist() == before.leakage.tolist()
            assert streams.release(names, np.ones(200, np.int64)).codes.tolist() == expected
