"""How often the receiver's 95 % intervals cover the truth: simulated, released with a model that is not the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqveil import MarkovModel, Setting, Streams
from seqveil.core.coins import SeededCoins
from seqveil.receive.statistics import summarise

TARGETS = ("histogram", "over_time", "transitions", "dwell")
CASES = (
    # mechanism, ε, period, symbols, users, events of each, simulations
    ("randomized_response", 1.0, 1, 4, 100, 20, 400),
    ("randomized_response", 2.0, 1, 4, 100, 20, 400),
    ("randomized_response", 1.0, 1, 12, 200, 20, 200),
    ("optimal", 1.0, 1, 4, 600, 12, 150),
    ("optimal", 2.0, 2, 4, 600, 12, 150),
)


def chain(n: int, seed: int, stay: float) -> MarkovModel:
    rng = np.random.default_rng(seed)
    return MarkovModel(
        rng.dirichlet(np.full(n, 3.0)), stay * np.eye(n) + (1 - stay) * rng.dirichlet(np.full(n, 3.0), n)
    )


def covered(setting: Setting, truth: MarkovModel, users: int, length: int, seed: int) -> tuple[list[float], str]:
    """Share of the intervals of each kind that hold the true count."""
    n, raw = setting.model.n, truth.sample(length, users, seed)
    many, rows = Streams(setting, coins=SeededCoins(seed + 10**6)), np.arange(users)
    released = np.stack([many.release(rows, raw[:, t]).codes for t in range(length)], axis=1)
    found = summarise(setting, np.repeat(rows, length).tolist(), released.ravel(), window=length // 2)
    seen, moves = np.bincount(raw.ravel(), minlength=n), np.zeros((n, n))
    np.add.at(moves, (raw[:, :-1].ravel(), raw[:, 1:].ravel()), 1)
    halves = np.stack([np.bincount(half.ravel(), minlength=n) for half in np.split(raw, 2, axis=1)])
    truths = (seen, halves, moves, seen / np.maximum(seen - moves.diagonal(), 1))
    estimates = [getattr(found, name) for name in TARGETS]
    pairs = zip(estimates, truths, strict=True)
    return [float(((e.low <= t) & (t <= e.high)).mean()) for e, t in pairs], found.method


def run(data: Path | None) -> list[dict[str, object]]:
    print("share of 95 % intervals that hold the truth; the truth is another chain than the release's model")
    print(
        f"  {'mechanism':<22}{'ε':>4}{'every':>7}{'n':>4}{'users':>7}{'method':>9}"
        + "".join(f"{t:>13}" for t in TARGETS)
    )
    rows: list[dict[str, object]] = []
    for mechanism, epsilon, period, n, users, length, count in CASES:
        setting, truth = Setting.of(chain(n, 1, 0.6), mechanism, epsilon, schedule=period), chain(n, 2, 0.5)
        found = [covered(setting, truth, users, length, seed) for seed in range(count)]
        rates = np.mean([rates for rates, _ in found], axis=0)
        method = "/".join(sorted({method for _, method in found}))
        shown = "".join(f"{rate:>13.3f}" for rate in rates)
        print(
            f"  {mechanism:<22}{epsilon:>4g}{period:>7}{n:>4}{users:>7}{method:>9}{shown}   {count} simulations",
            flush=True,
        )
        coverage = dict(zip(TARGETS, rates.tolist(), strict=True))
        rows.append({"mechanism": mechanism, "epsilon": epsilon, "period": period, "n": n, "users": users, **coverage})
    return rows


if __name__ == "__main__":
    run(None)
