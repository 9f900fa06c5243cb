"""The client against real services: retries never release twice, refusals come through, receivers decode live."""

import json
import math
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.receiver import LiveDecoder
from seqveil import decode_stream
from seqveil.client import Client, Event, ServiceError, Unreachable
from seqveil.core.errors import InputError
from seqveil.core.times import seconds
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.interfaces.client import _body
from seqveil.interfaces.service.messages import SymbolEvent
from seqveil.receiver.decode import decode_paths
from served import WORDS, running, words_model, words_setting

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("served"), words_setting()) as found:
        yield found


@pytest.fixture
def client(service):
    with Client(service.url, service.secret, attempts=4, backoff=0.01) as found:
        yield found


@pytest.mark.slow
def test_releases_accounts_and_pages(client, service):
    one = client.release("ann", 0, "home")
    assert (one.user, one.seq, one.status, one.epsilon, one.replayed) == ("ann", 0, "released", 0.7, False)
    raw = [Event("ann", k, WORDS[k % 4]) for k in range(1, 25)]
    many = client.release_many(iter(raw), at_once=10)
    assert [made.seq for made in many] == list(range(1, 25))
    assert client.release("ann", 0, "gym").value == client.release("ann", 0, "work").value == one.value
    disclosed = list(client.releases("ann"))
    assert [made.value for made in disclosed] == [one.value, *(made.value for made in many)]
    assert [made.seq for made in client.releases("ann", since=20)] == list(range(20, 25))
    account = client.account("ann")
    stored = service.store.account("ann")
    assert (account.events, account.leakage, account.epsilon_spent) == (25, stored.leakage, stored.epsilon_spent)
    assert client.release_many([]) == []
    assert client.release_many([("a/b ?#%", 0, "home")])[0].status == "released"
    assert client.account("a/b ?#%").events == 1


@pytest.mark.slow
def test_a_long_stream_is_read_page_by_page(client):
    client.release_many([("long", k, "home") for k in range(2100)])
    assert [made.seq for made in client.releases("long")] == list(range(2100))


def test_the_model_is_fetched_and_checked(client):
    assert client.model().fingerprint == words_model().fingerprint
    assert client.setting().to_dict() == words_setting().to_dict()


def test_refusals_come_through_and_are_not_repeated(client, service):
    before = service.server.server_state.total_requests
    with pytest.raises(ServiceError, match="out-of-order") as caught:
        client.release_many([("bob", 0, "zq-secret"), ("bob", 2, "zq-secret")])
    assert (caught.value.status, caught.value.position) == (409, 1)
    assert "zq-secret" not in str(caught.value)
    with pytest.raises(ServiceError, match="out-of-order") as caught:
        client.release("bob", 5, "home")
    assert caught.value.next == 0
    with Client(service.url, "sv_no_token") as stranger, pytest.raises(ServiceError, match="401 unauthorised"):
        stranger.account("ann")
    with pytest.raises(ServiceError) as caught:
        client.account("nobody at all")
    assert caught.value.reason == "not-found"
    assert service.server.server_state.total_requests == before + 4


def test_what_a_sensor_failed_to_say_is_released_like_the_rest(client):
    values = [float("nan"), None, np.float64("inf"), np.float32("nan"), object(), {1, 2}, b"home", "home"]
    made = [client.release("silent", seq, value) for seq, value in enumerate(values)]
    assert {(each.epsilon, each.value in WORDS) for each in made} == {(0.7, True)}


def test_what_is_too_large_is_sent_in_parts_and_a_refusal_tells_of_all_of_them(tmp_path):
    with running(tmp_path, words_setting(), rate=100.0) as service, Client(service.url, service.secret) as client:
        assert [each.seq for each in client.release_many([("ann", k, "home") for k in range(201)])] == list(range(201))
        with pytest.raises(ServiceError) as refused:
            client.release_many([("bob", k, "home") for k in [*range(7), 9]], at_once=3)
    assert refused.value.position == 7
    assert [made.seq for made in refused.value.releases] == list(range(6))


