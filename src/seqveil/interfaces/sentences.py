"""What an audit checks and what an attacker got, in the words that reports and commands share."""

from __future__ import annotations

import math
from typing import Any

from seqveil.core.words import moved, percent

CHECKS = {  # what an audit checks, by the names of its report
    "each_release": "every release within its ε",
    "each_stream": "every stream within its Σε",
    "total": "every stream within the total budget",
    "window": "every window within its budget",
    "ldp_total": "every stream within the budget that needs no model",
    "declared": "every declared secret within its ε, in every whole window",
    "epsilons": "the ε of every row is what the policy spends there",
    "values": "the values are those that follow from the paths",
    "unchanged": "the rows are those that the release wrote",
    "unseeded": "the side file names no seed",
}


def guess_means(ratio: Any) -> str:
    """What the best guess of an attack means, from how much likelier it is where it is right; empty if that is unknown.

    >>> guess_means(1.5)
    'of those whom its best guess singled out, a suspicion of 10 % that it is right became 14 %'
    """
    if not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
        return ""
    became = percent(moved(0.10, math.log(ratio)))
    return f"of those whom its best guess singled out, a suspicion of 10 % that it is right became {became}"
