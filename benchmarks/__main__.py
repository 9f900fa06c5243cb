"""Run the benchmarks named on the command line, or all of them, and keep the figures in out/bench.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from pathlib import Path

import seqveil

NAMES = (
    "optimum",
    "soundness",
    "bulk",
    "history",
    "msnbc",
    "shopclicks",
    "batched_small",
    "tree",
    "gaze",
    "store",
    "kills",
    "service",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; all by default")
    parser.add_argument(
        "--data", default=os.environ.get("SEQVEIL_DATA"), help="folder with the data sets (SEQVEIL_DATA)"
    )
    parser.add_argument("--out", default="out/bench.json")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(NAMES):
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    data = None if chosen.data is None else Path(chosen.data)
    results = {"seqveil": seqveil.__version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in chosen.names or NAMES:
        print(f"\n== {name}", flush=True)
        results[name] = importlib.import_module(f"benchmarks.{name}").run(data)
    out = Path(chosen.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1))
    print(f"\nfigures written to {out}")


if __name__ == "__main__":
    main()
