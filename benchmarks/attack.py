"""Attacks without a model on MSNBC's people: failures that must be found, and promises that must hold.

`python -m benchmarks.attack --plot docs/img/attack.png` draws the tenths of people behind the verdicts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contexts import clicks_of
from benchmarks.timing import find
from seqveil import MarkovModel, Setting, Streams, secrets
from seqveil.core.coins import SeededCoins
from seqveil.evaluate.attack import Finding, attack_secret
from seqveil.evaluate.commands.attack import draw

FEW, MANY, FITTED = 1_000, 6_000, 20_000
EPSILONS = (0.5, 1.0)
Release = Callable[[np.ndarray], list[np.ndarray]]


def run(data: Path | None, plot: Path | None = None) -> list[dict[str, Any]]:
    clicks = clicks_of(data)
    if clicks is None:
        print("no MSNBC data: pass --data DIR or set SEQVEIL_DATA")
        return []
    clicks = np.random.default_rng(0).permutation(clicks)
    fitted, held = clicks[:FITTED], clicks[FITTED:]
    print(f"secret: ever health in 20 clicks; {FITTED:,} people fit the models, others are released and attacked")
    names = names_of(data)
    health = names.index("health")
    chain, types = (MarkovModel.fit(list(fitted), alphabet=range(17), types=k) for k in (1, 48))
    rows, findings = [], []
    for epsilon in EPSILONS:
        secret = secrets.ever(health, window=20, epsilon=epsilon)
        for name, people, release in releases(health, chain, types, secret):
            raw = held[:people]
            found = attack_secret(release(raw), list(raw), secret.compile(chain), epsilon)
            said = f"{found.verdict:<12} ε ≥ {found.epsilon_at_least:5.3f}"
            ratio = found.guess.likelihood_ratio if found.guess is not None else float("nan")
            print(f"  ε = {epsilon:<4g} {name:<44} {people:>6,} people   {said}   ratio {ratio:6.2f}", flush=True)
            rows.append(
                {"what": name, "epsilon": epsilon, "people": people, "verdict": found.verdict,
                 "epsilon_at_least": found.epsilon_at_least, "ratio": ratio}
            )  # fmt: skip
            findings.append((name, epsilon, found))
    if plot is not None:
        picture(findings, plot)
    return rows


def releases(
    health: int, chain: MarkovModel, types: MarkovModel, secret: secrets.Secret
) -> list[tuple[str, int, Release]]:
    """What is attacked: planted failures with few people, promises with many."""
    published = Setting.of(chain, "crr", secret.epsilon / 40)  # a total of ε about the odds, as it claims
    blank = np.roll(np.arange(17), 1)[health]
    return [
        ("raw (planted)", FEW, list),
        ("health pages left out (planted)", FEW, lambda raw: list(np.where(raw == health, blank, raw))),
        ("published closed form, Σε = ε/2 (planted)", FEW, lambda raw: streams(published, raw)),
        ("guarded, a model of others (planted)", FEW, lambda raw: guarded(other_people(chain), secret, raw)),
        ("guarded, chain of order 1", MANY, lambda raw: guarded(chain, secret, raw)),
        ("guarded, 48 types", MANY, lambda raw: guarded(types, secret, raw)),
    ]


def other_people(chain: MarkovModel) -> MarkovModel:
    """A wrong model: the pages have changed places."""
    turned = np.roll(np.arange(chain.n), 5)
    table = chain.advance(np.eye(chain.n))[np.ix_(turned, turned)]
    return MarkovModel(chain.prior[turned], table, alphabet=range(chain.n))


def streams(setting: Setting, raw: np.ndarray, seed: int = 5) -> list[np.ndarray]:
    many, users = Streams(setting, coins=SeededCoins(seed)), np.arange(len(raw))
    return list(np.stack([many.release(users, raw[:, t]).codes for t in range(raw.shape[1])], axis=1))


def guarded(model: MarkovModel, secret: secrets.Secret, raw: np.ndarray) -> list[np.ndarray]:
    """The streams released one session a person, on all cores: with many types an event takes some 20 ms."""
    cores = os.cpu_count() or 1
    work = [
        (model, secret, part, seed) for seed, part in zip(range(4 * cores), np.array_split(raw, 4 * cores), strict=True)
    ]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        return [codes for part in pool.starmap(_guarded, work) for codes in part]


def _guarded(model: MarkovModel, secret: secrets.Secret, raw: np.ndarray, seed: int) -> list[np.ndarray]:
    return streams(Setting.of(model, "guarded", secrets=[secret]), raw, 10_000 + seed) if len(raw) else []


def names_of(data: Path | None) -> list[str]:
    import polars as pl

    path = find(data, "msnbc/msnbc_categories.parquet")
    assert path is not None
    return pl.read_parquet(path)["name"].to_list()


def picture(findings: list[tuple[str, float, Finding]], plot: Path) -> None:
    draw([(f"{name}, ε = {epsilon:g}", found) for name, epsilon, found in findings if "planted" not in name], plot)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--data", default=os.environ.get("SEQVEIL_DATA"))
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args()
    run(None if chosen.data is None else Path(chosen.data), chosen.plot)


if __name__ == "__main__":
    main()
