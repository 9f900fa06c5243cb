"""Phase 1 of ToPL: the threshold at which values are clipped, learned privately from the first users.

Reference: Wang et al., *Continuous release of data streams under both centralized and local differential privacy*, CCS
2021, section 5. Square wave: Li et al., SIGMOD 2020. Phase 2 is the mechanism `topl` (`topl.with_threshold`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, usable
from seqveil.core.mechanisms.base import full_tables
from seqveil.core.randomness import Randomness
from seqveil.evaluate.baselines.optimal_ldp import ldp_weights
from seqveil.evaluate.baselines.topl import BORDER

BINS = 1024
STEPS = 2000  # of expectation maximisation, at most


def square_wave_table(epsilon: float, bins: int = BINS) -> Floats:
    """Pr(bin of the report | bin of the value), (bins, bins): the square wave of a bin's centre.

    Width b = (εe^ε - e^ε + 1)/(e^ε(e^ε - 1 - ε)); density p = e^ε/(b·e^ε + 1) within ±b/2 of v, else p·e^-ε, for
    reports in [-b/2, 1 + b/2].
    """
    e = math.exp(epsilon)
    if epsilon < 1e-2:  # both differences cancel; their series: numerator ε²/2 + ε³/3, denominator ε²/2 + ε³/6
        width = (0.5 + epsilon / 3) / (e * (0.5 + epsilon / 6))
    else:
        width = (epsilon * e - e + 1.0) / (e * (e - 1.0 - epsilon))
    dense = e / (width * e + 1.0)
    centre = (np.arange(bins) + 0.5) / bins
    cuts = np.linspace(-width / 2, 1.0 + width / 2, bins + 1)
    size = (1.0 + width) / bins
    start = np.maximum(cuts[:-1], centre[:, None] - width / 2)
    end = np.minimum(cuts[1:], centre[:, None] + width / 2)
    inside = np.clip(end - start, 0.0, size)
    distribution = dense / e * size + dense * (1.0 - 1.0 / e) * inside
    return np.asarray(distribution / distribution.sum(1, keepdims=True))


def square_wave(values: ArrayLike, epsilon: float, randomness: Randomness, bins: int = BINS) -> Ints:
    """One report, a bin number, for each value in [0, 1].

    *Guarantee*: ε-LDP for each value; the integers drawn from are checked.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not ((numbers >= 0) & (numbers <= 1)).all():
        raise InputError(f"expected numbers in [0, 1], one a user, got an array of shape {numbers.shape}; scale them")
    weights = ldp_weights(square_wave_table(usable(epsilon, bins), bins), epsilon)
    checked = full_tables(weights[None]).made_sound(np.full((1, bins), 1.0 / bins), epsilon, epsilon)
    cumulative = np.cumsum(checked.extra[0], axis=1)
    place = np.minimum((numbers * bins).astype(np.int64), bins - 1)
    drawn = randomness.draw(numbers.size)
    return np.array([np.searchsorted(cumulative[x], c, "right") for x, c in zip(place, drawn, strict=True)], np.int64)


def estimate(reports: Ints, epsilon: float, bins: int = BINS) -> Floats:
    """The histogram of the values from their reports, by expectation maximisation.

    Stops when the distribution moves by less than 1/m in L1, or the log-likelihood by less than 1e-3, or after 2000
    steps.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> distribution = estimate(square_wave(np.full(9000, 0.25), 5.0, SeededRandomness(1), bins=64), 5.0, bins=64)
    >>> round(float(distribution @ (np.arange(64) + 0.5) / 64), 2)
    0.26
    """
    channel = square_wave_table(usable(epsilon, bins), bins)
    counts = np.bincount(reports, minlength=bins).astype(np.float64)
    distribution, likelihood = np.full(bins, 1.0 / bins), -math.inf
    for _ in range(STEPS):
        seen = distribution @ channel
        better = distribution * (channel @ (counts / seen))
        better /= better.sum()
        moved, now = np.abs(better - distribution).sum(), float(counts @ np.log(seen))
        settled = moved < 1.0 / max(1, len(reports)) or abs(now - likelihood) < 1e-3
        distribution, likelihood = better, now
        if settled:
            break
    return distribution


def threshold(
    values: ArrayLike, epsilon: float, randomness: Randomness, later: int | None = None, bins: int = BINS
) -> float:
    """θ for the `later` events to come (default: as many), from the first users' values in [0, 1], privately.

    θ minimises σ²θ²n/3 + (n²/24)(Σ_{v>θ} f(v)(v-θ))², noise against what clipping takes away, with σ² the worst
    variance of the hybrid mechanism and f the estimated histogram.

    *Guarantee*: ε-LDP for each of these users, who then release nothing else.

    >>> from seqveil.core.randomness import SeededRandomness
    >>> 0.1 < threshold(np.full(3000, 0.2), 2.0, SeededRandomness(3), later=1000, bins=64) < 0.4
    True
    """
    numbers = np.asarray(values, dtype=np.float64)
    distribution = estimate(square_wave(numbers, epsilon, randomness, bins), epsilon, bins)
    count = numbers.size if later is None else later
    centre = (np.arange(bins) + 0.5) / bins
    candidates = np.arange(1, bins + 1) / bins
    lost = np.maximum(centre[None, :] - candidates[:, None], 0.0) @ distribution
    noise = hybrid_variance(epsilon) * candidates**2 * count / 3.0
    return float(candidates[(noise + count**2 / 24.0 * lost**2).argmin()])


def hybrid_variance(epsilon: float) -> float:
    """The largest variance of the hybrid mechanism over t ∈ [-1, 1]; ICDE 2019, equation 8.

    >>> round(hybrid_variance(0.5), 4), round(hybrid_variance(2.0), 4)
    (16.6708, 1.0423)
    """
    if epsilon <= BORDER:
        return math.tanh(epsilon / 2) ** -2
    s = math.exp(epsilon / 2)
    return (s + 3.0) / (3.0 * s * (s - 1.0)) + math.tanh(epsilon / 2) ** -2 / s
