"""Closed forms that release the truth, or the cell that it lies in, and otherwise a random draw: no linear program."""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, grouped_sum, slack, usable
from seqveil.core.mechanisms.base import Asked, Made, parts, truth_or_draw


def randomized_response(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Tell the truth with probability e^ε/(e^ε+n-1), else any other symbol alike; the belief is not used.

    *Guarantee*: ε-LDP whatever the model is, hence ε-SIP for every belief (docs/theory.md, section 3).

    >>> from seqveil.core import mechanisms
    >>> kernel = mechanisms.randomized_response.kernels(np.array([[0.2, 0.3, 0.5]]), math.log(2.0)).one(0)
    >>> kernel.probabilities.round(6).tolist()
    [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]

    Reference: Kairouz, Bonawitz, Ramage, *Discrete distribution estimation under local privacy*, ICML 2016.
    """
    users, n = beliefs.shape
    disclosed, each = response_weights(epsilon, n)
    if not disclosed:
        nothing = np.zeros(users, np.int64)
        return truth_or_draw(nothing, parts(np.full((users, n), 1.0 / n), nothing + DENOMINATOR))
    return truth_or_draw(np.full(users, disclosed, np.int64), np.full((users, n), each, np.int64))


def respond(beliefs: Floats, epsilon: float, distortion: Distortion, asked: Asked) -> Made | None:
    """Randomised response of many users: ε-LDP, so sound for every belief, and one check is enough for all."""
    users, n = beliefs.shape
    disclosed, each = response_weights(epsilon, n)
    if not disclosed or math.log((disclosed + each) / each) > epsilon - 1e-12 - 8 * slack(n):
        return None
    drawn = np.where(asked.randomness < disclosed, asked.truths, (asked.randomness - disclosed) // each)
    codes = asked.given if asked.given.size else drawn
    columns = np.full((users, n), each, np.int64)
    columns[np.arange(users), codes] += disclosed
    return Made(codes, columns)


def response_weights(epsilon: float, n: int) -> tuple[int, int]:
    """Weight of releasing the truth (0: nothing is left to reveal) and of each symbol's being drawn."""
    gain = math.expm1(usable(epsilon, n))
    each = math.ceil(DENOMINATOR / (gain + n))  # rounded up: disclosed ≤ gain · each, and all symbols weigh alike
    return max(0, DENOMINATOR - n * each), each


def crr_weight(epsilon: float) -> int:
    """The probability 1-e^-ε of releasing the truth, as a weight."""
    return int(-math.expm1(-epsilon) * DENOMINATOR)


def balanced(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Cells of belief mass at least κ = 1/(1+e^ε); the true cell with probability 1-e^-ε, else a cell drawn by mass.

    Every symbol with β ≥ κ is a cell of its own. The rest, of mass s, fills ⌊s/κ⌋ cells of equal mass in the order of
    likelihood (of position, where symbols have one); a symbol on a border belongs to both cells in proportion. Where
    s < κ the rest joins the likeliest cell.

    *Guarantee*: lifts lie in [e^-ε, e^ε] for every x: ε-SIP, and 2ε-LDP whatever the truth's distribution is.

    >>> from seqveil.core import mechanisms
    >>> kernel = mechanisms.balanced.kernels(np.array([[0.5, 0.2, 0.2, 0.1]]), 1.0).one(0)
    >>> kernel.codes.tolist(), kernel.leakage([0.5, 0.2, 0.2, 0.1]) <= 1.0
    ([0, 1], True)

    Reference: docs/theory.md, sections 5 (balanced cells) and 13.
    """
    users, n = beliefs.shape
    aim = usable(epsilon, n)
    least = 1.0 / (1.0 + math.exp(aim))
    order, shares, cells = _cells(beliefs, least, distortion)
    outputs = _labels(beliefs, order, cells, distortion)
    disclosed = crr_weight(aim)
    first = np.floor(shares[..., 0] * disclosed).astype(np.int64)
    sorted_extra = np.stack([first, disclosed - first], axis=2)
    places, extra = np.empty_like(cells), np.empty_like(sorted_extra)
    np.put_along_axis(places, order[:, :, None], cells, axis=1)
    np.put_along_axis(extra, order[:, :, None], sorted_extra, axis=1)
    mass = np.take_along_axis(beliefs, order, axis=1)
    masses = grouped_sum(cells, mass[:, :, None] * shares, outputs.shape[1])
    base = parts(masses, np.full(users, DENOMINATOR - disclosed))
    return Kernels(n, outputs, base, extra, places, None)


def _cells(beliefs: Floats, least: float, distortion: Distortion) -> tuple[Ints, Floats, Ints]:
    """Order of the symbols (large ones first), and per place in it the two cells it touches with its share in each."""
    n = beliefs.shape[1]
    large = beliefs >= least
    points = distortion.points
    rank = -beliefs if points is None or points.ndim > 1 else np.argsort(np.argsort(points))
    order = np.lexsort((np.broadcast_to(rank, beliefs.shape), np.where(large, -beliefs, 0.0)))
    mass = np.take_along_axis(beliefs, order, axis=1)
    count = large.sum(1)[:, None]
    rest = np.where(np.arange(n) >= count, mass, 0.0)
    end = np.cumsum(rest, axis=1)
    start, total = end - rest, end[:, -1:]
    many = np.floor(total / least).astype(np.int64)
    # the widths absorb rounding, so that every cell keeps its mass
    width = np.where(many > 0, total / np.maximum(many, 1), np.inf)
    cell = np.clip(np.floor(start / width).astype(np.int64), 0, np.maximum(many - 1, 0))
    inside = np.clip((cell + 1) * width - start, 0.0, rest)
    share = np.where((rest > 0) & (cell + 1 < many), inside / np.where(rest > 0, rest, 1.0), 1.0)
    is_large = np.arange(n) < count
    first = np.where(is_large, np.arange(n), np.where(many > 0, count + cell, 0))
    share = np.where(is_large, 1.0, share)
    second = np.where(share < 1.0, first + 1, first)
    return order, np.stack([share, 1.0 - share], axis=2), np.stack([first, second], axis=2)


def _labels(beliefs: Floats, order: Ints, cells: Ints, distortion: Distortion) -> Ints:
    """The symbol each cell is released as: one that starts in it, so that no two cells share a label."""
    users, n = beliefs.shape
    count = int(cells.max()) + 1
    if distortion.is_hamming:
        # places are in order of likelihood: the first that starts in a cell is its likeliest symbol
        first = np.full((users, count), n - 1)
        np.minimum.at(first, (np.arange(users)[:, None], cells[:, :, 0]), np.arange(n))
        return np.take_along_axis(order, first, axis=1)
    begins = cells[:, None, :, 0] == np.arange(count)[:, None]
    weights = np.where(np.take_along_axis(begins, order.argsort(1)[:, None], axis=2), beliefs[:, None], 0.0)
    costs = np.take_along_axis(distortion.expected(weights), order[:, None], axis=2)
    return np.take_along_axis(order, np.where(begins, costs, np.inf).argmin(2), axis=1)


def apart(beliefs: Floats, epsilon: float, distortion: Distortion) -> NoReturn:
    """Refuses: a release that keeps declared secrets, or follows the hidden bit of a block, needs more than a belief.

    *Guarantee* of secrets: for an observer who believes the model, for every declared secret, at every time and for
    every outcome, Pr(y_1..t | E) / Pr(y_1..t | not E) lies between e^-ε and e^ε of that secret, in total.

    *Guarantee* of blocks: all releases of a block together move an observer's belief about the whole sequence by a
    factor in [e^-ε, e^ε]; without trusting the model a block is 2ε-LDP. One release alone may take all of that.

    >>> import seqveil as sv
    >>> model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> secretive = sv.Session(model, secrets=sv.secrets.ever(1, epsilon=0.5, window=20))
    >>> session = sv.Session(model, epsilon=3.0, block=6)
    >>> secretive.release(0) in (0, 1), session.release(0) in (0, 1), session.leakage <= 3.0
    (True, True, True)

    Reference: docs/secrets.md; docs/theory.md, section 19.
    """
    raise InputError('"guarded" and "blocks" need more than a belief; pass secrets=[…] or block=20, with a Session')
