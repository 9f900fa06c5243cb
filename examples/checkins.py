"""From a file of check-ins to a release that you understand: inspect, fit, release, audit, decode.

The file is generated, and has what such files have: a person, a time of which several rows may share one, a category
with some missing and many that few people ever chose, and semicolons. Run it with `python examples/checkins.py`, or
name a folder to keep the files: every step is a command that you can type.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

from journeys import in_folder, seqveil, write

OFTEN = ["home", "office", "coffee shop", "gym", "bar", "grocery", "park", "train station"]


def checkins(path: Path, people: int = 120, seed: int = 1) -> None:
    """Write a file of check-ins: who, when, and what kind of place."""
    draw = random.Random(seed)
    lines = []
    for person in range(people):
        now, habit = datetime(2024, 5, 1, 8), draw.sample(OFTEN, 4)
        for _ in range(5):  # visits to town
            now += timedelta(hours=draw.randint(6, 20))
            place = draw.choice(habit)
            for _ in range(draw.randint(2, 9)):
                now += timedelta(minutes=draw.choice([0, 15, 40, 90]))  # two check-ins may share a minute
                place = place if draw.random() < 0.4 else draw.choice(habit)
                seldom = draw.random()
                shown = "" if seldom < 0.02 else f"club no. {person}" if seldom < 0.05 else place
                lines.append(f"P{person:03};{now:%Y-%m-%d %H:%M};{shown}")
    write(path, "person;timestamp;category", lines)


def journey(folder: Path) -> None:
    """The five commands."""
    data, model, out, decoded = (folder / name for name in ("trips.csv", "trips.model", "released.csv", "decoded.csv"))
    checkins(data)
    columns = "--user-column person --value-column category"
    seqveil(f"inspect {data}")
    seqveil(f"fit {data} -o {model} {columns} --missing symbol --other 10")
    seqveil(f"release {data} --model {model} --epsilon 1 --budget 12 {columns} --out {out}")
    seqveil(f"audit {out} --model {model}")
    seqveil(f"decode {out} --model {model} --out {decoded}")


if __name__ == "__main__":
    in_folder(journey)
