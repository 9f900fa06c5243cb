"""Balanced cells: tell the true cell, never let a cell get too small. No linear program."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.distortion import Distortion
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, grouped_sum, usable
from seqveil.core.mechanisms._base import Mechanism, parts


def build(beliefs: Floats, epsilon: float, distortion: Distortion) -> Kernels:
    """Cells of belief mass at least κ = 1/(1+e^ε); the true cell with probability 1-e^-ε, else a cell drawn by mass.

    Every symbol with β ≥ κ is a cell of its own. The rest, of mass s, fills ⌊s/κ⌋ cells of equal mass in the order of
    likelihood (of position, where symbols have one); a symbol on a border belongs to both cells in proportion. Where
    s < κ the rest joins the likeliest cell.

    *Guarantee*: with m_y the mass of cell y and f_y(x) the share of x in it, Q(y|x) = e^-ε m_y + (1-e^-ε) f_y(x) has
    marginal m_y and lifts in [e^-ε, e^-ε + (1-e^-ε)/κ] = [e^-ε, e^ε] for every x: ε-SIP, and 2ε-LDP whatever the
    truth's law is.

    >>> kernel = MECHANISM.kernels(np.array([[0.5, 0.2, 0.2, 0.1]]), 1.0).one(0)
    >>> kernel.codes.tolist(), kernel.leakage([0.5, 0.2, 0.2, 0.1]) <= 1.0
    ([0, 1], True)

    Reference: docs/theory.md, sections 5 (balanced cells) and 12.
    """
    users, n = beliefs.shape
    aim = usable(epsilon, n)
    least = 1.0 / (1.0 + math.exp(aim))
    order, shares, cells = _cells(beliefs, least, distortion)
    outputs = _labels(beliefs, order, cells, distortion)
    told = int(-math.expm1(-aim) * DENOMINATOR)
    first = np.floor(shares[..., 0] * told).astype(np.int64)
    sorted_extra = np.stack([first, told - first], axis=2)
    places, extra = np.empty_like(cells), np.empty_like(sorted_extra)
    np.put_along_axis(places, order[:, :, None], cells, axis=1)
    np.put_along_axis(extra, order[:, :, None], sorted_extra, axis=1)
    mass = np.take_along_axis(beliefs, order, axis=1)
    masses = grouped_sum(cells, mass[:, :, None] * shares, outputs.shape[1])
    base = parts(masses, np.full(users, DENOMINATOR - told))
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
    outputs = np.zeros((users, count), np.int64)
    if distortion.is_hamming:
        # places are in order of likelihood: the first that starts in a cell is its likeliest symbol
        first = np.full((users, count), n - 1)
        np.minimum.at(first, (np.arange(users)[:, None], cells[:, :, 0]), np.arange(n))
        return np.take_along_axis(order, first, axis=1)
    for user in range(users):
        for cell in np.unique(cells[user, :, 0]):
            starts = np.flatnonzero(cells[user, :, 0] == cell)
            members = order[user, starts]
            weights = np.zeros(n)
            weights[members] = beliefs[user, members]
            outputs[user, cell] = members[distortion.expected(weights)[members].argmin()]
    return outputs


MECHANISM = Mechanism(
    name="balanced",
    summary="true cell of a partition into cells of mass ≥ 1/(1+e^ε)",
    guarantee="ε-SIP, both sides",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost="O(n log n), no LP",
    reference="docs/theory.md, section 5",
    sound=True,
    ldp=2.0,
    build=build,
)
