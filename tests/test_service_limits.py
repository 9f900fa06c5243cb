"""No one who can merely connect, or has a token for a user of their own, holds up the others."""

import http.client
import json
import signal
import socket
import threading
import time
from contextlib import closing

import pytest

import reference_streams as ref
import seqveil as sv
from seqveil import Budget
from seqveil.core.errors import InputError
from seqveil.engine.coded import CodeStreams, OutOfOrder, StoreError
from served import WORDS, Process, event, running, words_model, words_setting


@pytest.mark.slow
def test_a_head_that_is_too_large_or_too_slow_is_refused(tmp_path):
    with running(tmp_path, words_setting(), timeout=0.5) as service:
        for sent, status in ((b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, b"431"), (b"GET / HT", b"408"), (b"", b"408")):
            with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
                connection.sendall(sent)
                assert connection.recv(100).split(b" ")[1] == status
        with closing(http.client.HTTPConnection("127.0.0.1", service.port)) as slow:  # a second request too
            slow.request("GET", "/healthz")
            assert slow.getresponse().read()
            slow.sock.sendall(b"GET /healthz HTTP/1.1\r\n")
            assert b"408" in slow.sock.recv(100)


@pytest.mark.slow
def test_silent_connections_make_room(tmp_path):
    with running(tmp_path, words_setting(), max_connections=40, max_per_address=30) as service:
        silent = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(200)]
        try:
            assert service.ask("GET", "/healthz").status == 200
            assert service.release(event("ann", 0)).status == 200
        finally:
            for connection in silent:
                connection.close()


@pytest.mark.slow
def test_a_request_in_progress_is_never_made_to_leave(tmp_path):
    with running(tmp_path, words_setting(), max_connections=5, max_per_address=5) as service:
        busy = socket.create_connection(("127.0.0.1", service.port))
        body = json.dumps(event("ann", 0)).encode()
        head = f"POST /v1/release HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.secret}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        busy.sendall(head.encode() + body[:10])
        time.sleep(0.2)
        silent = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(30)]
        time.sleep(0.2)
        busy.sendall(body[10:])
        assert b" 200 " in busy.recv(200)
        for connection in [busy, *silent]:
            connection.close()


# jumps


@pytest.mark.slow
def test_jumps_are_charged_to_the_rate_and_moved_over_in_one_step(tmp_path):
    with running(tmp_path, words_setting(), gaps="skip", rate=1e7, timeout=60.0) as service:
        service.release(event("ann", 0))
        jumps = [event("ann", 10_001 * k) for k in range(1, 101)]
        assert service.release(*jumps).status == 200
        assert service.ask("GET", "/v1/users/ann/account").json["events"] == 10_001 * 100 + 1
        assert (
            service.ask("GET", "/v1/users/ann/releases?since=10000&limit=3").json["releases"][0]["status"] == "given-up"
        )


@pytest.mark.slow
def test_jumps_are_paid_back_and_have_an_end(tmp_path):
    with running(tmp_path, words_setting(), gaps="skip", rate=1000.0) as service:
        service.release(event("ann", 0))
        many = [event(f"user {k}", 10_000) for k in range(101)]
        assert service.release(*many).reason == "too-large"
        time.sleep(0.5)  # until the rate is whole again
        assert service.release(*(event("ann", 10_001 * k) for k in range(1, 4))).status == 200
        later = service.release(event("bob", 0))
        assert (later.status, later.reason) == (429, "too-many")
        assert int(later.headers["Retry-After"]) > 10


@pytest.mark.slow
def test_the_service_ends_quickly_whatever_jumps_are_under_way(tmp_path):
    process = Process(tmp_path, "--no-auth", "--gaps", "skip", "--rate", "1e9")
    with closing(http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)) as connection:
        body = json.dumps({"events": [event("ann", 10_001 * k) for k in range(1, 101)]})
        connection.request("POST", "/v1/release", body, {"Content-Type": "application/json"})
        time.sleep(0.3)
        assert process.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_large_request_lets_others_go_between_its_parts(tmp_path):
    with running(tmp_path, words_setting(), timeout=60.0) as service:
        service.release(event("ann", 0))
        large = threading.Thread(target=service.release, args=[event("long", k) for k in range(1500)])
        before = service.app.state.service.writer.transactions
        large.start()
        assert [service.release(event("ann", k)).status for k in range(1, 6)] == [200] * 5
        large.join()
        assert service.app.state.service.writer.transactions - before >= 7
        assert service.ask("GET", "/v1/users/long/account").json["events"] == 1500


