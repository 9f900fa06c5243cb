"""Batched mechanisms beside the exact optimum where X^w is small enough for it; every cost by enumeration."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from seqveil.core.distortion import Distortion, absolute, hamming
from seqveil.core.mechanisms import Batch, optimal
from seqveil.core.mechanisms import auto as AUTO
from seqveil.core.mechanisms import batch_descent as BATCH_DESCENT
from seqveil.core.mechanisms import batch_lp as BATCH_LP
from seqveil.core.mechanisms import tree as TREE
from seqveil.core.mechanisms.codebook import LARGEST, Support, support
from seqveil.core.model import MarkovModel
from tests.reference.batches import expected

EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
SHAPES = ((2, 2), (2, 4), (2, 6), (3, 2), (3, 3), (4, 2), (5, 2), (5, 3))
STAYING = {"weak": 0.2, "strong": 0.8}


def run(data: Path | None) -> dict[str, object]:
    return {"ratios": ratios(), "binary": binary()}


def cases() -> Iterator[tuple[str, MarkovModel, int, Distortion]]:
    """Random chains that stay with probability .2 or .8 and else jump at random; Hamming and absolute."""
    rng = np.random.default_rng(6)
    for n, length in SHAPES:
        for strength, stay in STAYING.items():
            jump = rng.dirichlet(np.full(n, 2.0), n)
            model = MarkovModel(rng.dirichlet(np.full(n, 5.0)), stay * np.eye(n) + (1.0 - stay) * jump)
            yield strength, model, length, hamming()
            if n > 2:
                yield strength, model, length, absolute(np.arange(n))


def contenders() -> dict[str, Callable[[Batch], float]]:
    return {
        "auto": partial(expected, AUTO),
        "tree": partial(expected, TREE),
        "optimal ε/w + decoder": symbol_by_symbol,
        "batch_descent": partial(expected, BATCH_DESCENT),
    }


def ratios() -> dict[str, dict[str, float]]:
    """Geometric mean over the cases, and the worst, of expected cost over the optimum's, by ε."""
    chosen, table, worst_below = list(cases()), {}, 1.0
    print(f"{len(chosen) * len(EPSILONS)} cases; geometric mean (worst) of expected cost over the exact optimum")
    print(f"  {'ε':>4}" + "".join(f"{name:>24}" for name in contenders()) + f"{'LP seconds':>14}")
    for epsilon in EPSILONS:
        logs: dict[str, list[float]] = {name: [] for name in contenders()}
        spent = 0.0
        for _, model, length, distortion in chosen:
            batch = Batch(model, model.initial, length, epsilon, distortion)
            start = time.perf_counter()
            exact = expected(BATCH_LP, batch)
            spent += time.perf_counter() - start
            for name, cost in contenders().items():
                logs[name].append(math.log(cost(batch) / exact))
        row = {name: math.exp(float(np.mean(found))) for name, found in logs.items()}
        worst = {name: math.exp(max(found)) for name, found in logs.items()}
        worst_below = min(worst_below, math.exp(min(min(found) for found in logs.values())))
        table[f"{epsilon:g}"] = row | {f"{name}, worst": value for name, value in worst.items()}
        shown = "".join(f"{row[name]:>15.3f} ({worst[name]:.2f})".rjust(24) for name in row)
        print(f"  {epsilon:>4g}{shown}{spent:>14.1f}", flush=True)
    print(f"  least ratio of all: {worst_below:.9f} (below 1 the optimum would not be one)")
    return table


def binary() -> dict[str, float]:
    """A sticky binary chain, six symbols a batch, ε = 5: expected wrong symbols, per symbol."""
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    batch = Batch(model, model.initial, 6, 5.0, hamming())
    costs = {"batch_lp": expected(BATCH_LP, batch) / 6}
    costs |= {name: cost(batch) / 6 for name, cost in contenders().items()}
    print("binary chain that stays with .9, w=6, ε=5, wrong per symbol: ", end="")
    print(", ".join(f"{name} {value:.4f}" for name, value in costs.items()))
    return costs


def symbol_by_symbol(batch: Batch) -> float:
    """Expected cost of w releases by `optimal` at ε/w each, every symbol guessed from all of them in the end."""
    found = support(batch, LARGEST)
    return _guessed(batch, found, found.mass, 0)


def _guessed(batch: Batch, found: Support, weights: np.ndarray, position: int) -> float:
    """`weights` (N,): probability of each possible batch together with the releases before `position`."""
    if position == batch.length:
        return float(batch.distortion.expected(found.distributions(weights[None])[0]).min(-1).sum())
    distribution = np.bincount(found.batches[:, position], weights, batch.model.n)
    kernel = optimal.kernels(
        (distribution / distribution.sum())[None], batch.epsilon / batch.length, batch.distortion
    ).one(0)
    chances = kernel.probabilities[found.batches[:, position]]
    return sum(_guessed(batch, found, weights * chance, position + 1) for chance in chances.T)
