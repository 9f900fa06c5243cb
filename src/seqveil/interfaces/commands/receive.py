"""Commands for whoever has released rows: `seqveil audit`, `decode` and `stats`; they cost no privacy."""

from __future__ import annotations

from pathlib import Path

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import progress, show


def audit(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    policy: o.PolicyOfRelease = None,
    asked: o.SecretOptions,
    html: Path | None = o.opt("FILE", "Also write a report for a data protection officer."),
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Check what a released file leaked under the model.

    Computes exactly what each user's releases leaked under the model (in batches, an upper bound), checks it against
    the promises, and tests whether these people follow the model. If they do, the test raises an alarm with a
    probability of at most 1 %, however many releases there are. No alarm is no proof.

    With --html it also writes a page for data protection officers that names no user, and values only in secrets. With
    --secret it measures exactly what all releases of a stream together disclosed about it, whatever the mechanism, and
    checks its ε where --secret-epsilon or the side file has one.

    Policy and columns come from the side file; pass --policy if there is none, or for observers. Exit code 1: a check
    failed, the release was seeded, or these people do not follow the model.

    Example: seqveil audit released.csv --model clicks.model --json
    """
    from seqveil.interfaces.files.receive import audit as run

    with progress("auditing") as meter:
        how = {"policy": policy, "secrets": asked.declared(), "html": html, "meta": meta}
        found = run(released, model, progress=meter.advance, **how)  # type: ignore[arg-type]
    show(found, json)
    if not found.passed or found.check.fits is False:
        raise typer.Exit(1)


def decode(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: o.Out,
    *,
    online: bool = o.switch("For each row, use only the releases up to that row."),
    distortion: str | None = o.opt("NAME", "Expected cost that the estimate minimises  [default: that of the release]"),
    truth: Path | None = o.opt("RAW", "The raw file that was released: say how many estimates are right."),
    policy: o.PolicyOfRelease = None,
    meta: o.Meta = None,
    format: o.Format = None,
    json: o.Json = False,
) -> None:
    """Estimate the true value of every row.

    Writes the receiver's best estimate and its probability under the model, and says whether the releases fit that
    model, as `seqveil audit` does. Without --truth it uses only public information, so it costs no privacy. With
    --truth it also prints the share of correct estimates next to the share that the model expects.

    Example: seqveil decode released.csv --model clicks.model --out decoded.csv
    """
    from seqveil.interfaces.files.receive import decode as run

    with progress("decoding") as meter:
        found = run(
            released, model, out=out, online=online, distortion=distortion, truth=truth,
            policy=policy, meta=meta, format=format, progress=meter.advance,
        )  # fmt: skip
    show(found, json, to_stderr=out == "-" or not json, out=out)


def stats(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    confidence: float = o.opt("C", "Confidence level of each interval, not of all together.", default=0.95),
    per: int | None = o.opt("N", "Histogram over time: one for every N events of a stream."),
    method: str = o.opt(
        "auto|design|learned|model", "How the counts are estimated; see docs/receiver.md.", default="auto"
    ),
    policy: o.PolicyOfRelease = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Estimate counts and transitions, with intervals.

    It uses only what was released, so it costs no privacy. Where the release probabilities can be inverted as a matrix
    (design-based estimates), the intervals assume nothing about the data; otherwise a Markov chain is learned from the
    releases, or, where they keep secrets, they are read under their model. Where people do not follow it exactly, such
    intervals are left out. The output says which.

    Example: seqveil stats released.csv --model clicks.model --per 10
    """
    from seqveil.interfaces.files.receive import stats as run

    with progress("counting") as meter:
        how = {"confidence": confidence, "per": per, "method": method, "policy": policy, "meta": meta}
        show(run(released, model, progress=meter.advance, **how), json)  # type: ignore[arg-type]
