"""The registry of mechanisms, and the table a reader chooses from (`seqveil mechanisms`)."""

from __future__ import annotations

from seqveil.errors import InputError
from seqveil.mechanisms import balanced as _balanced
from seqveil.mechanisms import crr as _crr
from seqveil.mechanisms import crr_repaired as _crr_repaired
from seqveil.mechanisms import optimal as _optimal
from seqveil.mechanisms import randomized_response as _randomized_response
from seqveil.mechanisms._base import LARGEST, Mechanism, check_epsilon, constant

optimal = _optimal.MECHANISM
balanced = _balanced.MECHANISM
crr_repaired = _crr_repaired.MECHANISM
randomized_response = _randomized_response.MECHANISM
crr = _crr.MECHANISM

_REGISTRY = {m.name: m for m in (optimal, balanced, crr_repaired, randomized_response, crr)}


def names() -> list[str]:
    """Names of all registered mechanisms.

    >>> names()
    ['optimal', 'balanced', 'crr_repaired', 'randomized_response', 'crr']
    """
    return list(_REGISTRY)


def get(mechanism: str | Mechanism) -> Mechanism:
    """A mechanism by name; an object passes through."""
    if isinstance(mechanism, Mechanism):
        return mechanism
    if mechanism not in _REGISTRY:
        raise InputError(f"expected a mechanism among {', '.join(names())}, got {mechanism!r}")
    return _REGISTRY[mechanism]


__all__ = [
    "LARGEST",
    "Mechanism",
    "balanced",
    "check_epsilon",
    "constant",
    "crr",
    "crr_repaired",
    "get",
    "names",
    "optimal",
    "randomized_response",
]
