"""Figure 8: how often a recurrent network names the person behind a window of released gaze, ε = 10 a second.

Trained on one half of everybody's released recordings and tried on the other half, with the releases only, and with
what the public chain makes of them. A window is twelve seconds of one recording, and a person is named from all of its
windows together: up to 40 a half, eight minutes. Each recording is released once; the networks differ in their seed
and in which half they learn from, and the intervals are over them; mechanisms are compared person by person, and
intervals hold for all comparisons of a sentence together. The grid is 18 × 18, not 100 × 100, to save time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from experiments import observed, people, reidentify
from experiments.claims import judge
from experiments.context import Context
from experiments.observed import Seen
from experiments.people import Crowd, Sizes
from experiments.reidentify import Network
from seqveil import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.evaluate.baselines.temporal import Quantifier, stationary

TITLE = "Re-identification from released gaze, ε = 10 a second"
NEEDS = ("gaze_vr",)
SIZE = (12, 5.6)
PER_SECOND, FRAMES = 10.0, 25
EACH = PER_SECOND / FRAMES
ADVERSARIES = ("data", "table")
RAW, RESPONSE, RESTRICTED, PUBLISHED = "raw", "RR-LDP", "temporal LDP, published", "instantaneous, published"
TEMPORAL, SINGLE = "temporal LDP, sound", "instantaneous, sound"
BATCHED = {f"batches of {w}, sound": w for w in (25,)}
BLOCKS = f"blocks of {FRAMES}, sound"
NAMES = (RAW, RESPONSE, RESTRICTED, PUBLISHED, SINGLE, *BATCHED, BLOCKS)
SOUND = (SINGLE, *BATCHED, BLOCKS)
MISS = 0.05  # how often a sentence's intervals may be wrong, all of them together
NOTES = {
    TEMPORAL: f"is {RESPONSE}: no other ε can be promised, see `temporal`",
    RESTRICTED: "draws from the followers of the true previous symbol, for either order of the chain",
}
Rates = dict[str, Any]
NONE_AGAINST = " 0 against"  # in what `decided` says


def sizes(context: Context) -> Sizes:
    if context.quick:
        return Sizes(side=18, people=4, recordings=5, samples=50, skip=0, window=50)
    return Sizes(side=18, people=45, recordings=40, samples=300, skip=25, window=300)


def network(context: Context) -> tuple[Network, int]:
    """The network, and how many of them are trained for a rate."""
    return (Network(hidden=16), 3) if context.quick else (Network(), 6)


def run(context: Context) -> dict[str, Any]:
    if not reidentify.available():
        return {"name": "fig8", "title": TITLE, "numbers": {"skipped": reidentify.NEEDED}, "claims": []}
    size = sizes(context)
    gathered = cache(lambda: people.crowd(context, size))  # read once, and only if some part is not finished
    fitted = cache(lambda order: gathered().model(order))
    numbers: dict[str, Any] = {
        "data": people.describe(size),
        "chance": 1.0 / size.people,
        "temporal": context.part("temporal", lambda: allowed(fitted(1))),
        "notes": NOTES,
        "orders": {},
    }
    for order in (1, 2):
        numbers["orders"][str(order)] = {
            name: context.part(
                f"order{order}.{name}", lambda o=order, n=name: attacked(context, gathered(), fitted, o, n)
            )
            for name in NAMES
        }
    return {"name": "fig8", "title": TITLE, "numbers": numbers, "claims": claims(numbers)}


def attacked(context: Context, crowd: Crowd, fitted: Callable[[int], MarkovModel], order: int, name: str) -> Rates:
    """Rates of both adversaries against one mechanism."""
    seen = observe(context, crowd, fitted, order, name)
    error = float(crowd.distortion.between(crowd.codes, seen.codes).mean())
    found: Rates = {"error": error}
    for adversary in ADVERSARIES:
        windows = observed.features(seen, fitted(order), adversary == "table", crowd.window, pool=5)
        found[adversary] = identified(context, windows, crowd)
    return found


def observe(context: Context, crowd: Crowd, fitted: Callable[[int], MarkovModel], order: int, name: str) -> Seen:
    model, truth, seed = fitted(order), crowd.codes, context.seed
    if name == RAW:
        return observed.plainly(model, truth)
    if name == RESTRICTED:
        return observed.restricted(fitted(1), model, truth, EACH, seed)
    if name in (RESPONSE, PUBLISHED):
        mechanism = "randomized_response" if name == RESPONSE else "crr"
        return observed.one_by_one(
            Policy(epsilon=EACH, mechanism=mechanism, distortion=crowd.distortion).on(model), truth, seed
        )
    workers = 1 if context.quick else os.cpu_count() or 1
    if name == BLOCKS:
        setting = Policy(epsilon=EACH * FRAMES, block=FRAMES, distortion=crowd.distortion).on(model)
        return observed.in_blocks(setting, truth, seed, workers)
    size = BATCHED.get(name, 1)
    setting = Policy(epsilon=EACH * size, batch=size, mechanism="tree", distortion=crowd.distortion).on(model)
    return observed.in_batches(setting, truth, seed, workers)


def identified(context: Context, windows: np.ndarray, crowd: Crowd) -> Rates:
    """Rates of windows and of whole people, with intervals over the networks; `each` is a rate a person."""
    kind, count = network(context)
    person, half = crowd.by_window(crowd.person), crowd.by_window(crowd.half)
    right, voted = [], []
    for number in range(count):
        known = half == number % 2
        logs = reidentify.log_probabilities(windows, person, known, kind, context.seed * count + number)
        for found, kept in zip(reidentify.rates(logs, person[~known]), (right, voted), strict=True):
            kept.append(found)
    out: Rates = {"each": np.mean(right, axis=0)}
    for name, rows in (("window", right), ("person", voted)):
        out[name], out[f"{name}_ci"] = interval([float(row.mean()) for row in rows])
    return out


def interval(values: list[float] | np.ndarray, miss: float = 0.05) -> tuple[float, float]:
    """Mean, and half-width of the interval by Student's t that misses it with probability `miss`.

    >>> interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    from scipy.stats import t

    count = len(values)
    return float(np.mean(values)), float(t.ppf(1 - miss / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))


