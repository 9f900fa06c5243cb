"""Tokens of the service: made, read and revoked; a file that is damaged lets nobody in."""

import json
import multiprocessing
import os
import threading

import pytest

from seqveil.core.errors import InputError
from seqveil.interfaces.service import tokens
from seqveil.interfaces.service.tokens import Keyring


@pytest.mark.slow
def test_tokens_by_command(tmp_path, seqveil):
    file = tmp_path / "tokens.json"
    made = seqveil("serve", "token", "add", file, "--scope", "release", "--user", "ann")
    secret = made.out.strip()
    assert len(secret.split("_", 2)[2]) >= 43  # 256 bits
    assert secret.split("_", 2)[2].encode() not in file.read_bytes()
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert seqveil("serve", "token", "add", file, "--scope", "read", "--json").json["token"].startswith("sv_")
    listed = seqveil("serve", "token", "list", file, "--json").json
    assert [(row["scopes"], row["user"]) for row in listed] == [("release", "ann"), ("read", None)]
    assert "sha256" not in listed[0]
    assert "ann" in seqveil("serve", "token", "list", file).out
    assert seqveil("serve", "token", "revoke", file, secret.split("_")[1]).code == 0
    add = ["add", file, "--scope"]
    wrong = [["revoke", file, "none"], ["list", tmp_path / "none"]]
    wrong += [[*add, "all"], [*add, "admin", "--user", "x"]]
    for line in wrong:
        found = seqveil("serve", "token", *line)
        assert (found.code, found.err.count("\n")) == (2, 1)
    assert len(tokens.read(file)) == 1


DAMAGES = {
    "text": lambda path: path.write_bytes(b"{" * 5000),
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "another": lambda path: path.write_text('{"tokens": [{"id": "a"}]}'),
    "another's tokens": lambda path: path.write_text('{"seqveil tokens": [{"id": "a", "name": "b"}]}'),
    "open to all": lambda path: path.chmod(0o666),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_token_is_good_while_the_file_is_not(tmp_path, capsys, damage):
    path = tmp_path / "tokens.json"
    secrets = [tokens.add(path, ["release"])[1] for _ in range(2)]
    ring = Keyring(path)
    assert ring.find(secrets[0]) is not None
    good = path.read_bytes()
    DAMAGES[damage](path)
    assert [ring.find(secret) for secret in secrets] == [None, None]
    assert capsys.readouterr().err.count("no token is good") == 1  # however often it is looked at
    with pytest.raises(InputError) as refused:
        Keyring(path)
    assert "\n" not in str(refused.value)
    if damage not in ("gone", "empty"):
        with pytest.raises(InputError):
            tokens.add(path, ["read"])
    path.unlink(missing_ok=True)
    path.write_bytes(good)
    path.chmod(0o600)
    assert ring.find(secrets[0]) is not None


def test_what_is_revoked_is_known_at_once_and_a_link_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "tokens.json", tmp_path / "tokens.json"
    first, secret = tokens.add(real, ["release"])
    link.symlink_to(real)
    ring = Keyring(link)
    assert ring.find(secret) == first
    second, _ = tokens.add(link, ["read"])
    tokens.revoke(link, first.id)
    assert ring.find(secret) is None
    assert link.is_symlink()
    assert list(tokens.read(real)) == [second.id]


@pytest.mark.parametrize("user", ["", "ann\n", "a\x00b", "\ud800", "a*b", "**"])
def test_a_token_for_a_user_who_cannot_be_is_never_made(tmp_path, user):
    with pytest.raises(InputError, match="without control characters"):
        tokens.add(tmp_path / "tokens.json", ["read"], user=user)
    assert not (tmp_path / "tokens.json").exists()


def _change(path, names):
    for name in names:
        tokens.add(path, ["read"])
        tokens.revoke(path, name)


@pytest.mark.slow
def test_no_change_of_the_tokens_is_lost(tmp_path):
    path = tmp_path / "tokens.json"
    names = [tokens.add(path, ["release"])[0].id for _ in range(12)]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_change, args=(path, names[k::3])) for k in range(2)]
    thread = threading.Thread(target=_change, args=(path, names[2::3]))
    for worker in (*workers, thread):
        worker.start()
    for worker in (*workers, thread):
        worker.join()
    left = tokens.read(path)
    assert not set(names) & left.keys()
    assert len(left) == 12


@pytest.mark.parametrize(
    "row", ["text", 5, None, {"scopes": ["release"]}, {"scopes": None}, {"user": 0}, {"sha256": 1}]
)
def test_rows_of_the_wrong_kind_are_no_tokens(tmp_path, row):
    path, whole = tmp_path / "tokens", {"id": "a", "sha256": "b", "scopes": "release"}
    path.write_text(json.dumps({"seqveil tokens": [whole | row if isinstance(row, dict) else row]}))
    path.chmod(0o600)
    with pytest.raises(InputError, match="is no file of tokens"):
        tokens.read(path)
