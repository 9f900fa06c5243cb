"""What fig3 and fig4 share: Example 1 at one prior, its pictures, and its sentences judged."""

from __future__ import annotations

import itertools
from typing import Any

from experiments import example1
from experiments.claims import judge
from experiments.context import Context

HEADLINE = 1.0  # ε of each release in the picture; the paper does not say which it drew
NAMES = {"crr": "published", "optimal": "sound"}
Result = dict[str, Any]


def run(context: Context, prior: float) -> dict[str, Any]:
    """Every curve at each ε, the headline first."""
    epsilons = (HEADLINE,) if context.quick else (HEADLINE, 0.5, 2.0, 3.0)
    noises, steps = ((0.05, 0.1), 20) if context.quick else ((0.02, 0.05, 0.1, 0.2), 40)
    found = {
        f"{epsilon:g}": context.part(f"epsilon{epsilon:g}", lambda e=epsilon: example1.sweep(prior, e, noises, steps))
        for epsilon in epsilons
    }
    return {"prior": prior, "headline": f"{HEADLINE:g}", "epsilon": found}


def claims(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """The sentences that both figures share."""
    runs = numbers["epsilon"]
    return [_vanishes(runs), _grows(runs), _less_noise(runs), _designs(runs)]


def _vanishes(runs: dict[str, Any]) -> dict[str, Any]:
    at = {name: [_at_independence(run, name) for run in runs.values()] for name in NAMES}
    zero = {name: all(abs(c) < 1e-7 and i < 1e-9 for c, i in found) for name, found in at.items()}
    return judge(
        "noise correlation and I(N1;N2) are 0 when X1 and X2 are independent",
        zero["crr"],
        zero["optimal"],
        "with φ = 1/2 the belief about X2 is (1/2, 1/2) whatever Y1 was, so the second kernel does not depend on it; "
        "σ_N is taken with the square root that the paper leaves out",
        {
            f"{NAMES[name]}: |correlation|, I in bits": [max(column) for column in zip(*found, strict=True)]
            for name, found in at.items()
        },
    )


def _grows(runs: dict[str, Any]) -> dict[str, Any]:
    bad = {name: {e: not dips([abs(v) for v in run[name]["correlation"]]) for e, run in runs.items()} for name in NAMES}
    first = next(iter(runs.values()))
    return judge(
        "noise correlation falls as ρ(X1,X2) approaches 0",
        not any(bad["crr"].values()),
        not any(bad["optimal"].values()),
        "true of Algorithm 1; the sound optimum tells less, or its best guess alone, once Y1 has made X2 likely, so "
        "its noise correlation jumps there and need not fall",
        {
            "published, at φ = 0, 1/4, 1/2": _three(first["crr"]["correlation"]),
            "sound, at φ = 0, 1/4, 1/2": _three(first["optimal"]["correlation"]),
            "ε where it fails, published": [e for e, wrong in bad["crr"].items() if wrong],
            "ε where it fails, sound": [e for e, wrong in bad["optimal"].items() if wrong],
        },
    )


def _less_noise(runs: dict[str, Any]) -> dict[str, Any]:
    bad = {name: {e: not dips([-v for v in run[name]["noise_2"]]) for e, run in runs.items()} for name in NAMES}
    first = next(iter(runs.values()))
    leaks = {e: max(run["crr"]["leakage_2"]) for e, run in runs.items()}
    return judge(
        "the noise needed at time 2 falls as X1 and X2 become more correlated",
        not any(bad["crr"].values()),
        not any(bad["optimal"].values()),
        "Algorithm 1 adds less noise because it leaks more than ε: its second release leaks up to "
        + ", ".join(f"{leak:.2f} at ε = {e}" for e, leak in leaks.items())
        + "; a sound kernel may not name an unlikely symbol so firmly, and errs more again near |ρ| = 1",
        {
            "published, Pr(N2=1) at φ = 0, 1/4, 1/2": _three(first["crr"]["noise_2"]),
            "sound, Pr(N2=1) at φ = 0, 1/4, 1/2": _three(first["optimal"]["noise_2"]),
            "largest true leakage of the published second release": leaks,
        },
    )


def _designs(runs: dict[str, Any]) -> dict[str, Any]:
    less = {name: [_saved(run[name]["designs"]) for run in runs.values()] for name in NAMES}
    never_more = all(least > -1e-6 for found in less.values() for least, _ in found)
    strictly = {name: all(most > 1e-6 for _, most in found) for name, found in less.items()}
    silent = [e for e, run in runs.items() if max(run["optimal"]["leakage_1"]) < 1e-9]
    reason = "the correlated design may do whatever the independent one does, so it cannot leak more"
    if silent:
        reason += (
            f"; at ε = {', '.join(silent)} the sound first release is the constant best guess, and then both are one"
        )
    return judge(
        "at equal noise at time 2 the correlated design leaks less in total than the independent one",
        never_more and strictly["crr"],
        never_more and strictly["optimal"],
        reason,
        {
            f"{NAMES[name]}, nats saved at most, by ε": {e: most for e, (_, most) in zip(runs, found, strict=True)}
            for name, found in less.items()
        },
    )


def dips(values: list[float]) -> bool:
    """Whether the values fall on the way from φ = 0 to 1/2 and rise from there to 1."""
    middle = len(values) // 2
    falls = all(after <= before + 1e-7 for before, after in itertools.pairwise(values[: middle + 1]))
    return falls and all(after >= before - 1e-7 for before, after in itertools.pairwise(values[middle:]))


def _at_independence(run: dict[str, Any], name: str) -> tuple[float, float]:
    middle = len(run["phi"]) // 2
    return abs(run[name]["correlation"][middle]), run[name]["mutual_information"][middle]


def _three(values: list[float]) -> list[float]:
    middle = len(values) // 2
    return [values[0], values[middle // 2], values[middle]]


def _saved(designs: dict[str, Any]) -> tuple[float, float]:
    gaps = [i - c for d in designs.values() for c, i in zip(d["correlated"], d["independent"], strict=True)]
    return min(gaps), max(gaps)


def draw(figure: Any, result: Result) -> None:
    numbers = result["numbers"]
    run = numbers["epsilon"][numbers["headline"]]
    panels = figure.subplots(1, 4)
    x, styles = run["correlation_x"], {"crr": "-", "optimal": "--"}
    for name, style in styles.items():
        for axes, key in zip(panels, ("correlation", "mutual_information", "noise_2"), strict=False):
            axes.plot(x, run[name][key], style, label=NAMES[name])
    noise = sorted(run["crr"]["designs"], key=float)[-2]
    for name, style in styles.items():
        for key in ("correlated", "independent"):
            panels[3].plot(
                run["correlation_designs"], run[name]["designs"][noise][key], style, label=f"{NAMES[name]}, {key}"
            )
    titles = ("ρ(N1, N2)", "I(N1; N2), bits", "Pr(N2 = 1)", f"least leakage, noise ≤ {noise}")
    for axes, title in zip(panels, titles, strict=True):
        axes.set(title=title, xlabel="ρ(X1, X2)")
    panels[0].legend(frameon=False, fontsize=7)
    panels[3].legend(frameon=False, fontsize=7)
