"""Values and their integer codes 0..n-1, with a stated policy for values outside the alphabet.

`Alphabet` takes any hashable values, `Bins` cuts a number line, `Grid` cuts a plane and `Cells` cuts the map. All share
one interface (`Symbols`), never change after construction, and never show a value in a message or a repr. Columns of
any package are read as they are: no value is taken for another because of its neighbours.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.arrays import (
    Codes,
    Floats,
    comes_from,
    exact_integers,
    float_array,
    number_array,
    scalar,
)
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.slots import Slots
from seqveil.core.symbols import MISSING, OTHER, UNKNOWN, WITHHELD, Bins, Grid, OnMissing, OnUnknown, Symbols

_PLAIN = {str, int, float, bytes, type(None)}  # types whose values are equal only where they are the same symbol


class Alphabet(Symbols):
    """A finite list of values, coded in the order given.

    Parameters: `values` are hashable and distinct; `on_unknown` is "error", "nearest" (numbers only: the nearest
    value, the smaller of two equally near), "hide" (the code UNKNOWN, for which a release draws from the public
    belief) or "other" (the symbol "other", where there is one). NaN is refused as a value and is never near anything.

    >>> pages = Alphabet(["news", "sport", "weather"])
    >>> pages.encode(["sport", "news"])
    array([1, 0])
    >>> pages.decode([2, 2])
    ['weather', 'weather']
    >>> Alphabet([0, 10, 20], on_unknown="nearest").encode([3.2, 99])
    array([0, 2])
    """

    values: Sequence[Any]
    named = True

    def __init__(self, values: Iterable[Hashable], on_unknown: OnUnknown = "error") -> None:
        kept: Sequence[Any] = tuple(map(_plain, values))
        if len(kept) == 0:
            raise InputError("an alphabet needs at least one value; got none")
        n = len(kept)
        if all(type(value) is int and value == code for code, value in enumerate(kept)):
            kept = range(n)  # codes 0..n-1 need no dictionary and have one saved form
        self.__dict__.update(n=n, values=kept)
        if not isinstance(kept, range):
            self._refuse_duplicates()
        self._set_policy(on_unknown)

    @classmethod
    def of(cls, values: Any, on_unknown: OnUnknown = "error") -> Alphabet:
        """The alphabet of what occurs: sorted where the values can be compared, else in order of appearance."""
        if comes_from(values, "polars", "pandas"):
            values = values.unique().to_list() if comes_from(values, "polars") else values.unique().tolist()
        elif isinstance(values, np.ndarray):
            values = (np.unique(values) if values.dtype.kind != "O" else values).tolist()
        try:
            distinct = list(dict.fromkeys(values))
        except TypeError:
            raise InputError("values must be hashable (strings, numbers, tuples); got one that is not") from None
        with contextlib.suppress(TypeError):  # a mix that has no order
            distinct = sorted(distinct)
        return cls(distinct, on_unknown)

    @classmethod
    def codes(cls, n: int, on_unknown: OnUnknown = "error") -> Alphabet:
        """The integers 0..n-1, each its own code."""
        if n < 1:
            raise InputError(f"an alphabet needs n >= 1 symbols; got n={n}")
        return cls(range(n), on_unknown)

    def encode(self, values: Any) -> Codes:
        """Codes of the values, (B,); a value that is not in the alphabet is treated as `on_unknown` says."""
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise InputError(f"expected one value per event; got an array of shape {values.shape}, pass one dimension")
        if not (isinstance(values, Sequence | np.ndarray) or comes_from(values, "polars", "pandas")):
            values = list(values)
        array = number_array(values) if self._exact else None
        if array is not None and not self._comparable(array):
            array = None
        codes = self._encode_objects(values) if array is None else self._encode_numbers(array)
        if self.on_unknown == "nearest" and (codes < 0).any():
            numbers = float_array(values)
            far = np.flatnonzero((codes < 0) & ~np.isnan(numbers))
            codes[far] = self._nearest(numbers[far])
        return self._settle(codes)

    def encode_one(self, value: Any) -> int:
        """The code of a single value, looked up without an array."""
        if isinstance(self.values, range):
            known = type(value) is int and 0 <= value < self.n
            return value if known else super().encode_one(value)
        code = self._code_or_unknown(value)
        return code if code >= 0 else super().encode_one(value)

    def decode_one(self, code: int) -> Any:
        """The value that a code stands for, looked up without an array."""
        return self.values[code] if type(code) is int and 0 <= code < self.n else super().decode_one(code)

    def _code_of(self, name: str) -> int | None:
        return None if isinstance(self.values, range) else self._index.get(name)

    def _values_of(self, codes: Codes) -> list[Any]:
        return list(map(self.values.__getitem__, codes.tolist()))

    @cached_property
    def points(self) -> Floats | None:
        """The values as numbers, (n,); None where one of them is not a number."""
        if isinstance(self.values, range):
            return np.arange(self.n, dtype=np.float64)
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values):
            return None
        try:
            return np.array(self.values, dtype=np.float64)
        except OverflowError:
            return None

    @cached_property
    def _exact(self) -> bool:
        """Whether numpy can compare the values without rounding any of them."""
        if isinstance(self.values, range) or self.points is None:
            return self.points is not None
        return np.asarray(self.values).dtype == np.int64 or all(float(value) == value for value in self.values)

    def _comparable(self, array: NDArray[Any]) -> bool:
        """Whether numpy can compare these numbers with the values without rounding any of them."""
        floats = not isinstance(self.values, range) and self._sorted[0].dtype != np.int64
        return not (floats and array.dtype.kind in "iu" and array.size) or bool(
            (array <= 2**53).all() and (array.dtype.kind == "u" or (array >= -(2**53)).all())
        )

    @cached_property
    def _index(self) -> dict[Any, int]:
        return {value: code for code, value in enumerate(self.values)}

    @cached_property
    def _sorted(self) -> tuple[NDArray[Any], Codes]:
        """The numbers in increasing order (int64 where all are such integers), and their codes."""
        numbers = np.asarray(self.values)
        if numbers.dtype != np.int64:
            numbers = np.asarray(self.values, dtype=np.float64)
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order.astype(np.int64)

    def _refuse_duplicates(self) -> None:
        try:
            duplicates = self.n - len(self._index)
        except TypeError:
            raise InputError("values must be hashable (strings, numbers, tuples); got one that is not") from None
        if duplicates:
            raise InputError(f"the values of an alphabet must differ; {duplicates} of {self.n} are repeats, drop them")
        if any(map(_is_nan, self.values)):
            raise InputError("NaN equals nothing, so it cannot be a symbol; name missing values by a string or None")

    def _encode_numbers(self, array: NDArray[Any]) -> Codes:
        known, order = (None, None) if isinstance(self.values, range) else self._sorted
        if known is None or known.dtype == np.int64:
            exact, integral = exact_integers(array)
        else:
            exact, integral = array.astype(np.float64), np.ones(array.shape, bool)
        if known is None or order is None:
            return np.where(integral & (exact >= 0) & (exact < self.n), exact, -1).astype(np.int64)
        place = np.minimum(np.searchsorted(known, exact), self.n - 1)
        return np.where(integral & (known[place] == exact), order[place], -1).astype(np.int64)

    def _nearest(self, numbers: Floats) -> Codes:
        points = self.points
        assert points is not None  # the policy was refused otherwise
        order = np.argsort(points, kind="stable")
        line = points[order]
        nearest: Codes = order[np.searchsorted((line[:-1] + line[1:]) / 2, numbers)]
        return nearest

    def _encode_objects(self, values: Any) -> Codes:
        if comes_from(values, "polars"):
            import polars as pl

            if values.dtype == pl.String and all(type(value) is str for value in self.values):
                coded = values.replace_strict(self.values, range(self.n), default=-1, return_dtype=pl.Int64)
                return np.asarray(coded.to_numpy(), dtype=np.int64)
            values = values.to_list()
        elif isinstance(values, np.ndarray) or comes_from(values, "pandas"):
            values = values.tolist()
        if set(map(type, values)) <= _PLAIN:
            return np.fromiter(map(self._index.get, values, itertools.repeat(-1)), np.int64, len(values))
        return np.fromiter(map(self._code_or_unknown, values), np.int64, len(values))

    def _code_or_unknown(self, value: Any) -> int:
        value = scalar(value)
        try:
            code = self._index.get(value, -1)
        except (TypeError, ValueError, RecursionError):  # what cannot be hashed or compared equals no symbol
            return -1
        return code if code >= 0 and _same_kind(value, self.values[code]) else -1

    def _content(self) -> dict[str, Any]:
        if isinstance(self.values, range):
            return {"kind": "codes", "n": self.n}
        return {"kind": "alphabet", "values": [_to_json_value(value) for value in self.values]}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Alphabet):
            return NotImplemented
        same = self.on_unknown == other.on_unknown and self.missing == other.missing and self.slots == other.slots
        return (
            same
            and self.values == other.values
            and all(type(a) is type(b) for a, b in zip(self.values, other.values, strict=True))
        )

    __hash__ = Symbols.__hash__


def from_json(saved: dict[str, Any]) -> Symbols:
    """The alphabet that `to_json` described.

    >>> from_json(Bins([0, 1, 2]).to_json()) == Bins([0, 1, 2])
    True
    """
    try:
        slots = Slots(**saved["slots"]) if "slots" in saved else None
        found = _of_kind(saved)
        if found is not None:
            return found.with_missing(saved.get("missing")).with_slots(slots)
    except (KeyError, TypeError, ValueError):
        raise InputError("this is not a saved alphabet (a part is missing or malformed); save it again") from None
    raise InputError("this is not a saved alphabet (its kind is unknown); save it again with this version")


def _of_kind(saved: dict[str, Any]) -> Symbols | None:
    kind, policy = saved["kind"], saved["on_unknown"]
    if kind == "codes":
        return Alphabet.codes(saved["n"], policy)
    if kind == "alphabet":
        return Alphabet([_from_json_value(value) for value in saved["values"]], policy)
    if kind == "bins":
        return Bins(saved["edges"], policy)
    if kind == "grid":
        return Grid(saved["x_edges"], saved["y_edges"], policy)
    from seqveil.core.places import Cells  # it is built on what stands here

    if kind == "cells":
        return Cells.from_rows(saved["metres"], saved["around"], saved["south"], saved["rows"], policy)
    return None


def _plain(value: Any) -> Any:
    """NumPy scalars as the Python values they stand for, so that they save and compare as such."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _same_kind(value: Any, symbol: Any) -> bool:
    """Whether two equal values mean the same: True equals 1 in Python, but is no number."""
    if isinstance(value, tuple) and isinstance(symbol, tuple):
        return all(map(_same_kind, value, symbol))
    return type(symbol) is bool or not isinstance(value, bool | np.bool_)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _to_json_value(value: Any) -> Any:
    if type(value) is tuple:
        return {"tuple": [_to_json_value(part) for part in value]}
    if type(value) is float and math.isinf(value):
        return {"float": str(value)}  # JSON has no infinity
    if type(value) in (str, int, float, bool, type(None)):
        return value
    kind = type(value).__name__
    raise InputError(f"values of type {kind} cannot be saved; use str, int, float, bool, None or tuples of these")


def _from_json_value(saved: Any) -> Any:
    if isinstance(saved, dict):
        return float(saved["float"]) if "float" in saved else tuple(map(_from_json_value, saved["tuple"]))
    return saved


def symbols_of(alphabet: Symbols | Sequence[Any] | None, n: int | None) -> Symbols:
    """The symbols that are named, or codes 0..n-1."""
    if alphabet is None:
        if n is None or n < 1:
            raise DataError("an alphabet or its size n >= 1 is needed; got neither")
        return Alphabet.codes(n)
    found = alphabet if isinstance(alphabet, Symbols) else Alphabet(alphabet)
    if n is not None and found.n != n:
        raise ModelError(f"the alphabet has {found.n} symbols but n={n} were expected; they must agree")
    return found


__all__ = [
    "MISSING", "OTHER", "UNKNOWN", "WITHHELD", "Alphabet", "Bins", "Codes", "Floats", "Grid", "OnMissing", "OnUnknown",
    "Symbols", "comes_from", "from_json", "symbols_of",
]  # fmt: skip
