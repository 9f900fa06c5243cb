"""Values and their integer codes 0..n-1, with a stated policy for values outside the alphabet.

`Alphabet` takes names and numbers, `Bins` cuts a number line, `Grid` cuts a plane and `geography.Cells` cuts the map.
All share one interface (`Symbols`), never change after construction, have a safe saved form, and never show a value in
a message or a repr. Columns of any package are read as they are: a number stays the number it is, and no value is taken
for another because of its neighbours.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.errors import InputError, UnknownSymbol, option
from seqveil.core.times import NOTHING, Slots

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
OnUnknown = Literal["error", "hide", "nearest", "other"]
OnMissing = Literal["drop", "hold", "symbol"]
MISSING, OTHER = "missing", "other"  # symbols of values that are missing, and of rare or unknown ones
WITHHELD = -5  # the code of a release that says that nothing is said
UNKNOWN = -4  # the code of a value outside the alphabet, where it is hidden; -1 to -3 mean other things in a stream
_NUMBERS = (int, np.integer, float, np.floating)  # True and False are none
_PLAIN = {str, int, float, type(None)}  # types whose values are equal only where they are the same symbol


def listed(values: Any) -> list[Any]:
    """The values of a column of any package, as Python objects where it holds such."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def float_array(values: Any) -> Floats:
    """`values` as floats, NaN for whatever is not a number, so that a policy can refuse it by position."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InputError(f"expected one number per event; got an array of shape {values.shape}, pass one dimension")
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    given = listed(values)
    if set(map(type, given)) <= {int, float}:
        with contextlib.suppress(OverflowError):  # whole numbers beyond the range of a float
            return np.array(given, dtype=np.float64)
    return np.array([_float_or_nan(value) for value in given], dtype=np.float64)


def pair_array(values: Any) -> Floats:
    """`values` as a (T, 2) array of floats, NaN for whatever is not a number, or not in a pair."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 2 and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    pairs = [value if _is_pair(value) else (None, None) for value in values]
    return np.stack([float_array([pair[axis] for pair in pairs]) for axis in (0, 1)], axis=1)


def _is_pair(value: Any) -> bool:
    flat = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return flat and len(value) == 2


def _float_or_nan(value: Any) -> float:
    try:
        return float(value) if isinstance(value, _NUMBERS) and not isinstance(value, bool) else float("nan")
    except OverflowError:
        return float("nan")


