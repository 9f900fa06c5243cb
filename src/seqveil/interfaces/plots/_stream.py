"""One stream: what was said, what it tells, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.interfaces.plots._canvas import DECODED, LIMIT, RAW, RELEASED, blank, finish, heat_map, name_symbols

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def stream(
    raw: Ints,
    released: Ints,
    laws: Floats,
    leakage: Sequence[float],
    composed: Sequence[float],
    labels: Sequence[str],
    path: str | Path | None = None,
    *,
    budget: float | None = None,
) -> Figure:
    """One stream: raw, released and decoded; what a receiver believes; the account against Σε and the budget.

    `raw` and `released` are codes (-1: nothing was released), `laws` (T, n) the decoder's laws, `leakage` and
    `composed` the account after each release. Drawing raw data is for its owner's eyes: the picture is as private as
    the stream.
    """
    _same_length(len(raw), released=released, laws=laws, leakage=leakage, composed=composed)
    figure = blank((9, 7))
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 2])
    steps = np.arange(len(raw))
    top.step(steps, raw, where="mid", color=RAW, lw=4, alpha=0.6, label="raw")
    shown = np.asarray(released) >= 0
    top.plot(steps[shown], np.asarray(released)[shown], "o", color=RELEASED, ms=4, label="released")
    top.step(steps, laws.argmax(1), where="mid", color=DECODED, lw=1.3, label="decoded")
    name_symbols(top, labels)
    top.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    _heat(figure, middle, laws, raw, labels)
    _account(bottom, leakage, composed, budget)
    for axes in (top, middle):
        axes.set_ylim(*_used(np.concatenate([raw, np.asarray(released)[shown]]), laws))
    bottom.set_xlim(-0.5, len(raw) - 0.5)
    return finish(figure, path)


def belief(laws: Floats, labels: Sequence[str], truth: Ints | None = None, path: str | Path | None = None) -> Figure:
    """What someone who sees the releases believes about each symbol, over time, as a heat map.

    `laws` (T, n): the decoder's laws for a receiver, or the beliefs before each release for what was predicted.
    `truth` adds the raw codes as dots; the picture is then as private as the stream.
    """
    _same_length(len(laws), **({} if truth is None else {"truth": truth}))
    figure = blank((9, 1.4 + 0.16 * min(max(laws.shape[1], 6), 24)))
    _heat(figure, figure.subplots(), laws, truth, labels)
    figure.axes[0].set_xlabel("release")
    return finish(figure, path)


def account(
    leakage: Sequence[float],
    composed: Sequence[float],
    budget: float | None = None,
    path: str | Path | None = None,
) -> Figure:
    """The exact leakage after each release, beside what composition charges, and the budget where there is one.

    >>> figure = account([0.5, 0.8, 0.8], [0.5, 1.0, 1.5], budget=1.0)
    >>> len(figure.axes[0].lines)
    3
    """
    _same_length(len(leakage), composed=composed)
    figure = blank((7.5, 3.2))
    _account(figure.subplots(), leakage, composed, budget)
    return finish(figure, path)


def _heat(figure: Figure, axes: Axes, laws: Floats, truth: Ints | None, labels: Sequence[str]) -> None:
    drawn = axes.imshow(laws.T, aspect="auto", origin="lower", cmap=heat_map(), vmin=0, vmax=1, interpolation="nearest")
    if truth is not None:
        axes.plot(np.arange(len(truth)), truth, "o", mfc="white", mec=RELEASED, mew=1.0, ms=3.5)
    name_symbols(axes, labels)
    said = "What an observer believes" + ("" if truth is None else " (dots: the truth)")
    axes.set_title(said, fontsize=9, loc="left")
    figure.colorbar(drawn, ax=axes, pad=0.01, aspect=12, ticks=[0, 0.5, 1]).outline.set_visible(False)


def _used(codes: Ints, laws: Floats) -> tuple[float, float]:
    """From the least to the greatest symbol that occurs or that an observer ever holds likely."""
    seen = np.union1d(codes, np.flatnonzero(laws.max(0) > 0.05))
    return float(seen.min()) - 0.6, float(seen.max()) + 0.6


def _account(axes: Axes, leakage: Sequence[float], composed: Sequence[float], budget: float | None) -> None:
    steps = np.arange(len(leakage))
    look: dict[str, Any] = {"where": "mid"}
    axes.step(steps, leakage, color=DECODED, lw=2.5, label="exact leakage of what was released", **look)
    axes.step(steps, composed, color=LIMIT, ls="--", lw=1.2, label="Σε, what composition charges", **look)
    if budget is not None:
        axes.axhline(budget, color=RELEASED, lw=1.2, ls=":", label="budget")
    axes.set(xlabel="release", ylabel="leakage (nats)", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _same_length(length: int, **others: Sequence[float] | Ints | Floats) -> None:
    for name, values in others.items():
        if len(values) != length:
            raise InputError(f"expected {name} for {length} releases, got {len(values)}; draw one and the same stream")
