"""Who gets in, and what gets out: tokens, limits, refusals to serve unsafely, and no private data in any trace."""

import io
import json
import shutil
import socket
import ssl
import subprocess
import time

import numpy as np
import pytest

import reference_streams as ref
from seqveil.client import Client, Unreachable
from seqveil.core.alphabet import Bins
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.interfaces.service import monitoring, tokens
from seqveil.interfaces.service.config import ServeConfig, load
from served import WORDS, Process, ask, event, running, words_model, words_setting


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("served"), words_setting(), timeout=2.0) as found:
        found.release(event("ann", 0), event("bob", 0))
        yield found


def fresh(service, *scopes, **options):
    """A new token that the service knows at once."""
    secret = service.token(*scopes, **options)
    service.look_again()
    return secret


PATHS = {
    "release": ("POST", "/v1/release", event("ann", 0)),
    "read-account": ("GET", "/v1/users/ann/account", None),
    "read": ("GET", "/v1/users/ann/releases", None),
    "metrics": ("GET", "/metrics", None),
}


@pytest.mark.parametrize("scope", PATHS)
def test_each_address_needs_its_own_scope(service, scope):
    secret = fresh(service, scope)
    for other, request in PATHS.items():
        answer = service.ask(*request, token=secret)
        assert answer.status == (200 if other == scope else 403), other
        if other != scope:
            assert answer.reason == "forbidden"
    assert service.ask("GET", "/v1/model", token=secret).status == 200
    everything = fresh(service, "admin")
    assert {service.ask(*request, token=everything).status for request in PATHS.values()} == {200}


@pytest.mark.parametrize("path", ["/v1/release", "/v1/users/ann/account", "/v1/users/ann/releases", "/v1/model",
                                  "/v1/model/file", "/metrics"])  # fmt: skip
def test_without_a_good_token_nothing_is_answered(service, path):
    method, body = ("POST", event("ann", 0)) if path == "/v1/release" else ("GET", None)
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
    own = fresh(service, "release", "read-account", "read", user="ann")
    assert service.release(event("ann", 1), token=own).status == 200
    answer = service.release(event("ann", 2), event("bob", 1), token=own)
    assert (answer.status, answer.reason, answer.json["position"]) == (403, "forbidden", 1)
    assert service.store.account("ann").events == 2
    for user in ("bob", "anna", "an", "Ann", "ann%00", "nobody", "ann%2F..%2Fbob"):
        for what in ("account", "releases"):
            assert service.ask("GET", f"/v1/users/{user}/{what}", token=own).status in (400, 403)
    assert service.ask("GET", "/v1/users/ann/account", token=own).status == 200
    ward = fresh(service, "release", user="ward-*/bed")
    assert service.release(event("ward-3/bed", 0), token=ward).status == 200
    assert service.release(event("ward-3/door", 0), token=ward).status == 403


def test_a_revoked_token_is_no_good_and_a_damaged_file_lets_nobody_in(tmp_path):
    with running(tmp_path, words_setting()) as service:
        file = tmp_path / "tokens.json"
        secret = fresh(service, "release")
        assert service.release(event("ann", 0), token=secret).status == 200
        tokens.revoke(file, secret.split("_")[1])
        service.look_again()
        assert service.release(event("ann", 1), token=secret).status == 401
        assert service.release(event("ann", 1)).status == 200
        saved = file.read_text()
        for damage in (lambda: file.write_text("{"), file.unlink, lambda: (file.write_text(saved), file.chmod(0o666))):
            damage()
            service.look_again()
            refused = service.release(event("ann", 2))  # said aloud: it is not the sender's fault
            assert (refused.status, refused.reason) == (503, "tokens")
            for path in ("/healthz", "/readyz"):
                assert service.ask("GET", path, token=None).reason == "tokens"
            assert service.ask("GET", "/livez", token=None).status == 200
        file.chmod(0o600)
        service.look_again()
        assert service.release(event("ann", 2)).status == 200


