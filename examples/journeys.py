"""What the journeys share: a command run as it would be typed, people held out of the fit, and a folder to work in.

A journey goes from "I have a file" to "I have a release that I understand": `inspect`, `fit` on some people, `release`
the others, `audit`, `decode`. Each script generates a file of the shape that it is about; put your own in its place.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from seqveil.interfaces.cli import main


def seqveil(command: str) -> None:
    """Run a command as it would be typed, and show it."""
    print(f"$ seqveil {command}", flush=True)
    code = main(shlex.split(command))
    if code:
        sys.exit(code)
    print(flush=True)


def write(path: Path, header: str, rows: Sequence[str]) -> None:
    """Write a file of text, a line for each row."""
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def in_folder(journey: Callable[[Path], None]) -> None:
    """Run a journey in the folder that the command line names, or in one that is gone afterwards."""
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    if named:
        journey(Path(named[0]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            journey(Path(folder))
