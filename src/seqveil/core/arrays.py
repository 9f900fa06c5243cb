"""Values of any package as plain arrays: a number stays the number it is, and what is none becomes NaN."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

_WHOLE, _FLOATS = (int, np.integer), (float, np.floating)
_NO_PAIR = (float("nan"), float("nan"))


def comes_from(values: Any, *packages: str) -> bool:
    """Whether the type of `values` belongs to one of the packages, disclosed without importing any of them."""
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
        wanted = "iu" if _all_of(values, _WHOLE) else "f" if _all_of(values, _FLOATS) else None
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
        paired = list(map(is_pair, given))
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


def is_pair(value: Any) -> bool:
    """Whether a value is two values in one: a flat list, tuple or array of length two."""
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
