"""One batch at a time over every batch that can occur, for small X^w: the exact optimum, and the paper's descent."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels, usable
from seqveil.core.mechanisms import optimum, program
from seqveil.core.mechanisms.base import Batch
from seqveil.core.mechanisms.codebook import Codebook, Support, support
from seqveil.core.mechanisms.rule_cache import RuleCache

LARGEST = 400  # possible batches: seconds where symbols are correlated, up to minutes where they hardly are
LARGEST_CLOSED_FORM = 100_000  # w = 1 and Hamming, where no program is needed
GAIN = 1e-9  # relabelling stops when a round gains less, relative to the cost
ROUNDS = 20
LARGEST_DESCENT = 300  # possible batches: N² cells, each moved up to 1/step times
STEP = 0.01  # of the descent, as a part of the starting probability 1/N


def exact(batch: Batch) -> Codebook:
    """The kernel of least expected cost among all that are sound at ε, one batch at a time.

        minimise Σ_o,r β(o) Q(r|o) Σ_t D(o_t, r_t)   over row-stochastic Q with  e^-ε p(r) ≤ Q(r|o) ≤ e^ε p(r)

    o runs over the batches that can occur. r runs over all of X^w where the program stays within its size, and the
    optimum is then certified; else over the batches that can occur, and labels are improved as in `with_best_labels`.
    With w = 1 and Hamming distortion the answer is in closed form, for large alphabets too.

    *Guarantee*: |log lift| ≤ ε for every batch in X^w, from the integers: a batch that the model rules out is
    released like the possible batch nearest to it, so it has that batch's lifts. Hence BIL ≤ ε, SIL ≤ Σ ε, and 2ε-LDP
    whatever the truth's law is. The paper lets a kernel depend on the last L raw batches; ours depends on the present
    one only (L = 1), which is what makes leakages add up over the stream (docs/theory.md, section 1). Each program is
    solved from scratch: an optimum need not be unique, and one found from an earlier batch's basis would depend on what
    else the process has solved, so that a receiver could not find it again. Equal contexts are solved once.

    >>> from seqveil.core import mechanisms
    >>> from seqveil.core.coins import coins
    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> context = Batch(sticky, sticky.initial, 6, 5.0, hamming())
    >>> sent = mechanisms.batch_lp.draw(context, np.array([0, 0, 1, 1, 1, 1]), coins(seed=1))
    >>> sent.codes.tolist(), sent.most <= 5.0, round(mechanisms.batch_lp.expected(context) / 6, 4)
    ([0, 0, 1, 1, 1, 1], True, 0.01)

    Reference: the paper's problem (eq:batch); docs/theory.md, sections 3 to 5.
    """
    closed_form = batch.length == 1 and batch.distortion.is_hamming
    found = support(batch, LARGEST_CLOSED_FORM if closed_form else LARGEST)
    limit, mass = batch.epsilon - found.drift, found.mass
    aim = usable(limit, len(mass))
    if aim == 0.0 or len(mass) == 1:  # nothing may be disclosed: the best guess whatever the truth is
        return Codebook(found, found.guesses(mass[None]), _kernels(np.ones((len(mass), 1)), mass))
    if closed_form:
        labels, kernels = _closed_form(found, aim)
    else:
        best, labels = with_best_labels(found, aim, _first_labels(found))
        kernels = _kernels(best.table, mass)
    return Codebook(found, labels, kernels.made_sound(mass[None], limit, 2 * limit))


def _closed_form(found: Support, epsilon: float) -> tuple[Ints, Kernels]:
    """The optimum over single symbols for Hamming distortion: labels and kernel."""
    if not optimum.fits(len(found.batches), epsilon):
        raise InputError(
            f"the optimum over {len(found.batches)} symbols at ε={epsilon:.3g} needs a table of more than "
            f'{optimum.WIDEST} columns; use mechanism="tree" or a smaller epsilon'
        )
    solution = optimum.solve(found.mass[None], epsilon)
    return found.batches[solution.outputs[0]], solution.kernels(found.mass[None])


def _first_labels(found: Support) -> Ints:
    """All of X^w where a program with as many labels may be solved, else the batches that can occur."""
    n, length = found.batch.model.n, found.batch.length
    if len(found.batches) == n**length or n**length * len(found.batches) > program.CELLS_AT_MOST:
        return found.batches
    return np.indices((n,) * length).reshape(length, -1).T.astype(np.int64)  # in lexicographic order


def _kernels(table: Floats, mass: Floats) -> Kernels:
    """A stack of one from a table (N, K) over batches of this mass; an output is known by its column."""
    return Kernels.from_tables(np.arange(table.shape[1])[None], table[None], None, mass[None])


def with_best_labels(rows: Support, epsilon: float, labels: Ints) -> tuple[program.Optimum, Ints]:
    """The optimum over the given labels (K, w), then over better ones as long as there are any, and the labels it uses.

    Each round replaces nothing and adds, for every output, the best reproduction under its posterior; so the cost
    never rises, and at the end each output's label is its own best reproduction.
    """
    mass = rows.mass
    best = program.solve(mass, epsilon, rows.costs(labels))
    used = labels[best.outputs]
    for _ in range(ROUNDS):
        proposed = np.unique(rows.guesses((mass[:, None] * best.table).T), axis=0)
        known = (proposed[:, None, :] == used[None]).all(2).any(1)
        if known.all():
            break
        candidates = np.concatenate((used, proposed[~known]))
        again = program.solve(mass, epsilon, rows.costs(candidates))
        if again.error >= best.error - GAIN * max(best.error, GAIN):
            break
        best, used = again, candidates[again.outputs]
    return best, used


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


def descended(batch: Batch, step: float = STEP) -> Codebook:
    """The paper's Algorithm 2 with step length φ, as a part of 1/N, in the only reading that ends with a kernel.

    *Guarantee*: none beforehand, as for anything released as published. In our reading the bounds are checked at every
    move, so the leakage is ε up to rounding; what it truly is comes from the integers (`least`, `most`).
    """
    if not 0.0 < step <= 1.0:
        raise InputError(f"expected a step above 0 and at most 1, got {step:g}; try {STEP:g}")
    found = support(batch, LARGEST_DESCENT)
    table = descend(found.mass, found.costs(found.batches), batch.epsilon, step)
    return Codebook(found, found.batches, _kernels(table, found.mass))


def _exact(batch: Batch, kept: bool) -> Codebook:
    return exact(batch)


def _descended(batch: Batch, kept: bool) -> Codebook:
    return descended(batch)


batch_lp = RuleCache(_exact)
batch_descent = RuleCache(_descended)
