"""What every picture shares: an empty figure, colours that colour-blind readers can tell apart, and the saving of it.

Colour is never the only difference between two lines: markers, fill or dashes differ too.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RAW, RELEASED, DECODED, LIMIT = "#8a949c", "#b8430f", "#0b6e99", "#1a2126"  # as on the page
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKS = ("o", "^", "D", "v", "P", "h", "X")
GREYS = ("#5f6a72", "#8a949c", "#a9b2b9", "#3f484f")
HEAT = ("#ffffff", "#9ecae1", "#2b7bba", "#08415c")  # one hue, darker the more: read alike by all
NAMED = 24  # symbols up to which an axis writes their names


def blank(size: tuple[float, float]) -> Figure:
    """An empty figure of so many inches that draws itself without a display, and shows itself in a notebook."""
    with needs_extra("a picture", "plots"):
        return _picture()(figsize=size, layout="constrained", dpi=130)


@cache
def _picture() -> type[Figure]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            held = io.BytesIO()
            self.savefig(held, format="png")
            return held.getvalue()

    return Picture


def finish(figure: Figure, path: str | Path | None) -> Figure:
    """Take the frame's upper and right side away, and save the figure where a path is given."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path)
    return figure


def looks() -> Iterator[dict[str, Any]]:
    """Colours and markers for lines, one after another: no two of the first fourteen share both colour and fill."""
    while True:
        for filled, (colour, mark) in product((True, False), zip(COLOURS, MARKS, strict=True)):
            yield {"color": colour, "marker": mark, "markerfacecolor": colour if filled else "white", "ms": 5}


def heat_map() -> Any:
    """Colours of a probability: white for 0, dark for 1."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("belief", HEAT)


def name_symbols(axes: Axes, labels: Sequence[str]) -> None:
    """Names of the symbols on the vertical axis, where there are few enough to read."""
    if len(labels) <= NAMED:
        axes.set_yticks(np.arange(len(labels)), [_short(label) for label in labels], fontsize=7)
    else:
        axes.set_ylabel("symbol")


def epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> None:
    """A tick at every ε that was computed; by factors where they span more than eight times the least."""
    ticks = sorted(set(epsilons))
    if ticks[-1] > 8 * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)


def _short(label: str, most: int = 18) -> str:
    plain = label.replace("$", r"\$")  # a dollar sign begins a formula
    return plain if len(plain) <= most else plain[: most - 1] + "…"
