"""Symbols as JSON: text, numbers, true, false and null as they are, pairs and tuples as lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seqveil.core.alphabet import Codes, OnUnknown, Symbols
from seqveil.core.errors import InputError


class Wording:
    """Codes from JSON values and back. A value that has no code is UNKNOWN: no answer shows that it was sent.

    >>> from seqveil.core.alphabet import Alphabet, Grid
    >>> Wording(Alphabet(["rest", "run"])).encode(["run", "rest"])
    array([1, 0])
    >>> Wording(Grid.regular(4, 2, bounds=(0, 4, 0, 2))).shown[7]
    [3.5, 1.5]
    """

    def __init__(self, alphabet: Symbols, on_unknown: OnUnknown | None = None) -> None:
        self._alphabet = alphabet.watched(on_unknown)
        self.shown: list[Any] = [_as_json(value) for value in alphabet.decode(np.arange(alphabet.n))]

    def encode(self, values: list[Any]) -> Codes:
        """The codes of values."""
        given = [tuple(value) if type(value) is list else value for value in values]
        if len(given) == 1:
            return np.array([self._alphabet.encode_one(given[0])], np.int64)
        return self._alphabet.encode(given)


def _as_json(value: Any) -> Any:
    if type(value) is tuple and all(type(part) is not tuple for part in value):
        return [_as_json(part) for part in value]
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    raise InputError(
        "the service speaks JSON: expected an alphabet of text, finite numbers, true, false, null or flat tuples of "
        "these; fit the model with such values"
    )
