"""What the page asks for, checked field by field, and which mechanisms fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.distortion import NAMES
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import BatchMechanism
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, count, ever, followed_by, zone
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import Terms
from seqveil.interfaces.studio.sources import MOST_EVENTS, StudioSource

MOST_BATCH = 25
FORMAT, VERSION = "seqveil-page", 1
REPEATS = ("batch_lp", "batch_descent")  # for single events the first is `optimal`, the second strives to be


@dataclass(frozen=True)
class Ask:
    """One picture: which stream, released how. It holds no data, so it may be stored and passed on.

    `epsilon` is for one event on average, whatever the batch and the pulses: a batch of w spends w·ε, every m-th
    release m·ε. `window` is what may leak in any `window_releases` releases; `budget` in the whole stream.

    `secret` is the code of a symbol that is kept secret, by the mechanism "guarded", within `secret_epsilon` in total;
    `epsilon` may then be None: nothing is promised about anything else. `secret_kind` says what about it: whether it
    occurs ("ever"), at least `secret_count` times ("count"), followed by the symbol `secret_then` ("followed_by"), or
    whether somebody comes within `secret_radius` of it ("zone", for numbers and places). It is about the events shown,
    or about each run of `secret_window` events.

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
    epsilon: float | None = None
    distortion: str = "hamming"
    batch: int = 1
    every: int = 1
    budget: float | None = None
    window: float | None = None
    window_releases: int | None = None
    when_spent: str = "hold"
    seed: int = 1
    secret: int | None = None
    secret_epsilon: float | None = None
    secret_kind: str = "ever"
    secret_window: int | None = None
    secret_count: int = 2
    secret_then: int | None = None
    secret_radius: float = 1.0

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
        made = cls(**{name: _checked(name, value) for name, value in given.items() if name in known})
        if made.epsilon is None and made.secret is None:
            raise InputError("epsilon: expected a finite number; check the configuration")
        if made.secret_epsilon is None and made.secret is not None:
            raise InputError("secret_epsilon: expected a finite number; check the configuration")
        return made

    @property
    def rate(self) -> float:
        """ε of an event on average; without bound where nobody gave one."""
        return math.inf if self.epsilon is None else self.epsilon

    def setting(self, model: MarkovModel) -> Terms:
        """The setting that a release with this configuration has."""
        budget = Budget(self.budget, self.window, self.window_releases, None, self.when_spent)  # type: ignore[arg-type]
        rate = None if self.epsilon is None else self.epsilon * self.batch
        plain: dict[str, Any] = {
            "mechanism": self.mechanism,
            "distortion": self.distortion,
            "every": self.every,
            "batch": self.batch,
        }
        made = Policy(rate, budget=budget, secrets=self.declared(model), **plain).on(model)
        if made.in_batches and budget.limited and self.when_spent == "stop":
            raise InputError("the page shows what is released as batches with the policy hold alone; choose hold")
        return made

    def declared(self, model: MarkovModel) -> list[Secret]:
        """The secret that is kept, if there is one."""
        if self.secret is None:
            return []
        window: int | str = f"first {self.events}" if self.secret_window is None else self.secret_window
        value = [_symbol("secret", self.secret, model)]
        shared: Any = {"epsilon": self.secret_epsilon, "window": window}
        if self.secret_kind == "count":
            return [count(value, self.secret_count, **shared)]
        if self.secret_kind == "followed_by":
            if self.secret_then is None:
                raise InputError("secret_then: expected the number of the symbol that follows; check the configuration")
            return [followed_by(value, [_symbol("secret_then", self.secret_then, model)], **shared)]
        if self.secret_kind == "zone":
            return [self._zone(model, shared)]
        return [ever(value, **shared)]

    def _zone(self, model: MarkovModel, shared: Any) -> Secret:
        points = model.alphabet.points
        if points is None:
            raise InputError("secret_kind: a zone needs numbers or places, and these are names; choose another secret")
        return zone(centre=np.atleast_1d(points[self.secret]).tolist(), radius=self.secret_radius, **shared)

    def to_json(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as it is exported; `origin` says how the source comes about."""
        return {"format": FORMAT, "version": VERSION, **asdict(self), "origin": dict(origin)}


_TEXT = {
    "source": None,
    "mechanism": tuple(mechanisms.names()),
    "distortion": NAMES,
    "when_spent": ("hold", "stop"),
    "secret_kind": ("ever", "count", "followed_by", "zone"),
}
_WHOLE = {
    "stream": (0, 10_000),
    "events": (2, MOST_EVENTS),
    "batch": (1, MOST_BATCH),
    "every": (1, 100),
    "window_releases": (1, MOST_EVENTS),
    "seed": (0, 2**31 - 1),
    "secret": (0, 2**31 - 1),
    "secret_then": (0, 2**31 - 1),
    "secret_window": (1, MOST_EVENTS),
    "secret_count": (1, MOST_EVENTS),
}
_SPANS = {"secret_radius": (0.0, 1e9)}
_MAY_LACK = {"epsilon", "budget", "window", "window_releases"}
_MAY_LACK |= {"secret", "secret_epsilon", "secret_then", "secret_window"}


def _symbol(name: str, code: int, model: MarkovModel) -> Any:
    if code >= model.n:
        raise InputError(f"{name}: expected the number of a symbol from 0 to {model.n - 1}; check the configuration")
    [value] = model.alphabet.decode(np.array([code]))
    return value


def _checked(name: str, value: Any) -> Any:
    if value is None and name in _MAY_LACK:
        return None
    if name in _TEXT:
        return _text(name, value, _TEXT[name])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (-1e12 < value < 1e12):  # neither NaN is, nor a whole number too large for a float
        raise InputError(f"{name}: expected a finite number; check the configuration")
    if name in _SPANS:
        low, high = _SPANS[name]
        if not low <= value <= high:
            raise InputError(f"{name}: expected a number from {low:g} to {high:g}; check the configuration")
        return float(value)
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


@dataclass(frozen=True)
class Offer:
    """A mechanism with what it promises; `why_not` is empty where it fits."""

    name: str
    summary: str
    guarantee: str
    sound: bool
    batched: bool
    why_not: str = ""


def offers(source: StudioSource, ask: Ask) -> list[Offer]:
    """Every mechanism, and why it does not fit where it does not.

    >>> from seqveil.interfaces.studio.sources import builtin
    >>> [each.name for each in offers(builtin("clicks"), Ask("clicks", epsilon=1.0, batch=3)) if not each.why_not]
    ['auto', 'tree', 'tree_ldp']
    """
    return [_offer(name, source, ask) for name in mechanisms.names()]


def _offer(name: str, source: StudioSource, ask: Ask) -> Offer:
    found = mechanisms.find(name)
    try:
        replace(ask, mechanism=name).setting(source.model)
        why = _slow(name, source.model.n, ask)
    except InputError as refusal:
        limited = ask.budget is not None or ask.window is not None
        why = "it keeps to no ε, so no budget can hold" if limited and not found.sound else str(refusal)
        if ask.batch > 1 and not isinstance(found, BatchMechanism):
            why = "it releases one event at a time"
    return Offer(name, found.summary, found.guarantee, found.sound, isinstance(found, BatchMechanism), why)


def _slow(name: str, n: int, ask: Ask) -> str:
    """Why it would take too long to look at, if it would."""
    if name == "auto" and ask.batch == 1:
        return "for single events it is one of the others"
    limit = _LARGEST.get(name)
    if limit is not None and not limit(n, ask):
        size = f" in batches of {ask.batch}" if ask.batch > 1 else ""
        return f"with {n} symbols{size} a release takes too long to watch"
    return ""


# the sizes up to which a release takes some hundredths of a second: a program over 128 possible batches, say
_LARGEST: dict[str, Callable[[int, Ask], bool]] = {
    "optimal": lambda n, ask: ask.distortion == "hamming" or n <= 120,
    "optimal_ldp": lambda n, ask: ask.distortion == "hamming" or n <= 40,
    "mutual_information": lambda n, ask: ask.distortion == "hamming" and n <= 24,
    "batch_lp": lambda n, ask: n**ask.batch <= 128,
    "batch_descent": lambda n, ask: n**ask.batch <= 32,
}


def compared(source: StudioSource, distortion: str) -> list[str]:
    """The mechanisms that stand beside the chosen one in a picture of error against ε: all that fit, event by event."""
    plain = Ask(source.name, epsilon=1.0, distortion=distortion)
    fit = [each.name for each in offers(source, plain) if not each.why_not and each.name not in REPEATS]
    return sorted(fit, key=lambda name: slow(name, distortion))  # the quick ones first


def slow(mechanism: str, distortion: str) -> bool:
    """Whether each release takes milliseconds: a program, or a tree.

    >>> slow("optimal", "hamming"), slow("optimal", "absolute"), slow("tree", "hamming")
    (False, True, True)
    """
    program = mechanism in ("optimal", "optimal_ldp") and distortion != "hamming"
    return program or mechanism == "mutual_information" or mechanism in mechanisms.batched()
