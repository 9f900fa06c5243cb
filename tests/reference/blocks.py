"""What blocks are compared with: all their paths, one by one, and the best that any online mechanism can do.

`every_path` follows the mechanism's own integers along all paths of blocks in a row. `online_optimum` is the globally
optimal online mechanism with full memory, as one linear program in sequence form: z_k(x_1..k, y_1..k) is the
probability of the first k releases given the first k symbols. A release may depend on all symbols and releases before
it, and on nothing that comes later, which is Σ over y_k of z_k = z_{k-1}.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from seqveil import MarkovModel
from seqveil.core import filtering
from seqveil.core.kernel import DENOMINATOR, Floats
from seqveil.core.leakage import Leakages
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import BlockRule, Blocks, after, level_numbers, release


@dataclass(frozen=True, eq=False)
class Paths:
    """All paths of some length: what the mechanism says of them, and what enumeration finds."""

    codes: NDArray[np.int64]  # (Y, T)
    account: Leakages
    beliefs: Floats  # (Y, n) of the next symbol, as the mechanism has it
    lifts: Floats  # (Y, X) log Q(y|x)/Σ P Q for every sequence of symbols that can occur
    weights: Floats  # (Y, X) Q(y|x)
    chances: Floats  # (X,) P(x)
    sequences: NDArray[np.int64]  # (X, T)


def every_path(rule: BlockRule, levels: list[float], lengths: list[int]) -> list[Paths]:
    """Every prefix of blocks in a row, with these L and lengths (a shorter one is cut), as enumeration sees it."""
    model, n, found = rule.model, rule.model.n, []
    sequences, chances = np.zeros((1, 0), np.int64), np.ones(1)
    states, account, blocks = filtering.start(model, 1), Leakages.start(model, 1), Blocks.start(rule, 1)
    codes, ended = np.zeros((1, 0), np.int64), np.ones((1, 1))
    for level, length in zip(levels, lengths, strict=True):
        everyone = np.ones(len(states), bool)
        blocks = blocks.end(blocks.running).begin(rule, everyone, np.full(len(states), level), states, account)
        fake = level_numbers(level, model.size, rule.length)[0] / DENOMINATOR
        drawn, named = np.ones(len(states)), np.ones(ended.shape)
        for _ in range(length):
            rows, given = np.repeat(np.arange(len(states)), n), np.tile(np.arange(n), len(states))
            part = blocks.take(rows)
            made = release(rule, part, states[rows], Asked(given=given))
            keep = np.flatnonzero(~made.impossible)
            _check_sums(rows[keep], made.columns[keep], made.drawn[keep], len(states))
            rows, part = rows[keep], part.take(keep)
            made = release(rule, part, states[rows], Asked(given=given[keep]))
            states, account, blocks = after(rule, part, made, account.take(rows))
            codes = np.concatenate([codes[rows], made.codes[:, None]], axis=1)
            drawn = drawn[rows] * (made.drawn / DENOMINATOR)
            old = np.repeat(np.arange(len(sequences)), n)
            newest = np.tile(np.arange(n), len(sequences))
            sequences = np.concatenate([sequences[old], newest[:, None]], axis=1)
            named = named[rows][:, old] * (made.columns[:, newest] / DENOMINATOR)
            ended = ended[rows][:, old]
            chances = np.exp(filtering.log_likelihoods(model, *_as_log(sequences)))
            weights = ended * (fake * drawn[:, None] + (1.0 - fake) * named)
            lifts = np.log(weights / (weights @ chances)[:, None])
            beliefs = filtering.symbols(model, states)
            found.append(Paths(codes, account, beliefs, lifts[:, chances > 0], weights, chances, sequences))
        ended = weights
    return found


def _check_sums(rows: NDArray[np.int64], columns: NDArray[np.int64], drawn: NDArray[np.int64], count: int) -> None:
    """The labels that were found are all there are: rows and fake draws sum to 2**62."""
    for row in range(count):
        assert int(drawn[rows == row].sum()) == DENOMINATOR
        assert (columns[rows == row].sum(0) == DENOMINATOR).all()


def _as_log(sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count, length = sequences.shape
    return np.repeat(np.arange(count), length), sequences.ravel()


def online_optimum(model: MarkovModel, length: int, total: float) -> float:
    """Least expected share of wrong symbols over `length` events, of all mechanisms that leak at most `total`.

    For chains of order 1 with n^(2·length) up to about 10⁴.
    """
    n, rows = model.n, model.advance(np.eye(model.n))
    sequences = [list(itertools.product(range(n), repeat=k)) for k in range(length + 1)]
    begins, count = [], 0
    for k in range(length + 1):
        begins.append(count)
        count += n ** (2 * k)
    marginal = count  # p(y) of complete paths
    variables = count + n**length
    chances = {(): 1.0}
    for k in range(1, length + 1):
        for x in sequences[k]:
            step = model.initial[x[0]] if k == 1 else rows[x[-2], x[-1]]
            chances[x] = chances[x[:-1]] * step
    cost = np.zeros(variables)
    equal: list[tuple[int, int, float]] = []
    right = [1.0]
    equal.append((0, 0, 1.0))
    for k in range(1, length + 1):
        for i, x in enumerate(sequences[k]):
            for j, y in enumerate(sequences[k]):
                place = begins[k] + i * n**k + j
                cost[place] = chances[x] * (x[-1] != y[-1]) / length
            for j in range(n ** (k - 1)):
                row = len(right)
                equal += [(row, begins[k] + i * n**k + j * n + last, 1.0) for last in range(n)]
                equal.append((row, begins[k - 1] + (i // n) * n ** (k - 1) + j, -1.0))
                right.append(0.0)
    last, paths = begins[length], n**length
    for j in range(paths):
        row = len(right)
        equal += [(row, last + i * paths + j, chances[x]) for i, x in enumerate(sequences[length])]
        equal.append((row, marginal + j, -1.0))
        right.append(0.0)
    below: list[tuple[int, int, float]] = []
    for i, j in itertools.product(range(paths), range(paths)):
        row, place = 2 * (i * paths + j), last + i * paths + j
        below += [(row, place, 1.0), (row, marginal + j, -math.exp(total))]
        below += [(row + 1, place, -1.0), (row + 1, marginal + j, math.exp(-total))]
    found = linprog(
        cost,
        A_ub=_sparse(below, 2 * paths**2, variables),
        b_ub=np.zeros(2 * paths**2),
        A_eq=_sparse(equal, len(right), variables),
        b_eq=np.array(right),
        bounds=(0, None),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.fun)


def _sparse(entries: list[tuple[int, int, float]], rows: int, columns: int) -> coo_array:
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    return coo_array((value, (row, column)), shape=(rows, columns)).tocsr()
