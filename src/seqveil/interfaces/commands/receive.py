"""Commands for whoever has released rows: `seqveil audit`, `decode` and `stats`; they cost no privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, progress, show


@o.option_groups
def audit(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    policy: o.PolicyOfRelease = None,
    asked: o.SecretOptions,
    delta: Annotated[float, o.option("D", "Failure probability of the (ε, δ) total.")] = 1e-6,
    html: Annotated[Path | None, o.option("FILE", "Also write a report for a data protection officer.")] = None,
    attack: Annotated[Path | None, o.option("FILE", "With --html: what `seqveil attack --json` printed.")] = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Check what a released file leaked, exactly, and whether these people follow the model.

    Recomputes each user's leakage from the model and the releases alone, and checks every promise against it. For
    batches it does so from their paths, and a stream's total is a bound from above.

    It also tests whether the releases fit the model, by betting against it: odds of 100 to 1 raise an alarm. If
    the model is right, an alarm has a probability of at most 1 %, however many releases there are. No alarm is no
    proof.

    With --html it writes a page for a data protection officer: what was promised to whom, the model and its checks,
    what an attacker got, the account, settings and fingerprints, and a claim sheet along the questions of NIST SP
    800-226. It names no user and no released value.

    With --secret it measures exactly what all releases of a stream together disclosed about it, whatever the
    mechanism, and checks its ε where --secret-epsilon or the side file has one.

    Policy and columns come from the side file; name a policy only where there is none. Exit code 1: a check
    failed, the release was seeded, or these people do not follow the model. Exit code 2: the file cannot be a release
    made with this model and policy.

    Example: seqveil audit released.csv --model clicks.model --json
    """
    from seqveil.interfaces.files.receive import audit as run

    with progress(released, "auditing") as advance:
        found = run(
            released, model, policy=policy, secrets=asked.declared(), delta=delta, html=html, attack=attack, meta=meta,
            progress=advance,
        )  # fmt: skip
    show(found, json)
    if not found.passed or found.report.check.fits is False:
        raise typer.Exit(1)


@o.option_groups
def decode(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: o.Out,
    *,
    online: Annotated[bool, o.flag("--online", "Use the releases up to each row only.")] = False,
    distortion: Annotated[
        str | None, o.option("NAME", "Cost that the estimate minimises  [default: that of the release]")
    ] = None,
    histogram: Annotated[
        str | None, o.option("FILE", "Write how often each symbol is expected to have occurred.")
    ] = None,
    truth: Annotated[
        Path | None, o.option("RAW", "The raw file that was released: say how many estimates are right.")
    ] = None,
    policy: o.PolicyOfRelease = None,
    meta: o.Meta = None,
    format: o.Format = None,
    json: o.Json = False,
) -> None:
    """Estimate the true value of every row.

    Writes the receiver's best estimate and its probability under the model; it is post-processing, so it costs no
    privacy. It also says whether the releases fit that model, as `seqveil audit` does.

    If you hold the raw data, --truth also prints the share of estimates that are right, beside the share that the
    model expects.

    Example: seqveil decode released.csv --model clicks.model --out decoded.csv
    """
    from seqveil.interfaces.files.receive import decode as run

    with progress(released, "decoding") as advance:
        found = run(
            released, model, out=out, online=online, distortion=distortion, histogram=histogram, truth=truth,
            policy=policy, meta=meta, format=format, progress=advance,
        )  # fmt: skip
    if json:
        emit_json({**found.to_dict(), "out": out}, to_stderr=out == "-")
    else:
        show(found, to_stderr=True)


@o.option_groups
def stats(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    confidence: Annotated[float, o.option("C", "Confidence of every interval.")] = 0.95,
    per: Annotated[
        int | None, o.option("N", "Histogram over time: one for every N events of a stream.", "--per")
    ] = None,
    top: Annotated[int, o.option("K", "How many of the most frequent symbols to name.")] = 5,
    method: Annotated[
        str, o.option("auto|design|learned|model", "How the counts are estimated; see docs/receiver.md.")
    ] = "auto",
    policy: o.PolicyOfRelease = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Estimate histograms, transitions, dwell times and top symbols, with intervals.

    It is post-processing and costs no privacy. Where releases can be inverted the intervals assume nothing about the
    data; else a chain is learned from the releases. The output says which.

    It also tests whether the releases fit the model, as `seqveil audit` does. If they do not, it says so and
    leaves out intervals that rest on a chain.

    Example: seqveil stats released.csv --model clicks.model --top 3
    """
    from seqveil.interfaces.files.receive import stats as run

    with progress(released, "counting") as advance:
        show(
            run(
                released, model, confidence=confidence, per=per, top=top, method=method, policy=policy, meta=meta,
                progress=advance,
            ),
            json,
        )  # fmt: skip
