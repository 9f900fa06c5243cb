"""Randomness for releases: the operating system's by default, seeded only for research and marked so."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqveil.errors import InputError

BITS = 62
"""Coins and kernel rows share one denominator, 2**62: the largest power of two whose sums stay inside int64."""


class Coins(Protocol):
    """A source of uniform integers in [0, 2**62)."""

    private: bool

    def draw(self, count: int) -> NDArray[np.int64]:
        """`count` independent uniform integers in [0, 2**62)."""


class SystemCoins:
    """Coins of the operating system (`os.urandom`): the only ones a private release may use.

    >>> SystemCoins().draw(3).shape
    (3,)
    """

    private = True

    def draw(self, count: int) -> NDArray[np.int64]:
        words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return (words >> np.uint64(64 - BITS)).astype(np.int64)


class SeededCoins:
    """Coins anyone who knows the seed can replay: for research and tests, never for a private release.

    >>> int(SeededCoins(7).draw(1)[0]) == int(SeededCoins(7).draw(1)[0])
    True
    >>> SeededCoins(7).private
    False
    """

    private = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InputError("expected a seed that is a whole number ≥ 0; leave seed=None for a private release")
        self._generator = np.random.default_rng(int(seed))

    def draw(self, count: int) -> NDArray[np.int64]:
        return self._generator.integers(0, 1 << BITS, size=count, dtype=np.int64)


def coins(seed: int | None = None) -> Coins:
    """The operating system's coins, or seeded ones (marked not private) where a seed is given."""
    return SystemCoins() if seed is None else SeededCoins(seed)
