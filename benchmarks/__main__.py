"""Run the benchmarks named on the command line, or all of them, and keep the figures in out/bench.json."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import sys
import traceback
from pathlib import Path

import seqveil
from seqveil.core.errors import InputError

NAMES = (
    "optimum",
    "soundness",
    "bulk",
    "history",
    "scale",
    "spark",
    "msnbc",
    "shopclicks",
    "batched_small",
    "tree",
    "gaze",
    "store",
    "kills",
    "damage",
    "bridge",
    "service",
    "abuse",
    "fuzz",
    "page",
    "learn",
    "private_fit",
    "smoothing",
    "intervals",
    "coverage",
    "secrets",
    "traits",
    "contexts",
    "attack",
    "compare",
    "files",
    "blocks",
)


def figures(found: object, name: str = "") -> dict[str, float]:
    """Every number in nested results, by its path."""
    if isinstance(found, dict):
        return {k: v for key, inner in found.items() for k, v in figures(inner, f"{name}.{key}").items()}
    if isinstance(found, list):
        return {k: v for at, inner in enumerate(found) for k, v in figures(inner, f"{name}[{at}]").items()}
    return {name[1:]: float(found)} if isinstance(found, (int, float)) and not isinstance(found, bool) else {}


def show_changes(before: dict[str, object], now: dict[str, object], factor: float = 1.5) -> None:
    """The figures that moved by more than a factor since the last run kept, largest first."""
    old, moved = figures(before), []
    for name, value in figures(now).items():
        if name in old and value > 0 and old[name] > 0 and not 1 / factor < value / old[name] < factor:
            moved.append((abs(math.log(value / old[name])), name, old[name], value))
    if moved:
        print(f"\nchanged by more than a factor {factor:g} since the run that was kept before:")
    for _, name, was, value in sorted(moved, reverse=True):
        print(f"  {name}: {was:.4g} → {value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; all by default")
    parser.add_argument("--data", help="folder with the data sets (SEQVEIL_DATA)")
    parser.add_argument("--out", default="out/bench.json")
    chosen = parser.parse_args()
    try:
        failed = measure(chosen.names, None if chosen.data is None else Path(chosen.data), Path(chosen.out))
    except seqveil.SeqveilError as error:
        parser.error(str(error))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def measure(names: list[str], data: Path | None, out: Path) -> list[str]:
    """Run the benchmarks named, all by default, and keep their figures after each; returns those that failed."""
    if unknown := set(names) - set(NAMES):
        raise InputError(f"no benchmark called {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    if data is None and "SEQVEIL_DATA" in os.environ:
        data = Path(os.environ["SEQVEIL_DATA"])
    before = json.loads(out.read_text()) if out.exists() else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, object] = {"seqveil": seqveil.__version__, "python": platform.python_version()}
    results["machine"] = platform.machine()
    failed = []
    for name in names or NAMES:
        print(f"\n== {name}", flush=True)
        try:
            results[name] = importlib.import_module(f"benchmarks.{name}").run(data)
        except Exception:  # the others are measured all the same
            traceback.print_exc()
            failed.append(name)
        out.write_text(json.dumps(results, indent=1))
    show_changes(before, results)
    print(f"\nfigures written to {out}")
    return failed


if __name__ == "__main__":
    main()
