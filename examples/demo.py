"""The sixty-second tour (`make demo`): clicks of 300 people, a model, a plan, a release, its audit, a picture."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl

import seqveil as sv
from seqveil import plots

PAGES = ["front", "news", "sport", "weather", "tech", "travel", "health", "opinion"]
OUT = Path("out/demo")


def people() -> pl.DataFrame:
    """Clicks of 300 people who stay on a page for a while and leave for the front page or a favourite."""
    rng = np.random.default_rng(4)
    n = len(PAGES)
    leave = rng.dirichlet(np.full(n, 0.4), n) + 0.6 * np.eye(n)[0]
    chain = 0.75 * np.eye(n) + 0.25 * leave / leave.sum(1, keepdims=True)
    clicks = sv.MarkovModel(np.full(n, 1 / n), chain).sample(40, users=300, seed=4)
    users = np.repeat([f"person{k:03d}" for k in range(300)], 40)
    return pl.DataFrame({"user": users, "value": [PAGES[c] for c in clicks.ravel()]})


def command(line: str) -> None:
    print(f"\n$ seqveil {line}", flush=True)
    subprocess.run([sys.executable, "-m", "seqveil", *line.split()], check=True)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)  # `release` does not draw again over an earlier release
    OUT.mkdir(parents=True)
    people().write_csv(OUT / "clicks.csv")
    command(f"fit {OUT}/clicks.csv -o {OUT}/model.npz")
    command(f"plan {OUT}/model.npz --epsilon 0.5,1,2 --find-period --plot {OUT}/plan.png")
    command(f"release {OUT}/clicks.csv --model {OUT}/model.npz --epsilon 1 --every 3 --out {OUT}/released.csv")
    command(f"audit {OUT}/released.csv --model {OUT}/model.npz")
    command(f"decode {OUT}/released.csv --model {OUT}/model.npz --out {OUT}/decoded.csv")
    one_stream()


def one_stream() -> None:
    """One person's stream in Python: released click by click, decoded, drawn."""
    model = sv.MarkovModel.load(OUT / "model.npz")
    raw = pl.read_csv(OUT / "clicks.csv").filter(pl.col("user") == "person007")["value"].to_list()
    session = sv.Session(model, epsilon=1.0, schedule=3)
    released, leakage, composed = [], [], []
    for page in raw:
        released.append(session.release(page))
        leakage.append(session.leakage)
        composed.append(session.standing().by_composition)
    laws = sv.decode(model, released, epsilon=1.0, schedule=3)
    decoded = model.alphabet.decode(laws.argmax(1))
    print("\nperson007, click by click (raw / released / decoded):")
    for name, stream in (("raw", raw), ("released", released), ("decoded", decoded)):
        print(f"  {name:<9}" + " ".join(page[:2] for page in stream))
    wrong = [sum(a != b for a, b in zip(raw, s, strict=True)) for s in (released, decoded)]
    print(f"  wrong: {wrong[0]} of {len(raw)} as released, {wrong[1]} after the decoder")
    print(f"  leaked: {session.leakage:.2f} of the {composed[-1]:g} that composition charges, on the worse side")
    codes = model.alphabet.encode
    labels = [str(value) for value in model.alphabet.decode(range(model.n))]
    plots.stream(codes(raw), codes(released), laws, leakage, composed, labels, OUT / "stream.png")
    print(f"\npictures: {OUT}/plan.png, {OUT}/stream.png")
    print(f"the page, to look at it and try other settings: .venv/bin/seqveil studio {OUT}/clicks.csv")


if __name__ == "__main__":
    main()
