"""What an operator asks of a service: erase a person, start without surprises, end or be killed and lose nothing."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from policies import promise
from reference import streams as ref
from seqveil.client import Client, ServiceError
from seqveil.core.randomness import key_file
from seqveil.engine.policy import Policy
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import NoSuchUser, StoreError
from seqveil.engine.streams import CodeStreams
from served import KEY, WORDS, Process, ask, event, running, salt_of, words_model, words_setting


def erased(service, user, query="", **options):
    return service.ask("DELETE", f"/v1/users/{user}{query}", **options)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("erasing"), words_setting()) as found:
        yield found


def test_an_admin_erases_a_person_while_the_service_runs(service):
    service.release(*(event("zq-ann", k) for k in range(5)), event("bob", 0))
    answer = erased(service, "zq-ann")
    assert (answer.status, answer.json) == (200, {"releases": 5, "account": "kept"})
    assert service.ask("GET", "/v1/users/bob").json["releases"]
    for file in service.folder.iterdir():  # in the pages that SQLite keeps for later too
        assert b"zq-ann" not in file.read_bytes(), file.name
    gone = service.ask("GET", "/v1/users/zq-ann")
    back = service.release(event("zq-ann", 5))
    assert [(each.status, each.reason) for each in (gone, back)] == [(410, "gone")] * 2
    service.release(event("carl/account", 0))  # a name that looks like another address
    with Client(service.url, service.secret) as client:
        assert [client.erase("carl/account") for _ in range(2)] == [1, 0]
        with pytest.raises(ServiceError, match="not-found"):
            client.erase("nobody")
    assert service.release(event("bob", 1)).json["releases"][0]["replayed"] is False


def load(url, user, values, answers):
    """Release a user's stream one event after another, whatever happens to the server, and note every answer."""
    with Client(url, attempts=200, backoff=0.05, timeout=20) as client:
        for seq, value in enumerate(values):
            answers.append((user, seq, client.release(user, seq, value).value))


@pytest.mark.slow
@pytest.mark.parametrize("block", [None, 7])
def test_killed_and_started_again_all_is_as_in_a_run_that_was_not_cut(tmp_path, block):
    """Events one by one, and within blocks, whose hidden bits must come back too."""
    policy = Policy(epsilon=0.7, mechanism="balanced") if block is None else Policy(epsilon=4.0, block=block)
    raw = {f"user {k}": [WORDS[(seq * 7 + k) % 4] for seq in range(60)] for k in range(4)}
    policy.save(tmp_path / "given.toml")
    how = {"policy": (tmp_path / "given.toml").read_text()}
    process, answers = Process(tmp_path, "--no-auth", "--key", tmp_path / "key", **how), []
    threads = [threading.Thread(target=load, args=(process.url, *each, answers)) for each in raw.items()]
    for thread in threads:
        thread.start()
    for kill in range(1, 4):
        while len(answers) < kill * 50:
            assert any(thread.is_alive() for thread in threads)
            threading.Event().wait(0.005)
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        process = Process(tmp_path, "--no-auth", "--key", tmp_path / "key", port=process.port, **how)
    for thread in threads:
        thread.join()
    spent = 60 * 0.7 if block is None else 9 * 4.0
    with Client(process.url) as client:
        for user in raw:
            disclosed = [(user, made.seq, made.value) for made in client.releases(user)]
            assert disclosed == [answer for answer in answers if answer[0] == user]
            assert client.account(user).epsilon_spent == pytest.approx(spent, abs=1e-6)
    assert process.end() == 0
    twin = ref.twin(policy.on(words_model()), salt_of(tmp_path / "state.db"), key_file(tmp_path / "key"))
    for user, values in raw.items():
        whole = twin.release([user] * 60, [WORDS.index(value) for value in values]).codes
        assert [value for name, _, value in answers if name == user] == [WORDS[code] for code in whole]


