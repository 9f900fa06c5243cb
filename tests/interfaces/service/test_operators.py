"""What an operator asks of a service: erase a person, start without surprises, end or be killed and lose nothing."""

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from policies import promise
from seqveil import SeqveilError
from seqveil.client import Client, ServiceError
from seqveil.core.errors import InputError
from seqveil.engine.budget import Budget
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import NoSuchUser, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces import figures
from served import KEY, WORDS, Process, ask, event, running, words_setting


def erased(service, user, query="", **options):
    return service.ask("DELETE", f"/v1/users/{user}{query}", **options)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("erasing"), words_setting()) as found:
        yield found


def test_an_admin_erases_a_person_while_the_service_runs(service):
    service.release(*(event("zq-ann", k) for k in range(5)), event("bob", 0))
    before = service.ask("GET", "/v1/users/zq-ann?limit=0").json["account"]
    answer = erased(service, "zq-ann")
    assert (answer.status, answer.json) == (200, {"releases": 5, "ledger": "kept", "sources": []})
    assert service.ask("GET", "/v1/users/bob").json["releases"]
    for file in service.folder.iterdir():  # in the pages that SQLite keeps for later too
        assert b"zq-ann" not in file.read_bytes(), file.name
    gone = service.ask("GET", "/v1/users/zq-ann")
    assert (gone.status, gone.reason, gone.json["kept_from"]) == (410, "gone", 5)
    back = service.release(event("zq-ann", 5))
    assert back.status == 200
    after = service.ask("GET", "/v1/users/zq-ann?limit=0").json["account"]
    assert after["events"] == 6
    assert after["epsilon_spent"] > before["epsilon_spent"]


def test_erasing_again_takes_out_what_came_since_and_then_nothing(service):
    service.release(event("carl/account", 0))  # a name that looks like another address
    with Client(service.url, service.secret) as client:
        assert client.erase("carl/account") == 1
        assert client.erase("carl/account") == 0
        client.release("carl/account", 1, "home")
        assert client.erase("carl/account") == 1
        with pytest.raises(ServiceError, match="not-found"):
            client.erase("nobody")


def test_only_an_admin_erases(service):
    service.release(event("dora", 0))
    others = service.token("release", "read", "metrics")
    assert erased(service, "dora", token=others).reason == "forbidden"
    assert erased(service, "dora", token=None).reason == "unauthorised"
    assert service.ask("GET", "/v1/users/dora").json["account"]["events"] == 1
    with pytest.raises(InputError, match="state file"):
        CodeStreams(words_setting()).erase(["dora"])


def test_with_a_key_too_the_ledger_may_be_forgotten_for_the_randomness_is_another_then(service):
    service.release(event("emil", 0))
    before = service.store._store.salt
    assert erased(service, "emil", "?forget_ledger=true").json["ledger"] == "forgotten"
    assert service.store._store.salt != before
    service.release(event("emil", 0))
    assert service.ask("GET", "/v1/users/emil").json["account"]["events"] == 1


def test_without_a_key_as_with_one(tmp_path):
    with running(tmp_path, words_setting(), key=None) as service:
        service.release(event("ann", 0), event("ann", 1))
        assert erased(service, "ann").json == {"releases": 2, "ledger": "kept", "sources": []}
        assert service.ask("GET", "/v1/users/ann?limit=0").json["account"]["events"] == 2
        assert erased(service, "ann", "?forget_ledger=true").json["ledger"] == "forgotten"
        assert erased(service, "ann").reason == "not-found"
        assert service.release(event("ann", 0)).json["releases"][0]["replayed"] is False
        assert service.ask("GET", "/v1/users/ann?limit=0").json["account"]["events"] == 1
        assert b"seqveil_users 1" in service.ask("GET", "/metrics").content


def test_time_that_went_back_is_disclosed_by_its_place(tmp_path):
    with running(tmp_path, words_setting(budget=Budget(per_window=9.0, seconds=60.0, when_spent="stop"))) as service:
        service.release(event("ann", 0, time=100.0))
        late = [event("bob", 0, time=5.0), event("ann", 0, time=100.0), event("ann", 1, time=200.0)]
        answer = service.release(*late, event("ann", 2, time=150.0))
        assert (answer.reason, answer.json["position"]) == ("time-went-back", 3)


