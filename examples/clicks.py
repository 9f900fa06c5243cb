"""Clicks of generated people on a news site, in two files: `past.csv` to learn from, `today.csv` to release.

Nobody is in both files. There are two kinds of readers, who differ in the pages that they like, so that clicks
far apart are still correlated; a chain that knows only the last click misses that. Run it with
`python examples/clicks.py`, or name a folder to write to.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

PAGES = ["front", "news", "sport", "weather", "travel", "health"]
LIKES = [[9, 6, 1, 3, 2, 1], [5, 1, 8, 2, 4, 1]]  # how often each kind of reader goes where, when they move on
STAYS = 0.55


def reader(draw: random.Random, clicks: int) -> list[str]:
    """One person's clicks: stay on a page, or go on to one that this kind of reader likes."""
    likes = draw.choices(LIKES, [3, 2])[0]
    page = draw.choices(PAGES, [6, 2, 2, 1, 1, 0.3])[0]
    made = []
    for _ in range(clicks):
        made.append(page)
        page = page if draw.random() < STAYS else draw.choices(PAGES, likes)[0]
    return made


def write(path: Path, people: int, seed: int, clicks: int = 20) -> None:
    """A file of so many people: a row a click, in the order of the clicks."""
    if path.exists():
        sys.exit(f"{path} is there already, and is not written over; name another folder")
    draw = random.Random(seed)
    rows = [f"{path.stem}{who:04},{page}" for who in range(people) for page in reader(draw, clicks)]
    path.write_text("\n".join(["user,value", *rows]) + "\n", encoding="utf-8")
    print(f"wrote {path}: {people} people, {clicks} clicks each")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    write(folder / "past.csv", 2000, seed=1)
    write(folder / "today.csv", 300, seed=2)
