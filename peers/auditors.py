"""An outside auditor on our sampler: does one release keep to 2ε whatever the truth is, counted from its draws alone?

The attack is the one that auditors of differential privacy share. DP-Sniper (Bichsel and others, S&P 2021) and StatDP
(Ding and others, CCS 2018) look for two inputs and a set of outputs that tell them apart best, on draws of their own,
then count fresh draws; LDP-Auditor (Arcolezi and Gambs, 2023) does the same with the likelier input as the guess. None
of the three is on the package index, so the set is found here, in the same way, and an outside package turns the counts
into a lower bound on ε. The published closed form is the planted failure: it must be caught.
"""

from __future__ import annotations

import numpy as np

from peers.environments import ESTIMATES, ask
from peers.judge import FALSE_ALARMS, Row, verdict
from seqveil.core import mechanisms
from seqveil.core.kernel import Kernels
from seqveil.core.randomness import SystemRandomness

BELIEF = np.array([[0.3, 0.25, 0.2, 0.15, 0.1]])
EPSILONS = (0.5, 1.0)
DRAWS = 40_000  # for every input, once to find the set and once to count
METHOD = "beta"  # Clopper and Pearson's bounds, the only ones of theirs that hold for any number of draws
CASES = [(name, epsilon) for epsilon in EPSILONS for name in ("optimal", "randomized_response", "crr")]


def kernels_of(name: str, epsilon: float) -> Kernels:
    """The same kernel many times, to draw from it many times at once."""
    return mechanisms.find(name).kernels(np.repeat(BELIEF, DRAWS, 0), epsilon)


def check() -> list[Row]:
    kernels = [kernels_of(name, epsilon) for name, epsilon in CASES]
    attacks = [counts_of(each) for each in kernels]
    alpha = FALSE_ALARMS / len(CASES)
    cases = [{"method": METHOD, "alpha": alpha, **counts} for counts in attacks]
    answer = ask(ESTIMATES, {"cases": cases})
    rows = []
    for (name, epsilon), each, bound in zip(CASES, kernels, answer["bounds"], strict=True):
        planted = name == "crr"
        caught = bound > 2 * epsilon
        rows.append(
            Row(
                ESTIMATES.name,
                answer["version"],
                f"{name}, n={BELIEF.size}, 2ε={2 * epsilon:g}, {DRAWS} draws an input" + " (planted)" * planted,
                f"ε ≥ {bound:.3f}",
                f"{each.one(0).ldp():.3f} exactly",
                f"{'above' if caught else 'within'} 2ε; false alarms {alpha:.1g}",
                verdict(caught == planted and bound <= each.one(0).ldp()),
            )
        )
    return rows


def counts_of(each: Kernels) -> dict[str, int]:
    """How often the set that tells two inputs apart best came up for each of them, in draws it was not found with."""
    learned, counted = draws(each), draws(each)
    best, chosen = -np.inf, (0, 1, np.zeros(learned.shape[1], bool))
    for true in range(len(learned)):
        for false in range(len(learned)):
            ratio = np.log((learned[true] + 1.0) / (learned[false] + 1.0))
            for least in np.unique(ratio)[1:]:
                inside = ratio >= least
                low = _careful(int(learned[true][inside].sum()), int(learned[false][inside].sum()))
                if true != false and low > best:
                    best, chosen = low, (true, false, inside)
    true, false, inside = chosen
    right, wrong = int(counted[true][inside].sum()), int(counted[false][inside].sum())
    return {"TP": right, "FN": DRAWS - right, "FP": wrong, "TN": DRAWS - wrong}


def _careful(right: int, wrong: int) -> float:
    """A ratio that is surely reached, by four standard deviations, so that no set is picked for being rare."""
    low, high = right - 4 * np.sqrt(right), wrong + 4 * np.sqrt(wrong) + 16
    return float(np.log(low / high)) if low > 0 else -np.inf


def draws(each: Kernels) -> np.ndarray:
    """Counts (n, outputs) of what the sampler releases for every input."""
    randomness, outputs = SystemRandomness(), each.one(0).probabilities.shape[1]
    picked = (each.pick(np.full(DRAWS, x), randomness.draw(DRAWS)) for x in range(BELIEF.size))
    return np.stack([np.bincount(one, minlength=outputs) for one in picked])
