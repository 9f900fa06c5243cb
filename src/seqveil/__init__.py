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

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

from seqveil import _hangup as _hangup
from seqveil.core import checks, coins, distortion, errors, kernel, leakage, mechanisms
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import SeqveilError
from seqveil.core.kernel import Kernel
from seqveil.core.model import MarkovModel
from seqveil.core.places import Cells, Places
from seqveil.receive.decode import decode as _decode_stream
from seqveil.release import accounting
from seqveil.release.accounting import Budget, Schedule, compose
from seqveil.release.session import Session
from seqveil.release.stream import Setting
from seqveil.release.streams import Streams

if TYPE_CHECKING:
    from seqveil.core.kernel import Floats
    from seqveil.interfaces.frames import Estimates

__version__ = "0.2.0"

__all__ = [
    "Alphabet",
    "Bins",
    "Budget",
    "Cells",
    "Grid",
    "Kernel",
    "MarkovModel",
    "Places",
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


_FUNCTIONS = {  # the same for functions
    "attack": "seqveil.evaluate.attack_files",
    "audit": "seqveil.interfaces.frames",
    "fit": "seqveil.interfaces.frames",
    "inspect": "seqveil.interfaces.files.inspection",
    "stats": "seqveil.interfaces.frames",
}


@overload
def decode(model: MarkovModel, released: Sequence[Any], *more: Any, **words: Any) -> Floats: ...


@overload
def decode(released: Any, model: Any, **words: Any) -> Estimates: ...


def decode(*given: Any, **words: Any) -> Any:
    """What a receiver makes of releases: of one stream, or of the rows of a frame or a file.

    `decode(model, released, mechanism, epsilon, ...)` gives the law of every symbol of one stream
    (`seqveil.receive.decode.decode`); `decode(released, model, ...)`, with what `sv.release` gave back, a frame or a
    path, gives the best estimate of every row (`seqveil.interfaces.frames.decode`).
    """
    if given:
        one_stream = isinstance(given[0], MarkovModel)
    else:
        released = words.get("released")
        rows = isinstance(released, str | PathLike) or any(hasattr(released, n) for n in ("columns", "schema", "frame"))
        one_stream = not rows
    function = _decode_stream if one_stream else import_module("seqveil.interfaces.frames").decode
    return function(*given, **words)


class _ReleaseRoom(ModuleType):
    """The room `seqveil.release`, which is a function as well: `sv.release(data, model, epsilon=1.0)`."""

    def __call__(self, *given: Any, **words: Any) -> Any:
        """Release every row of a frame or a file; see `seqveil.interfaces.frames.release`."""
        return import_module("seqveil.interfaces.frames").release(*given, **words)


sys.modules["seqveil.release"].__class__ = _ReleaseRoom


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return import_module(_ON_DEMAND[name])
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'seqveil' has no attribute {name!r}")
