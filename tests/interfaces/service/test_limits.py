"""What nobody may do to a service: hold connections, send heads or bodies without an end, or keep others waiting."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

import seqveil as sv
from mosquitto import until
from seqveil.interfaces.service import limits
from served import event, running, words_model, words_setting


@pytest.fixture
def hasty(monkeypatch):
    """No penalty, so that a refusal is seen at once."""
    monkeypatch.setattr(limits, "PENALTY", 0.0)
    monkeypatch.setattr(limits, "DRAIN", 0.3)


@pytest.fixture
def service(tmp_path, hasty):
    with running(tmp_path, words_setting(), connection=1.0) as found:
        yield found


def called(service, content=b"", timeout=5.0):
    line = socket.create_connection(("127.0.0.1", service.port), timeout=timeout)
    line.sendall(content)
    return line


def all_of(line):
    """What comes until the connection is closed, in whichever way."""
    found = b""
    try:
        while got := line.recv(1 << 16):
            found += got
    except ConnectionResetError:
        pass
    line.close()
    return found


def posted(service, body, more=b""):
    head = f"POST /v1/release HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.secret}\r\n".encode()
    return head + b"Content-Type: application/json\r\n" + more + b"\r\n" + body


HEADS = {
    "in one": (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", b" 431 "),
    "many": (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", b" 431 "),
    "without an end": (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 100_000, b" 431 "),
    "just below": (b"GET /healthz HTTP/1.1\r\nConnection: close\r\nX: " + b"y" * 30_000 + b"\r\n\r\n", b" 200 "),
    "no HTTP": (b"\x16\x03\x01 nonsense\r\n\r\n", b" 400 "),
    "chunks": (b"POST /v1/release HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 99, b" 411 "),
}


@pytest.mark.slow
@pytest.mark.parametrize(("head", "status"), HEADS.values(), ids=HEADS)
def test_a_head_is_answered_or_refused_and_closed(service, head, status):
    found = all_of(called(service, head))
    assert status in found.split(b"\r\n")[0]
    assert found.count(b"HTTP/1.1") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"", b"GET /healthz HTTP/1.1\r\nX: ", b"POST /v1/release HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_connection_that_ends_no_request_is_closed(service, content):
    begin = time.monotonic()
    line = called(service, content, timeout=20.0)
    found = all_of(line)
    assert 0.2 < time.monotonic() - begin < 15
    assert found == b"" or b" 401 " in found


@pytest.mark.slow
def test_requests_whose_answers_nobody_reads_are_answered_one_by_one(service):
    line = called(service)
    line.setblocking(False)
    wanted, full = b"GET /healthz HTTP/1.1\r\n\r\n" * 5000, 0
    while full < 50:  # nothing more goes in, however often it is tried
        try:
            line.send(wanted)
        except BlockingIOError:
            full += 1
            time.sleep(0.01)
        except OSError:
            break
    assert service.release(event("ann", 0)).status == 200
    assert service.server.server_state.total_requests < 10
    line.close()


@pytest.mark.slow
def test_a_connection_without_a_request_makes_room_and_one_address_has_its_share(tmp_path, hasty):
    with running(tmp_path, words_setting(), connections=5, connections_of_one=50) as service:
        silent = [called(service) for _ in range(9)]
        assert service.release(event("ann", 0)).status == 200
        assert [all_of(line) for line in silent[:4]] == [b""] * 4
        for line in silent:
            line.close()
    with running(tmp_path, words_setting(), connections_of_one=3) as service:
        lines = [called(service, b"GET /healthz HTTP/1.1\r\n\r\n") for _ in range(3)]
        assert b" 200 " in lines[0].recv(100)
        assert b" 503 " in all_of(called(service))
        for line in lines:
            line.close()
        until(lambda: service.release(event("ann", 1)).status == 200)


@pytest.mark.slow
def test_a_body_that_is_refused_is_dropped_and_the_connection_goes_on(service):
    large = b" " * (5 << 20)
    line = called(service, posted(service, large, f"Content-Length: {len(large)}\r\n".encode()), timeout=20.0)
    assert b" 413 " in line.recv(20)
    line.close()
    for version in ("1.1", "1.0"):
        body = json.dumps({"events": [event("ann", 0)]}).encode()
        head = posted(service, body, f"Connection: close\r\nContent-Length: {len(body)}\r\n".encode())
        assert b" 200 " in all_of(called(service, head.replace(b"HTTP/1.1", f"HTTP/{version}".encode())))


SECRETS = sv.Policy(secrets=sv.secrets.ever("gym", epsilon=0.5, window=4)).on(words_model())


@pytest.mark.slow
def test_large_streams_let_others_go_between(tmp_path):
    """Somebody who sends as much as is taken at once keeps nobody waiting for long."""
    with running(tmp_path, SECRETS) as service:
        assert service.release(*(event("ann", k) for k in range(21))).reason == "too-large"
        ending, done = threading.Event(), []

        def send():
            while not ending.is_set():
                begin = len(done) * 20
                assert service.release(*(event("ann", begin + j) for j in range(20))).status == 200
                done.append(begin)

        busy = threading.Thread(target=send)
        busy.start()
        for seq in range(20):
            before = len(done)
            assert service.release(event("bob", seq)).status == 200
            assert len(done) - before <= 3  # one under way, one that came first, one answered meanwhile
        ending.set()
        busy.join()


@pytest.mark.slow
def test_jumps_have_an_end(tmp_path):
    (tmp_path / "secrets").mkdir()
    with running(tmp_path, words_setting(), gaps="skip") as service:
        rows = service.release(event("bob", 2), event("bob", 0)).json["releases"]
        assert [row["status"] for row in rows] == ["released", "given-up"]
        page = service.ask("GET", "/v1/users/bob").json["releases"]
        assert [row["status"] for row in page] == ["given-up", "given-up", "released"]
        far = [event(f"user {k}", 6000) for k in range(2)]
        assert "leave 12000 numbers out, of at most 10000" in service.release(*far).json["detail"]
        assert service.store.account("user 0") is None
    with running(tmp_path / "secrets", SECRETS, gaps="skip") as service:
        jumps = [event(f"user-{k}", 50) for k in range(11)]
        answer = service.release(*jumps)
        assert (answer.status, answer.reason) == (413, "too-large")
        assert "550 numbers out, of at most 500" in answer.json["detail"]
        assert service.store.accounts().users == []
        assert service.release(*jumps[:2]).status == 200
