"""Files that appear whole or not at all: what is there after a failure, and after two writers at once."""

import os
import stat

import pytest

from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.replacing import replacing
from seqveil.interfaces.service import tokens


def written_half(target, error):
    with replacing(target) as part:
        part.write_text("half of it")
        raise error


def test_a_failure_leaves_the_target_as_it_was_and_nothing_beside_it(tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error):
            written_half(target, error)
        assert target.read_text() == "before"
        assert os.listdir(tmp_path) == ["out"]


def test_a_block_that_writes_nothing_is_an_error_and_replaces_nothing(tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    with pytest.raises(FileNotFoundError), replacing(target):
        pass
    assert target.read_text() == "before"


def test_two_writers_at_once_do_not_write_into_one_another(tmp_path):
    target = tmp_path / "out"
    with replacing(target) as first, replacing(target) as second:
        first.write_text("first")
        second.write_text("second")
    assert target.read_text() == "first"  # the last one to end
    assert os.listdir(tmp_path) == ["out"]


def test_a_private_file_is_never_readable_by_others(tmp_path):
    before = os.umask(0)
    try:
        with replacing(tmp_path / "key", private=True) as part:
            assert stat.S_IMODE(part.stat().st_mode) == 0o600
            part.write_text("secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_model_and_tokens_that_cannot_be_written_leave_nothing(tmp_path, monkeypatch):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    model.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / "m")
    with pytest.raises(InputError, match="cannot be written"):
        tokens.add(tmp_path / "tokens.json", ["release"])
    assert (tmp_path / "m").read_bytes() == before
    left = {name for name in os.listdir(tmp_path) if not name.endswith(".lock")}  # an empty file, kept for the next
    assert left == {"m"}
