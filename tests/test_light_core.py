"""Sessions and mechanisms need neither polars nor pyarrow; what reads files names the extra that brings them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.interfaces import cli

CORE = """
import sys
for name in ("polars", "pyarrow", "pandas", "numba", "matplotlib", "fastapi"):
    sys.modules[name] = None  # as if it were not installed
import seqveil as sv
model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
session = sv.Session(model, epsilon=1.0)
made = [session.release(x) for x in (0, 0, 1)]
sv.decode_stream(model, made, epsilon=1.0)
guarded = sv.Session(model, "guarded", secrets=sv.secrets.ever(1, epsilon=0.5, window=4))
guarded.release(0)
sv.Session(model, "auto", 3.0, batch=3).release_batch([0, 0, 1])
from seqveil.interfaces import cli
sys.exit(cli.main(["mechanisms"]))
"""


@pytest.mark.slow
def test_sessions_and_mechanisms_work_without_the_extras():
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "optimal" in done.stdout


@pytest.fixture
def without_polars(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)


REMEDY = r"needs polars; in the clone of seqveil run: pip install -e '\.\[files\]'$"


@pytest.mark.usefixtures("without_polars")
def test_a_command_that_reads_a_file_names_the_extra(tmp_path, capsys):
    data, model = tmp_path / "d.csv", tmp_path / "m.model"
    data.write_text("user,value\nann,1\nann,0\n")
    sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]).save(model)
    commands = [
        ["fit", str(data), "-o", str(tmp_path / "new.model")],
        ["inspect", str(data)],
        ["release", str(data), "--model", str(model), "--epsilon", "1", "--out", str(tmp_path / "r.csv")],
        ["audit", str(data), "--model", str(model), "--epsilon", "1", "--mechanism", "optimal"],
    ]
    for command in commands:
        assert cli.main(command) == 2
        said = capsys.readouterr().err.strip()
        assert "\n" not in said
        assert said.endswith("needs polars; in the clone of seqveil run: pip install -e '.[files]'"), command
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.csv", "m.model"]


@pytest.mark.usefixtures("without_polars")
def test_a_frame_without_polars_is_refused_in_one_line(tmp_path):
    class Frame:
        columns = ("user", "value")

    for ask in (
        lambda: sv.fit(Frame()),
        lambda: sv.release(Frame(), sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), epsilon=1.0),
    ):
        with pytest.raises(InputError, match=REMEDY):
            ask()


def test_the_extras_bring_what_reads_files_where_it_is_needed():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if name.startswith(("polars", "pyarrow", "pandas"))]
    extras = project["optional-dependencies"]
    assert any(name.startswith("polars") for name in extras["files"])
    for extra in ("serve", "attack", "spark"):
        assert "seqveil[files]" in extras[extra]
    demo = (Path(__file__).parents[1] / "Makefile").read_text()
    assert "-e '.[files,plots,serve" in demo
