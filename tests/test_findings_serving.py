"""What a second attack on the running service found: each stays repaired."""

from __future__ import annotations

import os

import pytest

from seqveil import secrets
from seqveil.core.errors import InputError
from seqveil.engine.policy import Policy
from seqveil.interfaces.service import tokens
from served import event, running, words_model, words_setting

# tokens


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
    monkeypatch.setattr(tokens, "LOOK_EVERY", 0.0)
    assert ring.find(secret) is None


@pytest.mark.parametrize("user", ["", "ann\n", "a\x00b", "\ud800"])
def test_a_token_for_a_user_who_cannot_be_is_never_made(tmp_path, user):
    with pytest.raises(InputError, match="without control characters"):
        tokens.add(tmp_path / "tokens.json", ["read"], user=user)
    assert not (tmp_path / "tokens.json").exists()


@pytest.mark.parametrize("far", ["9999-12-31", "9999-12-31T23:59-14:00", "99999999w"])
def test_an_end_that_no_calendar_has_is_told_from_a_wrong_form(far):
    with pytest.raises(InputError, match="before the year 9000"):
        tokens.expiry(far)


# refusals


@pytest.mark.slow
def test_a_clumsy_number_costs_its_sender_no_more_than_any_event(tmp_path):
    with running(tmp_path, words_setting(), gaps="skip", rate=10.0) as service:
        wrong = service.release(event("ann", 900_000))
        assert wrong.reason == "out-of-order"
        assert "leaves more than 10000 others" in wrong.json["detail"]
        assert service.release(event("ann", 0)).status == 200


@pytest.mark.slow
def test_the_end_of_what_a_secret_was_promised_for_is_told(tmp_path, longest):
    longest(2)
    secret = secrets.ever("gym", epsilon=0.5)
    setting = Policy(secrets=[secret], mechanism="guarded").on(words_model())
    with running(tmp_path, setting) as service:
        assert service.release(event("ann", 0), event("ann", 1)).status == 200
        over = service.release(event("ann", 2))
        assert over.reason == "malformed"
        assert "promised for streams of at most 2 events" in over.json["detail"]
        assert "gym" not in over.json["detail"]


WRONG = {
    "user too long": (event("a" * 257, 0), "text of at most 256 characters"),
    "no user": (event("", 0), "text of at least 1 character"),
    "a line": (event("a\n", 0), "a user without control characters and ends of lines"),
    "nothing": ({"events": []}, "a list that is not empty"),
    "a list": ([], "an object, of one event or with a list of events"),
}


def test_what_was_expected_is_told_in_words(tmp_path):
    with running(tmp_path, words_setting()) as service:
        for body, expected in WRONG.values():
            assert service.ask("POST", "/v1/release", body).json["errors"][0]["expected"].startswith(expected)
        deep = b'{"user": "a", "seq": 0, "value": ' + b"[" * 100_000
        for body in (deep, b'{"seq": ' + b"9" * 5000 + b"}", b'{"user": "\xff"}'):
            assert "expected JSON in UTF-8" in service.ask("POST", "/v1/release", body).json["detail"]
