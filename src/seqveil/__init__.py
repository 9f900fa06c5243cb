"""Release a personal data stream as it happens, with a privacy guarantee that holds even against someone who knows how
the data is correlated.

>>> import seqveil as sv
>>> model = sv.MarkovModel.fit([["home", "work", "work", "home"], ["home", "home", "work"]])
>>> session = sv.Session(model, epsilon=1.0)
>>> session.release("home") in ("home", "work")
True
>>> session.leakage <= 1.0
True
"""

from seqveil import accounting, checks, coins, distortion, errors, kernel, leakage, mechanisms
from seqveil.accounting import Budget, Schedule, compose
from seqveil.alphabet import Alphabet, Bins, Grid
from seqveil.decode import decode
from seqveil.errors import SeqveilError
from seqveil.fleet import Fleet
from seqveil.kernel import Kernel
from seqveil.model import MarkovModel
from seqveil.session import Session
from seqveil.stream import Setting

__version__ = "0.1.0"

__all__ = [
    "Alphabet",
    "Bins",
    "Budget",
    "Fleet",
    "Grid",
    "Kernel",
    "MarkovModel",
    "Schedule",
    "SeqveilError",
    "Session",
    "Setting",
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
