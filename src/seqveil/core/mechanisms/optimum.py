"""The exact optimum: least expected distortion of all sound kernels. For Hamming in closed form, else by a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from seqveil.core import programs
from seqveil.core.bulk import in_parts
from seqveil.core.compiled import form
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DROP, Floats, Ints, Kernels, slack, usable
from seqveil.core.mechanisms.base import Asked, Made, stack
from seqveil.core.mechanisms.closed_form import IMPOSSIBLE, LEFT, ONE, Bounds, Numbers, draw, write

WIDEST = 1024  # outputs a table may have
QUICK = 40  # symbols up to which the program for any distortion takes some hundredths of a second
MARGIN = 1e-12  # what the check in floats keeps away from a bound; the closed form keeps ten times as far (`usable`)
LISTED = 1024  # users whose beliefs are made into lists at a time


def fits(n: int, epsilon: float) -> bool:
    """Whether the closed form's table for Hamming distortion is of a sensible width."""
    return columns(n, epsilon) <= WIDEST


def columns(n: int, epsilon: float) -> int:
    """How many symbols an optimum needs: min(n, ⌈1+e^ε⌉).

    >>> columns(17, 1.0), columns(3, 1.0), columns(100, math.log(3.0))
    (4, 3, 4)
    """
    if epsilon >= math.log(n):
        return n
    return min(n, math.ceil((1.0 + math.exp(epsilon)) * (1.0 - 1e-14)))


