"""The rows of a comparison as a picture: error, leakage, and what was disclosed about each declared secret."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core.distortion import error_name
from seqveil.evaluate.comparison.rows import ComparisonRow
from seqveil.interfaces.plots import DECODED, LIMIT, RELEASED, blank, epsilon_axis, finish, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREYS = ("#5f6a72", "#8a949c", "#a9b2b9", "#3f484f")
BEYOND = 1e3  # a lift without bound is drawn here
NOTHING_TOLD = 1e-2  # what tells less about a secret is drawn here


def picture(rows: Sequence[ComparisonRow], distortion: str, path: str | Path | None = None) -> Figure:
    """Filtered error (left) and worst measured lift over claimed ε (right).

    Unsound ones are dashed with crosses, limits grey and dotted, batches have squares. Declared secrets get a panel
    each: error against the most that was disclosed.
    """
    about = max((row.secrets for row in rows), key=len, default=())
    figure = blank((11.5 + 4.5 * len(about), 5))
    left, right, *others = figure.subplots(1, 2 + len(about))
    for k, axes in enumerate(others):
        _disclosed(axes, rows, k, distortion)
    made = [row for row in rows if row.filtered is not None and row.epsilon is not None]
    labels = list(dict.fromkeys(row.label for row in sorted(made, key=lambda row: row.limit)))
    greys, colours, crosses = cycle(GREYS), looks(), cycle(("x", "+", "1"))
    for label in labels:
        line = sorted((row for row in made if row.label == label), key=lambda row: row.epsilon or 0.0)
        look = _limit(next(greys)) if line[0].limit else _look(line[0], next(colours))
        if not line[0].limit and any(row.status == "unsound" for row in line):
            look = {"color": look["color"], "ls": "--", "marker": next(crosses)}
        left.plot([row.epsilon for row in line], [row.filtered for row in line], label=label, **look)
        measured = [(row.epsilon, _share(row)) for row in line if row.lift_most is not None and row.claimed]
        if measured:
            right.plot(*zip(*measured, strict=True), **look)
    right.axhline(1.0, color=LIMIT, lw=1)
    left.set(ylabel=f"{error_name(distortion)}, filtered", ylim=(0, None), title="Error")
    beyond = f"worst lift measured / claimed ({BEYOND:g}: no bound)"
    right.set(ylabel=beyond, yscale="log", title="Leakage (above 1: more than it says)")
    for axes in (left, right):
        axes.set_xscale("log")
        epsilon_axis(axes, [row.epsilon for row in made if row.epsilon is not None])
        axes.set_xlabel("ε an event")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return finish(figure, path)


def _disclosed(axes: Axes, rows: Sequence[ComparisonRow], place: int, distortion: str) -> None:
    """One secret: filtered error against the most disclosed about it, each row by name, beside the ε declared."""
    points = [(row, row.secrets[place]) for row in rows if len(row.secrets) > place]
    named = set[str]()
    for row, disclosed in points:
        if row.filtered is None or disclosed.log_odds_worst is None or (row.limit and row.label in named):
            continue
        named.add(row.label)
        most = min(max(disclosed.log_odds_worst, NOTHING_TOLD), BEYOND)
        kept = disclosed.log_odds_worst <= disclosed.epsilon
        axes.plot(most, row.filtered, "o" if kept else "x", color=DECODED if kept else RELEASED, ms=6)
        own = "" if row.epsilon is None or row.limit else f", ε = {row.epsilon:g}"
        side, lower = ("right", -5) if most > 100 else ("left", 5), -9 if len(named) % 2 else 3  # apart from each other
        place_of: dict[str, Any] = {
            "xytext": (side[1], lower),
            "textcoords": "offset points",
            "ha": side[0],
            "fontsize": 6,
        }
        axes.annotate(row.label + own, (most, row.filtered), **place_of)
    promised = points[0][1]
    axes.axvline(promised.epsilon, color=LIMIT, lw=1)
    beyond = f"most disclosed, log of the odds' factor ({BEYOND:g}: unbounded)"
    axes.set(xscale="log", xlabel=beyond, ylabel=f"{error_name(distortion)}, filtered", ylim=(0, None))
    axes.set_title(f"{promised.secret} (line: ε = {promised.epsilon:g})")


def _limit(grey: str) -> dict[str, Any]:
    return {"color": grey, "ls": ":", "marker": ".", "lw": 1.2}


def _look(row: ComparisonRow, look: dict[str, Any]) -> dict[str, Any]:
    return look | {"ls": "-", "lw": 1.3, "marker": "s" if row.batch > 1 else look["marker"]}


def _share(row: ComparisonRow) -> float:
    most, least = row.lift_most or 0.0, row.lift_least or 0.0
    return min(max(most, -least) / (row.claimed or 1.0), BEYOND)
