"""`optimal` against the full linear program, and its cost as the alphabet grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.timing import best
from seqveil.core.distortion import hamming
from seqveil.core.mechanisms import optimal
from tests.reference.checks import random_beliefs
from tests.reference.optimum import full_lp


def run(data: Path | None) -> dict[str, object]:
    return {"worst_difference": against_full_program(), "growth": growth()}


def against_full_program() -> float:
    rng = np.random.default_rng(1)
    worst, cases = 0.0, 0
    print("largest |error - full LP| over random beliefs (Hamming)")
    for n in (2, 3, 5, 8, 12, 20, 40):
        found = 0.0
        for epsilon in (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0):
            for belief in random_beliefs(2 if n == 40 else 6, n, rng):
                exact, _ = full_lp(belief, epsilon, hamming().matrix(n))
                ours = optimal.kernels(belief[None], epsilon).one(0).error(belief, hamming())
                found, cases = max(found, abs(float(ours) - exact)), cases + 1
        worst = max(worst, found)
        print(f"  n={n:>3}: {found:.1e}")
    print(f"  {cases} cases, worst {worst:.1e} (must be below 1e-9)")
    return worst


def growth() -> list[dict[str, float]]:
    print("one kernel at ε=1 as the alphabet grows, beside finding the largest beliefs with numpy")
    rng, rows = np.random.default_rng(2), []
    for n in (100, 1_000, 10_000, 100_000):
        belief = rng.dirichlet(np.full(n, 0.5))[None]
        ours = best(lambda belief=belief: optimal.kernels(belief, 1.0), 20)
        reading = best(lambda belief=belief: np.partition(belief[0], belief.size - 4), 20)
        columns = optimal.kernels(belief, 1.0).one(0).codes.size
        rows.append({"n": n, "us": ours * 1e6, "reading_us": reading * 1e6, "columns": columns})
        print(f"  n={n:>7}: {ours * 1e6:8.0f} µs, {columns} columns; numpy's partition {reading * 1e6:7.1f} µs")
    return rows
