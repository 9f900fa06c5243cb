"""Declared secrets on MSNBC: a total about "ever read health" in the first 20 clicks, beside ε = 1 a click about all.

Beside the shares of wrong symbols stand those of the design's prototype (an exact program a click, order-1 chain).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.timing import best, find
from seqveil import Fleet, MarkovModel, Setting, secrets
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import hamming
from seqveil.core.guarding.bounds import Bounds
from seqveil.core.guarding.solving import guarded
from seqveil.core.secrets import Guarded
from seqveil.release.guarded import table
from seqveil.release.stream import State, step

USERS, CLICKS = 300, 20
HEALTH = "health"
CASES = (  # total ε, sides, the truth or nothing, prototype
    (0.5, "both", False, 0.131),
    (1.0, "both", False, 0.074),
    (1.0, "up", False, 0.052),
    (1.0, "both", True, 0.543),
)
LARGE = 10_000


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {"large": time_of_large()}
    loaded = clicks(data)
    if loaded is not None:
        model, truth, health = loaded
        print(f"{model}; first {CLICKS} clicks of {len(truth)} users; share of wrong symbols")
        print(f"  prior of the secret {first_of(model, health).rows[0][0].prior:.4f}")
        found["kernel_17_ms"] = time_of_first(model, health)
        found["guarded"] = [race(model, truth, health, *case) for case in CASES]
        found["optimal"] = whole_sequence(model, truth, health)
    return found


def clicks(data: Path | None) -> tuple[MarkovModel, np.ndarray, int] | None:
    """A chain fitted on the first clicks of all other such users, the codes of those held out, and the secret value."""
    import polars as pl

    path, named = find(data, "msnbc/msnbc_sequences.parquet"), find(data, "msnbc/msnbc_categories.parquet")
    if path is None or named is None:
        return None
    everyone, names = pl.read_parquet(path), pl.read_parquet(named)
    health = int(names.filter(pl.col("name") == HEALTH)["code"].item())
    long = everyone.filter(pl.col("seq").list.len() >= CLICKS).with_columns(pl.col("seq").list.head(CLICKS))
    held_out = long.sample(USERS, seed=1)
    rest = long.join(held_out.select("user"), on="user", how="anti")
    model = MarkovModel.fit(rest.explode("seq").rename({"seq": "value"}))
    codes = model.alphabet.encode(held_out["seq"].explode().to_numpy())
    return model, codes.reshape(-1, CLICKS), health


def race(
    model: MarkovModel, truth: np.ndarray, health: int, epsilon: float, sides: str, withhold: bool, prototype: float
) -> dict[str, object]:
    secret = secrets.ever(health, epsilon=epsilon, window=f"first {CLICKS}", sides=sides)  # type: ignore[arg-type]
    setting, coins = Setting.of(model, "guarded", secrets=secret, withhold=withhold), SeededCoins(7)
    wrong, most = 0, 0.0
    for codes in truth:
        state = State.start(setting)
        for code in codes:
            released, state = step(setting, state, np.array([code]), coins)
            wrong += int(released.codes[0] != code)
        assert state.watches is not None
        most = max(most, state.watches[0].rows[0][0].worst.worst(sides))
    share = wrong / truth.size
    title = f"guarded, total ε = {epsilon:g}, {sides}{', the truth or nothing' if withhold else ''}"
    print(f"  {title:<52}{share:>8.3f}  prototype {prototype:.3f}; most told {most:.6f}", flush=True)
    return {"epsilon": epsilon, "sides": sides, "withhold": withhold, "wrong": share, "log_odds": most}


def whole_sequence(model: MarkovModel, truth: np.ndarray, health: int) -> dict[str, object]:
    """`optimal` at ε = 1 a click, a total of 20, and what it tells about the secret."""
    setting = Setting.of(model, "optimal", 1.0)
    fleet, coins = Fleet(setting, len(truth)), SeededCoins(7)
    first = secrets.Watch.start(model, secrets.ever(health, window=f"first {CLICKS}"))
    watches, wrong = [first] * len(truth), 0
    for codes in truth.T:
        made = fleet.release(np.arange(len(truth)), codes, coins)
        wrong += int((made.codes != codes).sum())
        watches = [one.observe(column) for one, column in zip(watches, made.columns, strict=True)]
    told = np.array([one.worst.worst() for one in watches])
    share = wrong / truth.size
    title, seen = "optimal, ε = 1 a click about everything", f"median {np.median(told):.2f}, most {told.max():.2f}"
    print(f"  {title:<52}{share:>8.3f}  prototype 0.489; told about the secret: {seen}")
    return {"wrong": share, "median_log_odds": float(np.median(told)), "log_odds": float(told.max())}


def guarding(model: MarkovModel, health: int) -> Setting:
    return Setting.of(model, "guarded", secrets=secrets.ever(health, epsilon=0.5, window=f"first {CLICKS}"))


def first_of(model: MarkovModel, health: int) -> secrets.Watches:
    """The account of the secret before the first click."""
    return secrets.Watches(model, guarding(model, health).secrets)


def time_of_first(model: MarkovModel, health: int) -> float:
    """Milliseconds of one kernel of the chain, its check from the integers included."""
    setting, watches = guarding(model, health), first_of(model, health)
    took = 1e3 * best(lambda: table(setting, watches), 20)
    print(f"  one kernel for {model.n} symbols: {took:.2f} ms")
    return took


def time_of_large() -> float:
    """Milliseconds of one kernel for 10⁴ symbols: a zone of 30 cells, and weights that fall with the distance."""
    rng = np.random.default_rng(1)
    belief = rng.dirichlet(np.ones(LARGE))
    weights = 0.05 + 0.9 * np.exp(-np.arange(LARGE) / 30) + 0.1 * rng.random(LARGE)
    weights = np.minimum(weights, 1.0)
    prior = float(belief @ weights)
    rows, priors = np.stack([1 - weights, weights])[None], np.array([[1 - prior, prior]])
    bounds = Bounds.of_guarded([(belief, Guarded(np.array([0]), rows, priors, 0.5, "both", 0.0))], belief)
    took = 1e3 * best(lambda: guarded(bounds, hamming()), 3)
    print(f"  one kernel for {LARGE} symbols: {took:.0f} ms, wrong symbols {guarded(bounds, hamming()).error:.4f}")
    return took
