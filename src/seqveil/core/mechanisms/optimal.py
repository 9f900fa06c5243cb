"""The exact optimum: least expected distortion among all sound kernels."""

from __future__ import annotations

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Kernels, usable
from seqveil.core.mechanisms import _filling, _program
from seqveil.core.mechanisms._base import Mechanism, stack
from seqveil.core.mechanisms._hamming import columns

WIDEST = 1024  # outputs a table may have
QUICK = 40  # symbols up to which the program for any distortion takes some hundredths of a second


def fits(n: int, epsilon: float) -> bool:
    """Whether the closed form's table for Hamming distortion is of a sensible width."""
    return columns(n, epsilon) <= WIDEST


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) D(x, y) over row-stochastic Q with e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y) for every x and y.

    Hamming: an optimum releases only the ⌈1+e^ε⌉ likeliest symbols, in closed form (`_hamming` has the proof); among
    all optima we take one that tells the other symbols apart as far as that is free (`_filling`). Any other distortion:
    a linear program with a certified gap.

    *Guarantee*: ε-SIP on both sides, 2ε-LDP without trusting the model; never worse than the best constant release.

    >>> import numpy as np
    >>> from seqveil.core.distortion import hamming
    >>> kernel = MECHANISM.kernels(np.array([[0.2, 0.8]]), 1.0).one(0)
    >>> round(kernel.error([0.2, 0.8], hamming()), 4)
    0.1765

    Reference: docs/theory.md, section 5.
    """
    aim = usable(epsilon, beliefs.shape[1])
    if distortion.is_hamming:
        return _likeliest(beliefs, epsilon, aim)
    costs = distortion.matrix(beliefs.shape[1])
    return stack([_linear(belief, aim, costs) for belief in beliefs])


def _likeliest(beliefs: Floats, epsilon: float, aim: float) -> Kernels:
    if not fits(beliefs.shape[1], aim):
        raise InputError(
            f"the optimum for ε={epsilon:g} over {beliefs.shape[1]} symbols needs more than {WIDEST} columns; "
            'use mechanism="balanced", mechanism="tree" or a smaller epsilon'
        )
    found = _filling.solve(beliefs, aim)
    return Kernels.from_tables(found.outputs, found.table, found.rows, beliefs)


def _linear(belief: Floats, aim: float, costs: Floats) -> Kernels:
    found = _program.solve(belief, aim, costs)
    return Kernels.from_tables(found.outputs[None, :], found.table[None], None, belief[None])


MECHANISM = Mechanism(
    name="optimal",
    summary="least expected distortion of all sound kernels",
    guarantee="ε-SIP, both sides",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost="Hamming: O(n) + a table of ⌈1+e^ε⌉ columns; else an LP",
    reference="docs/theory.md, section 5",
    sound=True,
    ldp=2.0,
    build=build,
)
