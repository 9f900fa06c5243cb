"""Files that are written: the target changes as a whole or not at all, whatever the format."""

import contextlib
import io
import os
import stat
import sys

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from filed import FORMATS, write
from seqveil import MarkovModel
from seqveil.core.errors import DataError, InputError
from seqveil.core.replacing import replacing
from seqveil.interfaces import files
from seqveil.interfaces.files import Writer, count_rows, writing


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, b"what was there"])
def test_an_exception_leaves_everything_as_it_was(tmp_path, monkeypatch, extension, failure, before):
    monkeypatch.setattr(writing, "PART_ROWS", 1)
    path = tmp_path / f"out.{extension}"
    if before is not None:
        path.write_bytes(before)
    with contextlib.suppress(failure), Writer(path) as out:
        out.write(pl.DataFrame({"user": ["a"], "value": [1]}))
        assert len(os.listdir(tmp_path)) == 1 + (before is not None)
        assert before is None or path.read_bytes() == before  # the target changes at the end alone
        raise failure
    assert os.listdir(tmp_path) == ([] if before is None else [path.name])
    assert before is None or path.read_bytes() == before


def test_parquet_parts_come_together_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PART_ROWS", 10)
    frame = pl.DataFrame({"user": [str(i) for i in range(105)], "value": range(105)})
    with Writer(tmp_path / "out.parquet") as out:
        for start in range(0, 105, 3):
            out.write(frame[start : start + 3])
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet"), frame)
    assert os.listdir(tmp_path) == ["out.parquet"]


@pytest.mark.parametrize("extension", FORMATS)
def test_a_frame_with_other_columns_is_refused(tmp_path, extension):
    with Writer(tmp_path / f"out.{extension}") as out:
        out.write(pl.DataFrame({"user": ["a"], "value": [1]}))
        with pytest.raises(InputError, match="columns of the first"):
            out.write(pl.DataFrame({"user": ["a"], "other": [1]}))


def test_writing_nothing_still_makes_a_file(tmp_path):
    for extension in FORMATS:
        with Writer(tmp_path / f"out.{extension}"):
            pass
    assert len(os.listdir(tmp_path)) == len(FORMATS)


def test_targets_that_cannot_be(tmp_path):
    (tmp_path / "dir.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    source = write(tmp_path, "in.csv", "user,value\na,1\n")
    os.link(source, tmp_path / "hard.csv")
    (tmp_path / "soft.csv").symlink_to(source)
    for name, expected in [("none/out.csv", "does not exist"), ("dir.csv", "is a folder"), ("pipe.csv", "regular")]:
        with pytest.raises(DataError, match=expected), Writer(tmp_path / name):
            pass
    for name in ("in.csv", "hard.csv", "soft.csv", "dir.csv/../in.csv"):
        assert files.same_file(tmp_path / name, source)
        with pytest.raises(DataError, match="read and written at once"):
            Writer(tmp_path / name, inputs=[source])
    assert not files.same_file(tmp_path / "new.csv", source)
    assert not files.same_file("-", "-")
    with pytest.raises(DataError, match="pipe"):
        Writer("-", format="parquet")


def test_a_link_keeps_pointing_at_its_target(tmp_path):
    (tmp_path / "soft.csv").symlink_to(tmp_path / "real.csv")
    with Writer(tmp_path / "soft.csv") as out:
        out.write(pl.DataFrame({"user": ["a"], "value": [1]}))
    assert (tmp_path / "soft.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "user,value\na,1\n"


@pytest.mark.parametrize(
    ("format", "expected"), [(None, b"u,v\na,1\nb,2\n"), ("jsonl", b'{"u":"a","v":1}\n{"u":"b","v":2}\n')]
)
def test_standard_output_is_flushed_frame_by_frame(monkeypatch, format, expected):
    class Pipe(io.BytesIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    with Writer("-", format=format) as out:
        for i, row in enumerate([("a", 1), ("b", 2)], start=1):
            out.write(pl.DataFrame([row], schema=["u", "v"], orient="row"))
            assert pipe.flushed == i
    assert pipe.getvalue() == expected
    monkeypatch.undo()


def test_metadata_lies_beside_the_file(tmp_path):
    path = tmp_path / "out.csv"
    assert files.load_meta(path) is None
    files.save_meta(path, {"epsilon": 0.5, "names": ["é"]})
    assert files.load_meta(path) == {"epsilon": 0.5, "names": ["é"]}
    for broken in ("{", "[1]", "3"):
        write(tmp_path, "out.csv.meta.json", broken)
        with pytest.raises(DataError, match=r"^out.csv.meta.json: cannot be read"):
            files.load_meta(path)


@pytest.mark.parametrize("extension", FORMATS)
def test_rows_are_counted(tmp_path, extension):
    path = tmp_path / f"out.{extension}"
    assert count_rows(path) is None
    with Writer(path) as out:
        out.write(pl.DataFrame({"user": list("abcde"), "value": range(5)}))
    assert count_rows(path) == 5
    if extension != "parquet":
        path.write_bytes(path.read_bytes().rstrip())
        assert count_rows(path) == 5
    assert count_rows("-") is None


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
    assert (tmp_path / "m").read_bytes() == before
    assert os.listdir(tmp_path) == ["m"]
