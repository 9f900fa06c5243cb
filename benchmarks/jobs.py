"""How much sooner `seqveil compare` is done with more processes, and whether its rows are the same."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from seqveil import MarkovModel
from seqveil.evaluate.compare import compare

ROWS = ["optimal", "balanced", "crr", "randomized_response", "tree", "tree_ldp", "auto"]


def run(data: Path | None) -> list[dict[str, object]]:
    model = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    streams, found, first = list(model.sample(100, 60, seed=1)), list[dict[str, object]](), None
    for processes in sorted({1, 2, 4, os.cpu_count() or 1}):
        if processes > (os.cpu_count() or 1):
            continue
        begun = time.perf_counter()
        made = compare(streams, model, epsilons=[0.5, 1.0], names=ROWS, batches=[2, 3, 4, 5], processes=processes)
        took = time.perf_counter() - begun
        rows = [replace(row, micros=0.0) for row in made.rows]
        first = rows if first is None else first
        print(f"  {processes} processes: {len(rows)} rows in {took:.1f} s, the same: {rows == first}", flush=True)
        found.append({"processes": processes, "rows": len(rows), "seconds": took, "same": rows == first})
    return found