def allowed(model: MarkovModel) -> dict[str, float]:
    """The ε of every release of a second that keeps temporal leakage at PER_SECOND: at least EACH, at most this.

    No L(α) is above α, so EACH is always sound. L is a maximum over pairs of rows, so some of them (the 100 likeliest
    symbols) bound it from below, and what they leave of the budget bounds ε from above. Cells far apart hardly have a
    follower in common, so L(α) is nearly α and the bounds meet: the sound reading of temporal LDP is randomised
    response.
    """
    forward = model.advance(np.eye(model.size))
    distribution = stationary(forward, model.initial)
    often = np.argsort(-distribution, kind="stable")[:100]
    joint = distribution[:, None] * forward
    backward = (joint / joint.sum(0)).T
    passed = [Quantifier.of(rows[often]) for rows in (backward, forward)]

    def leaked(epsilon: float) -> float:
        behind, before = np.full(FRAMES, epsilon), np.full(FRAMES, epsilon)
        for t in range(1, FRAMES):
            behind[t] += float(passed[0](behind[t - 1]))
            before[t] += float(passed[1](before[t - 1]))
        return float((behind + before[::-1]).max()) - epsilon

    low, high = EACH, PER_SECOND
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if leaked(middle) <= PER_SECOND else (low, middle)
    return {"at least": EACH, "at most": high}


def beyond(found: Rates, other: Rates, miss: float = 0.05) -> tuple[float, float]:
    """Mean difference of two rates over people, paired, and the half-width of its interval."""
    return interval(np.asarray(found["each"]) - np.asarray(other["each"]), miss)


