"""The command in a process of its own: pipes, readers that leave, and signals at any moment."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from seqveil import MarkovModel
from seqveil.interfaces.cli import main

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "seqveil"]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "words.model"
    MarkovModel(np.full(4, 0.25), 0.2 * np.eye(4) + 0.2, alphabet=list("abcd")).save(path)
    return path


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("user,seq,value\n" + "".join(f"u{k % 7},{k // 7},{'abcd'[k % 4]}\n" for k in range(60)))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.csv"
    rows = np.arange(500_000)
    users = pl.Series("user", rows % 900).cast(pl.String)
    values = pl.Series("value", list("abcd")).gather(rows // 900 % 4)
    pl.DataFrame([users, values]).write_csv(path)
    return path


def test_pipes_in_and_out(words, model, tmp_path, capsys):
    args = [*PROGRAM, "release", "-", "-m", model, "-e", "1", "--out", "-", "--meta", tmp_path / "side.json", "--json"]
    said = subprocess.run(args, input=words.read_bytes(), capture_output=True, check=True)
    lines = said.stdout.decode().splitlines()
    assert lines[0] == "user,seq,value,epsilon"
    assert len(lines) == len(words.read_text().splitlines())
    assert json.loads(said.stderr)["releases"] == len(lines) - 1
    (tmp_path / "r.csv").write_bytes(said.stdout)
    main(["audit", str(tmp_path / "r.csv"), "-m", str(model), "--meta", str(tmp_path / "side.json"), "--json"])
    assert json.loads(capsys.readouterr().out)["passed"] is True  # whether these rows follow the model is chance


def test_a_reader_that_leaves_is_no_error(large, model):
    args = [*PROGRAM, "release", large, "-m", model, "-e", "1", "--out", "-"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"user,value,epsilon\n"
        process.stdout.close()
        assert b"error" not in process.stderr.read()


def test_a_reader_that_never_came_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone:
        buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # so that it shows only when the output is flushed
        args = [*PROGRAM, "mechanisms", "--json"]
        said = subprocess.run(args, stdout=gone, stderr=subprocess.PIPE, check=False, env=buffered)
    assert (said.returncode, said.stderr) == (1, b"")


DROPPED = """
import signal
from seqveil.interfaces.commands import terminal

def closed_by_a_signal():
    try:
        yield
    finally:
        signal.raise_signal(signal.SIGINT)

try:
    with terminal.interruptible():
        generator = closed_by_a_signal()
        next(generator)
        del generator  # Python drops what is raised here
        with terminal.progress("x") as meter:
            meter.advance(1)
except terminal.Interrupted:
    print("noticed")
"""


def test_a_signal_that_python_drops_still_ends_the_run():
    """A signal may come while a finaliser runs, where exceptions are lost: the run ends at the next rows."""
    said = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, check=True)
    assert said.stdout == b"noticed\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(large, model, tmp_path, number):
    folder = tmp_path / "out"
    folder.mkdir()
    args = [*PROGRAM, "fit", "-", "--out", folder / "out.model"]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(large.read_bytes()[:1_000_000])  # more than a pipe holds, so it reads
        process.send_signal(number)
        assert process.stderr.read().decode() == "interrupted; no file was written\n"
        assert process.wait() == 1
    assert os.listdir(folder) == []