def test_room_is_looked_for_on_the_disk_that_the_file_is_on(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "state.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "disk" / "state.db")
    looked = []
    monkeypatch.setattr(figures.shutil, "disk_usage", lambda path: looked.append(path) or os.statvfs_result)
    with pytest.raises(AttributeError):
        figures.free_bytes(tmp_path / "link.db")
    assert looked == [tmp_path / "disk"]


def load(url, user, count, answers):
    """Release a user's stream one event after another, whatever happens to the server, and note every answer."""
    with Client(url, attempts=200, backoff=0.05, timeout=20) as client:
        for seq in range(count):
            made = client.release(user, seq, WORDS[(seq * 7 + len(user)) % 4])
            answers.append((user, seq, made.value))


@pytest.mark.slow
def test_killed_and_started_again_nothing_is_lost_or_doubled(tmp_path):
    users, count, answers = [f"user {k}" for k in range(4)], 60, []
    process = Process(tmp_path, "--no-auth")
    threads = [threading.Thread(target=load, args=(process.url, user, count, answers)) for user in users]
    for thread in threads:
        thread.start()
    for kill in range(1, 4):
        while len(answers) < kill * 50:
            assert any(thread.is_alive() for thread in threads)
            threading.Event().wait(0.005)
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        process = Process(tmp_path, "--no-auth", port=process.port)
    for thread in threads:
        thread.join()
    with Client(process.url) as client:
        for user in users:
            disclosed = [(user, made.seq, made.value) for made in client.releases(user)]
            assert [seq for _, seq, _ in disclosed] == list(range(count))
            assert disclosed == [answer for answer in answers if answer[0] == user]
            assert client.account(user).releases == count
            assert client.account(user).epsilon_spent == pytest.approx(0.7 * count, abs=1e-6)
    assert process.end() == 0


@pytest.mark.slow
def test_what_was_accepted_is_finished_before_the_end(tmp_path):
    process = Process(tmp_path, "--no-auth")
    answers, stop = [], threading.Event()

    def work(user):
        for seq in range(10_000):
            try:
                answer = ask(process.port, "POST", "/v1/release", {"events": [event(user, seq)]})
            except OSError:
                return  # nobody listens any more
            assert answer.status == 200 or answer.reason == "stopping"
            if answer.status == 200:
                answers.append((user, seq, answer.json["releases"][0]["value"]))

    threads = [threading.Thread(target=work, args=(f"user {k}",)) for k in range(6)]
    for thread in threads:
        thread.start()
    while len(answers) < 60:
        stop.wait(0.01)
    assert process.end() == 0
    for thread in threads:
        thread.join()
    with CodeStreams.open(tmp_path / "state.db", words_setting()) as store:
        stored = {(u, s.seq): WORDS[s.code] for u in {a[0] for a in answers} for s in store.releases(u)}
    assert {(user, seq): value for user, seq, value in answers} == stored
    assert not (tmp_path / "state.db-wal").exists()


@pytest.mark.slow
def test_a_second_server_on_one_state_is_refused(tmp_path):
    process = Process(tmp_path, "--no-auth")
    try:
        with pytest.raises(RuntimeError, match="another process has this state file open"):
            Process(tmp_path, "--no-auth")
        assert ask(process.port, "POST", "/v1/release", {"events": [event("ann", 0)]}).status == 200
        command = [sys.executable, "-m", "seqveil", "serve", "--begin", "--no-auth", "--port", str(process.port)]
        command += ["--model", str(tmp_path / "model"), *promise(epsilon=2.0), "--state", str(tmp_path / "other.db")]
        taken = subprocess.run(command, capture_output=True, text=True)
        assert taken.returncode == 2
        assert taken.stderr.count("\n") == 1
        assert "cannot listen" in taken.stderr
    finally:
        assert process.end() == 0
    command[command.index(str(tmp_path / "other.db"))] = str(tmp_path / "state.db")
    other = subprocess.run(command, capture_output=True, text=True)
    assert other.returncode == 2
    assert "was begun with another" in other.stderr
    with sqlite3.connect(tmp_path / "state.db") as sql:
        assert sql.execute("SELECT count(*) FROM users").fetchone() == (1,)
    sql.close()
    assert issubclass(InputError, SeqveilError)
    assert json.loads((tmp_path / "log").read_text().splitlines()[0])["event"] == "an account begins at zero"
    assert (tmp_path / "log").read_text().count("in the order in which events arrive") == 1
    assert os.stat(tmp_path / "state.db").st_mode & 0o077 == 0


# a file that could not be written anew


@pytest.fixture
def crowded(monkeypatch):
    """A disk too full for the file to be written anew, while `crowded["on"]`."""
    state, shrink = {"on": True}, SqliteStore.shrink

    def failing(self):
        if not state["on"]:
            return shrink(self)
        pages = self.sql.execute("PRAGMA page_count").fetchone()[0]
        self.sql.execute(f"PRAGMA max_page_count={pages}")
        self.sql.execute("PRAGMA query_only=ON")
        try:
            return shrink(self)
        finally:
            self.sql.execute("PRAGMA query_only=OFF")

    monkeypatch.setattr(SqliteStore, "shrink", failing)
    return state


@contextmanager
def small_disk(most):
    """No file can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_everybody_goes_on_where_the_file_could_not_be_written_anew(tmp_path):
    path, users = tmp_path / "state.db", [f"user {k}" for k in range(3000)]
    with CodeStreams.open(path, words_setting(), key=KEY) as streams:
        streams.release(users, [0] * len(users))
    with CodeStreams.open(path, words_setting(), key=KEY) as streams:
        with small_disk(path.stat().st_size // 4), pytest.raises(StoreError, match="it is done, but"):
            streams.erase(users[:1])
        assert streams.release(users[1:3], [0, 0]).seqs.tolist() == [1, 1]
        assert streams.erase(users[:1]) == (0, [])
        assert streams.release(users[:2], [0, 0]).seqs.tolist() == [1, 2]


@pytest.mark.parametrize("forget", [False, True])
def test_an_erasure_that_left_traces_can_be_asked_for_again(tmp_path, crowded, forget):
    key, path = None if forget else KEY, tmp_path / "state.db"
    with CodeStreams.open(path, words_setting(), key=key) as streams:
        streams.release(["zq-ann", "bob"], [0, 1])
        with pytest.raises(StoreError, match=r"it is done, but .* could not be written anew .*, and do it again"):
            streams.erase(["zq-ann"], forget)
        with pytest.raises(StoreError, match="do it again"):
            streams.erase(["zq-ann"], forget)
    with CodeStreams.open(path, words_setting(), key=key) as streams:
        crowded["on"] = False
        assert streams.erase(["zq-ann"], forget) == (0, [])
        assert all(b"zq-ann" not in file.read_bytes() for file in tmp_path.iterdir())
        with pytest.raises(NoSuchUser, match="nobody was erased"):
            streams.erase(["zq-nobody"], forget)
        assert streams.account("bob").events == 1


@pytest.mark.slow
def test_the_service_finishes_an_erasure_that_left_traces(tmp_path, crowded):
    with running(tmp_path, words_setting(), key=None) as service:
        service.release(event("ann", 0), event("bob", 0))
        ask = "/v1/users/ann?forget_ledger=true"
        first = service.ask("DELETE", ask)
        assert first.reason == "store"
        assert "do it again" in first.json["detail"]
        crowded["on"] = False
        assert service.ask("DELETE", ask).json == {"releases": 0, "ledger": "forgotten", "sources": []}
        assert service.ask("DELETE", ask).reason == "not-found"
        assert service.ask("DELETE", "/v1/users/ann").reason == "not-found"
        assert service.ask("GET", "/v1/users/bob").status == 200
