"""A sentence of the paper, judged: for the mechanism as published and for the sound one."""

from __future__ import annotations

from typing import Any

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
UNSOUND, SOUND = "holds only for the unsound mechanism", "holds only for the sound mechanism"
VERDICTS = (HOLDS, FAILS, UNSOUND, SOUND, OPEN)


def judge(
    claim: str, published: bool | None, sound: bool, reason: str, figures: dict[str, Any], undecided: bool = False
) -> dict[str, Any]:
    """`published` and `sound` say whether the sentence is true of each; `published` is None where only one was run.

    `undecided`: nothing speaks against the sentence, but the data are too few to say that it is true.
    """
    if sound:
        verdict = HOLDS if published is None or published else SOUND
    else:
        verdict = UNSOUND if published else OPEN if undecided else FAILS
    return {"claim": claim, "verdict": verdict, "reason": reason, "figures": figures}
