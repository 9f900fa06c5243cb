"""What the page asks for: a stream and a setting, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from seqveil.core import mechanisms
from seqveil.core.distortion import NAMES
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.release.accounting import Budget, Schedule
from seqveil.release.stream import Setting

MOST_EVENTS = 1000  # of a stream that is shown
MOST_BATCH = 25
FORMAT, VERSION = "seqveil-page", 1


@dataclass(frozen=True)
class Ask:
    """One picture: which stream, released how. It holds no data, so it may be stored and passed on.

    `epsilon` is for one event on average, whatever the batch and the pulses: a batch of w spends w·ε, every m-th
    release m·ε. `window` is what may leak in any `window_releases` releases; `budget` in the whole stream.

    >>> Ask.of({"source": "clicks", "epsilon": 2}).epsilon
    2.0
    >>> Ask.of({"source": "clicks", "epsilon": "2"})
    Traceback (most recent call last):
    ...
    seqveil.core.errors.InputError: epsilon: expected a finite number; check the configuration
    """

    source: str
    stream: int = 0
    events: int = 200
    mechanism: str = "optimal"
    epsilon: float = 1.0
    distortion: str = "hamming"
    batch: int = 1
    every: int = 1
    budget: float | None = None
    window: float | None = None
    window_releases: int | None = None
    when_spent: str = "hold"
    seed: int = 1

    @classmethod
    def of(cls, given: Any) -> Ask:
        """From JSON; whatever is not as documented is refused by the name of its field."""
        if not isinstance(given, Mapping):
            raise InputError("expected a JSON object with the fields of a configuration")
        known = {field.name for field in fields(cls)}
        if not given.keys() <= known | {"format", "version", "origin"}:
            raise InputError(f"expected no other fields than {', '.join(sorted(known))}")
        if "source" not in given:
            raise InputError("source: expected the name of a stream; check the configuration")
        return cls(**{name: _checked(name, value) for name, value in given.items() if name in known})

    def setting(self, model: MarkovModel) -> Setting:
        """The setting that a release with this configuration has."""
        budget = Budget(self.budget, None, self.window, self.window_releases, None, self.when_spent)  # type: ignore[arg-type]
        rate = self.epsilon * self.batch
        made = Setting.of(model, self.mechanism, rate, self.distortion, Schedule(self.every), budget, self.batch)
        if made.in_batches and budget.limited and self.when_spent == "stop":
            raise InputError("the page shows what is released as batches with the policy hold alone; choose hold")
        return made

    def to_json(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as it is exported; `origin` says how the source comes about."""
        return {"format": FORMAT, "version": VERSION, **asdict(self), "origin": dict(origin)}


_TEXT = {
    "source": None,
    "mechanism": tuple(mechanisms.names()),
    "distortion": NAMES,
    "when_spent": ("hold", "stop"),
}
_WHOLE = {
    "stream": (0, 10_000),
    "events": (2, MOST_EVENTS),
    "batch": (1, MOST_BATCH),
    "every": (1, 100),
    "window_releases": (1, MOST_EVENTS),
    "seed": (0, 2**31 - 1),
}
_MAY_LACK = ("budget", "window", "window_releases")


def _checked(name: str, value: Any) -> Any:
    if value is None and name in _MAY_LACK:
        return None
    if name in _TEXT:
        return _text(name, value, _TEXT[name])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (-1e12 < value < 1e12):  # neither NaN is, nor a whole number too large for a float
        raise InputError(f"{name}: expected a finite number; check the configuration")
    if name not in _WHOLE:
        if not 0 < value <= 1e6:
            raise InputError(f"{name}: expected a number above 0; check the configuration")
        return float(value)
    least, most = _WHOLE[name]
    if value != int(value) or not least <= value <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}; check the configuration")
    return int(value)


def _text(name: str, value: Any, among: tuple[str, ...] | None) -> str:
    if not isinstance(value, str) or len(value) > 64 or (among is not None and value not in among):
        wanted = "a short text" if among is None else f"one of {', '.join(among)}"
        raise InputError(f"{name}: expected {wanted}; check the configuration")
    return value
