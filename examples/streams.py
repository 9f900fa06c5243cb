"""Generated files for the journeys: places in a town, rooms of a home, gaze on a page.

    python examples/streams.py places     # or home, or gaze

Each writes `past.csv`, to learn from, and `today.csv`, to release; nobody is in both.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

MONDAY = datetime(2024, 5, 6)
TOWN = {"work": (4.6, 3.4), "shop": (3.2, 1.1), "park": (1.3, 3.5), "clinic": (5.3, 0.8)}  # kilometres east and north
WORDS, PICTURE, PRICE = (500, 450), (1300, 350), (1450, 850)  # pixels on a page


def places(draw: random.Random, who: str) -> Iterator[str]:
    """A person's day, each half hour from six to ten: home, work, perhaps a shop, the park or the clinic."""
    home = draw.uniform(0.3, 2.0), draw.uniform(0.3, 2.5)
    stops = [TOWN["work"]] * draw.randint(12, 17)
    for name, chance in (("clinic", 0.25), ("shop", 0.6), ("park", 0.4)):
        if draw.random() < chance:
            stops += [TOWN[name]] * draw.randint(1, 3)
    day = ([home] * draw.randint(2, 6) + stops + [home] * 32)[:32]
    for at, (x, y) in enumerate(day):
        when = MONDAY + timedelta(hours=6, minutes=30 * at)
        yield f"{who},{when:%Y-%m-%dT%H:%M},{x + draw.gauss(0, 0.08):.3f},{y + draw.gauss(0, 0.08):.3f}"


def home(draw: random.Random, who: str) -> Iterator[str]:
    """In which room a household's motion sensors saw somebody last, each half hour of a day."""
    leaves, returns, out = draw.randint(14, 20), draw.randint(30, 38), draw.random() < 0.7
    for at in range(48):
        if at < 13 or at > 45:
            room = "bathroom" if draw.random() < 0.03 else "bedroom"
        elif out and leaves <= at < returns:
            room = "away"
        else:
            room = draw.choices(["kitchen", "living room", "bathroom"], [3, 5, 1])[0]
        yield f"{who},{MONDAY + timedelta(minutes=30 * at):%Y-%m-%dT%H:%M},{room}"


def gaze(draw: random.Random, who: str) -> Iterator[str]:
    """Ten seconds of gaze at 30 samples a second: a person reads, looks at the picture, and some look at the price."""
    time, target = draw.uniform(0, 0.1), WORDS
    while time < 10:
        if draw.random() < 0.02:
            target = draw.choices([WORDS, PICTURE, PRICE], [5, 3, 0.4])[0]
        x, y = target[0] + draw.gauss(0, 90), target[1] + draw.gauss(0, 70)
        yield f"{who},{time:.3f},{min(max(x, 0), 1919):.0f},{min(max(y, 0), 1079):.0f}"
        time += draw.uniform(0.03, 0.037)


Maker = Callable[[random.Random, str], Iterator[str]]
KINDS: dict[str, tuple[Maker, str, int, int]] = {  # with the header, and how many people are in the two files
    "places": (places, "person,time,x,y", 600, 12),
    "home": (home, "household,time,room", 400, 120),
    "gaze": (gaze, "person,time,x,y", 150, 40),
}


def write(kind: str, folder: Path = Path(), seed: int = 1) -> None:
    """Both files of one kind."""
    maker, header, learned, released = KINDS[kind]
    draw = random.Random(seed)
    for name, people in (("past", learned), ("today", released)):
        if (folder / f"{name}.csv").exists():
            sys.exit(f"{folder / name}.csv is there already, and is not written over; name another folder")
        rows = [row for number in range(people) for row in maker(draw, f"{name}{number:03}")]
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        print(f"wrote {folder / name}.csv: {people} people, {len(rows)} rows")


if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in KINDS:
        sys.exit(f"expected a kind of stream among {', '.join(KINDS)}; got {' '.join(sys.argv[1:]) or 'none'}")
    write(sys.argv[1], *map(Path, sys.argv[2:3]))
