"""`seqveil drift`: whether the truth still follows the model, from releases alone."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.interfaces.files.audit import Drifted


@o.option_groups
def drift(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    alpha: Annotated[
        float, typer.Option(metavar="A", help="Most that the probability of an alarm may be if the model is right.")
    ] = 0.01,
    chosen: o.UnbatchedOptions,
    columns: o.ColumnOptions,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Tell from releases alone whether the truth departs from the model.

    It is post-processing and costs no privacy. If the model is right, the probability of an alarm is at most --alpha,
    however many releases there are. No alarm does not prove the model right.

    The setting comes from the side file; give the release's options only where there is none. Exit code 1: an alarm.

    Example: seqveil drift released.csv --model clicks.model
    """
    from seqveil.interfaces.files.audit import drift_file

    chain = o.model_in(model)
    with progress(released, "looking for drift") as advance:
        found = drift_file(
            released,
            chain,
            chosen.setting_if_given(chain),
            alpha=alpha,
            meta=meta,
            columns=columns.columns_if_given,
            progress=advance,
        )
    if json:
        emit_json(asdict(found))
    else:
        _say(found)
    if found.alarm:
        raise typer.Exit(1)


def _say(found: Drifted) -> None:
    odds = f"e-value e^{found.log_e_value:.4g} at the end; an alarm is at 1/{found.alpha:g} = {1 / found.alpha:g}"
    told = "none: the releases do not speak against the model" if not found.alarm else ""
    told = told or f"after {found.alarm_at} of {found.events} events: the truth departs from the model"
    level = f"at most {found.alpha:g} if the model is right, however long one looks"
    alone = f"{found.users_alarmed} of {found.users} users depart by their own releases (above e^"
    lines(
        [
            ("looked at", f"{found.events} events of {found.users} users"),
            ("alarm", told),
            ("evidence", odds),
            ("false alarm", level),
            ("users", f"{alone}{math.log(found.users / found.alpha):.4g} each)"),
            ("likelihood", f"{found.log_likelihood:.4g} an event under the model"),
        ]
    )
