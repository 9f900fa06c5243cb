"""The mutual-information kernel for any cost, by Blahut–Arimoto steps; the package has the one for wrong symbols.

Reference: Blahut, *Computation of channel capacity and rate-distortion functions*, IEEE Trans. Inf. Theory 1972.
"""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.kernel import Floats

STEEPEST = 1e4  # slope, for costs scaled to [0, 1]
HALVINGS, STEPS = 36, 200


def information(beliefs: Floats, tables: Floats) -> Floats:
    """(B,) mutual information in nats of truth and release, for tables (B, n, K).

    >>> round(information(np.array([[0.5, 0.5]]), np.eye(2)[None])[0].item(), 6) == round(math.log(2), 6)
    True
    """
    joint = beliefs[:, :, None] * tables
    marginal = joint.sum(1, keepdims=True)
    ratio = np.divide(tables, marginal, out=np.ones_like(tables), where=joint > 0)
    return np.asarray((joint * np.log(ratio)).sum(2).sum(1))


def arimoto(beliefs: Floats, epsilon: float, costs: Floats) -> Floats:
    """Tables (B, n, n) of nearly least expected cost with I(X;Y) ≤ ε, by Blahut–Arimoto steps.

    *Guarantee*: I ≤ ε however far the steps have come. The best constant release has I = 0, and what comes after it is
    kept only where its own I is at most ε.
    """
    users, n = beliefs.shape
    scaled = (costs - costs.min(1, keepdims=True)) / (float(np.ptp(costs)) or 1.0)
    best = (beliefs[:, :, None] * scaled).sum(1).argmin(1)
    below = np.broadcast_to(np.eye(n)[best][:, None, :], (users, n, n))
    above = np.broadcast_to(np.eye(n)[scaled.argmin(1)], (users, n, n))
    low, high = np.full(users, math.log(1e-3)), np.full(users, math.log(STEEPEST))
    outputs = np.full((users, n), 1.0 / n)
    for _ in range(HALVINGS):
        slope = 0.5 * (low + high)
        decay = np.exp(-np.exp(slope)[:, None, None] * scaled)
        outputs = 0.999 * outputs + 0.001 / n  # what was given up may be wanted again
        for _ in range(STEPS):
            reach = np.maximum((decay @ outputs[:, :, None])[:, :, 0], 1e-300)
            outputs = outputs * ((beliefs / reach)[:, None, :] @ decay)[:, 0, :]
        table = np.maximum(outputs[:, None, :] * decay, 1e-300 * decay)
        table /= table.sum(2, keepdims=True)
        fits = information(beliefs, table) <= epsilon
        low, high = np.where(fits, slope, low), np.where(fits, high, slope)
        below, above = np.where(fits[:, None, None], table, below), np.where(fits[:, None, None], above, table)
    return _between(beliefs, below, above, epsilon)


def _between(beliefs: Floats, below: Floats, above: Floats, epsilon: float) -> Floats:
    """As much of `above` as I ≤ ε allows, the rest `below`: near a slope where the optimum jumps neither is enough."""
    low, high = np.zeros(len(beliefs)), np.ones(len(beliefs))
    low = np.where(information(beliefs, above) <= epsilon, 1.0, low)
    for _ in range(30):
        middle = 0.5 * (low + high)
        fits = information(beliefs, below + middle[:, None, None] * (above - below)) <= epsilon
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.asarray(below + low[:, None, None] * (above - below))
