"""`seqveil bench`: the figures that README and docs state, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqveil.evaluate.commands.beside import beside_the_package
from seqveil.interfaces.commands import options as o


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; all of them by default.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the real data sets  [default: SEQVEIL_DATA]")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the figures are kept.")] = Path("out/bench.json"),
    json: o.Json = False,
) -> None:
    """Measure what README and docs claim, side by side in one run.

    Figures that moved by more than half since the run kept in FILE are named at the end.

    Example: seqveil bench scale store --data ../data
    """
    import contextlib
    import sys

    from seqveil.interfaces.commands.output import emit_json

    runner = beside_the_package("benchmarks.__main__")
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        results = runner.measure(names or [], data, out)
    if json:
        emit_json(results)
