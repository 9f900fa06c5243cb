"""`seqveil audit`: what a released file leaked, exactly, against what was promised."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from seqveil.commands import options as o

if TYPE_CHECKING:
    from seqveil.audit import Report


def audit(
    released: o.ReleasedFile,
    model: o.ModelFile,
    epsilon: o.Epsilon = None,
    mechanism: o.Mechanism = None,
    batch: o.BatchSize = None,
    distortion: o.DistortionName = None,
    every: o.Every = None,
    spend_above: o.SpendAbove = None,
    budget: o.TotalBudget = None,
    horizon: o.Horizon = None,
    window: o.WindowBudget = None,
    window_releases: o.WindowReleases = None,
    window_seconds: o.WindowSeconds = None,
    when_spent: o.WhenSpent = None,
    delta: o.Delta = 1e-6,
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    time_column: o.TimeColumn = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Check what a released file leaked, exactly.

    Recomputes each user's leakage from the model and the releases alone, and checks every promise against it. For
    batches it does so from their paths, and a stream's total is a bound from above.

    The setting comes from the side file; give the release's options only where there is none. Exit code 1: a check
    failed. Exit code 2: the file cannot be a release made with this model and setting.

    Example: seqveil audit released.csv --model clicks.model --json
    """
    from seqveil.commands.output import emit_json, progress
    from seqveil.flow import audit_file
    from seqveil.model import MarkovModel

    chain = MarkovModel.load(model)
    spend = (budget, horizon, window, window_releases, window_seconds, when_spent)
    with progress(released, "auditing") as advance:
        report = audit_file(
            released,
            chain,
            o.setting_given(chain, batch, mechanism, epsilon, distortion, every, spend_above, *spend),
            meta=meta,
            columns=o.columns_given(user_column, value_column, time_column),
            delta=delta,
            progress=advance,
        )
    if json:
        emit_json(_facts(report))
    else:
        _say(report)
    if not report.passed:
        raise typer.Exit(1)


CHECKS = {
    "each_release": "every release within its ε",
    "each_stream": "every stream within its Σε",
    "total": "every stream within the total budget",
    "window": "every window within its budget",
    "epsilons": "the ε of every row is what the setting spends there",
    "values": "the values are those that follow from the paths",
    "unchanged": "the rows are those that the release wrote",
}


def _facts(report: Report) -> dict[str, object]:
    facts = asdict(report)
    checks = {name: facts.pop(name) for name in CHECKS}
    composed = facts.pop("composed")
    best = None if report.composed is None else {**composed, "best": report.composed.best}
    share = report.held / report.releases if report.releases else 0.0
    return {"passed": report.passed, "checks": checks, **facts, "held_share": share, "composed": best}


def _say(report: Report) -> None:
    from seqveil.commands.output import lines

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
    for name, text in CHECKS.items():
        kept = getattr(report, name)
        if kept is not None:
            said.append(("kept" if kept else "BROKEN", text))
    lines(said)
