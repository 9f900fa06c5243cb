"""The 43,097-item shop clicks: memory of the fit, time of one instantaneous release, and wrong items."""

from __future__ import annotations

import itertools
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.timing import find

SCRIPT = "from benchmarks.shopclicks import errors, fit; import sys; fit(sys.argv[1]); errors(sys.argv[1])"


def fit(path: str) -> None:
    """In a process of its own: fit, then print peak memory, and release a few clicks with each mechanism."""
    import polars as pl

    from seqveil import MarkovModel, Session

    clicks = pl.read_parquet(path)["seq"].to_list()
    start = time.perf_counter()
    model = MarkovModel.fit(clicks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{model}: fitted in {time.perf_counter() - start:.1f} s, peak memory {peak:.2f} GiB")
    items = model.sample(30, seed=1)[0]
    for name in ("optimal", "balanced", "crr", "randomized_response"):
        session = Session(model, mechanism=name, epsilon=1.0)
        spent = []
        for code in items:
            value = model.alphabet.decode([code])[0]
            begun = time.perf_counter()
            session.release(value)
            spent.append(1e3 * (time.perf_counter() - begun))
        print(f"  {name:<22} one release: median {statistics.median(spent):.2f} ms, largest {max(spent):.2f} ms")


def errors(path: str, sessions: int = 60, clicks: int = 5) -> None:
    """Wrong items at ε = 1 and 3 a click: one by one, five at a time, randomised response; released and smoothed."""
    import numpy as np
    import polars as pl

    from seqveil import MarkovModel, Session, decode_stream

    everyone = pl.read_parquet(path).rename({"session": "user"})
    held_out = everyone.filter(pl.col("seq").list.len() >= clicks).sample(sessions, seed=1)
    rest = everyone.join(held_out.select("user"), on="user", how="anti")["seq"].to_list()
    # the alphabet must hold items that only the held-out sessions saw
    items = everyone["seq"].explode().unique().sort().to_list()
    model = MarkovModel.fit(rest, alphabet=items)
    truth = held_out["seq"].list.head(clicks).to_list()
    print(f"  share of wrong items, first {clicks} clicks of {sessions} held-out sessions")
    for epsilon, (name, size) in itertools.product(
        (1.0, 3.0), (("optimal", 1), ("tree", 1), ("tree", clicks), ("randomized_response", 1))
    ):
        wrong, smoothed = [], []
        for raw in truth:
            session = Session(model, mechanism=name, epsilon=epsilon * size, batch=size, seed=1)
            parts = (raw[at : at + size] for at in range(0, len(raw), size))
            released = [item for part in parts for item in session.release_batch(part) or []]
            sent = session.paths if session.setting.in_batches else released
            distributions = decode_stream(model, sent, mechanism=name, epsilon=epsilon * size, batch=size)
            wrong.append(np.mean(np.array(released) != raw))
            smoothed.append(np.mean(np.array(model.alphabet.decode(distributions.argmax(1))) != raw))
        title = f"{name}, {size} at a time"
        print(f"  ε={epsilon:g} a click  {title:<34}{np.mean(wrong):>7.3f}{np.mean(smoothed):>9.3f} smoothed")


def run(data: Path | None) -> list[str]:
    path = find(data, "shopclicks/diginetica_train.parquet")
    if path is None:
        return []
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    print(done.stdout, end="")
    return done.stdout.splitlines()
