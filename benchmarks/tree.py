"""The tree-quantised release: distance from the exact optimum, error on grid walks, time and memory."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from seqveil import MarkovModel, distortion
from seqveil.core.mechanisms import Batch
from seqveil.core.mechanisms import tree as TREE
from seqveil.core.programs import sound
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State
from tests.reference.batches import expected

EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
SIDE = 100
Row = dict[str, Any]


def run(data: Path | None) -> Row:
    return {
        "optimum": _small(),
        "walk": _walks(),
        "growth": _growth(),
    }


def _release(
    model: MarkovModel,
    costs: distortion.Distortion,
    streams: list[Any],
    length: int,
    epsilon: float,
    skip: int = 0,
) -> tuple[float, float, float]:
    """Mean error a symbol, its standard error, and the median milliseconds a batch, all but the first `skip`."""
    randomness, errors, times = SeededRandomness(1), [], []
    for stream in streams:
        states = model.initial
        for place, start in enumerate(range(0, len(stream) - length + 1, length)):
            codes = stream[start : start + length]
            begun = time.perf_counter()
            sent = TREE.rule(Batch(model, states, length, epsilon, costs)).draw(codes, randomness)
            states = model.advance(sent.posterior)
            if place >= skip:
                times.append(time.perf_counter() - begun)
                errors.append(costs.between(codes, sent.codes).mean())
    return float(np.mean(errors)), float(np.std(errors) / math.sqrt(len(errors))), 1e3 * float(np.median(times))


def _small_cases() -> list[tuple[int, int, str, MarkovModel, np.ndarray]]:
    generator, cases = np.random.default_rng(5), []
    shapes = [(2, 2), (2, 4), (2, 6), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3), (5, 1), (5, 2)]
    for (n, length), kind in itertools.product(shapes, ("strong", "weak", "random")):
        for name in ("hamming",) if n == 2 else ("hamming", "absolute"):
            rows = generator.dirichlet(np.full(n, {"strong": 1.0, "weak": 5.0, "random": 0.7}[kind]), size=n)
            if kind == "strong":
                rows = 0.12 * rows + 0.88 * np.eye(n)
            model = MarkovModel(generator.dirichlet(np.full(n, 3.0)), rows)
            batches = np.array(list(itertools.product(range(n), repeat=length)))
            belief = model.prior[batches[:, 0]].copy()
            for position in range(1, length):
                belief *= rows[batches[:, position - 1], batches[:, position]]
            cases.append((n, length, name, model, np.column_stack((belief, batches))))
    return cases


def _small() -> list[Row]:
    """Expected distortion over the optimum of the linear program on all batches."""
    cases, rows = _small_cases(), []
    print(f"{len(cases)} small chains (n = 2..5, w = 1..6), expected distortion over the exact optimum")
    print(f"  {'ε':>5}{'tree':>9}{'worst':>8}")
    for epsilon in EPSILONS:
        ratios: list[float] = []
        for n, length, name, model, table in cases:
            costs = distortion.hamming() if name == "hamming" else distortion.absolute(np.arange(n))
            batches = table[:, 1:].astype(int)
            between = costs.between(batches[:, None, :], batches[None]).sum(2)
            least = sound(table[:, 0], epsilon, between).error
            batch = Batch(model, model.initial, length, epsilon, costs)
            ratios.append(expected(TREE, batch) / least)
        mean = math.exp(np.mean(np.log(ratios)))
        print(f"  {epsilon:>5g}{mean:>9.3f}{max(ratios):>8.2f}", flush=True)
        rows.append({"epsilon": epsilon, "worst": max(ratios), "tree": mean})
    return rows


def _walk(side: int, reach: int = 1) -> tuple[MarkovModel, distortion.Distortion]:
    """A walk on a square grid that goes up to `reach` cells each way, all alike."""
    from scipy import sparse

    line = sparse.diags_array([1.0] * (2 * reach + 1), offsets=range(-reach, reach + 1), shape=(side, side))
    steps = sparse.csr_array(sparse.kron(line, line))
    steps = sparse.csr_array(sparse.diags_array(1.0 / np.asarray(steps.sum(1)).ravel()) @ steps)
    points = np.array(list(itertools.product(range(side), repeat=2)), float)
    return MarkovModel(np.full(side**2, 1.0 / side**2), steps), distortion.euclidean(points)


def _walks() -> list[Row]:
    rows: list[Row] = []
    print(f"random walks on a {SIDE} × {SIDE} grid, w = 10, from the third batch on, mean Euclidean error in cells")
    for reach, epsilon in itertools.product((1, 3), (5.0, 10.0)):
        model, costs = _walk(SIDE, reach)
        streams = list(model.sample(80, 10, seed=4))
        error, spread, milliseconds = _release(model, costs, streams, 10, epsilon, skip=2)
        text = f"  steps up to {reach}, ε={epsilon:<3g}{'tree':<10}{error:>7.2f} ± {spread:.2f}"
        print(f"{text}{milliseconds:>9.1f} ms a batch", flush=True)
        single = _smoothed(model, costs, streams, epsilon / 10)
        print(f"{'':<24}single steps, smoothed{single:>7.2f}: {single / error:.1f} times the error", flush=True)
        rows.append({"reach": reach, "epsilon": epsilon, "mechanism": "tree", "error": error})
        rows.append({"reach": reach, "epsilon": epsilon, "mechanism": "single, smoothed", "error": single})
    return rows


def _smoothed(model: MarkovModel, costs: distortion.Distortion, streams: list[Any], epsilon: float) -> float:
    """Mean error from the third batch on when each step is released on its own and all are smoothed in the end."""
    setting, randomness, errors = (
        Policy(epsilon=epsilon, mechanism=TREE, distortion=costs).on(model),
        SeededRandomness(1),
        [],
    )
    for stream in streams:
        state, sent = State.start(setting), []
        for code in stream:
            one, state = batches.step(setting, state, np.array([code]), randomness)
            sent.append(one)
        guesses = costs.best_guess(batches.smooth(setting, sent))
        errors.append(costs.between(stream, guesses)[20:].mean())
    return float(np.mean(errors))


def _growth() -> list[Row]:
    rows: list[Row] = []
    print("time a batch and memory beyond the model, walk with steps up to 1, ε = 10, from the second batch on")
    cases = [(side, 10) for side in (10, 32, 100, 200)] + [(SIDE, length) for length in (1, 2, 5, 25, 50)]
    for side, length in cases:
        model, costs = _walk(side)
        streams = list(model.sample(4 * length, 3, seed=2))
        error, _, milliseconds = _release(model, costs, streams, length, 10.0, skip=1)
        tracemalloc.start()
        _release(model, costs, [streams[0][: 2 * length]], length, 10.0)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"  n={side**2:<7}w={length:<4}{milliseconds:>8.1f} ms{peak:>8.1f} MB   error {error:.2f}", flush=True)
        rows.append({"n": side**2, "w": length, "milliseconds": milliseconds, "megabytes": peak})
    return rows
