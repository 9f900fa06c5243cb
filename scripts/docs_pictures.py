"""Draw the pictures of README and docs into docs/img from synthetic streams: `python scripts/docs_pictures.py [DIR]`.

Seeds are fixed, so the same versions of numpy and matplotlib draw the same pictures. Nothing here is a private release.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import seqveil as sv
from seqveil import datasets, planning, plots
from seqveil.core import words

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import clicks

TARGET = Path(__file__).parent.parent / "docs" / "img"
SEED = 7


def what_a_budget_buys(folder: Path) -> None:
    """The plan for the synthetic clicks: one by one, in blocks, and in batches of five."""
    model = datasets.synthetic("clicks", users=2000, length=60, seed=SEED).model()
    made = planning.plan(model, planning.Wishes(wait=4, epsilons=(0.05, 0.1, 0.25, 0.5, 1.0)), length=40, seed=SEED)
    plots.tradeoff(made, folder / "tradeoff.png")


def a_secret(folder: Path) -> None:
    """Somebody of the generated clicks who read about health: what was read and released, and what one may suspect."""
    from matplotlib.figure import Figure

    draw = random.Random(1)
    model = sv.MarkovModel.fit([clicks.reader(draw, 20) for _ in range(2000)])
    read = next(each for each in iter(lambda: clicks.reader(draw, 20), None) if 2 <= each.count("health") <= 4)
    released, suspected = tracked(model, read, epsilon=1.0)
    _, as_it_is = tracked(model, read, epsilon=60.0)  # so large that every click is released as it is
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.25, 1])
    code = [*(page for page in clicks.PAGES if page != "health"), "health"].index
    steps, disclosed = range(1, 21), {"ms": 5, "color": plots.COLOURS[1]}
    top.plot(steps, [code(page) for page in read], "s", ms=11, mfc="none", mec="0.35", label="what was read")
    top.plot(steps, [code(page) for page in released], "o", **disclosed, label="what was released")
    top.axhspan(code("health") - 0.5, code("health") + 0.5, color=plots.COLOURS[1], alpha=0.1)
    top.set(yticks=range(len(clicks.PAGES)), yticklabels=sorted(clicks.PAGES, key=code))
    top.set_title("Twenty clicks of somebody who read about health")
    for name, shares, colour in (("as it is", as_it_is, "0.35"), ("with seqveil", suspected, plots.COLOURS[1])):
        below.step(range(21), [100 * share for share in shares], where="post", color=colour, lw=2, label=name)
    low, high = (100 * words.moved(suspected[0], side) for side in (-1.0, 1.0))
    below.axhspan(low, high, color=plots.COLOURS[1], alpha=0.12, label="promised at ε = 1")
    below.set(xlabel="click", ylabel="%", ylim=(0, 103), xlim=(0, 20.6), xticks=[1, 5, 10, 15, 20])
    below.set_title("What somebody who sees the stream suspects: did they read about health?")
    for axes in (top, below):
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(folder / "secret.png", dpi=110)


def tracked(model: sv.MarkovModel, read: list[str], epsilon: float) -> tuple[list[str], list[float]]:
    """What is released of somebody's clicks, and what an observer suspects about health before and after each."""
    secret = sv.secrets.ever("health", epsilon=epsilon, window=20)
    session = sv.Session(model, mechanism="guarded", secrets=[secret], seed=SEED)
    released, suspected = [], [session.trackers.rows[0][0].latest.prior]
    for page in read:
        released.append(session.release(page))
        suspected.append(session.trackers.rows[0][0].latest.posterior)
    return released, suspected


def main(folder: Path = TARGET) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (a_secret, what_a_budget_buys):
        draw(folder)
        print((draw.__doc__ or "").partition("\n")[0])
    made = ("secret.png", "tradeoff.png")
    print(f"pictures: {', '.join(str(folder / name) for name in made)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
