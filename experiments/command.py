"""`seqveil reproduce`, a command that a clone has: the paper's figures and tables, rerun, with each claim judged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, bar, check_interrupted, emit_json, table


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="fig3, fig4, …, or all.")],
    out: Annotated[Path, o.option("DIR", "Folder of numbers, pictures and the page.", "--out", "-o")],
    data: Annotated[Path | None, o.option("DIR", "Folder of the real data sets  [default: SEQVEIL_DATA]")] = None,
    synthetic: Annotated[bool, o.flag("--synthetic", "Generated streams instead of real ones.")] = False,
    quick: Annotated[bool, o.flag("--quick", "Fewer streams and fewer ε: minutes, not an hour.")] = False,
    seed: Annotated[int, o.option("N", "Seed of everything random.")] = 0,
    json: o.Json = False,
) -> None:
    """Rerun the paper's experiments and judge its claims.

    Numbers go to DIR/NAME.json, pictures to DIR/NAME.png, all of it to DIR/report.html. What is finished is kept in
    DIR/parts: a run that was stopped goes on from there, and the same seed gives the same numbers.

    Example: seqveil reproduce all --out out/paper --synthetic --quick
    """
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the clone, wherever the command runs
    from experiments import runner
    from experiments.context import Context

    if seed < 0:
        raise InputError(f"expected a seed that is a whole number ≥ 0, got {seed}")
    chosen = runner.chosen(names)
    try:
        with _progress(len(chosen)) as (tell, finished):
            options = {"data": data, "synthetic": synthetic, "quick": quick, "seed": seed}
            results = runner.reproduce(chosen, Context(out, tell=tell, **options), finished)
    except INTERRUPTIONS:
        print(f"interrupted; finished parts stay in {out / 'parts'}, run it again to go on", file=sys.stderr)
        raise typer.Exit(1) from None
    if json:
        emit_json({"report": str(out / "report.html"), "experiments": [_facts(result) for result in results]})
    else:
        _say(results, out)


@contextmanager
def _progress(count: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Two functions, for a part that begins and an experiment that is finished; a bar where a terminal shows it."""
    if not sys.stderr.isatty():
        yield lambda text: check_interrupted(), lambda name: print(f"{name} done", file=sys.stderr)
        return
    from rich import progress as parts

    columns = (parts.TextColumn("{task.description}"), parts.BarColumn(), parts.MofNCompleteColumn())
    with bar(*columns, parts.TimeElapsedColumn()) as shown:
        task = shown.add_task("starting", total=count)

        def tell(text: str) -> None:
            check_interrupted()
            shown.update(task, description=text)

        yield tell, lambda name: shown.advance(task)


def _facts(result: dict[str, Any]) -> dict[str, Any]:
    return {"name": result["name"], "title": result["title"], "claims": result["claims"]}


def _say(results: list[dict[str, Any]], out: Path) -> None:
    rows = [(result["name"], claim["claim"], claim["verdict"]) for result in results for claim in result["claims"]]
    if rows:
        table(("", "claim", "verdict"), rows)
    print(f"numbers, pictures and reasons: {out / 'report.html'}")
