"""Draw the map of the layers, docs/img/layers.png, and print it: `python scripts/layer_map.py [PICTURE]`.

A layer is one of `[tool.importlinter]` in pyproject.toml, highest first; its modules are those that lie in its
folder, or the layer's own names where it has no folder. An arrow says how many imports go from the modules of a layer
to those of a lower one, counted in the import graph (a module that imports another counts once). What is in no layer,
the names of `seqveil` itself and `__main__`, is left out.
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grimp
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "img" / "layers.png"
INK, PAPER, LINE = "#1a2126", "#f3f6f8", "#0b6e99"
WRAP = 92  # letters of a line in a box
LANES = 20  # arrows past a layer that a picture can show
LETTER, BAR, GAP, LANE = 0.075, 0.19, 0.5, 0.42  # inches: a letter, a line of text, between boxes, between arrows

Imports = Counter[tuple[int, int]]  # from layer, to layer


@dataclass(frozen=True)
class Layer:
    """A layer: the packages and modules it is made of, and what lies in them."""

    name: str
    roots: tuple[str, ...]
    modules: tuple[str, ...]

    def __contains__(self, module: str) -> bool:
        return any(module == root or module.startswith(f"{root}.") for root in self.roots)


def stated_layers(pyproject: Path = ROOT / "pyproject.toml") -> tuple[str, list[str]]:
    """The package and its layers, highest first, as pyproject.toml states them."""
    config = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]
    package: str = config["root_package"]
    for contract in config["contracts"]:
        if contract["type"] == "layers" and contract.get("containers", [package]) == [package]:
            return package, contract["layers"]
    raise SystemExit(f"pyproject.toml has no contract of layers of {package}; state one under [tool.importlinter]")


def layers_of(package: str, stated: list[str], graph: grimp.ImportGraph) -> list[Layer]:
    found = []
    for line in stated:
        names = [name.strip(" ()").removeprefix(f"{package}.") for name in re.split("[|:]", line)]
        roots = tuple(f"{package}.{name}" for name in names)
        inside = sorted(graph.find_children(roots[0])) if len(roots) == 1 else []
        modules = tuple(module.rpartition(".")[2] for module in inside) or tuple(names)
        found.append(Layer(" | ".join(names) if inside or len(names) == 1 else "", roots, modules))
    return found


def imports_between(found: list[Layer], graph: grimp.ImportGraph) -> Imports:
    at = {module: k for module in graph.modules for k, layer in enumerate(found) if module in layer}
    counted: Imports = Counter()
    for importer, here in at.items():
        for imported in graph.find_modules_directly_imported_by(importer):
            there = at.get(imported, here)
            if there != here:
                counted[here, there] += 1
    return counted


def as_text(found: list[Layer], imports: Imports, graph: grimp.ImportGraph) -> str:
    """The map in lines: each layer, its modules, and what it imports from which other."""
    lines = []
    for here, layer in enumerate(found):
        held = sum(module in layer for module in graph.modules)
        lines.append(f"{' | '.join(root.partition('.')[2] for root in layer.roots)}  ({held} modules)")
        if layer.name:
            lines += textwrap.wrap(", ".join(layer.modules), WRAP, initial_indent="    ", subsequent_indent="    ")
        for there, other in enumerate(found):
            if count := imports[here, there]:
                lines.append(f"    -> {other.name or ' | '.join(other.modules)}: {count} imports")
    return "\n".join(lines)


def draw(found: list[Layer], imports: Imports, path: Path) -> None:
    """Boxes from the highest layer down, arrows to the next layer between them, those past a layer in lanes beside."""
    texts = [textwrap.wrap(", ".join(layer.modules), WRAP, break_on_hyphens=False) for layer in found]
    heights = [BAR * (len(text) + 2 * bool(layer.name)) + 0.25 for layer, text in zip(found, texts, strict=True)]
    tops = [sum(heights[:k]) + GAP * k for k in range(len(found))]
    wide = LETTER * min(WRAP, max(len(line) for text in texts for line in text)) + 0.6
    far = sorted((pair for pair in imports if abs(pair[1] - pair[0]) > 1), key=lambda pair: (pair[1] - pair[0], pair))
    if len(far) > LANES:
        far = []  # no picture shows so many; the text does
    size = (wide + LANE * (len(far) + 1) + 0.2, tops[-1] + heights[-1] + 0.2)
    figure = Figure(figsize=size, dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.1, size[0] - 0.1), ylim=(size[1] - 0.1, -0.1))
    axes.axis("off")
    for layer, text, top, height in zip(found, texts, tops, heights, strict=True):
        _box(axes, layer.name, text, (0, top), wide, height)
    for here in range(len(found) - 1):
        if count := imports[here, here + 1]:
            ends = (wide / 2, tops[here] + heights[here]), (wide / 2, tops[here + 1])
            _arrow(axes, [*ends], count, (wide / 2 + 0.22, (ends[0][1] + ends[1][1]) / 2))
    edges = [_places(layer, far, top, height) for layer, (top, height) in enumerate(zip(tops, heights, strict=True))]
    for lane, pair in enumerate(far):
        across, leave, enter = wide + LANE * (lane + 1), edges[pair[0]][pair], edges[pair[1]][pair]
        corners = [(wide, leave), (across, leave), (across, enter), (wide, enter)]
        _arrow(axes, corners, imports[pair], (across, tops[pair[0]] + heights[pair[0]] + GAP / 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _places(layer: int, far: list[tuple[int, int]], top: float, height: float) -> dict[tuple[int, int], float]:
    """Heights on a layer's right edge: arrows that end there above those that begin, in an order that crosses least."""
    coming = [pair for pair in far if pair[1] == layer]
    going = [pair for pair in far if pair[0] == layer]
    order = [*coming, *reversed(going)]
    return {pair: top + height * (k + 1) / (len(order) + 1) for k, pair in enumerate(order)}


def _box(axes: Any, name: str, text: list[str], corner: tuple[float, float], wide: float, height: float) -> None:
    left, top = corner
    axes.add_patch(FancyBboxPatch(corner, wide, height, "round,pad=0,rounding_size=0.08", fc=PAPER, ec=INK, lw=1.2))
    if name:
        axes.text(left + 0.25, top + 0.31, name, size=13, weight="bold", color=INK, va="center")
    below = top + 0.125 + BAR * 2 * bool(name)
    for k, line in enumerate(text):
        axes.text(left + 0.25, below + BAR * (k + 0.5), line, size=9, color=INK, va="center", family="monospace")


def _arrow(axes: Any, corners: list[tuple[float, float]], count: int, label: tuple[float, float]) -> None:
    before, end = corners[-2:]
    axes.plot(*zip(*corners[:-1], strict=True), color=LINE, lw=1.2, solid_joinstyle="round")
    head = {"arrowstyle": "-|>", "color": LINE, "lw": 1.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}
    axes.annotate("", xy=end, xytext=before, arrowprops=head)
    around = {"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none"}
    axes.text(*label, str(count), size=10, color=LINE, ha="center", va="center", weight="bold", bbox=around, zorder=3)


def main(picture: Path = TARGET) -> None:
    package, stated = stated_layers()
    graph = grimp.build_graph(package, cache_dir=None)
    found = layers_of(package, stated, graph)
    imports = imports_between(found, graph)
    print(as_text(found, imports, graph))
    draw(found, imports, picture)
    print(f"picture: {picture.name}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
