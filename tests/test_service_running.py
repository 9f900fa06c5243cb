"""What an operator runs the service with: health, tokens that expire, an audit log, and reloading by a signal."""

import datetime
import hashlib
import http.client
import json
import os
import re
import signal
import ssl
import stat
import time
from contextlib import contextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from seqveil.core.errors import InputError
from seqveil.interfaces.service import audit, tokens
from seqveil.interfaces.service.config import ServeConfig
from served import Process, event, running, words_setting


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# health


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    with running(folder, words_setting(), audit_log=folder / "audit.jsonl", state=folder / "state.db") as service:
        yield service


def test_live_ready_and_healthy(audited):
    for path in ("/livez", "/readyz", "/healthz"):
        answer = audited.ask("GET", path, token=None)
        assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_not_ready_says_why_in_plain_words(audited, monkeypatch):
    service = audited.app.state.service
    monkeypatch.setattr(service, "config", service.config.model_copy(update={"min_free": 1 << 62, "max_waiting": 0}))
    answer = audited.ask("GET", "/readyz", token=None)
    assert (answer.status, answer.reason) == (503, "busy")
    assert "events wait" in answer.json["detail"]
    assert "MiB free" in answer.json["detail"]
    assert audited.ask("GET", "/livez", token=None).status == 200


def test_not_ready_while_tokens_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "LOOK_EVERY", 0.0)
    with running(tmp_path, words_setting()) as service:
        os.chmod(tmp_path / "tokens.json", 0o666)
        answer = service.ask("GET", "/readyz", token=None)
        assert (answer.status, answer.reason) == (503, "tokens")
        assert service.ask("GET", "/livez", token=None).status == 200


def test_metrics_tell_of_disk_file_commits_and_ledger(audited):
    audited.release(event("metrics", 0))
    text = audited.ask("GET", "/metrics").content.decode()
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


# the audit log


@pytest.mark.slow
def test_the_audit_log_tells_who_did_what_and_no_value(audited, tmp_path):
    path = audited.folder / "audit.jsonl"
    before = len(lines(path))
    bound = audited.token("release", "read", user="ann", note="ward 3")
    time.sleep(tokens.LOOK_EVERY + 0.1)
    answer = audited.release(event("ann", 0, "gym"), event("ann", 1, "zq-secret"), token=bound)
    assert answer.status == 200
    audited.release(event("bob", 0, "shop"), token=bound)
    audited.ask("GET", "/v1/users/ann/releases", token=bound)
    audited.ask("GET", "/v1/users/ann/account", token=bound)
    audited.ask("GET", "/v1/users/ann/account", token="sv_nobody_x")
    audited.ask("GET", "/metrics")
    told = lines(path)[before:]
    key = (audited.folder / "audit.jsonl.key").read_bytes()
    ann, bob = audit.pseudonym(key, "ann"), audit.pseudonym(key, "bob")
    where = "/v1/users/{user}"
    assert [(line["action"], line["status"], line["users"]) for line in told] == [
        ("POST /v1/release", 200, [ann]),
        ("POST /v1/release", 403, [bob]),
        (f"GET {where}/releases", 200, [ann]),
        (f"GET {where}/account", 403, [ann]),
    ]
    assert told[0]["events"] == 2
    assert {line["token"] for line in told} == {bound.split("_")[1]}
    text = path.read_text()
    assert not [word for word in ("gym", "shop", "zq-secret", "ann", "ward", bound) if word in text]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_users_by_name_where_that_is_asked_for(tmp_path):
    log = audit.AuditLog(tmp_path / "audit", users="name")
    log.write("POST /v1/release", token="a", users=["ann", "bob", "ann"])
    log.close()
    assert lines(tmp_path / "audit")[0]["users"] == ["ann", "bob"]
    assert not (tmp_path / "audit.key").exists()


