"""Secrets in words: from a command line, from TOML, to plain values and back, and as sentences a person can read.

Nothing here runs what it reads.

ever:health               ever:health,travel      always:home         count:health:3
followed_by:home>clinic   pattern:home . clinic   zone:2.5,1.0,0.7    during:clinic:22-6
zone:48.8566,2.3522,300   (on the map: latitude, longitude, metres)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from seqveil.core.alphabet import _from_json_value, _to_json_value
from seqveil.core.errors import InputError
from seqveil.core.secrets import declared
from seqveil.core.secrets.declared import Secret
from seqveil.core.words import moved, percent, percent_down, percent_up

_SHARED = ("epsilon", "window", "one_sided")
_OWN = {
    "ever": (), "always": (), "count": ("at_least",), "followed_by": ("then",), "pattern": (), "zone": (),
    "during": ("hours",), "joint": (),
}  # fmt: skip
_FORMS = "ever:A, always:A, count:A:3, followed_by:A>B, pattern:A B, zone:x,y,radius or during:A:22-6"
MEASURED = "measured, not promised"
PUBLIC_ZONE = "the zone is public: name places that are the same for everyone, never one person's home"
SUSPICION = 0.25  # that sentences take as their example
_NAMED = 4  # values named in a sentence; the others are counted


def parse(text: str, **options: Any) -> Secret:
    """A secret from one word of a command line; `options` are epsilon, window and one_sided, None for not given.

    Without epsilon it is only measured (`audit`, `attack`); whatever releases refuses it.

    >>> parse("count:health,travel:3", epsilon=0.5, window=20).at_least
    3
    >>> parse("followed_by:home>clinic").then
    ('clinic',)
    """
    options = {"epsilon": None} | {name: value for name, value in options.items() if value is not None}
    kind, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not rest.strip() or kind not in _OWN or kind == "joint":
        raise InputError(f"a secret is written {_FORMS}; got something else")
    if kind == "pattern":
        return declared.pattern(rest, **options)
    if kind == "zone":
        *centre, radius = (_number(part, "zone:x,y,radius") for part in rest.split(","))
        if not centre:
            raise InputError("a zone is written zone:x,y,radius (zone:x,radius on a line of numbers); got one number")
        return declared.zone(centre=centre, radius=radius, **options)
    if kind == "followed_by":
        first, arrow, then = rest.partition(">")
        if not arrow:
            raise InputError("this secret is written followed_by:A>B; got no >")
        return declared.followed_by(_split(first), _split(then), **options)
    if kind in ("count", "during"):
        names, colon, last = rest.rpartition(":")
        if not colon:
            raise InputError(
                f"this secret is written {'count:A:3' if kind == 'count' else 'during:A:22-6'}; got no end"
            )
        if kind == "during":
            begin, _, end = last.partition("-")
            hours = _number(begin, "during:A:22-6"), _number(end, "during:A:22-6")
            return declared.during(_split(names), hours, **options)
        return declared.count(_split(names), _whole(last), **options)
    return (declared.ever if kind == "ever" else declared.always)(_split(rest), **options)


def from_toml(text: str) -> list[Secret]:
    """Secrets from TOML: one table `[[secret]]` each, with the kind as the key of its values.

    A secret without epsilon is only measured (`audit`, `attack`); whatever releases refuses it.

    >>> declared = from_toml('''
    ... [[secret]]
    ... ever = ["health", "travel"]
    ... epsilon = 0.5
    ... window = 20
    ...
    ... [[secret]]
    ... followed_by = "home"
    ... then = "clinic"
    ... ''')
    >>> declared[0].values, [each.epsilon for each in declared]
    (('health', 'travel'), [0.5, None])
    """
    import tomllib

    try:
        tables = tomllib.loads(text).get("secret")
    except (tomllib.TOMLDecodeError, TypeError):
        raise InputError("this is not TOML; each secret is a table [[secret]] with a line such as ever = 'A'") from None
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError("secrets in TOML are tables [[secret]], each with a line such as ever = 'A'; got none")
    return [from_dict(table) for table in tables]


def to_dict(secret: Secret) -> dict[str, Any]:
    """Plain values that say what the secret is: those of its table in TOML, without what is left at its default.

    >>> to_dict(declared.ever("health", epsilon=0.5, window=20))
    {'ever': ['health'], 'epsilon': 0.5, 'window': 20}
    """
    own: dict[str, Any] = {secret.kind: _named(secret)}
    if secret.kind == "count":
        own["at_least"] = secret.at_least
    if secret.then:
        own["then"] = [_written(value) for value in secret.then]
    if secret.hours:
        own["hours"] = list(secret.hours)
    shared = {name: getattr(secret, name) for name in _SHARED}
    usual = {"epsilon": None, "window": "day" if secret.kind == "during" else None, "one_sided": False}
    return own | {name: value for name, value in shared.items() if value != usual[name]}


def _named(secret: Secret) -> Any:
    """What a secret names, as it stands beside its kind."""
    if secret.kind == "joint":
        own = [to_dict(part) for part in secret.parts]
        return [{name: value for name, value in part.items() if name not in _SHARED} for part in own]
    if secret.circle:
        *centre, radius = secret.circle
        return {"centre": centre, "radius": radius}
    return secret.text if secret.kind == "pattern" else [_written(value) for value in secret.values]


def _written(value: Any) -> Any:
    return [_written(part) for part in value] if type(value) is tuple else _to_json_value(value)


def from_dict(saved: Any) -> Secret:
    """The secret of a table in TOML, or of what `to_dict` gave.

    >>> from_dict(declared.ever("health", epsilon=0.5).to_dict()) == declared.ever("health", epsilon=0.5)
    True
    """
    if not isinstance(saved, dict):
        raise InputError("expected a secret as a table with a line such as ever = 'A'; got something else")
    return _from_table(saved)


def _from_table(table: dict[str, Any]) -> Secret:
    kinds = [kind for kind in _OWN if kind in table]
    if len(kinds) != 1:
        raise InputError(f"a secret in TOML has exactly one of the lines {', '.join(_OWN)}; got {len(kinds)} of them")
    kind = kinds[0]
    rest = {name: value for name, value in table.items() if name != kind}
    unknown = set(rest) - {*_SHARED, *_OWN[kind]}
    if unknown:
        raise InputError(f"a secret '{kind}' in TOML has no line '{min(unknown)[:40]}'; take it out")
    if kind == "joint":
        return _joint(table[kind], rest)
    rest = {"epsilon": None, **rest}
    if kind == "zone" and isinstance(table[kind], dict):
        return _made(declared.zone, (), rest | _circle(table[kind]))
    if kind == "zone":
        return _made(declared.zone, ([_value(cell) for cell in _listed(table[kind])],), rest)
    given = table[kind] if kind == "pattern" else _values(table[kind])
    rest = {name: _values(value) if name == "then" else value for name, value in rest.items()}
    return _made(getattr(declared, kind), (given,), rest)


def _circle(given: dict[str, Any]) -> dict[str, Any]:
    """The centre and radius of a zone, which on the map are a latitude, a longitude and metres."""
    if given.keys() == {"latitude", "longitude", "metres"}:
        return {"centre": [given["latitude"], given["longitude"]], "radius": given["metres"]}
    return given


def _joint(parts: Any, rest: dict[str, Any]) -> Secret:
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise InputError("a joint secret in TOML is a list of tables, such as joint = [{ever = 'A'}, {ever = 'B'}]")
    return declared.joint(*(_from_table({**rest, **part}) for part in parts), epsilon=rest.get("epsilon"))


def _made(maker: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Secret:
    try:
        return maker(*given, **options)
    except TypeError:
        raise InputError("a secret in TOML lacks a line it needs, or has a line of the wrong kind; check it") from None


def _values(given: Any) -> list[Any]:
    return [_value(value) for value in _listed(given)]


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _value(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"float"}:
        return _from_json_value(value)
    if isinstance(value, dict):
        raise InputError("a value of a secret in TOML is a text, a number or a point [x, y]; got a table")
    return tuple(map(_value, value)) if isinstance(value, list) else value


def _split(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError("a secret names its values with commas between them, none empty; check the commas")
    return names


def _number(text: str, form: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"this secret is written {form}, with numbers; got something else") from None


def _whole(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise InputError("a count is written count:A:3, with a whole number at the end; got something else")
    return int(text)


def sentence(secret: Secret) -> str:
    """What is kept secret, how well, and on what condition."""
    return f"{about(secret)}; {promise(secret)}"


def made_public(secrets: Iterable[Secret]) -> str:
    """Says that a zone is public, as all that is declared is, where there is one; empty where there is none.

    >>> made_public([declared.ever("health", epsilon=0.5)]), made_public([declared.zone([3], epsilon=0.5)])[:18]
    ('', 'the zone is public')
    """
    kinds = {part.kind for secret in secrets for part in (secret, *secret.parts)}
    return PUBLIC_ZONE if "zone" in kinds else ""


def measured(secret: Secret, within: bool | None = None) -> str:
    """What is said about a secret that no mechanism keeps; `within` says whether the releases stayed within its ε."""
    said = f"{about(secret)}; {MEASURED}"
    if within is None or secret.epsilon is None:
        return said
    return f"{said}; these releases {'stayed' if within else 'did not stay'} within ε = {secret.epsilon:g}"


def promise(secret: Secret) -> str:
    """How well a secret is kept, and on what condition: the second half of its sentence."""
    if secret.epsilon is None:
        return MEASURED
    factor = math.exp(secret.epsilon)
    bound = f"nobody's odds move by more than a factor {factor:.3g}"
    if secret.one_sided:
        bound = f"nobody becomes surer that it is so by more than a factor {factor:.3g} in the odds"
    return f"{bound} (ε = {secret.epsilon:g}): {example(secret)}, if the stream follows the model"


def example(secret: Secret) -> str:
    """What the promise means for somebody who suspects the secret a little."""
    disclosed = f"a suspicion of {percent(SUSPICION)}"
    low, high = percent_down(moved(SUSPICION, -secret.total)), percent_up(moved(SUSPICION, secret.total))
    return f"{disclosed} becomes at most {high}" if secret.one_sided else f"{disclosed} stays between {low} and {high}"


def about(secret: Secret) -> str:
    """What the secret is about, as the first half of a sentence."""
    if secret.kind == "joint":
        return "any combination of: " + "; ".join(about(part) for part in secret.parts)
    what, where = _list(secret.values), _window(secret)
    if secret.circle:
        *centre, radius = (f"{number:.10g}" for number in secret.circle)
        unit = " (metres on the map, else in the units of the values)" if len(centre) == 2 else ""
        return f"whether the zone of radius {radius}{unit} around ({', '.join(centre)}) is entered {where}"
    phrases = {
        "ever": f"whether {what} occurs {where}",
        "always": f"whether every event is {what} {where}",
        "count": f"whether {what} occurs at least {secret.at_least} times {where}",
        "followed_by": f"whether {what} is followed, at once or later, by {_list(secret.then)} {where}",
        "pattern": f"whether the pattern {secret.text.strip()} occurs {where}",
        "zone": f"whether a zone of {len(secret.values)} cells is entered {where}",
        "during": f"whether {what} occurs {_hours(secret)} {where}",
    }
    return phrases[secret.kind]


def name(secret: Secret) -> str:
    """What the secret is about as one word of a command line (`parse` reads it back, but for joint ones)."""
    if secret.kind == "joint":
        return f"joint({', '.join(name(part) for part in secret.parts)})"
    if secret.kind == "pattern":
        return f"pattern:{secret.text}"
    if secret.circle:
        return "zone:" + ",".join(f"{number:.10g}" for number in secret.circle)
    values, then = (",".join(_spelled(value) for value in some) for some in (secret.values, secret.then))
    ends = {"count": f":{secret.at_least}", "followed_by": f">{then}"}
    if secret.hours is not None:
        ends["during"] = f":{secret.hours[0]:g}-{secret.hours[1]:g}"
    return f"{secret.kind}:{values}{ends.get(secret.kind, '')}"


def _spelled(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _list(values: tuple[Any, ...]) -> str:
    if len(values) == 1 and isinstance(values[0], tuple) and not any(isinstance(v, float) for v in values[0]):
        values = values[0]
    shown = [str(value) for value in values[:_NAMED]]
    if len(values) > _NAMED:
        return f"{', '.join(shown)} or one of {len(values) - _NAMED} others"
    return " or ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def _hours(secret: Secret) -> str:
    return "" if secret.hours is None else f"from {secret.hours[0]:g} to {secret.hours[1]:g} o'clock"


def _window(secret: Secret) -> str:
    window = secret.window
    if window is None:
        return "in the stream, whenever it ends"
    if window == "day":
        return "on a day, each day for itself"
    if window == "event" or window == 1:
        return "at an event, each for itself"
    if isinstance(window, str):
        return f"among the first {secret.length()} events"
    return f"in a run of {window} events (the first {window}, the next {window} and so on)"
