"""What no mechanism can pass: the best guess without a release, and a lower bound on the error of a single release."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from seqveil.core import filtering, mechanisms
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.evaluate import adversary
from seqveil.evaluate.comparison.arena import Arena, together
from seqveil.evaluate.comparison.contestants import Contestant
from seqveil.evaluate.comparison.row import Row, Tally, clustered
from seqveil.release.stream import State, step

BELIEFS = 300  # realised beliefs that the converse is averaged over
USERS = 200
WORK = 1 << 22  # entries of an array in the search for a rate
TABLE = 1 << 16  # entries of a distortion matrix up to which a rate–distortion function is computed
CONSTANT, CONVERSE = "best guess, no release", "converse, ε at each symbol"


def constant(arena: Arena, epsilon: float) -> Row:
    """The best guess from the chain alone, at each step: leaks nothing, costs nothing."""
    tally, model = Tally(), arena.model
    longest = max(len(codes) for codes in arena.streams)
    known = filtering.unseen(model, longest)
    guesses = arena.distortion.best_guess(known)
    for codes in arena.streams:
        place = adversary.ranks(known[: len(codes)], codes)
        sums = {f"without_{top}": np.array([(place < top).sum()]) for top in adversary.TOPS}
        wrong = arena.distortion.between(codes, guesses[: len(codes)]).sum()
        tally.add(np.array([len(codes)]), {"error": np.array([wrong]), **sums})
    error, half = tally.mean("error")
    rates = {name: value for name, value in tally.means().items() if name != "error"}
    row = _limit(CONSTANT, "constant", epsilon, error, half, tally.users, tally.events)
    quiet = {"lift_most": 0.0, "lift_least": 0.0, "ldp": 0.0, "leakage_most": 0.0, "leakage_least": 0.0}
    return replace(row, smoothed=error, smoothed_half=half, claimed=0.0, guesses=rates, lift_scope="kernels", **quiet)  # type: ignore[arg-type]


def _limit(label: str, name: str, epsilon: float, error: float, half: float | None, users: int, events: int) -> Row:
    errors = {"error": error, "error_half": half, "filtered": error, "filtered_half": half}
    return Row(label, name, epsilon, "limit", limit=True, users=users, events=events, **errors)  # type: ignore[arg-type]


def converse(arena: Arena, epsilon: float) -> Row:
    """No release of a single symbol that is sound at ε errs less than this, raw or filtered, at the beliefs it meets.

    D* ≥ e^-ε D_0 + (1 - e^-ε) D_RD(ln(1 + e^ε)), with D_0 the best constant's cost and D_RD the rate–distortion
    function of the belief, averaged over beliefs that an optimal release of the streams realised. Pulses and batches
    spend more at once and may pass below.

    Reference: docs/theory.md, section 12 (converse).
    """
    name = mechanisms.one_by_one(arena.model.n, arena.distortion, epsilon)
    met = Contestant("balanced" if name == "tree" else name)
    try:
        beliefs, users = _realised(arena, met, epsilon)
        bounds = single_release(beliefs, epsilon, arena.distortion)
    except InputError as refusal:
        return Row(CONVERSE, "converse", epsilon, "skipped", f"does not fit: {refusal}", limit=True)
    _, places, counts = np.unique(users, return_inverse=True, return_counts=True)
    error, half = clustered(np.bincount(places, bounds).astype(np.float64), counts.astype(np.float64))
    row = _limit(CONVERSE, "converse", epsilon, error, half, counts.size, bounds.size)
    return replace(row, claimed=epsilon, reason=f"at {bounds.size} beliefs that {met.mechanism} met")


def _realised(arena: Arena, contestant: Contestant, epsilon: float) -> tuple[Floats, Ints]:
    """Beliefs before releases, drawn evenly from all events of some streams, and whose they are."""
    streams, model, coins = arena.streams[:USERS], arena.model, SeededCoins(arena.seed)
    setting, draw = arena.setting(contestant, epsilon), np.random.default_rng(arena.seed)
    share = min(1.0, _sample(model.n, arena.distortion) / sum(len(codes) for codes in streams))
    beliefs, users = [], []
    for part in together(streams, max(model.size, model.n)):
        state, names = State.start(setting, len(part)), np.array(part)
        for t in range(len(streams[part[0]])):
            rows = np.array([k for k, user in enumerate(part) if len(streams[user]) > t])
            codes = np.array([streams[part[k]][t] for k in rows])
            made, state = state.move(rows, partial(step, setting, codes=codes, coins=coins))
            kept = draw.random(rows.size) < share
            beliefs.append(made.beliefs[kept])
            users.append(names[rows[kept]])
    found = np.concatenate(beliefs)
    # by chance none was taken: then the first event's stands for them
    return (found, np.concatenate(users)) if len(found) else (model.prior[None, :], np.zeros(1, np.int64))


def _sample(n: int, distortion: Distortion) -> int:
    """How many beliefs can be looked at without a wait."""
    return max(1, min(BELIEFS, WORK // (n if distortion.is_hamming else 4 * n * n)))


def single_release(beliefs: Floats, epsilon: float, distortion: Distortion) -> Floats:
    """The converse at each belief (B, n) → (B,).

    >>> from seqveil.core.distortion import hamming
    >>> single_release(np.array([[0.5, 0.5]]), 1.0, hamming()).round(4).tolist()
    [0.1839]
    """
    best = distortion.expected(beliefs).min(-1)
    told = rate_distortion(beliefs, math.log1p(math.exp(epsilon)), distortion)
    return np.asarray(math.exp(-epsilon) * best - math.expm1(-epsilon) * told)


def rate_distortion(beliefs: Floats, rate: float, distortion: Distortion) -> Floats:
    """Least expected cost of any description of at most `rate` nats of a symbol of law β, from below: (B, n) → (B,).

    Hamming has a closed form: at slope ln a the outputs get q(y) = max(0, β(y)/θ - a/(1-a)), θ fixed by Σq = 1, the
    cost is 1 - θ/(1-a) and the rate D ln a - Σ β(x) ln(a + (1-a) q(x)); a is found by bisection. Other costs take the
    Blahut–Arimoto iteration at several slopes s, each stopped early: for any q, with Z(x) = Σ q(y) e^{-sD(x,y)} and
    c(y) = Σ β(x) e^{-sD(x,y)} / Z(x), the cost is at least (-Σ β ln Z - ln max c - rate) / s.

    >>> from seqveil.core.distortion import hamming
    >>> float(rate_distortion(np.array([[0.5, 0.5]]), np.log(2) - 0.5623351446188083, hamming()).round(6)[0])
    0.25

    Reference: Blahut, Computation of channel capacity and rate–distortion functions, 1972; Erokhin, ε-entropy of a
    discrete random variable, 1958.
    """
    if distortion.is_hamming:
        return _hamming(beliefs, rate)
    n = beliefs.shape[1]
    if n * n > TABLE:
        raise InputError(
            f"the rate–distortion function of {distortion.name} costs over {n} symbols takes too long; at most "
            f"{math.isqrt(TABLE)}"
        )
    return _blahut(beliefs, rate, distortion.matrix(n))


def _hamming(beliefs: Floats, rate: float) -> Floats:
    ordered = -np.sort(-beliefs / beliefs.sum(1, keepdims=True), axis=1)
    mass, count = np.cumsum(ordered, axis=1), np.arange(1, ordered.shape[1] + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.cumsum(np.where(ordered > 0, ordered * np.log(ordered), 0.0), axis=1)
    low, high = np.full(len(ordered), -700.0), np.zeros(len(ordered))  # ln a
    for _ in range(60):
        middle = 0.5 * (low + high)
        spent, _ = _at_slope(ordered, mass, logs, count, middle)
        low, high = np.where(spent > rate, middle, low), np.where(spent > rate, high, middle)
    spent, cost = _at_slope(ordered, mass, logs, count, low)  # the side that spends more: a bound from below
    return np.where(spent > rate, np.maximum(cost, 0.0), 0.0)


def _at_slope(ordered: Floats, mass: Floats, logs: Floats, count: Ints, slope: Floats) -> tuple[Floats, Floats]:
    """Rate and cost of the optimum at slope ln a, one for each row of sorted laws."""
    ratio = np.exp(slope) / -np.expm1(slope)  # a / (1 - a)
    theta = mass / (1.0 + count * ratio[:, None])
    used = np.maximum((ordered > theta * ratio[:, None]).sum(1), 1) - 1
    rows = np.arange(len(ordered))
    held, theta_used = mass[rows, used], theta[rows, used]
    cost = 1.0 + theta_used / np.expm1(slope)
    told = logs[rows, used] + held * (np.log(-np.expm1(slope)) - np.log(theta_used))
    rate = cost * slope - told - np.maximum(1.0 - held, 0.0) * slope
    return rate, cost


def _blahut(beliefs: Floats, rate: float, costs: Floats) -> Floats:
    scale = (beliefs @ costs).min(1)
    found = np.zeros(len(beliefs))
    for steepness in np.geomspace(0.25, 400.0, 24):
        slope = steepness / np.maximum(scale, 1e-300)
        decay = np.exp(-slope[:, None, None] * costs)  # (B, x, y)
        outputs = np.full(beliefs.shape, 1.0 / beliefs.shape[1])
        for _ in range(40):
            outputs = outputs * _gain(beliefs, decay, outputs)[1]
        reach, gain = _gain(beliefs, decay, outputs)
        found = np.maximum(found, (-(beliefs * np.log(reach)).sum(1) - np.log(gain.max(1)) - rate) / slope)
    return np.where(scale > 0, found, 0.0)


def _gain(beliefs: Floats, decay: Floats, outputs: Floats) -> tuple[Floats, Floats]:
    """Z(x) and c(y) of a Blahut–Arimoto step."""
    reach = np.maximum((decay @ outputs[:, :, None])[:, :, 0], 1e-300)
    return reach, ((beliefs / reach)[:, None, :] @ decay)[:, 0, :]
