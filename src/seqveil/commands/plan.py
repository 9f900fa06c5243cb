"""`seqveil plan`: what a budget buys, before anything is released."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.commands import options as o

if TYPE_CHECKING:
    from seqveil.files import Columns
    from seqveil.model import MarkovModel
    from seqveil.planning import Plan

PICTURES = (".png", ".svg", ".pdf")


def plan(
    source: Annotated[str, typer.Argument(metavar="DATA_OR_MODEL", help="A model, or data to fit one to first.")],
    epsilon: Annotated[
        str, typer.Option("--epsilon", "-e", metavar="E,E,…", help="Bounds for one release to compare.")
    ] = "0.25,0.5,1,2",
    mechanism: o.Mechanism = None,
    distortion: o.DistortionName = None,
    length: Annotated[int, typer.Option(metavar="T", help="Releases in a simulated stream.")] = 50,
    users: Annotated[int, typer.Option(metavar="N", help="Simulated streams.")] = 200,
    every: Annotated[int, typer.Option(metavar="M", help="Spend M·ε at every M-th release.")] = 1,
    find_period: Annotated[bool, typer.Option("--find-period", help="Find the best M for each ε.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the trade-off.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the simulation.")] = 0,
    order: o.Order = 1,
    smoothing: o.Smoothing = 0.0,
    bins: o.Bins = None,
    levels: o.Levels = None,
    grid: o.GridCells = None,
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    time_column: o.TimeColumn = None,
    sort: o.Sort = False,
    json: o.Json = False,
) -> None:
    """Show the error to expect at each ε.

    It simulates streams from the model; no private data is released.

    Example: seqveil plan clicks.model --epsilon 0.5,1,2 --find-period --plot plan.png
    """
    from seqveil import planning
    from seqveil.commands.output import emit_json
    from seqveil.errors import InputError

    bounds = parse_epsilons(epsilon)
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"expected a picture named {', '.join(PICTURES)}; got another extension")
    cuts = (order, smoothing, bins, levels, grid, sort)
    model = _model(source, o.columns_of(user_column, value_column, time_column), *cuts)
    name, cost = mechanism or "optimal", distortion or "hamming"
    period = None if find_period else every
    made = planning.plan(model, bounds, name, cost, length, users, seed, period=period)
    if plot is not None:
        from seqveil import plots

        plots.tradeoff(made, plot)
    sentences = [_sentence(made, model, name, bound) for bound in bounds]
    if json:
        emit_json({**asdict(made), "guarantees": sentences, "plot": None if plot is None else str(plot)})
    else:
        _say(made, sentences)


def parse_epsilons(text: str) -> list[float]:
    """Numbers between commas.

    >>> parse_epsilons("0.5, 1")
    [0.5, 1.0]
    """
    from seqveil.errors import InputError
    from seqveil.mechanisms import check_epsilon

    try:
        return [check_epsilon(float(part)) for part in text.split(",")]
    except InputError:
        raise
    except ValueError:
        raise InputError(f"expected numbers between commas for epsilon, as in 0.5,1,2; got {text!r}") from None


def _model(
    source: str,
    columns: Columns,
    order: int,
    smoothing: float,
    bins: float | None,
    levels: int | None,
    grid: str | None,
    sort: bool,
) -> MarkovModel:
    """The model, or one fitted to the data: a data file tells by its extension."""
    from seqveil.commands.output import progress
    from seqveil.files.reading import FORMATS
    from seqveil.flow import fit_file
    from seqveil.model import MarkovModel

    if source != "-" and Path(source).suffix.lower() not in FORMATS:
        return MarkovModel.load(source)
    with progress(source, "fitting", passes=2) as advance:
        fitted = fit_file(
            source,
            columns=columns,
            order=order,
            smoothing=smoothing,
            bins=bins,
            levels=levels,
            grid=grid,
            sort=sort,
            progress=advance,
        )
    return fitted.model


def _sentence(made: Plan, model: MarkovModel, mechanism: str, epsilon: float) -> str:
    """The guarantee at ε for the schedule that the plan settled on; pulses put more into one release."""
    from seqveil.flow import guarantee
    from seqveil.stream import Setting

    period = max(row.period for row in made.rows if row.epsilon == epsilon and row.mechanism == mechanism)
    setting = Setting.of(model, mechanism, epsilon, made.distortion, period)
    return made.sentence(epsilon) if period == 1 and setting.mechanism.sound else guarantee(setting)


def _say(made: Plan, sentences: list[str]) -> None:
    from seqveil.commands.output import table

    headings = ("ε", "mechanism", "every", "error", "decoded", "truth", "best guess", "above optimum", "leakage")
    rows = [
        (
            f"{row.epsilon:g}",
            row.mechanism,
            str(row.period),
            f"{row.error:.4g}",
            f"{row.decoded_error:.4g}",
            f"{row.truth:.1%}",
            f"{row.constant_error:.4g}",
            "" if row.gap is None else f"{max(0.0, row.gap):.2g}",
            f"{row.leakage:.4g}",
        )
        for row in made.rows
    ]
    table(headings, rows)
    print(f"expected {made.distortion} error over {made.length} releases; decoded: after the receiver's online filter")
    for sentence in sentences:
        print(sentence)
