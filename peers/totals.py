"""dp-accounting: what k pure-ε releases cost together, against `seqveil.accounting.compose`.

Theirs counts the privacy loss log Pr(y|x)/Pr(y|x') of DP, ours the log lift c = log Pr(y|x)/Pr(y) of SIP. Of a release
at ε both lie in [-ε, ε] and have E[e^-c] = 1, so the worst distribution is the same: ±ε, with chance e^ε/(1+e^ε) of +ε,
that of binary randomised response. Theirs turns it into the δ of (ε, δ)-DP; ours bounds the chance δ that the total
passes ε on either side, δ/2 a side. That says more, so ours must be the larger.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peers.environments import ACCOUNTING, ask
from peers.judge import AGREES, FAILS, PEER, Row, verdict
from seqveil.engine.accounting import compose, log_moment

CASES = [
    (epsilon, releases, delta)
    for epsilon, releases in ((0.125, 100), (0.125, 1000), (0.25, 100), (0.5, 20), (0.5, 100), (1.0, 100), (2.0, 100))
    for delta in (1e-6, 1e-9)
]
STEP = 1 / 64  # of their grid of losses: every ε here lies on it, so nothing is rounded
CERTAIN = 20  # releases up to which their convolution is exact at δ = 0; beyond, its floor of 1e-16 shows
ORDERS = [1 + power for power in np.geomspace(1e-3, 1e5, 1601)]
LOOSE = 1.0005  # ours over the same bound from their Rényi curve: two grids of λ


def check() -> list[Row]:
    totals = [*CASES, *((epsilon, releases, 1e-6) for epsilon in (0.125, 0.5, 2.0) for releases in (1, CERTAIN))]
    job = {
        "totals": [{"epsilon": e, "releases": k, "delta": d, "orders": ORDERS, "step": STEP} for e, k, d in totals],
        "counted": [{"epsilon": 1.0, "releases": 100, "delta": 1e-6}],
    }
    answer = ask(ACCOUNTING, job)
    found = list(zip(totals, answer["totals"], strict=True))
    version = answer["version"]
    rows = [basic_row(version, found), moment_row(version, found)]
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


def moment_row(version: str, found: list[tuple[Any, dict[str, Any]]]) -> Row:
    """(α-1)·Rényi divergence of order α is our log moment at λ = α-1 (upper side) and at λ = -α (lower side)."""
    gaps = []
    for (epsilon, releases, _), theirs in found:
        for order, divergence in zip(ORDERS, theirs["curve"], strict=True):
            moment = (order - 1) * divergence
            ours = [releases * log_moment(epsilon, power) for power in (order - 1, -order)]
            gaps += [abs(moment - value) / max(1.0, moment) for value in ours]
    at = min(range(len(ORDERS)), key=lambda i: abs(ORDERS[i] - 2))
    (epsilon, releases, _), shown = found[1]
    return Row(
        ACCOUNTING.name,
        version,
        f"log moments, {len(gaps)} values; shown {releases} × {epsilon:g}, α={ORDERS[at]:.3g}",
        f"{(ORDERS[at] - 1) * shown['curve'][at]:.8f}",
        f"{releases * log_moment(epsilon, ORDERS[at] - 1):.8f}",
        f"largest relative gap {max(gaps):.1e} (limit 1e-10)",
        verdict(max(gaps) <= 1e-10),
    )


def from_curve(theirs: dict[str, Any], delta: float) -> float:
    """The bound ours states, from their Rényi curve: min over α of divergence + ln(1/δ)/(α-1)."""
    return min(d - math.log(delta) / (order - 1) for order, d in zip(ORDERS, theirs["curve"], strict=True))


def total_row(version: str, case: tuple[float, int, float], theirs: dict[str, Any]) -> Row:
    epsilon, releases, delta = case
    ours = compose(epsilon, releases, delta)
    return Row(
        ACCOUNTING.name,
        version,
        f"ε({delta:g}) of {releases} × {epsilon:g}: loss distribution, Rényi; ours best, Chernoff",
        f"{theirs['pld']:.3f} {theirs['rdp']:.3f}",
        f"{ours.best:.3f} {ours.chernoff:.3f}",
        f"ours / theirs {ours.best / theirs['pld']:.3f}",
        verdict(theirs["pld"] <= ours.best and theirs["rdp"] <= ours.chernoff),
    )


def sandwich_row(version: str, found: list[tuple[Any, dict[str, Any]]]) -> Row:
    """Ours is never below theirs, and never looser than the same bound on their curve at δ/2 (or k·ε where less)."""
    above, loose = [], []
    for (epsilon, releases, delta), theirs in found:
        ours = compose(epsilon, releases, delta)
        above.append(ours.best / theirs["pld"])
        loose.append(ours.best / min(from_curve(theirs, delta / 2), theirs["rdp_at_0"]))
    return Row(
        ACCOUNTING.name,
        version,
        f"ours over the same bound from their Rényi curve at δ/2, {len(found)} cases",
        "1",
        f"{min(loose):.6f} to {max(loose):.6f}",
        f"limit {LOOSE:g}; ours / loss distribution {min(above):.4f} to {max(above):.4f}",
        verdict(max(loose) <= LOOSE and min(loose) >= 1 / LOOSE and min(above) >= 1),
    )


def count_row(version: str, theirs: dict[str, float]) -> Row:
    """Their PLD accountant, disclosed of 100 randomised responses at once: must be what it says of them one by one."""
    ours = compose(1.0, 100, 1e-6).best
    kept = abs(theirs["at_once"] - theirs["singly"]) < 1e-3
    return Row(
        ACCOUNTING.name,
        version,
        "PLDAccountant, 100 randomised responses at ε=1, δ=1e-6: disclosed at once, one by one",
        f"{theirs['at_once']:.3f} {theirs['singly']:.3f}",
        f"{ours:.3f}",
        "the count is used" if kept else "it ignores the count",
        (AGREES if kept else PEER) if theirs["singly"] <= ours else FAILS,
    )
