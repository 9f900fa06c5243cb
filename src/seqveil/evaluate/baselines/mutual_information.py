"""The mutual-information mechanism, the rate-distortion kernel on the belief, which bounds an average only.

The same functions tell what a single release that is sound at ε cannot pass: `single_release`.
"""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels, to_weights
from seqveil.core.mechanisms import Mechanism
from seqveil.core.mechanisms.base import full_tables

MOST = 300  # symbols for a distortion other than Hamming
WIDEST = 1024  # symbols that are disclosed, for Hamming
AT_ONCE = 2_000_000  # cells of the tables held at a time
TABLE = 1 << 16  # entries of a distortion matrix up to which a rate–distortion function is computed
STEEPEST = 1e4  # slope, for costs scaled to [0, 1]
HALVINGS, STEPS = 36, 200


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) D(x, y) over row-stochastic Q with I(X;Y) = Σ β(x) Q(y|x) log(Q(y|x)/p(y)) ≤ ε nats.

    The optimum is Q(y|x) ∝ p(y) e^{-s·D(x,y)} for a slope s with I = ε. Hamming has it in closed form, as with w = e^-s
    the row sum w + (1-w) p(x) must be proportional to β(x) wherever p(x) > 0: on the K likeliest symbols
    c = β(top K) / (1+(K-1)w) is the belief in a symbol that was released, θ = c·w in each other of them, and
    p(y) ∝ β(y) - θ; K is such that θ lies between the K-th and the next belief. Thus: *tell x with probability
    1 - θ/β(x), else draw from p; symbols with β ≤ θ always draw*. Other distortions: Blahut–Arimoto steps, the slope
    found by halving (they come close: an excess of 1e-3 of the costs' spread was the worst seen). Where telling all
    costs no more than ε, all is said.

    *Guarantee*: I(X;Y) ≤ ε nats, **on average under the model only**. A rare symbol may be given away completely: lifts
    are not bounded, there is no LDP level, and a stream's realised leakage can be any multiple of ε. Kept for
    comparison, always with its true leakage beside it.

    >>> kernel = MECHANISM.kernels(np.array([[0.9, 0.09, 0.01]]), 0.1).one(0)
    >>> kernel.codes.tolist(), kernel.leakage([0.9, 0.09, 0.01]) > 1.5
    ([0, 1], True)

    Reference: Blahut, *Computation of channel capacity and rate-distortion functions*, IEEE Trans. Inf. Theory 1972;
    Erokhin 1958 for the Hamming case; Wang, Ying, Zhang 2016 for its use as a privacy notion.
    """
    aim = epsilon * (1 - 1e-12) - 1e-13
    if distortion.is_hamming:
        return _hamming(beliefs, aim)
    n = beliefs.shape[1]
    if n > MOST:
        raise InputError(
            f"the mutual-information kernel for this distortion takes at most {MOST} symbols, got {n}; "
            'use distortion "hamming" or mechanism="tree"'
        )
    costs = distortion.matrix(n)
    size = max(1, AT_ONCE // (n * n))
    tables = [arimoto(beliefs[at : at + size], aim, costs) for at in range(0, len(beliefs), size)]
    return full_tables(to_weights(np.concatenate(tables)))


def information(beliefs: Floats, tables: Floats) -> Floats:
    """(B,) mutual information in nats of truth and release, for tables (B, n, K).

    >>> round(information(np.array([[0.5, 0.5]]), np.eye(2)[None])[0].item(), 6) == round(math.log(2), 6)
    True
    """
    joint = beliefs[:, :, None] * tables
    marginal = joint.sum(1, keepdims=True)
    ratio = np.divide(tables, marginal, out=np.ones_like(tables), where=joint > 0)
    return np.asarray((joint * np.log(ratio)).sum(2).sum(1))


def _hamming(beliefs: Floats, epsilon: float) -> Kernels:
    """The closed form of `build`: tell a symbol, or draw from the likeliest ones."""
    users, n = beliefs.shape
    order = np.argsort(-beliefs, axis=1, kind="stable")
    ordered = np.take_along_axis(beliefs, order, axis=1)
    count, mass, _, weight = _slope(ordered, epsilon)
    level = mass / (1.0 + (count - 1) * weight) * weight  # θ
    widest = int(count.max())
    if widest > WIDEST:
        raise InputError(
            f"the mutual-information kernel tells more than {WIDEST} of {n} symbols here; use a smaller epsilon"
        )
    disclosed = np.arange(widest) < count[:, None]
    top = np.where(disclosed, ordered[:, :widest], 1.0)
    distribution = np.where(disclosed, np.maximum(top - level[:, None], 0.0), 0.0)
    distribution /= np.cumsum(distribution, axis=1)[:, -1:]
    drawn = np.where(disclosed, np.minimum(level[:, None] / top, 1.0), 1.0)
    table = np.concatenate([drawn, np.ones((users, 1))], axis=1)[:, :, None] * distribution[:, None, :]
    table[:, np.arange(widest), np.arange(widest)] += 1.0 - drawn
    rows = np.full((users, n), widest)
    np.put_along_axis(rows, order[:, :widest], np.where(disclosed, np.arange(widest), widest), axis=1)
    outputs = order[:, :widest]
    return Kernels(n, outputs, np.zeros_like(outputs), to_weights(table), None, rows)


def _slope(ordered: Floats, epsilon: float) -> tuple[Ints, Floats, Floats, Floats]:
    """(B,) how many symbols are disclosed, K, their mass, and bounds on the w where I = ε: the upper spends less."""
    users, n = ordered.shape
    many = np.arange(1, n + 1)
    mass = np.cumsum(ordered, axis=1)
    spent = np.cumsum(_entropy(ordered), axis=1)
    follows = np.concatenate([ordered[:, 1:], np.zeros((users, 1))], axis=1)
    edge = _ratio(follows, mass - (many - 1) * follows)  # w at which one more symbol comes in: θ is then its belief
    within = (_rate(spent, mass, many, edge) <= epsilon) & (follows > 0)
    count = np.minimum(within.sum(1) + 1, (ordered > 0).sum(1))
    last = (count - 1)[:, None]
    spent, mass, own, edge = (np.take_along_axis(a, last, axis=1)[:, 0] for a in (spent, mass, ordered, edge))
    low, high = edge, np.minimum(_ratio(own, mass - (count - 1) * own), 1.0 - 1e-9)
    for _ in range(80):
        middle = 0.5 * (low + high)
        fits = _rate(spent, mass, count, middle) <= epsilon
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    all_disclosed = _rate(spent, mass, count, edge) <= epsilon
    return count, mass, np.where(all_disclosed, edge, low), np.where(all_disclosed, edge, high)


def _rate(spent: Floats, mass: Floats, count: Ints, weight: Floats) -> Floats:
    """I(X;Y) of the kernel on the `count` likeliest symbols: what their entropy loses when the release is seen."""
    sure = mass / (1.0 + (count - 1) * weight)
    return np.asarray(spent - _entropy(sure) - (count - 1) * _entropy(sure * weight))


def _entropy(values: Floats) -> Floats:
    return np.asarray(-values * np.log(np.where(values > 0, values, 1.0)))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.zeros_like(above), where=above > 0)


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
        outputs = _steps(beliefs, decay, 0.999 * outputs + 0.001 / n, STEPS)  # what was given up may be wanted again
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


def _steps(beliefs: Floats, decay: Floats, outputs: Floats, count: int) -> Floats:
    """The distribution of releases after so many Blahut–Arimoto steps, for decay (B, x, y) = e^{-sD(x,y)}."""
    for _ in range(count):
        outputs = outputs * _gain(beliefs, decay, outputs)[1]
    return outputs


def _gain(beliefs: Floats, decay: Floats, outputs: Floats) -> tuple[Floats, Floats]:
    """Z(x) and c(y) of a Blahut–Arimoto step."""
    reach = np.maximum((decay @ outputs[:, :, None])[:, :, 0], 1e-300)
    return reach, ((beliefs / reach)[:, None, :] @ decay)[:, 0, :]


def single_release(beliefs: Floats, epsilon: float, distortion: Distortion) -> Floats:
    """The converse at each belief (B, n) → (B,).

    >>> from seqveil.core.distortion import hamming
    >>> single_release(np.array([[0.5, 0.5]]), 1.0, hamming()).round(4).tolist()
    [0.1839]
    """
    best = distortion.expected(beliefs).min(-1)
    disclosed = rate_distortion(beliefs, math.log1p(math.exp(epsilon)), distortion)
    return np.asarray(math.exp(-epsilon) * best - math.expm1(-epsilon) * disclosed)


def rate_distortion(beliefs: Floats, rate: float, distortion: Distortion) -> Floats:
    """Least expected cost of describing a symbol of distribution β in `rate` nats, from below: (B, n) → (B,).

    Hamming has it in closed form (see `build`): a released symbol is right with probability c, so the cost is 1 - c.
    Other costs take the Blahut–Arimoto iteration at several slopes s, each stopped early: for any q, with
    Z(x) = Σ q(y) e^{-sD(x,y)} and c(y) = Σ β(x) e^{-sD(x,y)} / Z(x), the cost is at least
    (-Σ β ln Z - ln max c - rate) / s.

    >>> from seqveil.core.distortion import hamming
    >>> float(rate_distortion(np.array([[0.5, 0.5]]), np.log(2) - 0.5623351446188083, hamming()).round(6)[0])
    0.25

    Reference: Blahut, Computation of channel capacity and rate–distortion functions, 1972; Erokhin, ε-entropy of a
    discrete random variable, 1958.
    """
    if distortion.is_hamming:
        ordered = -np.sort(-beliefs / beliefs.sum(1, keepdims=True), axis=1)
        count, mass, weight, _ = _slope(ordered, rate)  # the side that spends more: a bound from below
        return np.asarray(np.maximum(1.0 - mass / (1.0 + (count - 1) * weight), 0.0))
    n = beliefs.shape[1]
    if n * n > TABLE:
        raise InputError(
            f"the rate–distortion function of {distortion.name} costs over {n} symbols takes too long; at most "
            f"{math.isqrt(TABLE)}"
        )
    return _blahut(beliefs, rate, distortion.matrix(n))


def _blahut(beliefs: Floats, rate: float, costs: Floats) -> Floats:
    scale = (beliefs @ costs).min(1)
    found = np.zeros(len(beliefs))
    for steepness in np.geomspace(0.25, 400.0, 24):
        slope = steepness / np.maximum(scale, 1e-300)
        decay = np.exp(-slope[:, None, None] * costs)
        reach, gain = _gain(beliefs, decay, _steps(beliefs, decay, np.full(beliefs.shape, 1.0 / costs.shape[1]), 40))
        found = np.maximum(found, (-(beliefs * np.log(reach)).sum(1) - np.log(gain.max(1)) - rate) / slope)
    return np.where(scale > 0, found, 0.0)


MECHANISM = Mechanism(
    name="mutual_information",
    summary="rate-distortion kernel on the belief",
    guarantee="I(X;Y) ≤ ε nats on average; single lifts are not bounded",
    trusts="model",
    sound=False,
    ldp=math.inf,
    build=build,
    wide=True,
)
