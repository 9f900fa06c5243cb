"""A private fit against a plain one: error on held-out people as ε of the fit shrinks, on three real sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.pulses import pulsed
from experiments import datasets
from seqveil import MarkovModel
from seqveil.core.alphabet import Symbols
from seqveil.core.fitting import fit_codes
from seqveil.core.private import BoundedCounts
from seqveil.core.randomness import SeededRandomness

EPSILONS = (8.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
RELEASE, PERIOD = 1.0, 4  # ε of a release on average, spent at every 4th


@dataclass(frozen=True, eq=False)
class Split:
    """People to fit on, and streams of others to release."""

    name: str
    alphabet: Symbols
    users: np.ndarray
    codes: np.ndarray
    held_out: np.ndarray  # (B, T) codes
    smoothing: float  # of the plain fit, where held-out people do what the others never did
    contribution: int

    def plain(self) -> MarkovModel:
        return fit_codes(self.users, self.codes, self.alphabet, smoothing=self.smoothing)


def wrong(model: MarkovModel, truth: np.ndarray, seed: int = 7) -> float:
    """Share of wrong symbols after the receiver's filter, released with the optimum at every 4th symbol."""
    return float((pulsed(model, truth, RELEASE, PERIOD, seed)[1] != truth).mean())


def private(split: Split, counts: BoundedCounts, epsilon: float, repeats: int) -> float:
    """The same for models fitted with noise, a mean over several fits."""
    models = (counts.model(epsilon, SeededRandomness(seed), split.alphabet) for seed in range(repeats))
    return float(np.mean([wrong(each, split.held_out) for each in models]))


def splits(data: Path | None) -> Iterator[Split]:
    for name in ("msnbc", "heart_rate", "electricity"):
        if datasets.missing(name, data):
            print(f"{name} skipped: pass --data (or set SEQVEIL_DATA to) a folder that holds it")
        else:
            yield _split(name, data)


def _split(name: str, data: Path | None) -> Split:
    found = datasets.load(name, data)
    users, codes = (found.streams[column].to_numpy().astype(np.int64) for column in ("user", "value"))
    users = found.index["person"].rank("dense").to_numpy().astype(np.int64)[users]
    lengths, rng = np.bincount(users), np.random.default_rng(1)
    if name == "msnbc":
        kept, length, pieces = rng.choice(np.flatnonzero(lengths >= 20), 1_000, replace=False), 20, 1
    else:
        kept = rng.permutation(np.flatnonzero(lengths))[: np.count_nonzero(lengths) // 4]
        length, pieces = 100, 1_000 // len(kept)
    rest = ~np.isin(users, kept)
    begins = np.cumsum(lengths) - lengths
    held = [codes[begins[k] + length * j :][:length] for k in kept for j in range(min(pieces, lengths[k] // length))]
    plain, bound = (0.0, 20) if name == "msnbc" else (1.0, 50)
    return Split(name, found.alphabet, users[rest], codes[rest], np.stack(held), plain, bound)


def run(data: Path | None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for split in splits(data):
        plain = wrong(split.plain(), split.held_out)
        people = len(np.unique(split.users))
        counts = BoundedCounts.of(split.users, split.codes, split.alphabet.n, split.contribution)
        print(
            f"{split.name}: fitted on {people} people, released for {split.held_out.shape[0]} streams of "
            f"{split.held_out.shape[1]}; at most {split.contribution} transitions of a person; wrong after filtering"
        )
        print(f"  plain fit{plain:>21.3f}", flush=True)
        repeats = 1 if split.name == "msnbc" else 5
        for epsilon in EPSILONS:
            error = private(split, counts, epsilon, repeats)
            print(f"  private, ε = {epsilon:<8g}{error:>10.3f}   {error - plain:+.3f}", flush=True)
            rows.append({"data": split.name, "people": people, "epsilon": epsilon, "wrong": error, "plain": plain})
    return rows


if __name__ == "__main__":
    import os

    run(Path(os.environ["SEQVEIL_DATA"]) if "SEQVEIL_DATA" in os.environ else None)
