"""`seqveil fit`: a model from a file of streams, plain or differentially private."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.core.symbols import Symbols
    from seqveil.interfaces.files.fit import Fitted


@dataclass(frozen=True)
class PrivateFitOptions:
    """A fit with differential privacy, and an alphabet that does not come from the data."""

    private: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Fit with differential privacy at this ε for each user.")
    ] = None
    contribution: Annotated[
        int | None,
        typer.Option(metavar="M", help="With --private: most transitions of one user that count  [default: 20]"),
    ] = None
    alphabet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The values there are: one a line, a JSON list, or a model to take them from."
        ),
    ] = None
    span: Annotated[
        str | None,
        typer.Option("--range", metavar="LO,HI", help="Range of --bins (of --grid: X0,X1,Y0,Y1), not taken from data."),
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="With --private: repeatable noise, for research; NOT private.")
    ] = None

    def check(self, order: int, smoothing: float, prior: str) -> None:
        """Refuse options that do not go together."""
        if self.private is None and (self.contribution is not None or self.seed is not None):
            raise InputError(
                "--contribution and --seed are for a private fit; pass --private EPSILON, or leave them out"
            )
        if self.private is not None and (order != 1 or smoothing != 0.0 or prior != "data"):
            raise InputError(
                "a private fit is of order 1 and smooths by its noise; leave --order, --smoothing and --prior out"
            )

    def public_alphabet(self, cuts: o.CutOptions, on_unknown: str) -> Symbols | None:
        """The alphabet that the options name; None where it is to come from the data."""
        from seqveil.interfaces.files.fit import public_alphabet

        if self.private is None and self.alphabet is None and self.span is None:
            return None
        return public_alphabet(
            self.alphabet,
            cuts.bins,
            cuts.levels,
            cuts.grid,
            self.span,
            on_unknown,  # type: ignore[arg-type]
        )


@o.option_groups
def fit(
    data: o.Data,
    out: o.ModelOut,
    *,
    order: o.Order = 1,
    smoothing: o.Smoothing = 0.0,
    prior: o.Prior = "data",
    cuts: o.CutOptions,
    on_unknown: Annotated[
        str, typer.Option(metavar="error|hide|nearest", help="What later commands do with values outside the alphabet.")
    ] = "error",
    privacy: PrivateFitOptions,
    files: o.FileOptions,
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
    from seqveil.interfaces.files import same_file
    from seqveil.interfaces.files.fit import fit_file, fit_private_file

    if same_file(data, out):
        raise DataError(f"{out.name}: is read and written at once; choose another output")
    o.check_model_out(out)
    privacy.check(order, smoothing, prior)
    alphabet = privacy.public_alphabet(cuts, on_unknown)
    with progress(data, "fitting", passes=1 if files.sort or data == "-" else 2) as advance:
        read: dict[str, Any] = {"columns": files.columns, "format": files.format, "sort": files.sort}
        read["progress"] = advance
        if privacy.private is not None:
            assert alphabet is not None
            read |= {} if privacy.contribution is None else {"contribution": privacy.contribution}
            fitted = fit_private_file(data, privacy.private, alphabet, seed=privacy.seed, **read)
        else:
            law: dict[str, Any] = {"order": order, "smoothing": smoothing, "prior": prior, "on_unknown": on_unknown}
            fitted = fit_file(data, alphabet=alphabet, **law, **asdict(cuts), **read)
    fitted.model.save(out)
    _say(out, fitted, json)


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
