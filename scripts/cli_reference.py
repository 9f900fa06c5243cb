"""Write docs/cli.md from the commands' own help (`python scripts/cli_reference.py`); a test checks it is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import typer

from seqveil.interfaces.cli import GROUPS, app

OPTION = re.compile(r"^  -.*\n?(?:^ {4,}(?! *-).*\n?)*", re.MULTILINE)  # with the lines that go on
LONG = re.compile(r"--[\w-]+")
EVERYWHERE = ("--help ", "--json ")
TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Commands

Written by `python scripts/cli_reference.py` from the commands' own help. `--help` and, for machine-readable results,
`--json` go with nearly every command and are left out below; options of three commands or more are explained first.
Progress goes to standard error; bad input ends with one line and exit code 2, a failed check or an interrupt with exit
code 1; no partial file is ever left behind.
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
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "seqveil", *arguments, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def explained(help: str) -> dict[str, str]:
    """Each option of a help text as it stands there, by its words in one line."""
    found = OPTION.findall(help)
    return {" ".join(option.split()): option for option in found}


def without(help: str, shared: Collection[str]) -> str:
    """The help text with shared options named instead of explained, and without those of every command."""
    named = []
    for words, option in explained(help).items():
        if words.startswith(EVERYWHERE) or words in shared:
            help = help.replace(option, "", 1)
            named += [] if words.startswith(EVERYWHERE) else [LONG.findall(words)[0]]
    help = help.rstrip().removesuffix("Options:").rstrip()
    return f"{help}\n\nShared options: {', '.join(named)}" if named else help


def reference() -> str:
    helps = {path: shown(*path) for path, _ in commands()}
    counts = Counter(words for help in helps.values() for words in explained(help))
    shared = [words for words, count in counts.items() if count >= 3 and "[required]" not in words]
    options = {words: option for help in helps.values() for words, option in explained(help).items()}
    rows = [row(options[words]) for words in shared if not words.startswith(EVERYWHERE)]
    sections = [f"## seqveil {' '.join(path)}\n\n```text\n{without(helps[path], shared)}\n```\n" for path in helps]
    return "\n".join([HEAD, "## Shared options\n", *rows, "", *sections])


def row(option: str) -> str:
    """An option of a help text as an entry of a list."""
    name, words = re.split(r"\s{2,}", option.strip(), maxsplit=1)
    return f"- `{name}`: {' '.join(words.split())}"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
