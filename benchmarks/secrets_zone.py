"""A place as a secret, on GeoLife: 12 × 12 cells of 0.7 km, a sample every 30 minutes, a zone of three cells.

A stream is one person's day, 30 half hours from the first fix, each with the last place that is known; a quarter of the
people are held out. The zone is, of all three neighbouring cells that 37 to 45 % of the held-out streams enter (41 % in
the design's prototype), the one that most of their samples lie in. Figures are distances in kilometres between the
centres of the true and the released cell.
"""

from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.timing import find
from seqveil import Budget, Grid, MarkovModel, secrets
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, step
from seqveil.engine.streams import CodeStreams

CELLS, SIZE, EVENTS, MINUTES = 12, 0.7, 30, 30
CENTRE = (39.98, 116.32)  # latitude, longitude: the north-west of Beijing, where most of the tracks are
KILOMETRES = (111.2, 111.2 * np.cos(np.radians(CENTRE[0])))
ENTERED = (0.37, 0.45)
STREAMS = 40
FINE = 100  # cells a side for the time of one event
TOTALS = (1.0, 0.5)


def run(data: Path | None) -> dict[str, object]:
    points = samples(data)
    if points is None:
        return {}
    grid = Grid.regular(CELLS, CELLS, bounds=(0.0, CELLS * SIZE, 0.0, CELLS * SIZE))
    fitted, truth = split(grid, points)
    model = MarkovModel.fit([grid.decode(codes) for codes in fitted], alphabet=grid)
    zone = zone_near(truth)
    truth = truth[np.random.default_rng(1).permutation(len(truth))[:STREAMS]]
    entered = float(np.isin(truth, zone).any(1).mean())
    print(f"GeoLife: {len(truth)} streams of {EVENTS}, {model.n} cells; {entered:.0%} enter the zone; kilometres")
    found: dict[str, object] = {"entered": entered}
    for total in TOTALS:
        name = f"guarded, total ε = {total:g}"
        found[name] = guarded(model, truth, zone, total, name)
    found |= whole_sequence(model, truth, zone)
    found["fine_ms"] = fine(points)
    return found


