"""ToPL: numeric events clipped at a threshold learned from some users, then the hybrid mechanism; as a kernel.

It was made for sums over many people: **each event is taken to be another person's**, so one user's T events cost T·ε.
Symbols are mapped to numbers: a distortion with positions gives each symbol its coordinates, scaled to [0, 1] an axis;
Hamming and a bare matrix have none, so there a symbol's number is its code, which means little for categories. With d
axes each gets ε/d. The unbiased output, which may lie far outside [0, θ], is clipped to it and rounded to the nearest
symbol: post-processing, which costs nothing in privacy, but loses a decoder a little of what the real number disclosed.

Reference: Wang, Chen, Zhang, Su, Cheng, Li, Li, Jha, *Continuous release of data streams under both centralized and
local differential privacy*, CCS 2021, section 5. Hybrid: Wang et al., *Collecting and analyzing multidimensional data
with local differential privacy*, ICDE 2019. Square wave: Li et al., SIGMOD 2020.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, to_weights, usable
from seqveil.core.mechanisms import Mechanism
from seqveil.core.randomness import Randomness

MOST = 2048  # symbols; a table has a row and a column for each
CELLS = MOST * MOST  # symbols × rounding cells
BINS = 1024
STEPS = 2000  # of expectation maximisation, at most
BORDER = 0.61  # below this ε the hybrid mechanism is Duchi's alone


def full_tables(weights: Ints) -> Kernels:
    """Kernels that may release any symbol, by the weights (B, n, n) of all symbols for each true one."""
    users, n, _ = weights.shape
    outputs = np.broadcast_to(np.arange(n), (users, n))
    return Kernels(n, outputs, np.zeros((users, n), np.int64), weights)


def build(beliefs: Floats, epsilon: float, distortion: Distortion, theta: float = 1.0) -> Kernels:
    """Clip at θ, scale to t ∈ [-1, 1], draw from the hybrid, undo, clip to [0, θ], round to the nearest symbol.

    With s = e^{ε/2} and C = (s+1)/(s-1): with probability 1 - e^{-ε/2} (0 where ε ≤ .61) Piecewise, which is uniform on
    [l, l+C-1], l = (C+1)t/2 - (C-1)/2, with probability s/(s+1), else uniform on the rest of [-C, C]; otherwise Duchi,
    ±(e^ε+1)/(e^ε-1) with mean t. The kernel integrates this distribution over the rounding cells, exactly; the belief
    is not used.

    *Guarantee*: ε-LDP for each event, whatever the model is, hence ε-SIP for every belief (docs/theory.md, section 3).

    >>> from seqveil.core.distortion import absolute
    >>> kernel = MECHANISM.kernels(np.full((1, 3), 1 / 3), 2.0, absolute([0, 5, 10])).one(0)
    >>> kernel.probabilities.round(3).tolist()
    [[0.813, 0.054, 0.133], [0.301, 0.397, 0.301], [0.133, 0.054, 0.813]]

    Reference: CCS 2021, section 5 (see the module).
    """
    users, n = beliefs.shape
    key = None if distortion.points is None else np.ascontiguousarray(distortion.points)
    weights = _weights(n, epsilon, theta, None if key is None else (key.shape, key.tobytes()))
    return full_tables(np.broadcast_to(weights, (users, n, n)))


@lru_cache(maxsize=8)
def _weights(n: int, epsilon: float, theta: float, key: tuple[tuple[int, ...], bytes] | None) -> Ints:
    """The integer table (n, n); it depends on nothing that a release changes, so it is kept."""
    points = np.arange(n, dtype=np.float64) if key is None else np.frombuffer(key[1], np.float64).reshape(key[0])
    weights = ldp_weights(table(points, usable(epsilon, n), theta), epsilon)
    weights.flags.writeable = False
    return weights


def ldp_weights(table: Floats, epsilon: float) -> Ints:
    """Integers of a table that is LDP at usable(ε), for which they stay within ε; columns too thin are merged away.

    A weight of w units rounds by one part in w. Columns whose least weight could not bear that are added to the
    column before (the first: after), which is post-processing, and are left without weight.
    """
    aim = 1e-11 + 4.0 * math.exp(2 * epsilon) / DENOMINATOR
    thin = table.min(0) < 2.0 / (DENOMINATOR * aim)
    kept = np.flatnonzero(~thin)
    if thin.any():
        heir = kept[np.maximum(np.searchsorted(kept, np.arange(thin.size), side="right") - 1, 0)]
        merged = np.zeros_like(table)
        np.add.at(merged.T, heir, table.T)
        table = merged
    return to_weights(table / table.sum(1, keepdims=True))


def table(points: Floats, epsilon: float, theta: float = 1.0) -> Floats:
    """Q(y|x) for symbols at these points (n,) or (n, d): a product over axes at ε/d, rounded to the nearest symbol."""
    places = points.reshape(len(points), -1)
    n, axes = places.shape
    coordinates = [np.unique(places[:, axis], return_inverse=True) for axis in range(axes)]
    cells = math.prod(len(values) for values, _ in coordinates)
    if n > MOST or n * cells > CELLS:
        raise InputError(
            f"a ToPL table takes at most {MOST} symbols and {CELLS} symbols × cells, got {n} × {cells}; draw each axis "
            'by its own `axis_table`, or use mechanism="tree"'
        )
    joint = np.ones((n, 1))
    for values, place in coordinates:
        one = axis_table(values, epsilon / axes, theta)[place.reshape(-1)]
        joint = (joint[:, :, None] * one[:, None, :]).reshape(n, -1)
    nearest = _nearest(places, [values for values, _ in coordinates])
    out = np.zeros((n, n))
    np.add.at(out.T, nearest, joint.T)
    return out


def _nearest(places: Floats, coordinates: list[Floats]) -> Ints:
    """The symbol nearest to each cell of the product of the axes, the lowest code among equals."""
    mesh = np.stack(np.meshgrid(*coordinates, indexing="ij"), axis=-1).reshape(-1, places.shape[1])
    found = np.empty(len(mesh), np.int64)
    for at in range(0, len(mesh), 512):
        part = mesh[at : at + 512]
        found[at : at + 512] = ((part[:, None, :] - places[None]) ** 2).sum(2).argmin(1)
    return found


def axis_table(values: Floats, epsilon: float, theta: float = 1.0) -> Floats:
    """Q over the distinct sorted values of one axis, (k, k): the hybrid of each, integrated over rounding cells.

    *Guarantee*: every column's entries lie within a factor e^ε, up to rounding.
    """
    if len(values) == 1:
        return np.ones((1, 1))
    position = (values - values[0]) / (values[-1] - values[0])
    truth = 2.0 * np.minimum(position, theta) / theta - 1.0
    edges = 0.5 * (position[1:] + position[:-1])
    edges = edges[edges < theta]
    borders = 2.0 * edges / theta - 1.0  # of the cells, as t; what lies beyond θ is clipped into the last one
    s = math.exp(epsilon / 2)
    use = 0.0 if epsilon <= BORDER else -math.expm1(-epsilon / 2)
    out = np.zeros((len(values), len(values)))
    if use:
        out[:, : len(borders) + 1] = use * _piecewise(truth, borders, s)
    up = 0.5 + 0.5 * truth * math.tanh(epsilon / 2)
    out[:, 0] += (1.0 - use) * (1.0 - up)
    out[:, len(borders)] += (1.0 - use) * up
    return out


def _piecewise(truth: Floats, borders: Floats, s: float) -> Floats:
    """Mass of Piecewise in each cell between borders within [-C, C]."""
    reach = (s + 1.0) / (s - 1.0)
    left = 0.5 * (reach + 1.0) * truth - 0.5 * (reach - 1.0)
    cuts = np.concatenate([[-reach], borders, [reach]])
    width = np.diff(cuts)
    rare, dense = 1.0 / ((s + 1.0) * (reach + 1.0)), s / ((s + 1.0) * (reach - 1.0))
    start = np.maximum(cuts[:-1], left[:, None])
    end = np.minimum(cuts[1:], left[:, None] + reach - 1.0)
    inside = np.clip(end - start, 0.0, width)
    return np.asarray(rare * width + (dense - rare) * inside)


def with_threshold(theta: float) -> Mechanism:
    """ToPL that clips at θ ∈ (0, 1], as phase 1 found it; the registered mechanism does not clip."""
    if not 0.0 < theta <= 1.0:
        raise InputError(f"expected a threshold in (0, 1], a share of the range of values, got {theta}")
    return Mechanism(**{**vars(MECHANISM), "build": partial(build, theta=float(theta))})


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


MECHANISM = Mechanism(
    name="topl",
    summary="hybrid mechanism on the symbol's position, rounded to a symbol",
    guarantee="ε-LDP, hence ε-SIP for every model",
    trusts="nothing",
    sound=True,
    ldp=1.0,
    build=build,
)
