"""dp-accounting: what k pure-ε releases cost together, against `seqveil.compose`.

Theirs counts the privacy loss log Pr(y|x)/Pr(y|x') of DP, ours the log lift c = log Pr(y|x)/Pr(y) of SIP. Of a release
at ε both lie in [-ε, ε] and have E[e^-c] = 1, so the worst distribution is the same: ±ε, with chance e^ε/(1+e^ε) of +ε,
that of binary randomised response. Theirs turns it into the δ of (ε, δ)-DP; ours bounds the chance δ that the total
ever passes ε on either side. That says more, so ours must be the larger.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peers.environments import ACCOUNTING, ask
from peers.judge import AGREES, FAILS, PEER, Row, verdict
from seqveil.engine.budget import compose

CASES = [
    (epsilon, releases, delta)
    for epsilon, releases in ((0.125, 100), (0.125, 1000), (0.25, 100), (0.5, 20), (0.5, 100), (1.0, 100), (2.0, 100))
    for delta in (1e-6, 1e-9)
]
STEP = 1 / 64  # of their grid of losses: every ε here lies on it, so nothing is rounded
CERTAIN = 20  # releases up to which their convolution is exact at δ = 0; beyond, its floor of 1e-16 shows
ORDERS = [1 + power for power in np.geomspace(1e-3, 1e5, 1601)]


def check() -> list[Row]:
    totals = [*CASES, *((epsilon, releases, 1e-6) for epsilon in (0.125, 0.5, 2.0) for releases in (1, CERTAIN))]
    job = {
        "totals": [{"epsilon": e, "releases": k, "delta": d, "orders": ORDERS, "step": STEP} for e, k, d in totals],
        "counted": [{"epsilon": 1.0, "releases": 100, "delta": 1e-6}],
    }
    answer = ask(ACCOUNTING, job)
    found = list(zip(totals, answer["totals"], strict=True))
    version = answer["version"]
    rows = [basic_row(version, found)]
    rows += [total_row(version, case, theirs) for case, theirs in found[: len(CASES)] if case[2] == 1e-6]
    return [*rows, sandwich_row(version, found), count_row(version, answer["counted"][0])]


def basic_row(version: str, found: list[tuple[Any, dict[str, Any]]]) -> Row:
    """Without δ: k·ε, by their Rényi order ∞, and by their loss distribution where it is exact."""
    gaps = [abs(theirs["rdp_at_0"] / compose(e, k, d).basic - 1) for (e, k, d), theirs in found]
    gaps += [abs(theirs["pld_at_0"] / compose(e, k, d).basic - 1) for (e, k, d), theirs in found if k <= CERTAIN]
    (epsilon, releases, delta), shown = found[1]
    return Row(
        ACCOUNTING.name,
        version,
        f"ε(0), {len(gaps)} cases; shown {releases} × {epsilon:g}",
        f"{shown['rdp_at_0']:.10f}",
        f"{compose(epsilon, releases, delta).basic:.10f}",
        f"largest relative gap {max(gaps):.1e} (limit 1e-12)",
        verdict(max(gaps) <= 1e-12),
    )


def from_curve(theirs: dict[str, Any], delta: float) -> float:
    """A Chernoff bound from their Rényi curve: min over α of divergence + ln(1/δ)/(α-1)."""
    return min(d - math.log(delta) / (order - 1) for order, d in zip(ORDERS, theirs["curve"], strict=True))


def total_row(version: str, case: tuple[float, int, float], theirs: dict[str, Any]) -> Row:
    epsilon, releases, delta = case
    ours = compose(epsilon, releases, delta)
    return Row(
        ACCOUNTING.name,
        version,
        f"ε({delta:g}) of {releases} × {epsilon:g}: loss distribution, Rényi; ours",
        f"{theirs['pld']:.3f} {theirs['rdp']:.3f}",
        f"{ours.walk:.3f}",
        f"ours / theirs {ours.walk / theirs['pld']:.3f}",
        verdict(theirs["pld"] <= ours.walk),
    )


def sandwich_row(version: str, found: list[tuple[Any, dict[str, Any]]]) -> Row:
    """Ours is never below theirs, and never above a Chernoff bound from their curve at δ/2 (or k·ε where less)."""
    above, below = [], []
    for (epsilon, releases, delta), theirs in found:
        ours = compose(epsilon, releases, delta)
        above.append(ours.walk / theirs["pld"])
        below.append(ours.walk / min(from_curve(theirs, delta / 2), theirs["rdp_at_0"]))
    return Row(
        ACCOUNTING.name,
        version,
        f"ours over a Chernoff bound from their Rényi curve at δ/2, {len(found)} cases",
        "1",
        f"{min(below):.4f} to {max(below):.4f}",
        f"limit 1; ours / loss distribution {min(above):.4f} to {max(above):.4f}",
        verdict(max(below) <= 1 + 1e-9 and min(above) >= 1),
    )


def count_row(version: str, theirs: dict[str, float]) -> Row:
    """Their PLD accountant, given 100 randomised responses at once: must say what it says of them one by one."""
    ours = compose(1.0, 100, 1e-6).walk
    kept = abs(theirs["at_once"] - theirs["singly"]) < 1e-3
    return Row(
        ACCOUNTING.name,
        version,
        "PLDAccountant, 100 randomised responses at ε=1, δ=1e-6: given at once, one by one",
        f"{theirs['at_once']:.3f} {theirs['singly']:.3f}",
        f"{ours:.3f}",
        "the count is used" if kept else "it ignores the count",
        (AGREES if kept else PEER) if theirs["singly"] <= ours else FAILS,
    )
