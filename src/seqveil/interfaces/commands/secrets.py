"""Secrets in words of a command line. Nothing here runs what it reads.

ever:health               ever:health,travel      always:home         count:health:3
followed_by:home>clinic   pattern:home . clinic   zone:2.5,1.0,0.7    during:clinic:22-6
zone:48.8566,2.3522,300   (on the map: latitude, longitude, metres)         trait:heating
"""

from __future__ import annotations

import re
from typing import Any

from seqveil.core.errors import InputError
from seqveil.core.secrets import Secret, from_dict

_NUMBER = r"\s*([-+.\deE]+)\s*"
_FORMS = {  # of each kind: how it is written, and what stands after the colon
    "ever": ("ever:A", r"(.+)"),
    "always": ("always:A", r"(.+)"),
    "count": ("count:A:3", r"(.+):\s*([0-9]+)\s*"),
    "followed_by": ("followed_by:A>B", r"([^>]+)>(.+)"),
    "pattern": ("pattern:A B", r"(.+)"),
    "zone": ("zone:x,y,radius", rf"{_NUMBER},{_NUMBER},{_NUMBER}"),
    "during": ("during:A:22-6", rf"(.+):{_NUMBER}-{_NUMBER}"),
    "trait": ("trait:NAME", r"(.+)"),
}


def parse(text: str, **options: Any) -> Secret:
    """A secret from one word of a command line; `options` are epsilon, window and one_sided, None for not given.

    Without epsilon it is only measured (`audit`, `attack`); whatever releases refuses it.
    """
    kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    form, pattern = _FORMS.get(kind, (", ".join(form for form, _ in _FORMS.values()), "(?!)"))
    found = re.fullmatch(pattern, rest.strip())
    try:
        table = None if found is None else _table(kind, *filter(None, found.groups()))
    except ValueError:  # of a number
        table = None
    if table is None:
        raise InputError(f"a secret is written {form}; got {text!r}")
    return from_dict(table | {name: value for name, value in options.items() if value is not None})


def _table(kind: str, first: str, *more: str) -> dict[str, Any]:
    """What stands after the kind, as the lines of a table in TOML."""
    if kind in ("pattern", "trait"):
        return {kind: first}
    if kind == "zone":
        *centre, radius = map(float, (first, *more))
        return {kind: {"centre": centre, "radius": radius}}
    named = {kind: _names(first)}
    if kind == "followed_by":
        return named | {"then": _names(*more)}
    if kind == "count":
        return named | {"at_least": int(*more)}
    return named | ({"hours": [float(hour) for hour in more]} if kind == "during" else {})


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError("a secret names its values with commas between them, none empty; check the commas")
    return names
