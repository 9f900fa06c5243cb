"""The best estimate of a symbol under a law, in alphabets too large to try every symbol against every other."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from seqveil.distortion import Distortion
from seqveil.kernel import Floats, Ints

FEW = 256  # up to this many symbols all are tried
STEPS = 8
NEAR = 8
FAINT = 1e-3  # symbols that hold less than this share of a law are left out of its median


def best_guess(distortion: Distortion, laws: Floats) -> Ints:
    """The symbol of least expected cost under each law (k, n).

    For Euclidean costs over more than 256 symbols: the best of the few symbols nearest to the weighted geometric
    median, found by Weiszfeld's steps. Nothing but the quality of an estimate depends on it.

    >>> from seqveil.distortion import euclidean
    >>> line = euclidean(np.stack((np.arange(300.0), np.zeros(300)), axis=1))
    >>> law = np.zeros((1, 300))
    >>> law[0, [10, 20, 290]] = 0.3, 0.4, 0.3
    >>> best_guess(line, law).tolist()
    [20]

    Reference: Weiszfeld 1937.
    """
    if distortion.name != "euclidean" or laws.shape[1] <= FEW:
        return distortion.best_guess(laws)
    return np.array([_median_symbol(distortion, law) for law in laws], dtype=np.int64)


def _median_symbol(distortion: Distortion, law: Floats) -> int:
    assert distortion.points is not None
    kept = np.flatnonzero(law > FAINT * law.max())
    places, weights = distortion.points[kept], law[kept]
    centre = (weights[:, None] * places).sum(0) / weights.sum()
    for _ in range(STEPS):
        near = weights / np.sqrt(((places - centre) ** 2).sum(1) + 1e-12)
        moved = (near[:, None] * places).sum(0) / near.sum()
        centre = moved
    _, found = _nearest(distortion).query(centre, k=NEAR)
    candidates = np.unique(np.append(found, kept[weights.argmax()]))
    gaps = distortion.points[candidates][:, None, :] - places[None]
    return int(candidates[(weights * np.sqrt((gaps**2).sum(2))).sum(1).argmin()])


@lru_cache(maxsize=8)
def _nearest(distortion: Distortion) -> Any:
    from scipy.spatial import cKDTree

    return cKDTree(distortion.points)