def decided(gaps: list[tuple[float, float]]) -> str:
    """How many differences lie beyond their interval: a sentence that fails for want of data must not look refuted.

    >>> decided([(0.2, 0.1), (-0.3, 0.1), (0.0, 0.1), (0.1, 0.2)])
    '1 of 4 comparisons for it, 1 against, 2 undecided'
    """
    above, below = (sum(sign * gap > half for gap, half in gaps) for sign in (1, -1))
    return f"{above} of {len(gaps)} comparisons for it, {below} against, {len(gaps) - above - below} undecided"


def claims(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    orders = numbers["orders"]
    judged = [_strictest(numbers), _rises(orders), _rises_less(orders), _below(numbers)]
    return [*judged, _tells(numbers)]


def _pairs(orders: dict[str, Any], kind: str) -> list[tuple[str, Rates, str, Rates]]:
    """For each order: the LDP line of a kind, and each SIP line to compare it with."""
    ldp, sip = (RESTRICTED, (PUBLISHED,)) if kind == "published" else (RESPONSE, SOUND)
    return [(order, lines[ldp], name, lines[name]) for order, lines in orders.items() for name in sip]


def _both(count: dict[str, str]) -> str:
    return f"Published: {count['published']}; sound: {count['sound']}"


def _table(orders: dict[str, Any], adversary: str) -> dict[str, Any]:
    return {
        f"order {order}, {adversary}: windows named, and the half-width of the 95 % interval": {
            name: [line[adversary]["window"], line[adversary]["window_ci"]] for name, line in lines.items()
        }
        for order, lines in orders.items()
    }


def _strictest(numbers: dict[str, Any]) -> dict[str, Any]:
    orders, holds, count = numbers["orders"], {}, {}
    for kind in ("published", "sound"):
        pairs = _pairs(orders, kind)
        gaps = [beyond(sip["data"], ldp["data"], MISS / len(pairs)) for _, ldp, _, sip in pairs]
        holds[kind] = all(gap > -half for gap, half in gaps) and any(gap > half for gap, half in gaps)
        count[kind] = decided(gaps)
    most, disclosed = (
        numbers["temporal"]["at most"],
        math.exp(EACH) / (math.exp(EACH) + numbers["data"]["side"] ** 2 - 1),
    )
    return judge(
        "with the data only, temporal LDP protects best",
        holds["published"],
        holds["sound"],
        f"the sound reading is randomised response over all cells at ε from {EACH:g} to {most:.3g} a sample, which is "
        f"the truth {100 * disclosed:.1f} times in 100; the published one draws from the followers of the true cell. "
        "Holds where no SIP line lies below it beyond the interval (95 % for all together), and one lies above. "
        + _both(count),
        _table(orders, "data"),
        undecided=NONE_AGAINST in count["sound"],
    )


def _rises(orders: dict[str, Any]) -> dict[str, Any]:
    rows, holds, count = {}, {}, {}
    for kind, names in (("published", (RESTRICTED, PUBLISHED)), ("sound", (RESPONSE, *SOUND))):
        miss = MISS / (len(orders) * len(names))
        gaps = {(o, n): beyond(lines[n]["table"], lines[n]["data"], miss) for o, lines in orders.items() for n in names}
        holds[kind] = all(gap > half for gap, half in gaps.values())
        count[kind] = decided(list(gaps.values()))
        rows |= {f"order {o}, {n}: rise, half-width": list(gap) for (o, n), gap in gaps.items()}
    return judge(
        "with the transition table every mechanism leaks more",
        holds["published"],
        holds["sound"],
        "a rise counts beyond the interval (95 % for all together); what the table adds is post-processing of the same "
        "releases. " + _both(count),
        rows,
        undecided=NONE_AGAINST in count["sound"],
    )


def _rises_less(orders: dict[str, Any]) -> dict[str, Any]:
    rows, holds, count = {}, {}, {}
    for kind in ("published", "sound"):
        gaps, pairs = [], _pairs(orders, kind)
        for order, ldp, name, sip in pairs:
            own, other = (np.subtract(line["table"]["each"], line["data"]["each"]) for line in (sip, ldp))
            gaps.append(interval(other - own, MISS / len(pairs)))
            rows[f"order {order}, {name}: LDP rises more by, half-width"] = list(gaps[-1])
        holds[kind] = all(gap > half for gap, half in gaps)
        count[kind] = decided(gaps)
    return judge(
        "the table helps against SIP mechanisms less than against LDP ones",
        holds["published"],
        holds["sound"],
        "published lines are compared with temporal LDP as published, sound ones with randomised response. "
        + _both(count),
        rows,
        undecided=NONE_AGAINST in count["sound"],
    )


def _below(numbers: dict[str, Any]) -> dict[str, Any]:
    orders, holds, count = numbers["orders"], {}, {}
    for kind in ("published", "sound"):
        pairs = _pairs(orders, kind)
        gaps = [beyond(ldp["table"], sip["table"], MISS / len(pairs)) for _, ldp, _, sip in pairs]
        holds[kind] = all(gap > half for gap, half in gaps)
        count[kind] = decided(gaps)
    return judge(
        "with the table, SIP mechanisms are identified less often than LDP ones",
        holds["published"],
        holds["sound"],
        "published lines are compared with temporal LDP as published, sound ones with randomised response, which at "
        f"this budget leaves little room above chance ({numbers['chance']:.3f}). " + _both(count),
        _table(orders, "table"),
        undecided=NONE_AGAINST in count["sound"],
    )


def _tells(numbers: dict[str, Any]) -> dict[str, Any]:
    """Not in the paper: how far from raw, and from chance, each mechanism is."""
    orders, chance = numbers["orders"], numbers["chance"]
    figures: dict[str, Any] = {"chance": chance}
    gaps: dict[str, list[tuple[float, float]]] = {"published": [], "sound": []}
    for order, lines in orders.items():
        for name, line in lines.items():
            best = max(ADVERSARIES, key=lambda a, line=line: line[a]["window"])
            figures[f"order {order}, {name}: windows, people, mean error in cells"] = [
                line[best]["window"],
                line[best]["person"],
                line["error"],
            ]
            if name != RAW:
                kind = "published" if name in (RESTRICTED, PUBLISHED) else "sound"
                gaps[kind].append(beyond(lines[RAW][best], line[best], MISS / (2 * (len(lines) - 1))))
    return judge(
        "(ours) every mechanism is identified less often than raw gaze",
        *(all(gap > half for gap, half in gaps[kind]) for kind in ("published", "sound")),
        "the stronger adversary of the two. " + _both({kind: decided(found) for kind, found in gaps.items()}),
        figures,
        undecided=NONE_AGAINST in decided(gaps["sound"]),
    )


def draw(figure: Any, result: dict[str, Any]) -> None:
    numbers = result["numbers"]
    if "skipped" in numbers:
        figure.text(0.5, 0.5, f"skipped: {numbers['skipped']}", ha="center", va="center")
        return
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (order, lines) in zip(panels, numbers["orders"].items(), strict=True):
        names = list(lines)[::-1]
        for shift, adversary, label in ((0.2, "data", "releases only"), (-0.2, "table", "and the transition table")):
            found = [lines[name][adversary] for name in names]
            axes.barh(
                np.arange(len(names)) + shift,
                [100 * f["window"] for f in found],
                0.38,
                xerr=[100 * f["window_ci"] for f in found],
                label=label,
                error_kw={"lw": 0.8},
            )
        axes.axvline(100 * numbers["chance"], color="#7a7a7a", lw=1, ls=":", label="chance")
        axes.set(title=f"chain of order {order}", xlabel="windows named rightly, %", yticks=range(len(names)))
        axes.set_yticklabels([f"{name} (= {TEMPORAL})" if name == RESPONSE else name for name in names])
        axes.set_xlim(left=0)
    figure.legend(
        *panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=3, loc="outside lower center"
    )
