"""The paper's Example 1 in closed form: two binary symbols behind a symmetric channel, and the noise they get.

X1 is 1 with probability P; X2 differs from X1 with probability φ. Each is released by Algorithm 1 (`crr`) or by the
exact sound optimum, the second one given the first release. N_k = 1 where release k is wrong. With a = e^-ε1, c = e^-ε2
and b_y = Pr(X2=1 | Y1=y) = φ + (1-2φ)(a·P + (1-a)·y), the published mechanism has

    Pr(N1=1) = 2aP(1-P),   Pr(N2=1) = Σ_y Pr(Y1=y)·2c·b_y(1-b_y),   Pr(Y1=1) = P,
    Pr(N1=N2=1) = aP(1-P) Σ_y c·[Pr(X2=1|X1=1-y)(1-b_y) + Pr(X2=0|X1=1-y)·b_y].

The correlation divides by σ_N = √(Pr(N=1)Pr(N=0)); the paper prints it without the root, which is no correlation.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from seqveil.core.mechanisms import get

Table = np.ndarray  # (2, 2): row the truth, column the release
Numbers = dict[str, Any]
BISECTIONS = 60


def closed_form(prior: float, phi: float, first: float, second: float) -> Numbers:
    """Noise of the published mechanism by the formulas above."""
    a, c = math.exp(-first), math.exp(-second)
    ahead = [phi + (1 - 2 * phi) * (a * prior + (1 - a) * y) for y in (0, 1)]
    marginal = [1 - prior, prior]
    flip_one = 2 * a * prior * (1 - prior)
    flip_two = sum(marginal[y] * 2 * c * ahead[y] * (1 - ahead[y]) for y in (0, 1))
    both = 0.0
    for y in (0, 1):
        to_one = phi if y == 1 else 1 - phi  # Pr(X2 = 1 | X1 = 1 - y)
        both += a * prior * (1 - prior) * c * (to_one * (1 - ahead[y]) + (1 - to_one) * ahead[y])
    return _noise(flip_one, flip_two, both)


def by_enumeration(prior: float, phi: float, first: float, second: float, mechanism: str) -> Numbers:
    """The same for any mechanism, summed over all sixteen outcomes, and the true leakage of each release."""
    one = kernel([1 - prior, prior], first, mechanism)
    belief = np.array([1 - prior, prior])
    flip_one = flip_two = both = 0.0
    second_leaks = 0.0
    for y1 in (0, 1):
        joint = belief * one[:, y1]
        if joint.sum() <= 0:
            continue
        ahead = (joint / joint.sum()) @ _channel(phi)
        two = kernel(ahead, second, mechanism)
        second_leaks = max(second_leaks, leakage(two, ahead))
        for x1, x2, y2 in itertools.product((0, 1), repeat=3):
            chance = joint[x1] * _channel(phi)[x1, x2] * two[x2, y2]
            flip_one += chance * (x1 != y1)
            flip_two += chance * (x2 != y2)
            both += chance * (x1 != y1 and x2 != y2)
    found = _noise(flip_one, flip_two, both)
    return found | {"leakage_1": leakage(one, belief), "leakage_2": second_leaks}


def correlation(prior: float, phi: float) -> float:
    """ρ(X1, X2): the paper's equation, 0 where a symbol is certain."""
    second = prior * (1 - phi) + (1 - prior) * phi
    spread = math.sqrt(prior * (1 - prior) * second * (1 - second))
    return (1 - 2 * phi) * prior * (1 - prior) / spread if spread > 0 else 0.0


def kernel(belief: Any, epsilon: float, mechanism: str) -> Table:
    """Q(y|x) of one binary symbol, as a full 2 × 2 table."""
    distribution = np.clip(np.asarray(belief, dtype=np.float64), 0.0, 1.0)
    made = get(mechanism).kernels((distribution / distribution.sum())[None], epsilon).one(0)
    table = np.zeros((2, 2))
    table[:, made.codes] = made.probabilities
    return table


