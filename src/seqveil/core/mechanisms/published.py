"""The paper's Algorithms 1 and 2 as published: to compare with, not to release with.

Neither is declared sound. A budget refuses them, and everything that they release is shown with its true leakage.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Kernels
from seqveil.core.mechanisms.base import Batch, parts, rules_kept, truth_or_draw
from seqveil.core.mechanisms.codebook import Codebook, support
from seqveil.core.mechanisms.responses import crr_weight

LARGEST = 300  # possible batches: N² cells, each moved up to 1/step times
STEP = 0.01  # of the descent, as a part of the starting probability 1/N


def crr(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Release y ≠ x with probability β(y)e^-ε and the truth with 1 - (1-β(x))e^-ε.

    That is: with probability 1-e^-ε release the truth, else draw from the belief. The marginal is β.

    *What it leaks*: every lift is at least e^-ε, but that of the released symbol is e^-ε + (1-e^-ε)/β(y), which stays
    below e^ε exactly where β(y) ≥ 1/(1+e^ε) and has no bound as β(y) → 0. With more than 1+e^ε symbols some symbol must
    break it.

    >>> from seqveil.core import mechanisms
    >>> kernel = mechanisms.crr.kernels(np.array([[0.5, 0.5]]), 1.0).one(0)
    >>> round(kernel.leakage([0.5, 0.5]), 6)
    1.0
    >>> mechanisms.crr.kernels(np.array([[0.99, 0.01]]), 1.0).one(0).leakage([0.99, 0.01]) > 4
    True

    Reference: *Sequence Information Privacy*, Theorem 4 and Algorithm 1 (Theorem 4 prints β(x) where the algorithm has
    β(y); only the algorithm's rows sum to one).
    """
    disclosed = np.full(len(beliefs), crr_weight(epsilon))
    return truth_or_draw(disclosed, parts(beliefs, DENOMINATOR - disclosed))


def descend(belief: Floats, costs: Floats, epsilon: float, step: float) -> Floats:
    """A table Q (N, N) found by moving mass in small steps from costly to cheap outputs, within the bounds.

        minimise Σ β(o) Q(r|o) D(o,r)   subject to  e^-ε ≤ Q(r|o) / Σ_õ β(õ) Q(r|õ) ≤ e^ε

    As printed, Algorithm 2 is not defined. Our reading starts from Q = 1/N and sweeps over the rows: φ/N of probability
    moves from each active output to the cheapest active one, costliest first. A move that breaks a bound in either of
    its two columns is undone, and that cell stays as it is. It ends where no row has an active output costlier than its
    cheapest one, which is not the optimum of a linear program, whatever the step.

    >>> descend(np.array([0.5, 0.5]), 1.0 - np.eye(2), math.log(1.5), 0.01).round(3).tolist()
    [[0.665, 0.335], [0.335, 0.665]]

    Reference: the paper's Algorithm 2 with L = 1; docs/theory.md, section 17.
    """
    count = len(belief)
    table = np.full((count, count), 1.0 / count)
    active = np.ones((count, count), bool)
    going = list(range(count))
    while going:
        going = [row for row in going if _move(row, table, active, belief, costs[row], epsilon, step / count)]
    return table


def _move(
    row: int, table: Floats, active: NDArray[np.bool_], belief: Floats, cost: Floats, epsilon: float, step: float
) -> bool:
    """One round of moves in one row; False when there is nothing left to move."""
    open_cells = np.flatnonzero(active[row])
    if not open_cells.size:
        return False
    target = int(open_cells[cost[open_cells].argmin()])
    givers = open_cells[cost[open_cells] > cost[target]]
    givers = givers[np.argsort(-cost[givers], kind="stable")]
    if not givers.size:
        return False
    moved = np.minimum(step, table[row, givers])
    giving = table[:, givers]
    giving[row] -= moved
    allowed = _within(giving.min(0), giving.max(0), belief @ giving, epsilon)
    active[row, givers[~allowed]] = False
    givers, moved = givers[allowed], moved[allowed]

    # every column but the target's changes once, so the moves one after the other are a running sum in the target
    getting = np.delete(table[:, target], row)
    value = table[row, target] + np.cumsum(moved)
    marginal = belief @ table[:, target] + belief[row] * np.cumsum(moved)
    low, high = getting.min(initial=math.inf), getting.max(initial=0.0)
    fits = _within(np.minimum(low, value), np.maximum(high, value), marginal, epsilon)
    done = int(np.logical_and.accumulate(fits).sum())
    if done < len(givers):
        active[row, target] = False
    table[row, givers[:done]] -= moved[:done]
    table[row, target] += moved[:done].sum()
    return True


def _within(low: Floats, high: Floats, marginal: Floats, epsilon: float) -> NDArray[np.bool_]:
    return (low >= math.exp(-epsilon) * marginal) & (high <= math.exp(epsilon) * marginal)


@rules_kept
def batch_descent(batch: Batch) -> Codebook:
    """The paper's Algorithm 2 at step length φ = STEP, as a part of 1/N, in the only reading that ends with a kernel.

    *What it leaks*: ε up to rounding, as the bounds are checked at every move; exactly, what the integers say (`least`,
    `most`).
    """
    found = support(batch, LARGEST)
    table = descend(found.mass, found.costs(found.batches), batch.epsilon, STEP)
    return Codebook(found, found.batches, found.kernels(table))
