"""A sentence of the paper, judged: for the mechanism as published and for the sound one."""

from __future__ import annotations

from typing import Any

HOLDS, FAILS, UNSOUND = "holds", "does not hold", "holds only for the unsound mechanism"
VERDICTS = (HOLDS, FAILS, UNSOUND)


def judge(claim: str, published: bool, sound: bool, reason: str, figures: dict[str, Any]) -> dict[str, Any]:
    """`published` and `sound` say whether the sentence is true of each; what the sound mechanism does decides."""
    verdict = HOLDS if sound else UNSOUND if published else FAILS
    return {"claim": claim, "verdict": verdict, "reason": reason, "figures": figures}
