"""Guarded: the least error that keeps declared secrets. It needs them, so it is built where releases are made."""

from __future__ import annotations

from typing import NoReturn

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.mechanisms._base import Mechanism

NAME = "guarded"


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> NoReturn:
    """Refuses: the kernel of a guarded release follows from what was released so far and from the secrets.

    *Guarantee*: for an observer who believes the model, for every declared secret, at every time and for every outcome,
    Pr(y_1..t | E) / Pr(y_1..t | not E) lies between e^-ε and e^ε of that secret. It is a total for the whole stream.

    >>> import seqveil as sv
    >>> model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> session = sv.Session(model, "guarded", secrets=sv.secrets.ever(1, epsilon=0.5, window=20))
    >>> session.release(0) in (0, 1)
    True

    Reference: docs/secrets.md.
    """
    raise InputError(f'"{NAME}" needs more than a belief: its kernels follow from declared secrets; pass secrets=[…]')


MECHANISM = Mechanism(
    NAME,
    summary="the least error that keeps declared secrets",
    guarantee="the odds of every declared secret move by at most e^ε in total; nothing else without an ε of its own",
    trusts="the model",
    cost="O(n log n) for one secret and wrong symbols, else a linear program",
    reference="docs/secrets.md",
    sound=True,
    ldp=2.0,
    build=build,
)
