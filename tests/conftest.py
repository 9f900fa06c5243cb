"""What several files of tests use: the real command in this process, and a folder with data to release."""

import json
import os
from typing import Any, NamedTuple

# workers share the cores: threads of a classifier that wait for one another cost ten times what they bring
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, settings

from seqveil import MarkovModel
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import terminal

settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # no test goes by the clock
settings.load_profile("busy")


class Run(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _no_progress_in_a_log(monkeypatch):
    """What a command says does not depend on how long it took."""
    monkeypatch.setattr(terminal, "LOGGED", 1e6)


@pytest.fixture
def seqveil(capfd):
    """Runs a command as `seqveil("release", path, …)`."""

    def run(*args):
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        return Run(code, *capfd.readouterr())

    return run


@pytest.fixture
def longest(monkeypatch):
    """Sets the most events of a stream that a secret may be about: `longest(4)`."""
    from seqveil.core.secrets import ahead

    def at_most(events):
        monkeypatch.setattr(ahead, "LONGEST", events)
        ahead.ahead.cache_clear()

    yield at_most
    ahead.ahead.cache_clear()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder: raw.csv has ten events each of 20 users, in two symbols, and m is their model."""
    monkeypatch.chdir(tmp_path)
    model = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.2, 0.8]], alphabet=["a", "b"])
    model.save("m")
    values = ["ab"[x] for x in model.sample(10, users=20, seed=1).ravel()]
    pl.DataFrame({"user": np.repeat(np.arange(20), 10), "value": values}).write_csv("raw.csv")
    return tmp_path


@pytest.fixture(scope="session")
def browser():
    """Chromium, for all tests."""
    from browsing import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def page_server():
    """The page on a server of its own, for all tests."""
    from studios import studio

    with studio() as found:
        yield found


@pytest.fixture
def bridged(tmp_path):
    """Topics, devices and receivers at a broker that no other test uses."""
    from bridges import alone

    with alone(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def one_salt():
    """All states of a module share their salt, so that one key draws the same for the same events in each of them."""
    from seqveil.core.randomness import KeyedRandomness

    salted = KeyedRandomness.of_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            KeyedRandomness, "of_state", lambda randomness, setting, salt: salted(randomness, setting, b"one")
        )
        yield
