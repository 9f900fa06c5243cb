"""`seqveil fit`: a model from a file of streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.commands import options as o

if TYPE_CHECKING:
    from seqveil.flow import Fitted


def fit(
    data: o.Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Where to write the model.")],
    order: o.Order = 1,
    smoothing: o.Smoothing = 0.0,
    prior: Annotated[str, typer.Option(metavar="data|uniform", help="Law of a stream's first symbol.")] = "data",
    bins: o.Bins = None,
    levels: o.Levels = None,
    grid: o.GridCells = None,
    on_unknown: Annotated[
        str, typer.Option(metavar="error|nearest", help="What later commands do with values outside the alphabet.")
    ] = "error",
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    time_column: o.TimeColumn = None,
    sort: o.Sort = False,
    format: o.Format = None,
    json: o.Json = False,
) -> None:
    """Fit a model of how the streams are correlated.

    The fit reads raw data and is not itself private: fit on public or consented data, and treat the model as public.

    Example: seqveil fit clicks.csv -o clicks.model --smoothing 1
    """
    from seqveil.commands.output import progress
    from seqveil.errors import DataError
    from seqveil.files import same_file
    from seqveil.flow import fit_file

    if same_file(data, out):
        raise DataError(f"{out.name}: is read and written at once; choose another output")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DataError(f"{out.name}: is a folder, or its folder does not exist; name a file in a folder that does")
    with progress(data, "fitting", passes=1 if sort or data == "-" else 2) as advance:
        fitted = fit_file(
            data,
            columns=o.columns_of(user_column, value_column, time_column),
            order=order,
            smoothing=smoothing,
            prior=prior,
            bins=bins,
            levels=levels,
            grid=grid,
            on_unknown=on_unknown,  # type: ignore[arg-type]
            format=format,
            sort=sort,
            progress=advance,
        )
    fitted.model.save(out)
    _say(out, fitted, json)


def _say(out: Path, fitted: Fitted, as_json: bool) -> None:
    from seqveil.commands.output import emit_json, lines

    model, edges = fitted.model, int(fitted.model.chain.nnz)
    if as_json:
        size = {"order": model.order, "symbols": model.n, "transitions": edges}
        counts = {"events": fitted.events, "users": fitted.users, "private": False}
        emit_json({"model": str(out), "fingerprint": model.fingerprint, **size, **counts})
        return
    lines(
        [
            ("model", f"{out}: order {model.order}, {model.n} symbols, {edges} transitions"),
            ("from", f"{fitted.events} events of {fitted.users} users"),
            ("note", "the fit is not private: the model shows how the raw data behave"),
        ]
    )
