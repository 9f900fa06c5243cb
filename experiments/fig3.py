"""Figure 3: Example 1 with P1 = .5."""

from __future__ import annotations

from typing import Any

from experiments import _noise
from experiments._noise import draw
from experiments.context import Context

__all__ = ["NEEDS", "SIZE", "TITLE", "draw", "run"]
TITLE = "Noise of two correlated bits, P1 = .5"
NEEDS: tuple[str, ...] = ()
SIZE = (13, 3.2)


def run(context: Context) -> dict[str, Any]:
    numbers = _noise.run(context, 0.5)
    return {"name": "fig3", "title": TITLE, "numbers": numbers, "claims": _noise.claims(numbers)}
