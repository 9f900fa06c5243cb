"""Temporal privacy leakage: how far correlation makes an ε-LDP release worse, and the budget that bounds it.

`experiments.temporal_leakage` follows the leakage of a stream from release to release.

Reference: Cao, Yoshikawa, Xiao, Xiong, *Quantifying differential privacy under temporal correlations*, ICDE 2017, and
*… in continuous data release*, TKDE 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Kernels, usable
from seqveil.core.mechanisms.base import Build, Mechanism, constant
from seqveil.core.mechanisms.responses import randomized_response as over_all_symbols

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel

MOST_STATES = 256  # every pair of states is compared
STEP = 2.0**-30  # allocated budgets are rounded down to this, so that sender and receiver find the same


@dataclass(frozen=True, eq=False)
class Quantifier:
    """L(α): how much of a leakage α about one event is passed on to the event beside it.

        L(α) = max over ordered pairs of rows (q, d) and sets S of log[(Q(e^α-1)+1)/(D(e^α-1)+1)],  Q = q(S), D = d(S).

    Cao et al. find the best S of a pair by dropping symbols from {q > d} while q_j/d_j is at most the ratio. Every S so
    found is a prefix of the symbols in descending order of q_j/d_j, and for fixed α the quotient of two linear
    functions of (D, Q) is largest at a corner of the convex hull of all these points. The hull does not depend on α, so
    it is computed once and L(α) takes microseconds.
    """

    spent: Floats  # D of each corner
    held: Floats  # Q of each corner

    @classmethod
    def of(cls, transitions: Floats) -> Quantifier:
        """The quantifier of a row-stochastic matrix.

        >>> Quantifier.of(np.array([[0.8, 0.2], [0.2, 0.8]]))(1.0).round(4).item()
        0.5694
        """
        corners = np.array([[0.0, 0.0], [1.0, 1.0]])
        for row in transitions:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(row > 0, row / transitions, 0.0)
            order = np.argsort(-ratio, axis=1, kind="stable")
            held = np.cumsum(row[order], axis=1)
            spent = np.cumsum(np.take_along_axis(transitions, order, axis=1), axis=1)
            new = held > np.interp(spent, corners[:, 0], corners[:, 1])
            corners = _upper_left(np.concatenate([corners, np.stack([spent[new], held[new]], axis=1)]))
        return cls(corners[:, 0], corners[:, 1])

    def __call__(self, alpha: float) -> np.float64:
        """How much of a leakage α at one time is passed on to the next."""
        gain = math.expm1(alpha)
        return np.log((self.held * gain + 1.0) / (self.spent * gain + 1.0)).max()


def _upper_left(points: Floats) -> Floats:
    """Corners of the convex hull of (D, Q) seen from the upper left, where Q - D grows."""
    points = np.minimum(points[np.lexsort((-points[:, 1], points[:, 0]))], 1.0)
    best = np.maximum.accumulate(points[:, 1])
    points = points[np.concatenate([[True], points[1:, 1] > best[:-1]])]
    hull: list[tuple[float, float]] = []
    for x, y in points.tolist():
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) >= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return np.array(hull)


@lru_cache(maxsize=8)
def quantifiers(model: MarkovModel) -> tuple[Quantifier, Quantifier]:
    """L of the backward and of the forward transitions, over as many steps as the model has order.

    The backward distribution Pr(s_{t-1}|s_t) comes from Bayes' rule with the stationary distribution (the one the prior
    tends to), as in the paper: a stream is taken to have run for long. States that die out are left out. A chain of
    order m works on states, its last m symbols; one step later m-1 of them are still the same and would pass everything
    on, so steps of m events are compared.
    """
    if model.size > MOST_STATES:
        raise InputError(
            f"temporal leakage compares all pairs of states, at most {MOST_STATES}, and the model has {model.size}; "
            "use a smaller alphabet or a lower order"
        )
    forward = model.advance(np.eye(model.size))
    distribution = stationary(forward, model.initial)
    lasting = distribution > 1e-12
    forward = np.linalg.matrix_power(forward, model.order)[np.ix_(lasting, lasting)]
    joint = distribution[lasting][:, None] * forward
    return Quantifier.of((joint / joint.sum(0)).T), Quantifier.of(forward)


def stationary(transitions: Floats, initial: Floats) -> Floats:
    """The distribution that a chain started from `initial` has on average in the long run."""
    lazy = 0.5 * (np.eye(len(transitions)) + transitions)  # same long-run distribution, and no cycles
    for _ in range(50):
        lazy = lazy @ lazy
        lazy /= lazy.sum(1, keepdims=True)
    return np.asarray(initial @ lazy)


def middle(model: MarkovModel, alpha: float) -> float:
    """The ε that every release of a stream may have so that TPL ≤ α however long it gets, rounded down.

    What stays as it is under releases at ε satisfies a_B - L_B(a_B) = m·ε, the same with F, and a_B + a_F - ε = α. No L
    grows faster than its argument, so m·ε grows with a_B, what a_F then may take falls, and halving finds the best a_B.

    >>> from seqveil.core.model import MarkovModel
    >>> round(middle(MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.2, 0.8]]), 1.0), 2)
    0.26
    """
    if not alpha > 0:
        raise InputError(f"expected a temporal leakage α above 0, got {alpha}")
    back, ahead = quantifiers(model)
    low, high, found = 0.0, alpha, 0.0
    for _ in range(60):
        first = 0.5 * (low + high)  # what a release may leak backward
        epsilon = (first - float(back(first))) / model.order
        last = alpha - first + epsilon  # and forward
        if last - ahead(last) >= model.order * epsilon:
            low, found = first, epsilon
        else:
            high = first
    return max(0.0, math.floor(found / STEP - 0.5) * STEP)


def build(
    beliefs: Floats, epsilon: float, distortion: Distortion, share_of: Callable[[float], float] = float
) -> Kernels:
    """k-ary randomised response at the ε that keeps temporal leakage at most α (given as `epsilon`), however long.

    The ε is the `middle` one (`share_of`), found from the model; without a model events are taken to be independent,
    and it is α itself. Where the correlation is so strong that nothing is left, the best guess is
    released.

    *Guarantee*: α-LDP for each release without trusting anything (it spends less), hence ε-SIP; and total temporal
    leakage at most α for a stream that follows the model, in its stationary distribution.

    >>> MECHANISM.kernels(np.array([[0.5, 0.5]]), math.log(3.0)).one(0).probabilities.round(6).tolist()
    [[0.75, 0.25], [0.25, 0.75]]

    Reference: Cao et al. (see the module), Algorithms 1–3.
    """
    share = share_of(epsilon)
    if usable(share, beliefs.shape[1]) == 0.0:
        return constant(beliefs, distortion)
    return over_all_symbols(beliefs, share, distortion)


def _for_model(model: MarkovModel) -> Build:
    """The rule for this model, where the share of each ε is found once."""
    quantifiers(model)  # refuses a model of too many states
    return partial(build, share_of=lru_cache(64)(partial(middle, model)))


MECHANISM = Mechanism(
    name="temporal",
    summary="randomised response with the budget of temporal privacy leakage",
    guarantee="ε-LDP, hence ε-SIP; total temporal leakage ≤ ε over any length",
    trusts="nothing for ε-LDP; the model for temporal leakage",
    sound=True,
    ldp=1.0,
    build=build,
    for_model=_for_model,
)
