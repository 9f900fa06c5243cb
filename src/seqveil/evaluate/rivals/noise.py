"""Integer noise from coins, for mechanisms that release counts instead of symbols."""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.coins import Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Ints

WIDEST = 2.0**40


def discrete_laplace(scale: float, count: int, coins: Coins) -> Ints:
    """`count` integers with Pr(k) ∝ e^{-|k|/scale}: Laplace noise for whole numbers.

    It is the difference of two geometric numbers, Pr(g) ∝ q^g with q = e^{-1/scale}; and the binary digits of a
    geometric number are independent, digit j being 1 with probability 1/(1 + q^{-2^j}). Each digit is one coin.

    *Guarantee*: every digit's probability is exact to 2^-62, so no floating-point number is ever released, and shifting
    the true count by L changes the probability of a release by a factor of at most e^{L/scale}, up to that rounding.

    >>> from seqveil.core.coins import SeededCoins
    >>> noise = discrete_laplace(3.0, 4000, SeededCoins(1))
    >>> noise.dtype.name, abs(float(noise.mean())) < 0.3
    ('int64', True)

    Reference: Ghosh, Roughgarden, Sundararajan, *Universally utility-maximizing privacy mechanisms*, STOC 2009.
    """
    if not 0.0 < scale <= WIDEST:
        raise InputError(f"expected a noise scale above 0 and at most 2**40, got {scale}")
    chances: list[int] = []
    while not chances or chances[-1] > 0:
        exponent = 2.0 ** len(chances) / scale
        chances.append(int(DENOMINATOR / (1.0 + math.exp(min(exponent, 700.0)))))
    drawn = coins.draw(2 * count * len(chances)).reshape(2, count, len(chances))
    geometric = ((drawn < np.array(chances)) << np.arange(len(chances))).sum(2)
    return np.asarray(geometric[0] - geometric[1])
