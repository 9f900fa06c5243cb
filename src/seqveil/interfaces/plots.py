"""Pictures (matplotlib, an extra): the ones of the page, from Python.

`tradeoff` of a plan, and one `stream` with belief and account. Each returns a matplotlib figure, shows itself in a
notebook, and is saved where a path is given.

Readers who are colour-blind can tell the colours apart, and colour is never the only difference between two lines:
markers or dashes differ too.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.distortion import error_name
from seqveil.core.errors import needs_extra
from seqveil.core.kernel import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqveil.interfaces.planning import Plan

__all__ = ["stream", "tradeoff"]

RAW, RELEASED, DECODED, LIMIT = "#8a949c", "#b8430f", "#0b6e99", "#1a2126"  # as on the page
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKS = ("o", "^", "D", "v", "P", "h", "X")
HEAT = ("#ffffff", "#9ecae1", "#2b7bba", "#08415c")  # of a probability, darker the more: read alike by all
NAMED = 24  # symbols up to which an axis writes their names
LONG = 18  # letters of a name that fit beside an axis


def blank(size: tuple[float, float]) -> Figure:
    """An empty figure of so many inches that draws itself without a display, and shows itself in a notebook."""
    with needs_extra("a picture", "plots"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=size, layout="constrained", dpi=130)

    def as_png() -> bytes:
        """The picture as a notebook shows it."""
        held = io.BytesIO()
        figure.savefig(held, format="png")
        return held.getvalue()

    figure._repr_png_ = as_png  # type: ignore[attr-defined]
    return figure


def finish(figure: Figure, path: str | Path | None) -> Figure:
    """Take the frame's upper and right side away, and save the figure where a path is given."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path)
    return figure


def tradeoff(plan: Plan, path: str | Path | None = None) -> Figure:
    """Error against what a stream, or each secret, may reveal in total: one line for each way to release.

    >>> from seqveil import MarkovModel
    >>> from seqveil.interfaces import planning
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> figure = tradeoff(planning.plan(model, length=5, people=10))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['one by one', 'blocks of 5', 'best guess, no release']
    """
    figure = blank((7.5, 4.2))
    axes = figure.subplots()
    ways = list(dict.fromkeys(row.way for row in plan.rows))
    for way, colour, mark in zip(ways, COLOURS, MARKS, strict=False):
        rows = sorted((row for row in plan.rows if row.way == way), key=lambda row: row.total)
        look: dict[str, Any] = {"color": colour, "marker": mark, "ms": 5}
        axes.plot([row.total for row in rows], [row.error for row in rows], label=way, **look)
    axes.axhline(plan.guess, color=LIMIT, lw=1, ls="--", label="best guess, no release")
    secrets = bool(plan.wishes.secrets)
    title = "What keeping a secret costs" if secrets else "What a budget buys"
    axes.set(ylabel=error_name(plan.distortion), title=title, ylim=(0, None))
    axes.set_xlabel("ε of the secret" if secrets else f"total ε of a stream of {plan.length} events")
    ticks = sorted({row.total for row in plan.rows})
    if ticks[-1] > 8 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return finish(figure, path)


def stream(
    raw: Ints,
    released: Ints,
    distributions: Floats,
    leakage: Sequence[float],
    composed: Sequence[float],
    labels: Sequence[str],
    path: str | Path | None = None,
    *,
    budget: float | None = None,
) -> Figure:
    """One stream: raw, released and decoded; what a receiver believes; the account against Σε and the budget.

    `raw` and `released` are codes (-1: nothing was released), `distributions` (T, n) the decoder's distributions,
    `leakage` and `composed` the account after each release. Drawing raw data is for its owner's eyes: the picture is as
    private as the stream.
    """
    figure, steps = blank((9, 7)), np.arange(len(raw))
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 2])
    made = np.asarray(released)
    shown = made >= 0
    top.step(steps, raw, where="mid", color=RAW, lw=4, alpha=0.6, label="raw")
    top.plot(steps[shown], made[shown], "o", color=RELEASED, ms=4, label="released")
    top.step(steps, distributions.argmax(1), where="mid", color=DECODED, lw=1.3, label="decoded")
    top.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    from matplotlib.colors import LinearSegmentedColormap

    look: dict[str, Any] = {"cmap": LinearSegmentedColormap.from_list("belief", HEAT), "vmin": 0, "vmax": 1}
    drawn = middle.imshow(distributions.T, aspect="auto", origin="lower", interpolation="nearest", **look)
    middle.plot(steps, raw, "o", mfc="white", mec=RELEASED, mew=1.0, ms=3.5)
    middle.set_title("What an observer believes (dots: the truth)", fontsize=9, loc="left")
    figure.colorbar(drawn, ax=middle, pad=0.01, aspect=12, ticks=[0, 0.5, 1]).outline.set_visible(False)
    # from the least to the greatest symbol that occurs or that an observer ever holds likely
    seen = np.concatenate([raw, made[shown], np.flatnonzero(distributions.max(0) > 0.05)])
    for axes in (top, middle):
        if len(labels) > NAMED:  # too many names to read
            axes.set_ylabel("symbol")
        else:
            plain = [label.replace("$", r"\$") for label in labels]  # a dollar sign begins a formula
            short = [label if len(label) <= LONG else label[: LONG - 1] + "…" for label in plain]
            axes.set_yticks(np.arange(len(labels)), short, fontsize=7)
        axes.set_ylim(seen.min() - 0.6, seen.max() + 0.6)
    bottom.step(steps, leakage, where="mid", color=DECODED, lw=2.5, label="exact leakage of what was released")
    bottom.step(steps, composed, where="mid", color=LIMIT, ls="--", lw=1.2, label="Σε, what composition charges")
    if budget is not None:
        bottom.axhline(budget, color=RELEASED, lw=1.2, ls=":", label="budget")
    bottom.set(xlabel="release", ylabel="leakage (nats)", ylim=(0, None))
    bottom.legend(frameon=False, fontsize=8, loc="lower right")
    bottom.set_xlim(-0.5, len(raw) - 0.5)
    return finish(figure, path)
