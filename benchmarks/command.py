"""`seqveil bench`, a command that a clone has: the figures that README and docs state, measured here."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; all of them by default.")
    ] = None,
    data: Annotated[Path | None, o.option("DIR", "Folder of the real data sets  [default: SEQVEIL_DATA]")] = None,
    out: Annotated[Path, o.option("FILE", "Where the figures are kept.")] = Path("out/bench.json"),
    json: o.Json = False,
) -> None:
    """Measure what README and docs claim, side by side in one run.

    Figures that moved by more than half since the run kept in FILE are named at the end.

    Example: seqveil bench scale store --data ../data
    """
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the clone, wherever the command runs
    from benchmarks import __main__ as runner

    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        results = runner.measure(names or [], data, out)
    if json:
        emit_json(results)
