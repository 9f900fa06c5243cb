"""Conditional randomised response, the paper's Algorithm 1 exactly as published."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Kernels
from seqveil.core.mechanisms._base import Mechanism, parts, truth_or_draw


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Release y ≠ x with probability β(y)e^-ε and the truth with 1 - (1-β(x))e^-ε.

    That is: with probability 1-e^-ε tell the truth, else draw from the belief. The marginal is β.

    *Guarantee*: one side only. Every lift is at least e^-ε, but the lift of the released symbol is
    e^-ε + (1-e^-ε)/β(y), which stays below e^ε exactly where β(y) ≥ 1/(1+e^ε). With more than 1+e^ε symbols some symbol
    must break it, so this is kept for comparison and always reported with its true leakage.

    >>> kernel = MECHANISM.kernels(np.array([[0.5, 0.5]]), 1.0).one(0)
    >>> round(kernel.leakage([0.5, 0.5]), 6)
    1.0
    >>> MECHANISM.kernels(np.array([[0.99, 0.01]]), 1.0).one(0).leakage([0.99, 0.01]) > 4
    True

    Reference: *Sequence Information Privacy*, Theorem 4 and Algorithm 1 (Theorem 4 prints β(x) where the algorithm has
    β(y); only the algorithm's rows sum to one).
    """
    told = np.full(len(beliefs), weight(epsilon))
    return truth_or_draw(told, parts(beliefs, DENOMINATOR - told))


def weight(epsilon: float) -> int:
    """Weight of telling the truth."""
    return int(-math.expm1(-epsilon) * DENOMINATOR)


MECHANISM = Mechanism(
    name="crr",
    summary="the paper's closed form, as published",
    guarantee="lifts ≥ e^-ε only; upper side fails where β(y) < 1/(1+e^ε)",
    trusts="model",
    cost="O(n)",
    reference="paper, Algorithm 1",
    sound=False,
    ldp=math.inf,
    build=build,
)
