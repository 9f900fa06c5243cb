"""Tokens of the service: made, read, revoked and expired; a file that is damaged lets nobody in."""

from __future__ import annotations

import json
import os
import time

import pytest

from seqveil.core.errors import InputError
from seqveil.interfaces.cli import main
from seqveil.interfaces.service import tokens
from seqveil.interfaces.service.tokens import Keyring
from served import running, words_setting


@pytest.mark.slow
def test_tokens_by_command(tmp_path, capfd):
    file = str(tmp_path / "tokens.json")
    assert main(["serve", "token", "add", file, "--scope", "release", "--user", "ann", "--note", "her watch"]) == 0
    secret = capfd.readouterr().out.strip()
    kept = (tmp_path / "tokens.json").read_text()
    assert len(secret.split("_", 2)[2]) >= 43  # 256 bits
    assert secret.split("_", 2)[2] not in kept
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert main(["serve", "token", "add", file, "--scope", "read", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["token"].startswith("sv_")
    assert main(["serve", "token", "list", file, "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert [(row["scopes"], row["user"]) for row in listed] == [("release", "ann"), ("read", None)]
    assert "sha256" not in listed[0]
    assert main(["serve", "token", "list", file]) == 0
    assert "her watch" in capfd.readouterr().out
    assert main(["serve", "token", "revoke", file, secret.split("_")[1]]) == 0
    assert len(tokens.read(file)) == 1
    add = ["add", file, "--scope"]
    wrong = [["revoke", file, "none"], ["list", str(tmp_path / "none")]]
    wrong += [[*add, "all"], [*add, "admin", "--user", "x"], [*add, "read", "--rate", "0"]]
    for line in wrong:
        capfd.readouterr()
        assert main(["serve", "token", *line]) == 2
        assert capfd.readouterr().err.count("\n") == 1
    assert len(tokens.read(file)) == 1


EDITS = [
    {"rate": "5"}, {"rate": 1e-310}, {"rate": 10**400}, {"rate": True}, {"id": ["a"]}, {"sha256": None},
    {"sha256": 5}, {"sha256": "ü" * 64}, {"user": 5}, {"user": False}, {"scopes": [["release"]]},
    {"scopes": "read"}, {"note": "DEEP"}, {"more": 1},
]  # fmt: skip


def edited(path, edit):
    """The file as somebody left it who took the first token out and changed the second by hand."""
    saved = json.loads(path.read_text())
    text = json.dumps(saved | {"tokens": [saved["tokens"][1] | edit]})
    path.write_text(text.replace('"DEEP"', "[" * 100_000 + "]" * 100_000))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: str(edit)[:30])
def test_no_token_is_good_while_the_file_is_not(tmp_path, edit):
    path = tmp_path / "tokens.json"
    secrets = [tokens.add(path, ["release"])[1] for _ in range(2)]
    heard = []
    ring = Keyring(path, heard.append)
    assert ring.find(secrets[0]) is not None
    good = path.read_text()
    edited(path, edit)
    assert [ring.find(secret) for secret in secrets] == [None, None]
    assert ring.trouble is not None
    assert heard == [ring.trouble]
    with pytest.raises(InputError) as refused:
        Keyring(path)
    assert "\n" not in str(refused.value)
    path.write_text(good)
    assert ring.find(secrets[0]) is not None
    assert heard[-1] is None


def test_a_link_to_the_tokens_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "tokens.json", tmp_path / "tokens.json"
    first, _ = tokens.add(real, ["release"])
    link.symlink_to(real)
    second, _ = tokens.add(link, ["read"])
    tokens.revoke(link, first.id)
    assert link.is_symlink()
    assert [token.id for token in tokens.read(real)] == [second.id]


def test_a_pipe_in_place_of_the_tokens_keeps_nobody_waiting(tmp_path):
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: expected a file of tokens, got a pipe"):
        tokens.read(path)


def test_a_token_revoked_while_the_service_starts_is_not_good(tmp_path, monkeypatch):
    path = tmp_path / "tokens.json"
    token, secret = tokens.add(path, ["read"])
    read = tokens.read

    def then_revoked(path):
        found = read(path)
        monkeypatch.setattr(tokens, "read", read)
        tokens.revoke(path, token.id)
        return found

    monkeypatch.setattr(tokens, "read", then_revoked)
    ring = tokens.Keyring(path)
    assert ring.find(secret) is None


@pytest.mark.parametrize("user", ["", "ann\n", "a\x00b", "\ud800", "a*b", "**"])
def test_a_token_for_a_user_who_cannot_be_is_never_made(tmp_path, user):
    with pytest.raises(InputError, match="without control characters"):
        tokens.add(tmp_path / "tokens.json", ["read"], user=user)
    assert not (tmp_path / "tokens.json").exists()


def test_an_expired_token_is_refused_with_a_clear_line(tmp_path, monkeypatch):
    with running(tmp_path, words_setting()) as service:
        secret = service.token("admin", expires="1h")
        assert service.ask("GET", "/v1/model", token=secret).status == 200
        now = time.time()
        monkeypatch.setattr(tokens.time, "time", lambda: now + 3601)
        answer = service.ask("GET", "/v1/model", token=secret)
        assert (answer.status, answer.reason) == (401, "unauthorised")
        assert "the token expired at 20" in answer.json["detail"]
        assert service.ask("GET", "/v1/model").status == 200  # one that does not expire


EXPIRIES = [
    "",
    "0d",
    "-3d",
    "30",
    "d",
    "2020-01-01",
    "soon",
    "999999999w",
    "1.5d",
    "9999-12-31",
    "9999-12-31T23:59-14:00",
]


@pytest.mark.parametrize("text", EXPIRIES)
def test_an_expiry_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="--expires"):
        tokens.add(tmp_path / "tokens", ["read"], expires=text)
    assert not (tmp_path / "tokens").exists()


def test_a_wrong_expiry_and_another_version_are_no_tokens(tmp_path):
    path = tmp_path / "tokens"
    made = tokens.add(path, ["read"], expires="8w")[0]
    assert made in tokens.read(path)
    good = path.read_text()
    assert json.loads(good)["version"] == 1
    for wrong in (good.replace(made.expires, "never"), json.dumps(json.loads(good) | {"version": 2})):
        path.write_text(wrong)
        with pytest.raises(InputError, match="is no file of tokens; make one with"):
            tokens.read(path)
