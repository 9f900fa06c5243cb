"""How often the receiver's 95 % intervals cover the truth: simulated from another chain, and on real people.

On real sets nothing is simulated but the randomness: the truth is the data itself, half of the people fit the model,
the others are released again and again with new randomness, and every interval is compared with the true count.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments import datasets
from seqveil import MarkovModel
from seqveil.core.kernel import Floats, Ints
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.statistics import Summary, summarise

TARGETS = ("histogram", "over_time", "transitions")
CASES = (
    # mechanism, ε, symbols, users, events of each, simulations
    ("randomized_response", 1.0, 4, 100, 20, 400),
    ("randomized_response", 2.0, 4, 100, 20, 400),
    ("randomized_response", 1.0, 12, 200, 20, 200),
    ("optimal", 1.0, 4, 600, 12, 150),
    ("optimal", 2.0, 4, 600, 12, 150),
    ("blocks", 1.0, 4, 600, 12, 150),
)
BLOCK = 4  # events of a block, each with so many times ε


def chain(n: int, seed: int, stay: float) -> MarkovModel:
    rng = np.random.default_rng(seed)
    return MarkovModel(
        rng.dirichlet(np.full(n, 3.0)), stay * np.eye(n) + (1 - stay) * rng.dirichlet(np.full(n, 3.0), n)
    )


def truths(raw: Ints, n: int) -> tuple[Floats, Floats, Floats]:
    """The true figures of TARGETS behind streams (users, length)."""
    seen, moves = np.bincount(raw.ravel(), minlength=n).astype(np.float64), np.zeros((n, n))
    np.add.at(moves, (raw[:, :-1].ravel(), raw[:, 1:].ravel()), 1)
    halves = np.stack([np.bincount(half.ravel(), minlength=n) for half in np.split(raw, 2, axis=1)])
    return seen, halves.astype(np.float64), moves


def released(setting: Terms, raw: Ints, seed: int) -> Ints:
    """Streams (users, length) as they are released with the randomness of a seed."""
    many, rows = CodeStreams(setting, randomness=SeededRandomness(seed + 10**6)), np.arange(len(raw))
    return np.stack([many.release(rows, codes).codes for codes in raw.T], axis=1)


def summary(setting: Terms, codes: Ints, method: str = "auto", confidence: float = 0.95) -> Summary:
    """What a receiver makes of released streams (users, length)."""
    users, length = codes.shape
    names = np.repeat(np.arange(users), length).tolist()
    return summarise(setting, names, codes.ravel(), window=length // 2, method=method, confidence=confidence)


def covered(setting: Terms, raw: Ints, seed: int) -> tuple[list[float], str]:
    """Share of the intervals of each kind that hold the true count of streams (users, length)."""
    found = summary(setting, released(setting, raw, seed))
    return [float(each.mean()) for each in held(found, raw)], found.method


def held(found: Summary, raw: Ints) -> list[Floats]:
    """Which intervals of each kind hold the true figure."""
    pairs = zip([getattr(found, name) for name in TARGETS], truths(raw, found.histogram.value.size), strict=True)
    return [((e.low <= t) & (t <= e.high)).astype(np.float64) for e, t in pairs]


REAL = (
    # data set, its options, events of a stream, mechanism and ε
    ("msnbc", {}, 20, "randomized_response", 2.0),
    ("heart_rate", {"width": 10}, 100, "randomized_response", 2.0),
    ("electricity", {"levels": 6}, 96, "randomized_response", 2.0),
    ("geolife", {"side": 4}, 48, "randomized_response", 2.0),
    ("gaze_vr", {"side": 3}, 200, "randomized_response", 2.0),
)
PEOPLE, AGAIN = 150, 40  # streams released, and how often


def real_streams(name: str, options: dict[str, int], length: int, data: Path) -> tuple[Ints, int]:
    """Streams of one length from a real set, (streams, length) codes: long ones are cut into pieces of one person."""
    found = datasets.load(name, data, **options)
    pieces: list[Ints] = []
    for codes in found.arrays(at_least=length):
        pieces += [codes[at : at + length] for at in range(0, len(codes) - length + 1, length)][:20]
    order = np.random.default_rng(0).permutation(len(pieces))
    return np.stack([pieces[k] for k in order]), found.alphabet.n


def on_real_sets(data: Path) -> list[dict[str, object]]:
    print("the same on real people: half of the streams fit the model, the others are released")
    rows: list[dict[str, object]] = []
    for name, options, length, mechanism, epsilon in REAL:
        streams, n = real_streams(name, options, length, data)
        half = len(streams) // 2
        fitted, raw = streams[:half], streams[half : half + PEOPLE]
        setting = Policy(epsilon=epsilon, mechanism=mechanism).on(MarkovModel.fit(list(fitted), alphabet=range(n)))
        rates = shown(f"{name:<22}{epsilon:>4g}{n:>4}{len(raw):>7}", [covered(setting, raw, k) for k in range(AGAIN)])
        rows.append({"set": name, "n": n, "users": len(raw), **rates})
    return rows


def shown(title: str, found: list[tuple[list[float], str]]) -> dict[str, float]:
    """Print how often intervals held, on average over releases, and return it."""
    rates = np.mean([rates for rates, _ in found], axis=0).tolist()
    method = "/".join(sorted({method for _, method in found}))
    print(f"  {title}{method:>9}" + "".join(f"{rate:>13.3f}" for rate in rates) + f"{len(found):>10}", flush=True)
    return dict(zip(TARGETS, rates, strict=True))


def run(data: Path | None) -> list[dict[str, object]]:
    print("share of 95 % intervals that hold the truth; the truth is another chain than the release's model")
    heads = "".join(f"{target:>13}" for target in TARGETS)
    print(f"  {'mechanism':<22}{'ε':>4}{'n':>4}{'users':>7}{'method':>9}{heads}{'releases':>10}")
    rows: list[dict[str, object]] = []
    for mechanism, epsilon, n, users, length, count in CASES:
        single = Policy(epsilon=epsilon, mechanism=mechanism) if mechanism != "blocks" else None
        setting, truth = (single or Policy(epsilon=epsilon * BLOCK, block=BLOCK)).on(chain(n, 1, 0.6)), chain(n, 2, 0.5)
        found = [covered(setting, truth.sample(length, users, seed), seed) for seed in range(count)]
        rates = shown(f"{mechanism:<22}{epsilon:>4g}{n:>4}{users:>7}", found)
        rows.append({"mechanism": mechanism, "epsilon": epsilon, "n": n, "users": users, **rates})
    return rows if data is None else rows + on_real_sets(data)


if __name__ == "__main__":
    run(None)
