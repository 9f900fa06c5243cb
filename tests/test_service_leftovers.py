"""What the last attacker of the service left: heads, bodies refused early, names that a terminal obeys, long requests."""

import http.client
import json
import socket
import time
from contextlib import closing
from urllib.parse import quote

import pytest

from served import running, words_setting


def event(user, seq, value="home"):
    return {"user": user, "seq": seq, "value": value}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("service"), words_setting(), max_body=1024) as found:
        yield found


def all_of(line):
    """What comes until the other side closes or says nothing for a moment."""
    line.settimeout(0.3)
    found = b""
    try:
        while part := line.recv(65536):
            found += part
    except (TimeoutError, ConnectionResetError):
        pass
    return found


def request(service, body, more=b""):
    head = f"POST /v1/release HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.secret}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + more + b"\r\n" + body


def test_a_head_of_40_kb_that_comes_at_once_is_refused(service):
    for head in (b"X: " + b"x" * 40_000 + b"\r\n", b"".join(b"X%d: y\r\n" % k for k in range(5000))):
        with socket.create_connection(("127.0.0.1", service.port), timeout=5) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
            found = all_of(line)
        assert found.startswith(b"HTTP/1.1 431"), found[:60]
        assert found.count(b"HTTP/1.1") == 1


def test_a_head_just_below_the_limit_is_answered(service):
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as line:
        line.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000 + b"\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_too_large_is_answered_413_alone_and_the_connection_goes_on(service):
    body = json.dumps({"events": [event("ann", k) for k in range(5000)]}).encode()
    assert len(body) > 200_000
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as line:
        line.sendall(request(service, body))
        line.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = all_of(line)
    statuses = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"413", b"200"]


def test_whoever_never_ends_a_body_that_was_refused_is_cut_off(tmp_path):
    with (
        running(tmp_path, words_setting(), max_body=1024, timeout=0.3) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=10) as line,
    ):
        line.sendall(request(service, b" " * 100_000)[:-50_000])
        assert line.recv(100).startswith(b"HTTP/1.1 413")
        end = time.monotonic() + 10
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while time.monotonic() < end:
                line.sendall(b" ")
                time.sleep(0.05)


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
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as line:
        line.sendall(one + two)
        found = all_of(line)
    assert found.count(b"HTTP/1.1 200") == 2


def test_a_connection_is_kept_after_a_refusal(service):
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)) as line:
        for _ in range(2):
            line.request("GET", "/v1/model")
            answer = line.getresponse()
            assert answer.status == 401
            answer.read()
