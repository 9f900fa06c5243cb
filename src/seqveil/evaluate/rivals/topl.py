"""ToPL and ToPS: two ways, local and central, to publish numbers clipped at a threshold that is learned first.

**ToPL** clips numeric events at a threshold learned from some users, then takes the hybrid mechanism; as a kernel. It
was made for sums over many people: **each event is taken to be another person's**, so one user's T events cost T·ε.
Symbols are mapped to numbers: a distortion with positions gives each symbol its coordinates, scaled to [0, 1] an axis;
Hamming and a bare matrix have none, so there a symbol's number is its code, which means little for categories. With d
axes each gets ε/d. The unbiased output, which may lie far outside [0, θ], is clipped to it and rounded to the nearest
symbol: post-processing, which costs nothing in privacy, but loses a decoder a little of what the real number told.

**ToPS** is central: a trusted curator holds everyone's numbers, finds a threshold by noisy max and publishes noisy sums
over time, by a noisy tree. Correlation between events is not considered. It answers range sums, not single values, and
is here to be compared with on its own task; it is therefore not in the registry.

Reference: Wang, Chen, Zhang, Su, Cheng, Li, Li, Jha, *Continuous release of data streams under both centralized and
local differential privacy*, CCS 2021, sections 5 (ToPL) and 4 (ToPS). Hybrid: Wang et al., *Collecting and analyzing
multidimensional data with local differential privacy*, ICDE 2019. Square wave: Li et al., SIGMOD 2020. Tree: Hay,
Rastogi, Miklau, Suciu, *Boosting the accuracy of differentially private histograms through consistency*, VLDB 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.coins import BITS, Coins
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints, Kernels, usable
from seqveil.core.mechanisms import Mechanism, check_epsilon
from seqveil.core.mechanisms.base import full_tables
from seqveil.evaluate.rivals.markov_quilt import discrete_laplace
from seqveil.evaluate.rivals.optimal_ldp import ldp_weights

MOST = 2048  # symbols; a table has a row and a column for each
CELLS = MOST * MOST  # symbols × rounding cells
BINS = 1024
STEPS = 2000  # of expectation maximisation, at most
FANOUT = 16  # of the tree of ToPS
BORDER = 0.61  # below this ε the hybrid mechanism is Duchi's alone


def build(beliefs: Floats, epsilon: float, distortion: Distortion, theta: float = 1.0) -> Kernels:
    """Clip at θ, scale to t ∈ [-1, 1], draw from the hybrid law, undo, clip to [0, θ], round to the nearest symbol.

    With s = e^{ε/2} and C = (s+1)/(s-1): with probability 1 - e^{-ε/2} (0 where ε ≤ .61) Piecewise, which is uniform on
    [l, l+C-1], l = (C+1)t/2 - (C-1)/2, with probability s/(s+1), else uniform on the rest of [-C, C]; otherwise Duchi,
    ±(e^ε+1)/(e^ε-1) with mean t. The kernel integrates this law over the rounding cells, exactly; the belief is not
    used.

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
    """Q over the distinct sorted values of one axis, (k, k): the hybrid law of each, integrated over rounding cells.

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
    law = dense / e * size + dense * (1.0 - 1.0 / e) * inside
    return np.asarray(law / law.sum(1, keepdims=True))


def square_wave(values: ArrayLike, epsilon: float, coins: Coins, bins: int = BINS) -> Ints:
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
    drawn = coins.draw(numbers.size)
    return np.array([np.searchsorted(cumulative[x], c, "right") for x, c in zip(place, drawn, strict=True)], np.int64)


def estimate(reports: Ints, epsilon: float, bins: int = BINS) -> Floats:
    """The histogram of the values from their reports, by expectation maximisation.

    Stops when the law moves by less than 1/m in L1, or the log-likelihood by less than 1e-3, or after 2000 steps.

    >>> from seqveil.core.coins import SeededCoins
    >>> law = estimate(square_wave(np.full(9000, 0.25), 5.0, SeededCoins(1), bins=64), 5.0, bins=64)
    >>> round(float(law @ (np.arange(64) + 0.5) / 64), 2)
    0.26
    """
    channel = square_wave_table(usable(epsilon, bins), bins)
    counts = np.bincount(reports, minlength=bins).astype(np.float64)
    law, likelihood = np.full(bins, 1.0 / bins), -math.inf
    for _ in range(STEPS):
        seen = law @ channel
        better = law * (channel @ (counts / seen))
        better /= better.sum()
        moved, now = np.abs(better - law).sum(), float(counts @ np.log(seen))
        settled = moved < 1.0 / max(1, len(reports)) or abs(now - likelihood) < 1e-3
        law, likelihood = better, now
        if settled:
            break
    return law


def threshold(values: ArrayLike, epsilon: float, coins: Coins, later: int | None = None, bins: int = BINS) -> float:
    """θ for the `later` events to come (default: as many), from the first users' values in [0, 1], privately.

    θ minimises σ²θ²n/3 + (n²/24)(Σ_{v>θ} f(v)(v-θ))², noise against what clipping takes away, with σ² the worst
    variance of the hybrid mechanism and f the estimated histogram.

    *Guarantee*: ε-LDP for each of these users, who then release nothing else.

    >>> from seqveil.core.coins import SeededCoins
    >>> 0.1 < threshold(np.full(3000, 0.2), 2.0, SeededCoins(3), later=1000, bins=64) < 0.4
    True
    """
    numbers = np.asarray(values, dtype=np.float64)
    law = estimate(square_wave(numbers, epsilon, coins, bins), epsilon, bins)
    count = numbers.size if later is None else later
    centre = (np.arange(bins) + 0.5) / bins
    candidates = np.arange(1, bins + 1) / bins
    lost = np.maximum(centre[None, :] - candidates[:, None], 0.0) @ law
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


def central_threshold(
    values: ArrayLike, epsilon: float, coins: Coins, later: int, largest: int, sums_epsilon: float | None = None
) -> int:
    """θ in 1..largest for the `later` events to come, from the first m values (whole numbers), by noisy max.

        score(θ) = -#{x > θ} - θ·(3m/(60n))·√(30 h³/ε²),   n = later, h = depth(n), ε = `sums_epsilon`

    *Guarantee*: ε-DP for each of the m events. Replacing one value moves every score the same way by at most one, so
    exponential noise of mean 1/ε is enough (drawn from 62-bit coins).

    >>> from seqveil.core.coins import SeededCoins
    >>> central_threshold([3] * 990 + [500] * 10, 1.0, SeededCoins(1), later=100_000, largest=1000) < 30
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


def central_sums(values: ArrayLike, theta: int, epsilon: float, coins: Coins, block: int = FANOUT) -> Sums:
    """Sums over time of whole numbers truncated to 0..θ: a 16-ary tree over blocks, with noise θh/ε on each node.

    Inside a block the smoother "recent" stands in for the lowest levels: each event counts as the mean of the block
    before (θ/2 in the first), and the last event makes up the block's noisy sum.

    *Guarantee*: ε-DP for each event: it is in h nodes, one a level, by at most θ. What follows is post-processing.

    >>> from seqveil.core.coins import SeededCoins
    >>> made = central_sums([2] * 64, 4, 10.0, SeededCoins(1))
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


MECHANISM = Mechanism(
    name="topl",
    summary="hybrid mechanism on the symbol's position, rounded to a symbol",
    guarantee="ε-LDP, hence ε-SIP for every model",
    trusts="nothing",
    cost="O(n²) once, O(n²) to check; at most 2048 symbols",
    reference="Wang et al. 2021",
    sound=True,
    ldp=1.0,
    build=build,
    wide=True,
)
