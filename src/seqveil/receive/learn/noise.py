"""Integer noise drawn exactly: no floating-point number decides anything, so pure ε-DP is pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqveil.core.coins import BITS, Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints

WIDEST = 1 << 54  # of a denominator: leaves 8 bits for the factor K of `_decays`


def exact_laplace(rate: tuple[int, int], count: int, coins: Coins) -> Ints:
    """`count` integers with Pr(k) ∝ e^{-|k|·s/t}, exactly, where `rate` = (s, t) is a fraction above 0.

    U is uniform on 0..t-1 and kept with probability e^{-U/t}, V counts successes of probability e^{-1}; then
    ⌊(U + tV)/s⌋ is geometric with ratio e^{-s/t}, and a fair sign that is drawn again at -0 makes it two-sided.

    *Guarantee*: each decision is a comparison of integers drawn uniformly by rejection, so the law is the one stated
    and not near it: shifting a count by L changes the probability of any outcome by a factor of at most e^{L·s/t}.

    >>> from seqveil.core.coins import SeededCoins
    >>> noise = exact_laplace((1, 3), 4000, SeededCoins(1))
    >>> abs(float(noise.mean())) < 0.3, round(float((noise == 0).mean()), 1)
    (True, 0.2)

    Reference: Canonne, Kamath, Steinke, *The discrete Gaussian for differential privacy*, 2020, algorithms 1 and 2.
    """
    s, t = rate
    if not (0 < s <= WIDEST and 0 < t <= WIDEST):
        raise InputError(
            "expected a rate s/t of whole numbers from 1 to 2**54; use a larger epsilon or a smaller bound"
        )
    found: list[Ints] = []
    missing = count
    while missing:
        share = uniform(np.full(2 * missing + 16, t, np.int64), coins)
        share = share[_decays(share, t, coins)]
        size = (share + t * _run(share.size, coins)) // s
        negative = (coins.draw(size.size) & 1).astype(bool)
        kept = ~(negative & (size == 0))
        part = np.where(negative, -size, size)[kept][:missing]
        found.append(part)
        missing -= part.size
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def uniform(bounds: Ints, coins: Coins) -> Ints:
    """An integer uniform on 0..bound-1 for each bound (1..2**62): coins beyond the last whole multiple are redrawn."""
    limits = (1 << BITS) // bounds * bounds
    drawn = coins.draw(bounds.size)
    beyond = np.flatnonzero(drawn >= limits)
    while beyond.size:
        drawn[beyond] = coins.draw(beyond.size)
        beyond = beyond[drawn[beyond] >= limits[beyond]]
    return drawn % bounds


def _decays(numerators: Ints, denominator: int, coins: Coins) -> NDArray[np.bool_]:
    """True with probability e^{-a/b} for each a in 0..b: a run of successes of chance a/(bK), K = 1, 2, …, is even."""
    even = np.ones(numerators.size, bool)
    alive, turn = np.arange(numerators.size), 1
    while alive.size:
        bounds = np.full(alive.size, denominator * turn, np.int64)
        alive = alive[uniform(bounds, coins) < numerators[alive]]
        even[alive] = ~even[alive]
        turn += 1
    return even


def _run(count: int, coins: Coins) -> Ints:
    """How many draws of probability e^{-1} succeed before the first that does not."""
    length = np.zeros(count, np.int64)
    alive = np.arange(count)
    while alive.size:
        alive = alive[_decays(np.ones(alive.size, np.int64), 1, coins)]
        length[alive] += 1
    return length
