"""What every alphabet offers: symbols with codes 0..n-1, a policy for values outside, and a safe saved form.

Here also are the two that cut numbers: `Bins` a number line, `Grid` a plane.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.arrays import Codes, Floats, float_array, pair_array
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.slots import NOTHING, Slots

OnUnknown = Literal["error", "hide", "nearest", "other"]
OnMissing = Literal["drop", "hold", "symbol"]
MISSING, OTHER = "missing", "other"  # symbols of values that are missing, and of rare or unknown ones
WITHHELD = -5  # the code of a release that says that nothing is said
UNKNOWN = -4  # the code of a value outside the alphabet, where it is hidden; -1 to -3 mean other things in a stream


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

    @abstractmethod
    def encode(self, values: Any) -> Codes:
        """The code of every value. One outside is UNKNOWN where the alphabet `hides`; else it raises `UnknownSymbol`
        with its `position`, never the value."""

    @abstractmethod
    def _values_of(self, codes: Codes) -> list[Any]:
        """The values of codes known to lie in 0..n-1."""

    @property
    @abstractmethod
    def points(self) -> Floats | None:
        """Where the symbols lie, for distances: (n,) or (n, 2), the latter (latitude, longitude) in degrees where the
        alphabet is `on_map`; None where values are not numbers."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """What defines the alphabet, policy apart, as JSON."""

    def encode_one(self, value: Any) -> int:
        """The code of one value."""
        return int(self.encode([value])[0])

    def decode(self, codes: ArrayLike) -> list[Any]:
        """The values of a sequence of codes, as Python objects."""
        return self._values_of(self._checked_codes(codes))

    def decode_one(self, code: int) -> Any:
        """The value that a code stands for."""
        return self.decode([code])[0]

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
            raise InputError(f'missing="symbol" needs an alphabet of names with {MISSING!r} in it; use drop or hold')
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
        copy = self.with_policy("hide" if chosen == "error" else chosen)
        copy.__dict__["hides"] = True  # of "nearest" too: nothing is near to what is not a number
        return copy

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
            raise InputError('on_unknown="other" needs a symbol "other" in the alphabet; fit it so, or use "hide"')
        if on_unknown == "nearest" and self.points is None:
            raise InputError('on_unknown="nearest" needs an alphabet of numbers; use on_unknown="error", Bins or Grid')
        self.__dict__.update(on_unknown=on_unknown, hides=on_unknown == "hide")

    def _checked_codes(self, codes: ArrayLike) -> Codes:
        array = np.asarray(codes)
        if array.size == 0:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"codes must be a flat sequence of integers 0..{self.n - 1}; got another type or shape")
        bad = (array < 0) | (array >= self.n)
        if bad.any():
            raise InputError(f"code {int(bad.argmax())} of the sequence is outside 0..{self.n - 1}; check the alphabet")
        return array.astype(np.int64)

    def _settle(self, codes: Codes) -> Codes:
        """Hide the codes that stayed -1 (unknown), or refuse the first of them."""
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

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} never changes; build a new one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n} symbols)"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Symbols):
            return NotImplemented
        same = self.on_unknown == other.on_unknown and self.missing == other.missing and self.slots == other.slots
        return same and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.n, self.on_unknown))


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

    def __init__(self, edges: ArrayLike, on_unknown: OnUnknown = "error") -> None:
        line = np.array(float_array(edges))
        if line.ndim != 1 or len(line) < 2 or not np.isfinite(line).all() or (line[1:] <= line[:-1]).any():
            raise InputError(f"edges must be 2 or more finite numbers that increase; got shape {line.shape}, sort them")
        middles = line[:-1] / 2 + line[1:] / 2  # halves first: the sum of two edges may overflow
        if ((middles < line[:-1]) | (middles >= line[1:])).any():
            raise InputError("two edges are too close to have a midpoint between them; widen the bins")
        line.flags.writeable = middles.flags.writeable = False
        self.__dict__.update(n=len(middles), edges=line, _middles=middles)
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

    @classmethod
    def quantiles(cls, values: ArrayLike, n: int, on_unknown: OnUnknown = "error") -> Bins:
        """At most `n` bins of about equal count. The edges show the data they came from: treat them as public."""
        data = np.asarray(values, dtype=np.float64).ravel()
        if n < 1 or data.size == 0 or not np.isfinite(data).all():
            raise InputError("quantile bins need n >= 1 and finite numbers; drop missing values first")
        edges = np.unique(np.quantile(data, np.linspace(0, 1, n + 1)))
        if len(edges) < 2:
            raise InputError("all numbers are equal, so there is nothing to cut; use Bins with edges of your own")
        return cls(edges, on_unknown)

    def encode(self, values: Any) -> Codes:
        """Codes of the bins that the numbers fall into; one outside all bins is treated as `on_unknown` says."""
        return self._settle(self._cells(float_array(values)))

    def _values_of(self, codes: Codes) -> list[Any]:
        return list(self.points[codes].tolist())

    @property
    def points(self) -> Floats:
        """The middle of every bin, (n,)."""
        middles: Floats = self.__dict__["_middles"]
        return middles

    def _cells(self, numbers: Floats) -> Codes:
        """Bin of every number, -1 where the policy has none."""
        codes = np.clip(np.searchsorted(self.edges, numbers, side="right") - 1, 0, self.n - 1).astype(np.int64)
        outside = np.isnan(numbers)
        if self.on_unknown != "nearest":
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
    width = 2

    def __init__(self, x_edges: ArrayLike, y_edges: ArrayLike, on_unknown: OnUnknown = "error") -> None:
        x, y = Bins(x_edges, on_unknown), Bins(y_edges, on_unknown)
        centres = np.stack([np.repeat(x.points, y.n), np.tile(y.points, x.n)], axis=1)
        centres.flags.writeable = False
        self.__dict__.update(n=x.n * y.n, x=x, y=y, _centres=centres)
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

    def encode(self, values: Any) -> Codes:
        """Codes of the cells that the pairs (x, y) fall into; one outside is treated as `on_unknown` says."""
        array = pair_array(values, self.hides)
        ix, iy = self.x._cells(array[:, 0]), self.y._cells(array[:, 1])
        return self._settle(np.where((ix < 0) | (iy < 0), -1, ix * self.y.n + iy))

    def _values_of(self, codes: Codes) -> list[Any]:
        return list(map(tuple, self.points[codes].tolist()))

    @property
    def points(self) -> Floats:
        """The centre of every cell, (n, 2)."""
        centres: Floats = self.__dict__["_centres"]
        return centres

    def _set_policy(self, on_unknown: OnUnknown) -> None:
        super()._set_policy(on_unknown)
        self.__dict__.update(x=self.x.with_policy(on_unknown), y=self.y.with_policy(on_unknown))

    def _content(self) -> dict[str, Any]:
        return {"kind": "grid", "x_edges": self.x.edges.tolist(), "y_edges": self.y.edges.tolist()}
