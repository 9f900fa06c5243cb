"""Who gets in, and what gets out: tokens, limits, refusals to serve unsafely, and no private data in any trace."""

import json
import shutil
import socket
import ssl
import subprocess
import time

import numpy as np
import pytest

from reference import streams as ref
from seqveil.client import Client, Unreachable
from seqveil.core.alphabet import Bins
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands.serve import ServeOptions
from seqveil.interfaces.service import tokens
from seqveil.interfaces.service.limits import PENALTY
from served import WORDS, Process, ask, event, running, words_model, words_setting


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("served"), words_setting(), request=1.0, one_token=4) as found:
        found.release(event("ann", 0), event("bob", 0))
        yield found


PATHS = {
    "release": ("POST", "/v1/release", {"events": [event("ann", 0)]}),
    "read": ("GET", "/v1/users/ann", None),
    "metrics": ("GET", "/metrics", None),
    "admin": ("DELETE", "/v1/users/bob", None),
}


@pytest.mark.parametrize("scope", PATHS)
def test_each_address_needs_its_own_scope_and_an_admin_has_all(service, scope):
    secret = service.token(scope)
    for other, request in PATHS.items():
        answer = service.ask(*request, token=secret)
        assert answer.status == 200 if scope in (other, "admin") else answer.reason == "forbidden", other


@pytest.mark.parametrize(("method", "path", "body"), PATHS.values(), ids=PATHS)
def test_without_a_good_token_nothing_is_answered(service, method, path, body):
    good = service.secret
    wrong = ["", "x", good[:-1], good + "x", good.upper(), good.replace("sv_", "sv-"), "sv__", "sv_é_" + "x" * 43]
    for secret in wrong:
        headers = {"Authorization": f"Bearer {secret}".encode()}
        answer = service.ask(method, path, body, token=None, headers=headers)
        assert (answer.status, answer.reason) == (401, "unauthorised")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for headers in ({}, {"Authorization": f"Basic {good}"}, {"Authorization": good}, {"X-Token": good}):
        assert service.ask(method, path, body, token=None, headers=headers).status == 401
    assert service.ask(method, f"{path}?token={good}", body, token=None).status == 401


def test_a_device_writes_and_reads_its_own_stream_alone(service):
    own = service.token("release", "read", user="ann")
    assert service.release(event("ann", 1), token=own).status == 200
    answer = service.release(event("ann", 2), event("bob", 1), token=own)
    assert (answer.status, answer.reason, answer.json["position"]) == (403, "forbidden", 1)
    assert service.store.account("ann").events == 2
    for user in ("bob", "anna", "an", "Ann", "ann%00", "nobody", "ann%2F..%2Fbob"):
        assert service.ask("GET", f"/v1/users/{user}", token=own).status in (400, 403)
    assert service.ask("GET", "/v1/users/ann", token=own).status == 200
    ward = service.token("release", user="ward-3/*")
    assert service.release(event("ward-3/bed", 0), token=ward).status == 200
    assert service.release(event("ward-4/bed", 0), token=ward).status == 403


def test_a_revoked_token_is_no_good_and_a_damaged_file_lets_nobody_in(tmp_path):
    with running(tmp_path, words_setting()) as service:
        file = tmp_path / "tokens.json"
        secret = service.token("release")
        assert service.release(event("ann", 0), token=secret).status == 200
        tokens.revoke(file, secret.split("_")[1])
        assert service.release(event("ann", 1), token=secret).status == 401
        assert service.release(event("ann", 1)).status == 200
        file.chmod(0o666)
        refused = service.release(event("ann", 2))  # said aloud: it is not the sender's fault
        assert (refused.status, refused.reason) == (503, "tokens")
        assert service.ask("GET", "/readyz", token=None).reason == "tokens"
        assert service.ask("GET", "/healthz", token=None).status == 200
        file.chmod(0o600)
        assert service.release(event("ann", 2)).status == 200


def test_a_body_is_not_read_before_the_token(service):
    with socket.create_connection(("127.0.0.1", service.port)) as line:
        line.sendall(b"POST /v1/release HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        line.sendall(b"Content-Length: 1000000\r\n\r\n")
        line.settimeout(20)
        assert line.recv(100).startswith(b"HTTP/1.1 401")


def test_without_tokens_only_this_machine_is_answered(tmp_path):
    with running(tmp_path, words_setting(), auth=False) as service:
        assert service.release(event("ann", 0)).status == 200
        for host in ("evil.example", "10.0.0.1", f"evil.example:{service.port}", ""):
            answer = service.release(event("ann", 1), headers={"Host": host})
            assert answer.status == 403
        form = {"Content-Type": "text/plain"}  # what a page in a browser can send without asking
        assert service.release(event("ann", 1), headers=form).status == 415
        assert service.store.account("ann").events == 1


UNSAFE = {
    "no tokens": ({}, "without tokens anyone"),
    "no tokens on a network": ({"no_auth": True, "host": "0.0.0.0"}, "loopback address alone"),
    "no TLS on a network": ({"tokens": "t", "host": "0.0.0.0"}, "unprotected"),
    "half of TLS": ({"tokens": "t", "tls_cert": "c"}, "needs both"),
    "both": ({"tokens": "t", "no_auth": True}, "instead, on a loopback address"),
    "no certificate": (
        {"no_auth": True, "tls_cert": "/no.pem", "tls_key": "/no.pem"},
        "no.pem: expected a certificate",
    ),
}


@pytest.mark.parametrize(("options", "message"), UNSAFE.values(), ids=UNSAFE.keys())
def test_an_unsafe_service_does_not_start(options, message, tmp_path, capfd):
    words_model().save(tmp_path / "m")
    (tmp_path / "p.toml").write_text("epsilon = 1.0")
    (tmp_path / "no.pem").write_text("zq-nothing")
    named = {"model": "m", "policy": "p.toml", "state": "s.db"}
    given = ["serve", *(f"--{name}={tmp_path / file}" for name, file in named.items())]
    for name, value in options.items():
        given += [f"--{name.replace('_', '-')}", *([] if value is True else [value.replace("/", f"{tmp_path}/")])]
    assert main(given) == 2
    said = capfd.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "s.db").exists()
    ServeOptions(tokens="t", host="0.0.0.0", insecure=True).check()


