"""`seqveil release`: a file of streams, released row by row or in batches."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, emit_json, lines, progress


@dataclass(frozen=True)
class StateOptions:
    """What a release keeps so that it can go on later."""

    state: Annotated[
        Path | None,
        o.option(
            "FILE",
            "Record releases here, so that the same command continues after a stop or crash; --out is "
            "appended to (CSV, TSV, JSONL).",
        ),
    ] = None
    key: Annotated[
        Path | None,
        o.option(
            "FILE",
            "With --state: draw from the secret key in this file (made if missing), so that an event drawn again "
            "comes out the same. Anyone with the key can undo the release.",
        ),
    ] = None
    must_exist: Annotated[
        bool, o.flag("--must-exist", "Refuse a state file that is missing or empty, rather than begin one.")
    ] = False


@o.option_groups
def release(
    data: o.Data,
    out: o.Out,
    model: o.ModelFile,
    *,
    chosen: o.PromiseOptions,
    on_unknown: o.OnUnknown = None,
    seed: Annotated[int | None, o.option("N", "For research only: the release is NOT private.")] = None,
    columns: o.ColumnOptions,
    format: o.Format = None,
    meta: o.Meta = None,
    kept: StateOptions,
    force: Annotated[bool, o.flag("--force", "Replace an earlier release, which nobody may have seen.")] = False,
    yes: Annotated[
        bool, o.flag("--yes", "Skip the warning that a stream reveals so much that little is protected.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes the user, the order, the released value and the ε it used, row by row; all other columns are dropped. How the
    file is read the model remembers; name columns where this file differs.

    With --batch W, a user's events are released W at a time; ε is for the batch, whose first row carries ε and path.

    With --state FILE the run can be stopped or killed at any point; the same command continues without losing or
    repeating a row. Values outside the alphabet are then hidden (drawn from the public belief), because stopping
    at one would reveal it.

    With --secret, rows are released with as little error as possible while nobody's odds of the secret move by
    more than a factor e^E, in total for the whole stream (--secret-epsilon E). Without --epsilon nothing is
    promised about anything else.

    Example: seqveil release clicks.csv --model clicks.model --epsilon 1 --out released.csv

    Example: seqveil release clicks.csv -m clicks.model --secret ever:health --secret-epsilon 0.5 --out released.csv

    Example: seqveil release clicks.csv --model clicks.model --policy policy.toml --out released.csv
    """
    from seqveil.interfaces.files.release import release as run

    begins = kept.state is not None and not (kept.state.is_file() and kept.state.stat().st_size)
    inputs = [model, *([] if chosen.policy is None else [chosen.policy])]
    terminal = sys.stderr.isatty() and not json  # what was changed follows from raw data: no log and no file sees it
    changes: list[tuple[str, str]] = []
    try:
        with progress(data, "releasing") as advance:
            how: dict[str, Any] = {"on_unknown": on_unknown, **vars(kept), **columns.given}
            found = run(
                data, model, chosen.made(), out=out, seed=seed, format=format, meta=meta, force=force, inputs=inputs,
                progress=advance, shown=changes.extend if terminal else None, **how,
            )  # fmt: skip
    except INTERRUPTIONS:
        if kept.state is None:
            raise
        raise Interrupted("interrupted; what was released stands, and the same command goes on with it") from None
    if json:
        emit_json({**found.to_dict(), "out": out}, to_stderr=out == "-")
        return
    said = [("state", f"{kept.state.name} is new: its ledger began at zero")] if begins and kept.state else []
    lines([*said, *found.lines(warned=yes), *changes], to_stderr=True)
