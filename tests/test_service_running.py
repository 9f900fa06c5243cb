"""What an operator runs the service with: health, tokens that expire, and reloading by a signal."""

import datetime
import hashlib
import http.client
import os
import re
import signal
import ssl
import time
from contextlib import contextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from seqveil.core.errors import InputError
from seqveil.interfaces.service import tokens
from served import Process, event, running, words_setting

# health


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("running")
    with running(folder, words_setting(), state=folder / "state.db") as found:
        yield found


def test_live_ready_and_healthy(service):
    for path in ("/livez", "/readyz", "/healthz"):
        answer = service.ask("GET", path, token=None)
        assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_not_ready_says_why_in_plain_words(service, monkeypatch):
    inner = service.app.state.service
    monkeypatch.setattr(inner, "config", inner.config.model_copy(update={"min_free": 1 << 62, "max_waiting": 0}))
    answer = service.ask("GET", "/readyz", token=None)
    assert (answer.status, answer.reason) == (503, "busy")
    assert "events wait" in answer.json["detail"]
    assert "MiB free" in answer.json["detail"]
    assert service.ask("GET", "/livez", token=None).status == 200


def test_not_ready_while_tokens_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "LOOK_EVERY", 0.0)
    with running(tmp_path, words_setting()) as service:
        os.chmod(tmp_path / "tokens.json", 0o666)
        answer = service.ask("GET", "/readyz", token=None)
        assert (answer.status, answer.reason) == (503, "tokens")
        assert service.ask("GET", "/livez", token=None).status == 200


def test_metrics_tell_of_disk_file_commits_and_ledger(service):
    service.release(event("metrics", 0))
    text = service.ask("GET", "/metrics").content.decode()
    found = dict(re.findall(r"^(\w+) ([0-9.e+-]+)$", text, re.M))
    assert float(found["seqveil_disk_free_bytes"]) > 0
    assert float(found["seqveil_state_file_bytes"]) > 4096
    assert time.time() - float(found["seqveil_last_commit_timestamp_seconds"]) < 60
    assert float(found["seqveil_ledger_new"]) == 1.0
    assert float(found["process_open_fds"]) > 0
    assert float(found["process_cpu_seconds_total"]) > 0
    assert "metrics" not in re.findall(r'="([^"]*)"', text)


# tokens that expire


def test_an_expired_token_is_refused_with_a_clear_line(tmp_path, monkeypatch):
    with running(tmp_path, words_setting()) as service:
        secret = service.token("admin", expires="1h")
        monkeypatch.setattr(tokens, "LOOK_EVERY", 0.0)
        assert service.ask("GET", "/v1/model", token=secret).status == 200
        now = time.time()
        monkeypatch.setattr(tokens.time, "time", lambda: now + 3601)
        answer = service.ask("GET", "/v1/model", token=secret)
        assert (answer.status, answer.reason) == (401, "unauthorised")
        assert "the token expired at 20" in answer.json["detail"]
        assert service.ask("GET", "/v1/model").status == 200  # one that does not expire


@pytest.mark.parametrize(
    "text", ["", "0d", "-3d", "30", "d", "99999999999w", "2020-01-01", "soon", "999999999w", "1.5d"]
)
def test_an_expiry_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="--expires"):
        tokens.add(tmp_path / "tokens", ["read"], expires=text)
    assert not (tmp_path / "tokens").exists()


def test_a_file_without_expiries_is_as_before_and_a_wrong_expiry_is_no_token(tmp_path):
    path = tmp_path / "tokens"
    tokens.add(path, ["read"])
    assert "expires" not in path.read_text()
    made = tokens.add(path, ["read"], expires="8w")[0]
    assert made in tokens.read(path)
    path.write_text(path.read_text().replace(made.expires, "never"))
    with pytest.raises(InputError, match="no file of tokens"):
        tokens.read(path)


# reloading


def certificate(folder, name):
    """A new certificate with its key in the folder; its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "cert.pem").write_bytes(made.public_bytes(encoding))
    (folder / "key.pem").write_bytes(private)
    return made.fingerprint(hashes.SHA256())


class Line:
    """A connection over TLS that is kept open."""

    def __init__(self, port):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.http = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.close()

    def ask(self, path, token=None):
        self.http.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = self.http.getresponse()
        answer.read()
        return answer.status

    @property
    def certificate(self):
        return hashlib.sha256(self.http.sock.getpeercert(True)).digest()


def until(act):
    for _ in range(500):
        if act():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


@contextmanager
def process_ended(process):
    try:
        yield
    finally:
        code = process.end()
    assert code == 0


@pytest.mark.slow
def test_a_hangup_reloads_certificate_and_tokens_and_drops_no_connection(tmp_path):
    first = certificate(tmp_path, "one")
    secret = tokens.add(tmp_path / "tokens", ["admin"])[1]
    process = Process(
        tmp_path,
        *("--tokens", tmp_path / "tokens", "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem"),
    )
    with process_ended(process), Line(process.port) as old, Line(process.port) as new:
        assert old.ask("/v1/model", secret) == 200
        assert old.certificate == first
        second = certificate(tmp_path, "two")
        later = tokens.add(tmp_path / "tokens", ["admin"])[1]
        process.process.send_signal(signal.SIGHUP)
        until(lambda: b'"reloaded"' in process.log.read_bytes())
        assert old.ask("/v1/model", later) == 200  # the same connection
        assert old.certificate == first
        assert new.ask("/v1/model", later) == 200
        assert new.certificate == second
        (tmp_path / "cert.pem").write_text("nonsense")  # a bad certificate changes nothing
        process.process.send_signal(signal.SIGHUP)
        until(lambda: b"the certificate was not reloaded" in process.log.read_bytes())
        with Line(process.port) as newest:
            assert newest.ask("/livez") == 200
        assert old.ask("/livez") == 200
