"""A sentence of the paper, judged: for the mechanism as published and for the sound one."""

from __future__ import annotations

from typing import Any

HOLDS, FAILS, UNSOUND = "holds", "does not hold", "holds only for the unsound mechanism"
OPEN = "not decided"
VERDICTS = (HOLDS, FAILS, UNSOUND, OPEN)


def judge(
    claim: str, published: bool, sound: bool, reason: str, figures: dict[str, Any], undecided: bool = False
) -> dict[str, Any]:
    """`published` and `sound` say whether the sentence is true of each; what the sound mechanism does decides.

    `undecided`: nothing speaks against the sentence, but the data are too few to say that it is true.
    """
    verdict = HOLDS if sound else UNSOUND if published else OPEN if undecided else FAILS
    return {"claim": claim, "verdict": verdict, "reason": reason, "figures": figures}
