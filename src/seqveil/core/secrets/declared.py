"""What must stay secret, as a person declares it, and what it becomes under a model.

A secret is a set E of windows of a stream, with a total ε: whatever is released, at any time, the odds of E move by at
most a factor e^ε (`one_sided`: grow by at most that). A *trait* is a secret about who somebody is, a label that the
model's types carry, with one promise for all of the person's events and every two answers. The promise is about E,
under the model, and says nothing about anything else (docs/theory.md, section 18).

The values a secret names are the alphabet's own; text from a command line or a pattern may also stand for a number
("3", "2.5") or a point ("2.5,1"). A value outside the alphabet is refused whatever the alphabet's policy is: a secret
about the nearest symbol would be another secret.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np

from seqveil.core import words
from seqveil.core.alphabet import Codes, Grid, Symbols, _from_json_value, _plain, _to_json_value
from seqveil.core.errors import InputError, unknown_setting
from seqveil.core.geography import Cells
from seqveil.core.secrets import automaton
from seqveil.core.secrets.automaton import Automaton
from seqveil.core.times import Slots

Sides = Literal["both", "up"]
Window = int | str | None
_SHARED = ("epsilon", "window", "one_sided")
_LARGEST_EPSILON = 100.0
_LARGEST_WINDOW = 1_000_000
CALENDAR = {"day": 1, "week": 7}  # windows that follow the clock, and how many days each has
CLOCKLESS = (
    'during, window="day" and window="week" need slots of time, whose beginnings are known; pass a model that was '
    "fitted with them, of half an hour each for instance"
)


@dataclass(frozen=True)
class Secret:
    """One declared secret, as `ever`, `always`, `count`, `followed_by`, `pattern`, `zone`, `during`, `joint`, `trait`.

    Parameters that all of them share: `epsilon` is the total, for a whole window, however many events it has. It has no
    default; None says that the secret is only to be measured, and whatever releases refuses it. `window` is a number of
    events (one secret for every run of so many), "event" (every event is one), "day" or "week" (each of the calendar,
    for models in slots of time), "first N" (only the first N events of the stream), or None: the stream as the session
    ends it. `one_sided` bounds growing suspicion alone.

    >>> print(ever("health", epsilon=0.5, window="first 20"))
    whether health occurs among the first 20 events; if the stream follows the model, the odds that an observer
    who knows the model gives it move by at most a factor of 1.65 (ε = 0.5): a suspicion of 25 % stays between 16 % and
    36 %
    """

    kind: str
    epsilon: float | None
    window: Window = None
    one_sided: bool = False
    values: tuple[Any, ...] = ()
    then: tuple[Any, ...] = ()
    at_least: int = 1
    text: str = ""
    circle: tuple[float, ...] = ()  # the two numbers of the centre, then the radius
    hours: tuple[float, float] | None = None
    parts: tuple[Secret, ...] = ()

    def __post_init__(self) -> None:
        for name in ("epsilon", "window", "at_least"):
            object.__setattr__(self, name, _plain(getattr(self, name)))  # numpy's numbers as Python's
        epsilon, window = self.epsilon, self.window
        if epsilon is not None:
            number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
            if not (number and 0 < epsilon <= _LARGEST_EPSILON):
                raise InputError(
                    f"the ε of a secret must be a number above 0, at most {_LARGEST_EPSILON:g}; got something else"
                )
            object.__setattr__(self, "epsilon", float(epsilon))  # 1 and 1.0 are one promise, and written alike
        if not isinstance(self.one_sided, bool):
            raise InputError("one_sided must be true or false; got something else")
        named = window in (None, "event", *CALENDAR) or (isinstance(window, str) and _first(window) is not None)
        if not (named or (_whole(window) and int(window or 0) <= _LARGEST_WINDOW)):
            raise InputError(
                f"window must be a number of events (1 to {_LARGEST_WINDOW}), event, day, week or first N, or left out "
                "for the whole stream; got something else"
            )

    @property
    def sides(self) -> Sides:
        """Which sides of the odds are bounded: "both", or "up" where only growing suspicion is."""
        return "up" if self.one_sided else "both"

    @property
    def total(self) -> float:
        """The ε that it is to be kept within; refused where nobody said one."""
        if self.epsilon is None:
            raise InputError(
                "expected epsilon, the most that the log odds of the secret may move in total, got none; say for "
                "instance epsilon=0.5 (epsilon=None for a secret that is only measured)"
            )
        return self.epsilon

    @property
    def sentence(self) -> str:
        """The promise as a person can read it."""
        return f"{words.about(self)}; {words.promise(self)}"

    @property
    def name(self) -> str:
        """What is kept, as the command line spells it, without window and ε: "ever:health"."""
        if self.kind == "joint":
            return f"joint({', '.join(part.name for part in self.parts)})"
        if self.text:  # a pattern, or the name of a trait
            return f"{self.kind}:{self.text}"
        if self.circle:
            return "zone:" + ",".join(f"{number:.10g}" for number in self.circle)
        values, then = (",".join(_spelled(value) for value in some) for some in (self.values, self.then))
        hours = "-".join(f"{hour:g}" for hour in self.hours or ())
        ends = {"count": f":{self.at_least}", "followed_by": f">{then}", "during": f":{hours}"}
        return f"{self.kind}:{values}{ends.get(self.kind, '')}"

    def __str__(self) -> str:
        return self.sentence

    def length(self, slots: Slots | None = None) -> int | None:
        """Events of a window; None for the stream as the session ends it. `slots` say how many a day has."""
        if self.follows_clock:
            if slots is None:
                raise InputError(CLOCKLESS)
            return slots.per_day * CALENDAR[str(self.window)]
        if isinstance(self.window, str):
            return 1 if self.window == "event" else _first(self.window)
        return self.window

    @property
    def follows_clock(self) -> bool:
        """Whether its windows are those of the calendar, so that it matters when a stream begins."""
        return self.window in CALENDAR

    @property
    def repeats(self) -> bool:
        """Whether a new window begins where one ends."""
        return self.window is not None and not str(self.window).startswith("first")

    def over(self, alphabet: Symbols) -> Compiled:
        """The secret's automaton over the codes of an alphabet."""
        if self.kind == "trait":
            raise InputError("a trait is a label of the person, which no event shows: it cannot be read from a stream")
        length = self.length(alphabet.slots)  # refused where hours need a clock and there is none
        parts, n, patterns = self.parts or (self,), alphabet.n, []
        closed = [part._closed_hours(alphabet.slots) for part in parts]
        period = max(map(len, closed))
        ticks, clock = np.unique([np.resize(own, period) for own in closed], axis=1, return_inverse=True)
        for part, own in zip(parts, ticks, strict=True):  # outside its hours no letter is one of its values
            begins = n * np.flatnonzero(own == 0)[:, None]
            patterns.append((part._pattern, {name: begins + codes for name, codes in part._sets(alphabet).items()}))
        machine = automaton.recognised(patterns, n * ticks.shape[1])
        return Compiled(self, machine, clock.ravel().astype(np.int64), n, length)

    def named(self, alphabet: Symbols) -> Codes:
        """Codes of the symbols that the secret names: the sensitive ones, where some are to be distinguished.

        >>> from seqveil.core.alphabet import Alphabet
        >>> followed_by("a", ["b", "c"], epsilon=1.0).named(Alphabet(["c", "a", "b", "d"])).tolist()
        [0, 1, 2]
        """
        found = [codes for part in self.parts or (self,) for codes in part._sets(alphabet).values()]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    @property
    def _pattern(self) -> str:
        """What must occur, as a pattern over its values."""
        repeated = f"(values .*){{{self.at_least}}}"
        shapes = {"always": "^ values* $", "count": repeated, "followed_by": "values .* then", "pattern": self.text}
        return shapes.get(self.kind, "values")

    def _sets(self, alphabet: Symbols) -> dict[str, Codes]:
        """The codes that each name of the pattern stands for."""
        if self.kind == "trait":
            return {}
        if self.kind == "pattern":
            return {name: codes_of((name,), alphabet) for name in automaton.names(automaton.parsed(self.text))}
        values = codes_within(self.circle, alphabet) if self.circle else codes_of(self.values, alphabet)
        return {"values": values, "then": codes_of(self.then, alphabet)}

    def _closed_hours(self, slots: Slots | None) -> Codes:
        """For every slot of a day, 0 where it counts and 1 where it is passed over; one for all without hours."""
        if self.hours is None or slots is None:
            return np.zeros(1, np.int64)
        begin, end = (hour * slots.per_day / 24.0 for hour in self.hours)
        if begin % 1 or end % 1:
            raise InputError(
                f"hours must begin and end where slots of {slots.seconds:g} s do; take other hours, or shorter slots"
            )
        place = np.arange(slots.per_day)
        inside = (place >= begin) & (place < end) if begin < end else (place >= begin) | (place < end)
        return (~inside).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` turns back into an equal secret: those of its table in TOML, or as JSON.

        >>> ever("health", epsilon=0.5, window=20).to_dict()
        {'ever': ['health'], 'epsilon': 0.5, 'window': 20}
        """
        own: dict[str, Any] = {self.kind: self._named}
        own |= {name: _written(getattr(self, name)) for name in KINDS[self.kind][1]}
        usual = {"epsilon": None, "window": "day" if self.kind == "during" else None, "one_sided": False}
        return own | {name: getattr(self, name) for name in _SHARED if getattr(self, name) != usual[name]}

    @property
    def _named(self) -> Any:
        """What it names, as it stands beside its kind."""
        if self.kind == "joint":
            return [{name: value for name, value in part.to_dict().items() if name not in _SHARED}
                    for part in self.parts]  # fmt: skip
        if self.circle:
            return {"centre": list(self.circle[:-1]), "radius": self.circle[-1]}
        return self.text or _written(self.values)


def _written(value: Any) -> Any:
    return [_written(part) for part in value] if type(value) is tuple else _to_json_value(value)


def _spelled(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A secret over codes: symbol x at place t of a window is letter x + n·clock[t mod len(clock)]."""

    secret: Secret
    automaton: Automaton
    clock: Codes
    n: int
    length: int | None  # of a window; None for the stream as the session ends it

    def read(self, codes: Iterable[int], begin: int = 0) -> int:
        """The value of one window, by reading it (the slow, obvious way); its first event stands at place `begin`."""
        window = list(codes)
        if not all(0 <= x < self.n for x in window):
            raise InputError(
                f"expected codes from 0 to {self.n - 1}; got a value outside the alphabet, whose secret nobody can read"
            )
        places = enumerate(window, begin)
        return self.automaton.read([x + self.n * int(self.clock[t % len(self.clock)]) for t, x in places])


def ever(values: Any, *, epsilon: float | None, window: Window = None, one_sided: bool = False) -> Secret:
    """Whether one of the values occurs in the window."""
    return Secret("ever", epsilon, window, one_sided, several(values))


def always(values: Any, *, epsilon: float | None, window: Window = None, one_sided: bool = False) -> Secret:
    """Whether every event of the window is among the values."""
    return Secret("always", epsilon, window, one_sided, several(values))


def count(
    values: Any, at_least: int, *, epsilon: float | None, window: Window = None, one_sided: bool = False
) -> Secret:
    """Whether at least so many events of the window are among the values."""
    if not _whole(_plain(at_least)):
        raise InputError("at_least must be a whole number, at least 1; got something else")
    return Secret("count", epsilon, window, one_sided, several(values), at_least=at_least)


def followed_by(
    values: Any, then: Any, *, epsilon: float | None, window: Window = None, one_sided: bool = False
) -> Secret:
    """Whether one of `values` occurs, and after it, at once or later, one of `then`."""
    return Secret("followed_by", epsilon, window, one_sided, several(values), several(then))


def pattern(text: str, *, epsilon: float | None, window: Window = None, one_sided: bool = False) -> Secret:
    """Whether a pattern occurs in the window; `seqveil.core.secrets.automaton` has its language."""
    if not isinstance(text, str):
        raise InputError("a pattern is a text, for instance 'home clinic'; got something else")
    automaton.parsed(text)  # refuses what cannot be read
    return Secret("pattern", epsilon, window, one_sided, text=text)


def zone(cells: Any = None, *, centre: Any = None, radius: float | None = None, epsilon: float | None,
         window: Window = None, one_sided: bool = False) -> Secret:  # fmt: skip
    """Whether a place is ever entered: the cells that hold the given points, or all that a circle touches.

    The zone is public, as all that is declared is: it stands in side files, reports and audits. Name places that are
    the same for everyone, never one person's home.

    `centre` and `radius` are in the units of the edges of a `Grid`. On the map the centre is (latitude, longitude), the
    radius metres, and all cells count that come that near.
    """
    if (cells is None) == (centre is None) or (centre is None) != (radius is None):
        raise InputError("a zone is either cells, or a centre with a radius; give one of the two")
    if cells is not None:
        return Secret("zone", epsilon, window, one_sided, several(cells))
    try:
        circle = tuple(float(part) for part in (*centre, radius))
    except (TypeError, ValueError):
        raise InputError("the centre and radius of a zone must be numbers; got something else") from None
    if len(circle) != 3 or not all(map(math.isfinite, circle)) or circle[-1] < 0:
        raise InputError("the centre of a zone must be two finite numbers, its radius at least 0; got something else")
    return Secret("zone", epsilon, window, one_sided, circle=circle)


def during(
    values: Any, hours: tuple[float, float], *, epsilon: float | None, window: Window = "day", one_sided: bool = False
) -> Secret:
    """Whether one of the values occurs in these hours of a day (or of some day of a week, with window="week"), for
    models in slots of time (`core.times.Slots`).

    Hours are those of the clock that the slots go by (`Slots.utc_offset`), from the first up to, not including, the
    second, over midnight where it is smaller: 22-6 is before six and from ten on, of one day of the calendar.
    """
    try:
        begin, end = (float(hour) for hour in hours)
    except (TypeError, ValueError):
        raise InputError("hours must be two numbers, from and to, for instance hours=(22, 6)") from None
    if begin == end or not (0 <= begin <= 24 and 0 <= end <= 24):
        raise InputError("hours must be two different numbers from 0 to 24, as in hours=(22, 6); got others")
    if window not in CALENDAR:
        raise InputError('a secret about hours is about each day or week (window="day", "week"); got another window')
    return Secret("during", epsilon, window, one_sided, several(values), hours=(begin, end))


def trait(name: str, *, epsilon: float | None) -> Secret:
    """Which answer a person gives to the question that the model's types carry (`MarkovModel.fit(…, trait=…)`).

    The promise is one for all of the person's events, in whatever files and on whatever days they are released.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError("a trait is named as in the model, for instance 'heating'; got something else")
    return Secret("trait", epsilon, text=name)


def joint(*secrets: Secret, epsilon: float | None = None) -> Secret:
    """Several secrets as one: no combination of their answers becomes likelier against another by more than e^ε.

    `epsilon` is the one that holds for all; left out, that of its parts, which is then the same.

    Secrets bounded one by one do not bound "both" or "either"; a joint one does, and with the same ε, because the
    distribution of the releases given any Boolean combination is an average of those given the combinations of answers.
    """
    if not secrets or not all(isinstance(part, Secret) and part.kind != "joint" for part in secrets):
        raise InputError("a joint secret is made of one or more secrets that are not joint themselves; got others")
    if any(part.kind == "trait" for part in secrets):
        raise InputError("a joint secret is about events; for two traits together, fit one whose answers combine them")
    first = secrets[0]
    if epsilon is None and len({part.epsilon for part in secrets}) > 1:
        raise InputError("the parts of a joint secret have different ε; pass the one ε that holds for all")
    if len({part.window for part in secrets}) > 1:
        raise InputError("the parts of a joint secret must have the same window; declare them alike")
    if any(part.one_sided for part in secrets):
        raise InputError("a joint secret is about both sides; declare its parts without one_sided")
    if len(secrets) > 6:
        raise InputError(f"a joint secret has at most 6 parts; got {len(secrets)}, declare the others apart")
    total = first.epsilon if epsilon is None else epsilon
    parts = tuple(replace(part, epsilon=total) for part in secrets)  # no part is kept better or worse than the whole
    return Secret("joint", total, first.window, parts=parts)


KINDS: dict[str, tuple[Callable[..., Secret], tuple[str, ...]]] = {  # and what a table says besides values and the rest
    "ever": (ever, ()), "always": (always, ()), "count": (count, ("at_least",)), "zone": (zone, ()),
    "followed_by": (followed_by, ("then",)), "pattern": (pattern, ()), "during": (during, ("hours",)),
    "joint": (joint, ()), "trait": (trait, ()),
}  # fmt: skip
_EXAMPLES = {"at_least": "3", "then": "'B'", "hours": "[22, 6]"}  # of what a kind has besides values


def several(values: Any) -> tuple[Any, ...]:
    """One value or several as a tuple; a tuple is one value: a point."""
    if isinstance(values, set | frozenset):
        values = sorted(values, key=repr)
    if isinstance(values, list | range | np.ndarray):
        found = tuple(_plain(tuple(value) if isinstance(value, list | np.ndarray) else value) for value in values)
    else:
        found = (_plain(values),)
    if not found or found == ((),):
        raise InputError("a secret needs at least one value; got none")
    try:
        return tuple(dict.fromkeys(found))
    except TypeError:
        raise InputError("the values of a secret must be hashable (strings, numbers, tuples); got others") from None


def _first(window: str) -> int | None:
    """N of "first N"."""
    word, _, number = window.partition(" ")
    good = word == "first" and number.isascii() and number.isdigit() and 1 <= int(number) <= _LARGEST_WINDOW
    return int(number) if good else None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def codes_of(values: tuple[Any, ...], alphabet: Symbols) -> Codes:
    """The codes of values, each once.

    >>> from seqveil.core.alphabet import Alphabet
    >>> codes_of(("b", "2"), Alphabet(["a", "b", "c", 2])).tolist()
    [1, 3]
    """
    exact = alphabet.with_policy("error")
    found = [_code(value, exact) for value in values]
    if None in found:
        known = [str(each) for each in alphabet.decode(range(alphabet.n))]  # public, but who knows what was typed
        near = [f"did you mean {each}?" for each in get_close_matches(str(values[found.index(None)]), known, 1)]
        remedy = near[0] if near else "check how it is written"
        raise InputError(f"a secret names a value that is not in the alphabet ({alphabet.n} symbols); {remedy}")
    return np.unique(np.array(found, dtype=np.int64))


def _code(value: Any, alphabet: Symbols) -> int | None:
    """The code of a value; a text that is no symbol itself may stand for a number, or for a point."""
    readings: list[Callable[[Any], Any]] = [lambda given: given]
    if isinstance(value, str):
        readings += [int, float, lambda text: tuple(map(float, text.split(",")))]
    for read in readings:
        with contextlib.suppress(TypeError, ValueError):  # `UnknownSymbol` among them
            return alphabet.encode_one(read(value))
    return None


def codes_within(circle: tuple[float, ...], alphabet: Symbols) -> Codes:
    """Cells within a circle (its centre, then its radius), the border included.

    A cell counts where any part of it lies within: whoever is in the circle is then in one that counts. On the map the
    circle is a latitude, a longitude and metres.

    >>> from seqveil.core.alphabet import Grid
    >>> codes_within((0.5, 0.5, 1.0), Grid.regular(3, 3, bounds=(0, 3, 0, 3))).tolist()
    [0, 1, 3, 4]
    """
    x, y, radius = circle
    if isinstance(alphabet, Cells):
        if not abs(x) <= 90 or not -180 <= y <= 360:
            raise InputError("a zone on the map is written zone:LAT,LON,METRES, as in zone:48.8566,2.3522,300")
        codes = alphabet.within((x, y), radius)
    elif isinstance(alphabet, Grid):
        codes = _touched((x, y), radius * (1 + 1e-12), alphabet)
    else:
        raise InputError("a circle needs points, cut into the cells of a grid or a map; name the values instead")
    if not codes.size:
        raise InputError(f"no symbol of the alphabet ({alphabet.n}) lies in the zone; check its centre, or widen it")
    return codes.astype(np.int64)


def _touched(centre: tuple[float, float], radius: float, grid: Grid) -> Codes:
    """Cells of a grid of which some part lies within a radius of a point; none where all of that is outside.

    What lies outside counts to the cells at the edge under "nearest", so that a cell is as near as all that counts to
    it; `Cells.within` does the same on the map.
    """
    outside, away = [], []
    for axis, number in zip((grid.x, grid.y), centre, strict=True):
        first, *inner, last = axis.edges.tolist()
        outside.append(max(first - number, number - last, 0.0))
        low, high = np.array([-math.inf, *inner]), np.array([*inner, math.inf])
        away.append(np.maximum(np.maximum(low - number, number - high), 0.0))
    return np.flatnonzero((np.hypot.outer(*away).ravel() <= radius) & (np.hypot(*outside) <= radius))


def from_dict(saved: Any) -> Secret:
    """The secret of a table in TOML, or of what `to_dict` gave; without epsilon it is only measured."""
    if not isinstance(saved, dict):
        raise InputError("expected a secret as a table with a line such as ever = 'A'; got something else")
    kinds = [kind for kind in KINDS if kind in saved]
    known = {*KINDS, *_SHARED, *_EXAMPLES}
    for strange in sorted(map(str, saved.keys() - known)):
        raise InputError(unknown_setting(strange, known))
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none"
        raise InputError(f"a secret has exactly one of the settings {', '.join(KINDS)}; got {got}")
    kind, rest = kinds[0], {"epsilon": None, **saved}
    given = rest.pop(kind)
    make, own = KINDS[kind]
    unknown = set(rest) - {"epsilon", *(_SHARED if kind != "trait" else ()), *own}
    if unknown:
        raise InputError(f"a secret '{kind}' has no setting '{min(unknown)}'; take it out")
    for lacking in own:
        if lacking not in rest:
            raise InputError(f"{kind} needs {lacking}, for instance {lacking} = {_EXAMPLES[lacking]}")
    if kind == "joint":
        if not isinstance(given, list) or not given or not all(isinstance(part, dict) for part in given):
            raise InputError("a joint secret in TOML is a list of tables, such as joint = [{ever = 'A'}, {ever = 'B'}]")
        return joint(*(from_dict({**rest, **part}) for part in given), epsilon=rest["epsilon"])
    if "then" in rest:
        rest["then"] = _values(rest["then"])
    if kind == "zone" and isinstance(given, dict):
        on_map = given.keys() == {"latitude", "longitude", "metres"}
        centre = {"centre": [given["latitude"], given["longitude"]], "radius": given["metres"]} if on_map else given
        named, rest = [], rest | centre
    else:
        named = [given if kind in ("pattern", "trait") else _values(given)]
    try:
        return make(*named, **rest)
    except TypeError:
        raise InputError(f"a secret '{kind}' has a setting of the wrong form; check it") from None


def _values(given: Any) -> list[Any]:
    return [_value(value) for value in (given if isinstance(given, list) else [given])]


def _value(value: Any) -> Any:
    """A value as TOML or JSON has it: a list is a point."""
    if isinstance(value, list):
        return tuple(map(_value, value))
    return _from_json_value(value) if isinstance(value, dict) and value.keys() == {"float"} else value
