"""Check-ins at hundreds or thousands of places with coordinates: an error is a distance, "nearest" is on the map.

Two files are generated: the places of a town (name, lat, lon), and who was where when. The model is fitted on some
people; the others are released, so that an error is counted in metres, checked, and decoded. Run it with
`python examples/places.py`, name a folder to keep the files, and pass `--many` for 5,135 places.
"""

from __future__ import annotations

import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

from journeys import in_folder, seqveil, write

TOWN = (48.8566, 2.3522)
FEW, MANY = 600, 5_135


def places(path: Path, count: int, draw: random.Random) -> list[tuple[float, float]]:
    """Write the list of places, denser in the middle of the town."""
    where = [(round(draw.gauss(TOWN[0], 0.03), 5), round(draw.gauss(TOWN[1], 0.045), 5)) for _ in range(count)]
    write(path, "name,lat,lon", [f"place {k},{lat},{lon}" for k, (lat, lon) in enumerate(where)])
    return where


def checkins(path: Path, people: range, where: list[tuple[float, float]], draw: random.Random) -> None:
    """Write who was where when: everyone has a few places of their own, most of them near one another."""
    rows = []
    for person in people:
        home = draw.choice(where)
        near = sorted(range(len(where)), key=lambda k: abs(where[k][0] - home[0]) + abs(where[k][1] - home[1]))
        habit = draw.sample(near[:60], 6) + draw.sample(near, 2)
        now = datetime(2024, 5, 1, 8)
        for _ in range(draw.randint(8, 16)):
            now += timedelta(minutes=draw.choice([20, 45, 180, 600]))
            rows.append(f"P{person:03},{now:%Y-%m-%dT%H:%M},place {draw.choice(habit)}")
    write(path, "user,time,venue", rows)


def journey(folder: Path) -> None:
    """The six commands."""
    listed, known, others, model, out, decoded = (
        folder / name for name in ("places.csv", "known.csv", "others.csv", "m.model", "released.csv", "decoded.csv")
    )
    draw = random.Random(1)
    where = places(listed, MANY if "--many" in sys.argv else FEW, draw)
    checkins(known, range(150), where, draw)
    checkins(others, range(150, 170), where, draw)
    seqveil(f"inspect {known}")
    seqveil(f"fit {known} -o {model} --value-column venue --points {listed} --smoothing 1")
    how = "--epsilon 3 --mechanism tree --distortion metres --budget 60"
    seqveil(f"release {others} --model {model} {how} --value-column venue --out {out}")
    seqveil(f"audit {out} --model {model}")
    seqveil(f"decode {out} --model {model} --truth {others} --out {decoded}")


if __name__ == "__main__":
    in_folder(journey)
