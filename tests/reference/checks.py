"""Contract checks that run over every registered mechanism; use them on one of your own before you register it."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import GuaranteeError
from seqveil.core.kernel import DENOMINATOR, Floats, Kernels
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
    done = 0
    while done < beliefs:
        size = int(rng.integers(2, 24)) if n is None else n
        epsilon = float(rng.choice([0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0]))
        batch = random_beliefs(min(50, beliefs - done), size, rng)
        check_kernels(mechanism, batch, epsilon, distortion)
        done += len(batch)


def check_kernels(mechanism: Mechanism, beliefs: Floats, epsilon: float, distortion: Distortion | None = None) -> None:
    """The contract on given beliefs: exact rows, distinct outputs, no dependence on the stack, and the guarantee."""
    kernels = mechanism.kernels(beliefs, epsilon, distortion)
    _check_tables(mechanism, kernels)
    _check_alone(mechanism, kernels, beliefs, epsilon, distortion)
    if mechanism.sound:
        # recomputed symbol by symbol from the written-out integers, not by the class under check
        for user in range(len(beliefs)):
            _check_lifts(mechanism, kernels.one(user).weights, beliefs[user], epsilon)
    if mechanism.sound and math.isinf(mechanism.ldp):
        raise GuaranteeError(f"{mechanism.name} is declared sound, so its LDP level is at most 2ε; declare it")


def _check_tables(mechanism: Mechanism, kernels: Kernels) -> None:
    for user in range(len(kernels)):
        codes, weights = kernels.one(user).codes, kernels.one(user).weights
        if (weights < 0).any() or (weights.sum(1) != DENOMINATOR).any():
            raise GuaranteeError(f"{mechanism.name}: a row does not sum to 2**62 exactly")
        if np.unique(codes).size != codes.size or codes.min() < 0 or codes.max() >= kernels.n:
            raise GuaranteeError(f"{mechanism.name}: two outputs share a symbol, or one is outside the alphabet")


def _check_alone(
    mechanism: Mechanism, kernels: Kernels, beliefs: Floats, epsilon: float, distortion: Distortion | None
) -> None:
    """A user's kernel and draw are the same alone as in a stack: what a receiver recomputes must match bit for bit."""
    user = len(beliefs) // 2
    alone = mechanism.kernels(beliefs[user : user + 1], epsilon, distortion)
    one, other = kernels.one(user), alone.one(0)
    if one.codes.tolist() != other.codes.tolist() or (one.weights != other.weights).any():
        raise GuaranteeError(f"{mechanism.name}: a kernel depends on the other users of its stack")
    drawn = alone.draw(np.zeros(1, np.int64), SeededRandomness(5))
    if alone.column(drawn)[0, 0] <= 0:
        raise GuaranteeError(f"{mechanism.name}: an output of weight 0 was drawn")


def _check_lifts(mechanism: Mechanism, weights: np.ndarray, belief: Floats, epsilon: float) -> None:
    marginal = np.array([math.fsum(belief * weights[:, j]) for j in range(weights.shape[1])])
    lifts = weights / marginal
    if not (lifts.max() <= math.exp(epsilon) * (1 + 1e-13) and lifts.min() >= math.exp(-epsilon) * (1 - 1e-13)):
        raise GuaranteeError(f"{mechanism.name}: lifts reach [{lifts.min():.6g}, {lifts.max():.6g}] at ε={epsilon:g}")
    level = math.log((weights.max(0) / weights.min(0)).max())
    if level > mechanism.ldp * epsilon * (1 + 1e-13):
        raise GuaranteeError(f"{mechanism.name}: LDP level {level:.6g} passes {mechanism.ldp:g}ε at ε={epsilon:g}")