# the rate


@pytest.mark.slow
def test_a_request_larger_than_the_rate_allows_says_what_to_do(tmp_path):
    with running(tmp_path, words_setting(), rate=100.0) as service:
        answer = service.release(*(event("ann", k) for k in range(201)))
        assert (answer.status, answer.reason) == (413, "too-large")
        assert answer.json["most"] == 200
        assert "at most 200" in answer.json["detail"]
        assert service.release(*(event("ann", k) for k in range(200))).status in (200, 429)


@pytest.mark.slow
def test_figures_over_all_users_hold_up_nobody(tmp_path):
    with running(tmp_path, words_setting(), metrics_refresh=0.0) as service:
        for k in range(3):
            service.release(*(event(f"user {2000 * k + j}", 0) for j in range(2000)))
        text = service.ask("GET", "/metrics").content.decode()
        assert "seqveil_users 6000.0" in text
        service.release(event("ann", 0))
        assert "seqveil_users 6001.0" in service.ask("GET", "/metrics").content.decode()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("service"), words_setting(), max_body=1024) as found:
        yield found


def all_of(line):
    """What comes until the other side closes or, after the first of it, says nothing for a moment."""
    line.settimeout(10)
    found = b""
    try:
        while part := line.recv(65536):
            found += part
            line.settimeout(0.5 if b"close" not in found else 10)
    except (TimeoutError, ConnectionResetError):
        pass
    return found


def is_cut_off(line):
    """Whether the other side closes while it is being sent to."""
    for _ in range(200):
        try:
            line.sendall(b" ")
        except OSError:
            return True
        time.sleep(0.05)
    return False


def posted(service, body, more=b""):
    head = f"POST /v1/release HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.secret}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + more + b"\r\n" + body


HEADS = [
    (b"X: " + b"x" * 40_000 + b"\r\n", b"431"),
    (b"".join(b"X%d: y\r\n" % k for k in range(5000)), b"431"),
    pytest.param(b"X: " + b"x" * 30_000 + b"\r\n", b"200", marks=pytest.mark.slow),
    pytest.param(b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"200", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("head", "status"), HEADS, ids=["40 kB in one", "many", "just below the limit", "to upgrade"])
def test_a_head_that_comes_at_once_is_answered_or_refused(service, head, status):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        found = all_of(line)
    assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [status]


def test_a_body_too_large_is_answered_413_alone_and_the_connection_goes_on(service):
    body = json.dumps({"events": [event("ann", k) for k in range(5000)]}).encode()
    assert len(body) > 200_000
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(posted(service, body))
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = all_of(line)
    statuses = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"413", b"200"]


@pytest.mark.slow
def test_whoever_never_ends_a_body_that_was_refused_is_cut_off(tmp_path):
    with (
        running(tmp_path, words_setting(), max_body=1024, timeout=0.3) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=30) as line,
    ):
        line.sendall(posted(service, b" " * 100_000)[:-50_000])
        assert line.recv(100).startswith(b"HTTP/1.1 413")
        assert is_cut_off(line)


@pytest.mark.parametrize("after", [b"X: " + b"y" * 65_536, b"X: y\r\n" * 10_000])
def test_headers_after_a_body_have_an_end(service, after):
    head = b"POST /v1/release HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(head)
        assert any(refuses(line, after) for _ in range(50))


def refuses(line, content):
    try:
        line.sendall(content)
    except OSError:
        return True
    time.sleep(0.02)
    return False


def test_a_body_in_chunks_of_one_byte_is_taken(service):
    body = json.dumps(event("chunks", 0)).encode()
    head = f"POST /v1/release HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.secret}\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(head.encode() + chunks + b"0\r\nX: y\r\n\r\n")
        assert all_of(line).startswith(b"HTTP/1.1 200")


def test_two_requests_in_one_packet_are_both_answered(service):
    one = posted(service, json.dumps(event("東京 Ærø 🙂", 0)).encode())
    two = posted(service, json.dumps(event("ann\xa0b", 0)).encode(), b"Connection: close\r\n")
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(one + two)
        assert all_of(line).count(b"HTTP/1.1 200") == 2


# large requests


def cut(monkeypatch, size):
    monkeypatch.setattr("seqveil.interfaces.service.parts.PART", size)
    monkeypatch.setattr("seqveil.interfaces.service.parts.PART_SECRETS", size)


