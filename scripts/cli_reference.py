"""Write docs/cli.md from the commands' own help (`python scripts/cli_reference.py`); a test checks it is current."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from seqveil.interfaces.cli import GROUPS, app

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Commands

Written by `python scripts/cli_reference.py` from the commands' own help. `--help` and, for machine-readable results,
`--json` go with nearly every command and are left out below. Progress goes to standard error; bad input ends with one
line and exit code 2, a failed check or an interrupt with exit code 1; no partial file is ever left behind.
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
    lines = (line.rstrip() for line in text.strip().splitlines())
    shorter = "\n".join(line for line in lines if not line.lstrip().startswith(("--json ", "--help ")))
    return shorter.removesuffix("Options:").rstrip()


def reference() -> str:
    sections = [f"## seqveil {' '.join(path)}\n\n```text\n{shown(*path)}\n```\n" for path, _ in commands()]
    return "\n".join([HEAD, *sections])


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
