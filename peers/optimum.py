"""qif: the least expected loss under ε-LDP for a known prior, against our closed form for wrong symbols."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peers.environments import QIF, ask
from peers.judge import AGREES, FAILS, PEER, Row, verdict
from peers.response import EPSILONS as RESPONSE_EPSILONS
from peers.response import SIZES, kernel
from seqveil import distortion
from seqveil.evaluate.baselines import optimal_ldp

SYMBOLS = (2, 3, 5, 8, 12)
EPSILONS = (0.2, 0.7, 1.5, 3.0)
PRIORS = 5  # random ones for each size and ε, and the uniform one
CLOSE = 1e-8  # what their solver leaves
SAME = 1e-9  # our randomised response stays 1e-11 below ε


def check() -> list[Row]:
    cases = every_case()
    optima = [{"prior": c["prior"].tolist(), "epsilon": c["epsilon"], "costs": c["costs"].tolist()} for c in cases]
    responses = [{"n": n, "epsilon": epsilon} for n in SIZES for epsilon in RESPONSE_EPSILONS]
    answer = ask(QIF, {"optima": optima, "responses": responses})
    ours = [(case, theirs) for case, theirs in zip(cases, answer["optima"], strict=True) if case["loss"] == "hamming"]
    return [loss_row(answer["version"], ours), response_row(answer, responses), level_row(answer, cases)]


def every_case() -> list[dict[str, Any]]:
    rng, cases = np.random.default_rng(20), []
    for n in SYMBOLS:
        away = np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(np.float64)
        for epsilon in EPSILONS:
            for prior in [np.full(n, 1.0 / n), *rng.dirichlet(np.full(n, 0.7), PRIORS)]:
                costs = {"hamming": np.sign(away), "absolute": away, "squared": away**2, "random": rng.random((n, n))}
                cases += [{"loss": k, "prior": prior, "epsilon": epsilon, "costs": d} for k, d in costs.items()]
    return cases


def closed_form(case: dict[str, Any]) -> float:
    hamming, prior = distortion.hamming(), case["prior"]
    return float(optimal_ldp.kernels(prior[None], case["epsilon"], hamming).one(0).error(prior, hamming))


def loss_row(version: str, found: list[tuple[dict[str, Any], dict[str, Any]]]) -> Row:
    """The largest difference of the optimal losses over all cases."""
    theirs, ours = [answer["loss"] for _, answer in found], [closed_form(case) for case, _ in found]
    gaps = [abs(a - b) for a, b in zip(theirs, ours, strict=True)]
    return Row(
        QIF.name,
        version,
        f"least share of wrong symbols, {len(found)} priors; mean",
        f"{np.mean(theirs):.10f}",
        f"{np.mean(ours):.10f}",
        f"largest gap {max(gaps):.1e} (limit {CLOSE:g})",
        verdict(max(gaps) <= CLOSE),
    )


def response_row(answer: dict[str, Any], responses: list[dict[str, Any]]) -> Row:
    gap = max(
        float(np.abs(np.array(theirs) - kernel(**case).probabilities).max())
        for theirs, case in zip(answer["responses"], responses, strict=True)
    )
    shown = responses.index({"n": 17, "epsilon": 1.0})
    return Row(
        QIF.name,
        answer["version"],
        f"randomised response, all entries of {len(responses)} tables; Pr(truth) at n=17, ε=1",
        f"{answer['responses'][shown][0][0]:.12f}",
        f"{kernel(17, 1.0).probabilities[0, 0]:.12f}",
        f"largest gap {gap:.1e} (limit {SAME:g})",
        verdict(gap <= SAME),
    )


def level_row(answer: dict[str, Any], cases: list[dict[str, Any]]) -> Row:
    """How far the tables really are above ε: theirs of all costs as the solver gives them, ours as integers."""
    theirs = [
        math.inf if found["level"] is None else found["level"] - case["epsilon"]
        for found, case in zip(answer["optima"], cases, strict=True)
    ]
    ours = max(
        optimal_ldp.kernels(case["prior"][None], case["epsilon"]).one(0).ldp() - case["epsilon"]
        for case in cases
        if case["loss"] == "hamming"
    )
    passed = sum(gap > SAME for gap in theirs)
    return Row(
        QIF.name,
        answer["version"],
        f"true level of the optimal table minus ε, worst of {len(cases)}",
        f"{max(theirs):+.1e}",
        f"{ours:+.1e}",
        f"theirs is above ε in {passed}; ours must never be",
        FAILS if ours > 0 else PEER if passed else AGREES,
    )
