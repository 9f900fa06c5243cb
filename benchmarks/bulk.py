"""Events per second in bulk, 10,000 users at once, beside plain context-free randomised response in numpy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.timing import best
from seqveil import MarkovModel
from seqveil.core.randomness import SystemRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, step

USERS, EVENTS = 10_000, 10
EPSILON = 1.0


def plain(codes: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """k-ary randomised response as one writes it in numpy, with numpy's generator (quick, not secure)."""
    disclosed = generator.random(codes.size) < np.exp(EPSILON) / (np.exp(EPSILON) + n - 1)
    other = generator.integers(0, n - 1, codes.size)
    return np.where(disclosed, codes, other + (other >= codes))


def plain_secure(codes: np.ndarray, n: int) -> np.ndarray:
    """The same with the operating system's randomness, as a private release needs."""
    randomness = np.frombuffer(os.urandom(16 * codes.size), np.uint64).reshape(2, -1) >> np.uint64(11)
    disclosed = randomness[0] * 2.0**-53 < np.exp(EPSILON) / (np.exp(EPSILON) + n - 1)
    other = (randomness[1] * 2.0**-53 * (n - 1)).astype(np.int64)
    return np.where(disclosed, codes, other + (other >= codes))


def run(data: Path | None) -> list[dict[str, float]]:
    print(
        f"million events/s on one core, {USERS} users, ε={EPSILON:g} (release, belief, exact account); ratio to plain"
    )
    names = ("crr", "balanced", "optimal", "randomized_response")
    print(f"  {'n':>3}{'plain':>8}{'secure':>8}" + "".join(f"{name:>30}" for name in names))
    rows = []
    for n in (2, 4, 8, 17, 32):
        row = measure(n, names)
        rows.append(row)
        cells = "".join(f"{row[k]:>12.3f} ({row[k] / row['plain']:.3f}, {row[k] / row['secure']:.3f})" for k in names)
        print(f"  {n:>3}{row['plain']:>8.1f}{row['secure']:>8.1f}{cells}")
    print("  in brackets: ratio to plain, ratio to plain with the operating system's randomness")
    return rows


def measure(n: int, names: tuple[str, ...]) -> dict[str, float]:
    rng = np.random.default_rng(n)
    sticky = 0.6 * np.eye(n) + 0.4 * rng.dirichlet(np.full(n, 0.5), n) + 1e-4
    model = MarkovModel(np.full(n, 1 / n), sticky / sticky.sum(1, keepdims=True))
    codes = np.ascontiguousarray(model.sample(EVENTS, USERS, seed=n).T)
    events = USERS * EVENTS / 1e6
    row = {"n": n, "plain": events / best(lambda: [plain(c, n, rng) for c in codes])}
    row["secure"] = events / best(lambda: [plain_secure(c, n) for c in codes])
    for name in names:
        row[name] = events / best(lambda name=name: release(model, name, codes), 3)
    return row


def release(model: MarkovModel, mechanism: str, codes: np.ndarray) -> None:
    setting, randomness = Policy(epsilon=EPSILON, mechanism=mechanism).on(model), SystemRandomness()
    state = State.start(setting, USERS)
    for event in codes:
        _, state = step(setting, state, event, randomness)
