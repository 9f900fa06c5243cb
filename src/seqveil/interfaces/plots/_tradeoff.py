"""The trade-off of a plan: what a budget buys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seqveil.interfaces.plots._canvas import LIMIT, blank, epsilon_axis, finish, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqveil.receive.planning import Plan, Row


def tradeoff(plan: Plan, path: str | Path | None = None) -> Figure:
    """Expected error against ε, one line a mechanism and schedule, with the best guess for comparison.

    Dotted: after the receiver's online decoder, where that errs less than the release.

    >>> from seqveil import MarkovModel
    >>> from seqveil.receive import planning
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> figure = tradeoff(planning.plan(model, [0.5, 1.0], length=5, users=10))
    >>> [line.get_label() for line in figure.axes[0].lines][::3]
    ['optimal', 'best guess, no release']
    """
    figure = blank((7.5, 4.2))
    axes = figure.subplots()
    names = sorted({_label(row) for row in plan.rows}, key=lambda name: (not name.startswith("optimal"), name))
    for name, look in zip(names, looks(), strict=False):
        rows = sorted((row for row in plan.rows if _label(row) == name), key=lambda row: row.epsilon)
        bounds = [row.epsilon for row in rows]
        axes.plot(bounds, [row.error for row in rows], label=name, **look)
        if any(row.decoded_error < row.error - 1e-9 for row in rows):
            decoded = [row.decoded_error for row in rows]
            axes.plot(bounds, decoded, ":", color=look["color"], label=f"{name} + decoder")
    axes.axhline(plan.rows[0].constant_error, color=LIMIT, lw=1, ls="--", label="best guess, no release")
    axes.set(ylabel=f"expected {plan.distortion} error", title="What a budget buys", ylim=(0, None))
    axes.set_xlabel("ε an event" if any(row.batch > 1 for row in plan.rows) else "ε per release")
    epsilon_axis(axes, [row.epsilon for row in plan.rows])
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return finish(figure, path)


def _label(row: Row) -> str:
    if row.batch > 1:
        return f"{row.mechanism}, {row.batch} at a time"
    return f"{row.mechanism}, pulsed" if row.period > 1 else row.mechanism
