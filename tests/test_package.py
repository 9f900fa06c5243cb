"""The package as a whole: light imports, honest names, documented guarantees, and extras that are named."""

from __future__ import annotations

import doctest
import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seqveil as sv
from seqveil import mechanisms

SOURCES = sorted(Path(inspect.getfile(sv)).parent.rglob("*.py"))
HEAVY = ("scipy", "polars", "highspy", "matplotlib", "pandas", "pyarrow", "typer", "rich")
LOADED = {  # what is imported or run, and what of it must stay unloaded
    "seqveil": HEAVY,
    "seqveil.interfaces.files": ("pandas", "pyarrow"),
    "seqveil.interfaces.cli": ("scipy", "polars", "matplotlib", "highspy", "paho", "starlette", "uvicorn", "pydantic"),
    "seqveil.interfaces.cli as c; c.main(['release', '--help']); import seqveil": ("scipy", "polars", "matplotlib"),
    "seqveil.client": ("uvicorn", "pydantic", "starlette", "prometheus_client"),
    "seqveil.interfaces.service.tokens": ("uvicorn", "pydantic", "starlette", "prometheus_client"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("names", "heavy"), LOADED.items(), ids=range(len(LOADED)))
def test_imports_are_light(names, heavy):
    code = f"import sys, {names}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "seqveil" in loaded
    assert not set(loaded) & set(heavy)


def test_names_are_there_once_and_exist_and_the_version_is_that_of_the_metadata():
    assert sorted(sv.__all__) == sorted(set(sv.__all__))
    assert all(hasattr(sv, name) for name in sv.__all__)
    assert importlib.metadata.version("seqveil") == sv.__version__


@pytest.mark.parametrize("name", mechanisms.names())
def test_every_mechanism_states_its_guarantee_and_shows_itself(name):
    mechanism = mechanisms.find(name)
    if isinstance(mechanism, mechanisms.Mechanism):
        text = mechanism.build.__doc__
        assert "Reference:" in text
        assert doctest.DocTestParser().get_examples(text)
    else:
        text = inspect.getsource(inspect.getmodule(inspect.unwrap(mechanism.rule)))
    assert "*Guarantee*" in text or (not mechanism.sound and "*What it leaks*" in text)
    for part in ("summary", "guarantee", "trusts"):
        assert getattr(mechanism, part)
    assert mechanism.name == name


def test_messages_name_only_mechanisms_that_exist():
    named = {(path.name, name) for path in SOURCES for name in re.findall(r'mechanism="(\w+)"', path.read_text())}
    assert named
    assert {(path, name) for path, name in named if name not in mechanisms.names()} == set()


def test_every_error_belongs_to_the_tree():
    classes = [c for _, c in inspect.getmembers(sv.errors, inspect.isclass) if c.__module__ == "seqveil.core.errors"]
    assert len(classes) > 4
    assert all(issubclass(c, sv.SeqveilError) and c.__doc__ for c in classes)


CORE = """
import sys
for name in ("polars", "pyarrow", "pandas", "numba", "matplotlib", "starlette"):
    sys.modules[name] = None  # as if it were not installed
import seqveil as sv
model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
session = sv.Session(model, epsilon=1.0)
made = [session.release(x) for x in (0, 0, 1)]
sv.decode_stream(model, made, epsilon=1.0)
guarded = sv.Session(model, secrets=sv.secrets.ever(1, epsilon=0.5, window=4))
guarded.release(0)
sv.Session(model, epsilon=3.0, batch=3).release_batch([0, 0, 1])
from seqveil.interfaces import cli
sys.exit(cli.main(["mechanisms"]))
"""


@pytest.mark.slow
def test_sessions_and_mechanisms_work_without_the_extras():
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "optimal" in done.stdout


FILES = """
import sys
sys.modules["polars"] = None  # as if it were not installed
import seqveil as sv
from seqveil.interfaces import cli
sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]).save("m.model")
for command in ("fit d.csv -o new.model", "inspect d.csv", "release d.csv -m m.model --epsilon 1 --out r.csv",
                "audit d.csv -m m.model"):
    assert cli.main(command.split()) == 2
try:
    sv.fit
except sv.SeqveilError as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_command_that_reads_a_file_names_the_extra_and_so_does_a_function(tmp_path):
    (tmp_path / "d.csv").write_text("user,value\nann,1\nann,0\n")
    done = subprocess.run([sys.executable, "-c", FILES], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 5
    assert all(line.endswith("needs polars; in the clone of seqveil run: pip install -e '.[files]'") for line in said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.csv", "m.model"]
