"""The service before clients that close at once, compress, add a slash or end a name in a line; unfinished erasures."""

from __future__ import annotations

import resource
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from seqveil.engine.coded import CodeStreams
from seqveil.engine.sqlite import SqliteStore
from seqveil.engine.store import NoSuchUser, StoreError
from seqveil.interfaces.service.messages import REASONS
from seqveil.interfaces.service.writer import disk_trouble
from served import KEY, event, running, words_setting


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("service"), words_setting(), max_body=20_000) as found:
        yield found


def expected(answer):
    """What an answer says was expected, by the place where it was."""
    assert answer.reason == "malformed"
    return {tuple(each["where"]): each["expected"] for each in answer.json["errors"]}


# paths


@pytest.mark.parametrize("path", ["/v1/release/", "/v1/model/", "/livez/", "/v1/users"])
def test_no_path_sends_a_caller_elsewhere(service, path):
    """A redirect names the address as this process sees it: plain HTTP behind a proxy, for values and tokens too."""
    answer = service.ask("POST" if "release" in path else "GET", path, event("ann", 0) if "release" in path else None)
    assert answer.status == 404
    assert answer.reason == "not-found"
    assert "Location" not in answer.headers


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("GET", "/account"), ("GET", "/releases")])
def test_an_end_of_a_line_behind_a_name_is_not_left_out(service, method, path):
    assert service.release(event("zoe", 0)).status == 200
    answer = service.ask(method, f"/v1/users/zoe{path}%0A")
    assert expected(answer)["user",] == "a user without control characters and ends of lines"
    assert service.ask("GET", "/v1/users/zoe/releases").status == 200


# bodies


def whole_answer(port, head, body, part=1000):
    """What comes back while a body is sent bit by bit, until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(head + f"Content-Length: {len(body)}\r\n\r\n".encode())
        for begin in range(0, len(body), part):
            line.sendall(body[begin : begin + part])
        found = b""
        while got := line.recv(1 << 16):
            found += got
        return found


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(("size", "status"), [(3 << 20, b" 413 "), (200, b" 415 ")])
def test_who_closes_after_one_request_still_gets_an_early_answer(service, version, size, status):
    kind = "text/plain" if size == 200 else "application/json"
    head = f"POST /v1/release HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
    head += f"Authorization: Bearer {service.secret}\r\n"
    found = whole_answer(service.port, head.encode(), b" " * size)
    assert status in found
    assert b"connection: close" in found.lower()
    assert found.endswith(b"}")


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


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "GZIP"])
def test_a_compressed_body_is_named_as_that(service, coding):
    answer = service.ask("POST", "/v1/release", b"\x1f\x8b\x08\x00", headers={"Content-Encoding": coding})
    assert answer.status == 415
    assert answer.reason == "wrong-type"
    assert "not compressed" in answer.json["detail"]


def test_a_body_that_says_it_is_not_compressed_is_taken(service):
    assert service.release(event("ida", 0), headers={"Content-Encoding": "identity"}).status == 200


WRONG = {
    "no body": (b"", (), "a body, of one event or with a list of events"),
    "a word for an event": ({"events": ["home"]}, ("events", 0), "an object"),
    "a user": (event("a\x85", 0), ("user",), "a user without control characters and ends of lines"),
    "a time": (event("a", 0, time="yesterday"), ("time", "?"), "a time as a number or as ISO 8601 text"),
    "no time": (event("a", 0, time=True), ("time", "?"), "a time as a number or as ISO 8601 text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_was_expected_is_that_of_its_field(service, name):
    body, place, words = WRONG[name]
    answer = service.ask("POST", "/v1/release", body)
    assert expected(answer) == {place: words}
    assert len(answer.json["errors"]) == 1


def test_a_word_that_is_neither_yes_nor_no_is_told_so(service):
    answer = service.ask("DELETE", "/v1/users/ann?forget_ledger=perhaps")
    assert expected(answer) == {("forget_ledger",): "true or false"}


# what an operator reads


def test_room_is_told_in_units_that_show_it(monkeypatch):
    monkeypatch.setattr("seqveil.interfaces.service.writer.free_bytes", lambda path: 300_000)
    assert "300,000 bytes free, of at least 1,000,000" in (disk_trouble("x", 1_000_000) or "")


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


def test_every_refusal_is_in_the_table_of_the_docs():
    table = Path(__file__).parents[1].joinpath("docs/http.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    told = {
        (int(status), reason.strip(" `"))
        for status, many in rows
        if status.strip().isdecimal()
        for reason in many.split(",")
    }
    assert told == {(status, reason) for reason, (status, _) in REASONS.items()}