class Dropping:
    """A relay that hangs up at some requests: before the service sees them, or after it has answered."""

    def __init__(self, port, plan):
        self._port, self._plan, self.seen = port, list(plan), []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                self._relay(caller, self._plan.pop(0) if self._plan else "pass")

    def _relay(self, caller, what):
        self.seen.append(what)
        if what == "before":
            return
        request = b""
        while b"\r\n\r\n" not in request or len(request.split(b"\r\n\r\n", 1)[1]) < _length(request):
            request += caller.recv(65536)
        with socket.create_connection(("127.0.0.1", self._port)) as service:
            service.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            answer = b"".join(iter(lambda: service.recv(65536), b""))
        if what == "half":
            caller.sendall(answer[: len(answer) - 20])
        elif what == "pass":
            caller.sendall(answer)

    def close(self):
        self._listener.close()


def _length(request):
    head = request.split(b"\r\n\r\n", 1)[0].lower()
    return int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0


def test_a_dropped_connection_is_retried_and_nothing_is_drawn_twice(service):
    relay = Dropping(service.port, ["before", "after", "half", "pass", "after", "pass"])
    with Client(relay.url, service.secret, attempts=6, backoff=0.01, timeout=20) as client:
        first = client.release("dropped", 0, "home")
        assert first.replayed  # the service had released it when the answer was lost
        assert relay.seen == ["before", "after", "half", "pass"]
        second = client.release_many([("dropped", k, "gym") for k in range(1, 4)])
        assert [made.replayed for made in second] == [True] * 3
    relay.close()
    assert service.store.account("dropped").releases == 4
    assert [WORDS[s.code] for s in service.store.releases("dropped")] == [first.value, *(made.value for made in second)]


def test_a_service_that_is_gone_is_disclosed_after_all_attempts(service):
    relay = Dropping(service.port, ["before"] * 10)
    with (
        Client(relay.url, service.secret, attempts=3, backoff=0.001) as client,
        pytest.raises(Unreachable, match="after 3 attempts"),
    ):
        client.release("ann", 0, "home")
    assert relay.seen == ["before"] * 3
    relay.close()


@pytest.mark.slow
def test_a_rate_limit_is_waited_for(tmp_path):
    with running(tmp_path, words_setting()) as service:
        slow = service.token("release", rate=0.25)  # the second must wait, however busy the machine is
        with Client(service.url, slow, backoff=0.01) as client:
            made = [client.release("slow", k, "home") for k in range(2)]
        assert [each.seq for each in made] == [0, 1]
        assert service.store.account("slow").releases == 2
        text = service.ask("GET", "/metrics").content
        assert b'seqveil_refusals_total{reason="too-many"}' in text


def test_raw_symbols_do_not_cross_a_network_unprotected():
    for url in ("http://example.org", "http://10.0.0.1:8713", "ftp://127.0.0.1", "127.0.0.1:8713", "http://"):
        with pytest.raises(InputError):
            Client(url)
    secret = "sv_zq_secret"
    assert secret not in repr(Client("http://example.org", secret, insecure=True))
    assert repr(Client("https://user@example.org/base/")).endswith("/base)")


