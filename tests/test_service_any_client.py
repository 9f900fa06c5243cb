"""Bodies that never end, and erasures that could not be finished at once."""

from __future__ import annotations

import resource
import socket
from contextlib import contextmanager

import pytest

from seqveil.engine.coded import CodeStreams
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import NoSuchUser, StoreError
from served import KEY, event, running, words_setting


@pytest.mark.slow
def test_a_body_that_never_ends_is_dropped_after_a_while_though_it_was_answered(tmp_path):
    head = b"POST /v1/release HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 9999999\r\n\r\n"
    with (
        running(tmp_path, words_setting(), timeout=0.5) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=3) as line,
    ):
        line.sendall(head)
        found = b""
        while got := line.recv(1 << 16):
            found += got
    assert b" 401 " in found


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
        assert service.ask("GET", "/v1/users/bob/releases").status == 200
