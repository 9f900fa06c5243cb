"""Random chains and random secrets: whether any release moved any odds further than promised.

Everything is worked out again here from the definition: all sequences of a small chain are listed, a secret is read off
each of them by a few lines of its own, and the odds follow from the integer columns of what was released. Nothing of
the automata, filters and accounts of the package is used for it.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from seqveil import MarkovModel, secrets
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import Secret
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.stream import State, step

OPTIONS: tuple[dict[str, Any], ...] = (
    *({},) * 4,
    {"side_information": 0.0},
    {"side_information": 0.2},
    *({"side_information": math.inf},) * 2,
    {"withhold": True},
    {"epsilon": 0.8},  # a program, which takes most of the time
)


def run(count: int, seed: int = 1) -> dict[str, float]:
    """The largest excess over ε of so many random streams, over all their windows and times."""
    rng, worst, wrong, events = np.random.default_rng(seed), -math.inf, 0, 0
    for number in range(count):
        excess, errors, length = one_stream(rng, number)
        worst, wrong, events = max(worst, excess), wrong + errors, events + length
    print(f"  {count} random chains and secrets: largest excess over ε {worst:.2e}; wrong symbols {wrong / events:.3f}")
    return {"streams": count, "excess": worst, "wrong": wrong / events}


def one_stream(rng: np.random.Generator, number: int) -> tuple[float, int, int]:
    """One random stream released: the largest excess at any time, the wrong symbols, and the events."""
    n, length = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    sharp = float(rng.choice([0.3, 1.0, 3.0]))
    rows, first = rng.dirichlet(np.full(n, sharp), n), rng.dirichlet(np.ones(n))
    if rng.random() < 0.2:  # a chain with holes
        rows[:, 0] = np.where(rng.random(n) < 0.5, 0.0, rows[:, 0])
        rows /= rows.sum(1, keepdims=True)
    model = MarkovModel(first, rows)
    declared = [random_secret(rng, n, length) for _ in range(2 if rng.random() < 0.2 else 1)]
    options = OPTIONS[int(rng.integers(len(OPTIONS)))]
    try:
        setting = Policy(secrets=declared, **options).on(model)
    except Exception as refused:
        if "certain or impossible" in str(refused):
            return -math.inf, 0, 1
        raise
    every = np.array(list(product(range(n), repeat=length)))
    prior = first[every[:, 0]] * np.prod([rows[every[:, t], every[:, t + 1]] for t in range(length - 1)], axis=0)
    windows = [window for secret in declared for window in windows_of(secret, every, length)]
    truth = model.sample(length, seed=number)[0]
    state, randomness = State.start(setting), SeededRandomness(number)
    sources = every + n * remembered(setting, every)
    weight, worst, wrong = prior, -math.inf, 0
    for t, code in enumerate(truth.tolist()):
        released, state = step(setting, state, np.array([code]), randomness)
        wrong += int(released.codes[0] != code)
        weight = weight * (released.remembered[0][sources[:, t]] / float(released.remembered[0].max()))
        for secret, true, last in windows:
            if last is None or t < last:
                worst = max(worst, moved(prior, weight, true, secret.sides) - secret.epsilon)
    return worst, wrong, length


def remembered(setting: Terms, every: np.ndarray) -> np.ndarray:
    """Where the automata of the secrets stand after each event of each sequence, read one symbol after another."""
    rows = np.zeros(every.shape, np.int64)
    for secret in setting.remembered:
        compiled = secret.over(setting.model.alphabet)
        length, moves = compiled.length or every.shape[1], compiled.automaton.moves
        for k, word in enumerate(every.tolist()):
            state = 0
            for t, x in enumerate(word):
                begins, inside = t % length == 0, secret.repeats or t < length
                state = int(moves[0 if begins else state, x]) if inside else 0
                rows[k, t] = rows[k, t] * len(moves) + state
    return rows


def random_secret(rng: np.random.Generator, n: int, length: int) -> Secret:
    values = rng.choice(n, size=int(rng.integers(1, n)), replace=False).tolist()
    window = [f"first {length}", f"first {max(1, length - 1)}", 2, "event", None][int(rng.integers(5))]
    kept = {"epsilon": float(rng.choice([0.05, 0.3, 1.0, 2.0])), "window": window}
    kept["one_sided"] = bool(rng.random() < 0.3)
    kind = int(rng.integers(4))
    if kind == 0:
        return secrets.ever(values, **kept)
    if kind == 1:
        return secrets.always(values, **kept)
    if kind == 2:
        return secrets.count(values, 2, **kept)
    return secrets.followed_by(values, int(rng.integers(n)), **kept)


def windows_of(secret: Secret, every: np.ndarray, length: int) -> list[tuple[Secret, np.ndarray, int | None]]:
    """For each window whether the secret is true of each sequence, and until when it is promised (None: for good)."""
    if secret.window is None:
        return [(secret, holds(secret, every[:, :last]), last) for last in range(1, length + 1)]
    if isinstance(secret.window, str) and secret.window.startswith("first"):
        last = int(secret.window.split()[1])
        return [(secret, holds(secret, every[:, :last]), None)]
    size = 1 if secret.window == "event" else int(secret.window)
    return [(secret, holds(secret, every[:, at : at + size]), None) for at in range(0, length - size + 1, size)]


def holds(secret: Secret, part: np.ndarray) -> np.ndarray:
    """Whether the secret is true of each sequence of a window."""
    there = np.isin(part, secret.values)
    if secret.kind == "ever":
        return np.asarray(there.any(1))
    if secret.kind == "always":
        return np.asarray(there.all(1))
    if secret.kind == "count":
        return np.asarray(there.sum(1) >= secret.at_least)
    then = np.isin(part, secret.then)
    before = np.cumsum(there, axis=1) - there > 0
    return np.asarray((before & then).any(1))


def moved(prior: np.ndarray, weight: np.ndarray, true: np.ndarray, sides: str) -> float:
    """How far the odds moved, from the probabilities of all sequences before and after the releases."""
    shares = math.fsum(prior[true]), math.fsum(prior[~true])
    if min(shares) <= 0.0:
        return -math.inf  # nothing can be disclosed about it
    after = math.fsum(weight[true]) / shares[0], math.fsum(weight[~true]) / shares[1]
    if min(after) <= 0.0:
        return math.inf if after[0] > 0.0 or sides == "both" else -math.inf
    change = math.log(after[0] / after[1])
    return change if sides == "up" else abs(change)
