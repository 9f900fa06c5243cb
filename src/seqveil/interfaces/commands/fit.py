"""`seqveil fit`: a model from a file of streams, plain or differentially private."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.interfaces.commands import options as o

if TYPE_CHECKING:
    from seqveil.interfaces.flow import Fitted


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
        str, typer.Option(metavar="error|hide|nearest", help="What later commands do with values outside the alphabet.")
    ] = "error",
    private: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Fit with differential privacy at this ε for each user.")
    ] = None,
    contribution: Annotated[
        int | None,
        typer.Option(metavar="M", help="With --private: most transitions of one user that count  [default: 20]"),
    ] = None,
    alphabet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The values there are: one a line, a JSON list, or a model to take them from."
        ),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option("--range", metavar="LO,HI", help="Range of --bins (of --grid: X0,X1,Y0,Y1), not taken from data."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="With --private: repeatable noise, for research; NOT private.")
    ] = None,
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    time_column: o.TimeColumn = None,
    sort: o.Sort = False,
    format: o.Format = None,
    json: o.Json = False,
) -> None:
    """Fit a model of how the streams are correlated.

    A plain fit reads raw data and is not itself private: fit on public or consented data, and treat the model as
    public. With --private the counts get noise, and adding or removing any one user changes the probability of any
    model by a factor of at most e^EPSILON; the model carries that as a record. A private fit takes its alphabet from
    --alphabet, or from --bins or --grid with --range, never from the data.

    Example: seqveil fit clicks.csv -o clicks.model --smoothing 1

    Example: seqveil fit clicks.csv -o clicks.model --private 1 --alphabet pages.txt
    """
    from seqveil.core.errors import DataError
    from seqveil.interfaces.commands.output import progress
    from seqveil.interfaces.files import same_file
    from seqveil.interfaces.flow import fit_file
    from seqveil.interfaces.flow.private import fit_private_file, public_alphabet

    if same_file(data, out):
        raise DataError(f"{out.name}: is read and written at once; choose another output")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DataError(f"{out.name}: is a folder, or lies in none; name a file in a folder that exists")
    _check(private, order, smoothing, prior, contribution, seed)
    given = None
    if private is not None or alphabet is not None or span is not None:
        given = public_alphabet(alphabet, bins, levels, grid, span, on_unknown)  # type: ignore[arg-type]
    columns = o.columns_of(user_column, value_column, time_column)
    with progress(data, "fitting", passes=1 if sort or data == "-" else 2) as advance:
        if private is not None:
            assert given is not None
            bound = {} if contribution is None else {"contribution": contribution}
            fitted = fit_private_file(
                data, private, given, seed=seed, columns=columns, format=format, sort=sort, progress=advance, **bound
            )
        else:
            fitted = fit_file(
                data,
                columns=columns,
                order=order,
                smoothing=smoothing,
                prior=prior,
                bins=bins,
                levels=levels,
                grid=grid,
                on_unknown=on_unknown,  # type: ignore[arg-type]
                alphabet=given,
                format=format,
                sort=sort,
                progress=advance,
            )
    fitted.model.save(out)
    _say(out, fitted, json)


def _check(
    private: float | None, order: int, smoothing: float, prior: str, contribution: int | None, seed: int | None
) -> None:
    """Refuse options that do not go together."""
    from seqveil.core.errors import InputError

    if private is None and (contribution is not None or seed is not None):
        raise InputError("--contribution and --seed are for a private fit; pass --private EPSILON, or leave them out")
    if private is not None and (order != 1 or smoothing != 0.0 or prior != "data"):
        raise InputError(
            "a private fit is of order 1 and smooths by its noise; leave --order, --smoothing and --prior out"
        )


def ledger(origin: Mapping[str, Any]) -> str:
    """A model's record of how it was made, in a sentence."""
    if origin.get("kind") != "private fit":
        return f"{origin.get('kind', 'unknown')}: {origin.get('note', 'see the model file')}"
    if not origin.get("private"):
        return "fitted with seeded noise: NOT private"
    most = origin["contribution"]["transitions"]
    return (
        f"fitted with ε = {origin['epsilon']:g} for each user ({origin['relation']}; at most {most} transitions and "
        f"one start of each; {origin['noise']})"
    )


def _say(out: Path, fitted: Fitted, as_json: bool) -> None:
    from seqveil.interfaces.commands.output import emit_json, lines

    model, edges = fitted.model, int(fitted.model.chain.nnz)
    origin = model.origin
    if as_json:
        size = {"order": model.order, "symbols": model.n, "transitions": edges}
        counts = {"events": fitted.events, "users": fitted.users}
        private = {"private": bool(origin and origin["private"]), "origin": origin}
        emit_json({"model": str(out), "fingerprint": model.fingerprint, **size, **counts, **private})
        return
    noisy = "" if origin is None else "about "
    said = [
        ("model", f"{out}: order {model.order}, {model.n} symbols, {edges} transitions"),
        ("from", f"{noisy}{fitted.events} events of {noisy}{fitted.users} users{' (noisy counts)' if noisy else ''}"),
    ]
    plain = "the fit is not private: the model shows how the raw data behave"
    lines([*said, ("note", plain if origin is None else ledger(origin))])
