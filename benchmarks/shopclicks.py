"""The 43,097-item shop clicks: memory of the fit, and the time of one instantaneous release."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.timing import find

SCRIPT = "from benchmarks.shopclicks import fit; import sys; fit(sys.argv[1])"


def fit(path: str) -> None:
    """In a process of its own: fit, then print peak memory, and release a few clicks with each mechanism."""
    import polars as pl

    from seqveil import MarkovModel, Session

    clicks = pl.read_parquet(path).rename({"session": "user", "seq": "value"}).explode("value")
    start = time.perf_counter()
    model = MarkovModel.fit(clicks, smoothing=1.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{model}: fitted in {time.perf_counter() - start:.1f} s, peak memory {peak:.2f} GiB")
    items = model.sample(30, seed=1)[0]
    for name in ("optimal", "balanced", "crr", "randomized_response"):
        session = Session(model, name, 1.0)
        spent = []
        for code in items:
            value = model.alphabet.decode_one(int(code))
            begun = time.perf_counter()
            session.release(value)
            spent.append(1e3 * (time.perf_counter() - begun))
        print(f"  {name:<22} one release: median {statistics.median(spent):.2f} ms, largest {max(spent):.2f} ms")


def run(data: Path | None) -> list[str]:
    path = find(data, "shopclicks/diginetica_train.parquet")
    if path is None:
        return []
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    print(done.stdout, end="")
    return done.stdout.splitlines()
