"""The configuration file (`seqveil.toml`): options of a release, written once for every command that releases.

    model = "clicks.model"
    secret = ["ever:health"]
    secret_epsilon = 0.5

Its lines are called what the options are called, with _ or - between words; tables [[secret]] say what those of
`--secrets` say. A line that belongs to a release but not to the command at hand, such as a column for `serve`, is
passed over; a line that nobody knows is refused. Options on the command line win over the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from seqveil.core.errors import InputError

NAME = "seqveil.toml"
_KINDS: dict[type, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}
_ELSEWHERE: dict[str, Any] = {  # options that only some of the commands have
    "model": Path,
    "on_unknown": str,
    "user_column": str,
    "value_column": str,
    "time_column": str,
    "seq_column": str,
    "missing": str,
}


def configuration(file: str | os.PathLike[str], own: Collection[str]) -> dict[str, Any]:
    """What a configuration file says to a command whose options are called `own`; one bad line refuses all of it."""
    path = Path(file)
    known = {**_setting_options(), **_ELSEWHERE}
    found: dict[str, Any] = {}
    for key, value in _tables(path).items():
        name = key.replace("-", "_")
        if name in found:
            raise InputError(f"{path.name}: {name} stands there twice, with - and with _; take one of them out")
        if name not in known and name not in own:
            raise InputError(f"{path.name}: {name[:40]!r} is no option of this command or of a release; take it out")
        if name == "secret" and isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            name, value = "secrets", str(path)  # the tables are read from there, as those of --secrets
        found[name] = _fitting(path.name, name, value, known.get(name))
    return {name: value for name, value in found.items() if name in own}


def _tables(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.name}: no such configuration file; check the path") from None
    except OSError:
        raise InputError(f"{path.name}: the configuration file cannot be read; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InputError(f"{path.name}: is not TOML; write lines such as epsilon = 1.0, each with its value") from None


def _setting_options() -> dict[str, Any]:
    from seqveil.interfaces.commands.options import SettingOptions

    return get_type_hints(SettingOptions)


def _fitting(file: str, name: str, value: Any, kind: Any) -> Any:
    """The value as the option takes it; one of another kind is refused, and so is one that is not said."""
    if kind is None:
        return value
    several, kind = _kind(kind)
    if several:
        given = value if isinstance(value, list) else [value]
        return [_fitting(file, name, each, kind) for each in given]
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a window may be a number of events or a word
    right = str if kind is Path else kind
    if not isinstance(value, right) or (right is not bool and isinstance(value, bool)) or value == "":
        raise InputError(f"{file}: {name} is {_KINDS[kind]}; got something else, so write {name} = … with its value")
    return value


def _kind(hint: Any) -> tuple[bool, Any]:
    """Whether an option may be repeated, and the kind of its value: of `list[str] | None`, True and str."""
    while get_origin(hint) in (Annotated, Union, UnionType):
        parts = get_args(hint)
        hint = parts[0] if get_origin(hint) is Annotated else next(part for part in parts if part is not NoneType)
    return (True, get_args(hint)[0]) if get_origin(hint) is list else (False, hint)
