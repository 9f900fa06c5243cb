"""Blocks beside single releases, pulses and batches: the same total, every event answered at once.

MSNBC, mvad and gaze on people who are held out; settings are chosen on simulated paths alone, but for the pulses, which
are the best ones in hindsight. Two small chains beside the best that any online mechanism can do. Random blocks, all of
whose paths are enumerated. What the promise does not say: one release alone may take all of a block's ε.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pulses import pulsed
from benchmarks.timing import best, find
from seqveil import Grid, MarkovModel, Session
from seqveil.core import bulk
from seqveil.core.distortion import Distortion, hamming, resolve
from seqveil.core.fitting import fit_codes
from seqveil.core.kernel import Ints
from seqveil.core.mechanisms.blocks import BlockRule
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import blocks
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State
from seqveil.interfaces.trials import mean_cost, release
from tests.reference.blocks import every_path, online_optimum

USERS, CLICKS = 1_000, 20
PULSES = (1, 2, 4, 5, 7, 10, 20)
RANDOM = 5_000
SIDE, FRAMES, SAMPLES, STREAMS, PER_SECOND = 50, 25, 100, 16, 10.0
CHAINS = {
    "stays with .9": (MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]), 1.10),
    "uneven": (MarkovModel([0.8, 0.2], [[0.9, 0.1], [0.4, 0.6]]), 1.15),
}
Row = dict[str, Any]


def run(data: Path | None) -> list[Row]:
    bulk.load()
    rows = chains() + enumerated(RANDOM)
    path = find(data, "msnbc/msnbc_sequences.parquet")
    if path is not None:
        rows += msnbc(path)
    path = find(data, "activity/mvad_monthly.parquet")
    if path is not None:
        rows += mvad(path)
    path = find(data, "gaze_vr/gaze.parquet")
    if path is not None:
        rows += gaze(path.parent)
    return rows


def chains() -> list[Row]:
    """Six events of two small chains: the exact error of blocks beside the online optimum with full memory."""
    print("share of wrong symbols over six events, and over that of the online optimum with full memory")
    rows = []
    for name, (model, limit) in CHAINS.items():
        for total in (1.5, 3.0, 6.0):
            rule = Policy(epsilon=total, block=6).on(model).rule
            wrong = [
                float((each.weights * each.chances * (each.codes[:, -1:] != each.sequences[:, -1])).sum())
                for each in every_path(rule, [total], [6])
            ]
            found, optimum = float(np.mean(wrong)), online_optimum(model, 6, total)
            shown = f"{found:.4f} against {optimum:.4f}: {found / optimum:.3f} (at most {limit:g})"
            print(f"  chain {name}, total {total:g}: {shown}", flush=True)
            rows.append({"chain": name, "total": total, "wrong": found, "optimum": optimum})
    return rows


def enumerated(count: int) -> list[Row]:
    """Random chains and blocks, two in a row, all paths: how far a lift passes its bound, and an account the truth."""
    excess, off, rng = -np.inf, 0.0, np.random.default_rng(1)
    for _ in range(count):
        n, length = int(rng.integers(2, 4)), int(rng.integers(1, 4))
        transitions = np.maximum(rng.dirichlet(np.full(n, 0.5), n), 1e-4)
        model = MarkovModel(rng.dirichlet(np.ones(n)), transitions / transitions.sum(1, keepdims=True))
        schedule = tuple(rng.choice([0, 6, 8, 8], length).tolist())
        level = float(np.exp(rng.uniform(np.log(0.1), np.log(12.0))))
        levels = [level, level * float(rng.choice([1.0, 0.5]))]
        paths = every_path(BlockRule(model, level, length, hamming(), schedule), levels, [length, 1])
        for each, bound in zip(paths, [levels[0]] * length + [sum(levels)], strict=True):
            excess = max(excess, float(np.abs(each.lifts).max()) - bound)
            off = max(off, float(np.abs(each.lifts.max(1) - each.account.most).max()))
            off = max(off, float(np.abs(each.lifts.min(1) - each.account.least).max()))
    print(f"{count} random blocks and what follows them: largest excess over L {excess:.2g}, account off by {off:.2g}")
    return [{"random": count, "excess": excess, "account": off}]


def msnbc(path: Path) -> list[Row]:
    import polars as pl

    everyone = pl.read_parquet(path)
    held_out = everyone.filter(pl.col("seq").list.len() >= CLICKS).sample(USERS, seed=1)
    rest = everyone.join(held_out.select("user"), on="user", how="anti")
    model = MarkovModel.fit(rest["seq"].to_list())
    truth = model.alphabet.encode(held_out["seq"].list.head(CLICKS).explode().to_numpy()).reshape(USERS, CLICKS)
    print(f"MSNBC: {model}; first {CLICKS} clicks of {USERS} users; share of wrong symbols, no delay but for tree")
    limits = {2.0: None, 3.0: 0.65, 5.0: 0.53, 10.0: 0.34, 20.0: 0.19, 40.0: 0.025}
    rows = [side_by_side(model, truth, total, CLICKS, limit) for total, limit in limits.items()]
    for size in (5, 10):
        wrong = tree(model, truth, 20.0, size)
        print(f"  total 20, tree, {size} at a time: {wrong:.3f}", flush=True)
        rows.append({"tree": size, "total": 20.0, "wrong": wrong})
    return rows + speed(model, truth)


def mvad(path: Path) -> list[Row]:
    import polars as pl

    months = pl.read_parquet(path).sort("person", "month")
    held_out, rest = months.filter(pl.col("person") % 4 == 0), months.filter(pl.col("person") % 4 != 0)
    model = MarkovModel.fit(rest.group_by("person", maintain_order=True).agg("state")["state"].to_list())
    length = 72
    truth = model.alphabet.encode(held_out["state"].to_list()).reshape(-1, length)
    print(f"mvad: {model}; {length} months of {len(truth)} people held out; share of wrong symbols")
    limits = {0.25: 0.236, 0.5: 0.072, 1.0: 0.002}
    return [side_by_side(model, truth, epsilon * length, 24, limit) for epsilon, limit in limits.items()]


def side_by_side(model: MarkovModel, truth: Ints, total: float, size: int, limit: float | None) -> Row:
    """One total over whole streams: single releases, the best pulses, and blocks of so many events."""
    epsilon = total / truth.shape[1]
    single = pulses(model, truth, epsilon, 1)
    pulsed = min(pulses(model, truth, epsilon, every) for every in PULSES if epsilon * every <= 16.0)
    begun = time.perf_counter()
    setting = Policy(epsilon=epsilon * size, block=size).on(model)
    schedule = "".join("." if not named else "x" if named == 8 else "o" for named in setting.rule.schedule)
    chosen = time.perf_counter() - begun
    wrong, leakage = in_blocks(setting, truth)
    wanted = "" if limit is None else f" (at most {limit:g}{', NOT REACHED' if wrong > limit else ''})"
    print(
        f"  total {total:<4g} ε {epsilon:<5.3g} optimal {single:.3f}, best pulses {pulsed:.3f}, blocks of {size} "
        f"{wrong:.4f}{wanted}; leaked at most {leakage:.2f}; schedule {schedule} in {chosen:.1f} s",
        flush=True,
    )
    return {"total": total, "block": size, "optimal": single, "pulses": pulsed, "wrong": wrong, "leakage": leakage}


def pulses(model: MarkovModel, truth: Ints, epsilon: float, every: int) -> float:
    """Wrong symbols of single releases, with m·ε at every m-th."""
    return float((pulsed(model, truth, epsilon, every)[0] != truth).mean())


def in_blocks(setting: Any, truth: Ints, seed: int = 7, costs: Distortion | None = None) -> tuple[float, float]:
    """What blocks cost, wrong symbols by default, and what any stream leaked."""
    state = State.start(setting, len(truth))
    randomness = SeededRandomness(seed)
    found, paid = [], hamming() if costs is None else costs
    for codes in truth.T:
        made, state = blocks.step(setting, state, codes, randomness)
        found.append(paid.between(codes, made.codes).mean())
    return float(np.mean(found)), float(state.account.worst.max())


def tree(model: MarkovModel, truth: Ints, total: float, size: int, users: int = 300) -> float:
    """Wrong symbols of batches, which wait."""
    setting = Policy(epsilon=total * size / truth.shape[1], batch=size, mechanism="tree").on(model)
    return mean_cost(release(setting, truth[:users], 7).costs)[0]


def speed(model: MarkovModel, truth: Ints) -> list[Row]:
    """Events a second of many streams, and one event of a session: the best of several runs, on whatever runs here."""
    rows = []
    for total in (5.0, 20.0):
        setting = Policy(epsilon=total, block=CLICKS).on(model)
        many = np.tile(truth, (4, 1))
        seconds = best(lambda setting=setting, many=many: in_blocks(setting, many), 3)
        session, spent = Session(model, epsilon=total, block=CLICKS), []
        for code in np.tile(truth[:60].ravel(), 2).tolist():
            symbol = model.alphabet.decode([code])[0]
            begun = time.perf_counter()
            session.release(symbol)
            spent.append(time.perf_counter() - begun)
        rate, one = many.size / seconds, 1e6 * float(np.median(spent))
        print(
            f"  total {total:g}: {rate:,.0f} events a second in bulk; one event of a session {one:.0f} µs", flush=True
        )
        rows.append({"total": total, "per_second": rate, "microseconds": one})
    return rows


def gaze(folder: Path) -> list[Row]:
    """Gaze on a grid of 50 × 50, ten units of ε a second, no delay: mean distance in cells."""
    model, truth = _gaze(folder)
    costs, epsilon = resolve("euclidean", model.alphabet), PER_SECOND / FRAMES
    print(f"gaze: {model}; {len(truth)} streams of {SAMPLES} samples, ε = {PER_SECOND:g} a second; cells off")
    single = mean_cost(release(Policy(epsilon=epsilon, mechanism="tree", distortion=costs).on(model), truth, 7).costs)[
        0
    ]
    rows: list[Row] = [{"gaze": "one by one", "distance": single}]
    print(f"  tree, one by one: {single:.2f}", flush=True)
    begun = time.perf_counter()
    setting = Policy(epsilon=PER_SECOND, block=FRAMES, distortion=costs).on(model)
    schedule = "".join("." if not named else "x" for named in setting.rule.schedule)
    chosen = time.perf_counter() - begun
    distance, _ = in_blocks(setting, truth, costs=costs)
    shown = f"{distance / single:.2f} of it (at most 0.6); schedule {schedule} in {chosen:.0f} s"
    print(f"  blocks of {FRAMES}: {distance:.2f}, {shown}", flush=True)
    return [*rows, {"gaze": f"blocks of {FRAMES}", "distance": distance, "ratio": distance / single}]


def _gaze(folder: Path) -> tuple[MarkovModel, Ints]:
    import polars as pl

    people = pl.read_parquet(folder / "recordings.parquet").select("rec", "user")
    looked = pl.read_parquet(folder / "gaze.parquet").join(people, on="rec")
    x, y = (
        np.clip(looked[name].to_numpy().astype(np.int64) * SIDE // 10_000, 0, SIDE - 1) for name in ("eye_x", "eye_y")
    )
    looked = looked.select("rec", "user").with_columns(pl.Series("value", x * SIDE + y))
    known, grid = looked.filter(pl.col("user") <= 40), Grid.regular(SIDE, SIDE, (0, SIDE, 0, SIDE))
    model = fit_codes(known["rec"].to_numpy(), known["value"].to_numpy(), grid, smoothing=0.5)
    rest = looked.filter(pl.col("user") > 40).partition_by("rec", maintain_order=True)
    streams = [part["value"].to_numpy()[:SAMPLES] for part in rest if len(part) >= SAMPLES]
    return model, np.stack(streams[:: len(streams) // STREAMS][:STREAMS])
