"""Figure 4: Example 1 with P1 = .95."""

from __future__ import annotations

from typing import Any

from experiments import _noise
from experiments._noise import NAMES, draw
from experiments.claims import judge
from experiments.context import Context

__all__ = ["NEEDS", "SIZE", "TITLE", "draw", "run"]
TITLE = "Noise of two correlated bits, P1 = .95"
NEEDS: tuple[str, ...] = ()
SIZE = (13, 3.2)


def run(context: Context) -> dict[str, Any]:
    numbers = _noise.run(context, 0.95)
    # the same at P1 = .5, under names of this figure's own, so that either figure can be run alone
    even = context.part("even", lambda: {e: _intercepts(0.5, float(e)) for e in numbers["epsilon"]})
    claims = [*_noise.claims(numbers), _higher(numbers, even)]
    return {"name": "fig4", "title": TITLE, "numbers": numbers | {"even": even}, "claims": claims}


def _intercepts(prior: float, epsilon: float) -> dict[str, float]:
    """Noise correlation where X2 = X1."""
    from experiments.example1 import by_enumeration

    return {name: by_enumeration(prior, 0.0, epsilon, epsilon, name)["correlation"] for name in NAMES}


def _higher(numbers: dict[str, Any], even: dict[str, Any]) -> dict[str, Any]:
    skewed = {e: {name: run[name]["correlation"][0] for name in NAMES} for e, run in numbers["epsilon"].items()}
    above = {name: all(skewed[e][name] >= even[e][name] - 1e-9 for e in even) for name in NAMES}
    return judge(
        "the noise correlation at ρ(X1,X2) = 1 is no smaller for the skewed prior (.95) than for the even one (.5)",
        above["crr"],
        above["optimal"],
        "for Algorithm 1 the gap closes as ε grows; where the sound optimum releases its best guess alone, a wrong "
        "first release means a wrong second one, and the correlation is 1",
        {
            "published, by ε: (P1 = .5, P1 = .95)": {e: [even[e]["crr"], skewed[e]["crr"]] for e in even},
            "sound, by ε: (P1 = .5, P1 = .95)": {e: [even[e]["optimal"], skewed[e]["optimal"]] for e in even},
        },
    )
