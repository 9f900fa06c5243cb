"""When the model is wrong: leakage, error and alarms as the true chain departs from it, on synthetic and real streams.

`python -m benchmarks.wrong_model --plot docs/img/wrong_model.png` draws what it prints.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from seqveil import MarkovModel, Setting, datasets
from seqveil.core.coins import SeededCoins
from seqveil.core.model import Counts
from seqveil.datasets import Dataset
from seqveil.receiver.drift import Drift
from seqveil.receiver.reweigh import Reweighed, wrong_model_bound

EPSILON, ALPHA = 1.0, 0.01
SHARES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
CASES = (("optimal", 1), ("optimal", 4), ("randomized_response", 1))


def measure(
    model: MarkovModel, truth: MarkovModel, raw: np.ndarray, mechanism: str, period: int
) -> dict[str, float | None]:
    """Release raw streams (B, T) with the model, and weigh them under the chain that is the truth.

    `leakage` is of the worst stream, `usual` the mean over streams, both a release; `bound` sums the bound of
    docs/theory.md, section 3(c), along the worst stream; `wrong` is the share of wrong symbols after the receiver's
    filter, who has the model too; `alarm` the releases after which `Drift` says that the model is wrong, None where it
    does not.
    """
    setting = Setting.of(model, mechanism, EPSILON, schedule=period)
    users, length = raw.shape
    both, coins, rows = Reweighed(setting, truth, users), SeededCoins(7), np.arange(users)
    drift = Drift(setting, ALPHA)
    bound, wrong, step, far = np.zeros(users), 0.0, 0.0, 0.0
    for symbols in raw.T:
        seen = both.release(rows, symbols, coins)
        made = seen.released
        drift.update(rows.tolist(), made.codes)
        distance = 0.5 * np.abs(made.beliefs - seen.beliefs).sum(1)
        bound += wrong_model_bound(made.epsilons, distance, setting.mechanism.ldp)
        wrong += float(((made.beliefs * made.columns).argmax(1) != symbols).mean())
        step, far = max(step, float(seen.costs.max())), far + float(distance.mean())
    worst = both.account.worst
    found = {"leakage": worst.max(), "usual": worst.mean(), "own": both.own.account.worst.max()}
    found = {name: float(value) / length for name, value in found.items()}
    return found | {
        "bound": float(bound.max()) / length,
        "any": setting.mechanism.ldp * EPSILON,
        "step": step,
        "distance": far / length,
        "wrong": wrong / length,
        "alarm": drift.alarm_at,
    }


def synthetic() -> Iterator[dict[str, object]]:
    """The true chain moves in a straight line from the model to another chain."""
    n, rng = 10, np.random.default_rng(3)
    one, two = (0.6 * np.eye(n) + 0.4 * rng.dirichlet(np.full(n, 0.5), n) for _ in range(2))
    two = 0.3 * np.roll(np.eye(n), 1, axis=1) + 0.7 * two[::-1]
    smooth = np.full((n, n), 0.02 / n)
    model = MarkovModel(np.full(n, 1 / n), 0.98 * one + smooth)
    for share in SHARES:
        truth = MarkovModel(np.full(n, 1 / n), 0.98 * ((1 - share) * one + share * two) + smooth)
        raw = truth.sample(40, 400, 5)
        apart = float(0.5 * np.abs(model.advance(np.eye(n)) - truth.advance(np.eye(n)))[raw[:, :-1]].sum(-1).mean())
        for mechanism, period in CASES:
            found = measure(model, truth, raw, mechanism, period)
            right = measure(truth, truth, raw, mechanism, period)["wrong"]
            yield {
                "data": "synthetic",
                "apart": apart,
                "mechanism": mechanism,
                "period": period,
                **found,
                "right": right,
            }


def real(data: Path | None) -> Iterator[dict[str, object]]:
    """The model from one group of people, released for another; the truth is the chain fitted to those."""
    for name in ("msnbc", "heart_rate", "electricity"):
        if datasets.missing(name, data):
            print(f"{name} skipped: pass --data (or set SEQVEIL_DATA to) a folder that holds it")
            continue
        found = datasets.load(name, data)
        for title, mine, theirs, length in groups(name, found):
            model, truth = fitted(found, mine), fitted(found, theirs)
            streams = [s for s, kept in zip(found.arrays(), theirs, strict=True) if kept and len(s) >= length]
            raw = np.stack([s[at : at + length] for s in streams for at in range(0, len(s) - length + 1, length)])
            raw = raw[np.random.default_rng(1).permutation(len(raw))[:500]]
            table = model.advance(np.eye(model.n)) - truth.advance(np.eye(model.n))
            apart = float(0.5 * np.abs(table)[raw[:, :-1]].sum(-1).mean())
            for mechanism, period in CASES:
                measured = measure(model, truth, raw, mechanism, period)
                right = measure(truth, truth, raw, mechanism, period)["wrong"]
                told = {"data": title, "apart": apart, "mechanism": mechanism, "period": period}
                yield {**told, **measured, "right": right}


def groups(name: str, found: Dataset) -> Iterator[tuple[str, np.ndarray, np.ndarray, int]]:
    """Pairs of groups of streams, and the length to release."""
    streams = found.arrays()
    lengths = np.array([len(s) for s in streams])
    if name == "msnbc":
        first = np.array([s[0] for s in streams])
        yield "msnbc: model of short visits, released for long", lengths < 5, lengths >= 20, 20
        yield "msnbc: model of those who enter by the front page, for others", first == 0, first != 0, 20
        return
    level = np.array([s.mean() for s in streams])
    low = level <= np.median(level)
    if name == "heart_rate":
        order = np.argsort(level)
        one, two = (np.arange(len(level)) == order[place] for place in (len(order) // 2, len(order) // 2 + 1))
        yield "heart rate: model of one person, for the next", one, two, 100
        yield "heart rate: model of the slower half, for the faster", low, ~low, 100
    else:
        yield "electricity: model of the thriftier half, for the others", low, ~low, 96


def fitted(found: Dataset, chosen: np.ndarray) -> MarkovModel:
    kept = found.index["user"].to_numpy()[chosen]
    users, codes = found.streams["user"].to_numpy(), found.streams["value"].to_numpy()
    mine, counts = np.isin(users, kept), Counts(found.alphabet.n)
    counts.add(users[mine], codes[mine])
    return counts.model(found.alphabet, smoothing=1.0)


def show(rows: list[dict[str, object]]) -> None:
    name, heads = None, ("leaks", "usual", "one step", "bound", "any", "wrong", "right model", "alarm after")
    for row in rows:
        if row["data"] != name:
            name = row["data"]
            print(f"{name}; leakage a release at ε = {EPSILON:g}, worst stream, if the truth is as stated")
            print(f"  {'mechanism':<22}{'every':>6}{'apart':>8}" + "".join(f"{head:>12}" for head in heads))
        figures = (row[key] for key in ("leakage", "usual", "step", "bound", "any", "wrong", "right"))
        shown = "".join(f"{figure:>12.3f}" for figure in figures)
        print(
            f"  {row['mechanism']:<22}{row['period']:>6}{row['apart']:>8.3f}{shown}{row['alarm'] or 'none':>12}",
            flush=True,
        )


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Leakage and error against the distance of the truth: lines are synthetic, points are real."""
    from matplotlib.figure import Figure

    figure = Figure((10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for case, colour in zip(CASES, ("#d1495b", "#00798c", "#7a7a7a"), strict=True):
        mine = [row for row in rows if (row["mechanism"], row["period"]) == case]
        line = [row for row in mine if row["data"] == "synthetic"]
        label = case[0] if case[1] == 1 else f"{case[0]}, every {case[1]}th"
        at = [row["apart"] for row in line]
        left.plot(at, [row["leakage"] for row in line], "-", color=colour, label=f"{label}: exact")
        if case[0] == "optimal":
            left.plot(at, [row["bound"] for row in line], ":", color=colour, label=f"{label}: bound")
        right.plot(at, [row["wrong"] for row in line], "-", color=colour, label=f"{label}: this model")
        right.plot(at, [row["right"] for row in line], ":", color=colour, label=f"{label}: the right model")
        for row in (row for row in mine if row["data"] != "synthetic"):
            left.plot(row["apart"], row["leakage"], "o", color=colour)
            right.plot(row["apart"], row["wrong"], "o", color=colour)
            right.plot(row["apart"], row["right"], "o", color=colour, mfc="none")
    left.axhline(EPSILON, color="#30343f", lw=1, ls="--", label="ε: the promise for the model")
    left.axhline(2 * EPSILON, color="#30343f", lw=1, label="2ε: for any chain")
    left.set(xlabel="distance of the truth from the model (total variation of a step)", ylabel="leakage a release")
    right.set(xlabel="distance of the truth from the model (total variation of a step)", ylabel="wrong after filtering")
    left.set(title="What a wrong model leaks (worst stream)", ylim=(0, 2.1 * EPSILON))
    right.set(title="What it costs", ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=110)


def run(data: Path | None, plot: Path | None = None) -> list[dict[str, object]]:
    rows = list(synthetic())
    show(rows)
    others = list(real(data))
    show(others)
    rows += others
    if plot is not None:
        draw(rows, plot)
        print(f"drawn in {plot}")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrong_model", description=__doc__)
    parser.add_argument("--data", default=os.environ.get("SEQVEIL_DATA"), help="folder with the data sets")
    parser.add_argument("--plot", type=Path, help="draw the curves in this file")
    given = parser.parse_args()
    run(None if given.data is None else Path(given.data), given.plot)
