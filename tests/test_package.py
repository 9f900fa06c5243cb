"""The package as a whole: a light import, honest names, documented guarantees, and a state that does not grow."""

import doctest
import importlib.metadata
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from seqveil import mechanisms
from seqveil.engine.accounting import Budget

SOURCES = sorted(Path(inspect.getfile(sv)).parent.rglob("*.py"))
HEAVY = ("scipy", "polars", "highspy", "matplotlib", "pandas", "pyarrow", "typer", "rich")


@pytest.mark.slow
def test_import_is_light():
    code = "import sys, seqveil; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "seqveil" in loaded
    assert not set(loaded) & set(HEAVY)


def test_names_are_sorted_and_exist():
    assert sv.__all__ == sorted(sv.__all__)
    assert len(set(sv.__all__)) == len(sv.__all__)
    assert all(hasattr(sv, name) for name in sv.__all__)


def test_the_version_is_that_of_the_metadata():
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
    for part in ("summary", "guarantee", "trusts", "cost", "reference"):
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
    drawn = sv.errors.__doc__
    assert all(c.__name__ in drawn for c in classes)


def size_of(value):
    """Bytes of all arrays in a nested state."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(size_of(getattr(value, f.name)) for f in fields(value)) if hasattr(value, "__dataclass_fields__") else 0


KINDS = {
    "plain": {},
    "total": {"budget": Budget(total=5.0)},
    "window": {"budget": Budget(per_window=2.0, releases=5)},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("rows", [[[0.9, 0.1], [0.1, 0.9]], [[0.9, 0.1], [1.0, 0.0]]], ids=["full", "sparse"])
def test_the_state_of_a_stream_does_not_grow(options, rows):
    session = sv.Session(sv.MarkovModel([0.5, 0.5], rows), mechanism="balanced", epsilon=0.5, seed=1, **options)
    sizes = []
    for step in range(1000):
        session.release(step % 2)
        if step + 1 in (10, 1000):
            sizes.append(size_of(session._state))
    assert sizes[0] == sizes[1]
    assert set(vars(session)) == set(vars(sv.Session(session.setting.model, epsilon=0.5)))
