"""A comparison as a picture: error against ε, and how much of its claim each mechanism's worst release reaches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.comparison import Row
from seqveil.plots import LIMIT, _done, _figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREYS = ("#8a8a8a", "#a8a8a8", "#606060", "#c0c0c0")
COLOURS = ("C0", "C1", "C2", "C4", "C5", "C6", "C8", "C9")
DARK = ("#1b3a57", "#8a4b08", "#1d5c2e", "#5d3a82", "#b8860b", "#d81b60", "#7f5539", "#2a9d8f")
BEYOND = 1e3  # a lift without bound is drawn here


def picture(rows: Sequence[Row], distortion: str, path: Path | None = None) -> Figure:
    """Filtered error (left) and worst measured lift over claimed ε (right); unsound ones dashed, limits grey."""
    figure: Any = _figure((11, 5))
    left, right = figure.subplots(1, 2)
    made = [row for row in rows if row.filtered is not None]
    labels = list(dict.fromkeys(row.label for row in sorted(made, key=lambda row: row.limit)))
    greys, colours = cycle(GREYS), cycle(COLOURS + DARK)
    for label in labels:
        line = sorted((row for row in made if row.label == label), key=lambda row: row.epsilon)
        look = _look(line, next(greys) if line[0].limit else next(colours))
        left.plot([row.epsilon for row in line], [row.filtered for row in line], label=label, **look)
        measured = [(row.epsilon, _share(row)) for row in line if row.lift_most is not None and row.claimed]
        if measured:
            right.plot(*zip(*measured, strict=True), **look)
    right.axhline(1.0, color=LIMIT, lw=1)
    left.set(ylabel=f"{distortion} error, filtered", ylim=(0, None), title="Error")
    right.set(
        ylabel=f"worst lift measured / claimed ({BEYOND:g}: no bound)", yscale="log", title="Leakage of a release"
    )
    ticks = sorted({row.epsilon for row in made})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("ε an event")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return _done(figure, path)


def _look(line: Sequence[Row], colour: str) -> dict[str, Any]:
    if line[0].limit:
        return {"color": colour, "ls": ":", "marker": ".", "lw": 1.2}
    if any(row.status == "unsound" for row in line):
        return {"color": colour, "ls": "--", "marker": "x"}
    return {"color": colour, "ls": "-", "marker": "s" if line[0].batch > 1 else "o", "ms": 4}


def _share(row: Row) -> float:
    most, least = row.lift_most or 0.0, row.lift_least or 0.0
    return min(max(most, -least) / (row.claimed or 1.0), BEYOND)