class Symbols(ABC):
    """What every alphabet offers: `n`, `encode`, `decode`, `points`, a policy, and a safe saved form."""

    n: int
    on_unknown: OnUnknown
    hides: bool  # whether a value that has no code gets UNKNOWN; else it is refused
    missing: OnMissing | None = None  # what whoever reads a file does with rows that have no value; None refuses them
    slots: Slots | None = None  # whether whoever reads a file takes one symbol for each slot of time, and how
    named: bool = False  # whether values are names alone: then a slot without events needs a symbol of its own
    on_map: bool = False  # whether points are latitudes and longitudes in degrees
    width: int = 1  # in how many columns of a file a value stands

    if TYPE_CHECKING:  # an attribute of some, found when asked for by others

        @property
        def points(self) -> Floats | None:
            """Where symbols lie, for distances: (n,), or (n, 2) in a plane; None where they are no numbers."""

    @abstractmethod
    def _found(self, values: Any) -> Codes:
        """The code of every value, -1 for one that has none under the policy."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """What defines the alphabet, policy apart, as JSON."""

    def encode(self, values: Any) -> Codes:
        """The code of every value. One outside is UNKNOWN where the alphabet `hides`; else it raises `UnknownSymbol`
        with its `position`, never the value."""
        codes = self._found(values)
        bad = codes < 0
        if not bad.any():
            return codes
        if self.on_unknown == "other":
            return np.where(bad, self._code_of(OTHER) or 0, codes)
        if self.hides:
            return np.where(bad, UNKNOWN, codes)
        position = int(bad.argmax())
        if self.on_unknown == "nearest":
            why = f"is not a number, so no symbol is nearest to it ({self.n} symbols); remove or fill it first"
        else:
            remedy = 'pass on_unknown="nearest" or "hide", or refit the model with it'
            why = f"is not in the alphabet ({self.n} symbols); {remedy}"
        raise UnknownSymbol(f"value {position} of the sequence {why}", position)

    def encode_one(self, value: Any) -> int:
        """The code of one value."""
        return int(self.encode([value])[0])

    def decode(self, codes: ArrayLike) -> list[Any]:
        """The values of a sequence of codes, as Python objects."""
        found = np.asarray(self.points)[self.checked_codes(codes)].tolist()
        return found if self.width == 1 else list(map(tuple, found))

    def with_policy(self, on_unknown: OnUnknown) -> Self:
        """The same alphabet with another policy for unknown values."""
        copy = self._with()
        copy._set_policy(on_unknown)
        return copy

    def _with(self, **facts: Any) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **facts)
        return copy

    def with_missing(self, missing: OnMissing | None) -> Self:
        """The same alphabet with what is done with rows that have no value, for whoever reads a file with it."""
        if missing not in (None, "drop", "hold", "symbol"):
            raise InputError(f"expected missing values to be drop, hold or symbol, got {missing!r}")
        if missing == "symbol" and self._code_of(MISSING) is None:
            raise InputError(f"{option('missing', 'symbol')} needs a symbol {MISSING!r}; use drop or hold")
        return self._with(missing=missing)

    def with_slots(self, slots: Slots | None) -> Self:
        """The same alphabet with how times become slots, for whoever reads a file with it."""
        if slots is not None and self.named and slots.empty != "hold" and self._code_of(NOTHING) is None:
            raise InputError(f"slots need a symbol {NOTHING!r} among names, or numbers that are cut; add it")
        if slots is not None and not self.named and slots.empty == "nothing":
            raise InputError("numbers and places have no symbol for nothing; an empty slot holds the last value")
        return self._with(slots=slots)

    def _code_of(self, name: str) -> int | None:
        """The code of a symbol that stands for something else than a value of its own; None where there is none."""
        return None

    @property
    def strict(self) -> Self:
        """The same alphabet where nothing may be hidden or pooled: for fitting, and for values that were released."""
        return self.with_policy("error") if self.hides or self.on_unknown == "other" else self

    def tracked(self, on_unknown: OnUnknown | None = None) -> Self:
        """The same alphabet for a stream that receivers watch as it goes: whatever has no code is hidden.

        `on_unknown` takes the place of the policy it has; "error" is refused.
        """
        if on_unknown == "error":
            raise InputError(
                'on_unknown="error" would show receivers exactly where a value outside the alphabet stood, as the '
                'stream stops or has a hole there; use "hide", or "nearest" for numbers'
            )
        chosen = self.on_unknown if on_unknown is None else on_unknown
        # of "nearest" too: nothing is near to what is not a number
        return self.with_policy("hide" if chosen == "error" else chosen)._with(hides=True)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns back into an equal alphabet."""
        missing = {} if self.missing is None else {"missing": self.missing}
        slots = {} if self.slots is None else {"slots": self.slots.to_json()}
        return {**self._content(), "on_unknown": self.on_unknown, **missing, **slots}

    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON; the policy for unknown values does not enter."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _set_policy(self, on_unknown: OnUnknown) -> None:
        if on_unknown not in ("error", "hide", "nearest", "other"):
            raise InputError('on_unknown must be "error", "hide", "nearest" or "other"; got something else')
        if on_unknown == "other" and self._code_of(OTHER) is None:
            raise InputError(f'{option("on_unknown", "other")} needs a symbol "other"; fit it so, or use hide')
        if on_unknown == "nearest" and self.points is None:
            raise InputError(f"{option('on_unknown', 'nearest')} needs an alphabet of numbers; use error, or bins")
        self.__dict__.update(on_unknown=on_unknown, hides=on_unknown == "hide")

    def checked_codes(self, codes: ArrayLike) -> Codes:
        """A flat sequence of codes 0..n-1; anything else is refused."""
        array = np.asarray(codes)
        if array.size == 0:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"codes must be a flat sequence of integers 0..{self.n - 1}; got another type or shape")
        bad = (array < 0) | (array >= self.n)
        if bad.any():
            raise InputError(f"code {int(bad.argmax())} of the sequence is outside 0..{self.n - 1}; check the alphabet")
        return array.astype(np.int64)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} never changes; build a new one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n} symbols)"

    def __eq__(self, other: object) -> bool:
        # as text, in which 1, 1.0 and True differ
        return isinstance(other, Symbols) and json.dumps(self.to_json()) == json.dumps(other.to_json())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.n, self.on_unknown))


