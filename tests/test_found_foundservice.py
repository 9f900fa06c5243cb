"""What a second attack on the running service found: each stays repaired."""

from __future__ import annotations

import json
import os

import pytest

from seqveil.core.errors import InputError
from seqveil.interfaces.service import audit
from served import running, words_setting


def event(user, seq, value="home", **more):
    return {"user": user, "seq": seq, "value": value, **more}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


# the audit log


@pytest.fixture
def full(monkeypatch):
    """A disk that is full while `full["on"]`: of a line only the first bytes are written."""
    state, write = {"on": False}, os.write

    def failing(file, content):
        return write(file, content[:4]) if state["on"] and b'"action"' in content else write(file, content)

    monkeypatch.setattr(audit.os, "write", failing)
    return state


def torn(log, full):
    full["on"] = True
    with pytest.raises(audit.NotWritten):
        log.write("cut off")
    full["on"] = False


def test_a_log_that_is_moved_while_its_disk_is_full_goes_on_in_one_that_can_be_opened_again(tmp_path, full):
    log = audit.AuditLog(path := tmp_path / "audit")
    log.write("first")
    torn(log, full)
    os.rename(path, tmp_path / "old")
    log.reopen()
    log.write("second")
    log.close()
    assert path.read_bytes().startswith(audit.BEGIN)
    audit.AuditLog(path).close()
    assert [line["action"] for line in lines(path)] == ["second"]


def test_a_line_cut_off_by_a_kill_does_not_swallow_the_next(tmp_path, full):
    log = audit.AuditLog(path := tmp_path / "audit")
    log.write("first")
    torn(log, full)
    log.close()
    log = audit.AuditLog(path)
    log.write("second")
    log.close()
    assert [line["action"] for line in lines(path)] == ["first", "second"]


def test_a_log_whose_first_line_was_cut_off_is_still_one(tmp_path, full):
    log = audit.AuditLog(path := tmp_path / "audit")
    torn(log, full)
    log.close()
    log = audit.AuditLog(path)
    log.write("second")
    log.close()
    audit.AuditLog(path).close()
    assert [line["action"] for line in lines(path)] == ["second"]
    path.write_text('{\n "format": "seqveil-tokens"\n}')
    with pytest.raises(InputError, match="is not an audit log"):
        audit.AuditLog(path)


def test_a_deleted_log_is_begun_again_rather_than_written_to_nowhere(tmp_path):
    log = audit.AuditLog(path := tmp_path / "audit", users="name")
    log.write("first")
    path.unlink()
    log.write("second")
    assert [line["action"] for line in lines(path)] == ["second"]
    path.unlink()
    path.mkdir()
    with pytest.raises(audit.NotWritten, match="Is a directory"):
        log.write("third")
    path.rmdir()
    log.write("fourth")
    log.close()
    assert [line["action"] for line in lines(path)] == ["fourth"]


def test_the_service_is_ready_again_when_the_audit_log_is_though_nobody_sends(tmp_path, full):
    with running(tmp_path, words_setting(), audit_log=tmp_path / "audit") as service:
        full["on"] = True
        assert service.release(event("ann", 0)).reason == "audit"
        assert service.ask("GET", "/readyz", token=None).reason == "audit"
        full["on"] = False
        assert service.ask("GET", "/readyz", token=None).status == 200
