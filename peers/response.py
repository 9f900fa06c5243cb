"""Randomised response: what the peers release for every input against the exact distribution of our integer kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peers.environments import MULTI_FREQ, OPENDP, PURE, Peer, ask
from peers.judge import Row, by_offset, chi_square, threshold, verdict
from seqveil.core.kernel import Kernel
from seqveil.core.mechanisms import randomized_response

SIZES = (4, 17, 100)
EPSILONS = (0.1, 0.5, 1.0, 3.0)
DRAWS = {4: 50_000, 17: 20_000, 100: 20_000}  # for every input and ε
SLOW_DRAWS = {4: 2_500, 17: 1_000, 100: 2_100}  # OpenDP draws some thousand a second
SLOW_EPSILONS = {4: EPSILONS, 17: EPSILONS, 100: (1.0,)}
CLOSE = 1e-12  # two roundings of the same ε

Case = tuple[int, float, int]  # symbols, ε, draws for every input


def quick_cases() -> list[Case]:
    return [(n, epsilon, DRAWS[n]) for n in SIZES for epsilon in EPSILONS]


def slow_cases() -> list[Case]:
    return [(n, epsilon, SLOW_DRAWS[n]) for n in SIZES for epsilon in SLOW_EPSILONS[n]]


def tests() -> int:
    """χ² tests of a whole run: one for each input, and one with all inputs together, for every case of every peer."""
    return sum(n + 1 for cases in (quick_cases(), quick_cases(), slow_cases()) for n, _, _ in cases)


def kernel(n: int, epsilon: float) -> Kernel:
    return randomized_response.kernels(np.full((1, n), 1.0 / n), epsilon).one(0)


def check_grr(peer: Peer) -> list[Row]:
    """multi-freq-ldpy or pure-ldp."""
    cases = quick_cases()
    answer = ask(peer, {"cases": [{"n": n, "epsilon": epsilon, "draws": draws} for n, epsilon, draws in cases]})
    return distribution_rows(peer, answer, cases)


def check_opendp() -> list[Row]:
    cases = slow_cases()
    truths = [float(kernel(n, epsilon).probabilities[0, 0]) for n, epsilon, _ in cases]
    every = [(n, epsilon) for n in SIZES for epsilon in EPSILONS]
    levels = [{"n": n, "truth": float(kernel(n, epsilon).probabilities[0, 0])} for n, epsilon in every]
    job = {"cases": [{"n": n, "truth": p, "draws": draws} for (n, _, draws), p in zip(cases, truths, strict=True)]}
    answer = ask(OPENDP, {**job, "levels": levels})
    return [*distribution_rows(OPENDP, answer, cases), *level_rows(answer, every)]


def distribution_rows(peer: Peer, answer: dict[str, Any], cases: list[Case]) -> list[Row]:
    """One row for each size of the alphabet: Pr(truth) at every ε, and the least chance among its χ² tests."""
    rows, limit = [], threshold(tests())
    for n in sorted({case[0] for case in cases}):
        mine = [(case, np.array(counts)) for case, counts in zip(cases, answer["counts"], strict=True) if case[0] == n]
        chances = [chance for (_, epsilon, _), counts in mine for chance in fit_chances(counts, n, epsilon)]
        complete = all((counts.sum(1) == draws).all() for (_, _, draws), counts in mine)
        epsilons, draws = [case[1] for case, _ in mine], mine[0][0][2]
        rows.append(
            Row(
                peer.name,
                answer["version"],
                f"Pr(truth), n={n}, ε={numbers(epsilons)}; {draws} draws an input",
                " ".join(f"{np.trace(counts) / counts.sum():.4f}" for _, counts in mine),
                " ".join(f"{kernel(n, epsilon).probabilities[0, 0]:.4f}" for epsilon in epsilons),
                f"least p of {len(chances)} χ²: {min(chances):.2g} (limit {limit:.1g})",
                verdict(complete and min(chances) >= limit),
            )
        )
    return rows


def fit_chances(counts: np.ndarray, n: int, epsilon: float) -> list[float]:
    """For each input the chance of its counts, and last that of all inputs together, by output minus input."""
    distribution = kernel(n, epsilon).probabilities
    single = [chi_square(row, own).chance for row, own in zip(counts, distribution, strict=True)]
    return [*single, chi_square(by_offset(counts), by_offset(distribution) / n).chance]


def level_rows(answer: dict[str, Any], every: list[tuple[int, float]]) -> list[Row]:
    """OpenDP's privacy map of a truth probability equal to ours, against the level read off our integers."""
    ours = [kernel(n, epsilon).ldp() for n, epsilon in every]
    gap = max(abs(a - b) for a, b in zip(answer["levels"], ours, strict=True))
    within = all(level <= epsilon for level, (_, epsilon) in zip(ours, every, strict=True))
    shown = every.index((17, 1.0))
    return [
        Row(
            OPENDP.name,
            answer["version"],
            f"privacy map at our Pr(truth), {len(every)} cases; shown n=17, ε=1",
            f"{answer['levels'][shown]:.14f}",
            f"{ours[shown]:.14f}",
            f"largest gap {gap:.1e} (limit {CLOSE:g}); ours ≤ ε in all",
            verdict(gap <= CLOSE and within),
        )
    ]


def numbers(values: list[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def speed_cases(sizes: tuple[int, ...], epsilon: float, events: int) -> dict[str, list[dict[str, float]]]:
    """The job of a speed run, by peer."""
    plain = [{"n": n, "epsilon": epsilon, "events": events} for n in sizes]
    gain = math.exp(epsilon)
    by_truth = [{"n": n, "truth": gain / (gain + n - 1), "events": events // 20} for n in sizes]
    return {MULTI_FREQ.name: plain, PURE.name: plain, OPENDP.name: by_truth}