@pytest.mark.slow
def test_what_was_accepted_is_finished_before_the_end(tmp_path):
    process, answers = Process(tmp_path, "--no-auth"), []

    def work(user):
        with suppress(OSError):  # in the end nobody listens any more
            for seq in range(10_000):
                answer = ask(process.port, "POST", "/v1/release", {"events": [event(user, seq)]})
                assert answer.status == 200 or answer.reason == "stopping"
                if answer.status == 200:
                    answers.append((user, seq, answer.json["releases"][0]["value"]))

    with ThreadPoolExecutor(6) as threads:
        done = threads.map(work, [f"user {k}" for k in range(6)])
        while len(answers) < 60:
            threading.Event().wait(0.01)
        assert process.end() == 0
    assert list(done) == [None] * 6  # and nobody got another answer
    with CodeStreams.open(tmp_path / "state.db", words_setting()) as store:
        stored = {(u, s.seq): WORDS[s.code] for u in {a[0] for a in answers} for s in store.releases(u)}
    assert {(user, seq): value for user, seq, value in answers} == stored
    assert not (tmp_path / "state.db-wal").exists()


@pytest.mark.slow
def test_a_disk_that_takes_nothing_is_not_ready_and_passes(tmp_path):
    process = Process(tmp_path, "--no-auth")
    running, crowd = process.process.pid, [event(f"user {k}", 0) for k in range(500)]

    def ask_for(*events):
        return ask(process.port, "POST", "/v1/release", {"events": list(events)})

    def ready():
        return ask(process.port, "GET", "/readyz")

    assert (ask_for(event("ann", 0)).status, ready().status) == (200, 200)
    resource.prlimit(running, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    assert {ready().reason for _ in range(5)} == {"store"}  # before any release has failed
    answer = ask_for(*crowd)
    assert (answer.status, answer.reason, ready().reason) == (503, "store", "store")
    assert int(answer.headers["Retry-After"]) > 0
    assert b"state.db" not in answer.content + ready().content  # strangers may ask whether it is ready
    assert ask(process.port, "GET", "/healthz").status == 200
    resource.prlimit(running, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert ready().status == 200
    rows = ask_for(*crowd).json["releases"]
    assert not any(row["replayed"] for row in rows)
    assert process.end() == 0


@pytest.mark.slow
def test_a_second_server_on_one_state_or_one_port_is_refused_in_a_line(tmp_path):
    process = Process(tmp_path, "--no-auth")
    with pytest.raises(RuntimeError, match="another process has this state file open"):
        Process(tmp_path, "--no-auth")
    command = [sys.executable, "-m", "seqveil", "serve", "--begin", "--no-auth", "--port", str(process.port)]
    command += ["--model", str(tmp_path / "model"), *promise(epsilon=2.0), "--state"]
    taken = subprocess.run([*command, str(tmp_path / "other.db")], capture_output=True, text=True)
    assert (taken.returncode, taken.stderr.count("\n"), "cannot listen" in taken.stderr) == (2, 1, True)
    assert ask(process.port, "POST", "/v1/release", {"events": [event("ann", 0)]}).status == 200
    assert process.end() == 0
    other = subprocess.run([*command, str(tmp_path / "state.db")], capture_output=True, text=True)
    assert (other.returncode, "was begun with another" in other.stderr) == (2, True)
    said = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines() if line[0] == "{"]
    assert said[0] == "an account begins at zero"
    assert len([line for line in said if "in the order in which events arrive" in line]) == 1
    assert os.stat(tmp_path / "state.db").st_mode & 0o077 == 0


def test_an_erasure_that_left_traces_can_be_asked_for_again(tmp_path, monkeypatch):
    path, tidy = tmp_path / "state.db", SqliteStore.rewritten

    def on_a_full_disk(self):
        self.sql.execute("PRAGMA query_only=ON")
        try:
            return tidy(self)
        finally:
            self.sql.execute("PRAGMA query_only=OFF")

    with monkeypatch.context() as patch:
        with CodeStreams.open(path, words_setting(), key=KEY) as streams:
            streams.release(["zq-ann", "bob"], [0, 1])
            patch.setattr(SqliteStore, "rewritten", on_a_full_disk)
            for _ in range(2):
                with pytest.raises(StoreError, match=r"done, but .* could not be written anew .*, and do it again"):
                    streams.erase(["zq-ann"])
        again = CodeStreams.open(path, words_setting(), key=KEY)
    with again as streams:
        assert streams.erase(["zq-ann"]) == 0
        assert all(b"zq-ann" not in file.read_bytes() for file in tmp_path.iterdir())
        with pytest.raises(NoSuchUser, match="nobody was erased"):
            streams.erase(["zq-nobody"])
        assert streams.account("bob").events == 1
