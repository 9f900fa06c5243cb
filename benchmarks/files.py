"""Files of real sizes: release, audit and decode beside each other and beside the bare sparse products, and batches.

All figures are processor time of one core (`taskset -c 0`), and ratios come from one run,
so that a busy machine moves both sides alike.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tree import _walk
from seqveil import MarkovModel, Session, audit, decode, release
from seqveil.core import bulk
from seqveil.core.distortion import Distortion, hamming
from seqveil.core.mechanisms import Batch
from seqveil.core.mechanisms import tree as TREE
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams

PLACES = 5135  # as many as one of the files that people brought
FAVOURITES = 20  # places that one person goes to
RELEASED = 300  # people of a thousand whose rows are released
SIDE_BY_SIDE = 64  # beliefs of one sparse product
Row = dict[str, Any]


def run(data: Path | None) -> Row:
    print(f"the compiled path is {'loaded' if bulk.load() else 'not there'}")
    return {"symbols": _symbols(), "places": _places(), "batches": _batches(), "calls": _calls()}


def _spent(work: Callable[[], object]) -> float:
    """Seconds of the processor that some work takes."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _people(people: int, rows: int, n: int, kinds: int) -> tuple[np.ndarray, np.ndarray]:
    """Users and symbols of streams of very different lengths, all mixed: each goes among a few symbols of its own."""
    rng = np.random.default_rng(8)
    share = rng.lognormal(0.0, 0.8, people)
    lengths = np.maximum(1, np.round(share / share.sum() * rows)).astype(int)
    popular = 1.0 / np.arange(1, n + 1)
    own = [rng.choice(n, size=min(n, kinds), p=popular / popular.sum()) for _ in range(people)]
    symbols = np.concatenate([rng.choice(kept, size=length) for kept, length in zip(own, lengths, strict=True)])
    users = np.repeat(np.arange(people), lengths)
    mixed = rng.permutation(users.size)
    return users[mixed], symbols[mixed]


def _commands(folder: Path, model: MarkovModel, users: np.ndarray, codes: np.ndarray, epsilon: float) -> Row:
    """Processor time of release, audit and decode of one file."""
    import polars as pl

    raw, released = folder / "raw.parquet", folder / "released.parquet"
    pl.DataFrame({"user": users, "value": codes}).write_parquet(raw)
    policy = Policy(epsilon=epsilon, mechanism="optimal")
    few = users < 10  # all code is compiled, or loaded, before anything is timed
    pl.DataFrame({"user": users[few], "value": codes[few]}).write_parquet(folder / "few.parquet")
    release(folder / "few.parquet", model, policy, out=released)
    decode(released, model, out=folder / "decoded.parquet")
    return {
        "release": _spent(lambda: release(raw, model, policy, out=released, force=True)),
        "audit": _spent(lambda: audit(released, model)),
        "decode": _spent(lambda: decode(released, model, out=folder / "decoded.parquet")),
    }


def _symbols() -> Row:
    """44,809 rows of 193 people over 10 symbols."""
    users, codes = _people(193, 44_809, 10, 6)
    model = MarkovModel.fit([codes[users == user] for user in range(193)], alphabet=range(10))
    with tempfile.TemporaryDirectory() as folder:
        found = _commands(Path(folder), model, users, codes, 1.0)
    found["decode_over_release"] = found["decode"] / found["release"]
    print(f"{users.size} rows, 193 people, 10 symbols, ε = 1, seconds of one core")
    print(f"  release {found['release']:.2f}, audit {found['audit']:.2f}, decode {found['decode']:.2f}: decode takes "
          f"{found['decode_over_release']:.2f} times release (aim: 2 at most)", flush=True)  # fmt: skip
    return found


