"""The registry of mechanisms, and the table a reader chooses from (`seqveil mechanisms`)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import auto as _auto
from seqveil.core.mechanisms import balanced as _balanced
from seqveil.core.mechanisms import batch_descent as _batch_descent
from seqveil.core.mechanisms import batch_lp as _batch_lp
from seqveil.core.mechanisms import crr as _crr
from seqveil.core.mechanisms import crr_repaired as _crr_repaired
from seqveil.core.mechanisms import guarded as _guarded
from seqveil.core.mechanisms import optimal as _optimal
from seqveil.core.mechanisms import randomized_response as _randomized_response
from seqveil.core.mechanisms import tree as _tree
from seqveil.core.mechanisms import tree_refined as _tree_refined
from seqveil.core.mechanisms._base import LARGEST, Mechanism, check_epsilon, constant
from seqveil.core.mechanisms._batch import Batch, BatchMechanism, Sent

optimal = _optimal.MECHANISM
balanced = _balanced.MECHANISM
crr_repaired = _crr_repaired.MECHANISM
randomized_response = _randomized_response.MECHANISM
crr = _crr.MECHANISM
guarded = _guarded.MECHANISM
auto = _auto.MECHANISM
tree = _tree.TREE
tree_refined = _tree_refined.MECHANISM
tree_ldp = _tree.TREE_LDP
batch_lp = _batch_lp.MECHANISM
batch_descent = _batch_descent.MECHANISM

_ONE_BY_ONE = {m.name: m for m in (optimal, balanced, crr_repaired, randomized_response, crr)}
_BATCHED = {m.name: m for m in (auto, tree, tree_refined, tree_ldp, batch_lp, batch_descent)}
_FOR_SECRETS = {guarded.name: guarded}

PLUGINS = "seqveil.mechanisms"  # the group of entry points under which other packages offer tuples of mechanisms


@cache
def plugged() -> dict[str, Mechanism]:
    """Mechanisms that an installed package offers by an entry point, by name: the rivals of `seqveil.evaluate`, say."""
    offered = [mechanism for point in entry_points(group=PLUGINS) for mechanism in point.load()]
    return {mechanism.name: mechanism for mechanism in offered}


def names() -> list[str]:
    """Names of all registered mechanisms: one symbol at a time, then batches, then those that need declared secrets.

    >>> len(names()) == len(instantaneous()) + len(batched()) + len(for_secrets())
    True
    """
    return instantaneous() + batched() + for_secrets()


def instantaneous() -> list[str]:
    """Names of the mechanisms that release one symbol at a time.

    >>> instantaneous()[:5]
    ['optimal', 'balanced', 'crr_repaired', 'randomized_response', 'crr']
    >>> instantaneous()[5:]
    ['optimal_ldp', 'mutual_information', 'topl', 'temporal', 'temporal_restricted']
    """
    return [*_ONE_BY_ONE, *plugged()]


def batched() -> list[str]:
    """Names of the mechanisms that release w symbols at a time (w = 1 included).

    >>> batched()
    ['auto', 'tree', 'tree_refined', 'tree_ldp', 'batch_lp', 'batch_descent']
    """
    return list(_BATCHED)


def for_secrets() -> list[str]:
    """Names of the mechanisms that keep declared secrets, one symbol at a time; without secrets they do not release.

    >>> for_secrets()
    ['guarded']
    """
    return list(_FOR_SECRETS)


def find(mechanism: str | Mechanism | BatchMechanism) -> Mechanism | BatchMechanism:
    """A mechanism of either kind by name; an object passes through."""
    if not isinstance(mechanism, str):
        return mechanism
    if mechanism in _ONE_BY_ONE:
        return _ONE_BY_ONE[mechanism]
    if mechanism in _BATCHED:
        return _BATCHED[mechanism]
    if mechanism in _FOR_SECRETS:
        return _FOR_SECRETS[mechanism]
    if mechanism in plugged():
        return plugged()[mechanism]
    raise InputError(f"expected a mechanism among {', '.join(names())}, got {mechanism!r}")


def one_by_one(n: int, distortion: Distortion, epsilon: float | None) -> str:
    """What `auto` takes for single symbols: the exact optimum where it is quick, else the tree over the alphabet.

    >>> from seqveil.core.distortion import absolute, hamming
    >>> one_by_one(43_097, hamming(), 1.0), one_by_one(300, absolute(range(300)), 1.0)
    ('optimal', 'tree')
    """
    quick = _optimal.fits(n, epsilon or LARGEST) if distortion.is_hamming else n <= _optimal.QUICK
    return "optimal" if quick else "tree"


def get(mechanism: str | Mechanism | BatchMechanism) -> Mechanism:
    """A mechanism that releases one symbol at a time."""
    found = find(mechanism)
    if isinstance(found, Mechanism):
        return found
    raise InputError(f'"{found.name}" releases batches; expected one of {", ".join(instantaneous())}')


def get_batched(mechanism: str | Mechanism | BatchMechanism) -> BatchMechanism:
    """A mechanism that releases batches."""
    found = find(mechanism)
    if isinstance(found, BatchMechanism):
        return found
    raise InputError(f'"{found.name}" releases one symbol at a time; for batches use one of {", ".join(batched())}')


__all__ = [
    "LARGEST",
    "Batch",
    "BatchMechanism",
    "Mechanism",
    "Sent",
    "auto",
    "balanced",
    "batch_descent",
    "batch_lp",
    "batched",
    "check_epsilon",
    "constant",
    "crr",
    "crr_repaired",
    "find",
    "for_secrets",
    "get",
    "get_batched",
    "guarded",
    "instantaneous",
    "names",
    "one_by_one",
    "optimal",
    "plugged",
    "randomized_response",
    "tree",
    "tree_ldp",
    "tree_refined",
]
