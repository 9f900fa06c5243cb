"""What every alphabet shares: the interface, the policy for unknown values, and reading of columns of any package."""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core.errors import InputError, UnknownSymbol

OnUnknown = Literal["error", "hide", "nearest"]
WITHHELD = -5  # the code of a release that says that nothing is said
UNKNOWN = -4  # the code of a value outside the alphabet, where it is hidden; -1 to -3 mean other things in a stream
Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

_WHOLE, _FLOATS = (int, np.integer), (float, np.floating)
_FAMILIES = ((_WHOLE, "iu"), (_FLOATS, "f"))
_NO_PAIR = (float("nan"), float("nan"))


class Symbols(ABC):
    """What every alphabet offers: `n`, `encode`, `decode`, `points`, a policy, and a safe saved form."""

    n: int
    on_unknown: OnUnknown
    hides: bool  # whether a value that has no code gets UNKNOWN; else it is refused

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
        """Where the symbols lie, for distances: (n,) or (n, 2); None where values are not numbers."""

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
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._set_policy(on_unknown)
        return copy

    @property
    def strict(self) -> Self:
        """The same alphabet where nothing may be hidden: for fitting, and for values that were released."""
        return self.with_policy("error") if self.hides else self

    def watched(self, on_unknown: OnUnknown | None = None) -> Self:
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
        return {**self._content(), "on_unknown": self.on_unknown}

    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON; the policy for unknown values does not enter."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _set_policy(self, on_unknown: OnUnknown) -> None:
        if on_unknown not in ("error", "hide", "nearest"):
            raise InputError('on_unknown must be "error", "hide" or "nearest"; got something else')
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
        if not self.hides:
            _raise_unknown(int(bad.argmax()), self.n, self.on_unknown)
        return np.where(bad, UNKNOWN, codes)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} never changes; build a new one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n} symbols)"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Symbols):
            return NotImplemented
        return self.on_unknown == other.on_unknown and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.n, self.on_unknown))


def _raise_unknown(position: int, n: int, on_unknown: str) -> NoReturn:
    if on_unknown == "nearest":
        why = f"is not a number, so no symbol is nearest to it ({n} symbols); remove or fill it first"
    else:
        why = f'is not in the alphabet ({n} symbols); pass on_unknown="nearest" or "hide", or refit the model with it'
    error = UnknownSymbol(f"value {position} of the sequence {why}")
    vars(error)["position"] = position  # lets a file reader name the row
    raise error


def comes_from(values: Any, *packages: str) -> bool:
    """Whether the type of `values` belongs to one of the packages, told without importing any of them."""
    return type(values).__module__.split(".")[0] in packages


def number_array(values: Any) -> NDArray[Any] | None:
    """`values` as a flat array of numbers, or None where that would change what any of them is.

    A list is one only where all of it is whole numbers or all of it floats: beside a float, numpy would round whole
    numbers beyond 2**53, and a value would be taken for another because of its neighbours. True and False are none.
    """
    if comes_from(values, "polars") and values.dtype.is_integer() and values.null_count():
        return None  # as floats, beside missing values, whole numbers beyond 2**53 would change
    if comes_from(values, "polars", "pandas"):
        values = values.to_numpy()
    if not isinstance(values, np.ndarray):
        values = values if isinstance(values, list | tuple | range) else list(values)
        wanted = next((kind for family, kind in _FAMILIES if _all_of(values, family)), None)
        if wanted is None:
            return None
        try:
            values = np.asarray(values) if len(values) else np.zeros(0)
        except OverflowError:  # integers beyond 64 bits
            return None
        if values.size and values.dtype.kind not in wanted:  # whole numbers on both sides of what 64 bits hold
            return None
    return values if values.ndim == 1 and values.dtype.kind in "iuf" else None


def float_array(values: Any) -> Floats:
    """`values` as floats, NaN for whatever is not a number, so that a policy can refuse it by position."""
    if isinstance(values, list | tuple) and _all_of(values, (*_WHOLE, *_FLOATS)):
        with contextlib.suppress(OverflowError):  # whole numbers beyond the range of a float
            return np.array(values, dtype=np.float64)
    array = number_array(values)
    if array is not None:
        return array.astype(np.float64)
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InputError(f"expected one number per event; got an array of shape {values.shape}, pass one dimension")
    return np.array([_float_or_nan(value) for value in values], dtype=np.float64)


def pair_array(values: Any, hides: bool = False) -> Floats:
    """`values` as a (T, 2) array of floats, NaN for whatever is not a number, and for no pair where it `hides`."""
    if comes_from(values, "polars", "pandas"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 2 and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    if not isinstance(values, np.ndarray) or values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 2):
        given = list(values)
        paired = list(map(_is_pair, given))
        if hides or all(paired):
            pairs = [pair if fits else _NO_PAIR for pair, fits in zip(given, paired, strict=True)]
            return np.stack([float_array([pair[axis] for pair in pairs]) for axis in (0, 1)], axis=1)
    raise InputError("a grid takes pairs (x, y) or an array of shape (T, 2); got another shape, pair the columns first")


def exact_integers(array: NDArray[Any]) -> tuple[Codes, NDArray[np.bool_]]:
    """`array` as int64, and where that changed nothing."""
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (np.abs(array) < 2.0**63) & (np.floor(array) == array)
        return np.where(whole, array, 0).astype(np.int64), whole
    if array.dtype == np.uint64:
        fits = array < np.uint64(2**63)
        return np.where(fits, array, 0).astype(np.int64), fits
    return array.astype(np.int64), np.ones(array.shape, bool)


def scalar(value: Any) -> Any:
    """A number of numpy's, or an array without dimensions, as the value that it holds: those compare exactly."""
    held = isinstance(value, np.number) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if held else value


def _is_pair(value: Any) -> bool:
    flat = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return flat and len(value) == 2


def _all_of(values: Any, family: tuple[type, ...]) -> bool:
    """Whether all values are of these types; True and False are no numbers."""
    return all(issubclass(kind, family) and kind is not bool for kind in set(map(type, values)))


def _float_or_nan(value: Any) -> float:
    value = scalar(value)
    is_number = isinstance(value, (*_WHOLE, *_FLOATS)) and not isinstance(value, bool)
    try:
        return float(value) if is_number else float("nan")
    except OverflowError:
        return float("nan")