def test_a_token_has_its_rate(service):
    slow = fresh(service, "release", rate=5.0, user="slow")
    answers = [service.release(event("slow", 0), token=slow) for _ in range(20)]
    assert answers[0].status == 200
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) >= 5
    assert all(answer.reason == "too-many" and int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert service.release(event("other", 0)).status == 200
    greedy = fresh(service, "release", rate=5.0)
    many = [event("greedy", k) for k in range(50)]
    larger = service.release(*many, token=greedy)  # than it could ever send at once
    assert (larger.status, larger.json["most"]) == (413, 10)
    assert service.release(*many[:9], token=greedy).status in (200, 429)
    assert service.release(*many[:9], token=greedy).status == 429


@pytest.mark.slow
def test_a_body_that_never_ends_is_given_up(service):
    with socket.create_connection(("127.0.0.1", service.port)) as line:
        head = f"POST /v1/release HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.secret}\r\n"
        line.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
        line.settimeout(20)
        assert line.recv(100).startswith(b"HTTP/1.1 408")
    assert service.release(event("ann", 0)).status == 200


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
    "both": ({"tokens": "t", "no_auth": True}, "not both"),
}


@pytest.mark.parametrize(("options", "message"), UNSAFE.values(), ids=UNSAFE.keys())
def test_an_unsafe_service_does_not_start(options, message, tmp_path, capfd):
    with pytest.raises(InputError, match=message):
        ServeConfig(**options).check()
    words_model().save(tmp_path / "m")
    (tmp_path / "p.toml").write_text("epsilon = 1.0")
    named = {"model": "m", "policy": "p.toml", "state": "s.db"}
    given = ["serve", *(f"--{name}={tmp_path / file}" for name, file in named.items())]
    for name, value in options.items():
        given += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    assert main(given) == 2
    said = capfd.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "s.db").exists()
    ServeConfig(tokens="t", host="0.0.0.0", insecure=True).check()


def test_flags_win_over_the_environment_over_the_file(tmp_path, monkeypatch):
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\npolicy = "a.toml"\nrate = 5.0\nno_auth = true\n')
    monkeypatch.setenv("SEQVEIL_SERVE_PORT", "2")
    monkeypatch.setenv("SEQVEIL_SERVE_POLICY", "b.toml")
    found = load({"port": 3, "policy": None}, file)
    assert (found.port, str(found.policy), found.rate, found.no_auth) == (3, "b.toml", 5.0, True)
    monkeypatch.delenv("SEQVEIL_SERVE_PORT")
    for text, message in (("prot = 1", "prot"), ("port = 'x'", "port"), ("port = [", "not TOML")):
        file.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            load({}, file)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such configuration"):
        load({}, tmp_path / "none.toml")
    monkeypatch.setenv("SEQVEIL_SERVE_TOKEN", "t")  # a slip for TOKENS: it must not pass for "no tokens"
    with pytest.raises(InputError, match="SEQVEIL_SERVE_TOKEN"):
        load({})