@pytest.mark.slow
def test_planted_values_are_in_no_log_answer_metric_or_file(tmp_path, capsys, monkeypatch):
    """Raw numbers with many digits, of which a release shows the bin's middle alone; and text that is no number."""
    model = MarkovModel(*ref.random_chain(np.random.default_rng(1), 4), alphabet=Bins([0, 1, 2, 3, 4]))
    planted = ["1.2345678912", "3.9876543219", "zq-secret-77"]
    with running(tmp_path, Policy(epsilon=0.5, mechanism="balanced").on(model)) as service:
        good = (("ann", 0, 1.2345678912), ("bob", 0, 3.9876543219), ("ann", 1, 2.5), ("ann", 2, "zq-secret-77"))
        answers = [service.release(event(*each)) for each in good]
        late, wrong = event("ann", 9, 1.2345678912), event("ann", "zq-secret-77", 1.2345678912)
        odd = event("ann", 3, 99.2345678912) | {"zq-secret-77": 1}
        answers += [service.release(*bad) for bad in ([late], [odd], [event("ann", 3, 1.2345678912), wrong])]
        bodies = ({"events": "zq-secret-77"}, {"zq-secret-77": [1.2345678912]})
        answers += [service.ask("POST", "/v1/release", body) for body in bodies]
        answers.append(service.ask("POST", "/v1/release", b'{"events": [{"value": 1.2345678912, zq-secret-77'))
        answers.append(service.ask("POST", "/zq-secret-77", event("ann", 2, 1.2345678912)))
        answers.append(service.ask("GET", "/v1/users/ann?since=zq-secret-77"))
        monkeypatch.setattr(service.app, "wording", None)  # something nobody foresaw
        answers.append(service.release(event("ann", 2, 1.2345678912)))
        assert answers[-1].reason == "internal"
        answers += [service.ask("GET", path) for path in ("/metrics", "/v1/users/ann", "/openapi.json")]
    text = capsys.readouterr().err
    assert '"internal error"' in text
    assert text.count('"request"') >= 10
    assert all(json.loads(line)["event"] for line in text.splitlines())
    traces = [text.encode(), *(answer.content for answer in answers), *(p.read_bytes() for p in tmp_path.iterdir())]
    for secret in [*planted, service.secret]:
        assert not any(secret.encode() in trace for trace in traces)
    raw = [np.float64(value).tobytes() for value in (1.2345678912, 3.9876543219)]
    assert not any(bits in trace for bits in raw for trace in traces)
    assert "ann" not in text
    metrics = answers[-3].content.decode()
    assert not any(f'"{user}"' in metrics for user in ("ann", "bob"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls_protects_the_way(tmp_path):
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run([*make.split(), *map(str, files)], check=True, capture_output=True)
    secret = tokens.add(tmp_path / "tokens.json", ["release"])[1]
    words_model().save(tmp_path / "model")
    options = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem", "--host", "127.0.0.1")
    process = Process(tmp_path, *options, "--tokens", tmp_path / "tokens.json")
    try:
        url = f"https://127.0.0.1:{process.port}"
        trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        with Client(url, secret, context=trusting) as client:
            assert client.release("ann", 0, "home").value in WORDS
        with Client(url, secret) as client, pytest.raises(Unreachable, match="certificate"):
            client.release("ann", 1, "home")
        with pytest.raises(OSError):
            ask(process.port, "GET", "/healthz")
    finally:
        assert process.end() == 0


@pytest.mark.slow
def test_strangers_have_one_line_a_second_and_are_answered_slowly(tmp_path, capsys):
    with running(tmp_path, words_setting(), strangers=0) as service:
        begin = time.monotonic()
        assert service.ask("GET", "/metrics", token="sv_no_one").status == 401
        for _ in range(2):
            assert service.ask("GET", "/zq-secret", token=None).status == 404
        slow = time.monotonic() - begin
        assert service.ask("GET", "/metrics").status == 200
    said = capsys.readouterr().err
    assert slow > PENALTY
    assert 1 <= said.count("without a token") <= 1 + slow
    assert "zq-secret" not in said


@pytest.mark.slow
def test_one_token_holds_up_no_other_and_a_client_waits_for_its_turn(service):
    greedy, lines = service.token("release"), []
    head = f"POST /v1/release HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {greedy}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    for _ in range(10):
        line = socket.create_connection(("127.0.0.1", service.port), timeout=20)
        line.sendall(head.encode())
        lines.append(line)
    assert service.release(event("ann", 0)).status == 200
    with Client(service.url, greedy) as client:
        assert client.release("greedy", 0, "home").seq == 0
    assert b'seqveil_refusals_total{reason="too-many"}' in service.ask("GET", "/metrics").content
    found = sorted(line.recv(12)[9:] for line in lines)
    assert found == [b"408"] * 4 + [b"429"] * 6
    for line in lines:
        line.close()
