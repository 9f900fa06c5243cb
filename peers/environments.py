"""One virtual environment for each peer under .peers/, and how to run a script inside it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".peers"
INSIDE = Path(__file__).parent / "inside"
PATIENCE = 1800  # seconds for an installation or a script


class Unavailable(Exception):
    """A peer that could not be installed, and why: one line."""


@dataclass(frozen=True)
class Peer:
    """A package of the registry, what it needs beside it, and the script here that speaks to it."""

    name: str
    script: str
    module: str  # imported once after installation, to see that it can be
    beside: tuple[str, ...] = ()

    @property
    def requirements(self) -> list[str]:
        return [self.name, *self.beside]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


MULTI_FREQ = Peer("multi-freq-ldpy", "multi_freq_grr.py", "multi_freq_ldpy.pure_frequency_oracles.GRR")
PURE = Peer(
    "pure-ldp",
    "pure_grr.py",
    "pure_ldp.frequency_oracles.direct_encoding",
    ("xxhash<3", "statsmodels", "scikit-learn<1.7"),  # it names no versions, and newer ones break it
)
OPENDP = Peer("opendp", "opendp_response.py", "opendp.prelude")
QIF = Peer("qif", "qif_optimum.py", "qif", ("numpy",))
ACCOUNTING = Peer("dp-accounting", "composition.py", "dp_accounting")
ESTIMATES = Peer("privacy-estimates", "estimates.py", "privacy_estimates")
PEERS = (MULTI_FREQ, PURE, OPENDP, QIF, ACCOUNTING, ESTIMATES)


def set_up(peer: Peer) -> None:
    """Install the peer where it is not installed yet; `Unavailable` with the reason where that does not work."""
    stamp, wanted = peer.folder / ".ready", "\n".join(peer.requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"setting up {peer.name} in {peer.folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    pip = [str(peer.python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.requirements]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(peer.folder)],
        pip,
        [str(peer.python), "-I", "-c", f"import {peer.module}"],
    ):
        _attempt(command)
    stamp.write_text(wanted)


def _attempt(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(str(problem).splitlines()[0]) from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        disclosed = [line for line in said if line.startswith("ERROR")] or said[-1:] or [f"exit code {done.returncode}"]
        raise Unavailable(disclosed[-1][:200])


def ask(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """What the peer's script answers to a job; both are JSON."""
    done = subprocess.run(
        [str(peer.python), "-I", str(INSIDE / peer.script)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the script for {peer.name} ended with code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)
