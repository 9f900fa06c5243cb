"""Decisions about figures from two sources: χ² tests at a stated false-alarm rate, and the table they end up in."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2

FALSE_ALARMS = 1e-6  # chance that a whole run with nothing wrong in it fails any of its χ² tests
LEAST_EXPECTED = 20.0  # in every cell, so that the χ² distribution can be relied on far out in its tail

AGREES, FAILS, PEER = "agrees", "FAILS", "peer is wrong"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    peer: str
    version: str
    what: str
    theirs: str
    ours: str
    statistic: str
    verdict: str

    def cells(self) -> list[str]:
        return list(asdict(self).values())


@dataclass(frozen=True)
class Fit:
    """How well counts agree with a distribution: χ², degrees of freedom, and the chance of one at least as large."""

    statistic: float
    freedom: int
    chance: float


def chi_square(counts: ArrayLike, distribution: ArrayLike) -> Fit:
    """χ² = Σ (count - N·p)² / (N·p) over the cells with p > 0; any count where p = 0 has chance 0."""
    seen, chances = np.asarray(counts, dtype=np.float64), np.asarray(distribution, dtype=np.float64)
    if seen.shape != chances.shape or seen.ndim != 1:
        raise ValueError(f"expected as many counts as probabilities, got shapes {seen.shape} and {chances.shape}")
    possible = chances > 0
    expected = seen.sum() * chances[possible]
    if expected.min() < LEAST_EXPECTED:
        raise ValueError(
            f"expected at least {LEAST_EXPECTED:g} draws in every cell, got {expected.min():.3g}; draw more"
        )
    freedom = int(possible.sum()) - 1
    if seen[~possible].any():
        return Fit(math.inf, freedom, 0.0)
    statistic = float(((seen[possible] - expected) ** 2 / expected).sum())
    return Fit(statistic, freedom, float(chi2.sf(statistic, freedom)) if freedom else 1.0)


def threshold(tests: int, false_alarms: float = FALSE_ALARMS) -> float:
    """The chance below which one of `tests` tests fails: Bonferroni, so that all of them together keep the rate."""
    if tests < 1 or not 0 < false_alarms < 1:
        raise ValueError(f"expected at least 1 test and a rate between 0 and 1, got {tests} and {false_alarms}")
    return false_alarms / tests


def by_offset(counts: ArrayLike) -> np.ndarray:
    """Counts of (output - input) mod n, summed over the inputs (rows): one test with all the draws in it."""
    table = np.asarray(counts)
    n = len(table)
    return np.array([table[np.arange(n), (np.arange(n) + shift) % n].sum() for shift in range(n)])


def verdict(passed: bool) -> str:
    return AGREES if passed else FAILS


def table(rows: list[Row]) -> str:
    """The rows as an aligned Markdown table."""
    lines = [["peer", "version", "what", "theirs", "ours", "statistic", "verdict"], *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return "\n".join([shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]])
