"""`seqveil decode`: the receiver's best estimate of every row."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.interfaces.commands import cold
from seqveil.interfaces.commands import options as o

if TYPE_CHECKING:
    from seqveil.interfaces.flow import Decoded


def decode(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: o.Out,
    online: Annotated[bool, typer.Option("--online", help="Use the releases up to each row only.")] = False,
    loss: Annotated[
        str | None, typer.Option(metavar="NAME", help="Cost that the estimate minimises  [default: --distortion]")
    ] = None,
    histogram: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write how often each symbol is expected to have occurred.")
    ] = None,
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
    ldp_budget: o.LdpBudget = None,
    when_spent: o.WhenSpent = None,
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    time_column: o.TimeColumn = None,
    format: o.Format = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Estimate every row's true value, for free.

    Writes the receiver's best estimate and its probability under the model; it is post-processing, so it costs no
    privacy. It also says whether the releases fit that model, as `seqveil drift` does.

    Of a cold start, --model names the file of versions (RELEASED.versions), and the last chain decodes all rows.

    The setting comes from the side file; give the release's options only where there is none.

    Example: seqveil decode released.csv --model clicks.model --out decoded.csv
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.commands.output import progress
    from seqveil.interfaces.flow import decode_file

    spend = (budget, horizon, window, window_releases, window_seconds, when_spent, ldp_budget)
    options = (batch, mechanism, epsilon, distortion, every, spend_above, *spend)
    if cold.versions_in(model, (*options, histogram)) is not None:
        columns = o.columns_given(user_column, value_column, time_column)
        _say(cold.decode(released, model, out, online, loss, meta, columns, format), out, json)
        return
    chain = MarkovModel.load(model)
    with progress(released, "decoding", passes=3) as advance:
        decoded = decode_file(
            released,
            chain,
            out,
            o.setting_given(chain, *options),
            online=online,
            distortion=loss,
            histogram=histogram,
            meta=meta,
            columns=o.columns_given(user_column, value_column, time_column),
            out_format=format if out == "-" else None,
            inputs=(model,),
            progress=advance,
        )
    _say(decoded, out, json)


def _say(decoded: Decoded, out: str, as_json: bool) -> None:
    from seqveil.interfaces.commands.output import emit_json, lines

    if as_json:
        facts = {"rows": decoded.rows, "users": decoded.users, "confidence": decoded.confidence, "out": out}
        facts |= {"confidence_holds": "under the model", "model": asdict(decoded.verdict)}
        emit_json(facts, to_stderr=out == "-")
    else:
        said = f"{decoded.rows} rows of {decoded.users} users; on average an estimate is right with probability "
        lines([("decoded", f"{said}{decoded.confidence:.3f} under the model"), decoded.verdict.said], to_stderr=True)
