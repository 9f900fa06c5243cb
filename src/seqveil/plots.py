"""Pictures (matplotlib, an extra): the trade-off of a plan, and one released stream with its account."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.errors import InputError
from seqveil.kernel import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from seqveil.planning import Plan

RAW, RELEASED, DECODED, LIMIT = "#7a7a7a", "#d1495b", "#00798c", "#30343f"


def tradeoff(plan: Plan, path: str | Path | None = None) -> Figure:
    """Expected error against ε, one line a mechanism and schedule, with the best guess for comparison."""
    figure = _figure((7, 4.2))
    axes = figure.subplots()
    lines = sorted({(row.mechanism, row.period > 1) for row in plan.rows}, key=lambda key: (key[0] != "optimal", key))
    for name, pulsed in lines:
        rows = sorted((r for r in plan.rows if (r.mechanism, r.period > 1) == (name, pulsed)), key=lambda r: r.epsilon)
        label = f"{name}, pulsed" if pulsed else name
        line = axes.plot([r.epsilon for r in rows], [r.error for r in rows], "o-", label=label)[0]
        if any(r.decoded_error < r.error - 1e-9 for r in rows):
            decoded = [r.decoded_error for r in rows]
            axes.plot([r.epsilon for r in rows], decoded, ":", color=line.get_color(), label=f"{label} + decoder")
    axes.axhline(plan.rows[0].constant_error, color=LIMIT, lw=1, ls="--", label="best guess, no release")
    axes.set(
        xlabel="ε per release", ylabel=f"expected {plan.distortion} error", title="What a budget buys", ylim=(0, None)
    )
    if max(r.epsilon for r in plan.rows) > 8 * min(r.epsilon for r in plan.rows):
        axes.set_xscale("log")
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return _done(figure, path)


def stream(
    raw: Ints,
    released: Ints,
    laws: Floats,
    leakage: Sequence[float],
    composed: Sequence[float],
    labels: Sequence[str],
    path: str | Path | None = None,
) -> Figure:
    """One stream: raw, released and decoded; what a receiver believes; the account against Σε.

    `laws` (T, n) are the decoder's laws, `leakage` and `composed` the account after each release. Drawing raw data is
    for its owner's eyes: the picture is as private as the stream.
    """
    figure = _figure((9, 7))
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 2])
    steps = np.arange(len(raw))
    top.step(steps, raw, where="mid", color=RAW, lw=3, alpha=0.5, label="raw")
    top.plot(steps, released, "o", color=RELEASED, ms=4, label="released")
    top.step(steps, laws.argmax(1), where="mid", color=DECODED, lw=1.3, label="decoded")
    _symbol_axis(top, labels)
    top.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    middle.imshow(laws.T, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1)
    middle.plot(steps, raw, ".", color=RELEASED, ms=3)
    _symbol_axis(middle, labels)
    middle.set_title("What a receiver believes (dots: the truth)", fontsize=9, loc="left")
    bottom.plot(steps, leakage, color=DECODED, lw=2.5, label="exact leakage of what was released")
    bottom.plot(steps, composed, color=LIMIT, ls="--", lw=1.2, label="Σε, what composition charges")
    bottom.set(xlabel="release", ylabel="leakage (nats)")
    bottom.legend(frameon=False, fontsize=8)
    return _done(figure, path)


def _symbol_axis(axes: Axes, labels: Sequence[str]) -> None:
    if len(labels) <= 24:
        axes.set_yticks(np.arange(len(labels)), labels, fontsize=7)


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib; install it with: pip install 'seqveil[plots]'") from None
    figure = Figure(figsize=size, layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    return figure


def _done(figure: Any, path: str | Path | None) -> Any:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path)
    return figure
