"""The exact optimum: least expected distortion among all sound kernels."""

from __future__ import annotations

import numpy as np

from seqveil.distortion import Distortion
from seqveil.errors import InputError
from seqveil.kernel import Floats, Ints, Kernels, usable
from seqveil.mechanisms import _hamming
from seqveil.mechanisms._base import Mechanism, stack

WIDEST = 1024  # outputs a table may have: 8 MB of weights


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) D(x, y) over row-stochastic Q with e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y) for every x and y.

    Hamming: an optimum releases only the ⌈1+e^ε⌉ likeliest symbols and treats all others alike, so the table has that
    many columns and one row more, whatever n is. Any other distortion: a linear program with a certified gap.

    *Guarantee*: ε-SIP on both sides, 2ε-LDP without trusting the model; never worse than the best constant release.

    >>> kernel = MECHANISM.kernels(np.array([[0.2, 0.8]]), 1.0).one(0)
    >>> from seqveil.distortion import hamming
    >>> round(kernel.error([0.2, 0.8], hamming()), 4)
    0.1765

    Reference: theory §5.
    """
    aim = usable(epsilon, beliefs.shape[1])
    if distortion.is_hamming:
        return _likeliest(beliefs, epsilon, aim)
    costs = distortion.matrix(beliefs.shape[1])
    return stack([_linear(belief, epsilon, aim, costs) for belief in beliefs])


def _likeliest(beliefs: Floats, epsilon: float, aim: float) -> Kernels:
    users, n = beliefs.shape
    columns = _hamming.columns(n, aim)
    if columns > WIDEST:
        raise InputError(
            f"the optimum for ε={epsilon:g} over {n} symbols needs a table of {columns} columns, more than {WIDEST}; "
            'use mechanism="balanced" or a smaller epsilon'
        )
    outputs = top(beliefs, columns)
    likely = np.take_along_axis(beliefs, outputs, axis=1)
    rest = np.maximum(0.0, beliefs.sum(1) - likely.sum(1)) if columns < n else np.zeros(users)
    tables = _hamming.solve(likely, rest, aim, columns < n).table
    rows = np.full((users, n), columns, np.int64)
    np.put_along_axis(rows, outputs, np.broadcast_to(np.arange(columns), outputs.shape), axis=1)
    return Kernels.from_tables(outputs, tables, rows, beliefs, epsilon)


def top(beliefs: Floats, count: int) -> Ints:
    """Codes of the `count` likeliest symbols of each belief, likeliest first, ties by code."""
    if count >= beliefs.shape[1] or beliefs.shape[1] <= 64:
        return np.argsort(-beliefs, axis=1, kind="stable")[:, :count]
    return np.stack([_top_one(belief, count) for belief in beliefs])


def _top_one(belief: Floats, count: int) -> Ints:
    least = np.partition(belief, belief.size - count)[belief.size - count]
    above, level = np.flatnonzero(belief > least), np.flatnonzero(belief == least)
    chosen = np.sort(np.concatenate([above, level[: count - above.size]]))
    return chosen[np.argsort(-belief[chosen], kind="stable")]


def _linear(belief: Floats, epsilon: float, aim: float, costs: Floats) -> Kernels:
    from seqveil.mechanisms import _program

    found = _program.solve(belief, aim, costs)
    return Kernels.from_tables(found.outputs[None, :], found.table[None], None, belief[None], epsilon)


MECHANISM = Mechanism(
    name="optimal",
    summary="least expected distortion of all sound kernels",
    guarantee="ε-SIP, both sides",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost="Hamming: O(n) + a table of ⌈1+e^ε⌉ columns; else an LP",
    reference="theory §5",
    sound=True,
    ldp=2.0,
    build=build,
)
