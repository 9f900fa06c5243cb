"""Contract checks that run over every registered mechanism; use them on one of your own before you register it."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import GuaranteeError
from seqveil.core.kernel import DENOMINATOR, Floats
from seqveil.core.mechanisms import Mechanism
from seqveil.core.randomness import SeededRandomness


def random_beliefs(count: int, n: int, rng: np.random.Generator) -> Floats:
    """Beliefs of every kind a filter meets: flat, peaked, with zeros, with entries of 1e-12."""
    shape = rng.choice([0.05, 0.3, 1.0, 10.0], size=(count, 1))
    beliefs = rng.gamma(np.broadcast_to(shape, (count, n))) + 1e-300
    kind = rng.integers(0, 4, size=count)
    cut = rng.random((count, n)) < 0.4
    cut[np.arange(count), beliefs.argmax(1)] = False
    beliefs[cut & (kind == 1)[:, None]] = 0.0
    beliefs /= beliefs.sum(1, keepdims=True)
    beliefs[cut & (kind == 2)[:, None]] = 1e-12
    return beliefs / beliefs.sum(1, keepdims=True)


def check_mechanism(
    mechanism: Mechanism, beliefs: int = 1000, seed: int = 0, distortion: Distortion | None = None, n: int | None = None
) -> None:
    """Raise GuaranteeError unless the mechanism keeps its contract on random beliefs, alphabets and ε."""
    rng = np.random.default_rng(seed)
    for done in range(0, beliefs, 50):
        size = int(rng.integers(2, 24)) if n is None else n
        epsilon = float(rng.choice([0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0]))
        check_kernels(mechanism, random_beliefs(min(50, beliefs - done), size, rng), epsilon, distortion)


def check_kernels(mechanism: Mechanism, beliefs: Floats, epsilon: float, distortion: Distortion | None = None) -> None:
    """The contract on given beliefs: exact rows, distinct outputs, no dependence on the stack, and the guarantee."""

    def demand(kept: bool, broken: str) -> None:
        if not kept:
            raise GuaranteeError(f"{mechanism.name}: {broken}")

    kernels, some = mechanism.kernels(beliefs, epsilon, distortion), len(beliefs) // 2
    for user, belief in enumerate(beliefs):
        codes, weights = kernels.one(user).codes, kernels.one(user).weights
        demand(bool((weights >= 0).all() and (weights.sum(1) == DENOMINATOR).all()), "a row does not sum to 2**62")
        distinct = np.unique(codes).size == codes.size and 0 <= codes.min() <= codes.max() < kernels.n
        demand(distinct, "two outputs share a symbol, or one is outside the alphabet")
        if mechanism.sound:  # recomputed symbol by symbol from the written-out integers, not by the class under check
            lifts = weights / np.array([math.fsum(belief * column) for column in weights.T])
            within = lifts.max() <= math.exp(epsilon) * (1 + 1e-13) and lifts.min() >= math.exp(-epsilon) * (1 - 1e-13)
            demand(within, f"lifts reach [{lifts.min():.6g}, {lifts.max():.6g}] at ε={epsilon:g}")
            level = math.log((weights.max(0) / weights.min(0)).max())
            passed = f"LDP level {level:.6g} passes {mechanism.ldp:g}ε at ε={epsilon:g}"
            demand(level <= mechanism.ldp * epsilon * (1 + 1e-13), passed)
    demand(not mechanism.sound or math.isfinite(mechanism.ldp), "a sound one is at most 2ε-LDP; declare it")
    # a kernel and its draw are the same alone as in a stack: what a receiver recomputes must match bit for bit
    alone = mechanism.kernels(beliefs[some : some + 1], epsilon, distortion)
    one, other = kernels.one(some), alone.one(0)
    same = one.codes.tolist() == other.codes.tolist() and bool((one.weights == other.weights).all())
    demand(same, "a kernel depends on the other users of its stack")
    drawn = alone.pick(np.zeros(1, np.int64), SeededRandomness(5).draw(1))
    demand(alone.column(drawn)[0, 0] > 0, "an output of weight 0 was drawn")
