"""How much sooner `seqveil compare` is done with more processes, and whether its rows are the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from seqveil import MarkovModel
from seqveil.core.compiled import use_threads
from seqveil.evaluate.comparison import Arena, line_up
from seqveil.evaluate.comparison.files import RowJob, jobs
from seqveil.evaluate.comparison.rows import ComparisonRow
from seqveil.evaluate.comparison.workers import RowWorkers

SYMBOLS, LENGTH, USERS, BATCHED = 40, 40, 300, 15
EPSILONS = (0.5, 1.0, 2.0, 5.0)


def made(todo: list[RowJob], processes: int) -> tuple[list[dict[str, object]], float]:
    """The rows without the times that they measured, and the seconds until all were there."""
    kept: dict[str, ComparisonRow] = {}
    begun = time.perf_counter()
    with RowWorkers(todo, processes, lambda job, row: kept.update({job.key: row}), lambda label, done: None) as rows:
        rows.make()
    return [{**kept[job.key].to_json(), "micros": 0} for job in todo], time.perf_counter() - begun


def run(data: Path | None) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    rows = 0.7 * np.eye(SYMBOLS) + 0.3 * rng.dirichlet(np.ones(SYMBOLS), SYMBOLS)
    model = MarkovModel(np.full(SYMBOLS, 1 / SYMBOLS), rows / rows.sum(1, keepdims=True))
    streams, everyone = list(model.sample(LENGTH, USERS, seed=1)), line_up(["all"], [1, 5])
    made(jobs(Arena.of(model, streams[:2]), EPSILONS[:1], everyone), 1)  # loads what first kernels load, off the clock
    todo = jobs(Arena.of(model, streams, batched_users=BATCHED), EPSILONS, everyone)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = sorted({1, *(2**k for k in range(1, 8) if 2**k < cores), cores})
    use_threads(1)  # what is measured is processes, not the threads of compiled code
    print(f"{len(todo)} rows of {SYMBOLS} symbols, {USERS} streams of {LENGTH}; a machine of {cores} cores")
    found: list[dict[str, float]] = []
    first: list[dict[str, object]] = []
    for count in counts:
        same, seconds = made(todo, count)
        first = first or same
        sooner = found[0]["seconds"] / seconds if found else 1.0
        print(
            f"  --jobs {count:<4}{seconds:>8.1f} s{sooner:>7.2f} times as fast   rows the same: {same == first}",
            flush=True,
        )
        found.append({"jobs": count, "seconds": seconds, "speedup": sooner, "same": float(same == first)})
    return found
