"""`seqveil audit`: what a released file leaked, exactly, against what was promised."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.receive.audit import Departure, Report


@o.option_groups
def audit(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    chosen: o.SettingOptions,
    delta: Annotated[float, typer.Option(metavar="D", help="Failure probability of the (ε, δ) total.")] = 1e-6,
    against: Annotated[
        Path | None,
        typer.Option(metavar="MODEL2", help="Another chain, in case the truth follows it: what was leaked then."),
    ] = None,
    columns: o.ColumnOptions,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Check what a released file leaked, exactly.

    Recomputes each user's leakage from the model and the releases alone, and checks every promise against it. For
    batches it does so from their paths, and a stream's total is a bound from above.

    With --against, the leakage of the same releases if another chain is the truth, beside what holds for any chain.

    Of a cold start, --model names the file of versions (RELEASED.versions).

    The setting comes from the side file; give the release's options only where there is none. Exit code 1: a check
    failed, or the release was seeded. Exit code 2: the file cannot be a release made with this model and setting.

    Example: seqveil audit released.csv --model clicks.model --json
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.audit import against_file, audit_file

    where: dict[str, Any] = {"meta": meta, "columns": columns.columns_if_given}
    versions = o.versions_in(model, chosen.given or against is not None)
    if versions is not None:
        with progress(released, "auditing") as advance:
            report = audit_file(released, versions, progress=advance, **where)
        _end(report, versions.last.setting.model, None, json)
        return
    chain, departure = MarkovModel.load(model), None
    other = None if against is None else MarkovModel.load(against)
    setting = chosen.setting_if_given(chain)
    with progress(released, "auditing", passes=1 if other is None else 2) as advance:
        report = audit_file(released, chain, setting, delta=delta, progress=advance, **where)
        if other is not None:
            departure = against_file(released, chain, other, setting, progress=advance, **where)
    _end(report, chain, departure, json)


def _end(report: Report, chain: MarkovModel, departure: Departure | None, json: bool) -> None:
    """Print what was found; exit code 1 where a promise is broken."""
    if json:
        emit_json(_facts(report, chain, departure))
    else:
        _say(report, chain, departure)
    if not report.passed or (departure is not None and not departure.within):
        raise typer.Exit(1)


SEEDED = "the coins were seeded, so it is not private: whoever knows the seed can undo the release"
CHECKS = {
    "each_release": "every release within its ε",
    "each_stream": "every stream within its Σε",
    "total": "every stream within the total budget",
    "window": "every window within its budget",
    "ldp_total": "every stream within the budget that needs no model",
    "epsilons": "the ε of every row is what the setting spends there",
    "values": "the values are those that follow from the paths",
    "unchanged": "the rows are those that the release wrote",
    "unseeded": "the side file names no seed",
}


def _facts(report: Report, model: MarkovModel, departure: Departure | None) -> dict[str, object]:
    facts = asdict(report)
    checks = {name: facts.pop(name) for name in CHECKS}
    composed = facts.pop("composed")
    best = None if report.composed is None else {**composed, "best": report.composed.best}
    share = report.held / report.releases if report.releases else 0.0
    found = {"passed": report.passed, "checks": checks, **facts, "held_share": share, "composed": best}
    found["origin"] = model.origin
    return found if departure is None else found | {"against": asdict(departure)}


def _say(report: Report, model: MarkovModel, departure: Departure | None) -> None:
    from seqveil.interfaces.commands.fit import ledger

    share = report.held / report.releases if report.releases else 0.0
    one, many = ("release", "releases") if report.exact else ("batch", "batches")
    what, why = (many, "ε = 0") if report.exact else (f"batches of at most {report.batch}", "they tell nothing")
    bound = "at most" if report.exact else "batches added up, at most"
    said = [
        ("audited", f"{report.releases} {what} of {report.users} users, {share:.1%} of them held ({why})"),
        (
            "leakage",
            f"{bound} {report.leakage:.4g} over a stream (up {report.most:.4g}, down {report.least:.4g}; user "
            f"{report.worst_user!r}); composition charges {report.composition:.4g}; one {one} at most "
            f"{report.worst_release:.4g}",
        ),
        ("no model", f"{report.ldp:.4g}-LDP over a stream, whatever the truth's law is"),
    ]
    if report.worst_window is not None:
        said.append(("window", f"at most {report.worst_window:.4g} realised in any one window"))
    if report.composed is not None:
        c = report.composed
        said.append(
            (
                "(ε, δ)",
                f"({c.best:.4g}, {c.delta:g}) for the longest stream, {c.releases} paid {many}",
            )
        )
    said += _verdicts(report)
    if departure is not None:
        said += _against(departure, _good(report))
    if model.origin is not None:
        said.append(("model", ledger(model.origin)))
    lines(said)


def _verdicts(report: Report) -> list[tuple[str, str]]:
    """Each promise, kept or broken. Of a seeded release none is kept, whatever its figures."""
    found = {text: getattr(report, name) for name, text in CHECKS.items()}
    if report.unseeded is False:
        found |= {CHECKS["unseeded"]: None, SEEDED: False}
    return [(_good(report) if held else "BROKEN", text) for text, held in found.items() if held is not None]


def _good(report: Report) -> str:
    """What a check that holds is called."""
    return "seed apart" if report.unseeded is False else "kept"


def _against(found: Departure, good: str) -> list[tuple[str, str]]:
    """What to say about the other chain."""
    how = "" if found.exact else "at most "
    far = "" if found.distance is None else f" (beliefs differ by {found.mean_distance:.3g} on average"
    far += "" if found.distance is None else f", {found.distance:.3g} at most, in total variation)"
    said = (
        f"{how}{found.leakage:.4g} over a stream if the other chain is the truth (up {found.most:.4g}, down "
        f"{found.least:.4g}; user {found.worst_user!r}), {found.under_model:.4g} under the model; one release at most "
        f"{found.worst_release:.4g}"
    )
    limits = f"{found.bound:.4g} for this chain{far}; {found.ldp:.4g} for any chain"
    return [("against", said), ("bound", limits), (good if found.within else "BROKEN", "every stream within it")]
