"""Release a personal data stream as it happens, with a privacy guarantee that holds even against someone who knows how
the data is correlated.

>>> import seqveil as sv
>>> model = sv.MarkovModel.fit([["home", "work", "work", "home"], ["home", "home", "work"]])
>>> session = sv.Session(model, epsilon=1.0)
>>> session.release("home") in ("home", "work")
True
>>> session.leakage <= 1.0
True

The package has five layers; a lower one never imports a higher one:

- `core`: alphabets, chains, kernels, leakage, mechanisms;
- `engine`: policies, budgets, sessions and streams, and where their state is kept;
- `receiver`: decoding, statistics, audits, learning from releases;
- `interfaces`: files, the command line, HTTP, MQTT, Spark, the page;
- `evaluate`: baselines, comparisons, adversaries; nothing else imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from seqveil.core import distortion, errors, kernel, leakage, mechanisms, randomness
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import SeqveilError
from seqveil.core.geography import Cells
from seqveil.core.kernel import Kernel
from seqveil.core.model import MarkovModel
from seqveil.engine.budget import Budget, compose
from seqveil.engine.policy import Policy
from seqveil.engine.session import Session
from seqveil.engine.store import Account, Release
from seqveil.engine.streams import Streams
from seqveil.receiver.decode import decode_stream

__version__ = "0.3.0"

_LATER = {  # what brings more than numpy, loaded when it is first asked for: modules, and functions of modules
    "attack": "seqveil.evaluate.attack.files:attack",
    "audit": "seqveil.interfaces.files.receive:audit",
    "datasets": "seqveil.interfaces.datasets",
    "decode": "seqveil.interfaces.files.receive:decode",
    "fit": "seqveil.interfaces.files.fit:fit",
    "inspect": "seqveil.interfaces.files.inspection:inspect",
    "learn": "seqveil.receiver.learn",
    "planning": "seqveil.interfaces.planning",
    "plots": "seqveil.interfaces.plots",
    "release": "seqveil.interfaces.files.release:release",
    "secrets": "seqveil.core.secrets",
    "statistics": "seqveil.receiver.statistics",
    "stats": "seqveil.interfaces.files.receive:stats",
    "store": "seqveil.engine.store",
}

__all__ = [
    "Account",
    "Alphabet",
    "Bins",
    "Budget",
    "Cells",
    "Grid",
    "Kernel",
    "MarkovModel",
    "Policy",
    "Release",
    "SeqveilError",
    "Session",
    "Streams",
    "compose",
    "decode_stream",
    "distortion",
    "errors",
    "kernel",
    "leakage",
    "mechanisms",
    "randomness",
    *_LATER,
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'seqveil' has no attribute {name!r}")
    module, _, function = _LATER[name].partition(":")
    found = import_module(module)
    return getattr(found, function) if function else found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
