"""Write docs/cli.md from the commands' own help (`python scripts/cli_reference.py`); a test checks it is current."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from seqveil.interfaces.cli import app, main
from seqveil.interfaces.commands.terminal import GROUPS

OPTION = re.compile(r"^  (?:-|[A-Z|]+  ).*\n?(?:^ {4,}(?! *-).*\n?)*", re.MULTILINE)  # or argument; all its lines
NAME = re.compile(r"--[\w-]+|^[A-Z|]+")
EVERYWHERE = ("--help ", "--json ")
TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Commands

Written by `python scripts/cli_reference.py` from the commands' own help, which has further examples. Nearly every
command takes `--help` and, for machine-readable results, `--json`; what else several share is explained first. Progress
goes to standard error; bad input ends with one line and exit code 2, a failed check or an interrupt with 1; no
partial file is ever left behind.
"""


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something by itself, in the order of the help, with its path."""
    root = command is None
    command = typer.main.get_command(app) if root else command
    below = getattr(command, "commands", {})
    if not below or (not root and command.invoke_without_command):
        yield path, command
    for name in below if not root else (name for names in GROUPS.values() for name in names):
        yield from commands(below[name], (*path, name))


def shown(*arguments: str) -> str:
    said = io.StringIO()
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}), contextlib.redirect_stdout(said):
        assert main([*arguments, "--help"]) == 0
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())


def explained(help: str) -> dict[str, str]:
    """Each argument and option of a help text as it stands there, by its words in one line."""
    return {" ".join(option.split()): option for option in OPTION.findall(help)}


def name_of(words: str) -> str:
    return str(NAME.findall(words)[0])


def without(help: str, shared: Collection[str]) -> str:
    """The help text with what is shared named instead of explained, and without the options of every command."""
    named = []
    for words, option in explained(help).items():
        if words.startswith(EVERYWHERE) or words in shared:
            help = help.replace(option, "", 1)
            named += [] if words.startswith(EVERYWHERE) else [name_of(words)]
    help = re.sub(r"^(?:Arguments|Options):$", "", help, flags=re.MULTILINE).partition("\n\n")[2]  # without the usage
    for example in re.split(r"(?=^  Example: )", help, flags=re.MULTILINE)[2:]:  # all but the first
        help = help.replace(example.partition("\n\n")[0], "", 1)
    help = re.sub(r"\n{3,}", "\n\n", help.rstrip())
    return f"{help}\n\nShared: {', '.join(named)}" if named else help


def reference() -> str:
    helps = {path: shown(*path) for path, _ in commands()}
    options = {words: option for help in helps.values() for words, option in explained(help).items()}
    counts = Counter(words for help in helps.values() for words in explained(help))
    wordings: dict[str, str] = {}  # of each name the one that stands in most helps, if in several
    for words, count in counts.most_common():
        if count > 1 and not words.startswith(EVERYWHERE):
            wordings.setdefault(name_of(words), words)
    shared = [words for words in counts if words in wordings.values()]
    rows = []
    for words in shared:
        name, what = re.split(r"\s{2,}", options[words].strip(), maxsplit=1)
        rows.append(f"- `{name}`: {' '.join(what.split())}")
    sections = [f"## seqveil {' '.join(path)}\n\n```text\n{without(helps[path], shared)}\n```\n" for path in helps]
    return "\n".join([HEAD, "## Shared arguments and options\n", *rows, "", *sections])


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
