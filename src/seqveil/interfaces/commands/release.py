"""`seqveil release`: a file of streams, released row by row or in batches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import cold
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.interrupt import Interrupted

if TYPE_CHECKING:
    from seqveil.interfaces.flow import Released
    from seqveil.release.stream import Setting


def release(
    data: o.Data,
    out: o.Out,
    model: o.ModelOrNone = None,
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
    on_unknown: Annotated[
        str | None,
        typer.Option(metavar="error|hide|nearest", help="Values outside the alphabet  [default: the model's]"),
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
    state: o.State = None,
    key: o.Key = None,
    cold_start: Annotated[
        bool, typer.Option("--cold-start", help="Without a model: learn one from the releases on the way.")
    ] = False,
    alphabet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --cold-start: the values, as in `fit`  [default: those in DATA]"),
    ] = None,
    learn_after: Annotated[
        int | None, typer.Option(metavar="N", help="With --cold-start: rows before the first try  [default: 5000]")
    ] = None,
    versions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --cold-start: the models it made  [default: OUT.versions]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Draw again over an earlier release, which nobody may have been shown.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes the user, the order, the released value and the ε it used, row by row; all other columns are dropped.

    With --batch W, events of a user go W at a time (ε is a batch's); its first row has its ε and path, which tell all.

    With --state FILE the run can be stopped or killed at any point; the same command goes on, no row twice or lost.
    Values outside the alphabet are then hidden (a draw from the public belief), as a run that stops would show them.

    With --cold-start no model is needed: rows are released context-free until a chain learned from those releases
    foretells held-out ones beyond chance, tried after 5,000 rows and after every fourfold of them.

    Example: seqveil release clicks.csv --model clicks.model --epsilon 1 --out released.csv

    Example: seqveil release clicks.csv --cold-start --epsilon 1 --every 4 --out released.csv
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.commands.output import emit_json, progress
    from seqveil.interfaces.flow.rows import columns_for

    spend = (budget, horizon, window, window_releases, window_seconds, when_spent, ldp_budget)
    if cold_start:
        chosen = (mechanism, epsilon, distortion, every, spend_above, *spend)
        refused = {"--model": model, "--batch": batch, "--state": state, "--key": key, "--on-unknown": on_unknown}
        columns = o.columns_of(user_column, value_column, time_column)
        formats = {"format": format if data == "-" else None, "out_format": format if out == "-" else None}
        files: dict[str, Any] = formats | {"meta": meta, "force": force}
        cold.release(data, out, alphabet, learn_after, versions, seed, chosen, refused, columns, sort, files, json)
        return
    if model is None or any(option is not None for option in (alphabet, learn_after, versions)):
        raise InputError(
            "expected --model MODEL, or --cold-start to begin without one (--alphabet, --learn-after and --versions go "
            "with it)"
        )
    setting = o.setting_of(MarkovModel.load(model), batch, mechanism, epsilon, distortion, every, spend_above, *spend)
    shared: dict[str, Any] = {
        "columns": columns_for(setting, o.columns_of(user_column, value_column, time_column)),
        "seed": seed,
        "on_unknown": on_unknown,
        "format": format if data == "-" else None,
        "sort": sort,
        "meta": meta,
        "inputs": (model,),
    }
    with progress(data, "releasing") as advance:
        if state is not None and force:
            raise InputError("--force does not go with --state, which goes on with its own output; name another one")
        if state is not None:
            account = _with_state(data, setting, out, state, key, shared | {"progress": advance})
        elif key is not None:
            raise InputError("--key is for a release that can be gone on with; name its state file by --state")
        else:
            account = _at_once(data, setting, out, format, shared | {"progress": advance, "force": force})
    _say(account) if not json else emit_json(_facts(account, setting, out), to_stderr=out == "-")


def _at_once(data: str, setting: Setting, out: str, format: str | None, shared: dict[str, Any]) -> Released:
    from seqveil.interfaces.flow import release_file

    return release_file(data, setting, out, out_format=format if out == "-" else None, **shared)


def _with_state(
    data: str, setting: Setting, out: str, state: Path, key: Path | None, shared: dict[str, Any]
) -> Released:
    from seqveil.core.coins import key_file
    from seqveil.interfaces.flow.durable import release_durably

    secret = None if key is None else key_file(key, create=True)
    files = (*shared.pop("inputs"), *(() if key is None else (key,)))
    try:
        return release_durably(data, setting, out, state, key=secret, inputs=files, **shared)
    except Interrupted:
        raise Interrupted("interrupted; what was released stands, and the same command goes on with it") from None


def _facts(account: Released, setting: Setting, out: str) -> dict[str, object]:
    return asdict(account) | {"setting": setting.to_dict(), "out": out}


def _say(account: Released) -> None:
    from seqveil.interfaces.commands.output import lines

    batches, bound = account.batch > 1, "" if account.exact else "at most "
    extra = [f"{account.held} held at the best guess"] if account.held else []
    extra += [f"{account.unknown} outside the alphabet hidden"] if account.unknown else []
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
    if account.times is not None:
        said.append(("times", f"read as {account.times}"))
    lines([*said, *(("warning", text) for text in account.warnings)], to_stderr=True)
