"""What every alphabet offers: symbols with codes 0..n-1, a policy for values outside, and a safe saved form."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.arrays import Codes, Floats
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
    widths: tuple[int, ...] = (1,)  # in how many columns of a file a value may stand

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
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._set_policy(on_unknown)
        return copy

    def with_missing(self, missing: OnMissing | None) -> Self:
        """The same alphabet with what is done with rows that have no value, for whoever reads a file with it."""
        if missing not in (None, "drop", "hold", "symbol"):
            raise InputError(f"expected missing values to be drop, hold or symbol, got {missing!r}")
        if missing == "symbol" and self._code_of(MISSING) is None:
            raise InputError(f'missing="symbol" needs an alphabet of names with {MISSING!r} in it; use drop or hold')
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, missing=missing)
        return copy

    def with_slots(self, slots: Slots | None) -> Self:
        """The same alphabet with how times become slots, for whoever reads a file with it."""
        if slots is not None and self.named and slots.empty != "hold" and self._code_of(NOTHING) is None:
            raise InputError(f"slots need a symbol {NOTHING!r} among names, or numbers that are cut; add it")
        if slots is not None and not self.named and slots.empty == "nothing":
            raise InputError("numbers and places have no symbol for nothing; an empty slot holds the last value")
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, slots=slots)
        return copy

    def _code_of(self, name: str) -> int | None:
        """The code of a symbol that stands for something else than a value of its own; None where there is none."""
        return None

    @property
    def strict(self) -> Self:
        """The same alphabet where nothing may be hidden or pooled: for fitting, and for values that were released."""
        return self.with_policy("error") if self.hides or self.on_unknown == "other" else self

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
            raise InputError(
                'on_unknown="other" needs a symbol "other" in the alphabet; fit with --other N, or use "hide"'
            )
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


__all__ = ["MISSING", "OTHER", "UNKNOWN", "WITHHELD", "OnMissing", "OnUnknown", "Symbols"]
