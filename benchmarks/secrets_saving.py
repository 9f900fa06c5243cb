"""Windows of a secret that follow one another: what it is worth to keep a part of each box for after its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqveil import MarkovModel, Setting, secrets
from seqveil.receiver.planning import guarded_cost

SYMBOLS, USERS, EVENTS = 3, 12, 18
LONG = 90  # events, for a chain that hardly ever changes: in 18 it has no time to
CASES: tuple[tuple[int | str, tuple[float, ...]], ...] = (("event", (2.0, 6.0, 10.0)), (3, (0.5, 2.0)), (6, (0.5, 2.0)))


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {}
    print(f"expected wrong symbols, {SYMBOLS} symbols, {USERS} simulated streams of {EVENTS} events, by how boxes open")
    for window, epsilons in CASES:
        for stay in (0.4, 0.6, 0.9, *((0.99,) if window == "event" else ())):
            errors = {how: [_cost(stay, window, epsilon, how) for epsilon in epsilons] for how in ("linear", "saving")}
            shown = "; ".join(f"{how} " + ", ".join(f"{one:.3f}" for one in all_) for how, all_ in errors.items())
            print(f"  windows of {window!s:<6}stays with {stay}, ε = {epsilons}: {shown}", flush=True)
            found[f"{window}, {stay}"] = errors
    longer = {
        how: [_cost(0.99, "event", epsilon, how, LONG) for epsilon in (1.0, 2.0, 6.0)] for how in ("linear", "saving")
    }
    print(f"  windows of event stays with 0.99, ε = (1, 2, 6), {LONG} events: {longer}")
    return found | {"long": longer}


def _cost(stay: float, window: int | str, epsilon: float, opening: str, events: int = EVENTS) -> float:
    other = (1.0 - stay) / (SYMBOLS - 1)
    model = MarkovModel(np.full(SYMBOLS, 1 / SYMBOLS), (stay - other) * np.eye(SYMBOLS) + other)
    secret = secrets.ever(0, epsilon=epsilon, window=window)  # type: ignore[arg-type]
    setting = Setting.of(model, "guarded", secrets=secret, opening=opening)
    return guarded_cost(setting, model.sample(events, USERS, seed=3).T, 1)
