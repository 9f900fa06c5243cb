"""Wrong symbols on MSNBC: 1,000 held-out users of 20 and more clicks, ε = 1 a click, with and without decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.timing import find
from seqveil import MarkovModel
from seqveil.core.distortion import Distortion
from seqveil.core.kernel import Kernels, usable
from seqveil.core.mechanisms import optimal
from seqveil.core.mechanisms.closed_form import solve
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.trials import mean_cost, release
from seqveil.receiver.decode import decode_codes

USERS, CLICKS, EPSILON = 1_000, 20, 1.0


def filled_alike(beliefs: np.ndarray, epsilon: float, costs: Distortion) -> Kernels:
    """An optimum as good for one release, whose labels are filled with all other symbols alike: tells less of them."""
    found, _ = solve(beliefs, usable(epsilon, beliefs.shape[1]))
    table = np.take_along_axis((found.extra + found.base[:, None]) / 2.0**62, found.rows[:, :, None], axis=1)
    other = np.ones(beliefs.shape, bool)
    np.put_along_axis(other, found.outputs, False, axis=1)
    mass = np.where(other, beliefs, 0.0)[:, :, None]
    mean = (mass * table).sum(1, keepdims=True) / np.maximum(mass.sum(1, keepdims=True), 1e-300)
    table = np.where(other[:, :, None] & (mass.sum(1, keepdims=True) > 0), mean, table)
    return Kernels.from_tables(found.outputs, table, None, beliefs)


ALIKE = replace(optimal, name="optimal, filled alike", build=filled_alike, quick=None)
CASES = (
    ("optimal", 1.0),
    (ALIKE, 1.0),
    ("balanced", 1.0),
    ("randomized_response", 1.0),
    ("randomized_response", 2.0),
    ("crr", 1.0),
)


def run(data: Path | None) -> list[dict[str, object]]:
    import polars as pl

    path = find(data, "msnbc/msnbc_sequences.parquet")
    if path is None:
        return []
    everyone = pl.read_parquet(path)
    held_out = everyone.filter(pl.col("seq").list.len() >= CLICKS).sample(USERS, seed=1)
    rest = everyone.join(held_out.select("user"), on="user", how="anti")
    model = MarkovModel.fit(rest["seq"].to_list())
    truth = model.alphabet.encode(held_out["seq"].list.head(CLICKS).explode().to_numpy()).reshape(USERS, CLICKS)
    print(f"{model}; first {CLICKS} clicks of {USERS} users; share of wrong symbols")
    print(f"  {'mechanism':<22}{'ε':>4}{'released':>10}{'filtered':>10}{'smoothed':>10}{'worst leakage':>15}")
    rows: list[dict[str, object]] = []
    for name, epsilon in CASES:
        setting = Policy(epsilon=epsilon, mechanism=name).on(model)
        many, users = CodeStreams(setting, randomness=SeededRandomness(7)), np.arange(USERS)
        released = np.stack([many.release(users, clicks).codes for clicks in truth.T], axis=1)
        online, smooth = (decode_codes(setting, released, smooth=s).argmax(2) for s in (False, True))
        wrong = [float((guess != truth).mean()) for guess in (released, online, smooth)]
        leakage = float(many.accounts().leakage.max())
        sound = "" if setting.mechanism.sound else f"  NOT sound: promised {epsilon * CLICKS:g}"
        shown = "".join(f"{w:>10.3f}" for w in wrong)
        title = setting.mechanism.name
        print(f"  {title:<22}{epsilon:>4g}{shown}{leakage:>15.2f}{sound}")
        rows.append({"mechanism": title, "epsilon": epsilon, "wrong": wrong, "leakage": leakage})
    rows += [in_batches(model, truth, size) for size in (5, 10)]
    constant = float((truth != np.bincount(truth.ravel()).argmax()).mean())
    print(f"  {'most frequent symbol':<33}{constant:>10.3f}")
    return rows


def in_batches(model: MarkovModel, truth: np.ndarray, size: int) -> dict[str, object]:
    """The same budget, spent `size` clicks at a time by the tree."""
    setting = Policy(epsilon=EPSILON * size, batch=size, mechanism="tree").on(model)
    made = release(setting, truth, 7, decoded=True)
    wrong = [mean_cost(costs)[0] for costs in (made.costs, made.filtered, made.smoothed)]
    leakage = max(made.most, -made.least)
    shown = "".join(f"{w:>10.3f}" for w in wrong)
    print(f"  {f'tree, {size} at a time':<22}{EPSILON:>4g}{shown}{leakage:>15.2f}", flush=True)
    return {"mechanism": "tree", "batch": size, "epsilon": EPSILON, "wrong": wrong, "leakage": leakage}
