"""The mutual-information mechanism, the rate-distortion kernel on the belief, which bounds an average only."""

from __future__ import annotations

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels, to_weights
from seqveil.core.mechanisms import Mechanism

WIDEST = 1024  # symbols that are disclosed, for Hamming


def build(beliefs: Floats, epsilon: float, _distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) [x ≠ y] over row-stochastic Q with I(X;Y) = Σ β(x) Q(y|x) log(Q(y|x)/p(y)) ≤ ε nats.

    The optimum is Q(y|x) ∝ p(y) w^[x ≠ y] for a w with I = ε. It has a closed form, as the row sum w + (1-w) p(x) must
    be proportional to β(x) wherever p(x) > 0: on the K likeliest symbols c = β(top K) / (1+(K-1)w) is the belief in a
    symbol that was released, θ = c·w in each other of them, and p(y) ∝ β(y) - θ; K is such that θ lies between the
    K-th and the next belief. Thus: *tell x with probability 1 - θ/β(x), else draw from p; symbols with β ≤ θ always
    draw*. Where telling all costs no more than ε, all is said.

    *Guarantee*: I(X;Y) ≤ ε nats, **on average under the model only**. A rare symbol may be given away completely: lifts
    are not bounded, there is no LDP level, and a stream's realised leakage can be any multiple of ε. Kept for
    comparison, always with its true leakage beside it.

    >>> kernel = MECHANISM.kernels(np.array([[0.9, 0.09, 0.01]]), 0.1).one(0)
    >>> kernel.codes.tolist(), kernel.leakage([0.9, 0.09, 0.01]) > 1.5
    ([0, 1], True)

    Reference: Blahut, *Computation of channel capacity and rate-distortion functions*, IEEE Trans. Inf. Theory 1972;
    Erokhin 1958 for the Hamming case; Wang, Ying, Zhang 2016 for its use as a privacy notion.
    """
    epsilon = epsilon * (1 - 1e-12) - 1e-13
    users, n = beliefs.shape
    order = np.argsort(-beliefs, axis=1, kind="stable")
    ordered = np.take_along_axis(beliefs, order, axis=1)
    count, mass, weight = _slope(ordered, epsilon)
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


def _slope(ordered: Floats, epsilon: float) -> tuple[Ints, Floats, Floats]:
    """(B,) how many symbols are disclosed, K, their mass, and the w where I = ε, from above: so that I ≤ ε."""
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
    return count, mass, np.where(all_disclosed, edge, high)


def _rate(spent: Floats, mass: Floats, count: Ints, weight: Floats) -> Floats:
    """I(X;Y) of the kernel on the `count` likeliest symbols: what their entropy loses when the release is seen."""
    sure = mass / (1.0 + (count - 1) * weight)
    return np.asarray(spent - _entropy(sure) - (count - 1) * _entropy(sure * weight))


def _entropy(values: Floats) -> Floats:
    return np.asarray(-values * np.log(np.where(values > 0, values, 1.0)))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.zeros_like(above), where=above > 0)


MECHANISM = Mechanism(
    name="mutual_information",
    summary="rate-distortion kernel on the belief",
    guarantee="I(X;Y) ≤ ε nats on average; single lifts are not bounded",
    trusts="model",
    build=build,
    hamming_only=True,
)
