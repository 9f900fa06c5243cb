"""Files that are written: the target changes as a whole or not at all, whatever the format."""

import os
import stat

import numpy as np
import polars as pl
import pytest

from filed import FORMATS, write
from seqveil import MarkovModel
from seqveil.core.errors import DataError
from seqveil.core.model import replacing
from seqveil.interfaces.files import writing


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, b"what was there"])
def test_an_exception_leaves_everything_as_it_was(tmp_path, monkeypatch, extension, failure, before):
    path, frame = tmp_path / f"out.{extension}", pl.DataFrame({"user": ["a"], "value": [1]})
    if before is not None:
        path.write_bytes(before)

    def fail(*_):
        assert before is None or path.read_bytes() == before  # the target changes at the end alone
        raise failure

    monkeypatch.setattr(writing, "write_text", fail)  # the rows are written, the side file is not
    with pytest.raises(failure):
        writing.write_frame(path, frame, None, {"epsilon": 1})
    assert os.listdir(tmp_path) == ([] if before is None else [path.name])
    assert before is None or path.read_bytes() == before


def test_targets_that_cannot_be(tmp_path):
    (tmp_path / "dir.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    source = write(tmp_path, "in.csv", "user,value\na,1\n")
    os.link(source, tmp_path / "hard.csv")
    (tmp_path / "soft.csv").symlink_to(source)
    places = {
        "none/out.csv": "does not exist",
        "dir.csv": "is a folder",
        "pipe.csv": "regular",
        "a.csv.gz": "leave .gz out",
    }
    for name, expected in places.items():
        with pytest.raises(DataError, match=expected):
            writing.check_place(tmp_path / name)
    for name in ("in.csv", "hard.csv", "soft.csv", "dir.csv/../in.csv"):
        assert writing.same_file(tmp_path / name, source)
        with pytest.raises(DataError, match="read and written at once"):
            writing.check_place(tmp_path / name, [source])
    assert not writing.same_file(tmp_path / "new.csv", source)
    assert not writing.same_file("-", "-")
    with pytest.raises(DataError, match="pipe"):
        writing.check_place("-", format="parquet")


def test_a_link_keeps_pointing_at_its_target(tmp_path):
    (tmp_path / "soft.csv").symlink_to(tmp_path / "real.csv")
    writing.write_frame(tmp_path / "soft.csv", pl.DataFrame({"user": ["a"], "value": [1]}))
    assert (tmp_path / "soft.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "user,value\na,1\n"


def test_the_side_file_lies_beside_the_rows(tmp_path):
    path, meta = tmp_path / "out.csv", {"format": writing.FORMAT, "version": writing.EDITION, "names": ["é"]}
    with pytest.raises(DataError, match=r"^out\.csv: no such file; check the path"):
        writing.load_meta(path)
    path.touch()
    assert writing.load_meta(path) is None
    writing.write_frame(path, pl.DataFrame({"user": ["a"]}), None, meta)
    assert writing.load_meta(path) == meta
    for broken, said in (
        ("{", "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"format": "x"}', "expected a side file"),
    ):
        write(tmp_path, "out.csv.meta.json", broken)
        with pytest.raises(DataError, match=f"^out.csv.meta.json: {said}"):
            writing.load_meta(path)


def test_the_digest_follows_content_and_nothing_else():
    def digest(users, codes, epsilons):
        return writing.digest(pl.Series(users), np.array(codes), np.array(epsilons))

    whole = digest(["a", "bc"], [0, 1], [1.0, 1.0])
    assert whole == digest(["a", "bc"], np.array([0, 1], np.int16), [1, 1.0])
    others = [(["ab", "c"], [0, 1], [1.0, 1.0]), (["a", "bc"], [1, 0], [1.0, 1.0]), (["a", "bc"], [0, 1], [1.0, 0.5])]
    assert whole not in [digest(*other) for other in others]


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
    assert (tmp_path / "m").read_bytes() == before
    assert os.listdir(tmp_path) == ["m"]
