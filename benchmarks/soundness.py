"""Worst lift on both sides and LDP level of every mechanism over 10,000 random beliefs, from the integer tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqveil import mechanisms
from seqveil.checks import random_beliefs

BELIEFS = 10_000


def run(data: Path | None) -> dict[str, dict[str, float]]:
    print(f"{BELIEFS} beliefs (flat, peaked, with zeros, with 1e-12), n=2..24, ε=.05..5; sound means all at most 1")
    print(f"  {'mechanism':<22}{'upper/ε':>10}{'lower/ε':>10}{'LDP/2ε':>10}   declared")
    found = {}
    for name in mechanisms.instantaneous():
        chosen, rng, worst = mechanisms.get(name), np.random.default_rng(3), np.zeros(3)
        for _ in range(BELIEFS // 50):
            epsilon = float(rng.choice([0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0]))
            beliefs = random_beliefs(50, int(rng.integers(2, 25)), rng)
            kernels = chosen.kernels(beliefs, epsilon)
            least, largest = kernels.lift_bounds(beliefs, whole_alphabet=chosen.sound)
            level = kernels.ldp().max() / (2 * epsilon)
            worst = np.maximum(worst, [largest.max() / epsilon, -least.min() / epsilon, level])
        found[name] = dict(zip(("upper", "lower", "ldp"), map(float, worst), strict=True))
        declared = "sound" if chosen.sound else "NOT sound"
        declared += ", all at most 1" if (worst <= 1).all() else ", passes 1"
        print(f"  {name:<22}{worst[0]:>10.6f}{worst[1]:>10.6f}{worst[2]:>10.6f}   {declared}")
    return found