def leakage(table: Table, belief: Any) -> float:
    """True leakage of one release: max |log lift| over what can occur."""
    marginal = np.asarray(belief) @ table
    lifts = [table[x, y] / marginal[y] for x in (0, 1) for y in (0, 1) if belief[x] > 0 and marginal[y] > 0]
    return max((abs(math.log(lift)) if lift > 0 else math.inf) for lift in lifts)


def designs(prior: float, phi: float, first: float, noise: float, mechanism: str) -> Numbers:
    """Least total leakage of (X1, X2) where the second release may be wrong with probability `noise` at most.

    The first release is the mechanism's at ε1. *Correlated*: the second kernel may depend on Y1, and minimises
    max |log Pr(x1,x2|y1,y2)/Pr(x1,x2)|. *Independent*: one kernel for X2, which minimises the leakage of X2 alone under
    its own distribution, as if Y1 did not exist; its total leakage is then what it is. Both by bisection over the
    leakage, the least noise at a given leakage being a linear program in two variables, solved at its vertices.
    """
    one, belief = kernel([1 - prior, prior], first, mechanism), np.array([1 - prior, prior])
    channel, seen = _channel(phi), belief @ one
    own = belief @ channel
    alone = _bisect(lambda bound: least_noise(own, _bounds(bound, np.ones((2, 1))))[0] - noise)
    independent = least_noise(own, _bounds(alone, np.ones((2, 1))))[1]

    outcomes = [y for y in (0, 1) if seen[y] > 0]
    lifts = {y: one[:, y] / seen[y] for y in outcomes}
    ahead = {y: (belief * lifts[y]) @ channel for y in outcomes}

    def spare(bound: float) -> float:
        needed = [seen[y] * least_noise(ahead[y], _pair_bounds(bound, lifts[y], belief, channel))[0] for y in outcomes]
        return sum(needed) - noise

    total = _bisect(spare)
    apart = max(_total(independent, lifts[y], ahead[y], belief, channel) for y in outcomes)
    return {"correlated": total, "independent": apart, "leakage_of_x2_alone": alone}


def least_noise(belief: np.ndarray, bounds: list[tuple[int, float, float]]) -> tuple[float, Table]:
    """min β0·s + β1·t for Q(1|0) = s, Q(0|1) = t in [0,1] with A ≤ Q(y|x)/p(y) ≤ B for each (x, A, B); at a vertex.

    inf and a useless table where nothing fits.
    """
    rows, limits = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [1.0, 0.0, 1.0, 0.0]
    for x, low, high in bounds:
        for y in (0, 1):
            # Q(y|x) and p(y) as w·(s, t) + w0
            chance, base = _entry(x, y)
            mean = belief[0] * np.array(_entry(0, y)[0]) + belief[1] * np.array(_entry(1, y)[0])
            mean_base = belief[0] * _entry(0, y)[1] + belief[1] * _entry(1, y)[1]
            rows += [list(low * mean - chance), list(np.array(chance) - high * mean)]
            limits += [base - low * mean_base, high * mean_base - base]
    a, b = np.array(rows), np.array(limits)
    first, second = np.triu_indices(len(a), 1)
    det = a[first, 0] * a[second, 1] - a[first, 1] * a[second, 0]
    usable = np.abs(det) > 1e-12
    first, second, det = first[usable], second[usable], det[usable]
    s = (b[first] * a[second, 1] - a[first, 1] * b[second]) / det
    t = (a[first, 0] * b[second] - b[first] * a[second, 0]) / det
    fits = (a @ np.stack([s, t]) <= b[:, None] + 1e-12).all(0)
    if not fits.any():
        return math.inf, np.full((2, 2), math.nan)
    cost = np.where(fits, belief[0] * s + belief[1] * t, math.inf)
    best = int(cost.argmin())
    return float(cost[best]), np.array([[1 - s[best], s[best]], [t[best], 1 - t[best]]])


