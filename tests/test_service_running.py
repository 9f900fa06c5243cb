"""What an operator runs the service with: health, figures and tokens that expire."""

import os
import re
import time

import pytest

from seqveil.core.errors import InputError
from seqveil.interfaces.service import tokens
from served import event, running, words_setting

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


def test_a_wrong_expiry_is_no_token(tmp_path):
    path = tmp_path / "tokens"
    made = tokens.add(path, ["read"], expires="8w")[0]
    assert made in tokens.read(path)
    path.write_text(path.read_text().replace(made.expires, "never"))
    with pytest.raises(InputError, match="no file of tokens"):
        tokens.read(path)
