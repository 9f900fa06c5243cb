"""The client against real services: retries never release twice, refusals come through, receivers decode live."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from examples.receiver import LiveDecoder
from seqveil import decode_stream
from seqveil.client import Client, Event, ServiceError, Unreachable
from seqveil.core.errors import InputError
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.receiver.decode import decode_paths
from served import WORDS, running, words_model, words_setting

ROOT = Path(__file__).parent.parent


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
    told = list(client.releases("ann"))
    assert [made.value for made in told] == [one.value, *(made.value for made in many)]
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
    assert client.model() is client.model()
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


def test_numbers_of_numpy_are_numbers(tmp_path):
    model = type(words_model())(words_model().prior, np.full((4, 4), 0.25))
    with (
        running(tmp_path, Policy(epsilon=1.0, mechanism="balanced").on(model)) as service,
        Client(service.url, service.secret) as client,
    ):
        assert client.release("ann", np.int64(0), np.int64(3)).value in range(4)


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


def test_a_service_that_is_gone_is_told_after_all_attempts(service):
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
        service.look_again()
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
        told = list(client.releases("ann"))
        decoder = LiveDecoder(client.setting())
    laws = np.concatenate([decoder.take(release) for release in told])
    if kind == "batches":
        expected = decode_paths(setting, [release.path for release in told], 24, smooth=False)
    else:
        values = [release.value for release in told]
        times = [float(k) for k in range(24)] if kind == "seconds" else None
        expected = decode_stream(setting.model, values, setting.policy, times=times, smooth=False)
    assert np.allclose(laws, expected)


@pytest.mark.slow
def test_the_receiver_runs(service, client):
    client.release_many([("watched", k, WORDS[k % 4]) for k in range(6)])
    command = [
        sys.executable,
        "examples/receiver.py",
        service.url,
        "watched",
        "--count",
        "6",
        "--token",
        service.secret,
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert len(lines) == 6
    assert all("released" in line and "→" in line for line in lines)
