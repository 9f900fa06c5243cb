"""Release a personal data stream as it happens, with a privacy guarantee that holds even against someone who knows how
the data is correlated.

>>> import seqveil as sv
>>> model = sv.MarkovModel.fit([["home", "work", "work", "home"], ["home", "home", "work"]])
>>> session = sv.Session(model, epsilon=1.0)
>>> session.release("home") in ("home", "work")
True
>>> session.leakage <= 1.0
True

The package has five rooms; a lower one never imports a higher one:

- `core`: alphabets, chains, kernels, leakage, mechanisms;
- `release`: settings, budgets, sessions and streams, and where their state is kept;
- `receive`: decoding, statistics, audits, learning from releases;
- `interfaces`: files, the command line, HTTP, MQTT, Spark, the page;
- `evaluate`: rivals, comparisons, adversaries; nothing else imports it.
"""

from importlib import import_module
from typing import Any

from seqveil.core import checks, coins, distortion, errors, kernel, leakage, mechanisms
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import SeqveilError
from seqveil.core.kernel import Kernel
from seqveil.core.model import MarkovModel
from seqveil.receive.decode import decode
from seqveil.release import accounting
from seqveil.release.accounting import Budget, Schedule, compose
from seqveil.release.session import Session
from seqveil.release.stream import Setting
from seqveil.release.streams import Streams

__version__ = "0.2.0"

__all__ = [
    "Alphabet",
    "Bins",
    "Budget",
    "Grid",
    "Kernel",
    "MarkovModel",
    "Schedule",
    "SeqveilError",
    "Session",
    "Setting",
    "Streams",
    "accounting",
    "checks",
    "coins",
    "compose",
    "decode",
    "distortion",
    "errors",
    "kernel",
    "leakage",
    "mechanisms",
]

_ON_DEMAND = {  # modules that bring more than numpy, loaded when they are first asked for
    "learn": "seqveil.receive.learn",
    "plots": "seqveil.interfaces.plots",
    "secrets": "seqveil.core.secrets",
    "statistics": "seqveil.receive.statistics",
    "store": "seqveil.release.store",
}


_FUNCTIONS = {"inspect": "seqveil.interfaces.files.inspection"}  # the same for functions


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return import_module(_ON_DEMAND[name])
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'seqveil' has no attribute {name!r}")
