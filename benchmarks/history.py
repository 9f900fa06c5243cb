"""Does the cost of an event grow with the length of the history? 10^2 against 10^5 events of one session."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from seqveil import MarkovModel, Session

LONG = 100_000


def run(data: Path | None) -> dict[str, float]:
    n = 8
    rng = np.random.default_rng(0)
    sticky = 0.8 * np.eye(n) + 0.2 * rng.dirichlet(np.ones(n), n)
    model = MarkovModel(np.full(n, 1 / n), sticky / sticky.sum(1, keepdims=True))
    symbols = model.sample(LONG, seed=1)[0].tolist()
    old = Session(model, mechanism="balanced", epsilon=1.0)
    for symbol in symbols:
        old.release(symbol)
    young = Session(model, mechanism="balanced", epsilon=1.0)
    for symbol in symbols[:100]:
        young.release(symbol)
    spent = {"young": [], "old": []}
    for turn in range(40):  # in turn, so that both meet the same machine
        for name, session in (("young", young), ("old", old)):
            start = time.perf_counter()
            for symbol in symbols[turn * 20 : turn * 20 + 20]:
                session.release(symbol)
            spent[name].append((time.perf_counter() - start) / 20)
    short, long = (float(np.median(spent[name])) for name in ("young", "old"))
    print(f"µs per event after 10^2 events {short * 1e6:.0f}, after 10^5 {long * 1e6:.0f}: ratio {long / short:.3f}")
    return {"young_us": short * 1e6, "old_us": long * 1e6, "ratio": long / short}
