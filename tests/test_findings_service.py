"""What an attack on the service and on the state file found: each stays repaired."""

from __future__ import annotations

import os

import numpy as np
import pytest

import seqveil as sv
from policies import promise
from seqveil.core.errors import InputError
from seqveil.engine.coded import CodeStreams
from seqveil.engine.store import StoreError
from seqveil.interfaces.service import tokens
from served import running, words_model, words_setting
from test_tokens import edited

ODD = {"huge": 2**70, "object": object(), "surrogate": "\ud800", "truth": True, "number": np.int64(3), "none": None}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_what_a_position_has_seen_is_charged_though_it_cannot_be_kept(tmp_path, odd):
    seen = []

    def note(made):
        seen.append(int(made.codes[0]))
        return {"queue": odd}

    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        for _ in range(20):
            with pytest.raises(InputError, match="expected positions by source"):
                store.release(["ann"], [2], seqs=[0], positions=note)
        assert len(set(seen)) == 1
        assert store.account("ann").events == 1
        assert store.position("queue") is None
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        assert [each.code for each in store.releases("ann")] == seen[:1]


def interrupted(made):
    raise KeyboardInterrupt


@pytest.mark.parametrize("given", [lambda made: 1 / 0, lambda made: [7], lambda made: {7: 7}, interrupted])
def test_a_position_that_fails_takes_back_nothing(tmp_path, given):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        with pytest.raises((InputError, ZeroDivisionError, KeyboardInterrupt)):
            store.release(["ann"], [2], seqs=[0], positions=given)
        assert store.account("ann").events == 1


def test_positions_given_beforehand_are_refused_before_anything_is_drawn(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        for odd in ODD.values():
            with pytest.raises(InputError, match="expected positions by source"):
                store.release(["ann"], [2], positions={"queue": odd})
        assert store.account("ann") is None
        store.release(["ann"], [2], positions={"queue": -(2**63), "text": "ü", "bytes": b"\0"})
        assert [store.position(name) for name in ("queue", "text", "bytes")] == [-(2**63), "ü", b"\0"]


@pytest.mark.slow
def test_a_service_says_so_while_its_tokens_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "LOOK_EVERY", 0.0)
    with running(tmp_path, words_setting()) as service:
        service.token("release")
        edited(tmp_path / "tokens.json", {"rate": "5"})
        answer = service.release({"user": "ann", "seq": 0, "value": "gym"})
        assert (answer.status, answer.reason) == (503, "tokens")
        answer = service.ask("GET", "/healthz", token=None)
        assert (answer.status, answer.reason) == (503, "tokens")


@pytest.mark.slow
def test_a_large_request_is_refused_before_any_part_of_it_is_released(tmp_path):
    budget = sv.Budget(per_window=1.0, seconds=3600)
    setting = sv.Policy(epsilon=0.7, budget=budget, mechanism="balanced").on(words_model())
    begin = 1_699_920_000
    events = [{"user": "ann", "seq": k, "value": "gym", "time": begin + 21_600 * k} for k in range(300)]
    with running(tmp_path, setting) as service:
        wrong = [*events[:-1], events[-1] | {"time": begin}]
        assert service.release(*wrong).reason == "time-went-back"
        assert service.store.account("ann") is None
        assert service.release(*events).status == 200
        assert service.store.account("ann").events == 300


@pytest.mark.slow
def test_with_secrets_a_request_may_leave_out_but_few_numbers(tmp_path):
    setting = sv.Policy(secrets=sv.secrets.ever("gym", epsilon=0.5, window=4), mechanism="guarded").on(words_model())
    with running(tmp_path, setting, gaps="skip") as service:
        jumps = [{"user": f"user-{k}", "seq": 50, "value": "home"} for k in range(11)]
        answer = service.release(*jumps)
        assert (answer.status, answer.reason) == (413, "too-large")
        assert "550 numbers out, of at most 500" in answer.json["detail"]
        assert service.store.accounts().users == []
        assert service.release(*jumps[:2]).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "empty", "fifo", "link", "dangling"])
def test_a_copy_is_written_over_nothing(tmp_path, seqveil, kind):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        store.release(["ann"], [0])
    target = tmp_path / "ledger"
    if kind == "fifo":
        os.mkfifo(target)
    elif kind in ("link", "dangling"):
        target.symlink_to(tmp_path / ("s.db" if kind == "link" else "none"))
    else:
        target.write_text("precious" if kind == "file" else "")
    before = os.lstat(target)
    found = seqveil("state", "backup", tmp_path / "s.db", target)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert os.lstat(target).st_ino == before.st_ino
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [":memory:", "file:s.db", "file::memory:?cache=shared"])
def test_a_state_in_memory_is_refused(place, seqveil, name):
    before = set(os.listdir())
    commands = [
        ["serve", "--no-auth", "--model", "m"],
        ["release", "raw.csv", "--model", "m", "-o", "out.csv"],
        ["bridge", "mqtt", "--broker", "localhost", "--model", "m"],
    ]
    for command in commands:
        found = seqveil(*command, *promise(epsilon=1), "--state", name, "--key", "key")
        assert found.code == 2, found
        assert "expected the path of a state file" in found.err
        assert found.err.count("\n") == 1
    assert set(os.listdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "older copy"])
def test_nothing_is_released_into_a_file_that_is_gone(tmp_path, how):
    with running(tmp_path, words_setting()) as service:
        assert service.release({"user": "ann", "seq": 0, "value": "gym"}).status == 200
        service.store.backup(tmp_path / "older.db")
        assert service.release({"user": "ann", "seq": 1, "value": "gym"}).status == 200
        os.link(tmp_path / "state.db", tmp_path / "kept")
        if how == "removed":
            os.unlink(tmp_path / "state.db")
        else:
            os.replace(tmp_path / "older.db", tmp_path / "state.db")
        answer = service.release({"user": "ann", "seq": 2, "value": "gym"})
        assert (answer.status, answer.reason) == (503, "store")
        assert service.ask("GET", "/v1/users/ann/account").status == 503
        assert service.ask("GET", "/metrics").status in (200, 503)
        with pytest.raises(StoreError, match="taken away"):
            service.store.release(["bob"], [0])
        with pytest.raises(StoreError, match="taken away"):
            service.store.backup(tmp_path / "copy.db")
        health = service.ask("GET", "/healthz", token=None)
        assert (health.status, health.reason) == (503, "store")
        os.replace(tmp_path / "kept", tmp_path / "state.db")  # the right one again
        assert service.release({"user": "ann", "seq": 2, "value": "gym"}).status == 200
