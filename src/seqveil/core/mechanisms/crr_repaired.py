"""The paper's closed form made sound by mixing with its marginal."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Kernels, usable
from seqveil.core.mechanisms._base import Mechanism, parts, truth_or_draw


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Tell the truth with the largest probability t that keeps every lift within ε, else draw from the belief.

    Mixing Algorithm 1 with its own marginal β (docs/theory.md, section 4) leaves the lifts 1-t off the truth and
    1-t+t/β(y) on it, so t = min{1-e^-ε, (e^ε-1)·b/(1-b)} with b the least positive belief. A symbol the belief rules
    out is told as the most likely one, whose row is sound.

    *Guarantee*: ε-SIP on both sides, 2ε-LDP without trusting the model. The price: one rare symbol silences all.

    >>> kernel = MECHANISM.kernels(np.array([[0.9, 0.1]]), 0.5).one(0)
    >>> kernel.leakage([0.9, 0.1]) <= 0.5
    True

    Reference: docs/theory.md, section 4 (repair by mixing).
    """
    aim = usable(epsilon, beliefs.shape[1])
    most = np.full(len(beliefs), int(-math.expm1(-aim) * DENOMINATOR))
    base = parts(beliefs, DENOMINATOR - most)
    with np.errstate(divide="ignore", invalid="ignore"):
        # in integers: (b + t) ≤ e^ε (b + βt) and (b + βt) ≤ e^ε b, for every output that can be drawn
        up = math.expm1(aim) * base / np.maximum(1.0 - math.exp(aim) * beliefs, 0.0)
        down = math.expm1(aim) * base / beliefs
    room = np.where(base > 0, np.minimum(up, down), np.inf).min(1)
    told = np.minimum(most.astype(np.float64), np.floor(room)).astype(np.int64)
    mode = beliefs.argmax(1)
    base[np.arange(len(beliefs)), mode] += most - told
    told_as = np.where(base > 0, np.arange(beliefs.shape[1]), mode[:, None])
    return truth_or_draw(told, base, told_as)


MECHANISM = Mechanism(
    name="crr_repaired",
    summary="the closed form, mixed with its marginal until it is sound",
    guarantee="ε-SIP, both sides",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost="O(n)",
    reference="docs/theory.md, section 4",
    sound=True,
    ldp=2.0,
    build=build,
)
