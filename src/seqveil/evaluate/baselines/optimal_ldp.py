"""The fewest wrong symbols that ε-LDP allows to someone who knows the belief: the limit of all LDP baselines."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, usable
from seqveil.core.mechanisms.base import Mechanism


def build(beliefs: Floats, epsilon: float, _distortion: Distortion) -> Kernels:
    """max Σ β(x) Q(x|x) over row-stochastic Q with Q(y|x) ≤ e^ε Q(y|x') for all x, x' and y.

    **Closed form.** Put a = e^ε and l_y = max_x Q(y|x) / a, so l_y ≤ Q(y|x) ≤ a·l_y. In the row where
    column y is largest, a·l_y + Σ_{z≠y} l_z ≤ 1, that is (a-1)·l_y ≤ 1 - L with L = Σ l; and Pr(Y = X) ≤ a Σ β(y) l_y.
    For fixed L that is a fractional knapsack: fill the likeliest symbols, each up to c = (1-L)/(a-1). Between two L
    where a whole number K of them is full, the value is linear in L, so the best L is one of those: L = K·c gives
    l = c = 1/(a+K-1) on the K likeliest, value a·β(top K)/(a+K-1). Randomised response on these K symbols attains it,
    if each other symbol raises exactly one column too; hence the best K is the optimum. Which column is free; the other
    symbols are handed out likeliest first so that the columns become equally likely, which tells a receiver most.

    *Guarantee*: ε-LDP whatever the model is, hence ε-SIP for every belief (docs/theory.md, section 3). The model is
    trusted for utility only. No ε-LDP kernel has fewer wrong symbols in expectation.

    >>> kernel = MECHANISM.kernels(np.array([[0.5, 0.3, 0.1, 0.1]]), math.log(3.0)).one(0)
    >>> kernel.codes.tolist(), kernel.probabilities.round(6).tolist()
    ([0, 1], [[0.75, 0.25], [0.25, 0.75], [0.25, 0.75], [0.25, 0.75]])

    Reference: Kairouz, Oh, Viswanath, *Extremal mechanisms for local differential privacy*, JMLR 2016 (that such optima
    are staircase kernels); the closed form is proved above.
    """
    aim = usable(epsilon, beliefs.shape[1])
    order = np.argsort(-beliefs, axis=1, kind="stable")
    count = likeliest(np.take_along_axis(beliefs, order, axis=1), aim)
    return respond(count, math.expm1(aim), order[:, : count.max()], _columns(beliefs, order, count))


def likeliest(ordered: Floats, epsilon: float) -> Ints:
    """(B,) the K that maximises e^ε β(top K) / (e^ε + K - 1), the least one, for beliefs in descending order.

    >>> likeliest(np.array([[0.5, 0.3, 0.1, 0.1], [0.97, 0.01, 0.01, 0.01]]), 1.0).tolist()
    [2, 1]
    """
    many = np.arange(1, ordered.shape[1] + 1)
    value = np.cumsum(ordered, axis=1) / (math.expm1(epsilon) + many)
    return np.asarray(value.argmax(1) + 1)


def _columns(beliefs: Floats, order: Ints, count: Ints) -> Ints:
    """(B, n) the column each symbol raises: its own, or one filled up from below to a common level."""
    users, n = beliefs.shape
    ordered = np.take_along_axis(beliefs, order, axis=1)
    place = np.arange(n)
    disclosed = place < count[:, None]
    end = np.cumsum(np.where(disclosed, 0.0, ordered), axis=1)
    widest = int(count.max())
    # the columns from the least likely one up: how much it takes to raise the first j of them to the j-th
    upward = np.maximum(count[:, None] - 1 - np.arange(widest), 0)
    height = np.take_along_axis(ordered, upward, axis=1)
    before = np.cumsum(height, axis=1)
    raised = np.where(np.arange(widest) < count[:, None], np.arange(1, widest + 1) * height - before, np.inf)
    many = np.maximum((raised < end[:, -1:]).sum(1), 1)[:, None]
    level = (end[:, -1:] + np.take_along_axis(before, many - 1, axis=1)) / many
    room = np.cumsum(np.where(np.arange(widest) < many, np.maximum(level - height, 0.0), 0.0), axis=1)
    column = np.empty((users, n), np.int64)
    for user in range(users):
        middle = end[user] - 0.5 * ordered[user]
        at = np.searchsorted(room[user, : many[user, 0]], middle, side="right")
        filled = upward[user, np.minimum(at, many[user, 0] - 1)]
        column[user, order[user]] = np.where(disclosed[user], place, filled)
    return column


def respond(wanted: Ints, gain: float, outputs: Ints, released_as: Ints) -> Kernels:
    """k-ary randomised response over some symbols: base weight l on each, and gain · l more on the one disclosed.

    wanted: (B,) how many of `outputs` (B, K) each user has; released_as: (B, n) which of them a symbol is released as.
    The base is rounded up, so that no weight passes (1 + gain) · l; where that leaves nothing to tell, the first output
    is all.
    """
    users, n = released_as.shape
    each = np.ceil(DENOMINATOR / (gain + wanted)).astype(np.int64)
    silent = wanted * each >= DENOMINATOR
    wanted, each = np.where(silent, 1, wanted), np.where(silent, DENOMINATOR // 2, each)
    base = np.where(np.arange(outputs.shape[1]) < wanted[:, None], each[:, None], 0)
    disclosed = np.broadcast_to((DENOMINATOR - wanted * each)[:, None, None], (users, n, 1))
    return Kernels(n, outputs, base, disclosed, np.where(silent[:, None], 0, released_as)[:, :, None])


MECHANISM = Mechanism(
    name="optimal_ldp",
    summary="fewest wrong symbols of all ε-LDP kernels, for the belief",
    guarantee="ε-LDP, hence ε-SIP for every model",
    trusts="nothing; the model only for utility",
    sound=True,
    ldp=1.0,
    build=build,
    hamming_only=True,
)
