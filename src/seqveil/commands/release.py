"""`seqveil release`: a file of streams, released row by row or in batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.commands import options as o

if TYPE_CHECKING:
    from seqveil.flow import Released
    from seqveil.stream import Setting


def release(
    data: o.Data,
    model: o.ModelFile,
    out: o.Out,
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
    on_unknown: Annotated[
        str | None, typer.Option(metavar="error|nearest", help="Values outside the alphabet  [default: the model's]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="For research only: the release is NOT private.")
    ] = None,
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    time_column: o.TimeColumn = None,
    sort: o.Sort = False,
    format: o.Format = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes the user, the order, the released value and the ε it used, row by row; all other columns are dropped.

    With --batch W, events of a user go W at a time (ε is a batch's); its first row has its ε and path, which tell all.

    Example: seqveil release clicks.csv --model clicks.model --epsilon 1 --out released.csv
    """
    from seqveil.commands.output import emit_json, progress
    from seqveil.flow import release_file
    from seqveil.model import MarkovModel

    spend = (budget, horizon, window, window_releases, window_seconds, when_spent)
    setting = o.setting_of(MarkovModel.load(model), batch, mechanism, epsilon, distortion, every, spend_above, *spend)
    with progress(data, "releasing") as advance:
        account = release_file(
            data,
            setting,
            out,
            columns=o.columns_of(user_column, value_column, time_column),
            seed=seed,
            on_unknown=on_unknown,  # type: ignore[arg-type]
            format=format if data == "-" else None,
            out_format=format if out == "-" else None,
            sort=sort,
            meta=meta,
            inputs=(model,),
            progress=advance,
        )
    _say(account) if not json else emit_json(_facts(account, setting, out), to_stderr=out == "-")


def _facts(account: Released, setting: Setting, out: str) -> dict[str, object]:
    return asdict(account) | {"setting": setting.describe(), "out": out}


def _say(account: Released) -> None:
    from seqveil.commands.output import lines

    batches, bound = account.batch > 1, "" if account.exact else "at most "
    extra = [f"{account.held} held at the best guess"] if account.held else []
    extra += [f"{account.stopped}{' events' * batches} left out, the budget being spent"] if account.stopped else []
    what = f"{account.releases} batches of at most {account.batch} from" if batches else f"{account.releases} of"
    said = [
        ("released", f"{what} {account.events} events, {account.users} users" + "".join(f", {e}" for e in extra)),
        *(("chosen", f"{name} for {n['batches']} batches ({n['why']})") for name, n in account.choices.items()),
        ("guarantee", account.guarantee),
        (
            "realised",
            f"worst total over a stream {bound}{account.leakage:.4g} (composition charges {account.composition:.4g}); "
            f"without any model {account.ldp:.4g}-LDP",
        ),
    ]
    lines([*said, *(("warning", text) for text in account.warnings)], to_stderr=True)
