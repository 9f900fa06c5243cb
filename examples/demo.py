"""The tour of `make demo`: clicks of generated people, a model of some of them, and a release of the others.

It follows the README: inspect, fit, plan, release with a declared secret, audit, attack, decode. What it made
is left in out/demo, with two pictures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import clicks
import polars as pl

import seqveil as sv
from seqveil import plots

OUT = Path("out/demo")


def command(line: str) -> None:
    print(f"\n$ seqveil {line}", flush=True)
    subprocess.run([sys.executable, "-m", "seqveil", *line.split()], check=True)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)  # `release` does not draw again over an earlier release
    OUT.mkdir(parents=True)
    clicks.write(OUT / "past.csv", 2000, seed=1)
    clicks.write(OUT / "today.csv", 180, seed=2)
    model, released = OUT / "past.model", OUT / "released.csv"
    command(f"inspect {OUT}/past.csv")
    command(f"fit {OUT}/past.csv -o {model}")
    command(f"plan {model} --seen-by partner --secret ever:health --out {OUT}/policy.toml")
    command(f"release {OUT}/today.csv --model {model} --policy {OUT}/policy.toml --out {released}")
    command(f"audit {released} --model {model}")
    command(f"attack {released} --truth {OUT}/today.csv")
    command(f"decode {released} --model {model} --truth {OUT}/today.csv --out {OUT}/decoded.csv")
    one_stream(sv.MarkovModel.load(model))


def one_stream(model: sv.MarkovModel) -> None:
    """One person's stream in Python, without a secret: blocks of six clicks, until a budget is gone."""
    streams = pl.read_csv(OUT / "today.csv").partition_by("user")
    raw = max((stream["value"].to_list() for stream in streams), key=lambda pages: len(set(pages)))  # that varies most
    session = sv.Session(model, epsilon=6.0, budget=12.0, block=6)
    released, leakage, composed = [], [], []
    for page in raw:
        released.append(session.release(page))
        leakage.append(session.leakage)
        composed.append(session.account.epsilon_spent)
    distributions = sv.decode_stream(model, released, epsilon=6.0, budget=12.0, block=6)
    decoded = model.alphabet.decode(distributions.argmax(1))
    print("\nWithout a secret, six clicks share 6 nats, and all of them 12, one person click by click:")
    for name, stream in (("raw", raw), ("released", released), ("decoded", decoded)):
        print(f"  {name:<9}" + " ".join(page[:2] for page in stream))
    codes, labels = model.alphabet.encode, [str(value) for value in model.alphabet.decode(range(model.n))]
    plots.stream(codes(raw), codes(released), distributions, leakage, composed, labels, OUT / "stream.png", budget=12.0)
    print(f"\na picture: {OUT}/stream.png")
    print(f"the page, to look at it and try other settings: .venv/bin/seqveil studio {OUT}/past.csv")


if __name__ == "__main__":
    main()
