"""How far one core goes: in bulk beside the peers and the machine's limits, one at a time, over large alphabets, and
how the cost grows with symbols, users, history and batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import best, find
from seqveil import MarkovModel, Session, distortion
from seqveil.core.bulk import load
from seqveil.core.randomness import BITS, SystemRandomness
from seqveil.engine import batches
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, step

USERS, SYMBOLS, EPSILON = 100_000, 17, 1.0
MECHANISMS = ("optimal", "crr", "randomized_response")


def sticky(n: int) -> MarkovModel:
    rng = np.random.default_rng(n)
    distribution = 0.6 * np.eye(n) + 0.4 * rng.dirichlet(np.full(n, 0.5), n) + 1e-4
    return MarkovModel(np.full(n, 1 / n), distribution / distribution.sum(1, keepdims=True))


def run(data: Path | None) -> dict[str, Any]:
    print("compiled path: " + ("on" if load() else "off (pip install -e '.[fast]'); plain Python"))
    results: dict[str, Any] = {"compiled": load(), "bulk": bulk(), "peers": peers()}
    results["one"] = one_at_a_time()
    results["large"] = large(data)
    results["growth"] = growth()
    results["import_ms"] = imports()
    return results


def rate(model: MarkovModel, mechanism: str, users: int, events: int = 6, epsilon: float = EPSILON) -> float:
    """Events a second of the quickest of some rounds, after two to warm up; release, belief and exact account."""
    setting, randomness = Policy(epsilon=epsilon, mechanism=mechanism).on(model), SystemRandomness()
    state = State.start(setting, users)
    codes = np.ascontiguousarray(model.sample(events + 2, users, seed=1).T)
    spent = []
    for event in codes:
        start = time.perf_counter()
        _, state = step(setting, state, event, randomness)
        spent.append(time.perf_counter() - start)
    return users / min(spent[2:])


def bulk() -> dict[str, float]:
    """Releases of 10^5 users at once beside what bounds them: drawing from given tables, and moving the state."""
    model = sticky(SYMBOLS)
    found = {"draws": draws(), "memory": memory()}
    for _ in range(2):  # in turn: the machine's other work weighs on all alike
        for name in MECHANISMS:
            found[name] = max(found.get(name, 0.0), rate(model, name, USERS))
    print(f"\nevents/s on one core, n={SYMBOLS}, {USERS:,} users, ε={EPSILON:g}; of bare draws, of the memory's speed")
    for name in MECHANISMS:
        share = found[name] / found["draws"], found[name] / found["memory"]
        print(f"  {name:<22}{found[name]:>12,.0f}{share[0]:>8.3f}{share[1]:>8.3f}")
    print(
        f"  {'bare draws':<22}{found['draws']:>12,.0f}   secure randomness and a search in one given table, no belief"
    )
    print(f"  {'memory':<22}{found['memory']:>12,.0f}   copying belief, column and next belief once")
    return found


def draws() -> float:
    """Bare sampling in numpy: the operating system's randomness and a search in one table for all."""
    steps = np.cumsum(np.full(SYMBOLS, (1 << BITS) // SYMBOLS))
    return USERS / best(lambda: np.searchsorted(steps, SystemRandomness().draw(USERS)))


def memory() -> float:
    """Events a second if each only moved its belief, its column and its next belief through memory."""
    here, there = np.zeros((3, USERS, SYMBOLS)), np.empty((3, USERS, SYMBOLS))
    return USERS / best(lambda: np.copyto(there, here))


def peers() -> dict[str, Any]:
    """The peers' context-free response in environments of their own, where `make peers` has set them up."""
    if not Path(".peers").exists():
        print("\npeers: skipped, run `make peers` once to set them up")
        return {}
    done = subprocess.run([sys.executable, "-m", "peers.speed", "--json"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    for n, figures in found["events_per_second"].items():
        print(f"\n  n={n:<6}{'events/s':>14}" + "".join(f"{f'{name} over it':>30}" for name in MECHANISMS))
        for name, speed in sorted(figures.items(), key=lambda item: -item[1]):
            ratios = "".join(f"{figures[f'seqveil {mechanism}'] / speed:>30.2f}" for mechanism in MECHANISMS)
            print(f"  {name:<40}{speed:>14,.0f}{ratios}")
    return found


def one_at_a_time() -> list[dict[str, float]]:
    """Latency of one release in process."""
    print("\nµs of one release in a session: median, 99th percentile")
    rows = []
    for n in (2, SYMBOLS, 100):
        for name in ("optimal", "randomized_response"):
            model = sticky(n)
            session, spent = Session(model, mechanism=name, epsilon=EPSILON), []
            for symbol in model.sample(5000, seed=2)[0].tolist():
                start = time.perf_counter()
                session.release(symbol)
                spent.append(1e6 * (time.perf_counter() - start))
            middle, late = np.percentile(spent[200:], [50, 99])
            print(f"  n={n:<5}{name:<22}{middle:>8.0f}{late:>8.0f}")
            rows.append({"n": n, "mechanism": name, "median": float(middle), "p99": float(late)})
    return rows


def grid(side: int, reach: int = 3) -> tuple[MarkovModel, np.ndarray]:
    """A walk on a square grid, and the place of each cell."""
    from scipy import sparse

    cell = np.arange(side * side)
    x, y = cell % side, cell // side
    rows, columns, weights = [], [], []
    for dx in range(-reach, reach + 1):
        for dy in range(-reach, reach + 1):
            inside = (x + dx >= 0) & (x + dx < side) & (y + dy >= 0) & (y + dy < side)
            rows.append(cell[inside])
            columns.append((cell + dx + side * dy)[inside])
            weights.append(np.full(inside.sum(), 1.0 / (1 + dx * dx + dy * dy)))
    parts = (np.concatenate(rows), np.concatenate(columns))
    steps = sparse.csr_array((np.concatenate(weights), parts), shape=(cell.size, cell.size))
    chances = sparse.diags_array(1.0 / np.asarray(steps.sum(1)).ravel()) @ steps
    return MarkovModel(np.full(cell.size, 1.0 / cell.size), chances), np.stack([x, y], axis=1).astype(float)


def large(data: Path | None) -> list[dict[str, float]]:
    """`tree` one symbol at a time over large alphabets."""
    walk, places = grid(100)
    print(f"\nreleases/s of one session, tree, one symbol at a time ({walk.chain.nnz:,} transitions on the grid)")
    cases: list[tuple[str, MarkovModel, Any]] = [("grid 100 × 100", walk, distortion.euclidean(places))]
    path = find(data, "shopclicks/diginetica_train.parquet")
    if path is not None:
        import polars as pl

        clicks = pl.read_parquet(path)["seq"].to_list()
        cases.append(("shop clicks", MarkovModel.fit(clicks), "hamming"))
    rows = []
    for title, model, cost in cases:
        for epsilon in (1.0, 3.0):
            session, spent = Session(model, mechanism="tree", epsilon=epsilon, distortion=cost), []
            for code in model.sample(220, seed=3)[0]:
                value = model.alphabet.decode([code])[0]
                start = time.process_time()
                session.release(value)
                spent.append(time.process_time() - start)
            speed = len(spent[20:]) / sum(spent[20:])
            print(f"  {title:<16} n={model.n:<7} ε={epsilon:g}{speed:>10,.0f}")
            rows.append({"n": model.n, "epsilon": epsilon, "per_second": speed})
        speed = together(model, cost)
        print(f"  {title:<16} n={model.n:<7} ε=1{speed:>10,.0f}   first four events of 1,000 users, who share trees")
        rows.append({"n": model.n, "epsilon": 1.0, "together": speed})
    return rows


def together(model: MarkovModel, cost: Any, users: int = 1000, events: int = 4) -> float:
    """Releases a second of many users who begin alike, one event of each after another."""
    setting = Policy(epsilon=1.0, mechanism="tree", distortion=cost).on(model)
    states, randomness = [State.start(setting) for _ in range(users)], SystemRandomness()
    codes = model.sample(events, users, seed=6)
    start = time.process_time()
    for event in codes.T:
        for user, code in enumerate(event):
            _, states[user] = batches.step(setting, states[user], np.array([code]), randomness)
    return codes.size / (time.process_time() - start)


def growth() -> dict[str, list[list[float]]]:
    """Cost of an event as symbols, users, history and batch grow."""
    print("\nµs an event as things grow (optimal in bulk; batches: tree on the grid, ms a batch)")
    curves: dict[str, list[list[float]]] = {}
    curves["symbols"] = [[n, 1e6 / rate(sticky(n), "optimal", 20_000)] for n in (2, 4, 8, 17, 32, 64, 128)]
    curves["users"] = [[users, 1e6 / rate(sticky(SYMBOLS), "optimal", users)] for users in (10, 10**3, 10**5, 10**6)]
    curves["history"] = history()
    curves["batch"] = batch()
    for name, curve in curves.items():
        print(f"  {name:<9}" + "  ".join(f"{at:g}: {cost:.3g}" for at, cost in curve))
    return curves


def history() -> list[list[float]]:
    model, users = sticky(SYMBOLS), 1000
    setting, randomness = Policy(epsilon=EPSILON, mechanism="optimal").on(model), SystemRandomness()
    state = State.start(setting, users)
    codes = np.ascontiguousarray(model.sample(10_000, users, seed=4).T)
    curve, spent = [], []
    for at, event in enumerate(codes, 1):
        start = time.perf_counter()
        _, state = step(setting, state, event, randomness)
        spent.append(1e6 * (time.perf_counter() - start) / users)
        if at in (100, 1000, 10_000):
            curve.append([float(at), float(np.median(spent[-90:]))])
    return curve


def batch() -> list[list[float]]:
    walk, places = grid(50)
    curve = []
    for width in (1, 2, 5, 10, 20):
        session = Session(
            walk, mechanism="tree", epsilon=1.0 * width, distortion=distortion.euclidean(places), batch=width
        )
        spent = []
        for symbols in walk.sample(12 * width, seed=5)[0].reshape(12, width):
            start = time.process_time()
            session.release_batch(symbols.tolist())
            spent.append(1e3 * (time.process_time() - start))
        curve.append([width, float(np.median(spent[2:]))])
    return curve


def imports() -> float:
    """Milliseconds that `import seqveil` takes over `import numpy`, each in fresh processes, the best of several."""

    def spent(what: str) -> float:
        script = f"import time; t = time.perf_counter(); import {what}; print(time.perf_counter() - t)"
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment) for _ in range(7)]
        return 1e3 * min(float(run.stdout) for run in runs)

    numpy_alone, ours = spent("numpy"), spent("seqveil")
    print(f"\nimport: seqveil {ours:.0f} ms, plain Python {numpy_alone:.0f} ms, so {ours - numpy_alone:.0f} ms over it")
    return ours - numpy_alone
