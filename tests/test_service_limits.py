"""No one who can merely connect, or has a token for a user of their own, holds up the others."""

import http.client
import json
import signal
import socket
import threading
import time
from contextlib import closing, contextmanager
from functools import partial

import pytest

from seqveil.client import Client
from seqveil.interfaces.service import tokens
from served import Process, event, running, words_setting

PATIENCE = 8.0  # seconds that nobody here may be made to wait, on a busy machine too: with a stall it was tens of them
WORK = 0.5  # seconds of processor time that an answer may take where nothing else is going on


def seconds(act, clock=time.perf_counter):
    begin = clock()
    found = act()
    return clock() - begin, found


@contextmanager
def at_work(threads, ending):
    """Threads that run as long as the block, and hear of its end."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


@contextmanager
def attackers(port, count, act):
    """Threads that do something with a connection over and over."""
    ending = threading.Event()

    def attack():
        while not ending.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                    act(connection, ending)
            except OSError:
                pass

    threads = [threading.Thread(target=attack) for _ in range(count)]
    with at_work(threads, ending):
        yield


@contextmanager
def crowd(*acts):
    """Threads that each do a thing over and over; what fails in one of them fails the test."""
    ending, failures = threading.Event(), []

    def work(act):
        try:
            while not ending.is_set():
                act()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[act]) for act in acts]
    with at_work(threads, ending):
        yield
    assert failures == []


def endless_header(connection, ending):
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
    while not ending.is_set():
        connection.sendall(b"x" * 65536)
        time.sleep(0.001)


@pytest.mark.slow
def test_health_answers_while_headers_never_end(tmp_path):
    with running(tmp_path, words_setting()) as service, attackers(service.port, 4, endless_header):
        time.sleep(0.5)
        for _ in range(5):
            took, answer = seconds(lambda: service.ask("GET", "/healthz"))
            assert answer.status == 200
            assert took < PATIENCE


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
            took, answer = seconds(lambda: service.ask("GET", "/healthz"))
            assert (answer.status, took < PATIENCE) == (200, True)
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
        took, answer = seconds(lambda: service.release(*jumps))
        assert answer.status == 200
        assert took < 3 * PATIENCE
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
        took, code = seconds(lambda: process.end(signal.SIGTERM))
    assert code == 0
    assert took < 3 * PATIENCE


# reads and large requests


@pytest.mark.slow
def test_readers_of_a_long_stream_hold_up_nobody(tmp_path):
    with running(tmp_path, words_setting()) as service:
        for k in range(2):
            service.release(*(event("long", 1000 * k + j) for j in range(1000)))

        def read():
            assert service.ask("GET", "/v1/users/long/releases?since=100&limit=10").status == 200

        with crowd(*[read] * 8):
            times = [seconds(lambda k=k: service.release(event("ann", k)))[0] for k in range(30)]
        assert sorted(times)[len(times) // 2] < PATIENCE / 4


@pytest.mark.slow
def test_a_large_request_lets_others_go_between_its_parts(tmp_path):
    with running(tmp_path, words_setting(), timeout=60.0) as service:
        service.release(event("ann", 0))
        large = threading.Thread(target=service.release, args=[event("long", k) for k in range(1500)])
        before = service.app.state.service.writer.transactions
        large.start()
        times = [seconds(lambda k=k: service.release(event("ann", k)))[0] for k in range(1, 6)]
        large.join()
        assert service.app.state.service.writer.transactions - before >= 7
        assert max(times) < PATIENCE
        assert service.ask("GET", "/v1/users/long/account").json["events"] == 1500


@pytest.mark.slow
def test_a_part_that_is_refused_says_what_stands(tmp_path):
    with running(tmp_path, words_setting(), group=10) as service:
        events = [event("ann", k) for k in range(25)] + [event("ann", 30)]
        answer = service.release(*events)
        assert (answer.status, answer.reason) == (409, "out-of-order")
        assert service.ask("GET", "/v1/users/ann/account").status == 404  # the order is looked at before anything


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
def test_the_client_splits_what_is_too_large(tmp_path):
    with running(tmp_path, words_setting(), rate=100.0) as service, Client(service.url, service.secret) as client:
        made = client.release_many([("ann", k, "home") for k in range(201)])
        assert [each.seq for each in made] == list(range(201))


# figures, order, patterns


def test_a_pattern_is_matched_in_linear_time():
    token = tokens.Token("a", "", (), user="*-*-*-*-prod")
    took, found = seconds(lambda: token.covers("-" * 100_000), time.process_time)
    assert (found, took < WORK) == (False, True)
    assert token.covers("a-b-c-d-prod")
    assert token.covers("---prod") is False
    assert token.covers("----prod") is True


@pytest.mark.parametrize("pattern", ["", "*", "**", "a*", "*a", "a*b*a", "*ab*ba*", "a*a", "ab"])
def test_a_pattern_is_what_a_regular_expression_says(pattern):
    import itertools
    import re

    token = tokens.Token("a", "", (), user=pattern)
    same = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    for size in range(6):
        for letters in itertools.product("ab*", repeat=size):
            name = "".join(letters)
            assert token.covers(name) == bool(same.fullmatch(name)), name


@pytest.mark.slow
def test_those_who_send_out_of_order_hold_up_nobody(tmp_path):
    with running(tmp_path, words_setting()) as service:
        service.release(*(event(f"user {k}", 0) for k in range(2000)))

        def wrong(who):
            assert service.release(event(who, 100)).status == 409

        with crowd(*(partial(wrong, f"user {k}") for k in range(8))):
            times = [seconds(lambda k=k: service.release(event("ann", k)))[0] for k in range(20)]
        assert sorted(times)[len(times) // 2] < PATIENCE / 4


@pytest.mark.slow
def test_figures_over_all_users_hold_up_nobody(tmp_path):
    with running(tmp_path, words_setting(), metrics_refresh=0.0) as service:
        for k in range(3):
            service.release(*(event(f"user {2000 * k + j}", 0) for j in range(2000)))
        text = service.ask("GET", "/metrics").content.decode()
        assert "seqveil_users 6000.0" in text
        took, _ = seconds(lambda: service.ask("GET", "/metrics"), time.process_time)
        assert took < WORK
        service.release(event("ann", 0))
        assert "seqveil_users 6001.0" in service.ask("GET", "/metrics").content.decode()