def sweep(prior: float, epsilon: float, noises: tuple[float, ...], steps: int) -> Numbers:
    """Every curve of the figure against φ, as lists."""
    phis = [k / steps for k in range(steps + 1)]
    published = [closed_form(prior, phi, epsilon, epsilon) for phi in phis]
    out: Numbers = {"phi": phis, "correlation_x": [correlation(prior, phi) for phi in phis]}
    out["crr"] = _columns([by_enumeration(prior, phi, epsilon, epsilon, "crr") for phi in phis])
    out["optimal"] = _columns([by_enumeration(prior, phi, epsilon, epsilon, "optimal") for phi in phis])
    out["closed_form_gap"] = max(
        abs(p[key] - out["crr"][key][k]) for k, p in enumerate(published) for key in ("noise_2", "correlation", "both")
    )
    inner = phis[2:-1:2]  # at φ = 0 and 1 two of the four pairs cannot occur, and the maximum is over fewer
    out["phi_designs"], out["correlation_designs"] = inner, [correlation(prior, phi) for phi in inner]
    for name in ("crr", "optimal"):
        runs = {f"{noise:g}": [designs(prior, phi, epsilon, noise, name) for phi in inner] for noise in noises}
        out[name]["designs"] = {noise: _columns(found) for noise, found in runs.items()}
    return out


def _noise(flip_one: float, flip_two: float, both: float) -> Numbers:
    spread = flip_one * (1 - flip_one) * flip_two * (1 - flip_two)
    cover = both - flip_one * flip_two
    if abs(cover) < 1e-15:
        cover = 0.0
    table = [[1 - flip_one - flip_two + both, flip_two - both], [flip_one - both, both]]
    sides = [1 - flip_one, flip_one], [1 - flip_two, flip_two]
    shared = sum(
        table[i][j] * math.log2(table[i][j] / (sides[0][i] * sides[1][j]))
        for i, j in itertools.product((0, 1), repeat=2)
        if table[i][j] > 0 and sides[0][i] * sides[1][j] > 0
    )
    return {
        "noise_1": flip_one,
        "noise_2": flip_two,
        "both": both,
        "correlation": cover / math.sqrt(spread) if spread > 0 else 0.0,
        "as_printed": cover / spread if spread > 0 else 0.0,
        "mutual_information": max(0.0, shared),
    }


def _channel(phi: float) -> np.ndarray:
    return np.array([[1 - phi, phi], [phi, 1 - phi]])


def _entry(x: int, y: int) -> tuple[tuple[float, float], float]:
    """Q(y|x) as w·(s, t) + w0, where s = Q(1|0) and t = Q(0|1)."""
    sign = 1.0 if x != y else -1.0
    return ((sign, 0.0) if x == 0 else (0.0, sign)), (0.0 if x != y else 1.0)


def _bounds(bound: float, lifts: np.ndarray) -> list[tuple[int, float, float]]:
    """A and B of each x2 where the total lift of every pair must stay within e^±bound; lifts[x2] are of its x1."""
    return [(x, math.exp(-bound) / min(row), math.exp(bound) / max(row)) for x, row in enumerate(lifts)]


def _pair_bounds(bound: float, lift: np.ndarray, belief: np.ndarray, channel: np.ndarray) -> list[Any]:
    possible = [[lift[x1] for x1 in (0, 1) if belief[x1] * channel[x1, x2] > 0] for x2 in (0, 1)]
    return [(x2, math.exp(-bound) / min(row), math.exp(bound) / max(row)) for x2, row in enumerate(possible) if row]


def _total(table: Table, lift: np.ndarray, ahead: np.ndarray, belief: np.ndarray, channel: np.ndarray) -> float:
    """Leakage of the pair when the second kernel is `table` after a first release with these lifts."""
    marginal, most = ahead @ table, 0.0
    for x1, x2, y2 in itertools.product((0, 1), repeat=3):
        if belief[x1] * channel[x1, x2] > 0 and marginal[y2] > 0:
            value = lift[x1] * table[x2, y2] / marginal[y2]
            most = max(most, abs(math.log(value)) if value > 0 else math.inf)
    return most


def _bisect(excess: Any) -> float:
    """The least bound in [0, 40] at which excess(bound) ≤ 0; excess falls."""
    low, high = 0.0, 40.0
    if excess(low) <= 0:
        return 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return high


def _columns(rows: list[Numbers]) -> Numbers:
    return {key: [row[key] for row in rows] for key in rows[0]}
