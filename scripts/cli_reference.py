"""Write docs/cli.md from the commands' own help (`python scripts/cli_reference.py`); a test checks it is current."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMANDS = (
    "inspect",
    "fit",
    "learn",
    "plan",
    "release",
    "audit",
    "decode",
    "stats",
    "compare",
    "mechanisms",
    "serve",
    "serve token add",
    "serve token list",
    "serve token revoke",
    "studio",
    "state verify",
    "state backup",
    "state account",
    "state export",
    "state adopt",
    "state erase",
    "bridge mqtt",
    "bridge kafka",
    "spark fit",
    "spark release",
    "spark account",
)
TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Commands

Written by `python scripts/cli_reference.py` from the commands' own help. Every command prints machine-readable results
with `--json`, shows progress on standard error, answers bad input with one line and exit code 2, and a failed check or
an interrupt with exit code 1; no partial file is ever left behind.
"""


def shown(*arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "seqveil", *arguments, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def reference() -> str:
    sections = [f"## seqveil {name}\n\n```text\n{shown(*name.split())}\n```\n" for name in COMMANDS]
    return "\n".join([HEAD, *sections])


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
