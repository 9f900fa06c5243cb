"""How much to smooth a fit: what held-out people's log-likelihood and the error of their releases make of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments import datasets
from experiments.generated import Dataset
from seqveil.core.filtering import log_likelihoods
from seqveil.core.fitting import fit_codes
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.decode import decode_codes

TRIED = (0.1, 1.0, 3.0, 10.0, 30.0)  # pseudo-events of a context
PEOPLE = (30, 300, 3_000)
HELD_OUT, EVENTS, EPSILON = 400, 20, 1.0


def sets(data: Path | None) -> Iterator[tuple[str, Dataset]]:
    """Few symbols and thousands of them, generated; and real clicks."""
    for kind in ("clicks", "items"):
        yield f"generated {kind}", datasets.synthetic(kind, PEOPLE[-1] + HELD_OUT, EVENTS, seed=1)
    if datasets.missing("msnbc", data):
        print("msnbc skipped: pass --data (or set SEQVEIL_DATA to) a folder that holds it")
    else:
        yield "msnbc", datasets.load("msnbc", data, users=200_000)


def rows(title: str, found: Dataset) -> Iterator[dict[str, object]]:
    """One for each number of people: a stream is its first events."""
    streams = [codes[:EVENTS] for codes in found.arrays() if len(codes) >= EVENTS]
    mixed = np.stack([streams[k] for k in np.random.default_rng(1).permutation(len(streams))]).astype(np.int64)
    held, others = mixed[:HELD_OUT], mixed[HELD_OUT:]
    users = np.repeat(np.arange(HELD_OUT), EVENTS)
    for people in PEOPLE:
        fitted = np.repeat(np.arange(people), EVENTS), others[:people].ravel()
        likely, wrong = [], []
        for each in TRIED:
            model = fit_codes(*fitted, found.alphabet, smoothing=each)
            likely.append(float(log_likelihoods(model, users, held.ravel()).mean()) / EVENTS)
            setting = Policy(epsilon=EPSILON, mechanism="optimal").on(model)
            made = CodeStreams(setting, randomness=SeededRandomness(3))
            codes = np.stack([made.release(range(HELD_OUT), step).codes for step in held.T], axis=1)
            wrong.append(float((decode_codes(setting, codes).argmax(2) != held).mean()))
        shown = "".join(f"{a:>9.2f} {b:.3f}" for a, b in zip(likely, wrong, strict=True))
        print(f"  {title:<18}{found.alphabet.n:>6}{people:>7}{shown}", flush=True)
        yield {"data": title, "people": people, "log_likelihood": likely, "wrong": wrong}


def run(data: Path | None) -> list[dict[str, object]]:
    """Print nats an event and the share of wrong estimates for each pseudo-count."""
    print(f"{HELD_OUT} held-out people, {EVENTS} events each: nats an event, and wrong after decode at ε = {EPSILON:g}")
    print(f"  {'data':<18}{'n':>6}{'people':>7}" + "".join(f"{each:>15g}" for each in TRIED))
    return [row for found in sets(data) for row in rows(*found)]
