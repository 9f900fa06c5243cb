"""A mouse pointer at irregular times: cut the screen into cells, take a symbol every half second, release, check.

Events come only while the pointer moves, so that releasing each of them would show when somebody was active. In slots
there is one release for every half second, from the first to the last of the file, whatever happened. A few rows of the
generated file are far outside the screen, as real ones are; `--grid auto` does not mind them. Run it with
`python examples/pointer.py`, or name a folder to keep the files.
"""

from __future__ import annotations

import random
from pathlib import Path

from journeys import in_folder, seqveil, write

WIDTH, HEIGHT = 1920, 1080


def pointer(path: Path, people: int = 12, seconds: float = 40.0, seed: int = 1) -> None:
    """Write a file of pointer positions: who, when, where."""
    draw = random.Random(seed)
    rows = []
    for person in range(people):
        now, x, y = draw.uniform(0, 10), draw.uniform(0, WIDTH), draw.uniform(0, HEIGHT)
        while now < seconds:
            x = min(max(x + draw.gauss(0, 80), 0), WIDTH)
            y = min(max(y + draw.gauss(0, 50), 0), HEIGHT)
            bad = draw.random() < 0.001
            rows.append((now, f"P{person:02}", -1e9 if bad else round(x, 1), 7e8 if bad else round(y, 1)))
            now += draw.expovariate(20) if draw.random() < 0.97 else draw.uniform(1, 8)  # bursts, and pauses
    write(path, "user,time,x,y", [f"{who},{now:.3f},{x},{y}" for now, who, x, y in sorted(rows)])


def journey(folder: Path) -> None:
    """The four commands."""
    data, model, out, decoded = (folder / name for name in ("pointer.csv", "pointer.model", "out.csv", "decoded.csv"))
    pointer(data)
    seqveil(f"fit {data} -o {model} --value-column x,y --grid auto --every-seconds 0.5 --slot last,pad")
    seqveil(f"release {data} -m {model} --value-column x,y --epsilon 2 --out {out}")
    seqveil(f"audit {out} --model {model}")
    seqveil(f"decode {out} --model {model} --truth {data} --out {decoded}")


if __name__ == "__main__":
    in_folder(journey)
