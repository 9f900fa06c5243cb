"""The paper's Algorithm 2 in the only reading we found that ends with a kernel. To compare with, not to use."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seqveil.core.coins import Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels
from seqveil.core.mechanisms._batch import Batch, BatchMechanism
from seqveil.core.mechanisms._support import Codebook, TabledSent, remembered, support

LARGEST = 300  # possible batches: N² cells, each moved up to 1/step times
STEP = 0.01


def descend(belief: Floats, costs: Floats, epsilon: float, step: float) -> Floats:
    """A table Q (N, N) found by moving mass in small steps from dear to cheap outputs, within the bounds.

        minimise Σ β(o) Q(r|o) D(o,r)   subject to  e^-ε ≤ Q(r|o) / Σ_õ β(õ) Q(r|õ) ≤ e^ε

    As printed, Algorithm 2 is not defined: it *adds* φ times the derivative of a cost, never normalises a row, compares
    s/(Q β) where the constraint is about Q/s, uses õ and j where they have no value, and sets Act, which gates nothing.
    Our reading keeps its shape (start from Q = 1/N, sweep over o and r, one small step, check, stop what breaks):

    - In row o, φ/N of probability moves from each active output to the cheapest active one, dearest first. The sign of
      the derivative decides the direction, its size does not matter: rare batches would never move else.
    - After each move the whole column is checked on both sides, for the output that gave and for the one that got. A
      move that breaks a bound is undone, and Act[o, r] = 0 for the cell whose column it broke: it stays as it is.
    - The end is when no row has an active output dearer than its cheapest active one.

    It stops where coordinate moves stop, which is not the optimum of a linear program, whatever the step.

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
    inside: NDArray[np.bool_] = (low >= math.exp(-epsilon) * marginal) & (high <= math.exp(epsilon) * marginal)
    return inside


def with_step(step: float = STEP) -> BatchMechanism:
    """Algorithm 2 with step length φ, as a part of the starting probability 1/N.

    *Guarantee*: none beforehand, as for anything released as published. In our reading the bounds are checked at every
    move, so the leakage is ε up to rounding; what it truly is comes from the integers (`least`, `most`).
    """
    if not 0.0 < step <= 1.0:
        raise InputError(f"expected a step above 0 and at most 1, got {step:g}; try {STEP:g}")

    @remembered
    def codebook(batch: Batch) -> Codebook:
        found = support(batch, LARGEST)
        costs = found.costs(found.batches, batch.distortion)
        table = descend(found.belief, costs, batch.epsilon, step)
        places = np.arange(len(found.batches))[None]
        kernels = Kernels.from_tables(places, table[None], None, found.belief[None])
        return Codebook(found, found.batches, kernels, batch.distortion)

    def draw(batch: Batch, codes: Ints, coins: Coins) -> TabledSent:
        return codebook(batch).draw(codes, coins)

    def read(batch: Batch, path: tuple[int, ...]) -> TabledSent:
        return codebook(batch).read(path)

    def expected(batch: Batch) -> float:
        return codebook(batch).expected

    return BatchMechanism(
        name="batch_descent",
        summary="the paper's Algorithm 2 in our reading: small moves of probability until each breaks the bound",
        guarantee="none beforehand; true leakage reported",
        trusts="model",
        cost=f"O(N³/step) for N ≤ {LARGEST} possible batches",
        reference="the paper's Algorithm 2; docs/theory.md, section 17",
        sound=False,
        ldp=math.inf,
        draw=draw,
        read=read,
        expected=expected,
    )


MECHANISM = with_step()
