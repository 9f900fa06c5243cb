"""TOML as policy files have it: read with a clear line for what is wrong, and written from plain values."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqveil.core.errors import InputError

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def read(path: Path, what: str) -> dict[str, Any]:
    """What a file says; `what` names the kind of file in a refusal."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.name}: no such {what} file; check the path") from None
    except OSError:
        raise InputError(f"{path.name}: the {what} file cannot be read; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InputError(f"{path.name}: is not TOML; write lines such as epsilon = 1.0, each with its value") from None


def written(values: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Plain values as TOML, below comments: a line each, then a table for each item of a list of tables.

    >>> print(written({"epsilon": 1.0, "budget": {"total": 3.0}, "secret": [{"ever": ["a"], "epsilon": 0.5}]}))
    epsilon = 1.0
    budget = { total = 3.0 }
    <BLANKLINE>
    [[secret]]
    ever = ["a"]
    epsilon = 0.5
    <BLANKLINE>
    """
    tables = {name: value for name, value in values.items() if _is_tables(value)}
    text = "".join(f"{name} = {_value(value)}\n" for name, value in values.items() if name not in tables)
    for name, rows in tables.items():
        for row in rows:
            text += f"\n[[{name}]]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in row.items())
    said = "".join(f"# {' '.join(comment.split())}\n" for comment in comments)
    return said + text.lstrip("\n")


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_ESCAPES.get(letter) or _letter(letter) for letter in value) + '"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(one)}' for key, one in value.items())} }}"
    raise InputError(f"a value of type {type(value).__name__} cannot be written as TOML; use texts and numbers")


def _letter(letter: str) -> str:
    return letter if letter.isprintable() or ord(letter) > 0x9F else f"\\u{ord(letter):04x}"
