"""How often intervals under the model (`stats`, method "model") hold the truth behind releases that keep a secret.

Simulated people follow the model of the release, a chain of order 1 or eight types of people, so that 90 and 95 % are
what the intervals promise. Of MSNBC nothing is simulated but the randomness: one half of the people fits the model, and
groups of the others, no person twice, are released and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.intervals import TARGETS, chain, held, released, summary
from benchmarks.timing import find
from seqveil import MarkovModel, secrets
from seqveil.core.kernel import Ints
from seqveil.engine.policy import Policy, Terms
from seqveil.receiver.statistics import ENOUGH, Summary
from tests.reference.mixtures import mixture

LEVELS = (0.90, 0.95)
TYPES, SYMBOLS, LENGTH, USERS, AGAIN = 8, 5, 10, 100, 60
CLICKS, GROUP, GROUPS, FITTED = 20, 100, 25, 20_000  # of MSNBC: events of a stream, people of a group, groups
TOTAL = 0.5  # ε of the secret
KINDS = (*TARGETS, "disclosed", "barely known")  # the last two: counts of symbols, by how much is disclosed of them


def shares(found: Summary, raw: Ints) -> list[float]:
    """Share of the intervals of each kind that hold the true figure."""
    parts = held(found, raw)
    assert found.disclosed is not None
    parts += [parts[0][found.disclosed >= ENOUGH], parts[0][found.disclosed < ENOUGH]]
    return [float(np.nanmean(part)) if np.isfinite(part).any() else np.nan for part in parts]


def measured(title: str, setting: Terms, people: Iterator[Ints]) -> dict[str, object]:
    """Release one group of people after another, and print how often the intervals held."""
    every = []
    for seed, raw in enumerate(people):
        codes = released(setting, raw, seed)
        every.append([shares(summary(setting, codes, "model", level), raw) for level in LEVELS])
    means = np.ma.masked_invalid(every).mean(0).filled(np.nan)
    rates: dict[str, dict[str, float]] = {}
    for level, mean in zip(LEVELS, means, strict=True):
        disclosed = dict(zip(KINDS, mean.tolist(), strict=True))
        shown = "".join(f"{'–' if np.isnan(share) else f'{share:.3f}':>13}" for share in disclosed.values())
        print(f"  {title:<26}{level:>5.0%}{shown}{len(every):>8}", flush=True)
        rates[f"{level:.2f}"] = {kind: share for kind, share in disclosed.items() if not np.isnan(share)}
    return {"title": title, "groups": len(every), **rates}


def simulated() -> list[dict[str, object]]:
    """People who follow the model of the release."""
    several = mixture([chain(SYMBOLS, k, 0.1 + 0.1 * k) for k in range(TYPES)], np.full(TYPES, 1 / TYPES))
    secret = secrets.ever(SYMBOLS - 1, epsilon=TOTAL, window=f"first {LENGTH}")
    rows = []
    for name, model in (("order 1", chain(SYMBOLS, 1, 0.6)), (f"{TYPES} types", several)):
        people = (model.sample(LENGTH, USERS, seed) for seed in range(AGAIN))
        rows.append(measured(name, Policy(secrets=secret, mechanism="guarded").on(model), people))
    return rows


def on_msnbc(data: Path | None) -> list[dict[str, object]]:
    """People of MSNBC whom the model was not fitted to, with 20 clicks and more."""
    import polars as pl

    path = find(data, "msnbc/msnbc_sequences.parquet")
    if path is None:
        return []
    clicks = pl.read_parquet(path).filter(pl.col("seq").list.len() >= CLICKS)["seq"].list.head(CLICKS)
    codes = clicks.explode().to_numpy().astype(np.int64).reshape(-1, CLICKS) - 1
    codes = codes[np.random.default_rng(0).permutation(len(codes))]
    fitted, others = codes[:FITTED], codes[FITTED : FITTED + GROUP * GROUPS]
    health, rows = 9, []
    for types in (None, TYPES):
        model = MarkovModel.fit(list(fitted), alphabet=range(17), types=types)
        secret = secrets.ever(health, epsilon=TOTAL, window=f"first {CLICKS}")
        setting = Policy(secrets=secret, mechanism="guarded").on(model)
        people = iter(np.split(others, len(others) // GROUP))
        rows.append(measured(f"MSNBC, {'order 1' if types is None else f'{types} types'}", setting, people))
    return rows


def run(data: Path | None) -> list[dict[str, object]]:
    print("share of the intervals under the model that hold the truth; releases keep a secret about one symbol")
    print(f"  {'people':<26}{'level':>5}" + "".join(f"{kind:>13}" for kind in KINDS) + f"{'groups':>8}")
    return simulated() + on_msnbc(data)