class Alphabet(Symbols):
    """A finite list of values, coded in the order given.

    Parameters: `values` are distinct texts, numbers but NaN, True and False, None, or tuples of these; `on_unknown` is
    "error", "nearest" (numbers only: the nearest value, the smaller of two equally near), "hide" (the code UNKNOWN, for
    which a release draws from the public belief) or "other" (the symbol "other", where there is one).

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
    _index: dict[Any, int]  # the code of each value

    def __init__(self, values: Iterable[Any], on_unknown: OnUnknown = "error") -> None:
        kept: Sequence[Any] = tuple(map(_plain, values))
        if len(kept) == 0:
            raise InputError("an alphabet needs at least one value; got none")
        for value in kept:
            _to_json_value(value)  # refuses what cannot be a symbol
        n, index = len(kept), {value: code for code, value in enumerate(kept)}
        if len(index) < n:
            raise InputError(f"the values of an alphabet must differ; {n - len(index)} of {n} are repeats, drop them")
        if all(type(value) is int and value == code for code, value in enumerate(kept)):
            kept = range(n)  # which has one saved form
        self.__dict__.update(n=n, values=kept, _index=index)
        self._set_policy(on_unknown)

    @classmethod
    def of(cls, values: Any, on_unknown: OnUnknown = "error") -> Alphabet:
        """The alphabet of what occurs: sorted where the values can be compared, else in order of appearance."""
        distinct = listed(values)
        with contextlib.suppress(TypeError):  # what cannot be hashed is no symbol, as is said when it is made one
            distinct = list(dict.fromkeys(distinct))
        with contextlib.suppress(TypeError):  # a mix that has no order
            distinct = sorted(distinct)
        return cls(distinct, on_unknown)

    def _found(self, values: Any) -> Codes:
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise InputError(f"expected one value per event; got an array of shape {values.shape}, pass one dimension")
        given = listed(values)
        look_up = self._index.get if set(map(type, given)) <= _PLAIN else self._code_or_unknown
        codes = np.fromiter(map(look_up, given, itertools.repeat(-1)), np.int64, len(given))
        if self.on_unknown == "nearest" and (codes < 0).any():
            points = np.asarray(self.points)
            numbers, order = float_array(given), np.argsort(points, kind="stable")
            line = points[order]
            far = np.flatnonzero((codes < 0) & ~np.isnan(numbers))
            codes[far] = order[np.searchsorted((line[:-1] + line[1:]) / 2, numbers[far])]
        return codes

    def _code_of(self, name: str) -> int | None:
        return self._index.get(name)

    def decode(self, codes: ArrayLike) -> list[Any]:
        """The values of a sequence of codes, as they were given."""
        return list(map(self.values.__getitem__, self.checked_codes(codes).tolist()))

    @cached_property
    def points(self) -> Floats | None:
        """The values as numbers, (n,); None where one of them is not a number."""
        numbers = float_array(self.values)
        return None if np.isnan(numbers).any() else numbers

    def _code_or_unknown(self, value: Any, unknown: int) -> int:
        try:
            value = _plain(value)
            code = self._index.get(value, unknown)
        except (TypeError, ValueError, RecursionError):  # what cannot be hashed or compared equals no symbol
            return unknown
        return code if code != unknown and _same_kind(value, self.values[code]) else unknown

    def _content(self) -> dict[str, Any]:
        if isinstance(self.values, range):
            return {"kind": "codes", "n": self.n}
        return {"kind": "alphabet", "values": [_to_json_value(value) for value in self.values]}


class Bins(Symbols):
    """Numbers cut at `edges` into len(edges)-1 bins [a, b), the last one closed; decoding gives the midpoint.

    Parameters: `edges` increase strictly; `on_unknown="nearest"` puts numbers outside the range into the end bins.
    NaN is in no bin.

    >>> heart = Bins([40, 60, 80, 120])
    >>> heart.encode([59.9, 60, 120])
    array([0, 1, 2])
    >>> heart.decode([0, 2])
    [50.0, 100.0]
    """

    edges: Floats
    points: Floats  # the middle of every bin, (n,)

    def __init__(self, edges: ArrayLike, on_unknown: OnUnknown = "error") -> None:
        line = np.array(float_array(edges))
        if line.ndim != 1 or len(line) < 2 or not np.isfinite(line).all() or (line[1:] <= line[:-1]).any():
            raise InputError(f"edges must be 2 or more finite numbers that increase; got shape {line.shape}, sort them")
        middles = line[:-1] / 2 + line[1:] / 2  # halves first: the sum of two edges may overflow
        if ((middles < line[:-1]) | (middles >= line[1:])).any():
            raise InputError("two edges are too close to have a midpoint between them; widen the bins")
        line.flags.writeable = middles.flags.writeable = False
        self.__dict__.update(n=len(middles), edges=line, points=middles)
        self._set_policy(on_unknown)

    @classmethod
    def of_width(cls, lo: float, hi: float, width: float, on_unknown: OnUnknown = "error") -> Bins:
        """Equal bins from `lo` on that cover `hi`; the last may reach past `hi` where `width` does not divide."""
        if not (math.isfinite(lo) and math.isfinite(hi) and math.isfinite(width) and lo < hi and width > 0):
            raise InputError("bins of one width need finite lo < hi and width > 0; check the three numbers")
        count = max(1, math.ceil((hi - lo) / width - 1e-9))
        edges = lo + width * np.arange(count + 1)
        edges[-1] = max(edges[-1], hi)
        return cls(edges, on_unknown)

    def _found(self, values: Any) -> Codes:
        return self._cells(float_array(values), self.on_unknown)

    def _cells(self, numbers: Floats, on_unknown: OnUnknown) -> Codes:
        """Bin of every number, -1 where the policy has none."""
        codes = np.clip(np.searchsorted(self.edges, numbers, side="right") - 1, 0, self.n - 1).astype(np.int64)
        outside = np.isnan(numbers)
        if on_unknown != "nearest":
            outside |= (numbers < self.edges[0]) | (numbers > self.edges[-1])
        codes[outside] = -1
        return codes

    def _content(self) -> dict[str, Any]:
        return {"kind": "bins", "edges": self.edges.tolist()}


class Grid(Symbols):
    """Points (x, y) on a grid of nx × ny cells; the code of a cell is ix * ny + iy, its value the cell's centre.

    Parameters: edges as in `Bins`; `on_unknown="nearest"` moves points outside to the border cells.

    >>> room = Grid.regular(4, 2, bounds=(0, 4, 0, 2))
    >>> room.encode([(0.1, 0.1), (3.9, 1.5)])
    array([0, 7])
    >>> room.decode([7])
    [(3.5, 1.5)]
    """

    x: Bins
    y: Bins
    points: Floats  # the centre of every cell, (n, 2)
    width = 2

    def __init__(self, x_edges: ArrayLike, y_edges: ArrayLike, on_unknown: OnUnknown = "error") -> None:
        x, y = Bins(x_edges), Bins(y_edges)
        centres = np.stack([np.repeat(x.points, y.n), np.tile(y.points, x.n)], axis=1)
        centres.flags.writeable = False
        self.__dict__.update(n=x.n * y.n, x=x, y=y, points=centres)
        self._set_policy(on_unknown)

    @classmethod
    def regular(
        cls, nx: int, ny: int, bounds: tuple[float, float, float, float], on_unknown: OnUnknown = "error"
    ) -> Grid:
        """nx × ny equal cells over bounds (x0, x1, y0, y1)."""
        if nx < 1 or ny < 1:
            raise InputError(f"a grid needs at least one cell each way; got {nx} by {ny}")
        x0, x1, y0, y1 = bounds
        return cls(np.linspace(x0, x1, nx + 1), np.linspace(y0, y1, ny + 1), on_unknown)

    def _found(self, values: Any) -> Codes:
        pairs = pair_array(values)
        ix, iy = (axis._cells(line, self.on_unknown) for axis, line in zip((self.x, self.y), pairs.T, strict=True))
        return np.where((ix < 0) | (iy < 0), -1, ix * self.y.n + iy)

    def _content(self) -> dict[str, Any]:
        return {"kind": "grid", "x_edges": self.x.edges.tolist(), "y_edges": self.y.edges.tolist()}


def from_json(saved: dict[str, Any]) -> Symbols:
    """The alphabet that `to_json` described."""
    from seqveil.core.geography import Cells  # it is built on what stands here

    kinds: dict[str, tuple[Callable[..., Symbols], tuple[str, ...]]] = {
        "codes": (lambda n, on_unknown: Alphabet(range(n), on_unknown), ("n",)),
        "alphabet": (Alphabet, ("values",)),
        "bins": (Bins, ("edges",)),
        "grid": (Grid, ("x_edges", "y_edges")),
        "cells": (Cells.from_rows, ("metres", "around", "south", "rows")),
    }
    try:
        made, names = kinds[saved["kind"]]
        slots = Slots(**saved["slots"]) if "slots" in saved else None
        found = made(*(_from_json_value(saved[name]) for name in names), saved["on_unknown"])
        return found.with_missing(saved.get("missing")).with_slots(slots)
    except (KeyError, TypeError, ValueError):
        raise InputError("this is not a saved alphabet: a part is missing, malformed or unknown") from None


def _plain(value: Any) -> Any:
    """NumPy scalars as the Python values they stand for, so that they save and compare as such."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _same_kind(value: Any, symbol: Any) -> bool:
    """Whether two equal values mean the same: True equals 1 in Python, but is no number."""
    if isinstance(value, tuple) and isinstance(symbol, tuple):
        return all(map(_same_kind, value, symbol))
    return type(symbol) is bool or not isinstance(value, bool)


def _to_json_value(value: Any) -> Any:
    if type(value) is tuple:
        return {"tuple": [_to_json_value(part) for part in value]}
    if type(value) is float and math.isnan(value):
        raise InputError("NaN equals nothing, so it cannot be a symbol; name missing values by a string or None")
    if type(value) is float and math.isinf(value):
        return {"float": str(value)}  # JSON has no infinity
    if type(value) in (str, int, float, bool, type(None)):
        return value
    kind = type(value).__name__
    raise InputError(f"values of type {kind} cannot be symbols; use str, int, float, bool, None or tuples of these")


def _from_json_value(saved: Any) -> Any:
    if isinstance(saved, dict):
        return float(saved["float"]) if "float" in saved else tuple(map(_from_json_value, saved["tuple"]))
    return list(map(_from_json_value, saved)) if isinstance(saved, list) else saved


def symbols_of(alphabet: Symbols | Sequence[Any]) -> Symbols:
    """An alphabet, or that of the values listed."""
    return alphabet if isinstance(alphabet, Symbols) else Alphabet(alphabet)
