"""Timing on noisy machines: the best of several runs, and ratios of runs made in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def best(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of the quickest of several runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def find(data: Path | None, name: str) -> Path | None:
    """A file of a data set, or a line that says what is missing."""
    path = None if data is None else data / name
    if path is None or not path.exists():
        print(f"skipped: pass --data (or set SEQVEIL_DATA to) a folder that holds {name}")
        return None
    return path
