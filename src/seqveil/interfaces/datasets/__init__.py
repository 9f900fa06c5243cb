"""Real streams to try mechanisms on, and synthetic ones that need no download.

The real sets stay outside the package: a folder is given by argument or by the environment variable SEQVEIL_DATA, and
every file is checked against the sum it was measured with. `synthetic` makes streams of each kind from a seed.

>>> names()
['msnbc', 'diginetica', 'kosarak', 'gaze_vr', 'heart_rate', 'electricity', 'geolife']
>>> kinds()
['clicks', 'items', 'sets', 'gaze', 'heart_rate', 'power', 'places']
>>> synthetic("clicks", users=3, length=5, seed=1).streams.shape
(15, 2)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqveil.core.errors import InputError
from seqveil.interfaces.datasets import generators, real
from seqveil.interfaces.datasets.dataset import Content, Dataset
from seqveil.interfaces.datasets.real import FACTS, Folder, folder_of

__all__ = ["Dataset", "kinds", "load", "missing", "names", "stand_in", "synthetic"]

_LOADERS: dict[str, Callable[..., Content]] = {name: getattr(real, name) for name in FACTS}
_MAKERS: dict[str, Callable[..., Content]] = {kind: getattr(generators, kind) for kind in generators.KINDS}


def names() -> list[str]:
    """Names of the real sets that `load` knows."""
    return list(_LOADERS)


def kinds() -> list[str]:
    """Kinds of synthetic streams."""
    return list(_MAKERS)


def load(
    name: str,
    data: str | os.PathLike[str] | None = None,
    *,
    users: int | None = None,
    verify: bool = True,
    **options: Any,
) -> Dataset:
    """A real set, cut into symbols.

    Parameters: `data` is the folder (else SEQVEIL_DATA); `users` keeps the first so many people; `verify=False` reads a
    copy of your own that has the same columns. Options of single sets: `side` of the grid (gaze_vr 100, geolife 40),
    `width` of a bin in beats a minute (heart_rate 5), `levels` (electricity 10) and their `scale`, "quantile" or "log".
    """
    if name not in _LOADERS:
        raise InputError(f"expected a data set among {', '.join(names())}, got {name!r}")
    _check_options(name, _LOADERS[name], options)
    facts = FACTS[name]
    found = _LOADERS[name](Folder(folder_of(name, data), name, verify), users, **options)
    return Dataset(name, *found, facts.order_is_real, facts.licence, facts.citation, facts.source, facts.note)


def synthetic(kind: str, users: int, length: int, seed: int = 0, **options: Any) -> Dataset:
    """Streams of one kind from a seed: `users` streams of `length` symbols. For research; no privacy rests on them.

    Each maker's docstring states the statistics it reproduces. Options: `side` of the grid (gaze 100, places 40),
    `n` items (items 5,000, sets 2,000).
    """
    if kind not in _MAKERS:
        raise InputError(f"expected a kind of stream among {', '.join(kinds())}, got {kind!r}")
    if users < 1 or length < 1:
        raise InputError(f"users and length must be >= 1; got {users} and {length}")
    _check_options(kind, _MAKERS[kind], options)
    made = _MAKERS[kind](users, length, seed, **options)
    own = "generated; nothing to cite, no terms"
    note = (inspect.getdoc(_MAKERS[kind]) or "").partition("\n")[0]
    return Dataset(f"synthetic {kind}", *made, kind != "sets", own, own, f"seed {seed}", note)


def stand_in(name: str) -> str:
    """The kind of synthetic stream that resembles a real set.

    >>> stand_in("msnbc")
    'clicks'
    """
    return FACTS[name].stand_in


def missing(name: str, data: str | os.PathLike[str] | None = None) -> list[str]:
    """The files of a set that are not in the folder (all of them where no folder is named)."""
    given = data or os.environ.get("SEQVEIL_DATA")
    return [file for file in FACTS[name].files if given is None or not (Path(given) / file).is_file()]


def _check_options(name: str, made_by: Callable[..., Content], options: dict[str, Any]) -> None:
    known = [key for key, p in inspect.signature(made_by).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {key!r}; {has}")