def optimal(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """min Σ β(x) Q(y|x) D(x, y) over row-stochastic Q with e^-ε p(y) ≤ Q(y|x) ≤ e^ε p(y) for every x and y.

    Hamming: an optimum releases only the ⌈1+e^ε⌉ likeliest symbols, in closed form (`closed_form` has the proof); among
    all optima we take one that tells the other symbols apart as far as that is free. Any other distortion: a linear
    program with a certified gap.

    *Guarantee*: ε-SIP on both sides, 2ε-LDP without trusting the model; never worse than the best constant release.

    >>> from seqveil.core import mechanisms
    >>> from seqveil.core.distortion import hamming
    >>> kernel = mechanisms.optimal.kernels(np.array([[0.2, 0.8]]), 1.0).one(0)
    >>> round(kernel.error([0.2, 0.8], hamming()), 4)
    0.1765

    Reference: docs/theory.md, section 5.
    """
    n = beliefs.shape[1]
    aim = usable(epsilon, n)
    if not distortion.is_hamming:
        programs.check_size(n, n)  # before n² distances are made
        costs = distortion.matrix(n)
        return stack([_by_program(belief, aim, costs) for belief in beliefs])
    if not fits(n, aim):
        raise InputError(
            f"the optimum for ε={epsilon:g} over {n} symbols needs more than {WIDEST} columns; "
            'use mechanism="balanced", mechanism="tree" or a smaller epsilon'
        )
    return solve(beliefs, aim).kernels(beliefs)


def _by_program(belief: Floats, aim: float, costs: Floats) -> Kernels:
    found = programs.sound(belief, aim, costs)
    return Kernels.from_tables(found.outputs[None, :], found.table[None], None, belief[None])


@dataclass(frozen=True, eq=False)
class Optimum:
    """Optimal kernels of B users, and what no sound kernel does better than."""

    stack: Kernels
    bound: Floats  # (B,) expected distortion (the dual value)

    @property
    def outputs(self) -> Ints:
        """(B, K) the likeliest symbols, in that order."""
        return self.stack.outputs

    @property
    def table(self) -> Floats:
        """(B, R, K) as probabilities, a row for each class of symbols (`stack.rows`)."""
        return (self.stack.extra + self.stack.base[:, None]) / ONE

    def kernels(self, beliefs: Floats) -> Kernels:
        """The kernels, without outputs that would hardly ever be released."""
        stack = self.stack
        weak = (stack.marginal(beliefs) < DROP * ONE) & (stack.base > 0)
        some = np.flatnonzero(weak.any(1))
        if some.size:
            assert stack.rows is not None
            without = Kernels.from_tables(stack.outputs[some], self.table[some], stack.rows[some], beliefs[some])
            stack.base[some], stack.extra[some] = without.base, without.extra
        return stack


def solve(beliefs: Floats, epsilon: float) -> Optimum:
    """The exact optimum for Hamming distortion, sound at ε up to rounding.

    >>> solution = solve(np.array([[0.2, 0.8]]), 1.0)
    >>> solution.outputs.tolist(), solution.stack.one(0).probabilities.round(3).tolist()
    ([[1, 0]], [[0.269, 0.731], [0.847, 0.153]])
    """
    users, n = beliefs.shape
    width, code = columns(n, epsilon), form(write, users)
    outputs, base, rows = (np.empty((users, size), np.int64) for size in (width, width, n))
    extra, bound = np.zeros((users, min(n, 4 * width), width), np.int64), np.empty(users)
    filled = outputs, base, extra, rows, bound
    if code is write:
        for one in (slice(user, user + 1) for user in range(users)):
            _in_lists(write, (beliefs[one],), (_numbers(epsilon),), [array[one] for array in filled])
    else:
        code(np.ascontiguousarray(beliefs), _numbers(epsilon), *filled)
    return Optimum(Kernels(n, outputs, base, extra, None, rows), bound)


def _in_lists(code: Callable[..., None], given: Any, numbers: Any, filled: Any) -> None:
    """Call the plain form of `write` or `draw`, with lists in place of arrays."""
    lists = [array.tolist() for array in filled]
    code(given[0].tolist(), *numbers, *(array.tolist() for array in given[1:]), *lists)
    for array, values in zip(filled, lists, strict=True):
        array[:] = values


def release(beliefs: Floats, epsilon: float, distortion: Distortion, asked: Asked) -> Made | None:
    """One release for each user, from its table checked in integers; None where the closed form does not cover it."""
    users, n = beliefs.shape
    aim = usable(epsilon, n)
    if not distortion.is_hamming or not fits(n, aim):
        return None
    numbers = labels_and_bounds(epsilon, n)
    codes, found, state = np.zeros(users, np.int64), np.empty((users, n), np.int64), np.zeros(users, np.int8)
    code = form(draw, users)

    def some(part: slice) -> None:
        given, filled = (beliefs[part], *(array[part] for array in asked)), (codes[part], found[part], state[part])
        if code is draw:
            _in_lists(draw, given, numbers, filled)
        else:
            code(given[0], *numbers, *given[1:], *filled)

    if code is draw:
        for at in range(0, users, LISTED):
            some(slice(at, at + LISTED))
    else:
        beliefs = np.ascontiguousarray(beliefs)
        in_parts(users, some, n)
    if not np.count_nonzero(state):  # all are done
        return Made(codes, found)
    return Made(codes, found, np.flatnonzero(state == LEFT), bool(np.count_nonzero(state == IMPOSSIBLE)))


@lru_cache(maxsize=256)
def labels_and_bounds(epsilon: float, n: int) -> tuple[int, Numbers, Bounds]:
    """How many labels the optimum has, the numbers of its closed form, and bounds on lifts and on ratios of weights.

    They are taken once, in Python: the exponential of another library may differ in the last bit.
    """
    aim, top = usable(epsilon, n), epsilon - MARGIN - 4 * slack(n)
    return columns(n, aim), _numbers(aim), (math.exp(top), math.exp(-top), math.exp(2.0 * top))


def _numbers(epsilon: float) -> Numbers:
    """e^-ε, 1-e^-ε and κ = 1/(1+e^ε); a row has e^-ε of the marginal in it."""
    a = math.exp(-epsilon)
    return a, -math.expm1(-epsilon), a / (1.0 + a), a, 0.0
