"""ToPS: a threshold by noisy max, then a noisy tree over time, for a curator who may see all events.

Central model: a trusted curator holds everyone's numbers and publishes noisy sums over time. Each event is taken to be
another person's; correlation between events is not considered. It answers range sums, not single values, and is here to
be compared with on its own task; it is therefore not in the registry.

Reference: Wang, Chen, Zhang, Su, Cheng, Li, Li, Jha, *Continuous release of data streams under both centralized and
local differential privacy*, CCS 2021, section 4; Hay, Rastogi, Miklau, Suciu, *Boosting the accuracy of differentially
private histograms through consistency*, VLDB 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.coins import BITS, Coins
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import check_epsilon
from seqveil.evaluate.rivals.noise import discrete_laplace

FANOUT = 16


@dataclass(frozen=True, eq=False)
class Sums:
    """What ToPS published: consistent noisy sums of blocks, and a number for each event that adds up to them."""

    theta: int
    levels: int
    blocks: Floats
    events: Floats

    def between(self, start: int, end: int) -> float:
        """The estimated sum of the (truncated) events start..end-1."""
        return float(self.events[start:end].sum())


def depth(events: int, block: int = 1) -> int:
    """Levels of a tree with fan-out 16 over that many events in blocks, without a root.

    >>> depth(4096), depth(4097), depth(4096, block=16)
    (3, 4, 2)
    """
    levels, wide = 1, FANOUT
    while wide < math.ceil(events / block):
        levels, wide = levels + 1, wide * FANOUT
    return levels


def threshold(
    values: ArrayLike, epsilon: float, coins: Coins, later: int, largest: int, sums_epsilon: float | None = None
) -> int:
    """θ in 1..largest for the `later` events to come, from the first m values (whole numbers), by noisy max.

        score(θ) = -#{x > θ} - θ·(3m/(60n))·√(30 h³/ε²),   n = later, h = depth(n), ε = `sums_epsilon`

    *Guarantee*: ε-DP for each of the m events. Replacing one value moves every score the same way by at most one, so
    exponential noise of mean 1/ε is enough (drawn from 62-bit coins).

    >>> from seqveil.core.coins import SeededCoins
    >>> threshold([3] * 990 + [500] * 10, 1.0, SeededCoins(1), later=100_000, largest=1000) < 30
    True
    """
    first = _whole(values)
    check_epsilon(epsilon)
    rate = check_epsilon(epsilon if sums_epsilon is None else sums_epsilon, "sums_epsilon")
    if later < 1 or largest < 1:
        raise InputError(f"expected at least one later event and a largest value ≥ 1, got {later} and {largest}")
    candidates = np.arange(1, largest + 1)
    above = first.size - np.searchsorted(np.sort(first), candidates, side="right")
    noise_cost = 3.0 * first.size / (60.0 * later) * math.sqrt(30.0 * depth(later) ** 3) / rate
    uniform = (coins.draw(largest).astype(np.float64) + 0.5) / 2.0**BITS
    noisy = -above - candidates * noise_cost - np.log(uniform) / epsilon
    return int(candidates[noisy.argmax()])


def release(values: ArrayLike, theta: int, epsilon: float, coins: Coins, block: int = FANOUT) -> Sums:
    """Sums over time of whole numbers truncated to 0..θ: a 16-ary tree over blocks, with noise θh/ε on each node.

    Inside a block the smoother "recent" stands in for the lowest levels: each event counts as the mean of the block
    before (θ/2 in the first), and the last event makes up the block's noisy sum.

    *Guarantee*: ε-DP for each event: it is in h nodes, one a level, by at most θ. What follows is post-processing.

    >>> from seqveil.core.coins import SeededCoins
    >>> made = release([2] * 64, 4, 10.0, SeededCoins(1))
    >>> made.levels, abs(made.between(0, 64) - 128) < 20
    (1, True)
    """
    check_epsilon(epsilon)
    if theta < 1 or block < 1:
        raise InputError(f"expected a threshold and a block of at least 1, got {theta} and {block}")
    kept = np.minimum(_whole(values), theta)
    levels = depth(kept.size, block)
    padded = np.zeros(FANOUT**levels * block, np.int64)
    padded[: kept.size] = kept
    exact = [padded.reshape(FANOUT ** (levels - up), -1).sum(1) for up in range(levels)]  # from the blocks upward
    noisy = [sums + discrete_laplace(theta * levels / epsilon, sums.size, coins) for sums in exact]
    used = math.ceil(kept.size / block)
    blocks = consistent(noisy)[:used]
    return Sums(theta, levels, blocks, _recent(blocks, theta, block, kept.size))


def consistent(levels: list[Ints] | list[Floats]) -> Floats:
    """The lowest level of a 16-ary tree after Hay's two passes: the least-squares fit to all its noisy levels.

    Upward, z = (f^l - f^{l-1})/(f^l - 1)·own + (f^{l-1} - 1)/(f^l - 1)·(sum of the children's z), l = 1 for the lowest;
    downward, each child takes its share of what its parent's value differs from its children's sum.
    """
    upward = [np.asarray(levels[0], dtype=np.float64)]
    for height, own in enumerate(levels[1:], start=2):
        full, less = float(FANOUT) ** height, float(FANOUT) ** (height - 1)
        children = upward[-1].reshape(-1, FANOUT).sum(1)
        upward.append(((full - less) * own + (less - 1.0) * children) / (full - 1.0))
    fitted = upward[-1]
    for below in reversed(upward[:-1]):
        missing = (fitted - below.reshape(-1, FANOUT).sum(1)) / FANOUT
        fitted = below + np.repeat(missing, FANOUT)
    return fitted


def _recent(blocks: Floats, theta: int, block: int, count: int) -> Floats:
    guess = np.concatenate([[theta / 2.0], blocks[:-1] / block])
    events = np.repeat(guess, block)[:count]
    last = np.minimum(np.arange(1, len(blocks) + 1) * block, count) - 1
    size = np.diff(np.concatenate([[-1], last]))
    events[last] = blocks - (size - 1) * guess
    return np.asarray(events)


def _whole(values: ArrayLike) -> Ints:
    numbers = np.asarray(values)
    if numbers.ndim != 1 or not numbers.size or not np.issubdtype(numbers.dtype, np.integer) or numbers.min() < 0:
        raise InputError(
            f"expected whole numbers ≥ 0, one an event, got an array of shape {numbers.shape}; scale and round first"
        )
    return numbers.astype(np.int64)