def test_an_audit_log_that_others_may_read_is_refused(tmp_path):
    (tmp_path / "audit").write_text("")
    os.chmod(tmp_path / "audit", 0o644)
    with pytest.raises(InputError, match="chmod 600"):
        audit.AuditLog(tmp_path / "audit")
    os.chmod(tmp_path / "audit", 0o600)
    (tmp_path / "audit").write_bytes(b"SQLite format 3")
    with pytest.raises(InputError, match="is not an audit log"):
        audit.AuditLog(tmp_path / "audit")
    for wrong in ({"state": tmp_path / "a"}, {"tokens": tmp_path / "a"}, {"key": tmp_path / "a.key"}):
        given = {"no_auth": "tokens" not in wrong, "audit_log": tmp_path / ".." / tmp_path.name / "a", **wrong}
        with pytest.raises(InputError, match="a file of its own"):
            ServeConfig(**given).check()
    with pytest.raises(InputError, match=r"cannot be (opened|made)"):
        audit.AuditLog(tmp_path / "nowhere" / "audit")


def test_nothing_is_answered_that_the_audit_log_does_not_hold(tmp_path, monkeypatch):
    path = tmp_path / "audit.jsonl"
    with running(tmp_path, words_setting(), audit_log=path) as service:
        assert service.release(event("ann", 0)).status == 200
        write = os.write
        full = {"on": True}

        def failing(file, content):
            if full["on"] and b'"action"' in content:
                write(file, content[:5])
                return 5
            return write(file, content)

        monkeypatch.setattr(audit.os, "write", failing)
        lost = service.release(event("ann", 1))
        assert (lost.status, lost.reason) == (503, "audit")
        assert b"value" not in lost.content
        before = service.store.standing("ann").events
        assert service.release(event("ann", 2)).status == 503
        assert service.store.standing("ann").events == before  # refused before anything was done
        assert service.ask("GET", "/readyz").reason == "audit"
        assert service.ask("GET", "/livez").status == 200
        assert b"seqveil_audit_failures_total 2.0" in service.ask("GET", "/metrics").content
        full["on"] = False
        again = service.release(event("ann", 1))
        assert again.status == 200
        assert again.json["releases"][0]["replayed"] is True
        assert service.ask("GET", "/readyz").status == 200
    told = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["action"] for line in told] == [
        "POST /v1/release",
        "the audit log goes on",
        "POST /v1/release",
    ]


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
def test_a_hangup_reloads_certificate_tokens_and_log_and_drops_no_connection(tmp_path):
    first = certificate(tmp_path, "one")
    secret = tokens.add(tmp_path / "tokens", ["admin"])[1]
    path = tmp_path / "audit.jsonl"
    process = Process(
        tmp_path,
        *("--tokens", tmp_path / "tokens", "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem"),
        *("--audit-log", path),
    )
    with process_ended(process), Line(process.port) as old, Line(process.port) as new:
        assert old.ask("/v1/model", secret) == 200
        assert old.certificate == first
        path.rename(tmp_path / "audit.1")
        second = certificate(tmp_path, "two")
        later = tokens.add(tmp_path / "tokens", ["admin"])[1]
        process.process.send_signal(signal.SIGHUP)
        until(lambda: b'"reloaded"' in process.log.read_bytes())
        assert old.ask("/v1/model", later) == 200  # the same connection
        assert old.certificate == first
        assert new.ask("/v1/model", later) == 200
        assert new.certificate == second
        assert [line["action"] for line in lines(tmp_path / "audit.1")] == ["start", "GET /v1/model"]
        assert [line["action"] for line in lines(path)] == ["reload", "GET /v1/model", "GET /v1/model"]
        (tmp_path / "cert.pem").write_text("nonsense")  # a bad certificate changes nothing
        process.process.send_signal(signal.SIGHUP)
        until(lambda: b"the certificate was not reloaded" in process.log.read_bytes())
        with Line(process.port) as newest:
            assert newest.ask("/livez") == 200
        assert old.ask("/livez") == 200
    assert lines(path)[-1]["action"] == "stop"
