"""The paper's figures and tables, one small module each: numbers first (JSON), pictures and verdicts from them.

A module has TITLE, NEEDS (names of the real data sets it reads), `run(context)` → {"name", "title", "numbers",
"claims"}, and `draw(figure, result)`, which fills a matplotlib figure from that result alone.
"""

from __future__ import annotations

import importlib
from types import ModuleType

EXPERIMENTS = {
    "fig3": "experiments.fig3",
    "fig4": "experiments.fig4",
    "fig5": "experiments.fig5",
    "fig6": "experiments.fig6",
    "fig7": "experiments.fig7",
    "fig8": "experiments.fig8",
    "fig9": "experiments.fig9",
    "table1": "experiments.table1",
}


def module(name: str) -> ModuleType:
    return importlib.import_module(EXPERIMENTS[name])
