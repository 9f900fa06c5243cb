"""`seqveil bench`: the figures that README and docs state, measured here."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json

DataSets = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder of the real data sets  [default: SEQVEIL_DATA]")
]


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; all of them by default.")
    ] = None,
    data: DataSets = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the figures are kept.")] = Path("out/bench.json"),
    json: o.Json = False,
) -> None:
    """Measure what README and docs claim, side by side in one run.

    Figures that moved by more than half since the run kept in FILE are named at the end.

    Example: seqveil bench scale store --data ../data
    """
    runner = repository_module("benchmarks.__main__")
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        results = runner.measure(names or [], data, out)
    if json:
        emit_json(results)


def repository_module(name: str) -> ModuleType:
    """A module that is in the repository and not in the package, found beside the package or where the command runs."""
    first = name.split(".")[0]
    for root in (Path(__file__).parents[4], Path.cwd()):
        if (root / first / "__init__.py").is_file() and (root / "src" / "seqveil").is_dir():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module(name)
    raise InputError(
        f"the {first} are not part of the installed package; clone the repository and run this command from there"
    )
