"""Temporal privacy leakage of a stream, release by release; the budget that bounds it is in `baselines.temporal`.

Reference: Cao, Yoshikawa, Xiao, Xiong, *Quantifying differential privacy under temporal correlations*, ICDE 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel
from seqveil.evaluate.baselines.temporal import Quantifier, quantifiers


def leakage(model: MarkovModel, epsilons: Sequence[float] | Floats) -> tuple[Floats, Floats, Floats]:
    """Backward, forward and total temporal leakage at each time of a stream released with these LDP levels.

        BPL_t = L_B(BPL_{t-1}) + ε_t,   FPL_t = L_F(FPL_{t+1}) + ε_t,   TPL_t = BPL_t + FPL_t - ε_t.

    For a chain of order m, BPL_t = L_B(BPL_{t-m}) + ε_{t-m+1} + … + ε_t, as the releases in between are worth no more
    than their levels, and FPL_t likewise; the secret is then the last m symbols, of which x_t is one.

    *Guarantee*: for releases that are ε_t-LDP each, and a chain in its stationary distribution, log Pr(all releases |
    x_t) differs between any two x_t by at most TPL_t.

    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.2, 0.8]])
    >>> [part.round(2).tolist() for part in leakage(sticky, [0.1, 0.1, 0.1])]
    [[0.1, 0.16, 0.2], [0.2, 0.16, 0.1], [0.2, 0.22, 0.2]]
    """
    back, ahead = quantifiers(model)
    spent = np.asarray(epsilons, dtype=np.float64)
    if spent.ndim != 1 or not spent.size or not (spent >= 0).all():
        raise InputError(f"expected one ε ≥ 0 a release, got an array of shape {spent.shape}")
    behind = _passed_on(spent, back, model.order)
    before = _passed_on(spent[::-1], ahead, model.order)[::-1]
    return behind, before, behind + before - spent


def _passed_on(spent: Floats, quantifier: Quantifier, order: int) -> Floats:
    total = np.concatenate([[0.0], np.cumsum(spent)])
    leaked = total[1:].copy()  # of the first releases, no more than all of them are worth
    for t in range(order, spent.size):
        leaked[t] = quantifier(leaked[t - order]) + total[t + 1] - total[t + 1 - order]
    return leaked
