"""The rows of a comparison as a picture: error, leakage, and what was disclosed about each declared secret."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core.distortion import error_name
from seqveil.evaluate.compare.measure import ComparisonRow
from seqveil.interfaces.plots import DECODED, LIMIT, RELEASED, blank, epsilon_axis, finish, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREYS = ("#5f6a72", "#8a949c", "#a9b2b9", "#3f484f")
BEYOND = 1e3  # a lift without bound is drawn here
NOTHING = 1e-2  # what discloses less about a secret is drawn here


def picture(rows: Sequence[ComparisonRow], distortion: str, path: str | Path | None = None) -> Figure:
    """Filtered error (left) and worst measured lift over claimed ε (right), and a panel for each declared secret.

    Unsound ones are dashed with crosses, limits grey and dotted, batches have squares.
    """
    secrets = max((row.secrets for row in rows), key=len, default=())
    figure = blank((11.5 + 4.5 * len(secrets), 5))
    left, right, *others = figure.subplots(1, 2 + len(secrets))
    made = [row for row in rows if row.filtered is not None and row.epsilon is not None]
    greys, colours, crosses = cycle(GREYS), looks(), cycle(("x", "+", "1"))
    for label in dict.fromkeys(row.label for row in sorted(made, key=lambda row: row.limit)):
        line = sorted((row for row in made if row.label == label), key=lambda row: row.epsilon or 0.0)
        look: dict[str, Any] = {"color": next(greys), "ls": ":", "marker": ".", "lw": 1.2}
        if not line[0].limit:
            look = next(colours) | {"ls": "-", "lw": 1.3} | ({"marker": "s"} if line[0].waits else {})
            if any(row.status == "unsound" for row in line):
                look = {"color": look["color"], "ls": "--", "marker": next(crosses)}
        left.plot([row.epsilon for row in line], [row.filtered for row in line], label=label, **look)
        claims = [(row.epsilon, _share(row)) for row in line if row.lift_most is not None and row.claimed]
        if claims:
            right.plot(*zip(*claims, strict=True), **look)
    right.axhline(1.0, color=LIMIT, lw=1)
    left.set(ylabel=f"{error_name(distortion)}, filtered", ylim=(0, None), title="Error")
    beyond = f"worst lift measured / claimed ({BEYOND:g}: no bound)"
    right.set(ylabel=beyond, yscale="log", title="Leakage (above 1: more than it says)")
    for axes in (left, right):
        axes.set_xscale("log")
        epsilon_axis(axes, [row.epsilon for row in made if row.epsilon is not None])
        axes.set_xlabel("ε an event")
    for place, axes in enumerate(others):
        _secret(axes, [row for row in rows if len(row.secrets) > place], place, distortion)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return finish(figure, path)


def _share(row: ComparisonRow) -> float:
    return min(max(row.lift_most or 0.0, -(row.lift_least or 0.0)) / (row.claimed or 1.0), BEYOND)


def _secret(axes: Axes, rows: Sequence[ComparisonRow], place: int, distortion: str) -> None:
    """Filtered error against the most that was disclosed about a secret, each row by name, beside the ε declared."""
    known = [row for row in rows if row.filtered is not None and row.secrets[place].log_odds_worst is not None]
    points = {(row.label, None if row.limit else row.epsilon): row for row in known}  # a limit once
    for number, ((label, epsilon), row) in enumerate(points.items()):
        one = row.secrets[place]
        most = min(max(one.log_odds_worst or 0.0, NOTHING), BEYOND)
        axes.plot(most, row.filtered or 0.0, "o" if one.kept else "x", color=DECODED if one.kept else RELEASED, ms=6)
        side, right = ("right", -5) if most > 100 else ("left", 5)
        where: dict[str, Any] = {"xytext": (right, 3 if number % 2 else -9), "textcoords": "offset points", "ha": side}
        axes.annotate(label + ("" if epsilon is None else f", ε = {epsilon:g}"), (most, row.filtered or 0.0),
                      fontsize=6, **where)  # fmt: skip
    declared = rows[0].secrets[place]
    axes.axvline(declared.epsilon, color=LIMIT, lw=1)
    beyond = f"most disclosed, log of the odds' factor ({BEYOND:g}: unbounded)"
    axes.set(xscale="log", xlabel=beyond, ylabel=f"{error_name(distortion)}, filtered", ylim=(0, None))
    axes.set_title(f"{declared.secret} (line: ε = {declared.epsilon:g})")
