"""What the last attacker of the service left: heads, bodies refused early, names a terminal obeys, long requests."""

import http.client
import json
import socket
import time
from contextlib import closing
from urllib.parse import quote

import pytest

import reference_streams as ref
import seqveil as sv
from seqveil import Budget
from seqveil.client import Client, ServiceError
from seqveil.core.errors import InputError
from seqveil.engine.streams import OutOfOrder, StoreError, Streams
from served import WORDS, event, running, words_model, words_setting


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


def request(service, body, more=b""):
    head = f"POST /v1/release HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.secret}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + more + b"\r\n" + body


def test_a_head_of_40_kb_that_comes_at_once_is_refused(service):
    for head in (b"X: " + b"x" * 40_000 + b"\r\n", b"".join(b"X%d: y\r\n" % k for k in range(5000))):
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
            found = all_of(line)
        assert found.startswith(b"HTTP/1.1 431"), found[:60]
        assert found.count(b"HTTP/1.1") == 1


def test_a_head_just_below_the_limit_is_answered(service):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000 + b"\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_too_large_is_answered_413_alone_and_the_connection_goes_on(service):
    body = json.dumps({"events": [event("ann", k) for k in range(5000)]}).encode()
    assert len(body) > 200_000
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(request(service, body))
        line.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = all_of(line)
    statuses = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"413", b"200"]


@pytest.mark.slow
def test_whoever_never_ends_a_body_that_was_refused_is_cut_off(tmp_path):
    with (
        running(tmp_path, words_setting(), max_body=1024, timeout=0.3) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=30) as line,
    ):
        line.sendall(request(service, b" " * 100_000)[:-50_000])
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


@pytest.mark.slow
def test_a_request_to_upgrade_is_answered_like_any_other(service):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert all_of(line).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", ["a\x85b", "a\x9b31m", "a\u2028b", "a\x7f", "a\x00b"])
def test_names_with_control_characters_of_any_kind_are_refused(service, name):
    answer = service.release(event(name, 0))
    assert (answer.status, answer.reason) == (400, "malformed")
    answer = service.ask("GET", f"/v1/users/{quote(name)}/account")
    assert (answer.status, answer.reason) == (400, "malformed")


def test_names_of_all_scripts_are_taken(service):
    for name in ("Ærøskøbing", "東京", "ann\xa0b", "🙂"):
        assert service.release(event(name, 0)).status == 200


def test_two_requests_in_one_packet_are_both_answered(service):
    one = request(service, json.dumps(event("pip", 0)).encode())
    two = request(service, json.dumps(event("pip", 1)).encode(), b"Connection: close\r\n")
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(one + two)
        found = all_of(line)
    assert found.count(b"HTTP/1.1 200") == 2


def test_a_connection_is_kept_after_a_refusal(service):
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)) as line:
        for _ in range(2):
            line.request("GET", "/v1/model")
            answer = line.getresponse()
            assert answer.status == 401
            answer.read()


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
        assert (answer.status, answer.reason) == (409, "time-went-back")
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
        assert service.release(*(event("ann", k) for k in range(31))).status == 400
        assert service.ask("GET", "/v1/users/ann/account").status == 404
        assert service.release(*(event("ann", k) for k in range(30))).status == 200
        assert service.app.state.service.writer.transactions >= 6


@pytest.mark.slow
def test_what_stands_of_a_request_that_failed_in_the_middle_is_told(tmp_path, monkeypatch):
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


def test_the_client_tells_places_and_releases_of_all_its_requests(tmp_path):
    with (
        running(tmp_path, words_setting(), rate=100.0) as service,
        Client(service.url, service.secret) as client,
        pytest.raises(ServiceError) as refused,
    ):
        client.release_many([("ann", k, "home") for k in [*range(7), 9]], at_once=3)
    assert refused.value.position == 7
    assert [made.seq for made in refused.value.releases] == list(range(6))


def test_a_look_before_a_release_leaves_nobody_behind(tmp_path):
    setting = words_setting(budget=Budget(per_window=9.0, seconds=60.0, when_spent="stop"))
    with Streams.open(tmp_path / "state.db", setting) as store:
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
