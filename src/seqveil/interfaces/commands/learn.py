"""`seqveil learn`: a model from a released file, for free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.interfaces.files.estimates import LearnedFile


@o.option_groups
def learn(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Where to write the learned model.")],
    *,
    order: o.Order = 1,
    strength: Annotated[
        float | None,
        typer.Option(metavar="W", help="Pseudo-moves a row of the prior  [default: tried on held-out users]"),
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="C", help="Of the region that the rows are within.")] = 0.95,
    columns: o.ColumnOptions,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Learn how streams are correlated from what was released of them.

    It looks at releases only, so it costs no privacy. --model is what the release was made with: a model, or the file
    of versions of a cold start. The learned model says how likely moves are; how sure that is, is said beside it.

    Example: seqveil learn released.csv --model released.csv.versions -o learned.model
    """
    from seqveil.core.errors import DataError
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files import same_file
    from seqveil.interfaces.files.estimates import learn_file

    if same_file(released, out) or same_file(model, out):
        raise DataError(f"{out.name}: is read and written at once; choose another output")
    known = o.versions_in(model) or MarkovModel.load(model)
    with progress(str(released), "learning") as advance:
        found = learn_file(
            released,
            known,
            order=order,
            strength=strength,
            confidence=confidence,
            meta=meta,
            columns=columns.columns_if_given,
            progress=advance,
        )
    found.learned.model.save(out)
    _say(found, out) if not json else emit_json(_facts(found, out))


def _facts(found: LearnedFile, out: Path) -> dict[str, object]:
    learned, told, region = found.learned, found.learned.held_out, found.region
    facts: dict[str, object] = {
        "users": learned.found.users,
        "releases": learned.found.events,
        "symbols": learned.model.n,
        "order": learned.model.order,
        "rounds": learned.rounds,
        "converged": learned.converged,
        "strength": learned.strength,
        "model": learned.model.fingerprint,
        "out": str(out),
    }
    if told is not None:
        facts |= {"gain": told.gain, "gain_error": told.error, "log_evidence": told.log_evidence, "earned": told.earned}
    if region is not None:
        facts |= {"confidence": region.confidence, "radii": region.rows.tolist(), "first_radius": region.first}
    return facts


def _say(found: LearnedFile, out: Path) -> None:
    learned, told = found.learned, found.learned.held_out
    said = [("learned", f"{learned.model!r} from {learned.found.events} releases of {learned.found.users} users")]
    ended = "converged" if learned.converged else f"not converged: still {learned.change:.1e} nats an event a round"
    said.append(("EM", f"{learned.rounds} rounds, {ended}; prior of {learned.strength:g} moves a row"))
    if told is not None:
        beats = "beyond chance" if told.earned else "NOT beyond chance: keep releasing without it"
        gain = f"{told.gain:.4f} ± {told.error:.4f} nats an event over no context, {beats}"
        said.append(("held out", f"{told.users} users: {gain}"))
    if found.region is not None:
        said.append(("region", repr(found.region)))
    lines([*said, ("written", str(out.name))], to_stderr=True)
