"""k-ary randomised response: the context-free baseline."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Kernels, usable
from seqveil.core.mechanisms._base import Mechanism, parts, truth_or_draw


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Tell the truth with probability e^ε/(e^ε+n-1), else any other symbol alike; the belief is not used.

    *Guarantee*: ε-LDP whatever the model is, hence ε-SIP for every belief (docs/theory.md, section 3).

    >>> kernel = MECHANISM.kernels(np.array([[0.2, 0.3, 0.5]]), math.log(2.0)).one(0)
    >>> kernel.probabilities.round(6).tolist()
    [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]

    Reference: Kairouz, Bonawitz, Ramage, *Discrete distribution estimation under local privacy*, ICML 2016.
    """
    users, n = beliefs.shape
    told, each = weights(epsilon, n)
    if not told:
        nothing = np.zeros(users, np.int64)
        return truth_or_draw(nothing, parts(np.full((users, n), 1.0 / n), nothing + DENOMINATOR))
    return truth_or_draw(np.full(users, told, np.int64), np.full((users, n), each, np.int64))


def weights(epsilon: float, n: int) -> tuple[int, int]:
    """Weight of telling the truth (0: nothing is left to tell) and of each symbol's being drawn."""
    gain = math.expm1(usable(epsilon, n))
    each = math.ceil(DENOMINATOR / (gain + n))  # rounded up, so that told ≤ gain · each and all symbols weigh alike
    return max(0, DENOMINATOR - n * each), each


MECHANISM = Mechanism(
    name="randomized_response",
    summary="k-ary randomised response",
    guarantee="ε-LDP, hence ε-SIP for every model",
    trusts="nothing",
    cost="O(n)",
    reference="Kairouz et al. 2016",
    sound=True,
    ldp=1.0,
    build=build,
)
