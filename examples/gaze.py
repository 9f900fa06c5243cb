"""Gaze at 30 Hz: x and y with times in milliseconds, samples that come unevenly, and some that are missing.

An eye tracker loses the eye at every blink, and its clock is not even. In slots of a tenth of a second there is one
release for each, blink or not; `--missing hold` lets the gaze stay where it was. The model is fitted on some people and
the others are released. Run it with `python examples/gaze.py`, or name a folder to keep the files.
"""

from __future__ import annotations

import random
from pathlib import Path

import seqveil as sv
from journeys import in_folder, seqveil, write

START = 1_715_000_000_000  # milliseconds since 1970
FRAME = 1000 / 30


def gaze(path: Path, people: range, seconds: float = 12.0, seed: int = 1) -> None:
    """Write where people look: they rest for a while, jump, blink, and leave the screen now and then."""
    draw = random.Random(seed + people.start)
    rows = []
    for person in people:
        now, x, y, blink = 0.0, draw.random(), draw.random(), 0
        while now < 1000 * seconds:
            if draw.random() < 0.08:
                x, y = draw.random(), min(max(draw.gauss(0.5, 0.2), 0.0), 1.0)
            blink = max(0, blink - 1) or (draw.randint(3, 9) if draw.random() < 0.01 else 0)
            seen = "," if blink else f"{x + draw.gauss(0, 0.005):.4f},{y + draw.gauss(0, 0.005):.4f}"
            rows.append(f"P{person:02},{START + now:.0f},{seen}")
            now += FRAME * draw.uniform(0.8, 1.2) + (FRAME if draw.random() < 0.02 else 0.0)  # frames are skipped
    write(path, "participant,timestamp,x,y", rows)


def journey(folder: Path) -> None:
    """The five commands."""
    known, others, model, out, decoded = (
        folder / name for name in ("known.csv", "others.csv", "gaze.model", "released.csv", "decoded.csv")
    )
    gaze(known, range(20))
    gaze(others, range(20, 24))
    columns = "--user-column participant --value-column x,y"
    seqveil(f"inspect {known}")
    seqveil(f"fit {known} -o {model} {columns} --missing hold --grid auto --every-seconds 0.1")
    policy = folder / "policy.toml"
    sv.Policy(epsilon=4.0, block=8, budget=sv.Budget(total=60.0)).save(policy)
    seqveil(f"release {others} --model {model} {columns} --policy {policy} --out {out}")
    seqveil(f"audit {out} --model {model}")
    seqveil(f"decode {out} --model {model} --truth {others} --out {decoded}")


if __name__ == "__main__":
    in_folder(journey)
