"""The values a secret names, as codes of an alphabet.

Values are the alphabet's own; text from a command line or a pattern may also stand for a number ("3", "2.5") or a point
("2.5,1"). A value outside the alphabet is refused whatever the alphabet's policy is: a secret about the nearest symbol
would be another secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from seqveil.core.alphabet import Codes, Symbols
from seqveil.core.errors import InputError, UnknownSymbol


def codes_of(values: tuple[Any, ...], alphabet: Symbols) -> Codes:
    """The codes of values, each once. A tuple that is no symbol itself stands for the several values it holds.

    >>> from seqveil.core.alphabet import Alphabet
    >>> codes_of((("b", "c"), "2"), Alphabet(["a", "b", "c", 2])).tolist()
    [1, 2, 3]
    """
    found: list[int] = []
    for value in values:
        code = _code(value, alphabet)
        if code is not None:
            found.append(code)
        elif isinstance(value, tuple) and value:
            found.extend(_known(part, alphabet) for part in value)
        else:
            _refuse(alphabet)
    return np.unique(np.array(found, dtype=np.int64))


def code_of_text(text: str, alphabet: Symbols) -> int:
    """The code of a value written as text."""
    return _known(text, alphabet)


def codes_within(circle: tuple[float, ...], alphabet: Symbols) -> Codes:
    """Symbols whose points lie within a circle (its centre, then its radius), the border included.

    >>> from seqveil.core.alphabet import Grid
    >>> codes_within((0.5, 0.5, 1.0), Grid.regular(3, 3, bounds=(0, 3, 0, 3))).tolist()
    [0, 1, 3]
    """
    points = alphabet.points
    if points is None:
        raise InputError("a circle needs an alphabet of numbers or points (Bins, Grid); name the values instead")
    points = points.reshape(alphabet.n, -1)
    *centre, radius = circle
    if points.shape[1] != len(centre):
        raise InputError(f"the centre of this zone has {len(centre)} numbers, the alphabet's points {points.shape[1]}")
    codes = np.flatnonzero(np.sqrt(((points - np.array(centre)) ** 2).sum(1)) <= radius * (1 + 1e-12))
    if not codes.size:
        raise InputError(f"no symbol of the alphabet ({alphabet.n}) lies in the zone; move its centre or widen it")
    return codes.astype(np.int64)


def _known(value: Any, alphabet: Symbols) -> int:
    code = _code(value, alphabet)
    return _refuse(alphabet) if code is None else code


def _code(value: Any, alphabet: Symbols) -> int | None:
    exact = alphabet.with_policy("error")
    for meaning in _meanings(value):
        try:
            return exact.encode_one(meaning)
        except (UnknownSymbol, InputError, TypeError):
            continue
    return None


def _meanings(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, str):
        for read in (int, float, lambda text: tuple(float(part) for part in text.split(","))):
            try:
                yield read(value)
            except ValueError:
                continue


def _refuse(alphabet: Symbols) -> NoReturn:
    raise InputError(
        f"a secret names a value that is not in the alphabet ({alphabet.n} symbols); check how it is written"
    )
