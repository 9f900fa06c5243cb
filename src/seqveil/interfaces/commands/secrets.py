"""Secrets in words of a command line, and from TOML. Nothing here runs what it reads.

ever:health               ever:health,travel      always:home         count:health:3
followed_by:home>clinic   pattern:home . clinic   zone:2.5,1.0,0.7    during:clinic:22-6
zone:48.8566,2.3522,300   (on the map: latitude, longitude, metres)         trait:heating
"""

from __future__ import annotations

import tomllib
from typing import Any

from seqveil.core.errors import InputError
from seqveil.core.secrets import Secret, from_dict
from seqveil.core.secrets.declared import KINDS

_FORMS = "ever:A, always:A, count:A:3, followed_by:A>B, pattern:A B, zone:x,y,radius, during:A:22-6 or trait:NAME"


def parse(text: str, **options: Any) -> Secret:
    """A secret from one word of a command line; `options` are epsilon, window and one_sided, None for not given.

    Without epsilon it is only measured (`audit`, `attack`); whatever releases refuses it.

    >>> parse("count:health,travel:3", epsilon=0.5, window=20).at_least
    3
    >>> parse("followed_by:home>clinic").then
    ('clinic',)
    """
    kind, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not rest.strip() or kind not in KINDS or kind == "joint":
        raise InputError(f"a secret is written {_FORMS}; got something else")
    return from_dict(_table(kind, rest) | {name: value for name, value in options.items() if value is not None})


def _table(kind: str, rest: str) -> dict[str, Any]:
    """What stands after the kind, as the lines of a table in TOML."""
    if kind in ("pattern", "trait"):
        return {kind: rest.strip()}
    if kind == "zone":
        *centre, radius = (_number(part, "zone:x,y,radius") for part in rest.split(","))
        if not centre:
            raise InputError("a zone is written zone:x,y,radius (zone:x,radius on a line of numbers); got one number")
        return {kind: {"centre": centre, "radius": radius}}
    if kind == "followed_by":
        first, then = _two(*rest.partition(">"), form="followed_by:A>B", lacks="no >")
        return {kind: _names(first), "then": _names(then)}
    if kind == "count":
        names, number = _two(*rest.rpartition(":"), form="count:A:3", lacks="no end")
        if not (number.strip().isascii() and number.strip().isdigit()):
            raise InputError("a count is written count:A:3, with a whole number at the end; got something else")
        return {kind: _names(names), "at_least": int(number)}
    if kind == "during":
        names, hours = _two(*rest.rpartition(":"), form="during:A:22-6", lacks="no end")
        begin, _, end = hours.partition("-")
        return {kind: _names(names), "hours": [_number(hour, "during:A:22-6") for hour in (begin, end)]}
    return {kind: _names(rest)}


def _two(first: str, between: str, second: str, *, form: str, lacks: str) -> tuple[str, str]:
    if not between:
        raise InputError(f"this secret is written {form}; got {lacks}")
    return first, second


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError("a secret names its values with commas between them, none empty; check the commas")
    return names


def _number(text: str, form: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"this secret is written {form}, with numbers; got something else") from None


def from_toml(text: str) -> list[Secret]:
    """Secrets from TOML: one table `[[secret]]` each, with the kind as the key of its values.

    >>> found = from_toml('''
    ... [[secret]]
    ... ever = ["health", "travel"]
    ... epsilon = 0.5
    ...
    ... [[secret]]
    ... followed_by = "home"
    ... then = "clinic"
    ... ''')
    >>> found[0].values, [each.epsilon for each in found]
    (('health', 'travel'), [0.5, None])
    """
    try:
        tables = tomllib.loads(text).get("secret")
    except (tomllib.TOMLDecodeError, TypeError):
        raise InputError("this is not TOML; each secret is a table [[secret]] with a line such as ever = 'A'") from None
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError("secrets in TOML are tables [[secret]], each with a line such as ever = 'A'; got none")
    return [from_dict(table) for table in tables]