@pytest.mark.slow
def test_planted_values_are_in_no_log_answer_metric_or_file(tmp_path):
    """Raw numbers with many digits, of which a release shows the bin's middle alone; and text that is no number."""
    model = MarkovModel(*ref.random_chain(np.random.default_rng(1), 4), alphabet=Bins([0, 1, 2, 3, 4]))
    said = io.StringIO()
    monitoring.begin_log("debug", said)
    planted = ["1.2345678912", "3.9876543219", "zq-secret-77"]
    with running(tmp_path, Policy(epsilon=0.5, mechanism="balanced").on(model)) as service:
        answers = []
        for user, seq, value in (("ann", 0, 1.2345678912), ("bob", 0, 3.9876543219), ("ann", 1, 2.5)):
            answers.append(service.release(event(user, seq, value)))
        bad = [
            event("ann", 2, "zq-secret-77"),
            event("ann", 9, 1.2345678912),
            event("ann", 2, 99.2345678912) | {"zq-secret-77": 1},
            {"events": [event("ann", 2, 1.2345678912), event("ann", "zq-secret-77", 1.2345678912)]},
            {"events": "zq-secret-77"},
            {"zq-secret-77": [1.2345678912]},
        ]
        answers += [service.ask("POST", "/v1/release", body) for body in bad]
        answers.append(service.ask("POST", "/v1/release", b'{"user": "ann", "value": 1.2345678912, zq-secret-77'))
        answers.append(service.ask("POST", "/zq-secret-77", event("ann", 2, 1.2345678912)))
        answers.append(service.ask("GET", "/v1/users/ann/releases?since=zq-secret-77"))
        service.app.state.service.wording._alphabet = None  # something nobody foresaw
        answers.append(service.release(event("ann", 2, 1.2345678912)))
        assert answers[-1].reason == "internal"
        answers += [service.ask("GET", path) for path in ("/metrics", "/v1/users/ann/releases", "/openapi.json")]
    text = said.getvalue()
    assert '"internal error"' in text
    assert len(text.splitlines()) >= len(answers)
    assert all(json.loads(line)["event"] for line in text.splitlines())
    traces = [text.encode(), *(answer.content for answer in answers), *(p.read_bytes() for p in tmp_path.iterdir())]
    for secret in [*planted, service.secret]:
        assert not any(secret.encode() in trace for trace in traces)
    raw = [np.float64(value).tobytes() for value in (1.2345678912, 3.9876543219)]
    assert not any(bits in trace for bits in raw for trace in traces)
    assert "ann" not in text
    metrics = answers[-3].content.decode()
    assert not any(f'"{user}"' in metrics for user in ("ann", "bob"))


def test_users_are_logged_as_hashes_where_asked_for(tmp_path):
    said = io.StringIO()
    monitoring.begin_log("info", said)
    with running(tmp_path, words_setting(), log_users=True) as service:
        service.release(event("zq-ann", 0), event("zq-bob", 0))
        service.release(event("zq-ann", 1))
        service.ask("GET", "/v1/users/zq-ann/account")
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    disclosed = [line["users"] for line in lines if "users" in line]
    assert disclosed[0][0] == disclosed[1][0] == disclosed[2][0] != disclosed[0][1]
    assert "zq-" not in said.getvalue()


def test_nothing_goes_to_telemetry(service):
    """FastAPI would hand paths (with users) and errors to OpenTelemetry where the process has it set up."""
    from opentelemetry import trace

    spans = []

    class Tracer(trace.NoOpTracer):
        def start_span(self, *args, **kwargs):
            spans.append(args)
            return super().start_span(*args, **kwargs)

    class Provider(trace.TracerProvider):
        def get_tracer(self, *args, **kwargs):
            return Tracer()

    trace.set_tracer_provider(Provider())
    assert trace.get_tracer("x").start_span("y") is not None
    seen = len(spans)
    service.release(event("ann", 0))
    service.release(event("ann", 0, "zq-secret"))
    assert len(spans) == seen


def test_a_certificate_that_is_none_is_refused_before_the_ledger_is_opened(tmp_path, capsys):
    words_model().save(tmp_path / "model")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("zq-nothing")
    (tmp_path / "p.toml").write_text("epsilon = 1.0")
    given = f"--model {tmp_path}/model --state {tmp_path}/state.db --policy {tmp_path}/p.toml --no-auth --port 0"
    tls = f"--tls-cert {tmp_path}/cert.pem --tls-key {tmp_path}/key.pem"
    assert main(["serve", *given.split(), *tls.split()]) == 2
    assert capsys.readouterr().err.startswith("error: cert.pem, key.pem: expected a certificate and its own key")
    assert not (tmp_path / "state.db").exists()


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
def test_a_running_service_looks_at_its_tokens_again(service):
    secret = service.token("read")
    begin = time.monotonic()
    while service.ask("GET", "/v1/model", token=secret).status == 401:
        assert time.monotonic() - begin < 30
        time.sleep(0.05)