SETTINGS = {
    "symbols": words_setting(),
    "stop": words_setting(budget=Budget(total=3.0, when_spent="stop")),
    "seconds": words_setting(budget=Budget(per_window=1.0, seconds=4.0)),
    "batches": Policy(epsilon=2.0, batch=3, mechanism="tree").on(words_model()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_live_decoder_knows_what_the_offline_one_does(tmp_path, kind):
    setting = SETTINGS[kind]
    raw = [WORDS[k] for k in np.random.default_rng(5).integers(0, 4, 24)]
    with running(tmp_path, setting) as service, Client(service.url, service.secret) as client:
        if kind == "batches":
            client.release_batches([("ann", k, raw[3 * k : 3 * k + 3]) for k in range(8)])
        else:
            client.release_many([("ann", k, value, float(k)) for k, value in enumerate(raw)])
        disclosed = list(client.releases("ann"))
        decoder = LiveDecoder(client.setting())
    distributions = np.concatenate([decoder.take(release) for release in disclosed])
    if kind == "batches":
        expected = decode_paths(setting, [release.path for release in disclosed], 24, smooth=False)
    else:
        values = [release.value for release in disclosed]
        times = [float(k) for k in range(24)] if kind == "seconds" else None
        expected = decode_stream(setting.model, values, setting.policy, times=times, smooth=False)
    assert np.allclose(distributions, expected)


@pytest.mark.slow
def test_the_receiver_runs(service, client):
    client.release_many([("tracked", k, WORDS[k % 4]) for k in range(6)])
    options = ["--count", "6", "--token", service.secret]
    command = [sys.executable, "examples/receiver.py", service.url, "tracked", *options]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert len(lines) == 6
    assert all("released" in line and "→" in line for line in lines)


class Odd(float):
    """A float of somebody's own."""


HELD = [
    *(1, 1.5, "a", "", True, None, (1, 2), [1.5, 2], np.int64(3), np.float32(0.5), np.array([1, 2]), Odd(2.0), 2**60)
]
NOT_HELD = [
    *(math.nan, math.inf, np.float32("nan"), np.float64("-inf"), Odd("nan"), Decimal(1), b"a", {1}, object(), 1j),
    *(datetime(2024, 1, 1), np.datetime64("2024-01-01"), "\ud800", 10**5000, {"a": 1}, lambda: 1),
]


@given(values=st.lists(st.sampled_from(HELD + NOT_HELD), min_size=1, max_size=5))
def test_the_client_sends_any_value_as_json_or_as_null(values):
    for event, name in ((Event("u", 0, values[0]), "value"), (Event("u", 0, values), "values")):
        row = json.loads(_body([event], name))["events"][0]
        sent = row[name] if name == "values" else [row[name]]
        for value, disclosed in zip(values, sent, strict=name == "values"):
            assert (disclosed is None) == (value is None or any(value is each for each in NOT_HELD))
    part = json.loads(_body([Event("u", 0, np.array([1.0, math.nan]))], "value"))["events"][0]["value"]
    assert part == [1.0, None]


@pytest.mark.parametrize("seq", [13.9, 13.0, "0", True, None, np.float64(1), np.True_, Decimal(1)])
def test_the_client_refuses_a_sequence_number_that_is_not_whole(seq):
    with pytest.raises(InputError, match="whole") as refused:
        _body([Event("u", seq, "zq-secret")], "value")
    assert "zq-secret" not in str(refused.value)


def test_the_client_sends_times_and_users_as_the_service_takes_them():
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    times = [5, np.float32(1.5), "2024-05-01T12:00:00Z", noon, noon.replace(tzinfo=None), np.datetime64(1, "s")]
    sent = json.loads(_body([Event(7, np.int64(k), "a", time) for k, time in enumerate(times)], "value"))["events"]
    assert [row["user"] for row in sent] == ["7"] * len(times)
    assert [row["seq"] for row in sent] == list(range(len(times)))
    for row, expected in zip(sent, [5.0, 1.5, noon.timestamp(), noon.timestamp(), noon.timestamp(), 1.0], strict=True):
        stamp = SymbolEvent.model_validate_json(json.dumps(row)).time
        assert seconds([stamp]).tolist() == [expected]
    for user in (True, None, 1.5, b"u"):
        with pytest.raises(InputError, match="user"):
            _body([Event(user, 0, "a")], "value")
    for time in (True, math.nan, b"x", [1]):
        with pytest.raises(InputError, match="time"):
            _body([Event("u", 0, "a", time)], "value")