@pytest.mark.slow
def test_a_large_request_under_a_budget_is_cut_and_answered_as_a_whole(tmp_path, monkeypatch):
    cut(monkeypatch, 5)
    setting = words_setting(budget=Budget(total=4.0, when_spent="stop"))
    events = [event("ann", k) for k in range(30)] + [event("bob", 0), event("ann", 2), event("ann", 30)]
    with running(tmp_path, setting) as service:
        whole = ref.twin(setting, service.store._store.salt)
        made = whole.release(["ann"] * 30 + ["bob", "ann", "ann"], [0] * 33, [*range(30), 0, 2, 30])
        assert (made.codes < 0).any()
        rows = service.release(*events).json["releases"]
        assert [row["value"] for row in rows] == [WORDS[code] if code >= 0 else None for code in made.codes]
        assert service.app.state.service.writer.transactions > 3
        assert service.release(*events).json["releases"] == [row | {"replayed": True} for row in rows]


@pytest.mark.slow
def test_times_of_all_parts_are_looked_at_before_the_first_is_drawn(tmp_path, monkeypatch):
    cut(monkeypatch, 5)
    setting = words_setting(budget=Budget(per_window=9.0, seconds=60.0, when_spent="stop"))
    events = [event("ann", k) | {"time": float(1000 + k)} for k in range(20)]
    with running(tmp_path, setting) as service:
        answer = service.release(*events[:15], events[15] | {"time": 3.0})
        assert (answer.status, answer.reason, answer.json["position"]) == (409, "time-went-back", 15)
        assert "nothing was released" in answer.json["detail"]
        assert service.ask("GET", "/v1/users/ann/account").status == 404
        assert service.release(*events).status == 200
        assert service.ask("GET", "/v1/users/ann/account").json["events"] == 20


@pytest.mark.slow
def test_declared_secrets_are_released_in_parts_and_their_length_is_looked_at_first(tmp_path, monkeypatch, longest):
    longest(30)
    cut(monkeypatch, 5)
    setting = sv.Policy(secrets=sv.secrets.ever("gym", epsilon=0.5)).on(words_model())
    with running(tmp_path, setting) as service:
        over = service.release(*(event("ann", k) for k in range(31)))
        assert (over.status, over.reason) == (400, "malformed")
        assert "promised for streams of at most 30 events" in over.json["detail"]
        assert "gym" not in over.json["detail"]
        assert service.ask("GET", "/v1/users/ann/account").status == 404
        assert service.release(*(event("ann", k) for k in range(30))).status == 200
        assert service.app.state.service.writer.transactions >= 6


@pytest.mark.slow
def test_what_stands_of_a_request_that_failed_in_the_middle_is_disclosed(tmp_path, monkeypatch):
    cut(monkeypatch, 5)
    with running(tmp_path, words_setting()) as service:
        writer = service.app.state.service.writer
        submit, count = writer.submit, []

        def failing(job):
            count.append(job.size)
            promise = submit(job)
            if len(count) == 3:
                promise = promise.get_loop().create_future()
                promise.set_exception(StoreError("the disk is full"))
            return promise

        monkeypatch.setattr(writer, "submit", failing)
        answer = service.release(*(event("ann", k) for k in range(30)))
        assert (answer.status, answer.reason) == (503, "store")
        assert answer.json["position"] == 10
        assert [row["seq"] for row in answer.json["releases"]] == list(range(10))
        assert "10 events before" in answer.json["detail"]
        again = service.release(*(event("ann", k) for k in range(30)))
        assert again.json["releases"][:10] == [row | {"replayed": True} for row in answer.json["releases"]]


def test_a_look_before_a_release_leaves_nobody_behind(tmp_path):
    setting = words_setting(budget=Budget(per_window=9.0, seconds=60.0, when_spent="stop"))
    with CodeStreams.open(tmp_path / "state.db", setting) as store:
        store.release(["old"], [0], [0], [10.0])
        for times in ([5.0, 6.0], [6.0, 5.0]):
            try:
                store.check(["new", "new"], [0, 1], [0, 1], times)
            except InputError:
                assert times[0] > times[1]
        with pytest.raises(InputError):
            store.check(["old"], [0], [1], [3.0])
        with pytest.raises(OutOfOrder):
            store.check(["old", "new"], [0, 0], [1, 1], [11.0, 11.0])
        assert store.account("new") is None
        assert store.accounts().users == ["old"]
        assert store.release(["new", "old"], [0, 0], [0, 1], [11.0, 11.0]).seqs.tolist() == [0, 1]


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
