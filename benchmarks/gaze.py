"""Real gaze on a 100 × 100 grid at ten units of ε a second: batches, single samples, and randomised response.

The model is fitted on 40 people; the streams are recordings of 5 others, 250 samples (ten seconds) of each.
"""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import find
from seqveil import Grid, MarkovModel
from seqveil.core.distortion import Distortion, resolve
from seqveil.core.fitting import fit_codes
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.decode import decode_codes

SIDE, FRAMES, SAMPLES, STREAMS = 100, 25, 250, 16
PER_SECOND = 10.0
Row = dict[str, Any]


def run(data: Path | None) -> list[Row]:
    found = find(data, "gaze_vr/gaze.parquet")
    if found is None:
        return []
    model, streams = model_and_streams(found.parent)
    costs = resolve("euclidean", model.alphabet)
    print(f"{model}; {len(streams)} streams of {SAMPLES} samples, {FRAMES} a second, ε = {PER_SECOND:g} a second")
    print(f"  {'':<34}{'ε':>6}{'released':>10}{'hindsight':>11}{'ms a release':>14}   mean error in cells")
    rows = [in_batches(model, costs, streams, size) for size in (5, 10, 25, 50)]
    rows.append(in_batches(model, costs, streams, 1))
    rows += [one_by_one(model, costs, streams, "randomized_response", factor) for factor in (1, 2)]
    rows.append(constant(model, costs, streams))
    instant, batched = rows[4]["hindsight"], rows[2]["released"]
    print(f"  25 at a time against single samples with decoder: {instant / batched:.1f} times less error")
    return rows + [_one_batch(model, costs, streams[:4], size) for size in (10, 25, 50)]


def _one_batch(model: MarkovModel, costs: Distortion, streams: list[Any], size: int) -> Row:
    """Processor time of a batch at ε = 10, as a multiple of one step of the chain too, and memory beyond the model."""
    setting, randomness, spent = (
        Policy(epsilon=10.0, batch=size, mechanism="tree", distortion=costs).on(model),
        SeededRandomness(1),
        [],
    )
    for stream in streams:
        state = State.start(setting)
        for begin in range(0, SAMPLES // size * size, size):
            begun = time.process_time()
            _, state = batches.step(setting, state, stream[begin : begin + size], randomness)
            spent.append(time.process_time() - begun)
    begun = time.process_time()
    for _ in range(100):
        model.advance(model.initial)
    step = (time.process_time() - begun) / 100
    tracemalloc.start()
    _, state = batches.step(setting, state, streams[0][:size], randomness)
    kept, peak = (each / 1e6 for each in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    median = float(np.median(spent))
    print(
        f"  tree, {size} at a time, ε=10 a batch: {1e3 * median:.0f} ms, as {median / step:.0f} steps of the chain; "
        f"memory {peak:.1f} MB while it runs, {kept:.1f} MB kept"
    )
    return {"name": f"one batch of {size}", "milliseconds": 1e3 * median, "steps": median / step, "kept": kept}


def in_batches(model: MarkovModel, costs: Distortion, streams: list[Any], size: int) -> Row:
    """The tree, `size` samples at a time."""
    epsilon = PER_SECOND * size / FRAMES
    setting = Policy(epsilon=epsilon, batch=size, mechanism="tree", distortion=costs).on(model)
    randomness, released, decoded, spent = SeededRandomness(1), [], [], []
    for stream in streams:
        state, sent = State.start(setting), []
        for begin in range(0, SAMPLES, size):
            begun = time.process_time()
            one, state = batches.step(setting, state, stream[begin : begin + size], randomness)
            spent.append(time.process_time() - begun)
            sent.append(one)
        guesses = costs.best_guess(batches.smooth(setting, sent))
        released.append(costs.between(stream, np.concatenate([one.codes for one in sent])).mean())
        decoded.append(costs.between(stream, guesses).mean())
    name = f"tree, {size} at a time" if size > 1 else "tree, single samples"
    return _say(name, epsilon, released, decoded, spent)


def one_by_one(model: MarkovModel, costs: Distortion, streams: list[Any], name: str, factor: int) -> Row:
    setting = Policy(epsilon=factor * PER_SECOND / FRAMES, mechanism=name, distortion=costs).on(model)
    many, rows = CodeStreams(setting, randomness=SeededRandomness(1)), np.arange(len(streams))
    truth, spent, codes = np.stack(streams), [], []
    for sample in truth.T:
        begun = time.process_time()
        codes.append(many.release(rows, sample).codes)
        spent.append((time.process_time() - begun) / len(streams))
    made = np.stack(codes, axis=1)
    guesses = [costs.best_guess(decode_codes(setting, codes[None])[0]) for codes in made]
    released, decoded = ([costs.between(x, y).mean() for x, y in zip(truth, z, strict=True)] for z in (made, guesses))
    return _say(f"{name} at {factor}ε", setting.epsilon, released, decoded, spent)


def constant(model: MarkovModel, costs: Distortion, streams: list[Any]) -> Row:
    """The best guess with no release at all: the centre of where people look."""
    guess = costs.best_guess(model.base[None])[0]
    errors = [costs.between(stream, guess).mean() for stream in streams]
    return _say("no release", 0.0, errors, errors, [0.0])


def _say(name: str, epsilon: float, released: list[float], decoded: list[float], spent: list[float]) -> Row:
    row = {"name": name, "epsilon": epsilon, "released": float(np.mean(released)), "hindsight": float(np.mean(decoded))}
    row["milliseconds"] = 1e3 * float(np.median(spent))
    shown = f"{row['released']:>10.2f}{row['hindsight']:>11.2f}{row['milliseconds']:>14.1f}"
    print(f"  {name:<34}{epsilon:>6.3g}{shown}", flush=True)
    return row


def model_and_streams(folder: Path) -> tuple[MarkovModel, list[Any]]:
    import polars as pl

    people = pl.read_parquet(folder / "recordings.parquet").select("rec", "user")
    gaze = pl.read_parquet(folder / "gaze.parquet").join(people, on="rec")
    x, y = (
        np.clip(gaze[name].to_numpy().astype(np.int64) * SIDE // 10_000, 0, SIDE - 1) for name in ("eye_x", "eye_y")
    )
    gaze = gaze.select("rec", "user").with_columns(pl.Series("value", x * SIDE + y))
    known = gaze.filter(pl.col("user") <= 40)
    grid = Grid.regular(SIDE, SIDE, (0, SIDE, 0, SIDE))
    model = fit_codes(known["rec"].to_numpy(), known["value"].to_numpy(), grid, smoothing=0.5)
    rest = gaze.filter(pl.col("user") > 40).partition_by("rec", maintain_order=True)
    streams = [part["value"].to_numpy()[:SAMPLES] for part in rest if len(part) >= SAMPLES]
    return model, streams[:: len(streams) // STREAMS][:STREAMS]