def _places() -> Row:
    """A chain over 5,135 places fitted to 148,000 rows; three people in ten are released."""
    users, codes = _people(1000, 148_000, PLACES, FAVOURITES)
    model = MarkovModel.fit([codes[users == user] for user in range(1000)], alphabet=range(PLACES))
    some = users < RELEASED
    bare = _bare(model)
    with tempfile.TemporaryDirectory() as folder:
        found = _commands(Path(folder), model, users[some], codes[some], 3.0)
    rows = int(some.sum())
    print(f"{rows} rows of {RELEASED} people, {PLACES} places, {model.chain.nnz} transitions, `optimal`, ε = 3")
    print(f"  one bare sparse product {1e6 * bare:.0f} µs a belief; µs a row, and times the products that are needed")
    # decoding goes forward and back, and the check of the model it rests on leads three beliefs on
    for name, products in (("release", 1), ("audit", 1), ("decode", 5)):
        each = found[name] / rows
        found[f"{name}_ratio"] = each / (products * bare)
        print(
            f"  {name:<8}{1e6 * each:>7.0f} µs{each / (products * bare):>7.1f} of {products} (aim: 4 at most)",
            flush=True,
        )
    return {"bare_us": 1e6 * bare, **found}


def _bare(model: MarkovModel) -> float:
    """Seconds that one belief's sparse product takes, alone or with others, whichever is less."""
    rng = np.random.default_rng(1)
    beliefs = np.ascontiguousarray(rng.dirichlet(np.full(model.size, 0.05), SIDE_BY_SIDE).T)
    apart = list(np.ascontiguousarray(beliefs.T))
    together = min(_spent(lambda: model.inflow @ beliefs) for _ in range(5))
    alone = min(_spent(lambda: [model.inflow @ belief for belief in apart]) for _ in range(5))
    return min(together, alone) / SIDE_BY_SIDE


def _batches() -> list[Row]:
    """Milliseconds a batch of `tree` from the second one on, and single symbols of 32 users at once."""
    rng, rows = np.random.default_rng(3), []
    sticky = MarkovModel(np.full(100, 0.01), 0.8 * np.eye(100) + 0.2 * rng.dirichlet(np.full(100, 0.3), 100))
    walk, distance = _walk(100)
    cases = [(sticky, hamming(), 30, 10.0), (walk, distance, 10, 25.0), (walk, distance, 25, 60.0)]
    print("`tree`, ε = 10, milliseconds of one core a batch (median)")
    for model, costs, length, aim in cases:
        each = _batch(model, costs, length)
        print(f"  n = {model.n:<6} w = {length:<3}{each:>8.1f} ms (aim: {aim:g} at most)", flush=True)
        rows.append({"n": model.n, "w": length, "ms": each})
    return rows


def _batch(model: MarkovModel, costs: Distortion, length: int) -> float:
    randomness, times = SeededRandomness(1), []
    for stream in model.sample(5 * length, 3, seed=2):
        states = model.initial
        for begin in range(0, len(stream), length):
            batch = Batch(model, states, length, 10.0, costs)
            begun = time.process_time()
            sent = TREE.rule(batch).draw(stream[begin : begin + length], randomness)
            states = sent.ahead
            times.append(time.process_time() - begun)
    return 1e3 * float(np.median(times))


def _calls() -> Row:
    """Microseconds of `Session.release`, compiled and not, and releases a second of 32 users at once by `tree`."""
    model = MarkovModel(np.full(17, 1 / 17), np.full((17, 17), 0.02) + 0.66 * np.eye(17))
    found, loaded = {}, bulk._used
    for name, code in (("compiled", loaded), ("numpy", False)):
        bulk._used = code
        session = Session(model, mechanism="optimal", epsilon=1.0)
        found[name] = 1e6 * min(_spent(lambda: [session.release(k % 17) for k in range(300)]) for _ in range(5)) / 300  # noqa: B023
    bulk._used = loaded
    quick, plain = found["compiled"], found["numpy"]
    print(f"`Session.release`, 17 symbols: compiled {quick:.0f} µs (aim: 66), without numba {plain:.0f} µs (aim: 200)")
    walk, distance = _walk(100)
    streams = CodeStreams(Policy(epsilon=1.0, mechanism="tree", distortion=distance).on(walk))
    users = [f"user {k}" for k in range(32)]
    events = walk.sample(6, 32, seed=1)
    spent = [_spent(lambda: streams.release(users, events[:, k : k + 1])) for k in range(6)]  # noqa: B023
    found["tree_a_second"] = 32.0 / float(np.median(spent))
    print(f"`tree` one by one, 10,000 symbols, 32 users at once: {found['tree_a_second']:.0f} a second (aim: 1,000)")
    return found
