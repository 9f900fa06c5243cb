"""A comparison as a picture: error against ε, and how much of its claim each mechanism's worst release reaches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from seqveil.interfaces.plots._canvas import GREYS, LIMIT, blank, epsilon_axis, finish, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEYOND = 1e3  # a lift without bound is drawn here


class Raced(Protocol):
    """What the picture needs of one line of a comparison (`seqveil.evaluate.comparison.Row` is one)."""

    @property
    def label(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def status(self) -> str: ...
    @property
    def limit(self) -> bool: ...
    @property
    def batch(self) -> int: ...
    @property
    def claimed(self) -> float | None: ...
    @property
    def filtered(self) -> float | None: ...
    @property
    def lift_most(self) -> float | None: ...
    @property
    def lift_least(self) -> float | None: ...


def comparison(rows: Sequence[Raced], distortion: str, path: str | Path | None = None) -> Figure:
    """Filtered error (left) and worst measured lift over claimed ε (right).

    Unsound ones are dashed with crosses, limits grey and dotted, batches have squares.
    """
    figure = blank((11.5, 5))
    left, right = figure.subplots(1, 2)
    made = [row for row in rows if row.filtered is not None]
    labels = list(dict.fromkeys(row.label for row in sorted(made, key=lambda row: row.limit)))
    greys, colours, crosses = cycle(GREYS), looks(), cycle(("x", "+", "1"))
    for label in labels:
        line = sorted((row for row in made if row.label == label), key=lambda row: row.epsilon)
        look = _limit(next(greys)) if line[0].limit else _look(line[0], next(colours))
        if not line[0].limit and any(row.status == "unsound" for row in line):
            look = {"color": look["color"], "ls": "--", "marker": next(crosses)}
        left.plot([row.epsilon for row in line], [row.filtered for row in line], label=label, **look)
        measured = [(row.epsilon, _share(row)) for row in line if row.lift_most is not None and row.claimed]
        if measured:
            right.plot(*zip(*measured, strict=True), **look)
    right.axhline(1.0, color=LIMIT, lw=1)
    left.set(ylabel=f"{distortion} error, filtered", ylim=(0, None), title="Error")
    beyond = f"worst lift measured / claimed ({BEYOND:g}: no bound)"
    right.set(ylabel=beyond, yscale="log", title="Leakage (above 1: more than it says)")
    for axes in (left, right):
        axes.set_xscale("log")
        epsilon_axis(axes, [row.epsilon for row in made])
        axes.set_xlabel("ε an event")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return finish(figure, path)


def _limit(grey: str) -> dict[str, Any]:
    return {"color": grey, "ls": ":", "marker": ".", "lw": 1.2}


def _look(row: Raced, look: dict[str, Any]) -> dict[str, Any]:
    return look | {"ls": "-", "lw": 1.3, "marker": "s" if row.batch > 1 else look["marker"]}


def _share(row: Raced) -> float:
    most, least = row.lift_most or 0.0, row.lift_least or 0.0
    return min(max(most, -least) / (row.claimed or 1.0), BEYOND)