def samples(data: Path | None) -> list[np.ndarray] | None:
    """For each person the places (x, y) in kilometres of days inside the square: (days, 30, 2)."""
    import polars as pl

    path = find(data, "geolife/geolife_1min.parquet")
    if path is None:
        return None
    edge = CELLS * SIZE
    fixes = (
        pl.read_parquet(path)
        .select(
            "user",
            ((pl.col("lon_e5") / 1e5 - CENTRE[1]) * KILOMETRES[1] + edge / 2).alias("x"),
            ((pl.col("lat_e5") / 1e5 - CENTRE[0]) * KILOMETRES[0] + edge / 2).alias("y"),
            ((pl.col("t_min") + 8 * 60) // (24 * 60)).alias("day"),  # Beijing's
            (pl.col("t_min") // MINUTES).alias("slot"),
            "t_min",
        )
        .filter(pl.col("x").is_between(0, edge, closed="left"), pl.col("y").is_between(0, edge, closed="left"))
        .sort("user", "t_min")
    )
    people = []
    for person in fixes.partition_by("user", maintain_order=True):
        days = []
        for day in person.partition_by("day", maintain_order=True):
            slots, places = day["slot"].to_numpy(), day.select("x", "y").to_numpy()
            wanted = slots[0] + np.arange(EVENTS)
            days.append(places[np.searchsorted(slots, wanted, side="right") - 1])
        people.append(np.array(days))
    return people


def split(grid: Grid, people: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Days of three quarters of the people, to fit on, and of the others."""
    codes = [
        grid.encode([tuple(point) for point in days.reshape(-1, 2).tolist()]).reshape(-1, EVENTS) for days in people
    ]
    fitted = [day for number, days in enumerate(codes) if number % 4 for day in days]
    return fitted, np.concatenate(codes[::4])


def zone_near(truth: np.ndarray) -> np.ndarray:
    """Three neighbouring cells that about the wanted share of the streams enters, where people are most."""
    best, most = None, -1.0
    for cell in range(CELLS * CELLS):
        row, column = divmod(cell, CELLS)
        beside = [(row + a) * CELLS + column + b for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))
                  if 0 <= row + a < CELLS and 0 <= column + b < CELLS]  # fmt: skip
        for two in combinations(beside, 2):
            inside = np.isin(truth, [cell, *two])
            if ENTERED[0] <= inside.any(1).mean() <= ENTERED[1] and inside.mean() > most:
                best, most = np.array(sorted([cell, *two])), float(inside.mean())
    assert best is not None
    return best


def guarded(model: MarkovModel, truth: np.ndarray, zone: np.ndarray, total: float, name: str) -> dict[str, float]:
    cells = [model.alphabet.decode([code])[0] for code in zone]
    secret = secrets.zone(cells, epsilon=total, window=f"first {EVENTS}")
    setting = Policy(secrets=secret, mechanism="guarded", distortion="euclidean").on(model)
    state, randomness, out = State.start(setting, len(truth)), SeededRandomness(5), np.empty_like(truth)
    begin = time.perf_counter()
    for t, codes in enumerate(truth.T):
        released, state = step(setting, state, codes, randomness)
        out[:, t] = released.codes
    took = (time.perf_counter() - begin) / truth.size
    assert state.trackers is not None
    disclosed = max(each.rows[0][0].worst.worst() for each in state.trackers)
    return show(model, truth, out, zone, name, disclosed, took)


def whole_sequence(model: MarkovModel, truth: np.ndarray, zone: np.ndarray) -> dict[str, object]:
    """The same streams under a promise about everything: `tree`, with a total and with ε = 1 an event."""
    cases = {
        "tree, total ε = 1": (1.0, Budget(1.0)),
        "tree, ε = 1 an event": (1.0, None),
    }
    found: dict[str, object] = {}
    for name, (epsilon, budget) in cases.items():
        setting = Policy(epsilon=epsilon, budget=budget, mechanism="tree", distortion="euclidean").on(model)
        streams, out = CodeStreams(setting, randomness=SeededRandomness(5)), np.empty_like(truth)
        users = np.arange(len(truth))
        for t, codes in enumerate(truth.T):
            made = streams.release(users, [[code] for code in codes.tolist()])
            out[:, t] = [sent[1][0] for sent in made.sent if sent is not None]
        found[name] = show(model, truth, out, zone, name)
    return found


def show(
    model: MarkovModel, truth: np.ndarray, out: np.ndarray, zone: np.ndarray, name: str, disclosed: float = np.nan,
    took: float = np.nan,
) -> dict[str, float]:  # fmt: skip
    points = model.alphabet.points
    assert points is not None
    apart = np.sqrt(((points[truth] - points[out]) ** 2).sum(-1))
    inside = np.isin(truth, zone)
    figures = {
        "km": float(apart.mean()),
        "outside": float(apart[~inside].mean()),
        "inside": float(apart[inside].mean()),
        "exact": float((apart == 0).mean()),
    }
    more = "" if np.isnan(disclosed) else f"; most disclosed {disclosed:.6f}, {1e3 * took:.1f} ms an event"
    row = f"{figures['km']:.2f}, outside the zone {figures['outside']:.2f}, inside {figures['inside']:.2f}"
    print(f"  {name:<42}{row}, exact {figures['exact']:.0%}{more}", flush=True)
    return figures if np.isnan(disclosed) else figures | {"log_odds": disclosed, "ms": 1e3 * took}


def fine(people: list[np.ndarray]) -> dict[str, float]:
    """Milliseconds of processor time of one event on 100 × 100 cells of the same square, by either cost."""
    grid = Grid.regular(FINE, FINE, bounds=(0.0, CELLS * SIZE, 0.0, CELLS * SIZE))
    fitted, truth = split(grid, people)
    model = MarkovModel.fit([grid.decode(codes) for codes in fitted], alphabet=grid)
    middle = grid.decode([np.bincount(truth.ravel()).argmax()])[0]
    secret = secrets.zone(centre=middle, radius=0.5, epsilon=1.0, window=f"first {EVENTS}")
    found = {}
    for distortion in ("hamming", "euclidean"):
        setting = Policy(secrets=secret, mechanism="guarded", distortion=distortion).on(model)
        state, randomness, times = State.start(setting), SeededRandomness(5), []
        for code in truth[0].tolist():
            begin = time.process_time()
            _, state = step(setting, state, np.array([code]), randomness)
            times.append(time.process_time() - begin)
        found[distortion] = 1e3 * float(np.median(times))
        print(
            f"  {grid.n} cells, {distortion}: {found[distortion]:.1f} ms an event (median), most {1e3 * max(times):.0f}"
        )
    return found
