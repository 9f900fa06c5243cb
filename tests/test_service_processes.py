"""Servers as processes of their own: killed, stopped in the middle of their work, and two over one state file."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from seqveil import SeqveilError
from seqveil.client import Client
from seqveil.core.errors import InputError
from seqveil.engine.streams import Streams
from served import WORDS, Process, ask, event, words_setting

pytestmark = pytest.mark.slow


def load(url, user, count, answers):
    """Release a user's stream one event after another, whatever happens to the server, and note every answer."""
    with Client(url, attempts=200, backoff=0.05, timeout=20) as client:
        for seq in range(count):
            made = client.release(user, seq, WORDS[(seq * 7 + len(user)) % 4])
            answers.append((user, seq, made.value))


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
            told = [(user, made.seq, made.value) for made in client.releases(user)]
            assert [seq for _, seq, _ in told] == list(range(count))
            assert told == [answer for answer in answers if answer[0] == user]
            assert client.account(user).releases == count
            assert client.account(user).by_composition == pytest.approx(0.7 * count, abs=1e-6)
    assert process.end() == 0


def test_what_was_accepted_is_finished_before_the_end(tmp_path):
    process = Process(tmp_path, "--no-auth")
    answers, stop = [], threading.Event()

    def work(user):
        for seq in range(10_000):
            try:
                answer = ask(process.port, "POST", "/v1/release", event(user, seq))
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
    with Streams.open(tmp_path / "state.db", words_setting()) as store:
        stored = {(u, s.seq): WORDS[s.code] for u in {a[0] for a in answers} for s in store.releases(u)}
    assert {(user, seq): value for user, seq, value in answers} == stored
    assert not (tmp_path / "state.db-wal").exists()


def test_a_second_server_on_one_state_is_refused(tmp_path):
    process = Process(tmp_path, "--no-auth")
    try:
        with pytest.raises(RuntimeError, match="another process has this state file open"):
            Process(tmp_path, "--no-auth")
        assert ask(process.port, "POST", "/v1/release", event("ann", 0)).status == 200
        command = [sys.executable, "-m", "seqveil", "serve", "--begin", "--no-auth", "--port", str(process.port)]
        command += ["--model", str(tmp_path / "model"), "--epsilon", "1", "--state", str(tmp_path / "other.db")]
        taken = subprocess.run(command, capture_output=True, text=True)
        assert taken.returncode == 2
        assert taken.stderr.count("\n") == 1
        assert "cannot listen" in taken.stderr
    finally:
        assert process.end() == 0
    command[command.index("1")] = "2"
    command[command.index(str(tmp_path / "other.db"))] = str(tmp_path / "state.db")
    other = subprocess.run(command, capture_output=True, text=True)
    assert other.returncode == 2
    assert "was begun with another" in other.stderr
    with sqlite3.connect(tmp_path / "state.db") as sql:
        assert sql.execute("SELECT count(*) FROM users").fetchone() == (1,)
    sql.close()
    assert issubclass(InputError, SeqveilError)
    assert json.loads((tmp_path / "log").read_text().splitlines()[0])["event"] == "listening"
    assert (tmp_path / "log").read_text().count("in the order in which events arrive") == 1
    assert os.stat(tmp_path / "state.db").st_mode & 0o077 == 0
