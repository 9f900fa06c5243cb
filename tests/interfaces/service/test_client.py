"""The client against real services: retries never release twice, refusals come through, receivers decode live."""

import math
import socket
import socketserver
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
from seqveil.interfaces.service.messages import Problem, sent_events
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
    client.release_many([("long", k, "home") for k in range(2100)])
    assert [made.seq for made in client.releases("long")] == list(range(2100))
    assert client.release_many([]) == []
    assert client.release_many([("a/b ?#%", 0, "home")])[0].status == "released"
    assert client.account("a/b ?#%").events == 1


def test_refusals_come_through_and_are_not_repeated(client, service):
    before = service.server.server_state.total_requests
    with pytest.raises(ServiceError, match="out-of-order") as caught:
        client.release_many([("bob", 0, "zq-secret"), ("bob", 2, "zq-secret")])
    assert (caught.value.status, caught.value.position) == (409, 1)
    assert service.store.account("bob") is None  # all or none
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


@pytest.mark.slow
def test_what_is_too_large_is_sent_in_parts_and_a_refusal_tells_of_all_of_them(tmp_path):
    with running(tmp_path, words_setting()) as service, Client(service.url, service.secret) as client:
        assert [each.seq for each in client.release_many([("ann", k, "home") for k in range(201)])] == list(range(201))
        with pytest.raises(ServiceError) as refused:
            client.release_many([("bob", k, "home") for k in [*range(7), 9]], at_once=3)
    assert refused.value.position == 7
    assert [made.seq for made in refused.value.releases] == list(range(6))


class Losing(socketserver.BaseRequestHandler):
    """Hands a request on and hangs up: the answer is lost."""

    seen = 0

    def handle(self):
        Losing.seen += 1
        request = self.request.recv(1 << 16)
        while not request.endswith(b"}]}"):
            request += self.request.recv(1 << 16)
        with socket.create_connection(self.server.service) as service:
            service.sendall(request)
            service.recv(1)


@pytest.mark.slow
def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_is_drawn_twice(service):
    with socketserver.TCPServer(("127.0.0.1", 0), Losing) as relay:
        relay.service = ("127.0.0.1", service.port)
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        with (
            Client(f"http://127.0.0.1:{relay.server_address[1]}", service.secret, attempts=3, backoff=0.001) as client,
            pytest.raises(Unreachable, match="after 3 attempts"),
        ):
            client.release("dropped", 0, "home")
        relay.shutdown()
    assert Losing.seen == 3
    with Client(service.url, service.secret) as client:
        assert client.release("dropped", 0, "gym").replayed
    assert service.store.account("dropped").releases == 1


def test_raw_symbols_do_not_cross_a_network_unprotected():
    for url in ("http://example.org", "http://10.0.0.1:8713", "ftp://127.0.0.1", "127.0.0.1:8713", "http://"):
        with pytest.raises(InputError):
            Client(url)
    secret = "sv_zq_secret"
    assert secret not in repr(Client("http://example.org", secret, insecure=True))


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
            client.release_many([("ann", k, raw[3 * k : 3 * k + 3]) for k in range(8)])
        else:
            client.release_many([("ann", k, value, float(k)) for k, value in enumerate(raw)])
        disclosed = list(client.releases("ann"))
        decoder = LiveDecoder(setting)
    distributions = np.concatenate([decoder.take(release) for release in disclosed])
    if kind == "batches":
        expected = decode_paths(setting, [release.path for release in disclosed], 24, smooth=False)
    else:
        values = [release.value for release in disclosed]
        times = [float(k) for k in range(24)] if kind == "seconds" else None
        expected = decode_stream(setting.model, values, setting.policy, times=times, smooth=False)
    assert np.allclose(distributions, expected)


@pytest.mark.slow
def test_the_receiver_runs(service, client, tmp_path):
    words_model().save(tmp_path / "m.model")
    words_setting().policy.save(tmp_path / "policy.toml")
    client.release_many([("tracked", k, WORDS[k % 4]) for k in range(6)])
    options = ["--count", "6", "--token", service.secret, "--model", tmp_path / "m.model"]
    options += ["--policy", tmp_path / "policy.toml"]
    command = [sys.executable, "examples/receiver.py", service.url, "tracked", *options]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert len(lines) == 6
    assert all("released" in line and "→" in line for line in lines)


class Odd(float):
    """A float of somebody's own."""


HELD = [
    *(1, 1.5, "a", "", True, None, (1, 2), [1.5, 2], np.int64(3), np.float32(0.5), np.array([1, 2]), Odd(2.0), 2**60)
]
NUMBERS = np.array([1.0, math.nan])
NOT_HELD = [
    *(math.nan, math.inf, np.float32("nan"), np.float64("-inf"), Odd("nan"), Decimal(1), b"a", {1}, object(), 1j),
    *(datetime(2024, 1, 1), np.datetime64("2024-01-01"), "\ud800", 10**5000, {"a": 1}, lambda: 1),
]


@given(values=st.lists(st.sampled_from(HELD + NOT_HELD), min_size=1, max_size=5))
def test_the_client_sends_any_value_as_json_or_as_null(values):
    one, batch, part = sent_events(
        _body([Event("u", k, v) for k, v in enumerate((values[0], values, NUMBERS))]), None
    ).values
    for value, disclosed in zip([*values, values[0]], [*batch, one], strict=True):
        assert (disclosed is None) == (value is None or any(value is each for each in NOT_HELD))
    assert part == [1.0, None]


def test_the_client_sends_times_and_users_as_the_service_takes_them():
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    times = [5, np.float32(1.5), "2024-05-01T12:00:00Z", noon, noon.replace(tzinfo=None), np.datetime64(1, "s")]
    sent = sent_events(_body([Event(7, np.int64(k), "a", time) for k, time in enumerate(times)]), None)
    assert (sent.users, sent.seqs) == (["7"] * len(times), list(range(len(times))))
    for stamp, expected in zip(sent.times, [5.0, 1.5, *[noon.timestamp()] * 3, 1.0], strict=True):
        assert seconds([stamp]).tolist() == [expected]
    for user in (True, None, 1.5, b"u"):
        with pytest.raises(InputError, match="user"):
            _body([Event(user, 0, "a")])
    for time in (True, [1]):
        with pytest.raises(Problem, match="expected time to be a number"):
            sent_events(_body([Event("u", 0, "a", time)]), None)
