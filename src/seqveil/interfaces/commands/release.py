"""`seqveil release`: a file of streams, released row by row or in batches."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import (
    ARRIVAL,
    INTERRUPTIONS,
    Interrupted,
    emit_json,
    figure,
    lines,
    progress,
)

if TYPE_CHECKING:
    from seqveil.engine.stream import Terms
    from seqveil.interfaces.files.release import ReleasedFile


@dataclass(frozen=True)
class StateOptions:
    """What a release keeps so that it can go on later."""

    state: Annotated[
        Path | None,
        o.option(
            "FILE",
            "Keep what was released here, so that the same command goes on after a stop or crash; --out is "
            "appended to (CSV, TSV, JSONL).",
        ),
    ] = None
    key: Annotated[
        Path | None,
        o.option(
            "FILE",
            "With --state: draw from the secret key in this file (made if missing), so that an event that is "
            "drawn again comes out the same. Who has the key can undo the release.",
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
    files: o.FileOptions,
    timing: o.SlotOptions,
    meta: o.Meta = None,
    kept: StateOptions,
    force: Annotated[
        bool, o.flag("--force", "Draw again over an earlier release, which nobody may have been shown.")
    ] = False,
    yes: Annotated[
        bool, o.flag("--yes", "Leave out the warning where a stream is disclosed so much that little protects.")
    ] = False,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes the user, the order, the released value and the ε it used, row by row; all other columns are dropped.

    With --batch W, events of a user go W at a time (ε is a batch's); its first row has its ε and path, which tell all.

    With --state FILE the run can be stopped or killed at any point; the same command goes on, no row twice or lost.
    Values outside the alphabet are then hidden (a draw from the public belief), as a run that stops would show them.

    With --secret rows are released as truly as can be while nobody's odds of the secret move by more than a factor e^E,
    in total for the whole stream (--secret-epsilon E). Without --epsilon nothing is promised about anything else.

    Example: seqveil release clicks.csv --model clicks.model --epsilon 1 --out released.csv

    Example: seqveil release clicks.csv -m clicks.model --secret ever:health --secret-epsilon 0.5 --out released.csv

    Example: seqveil release clicks.csv --model clicks.model --policy policy.toml --out released.csv
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.changes import Changes
    from seqveil.interfaces.files.release import release_file
    from seqveil.interfaces.files.rows import columns_for

    _refuse_without_state(kept, force)
    setting = chosen.made().on(MarkovModel.load(model))
    shared: dict[str, Any] = {
        "columns": columns_for(setting, files.columns),
        "on_unknown": on_unknown,
        "seed": seed,
        "format": files.format if data == "-" else None,
        "sort": files.sort,
        "missing": files.missing,
        "slots": timing.slots,
        "meta": meta,
        "inputs": _inputs(model, chosen, setting),
    }
    changes = Changes(setting) if sys.stderr.isatty() and not json else None  # raw data: no log and no file sees it
    shared["changes"] = changes
    if kept.state is None:
        shared |= {"out_format": files.format if out == "-" else None, "force": force}
    with progress(data, "releasing") as advance:
        shared["progress"] = advance
        if kept.state is None:
            account = release_file(data, setting, out, **shared)
        else:
            account = _release_with_state(data, setting, out, kept.state, kept, shared)
    if json:
        emit_json(asdict(account) | {"setting": setting.to_dict(), "out": out}, to_stderr=out == "-")
    else:
        said = disclosed(account, yes)
        lines(said if changes is None else [*said, *changes.lines()], to_stderr=True)


def _inputs(model: Path, chosen: o.PromiseOptions, setting: Terms) -> tuple[Path, ...]:
    """The files that are read, which no output may replace."""
    observers = [Path(each) for each in setting.policy.observers if isinstance(each, str)]
    return (model, *([] if chosen.policy is None else [chosen.policy]), *observers)


def _refuse_without_state(kept: StateOptions, force: bool) -> None:
    """Refuse what is about a state file where there is none, and what does not go with one."""
    if kept.state is not None and force:
        raise InputError("--force does not go with --state, which goes on with its own output; name another one")
    if kept.state is None and kept.key is not None:
        raise InputError("--key is for a release that can be gone on with; name its state file by --state")
    if kept.state is None and kept.must_exist:
        raise InputError("--must-exist is about a state file; name it by --state")


def _release_with_state(
    data: str, setting: Terms, out: str, state: Path, kept: StateOptions, shared: dict[str, Any]
) -> ReleasedFile:
    """Release a file over a state file; stopped in between, it says that the same command goes on."""
    from seqveil.engine.upkeep import key_for
    from seqveil.interfaces.files.release import release_file

    begins = not state.is_file() or not state.stat().st_size
    if begins and kept.must_exist:
        raise InputError(
            f"{state.name}: expected a state file, and there is none or it is empty; restore it from a backup, or "
            "leave --must-exist out to begin one whose ledger starts at zero"
        )
    key = kept.key
    secret = key_for(state, key)
    files = (*shared.pop("inputs"), *(() if key is None else (key,)))
    try:
        account = release_file(data, setting, out, state=state, key=secret, inputs=files, **shared)
    except INTERRUPTIONS:
        raise Interrupted("interrupted; what was released stands, and the same command goes on with it") from None
    if begins:
        lines([("state", f"{state.name} is new: its ledger began at zero")], to_stderr=True)
    return account


def disclosed(account: ReleasedFile, yes: bool = False) -> list[tuple[str, str]]:
    """What there is to say about a release, line by line; with `yes` without the warning that little protects."""
    batches, bound = account.batch > 1, "" if account.exact else "at most "
    extra = [f"{account.held} held at the best guess"] if account.held else []
    extra += [f"{account.withheld} with an empty value, to keep a secret"] if account.withheld else []
    extra += [f"{account.stopped}{' events' * batches} left out, the budget being spent"] if account.stopped else []
    what = f"{account.releases} batches of at most {account.batch} from" if batches else f"{account.releases} of"
    who = f"{account.events} events, {account.users} users"
    said = [
        ("read", account.read),
        ("released", f"{what} {who}" + "".join(f", {e}" for e in extra)),
        *([("earlier", _earlier(account))] if account.earlier else []),
        *(("chosen", f"{name} for {n['batches']} batches ({n['why']})") for name, n in account.choices.items()),
        ("guarantee", account.guarantee),
        *(("means", sentence) for sentence in account.words),
        ("realised", _realised(account, bound)),
        *(
            ("secret", f"{each.name}: its log odds moved by at most {each.log_odds_worst:.4g}")
            for each in account.secrets
            if each.kept is not None
        ),
    ]
    if account.made_public:
        said.append(("public", account.made_public))
    if account.model_check:
        said.append(("model", account.model_check))
    if account.tracked:
        said.append(("order", ARRIVAL))
    if not account.warning:
        said.append(("grade", f"{account.grade}: {account.grade_why}"))
    if account.times is not None:
        said.append(("times", f"read as {account.times}"))
    warnings = [*account.warnings, *([account.warning] if account.warning and not yes else [])]
    said += [("warning", text) for text in warnings]
    if account.secrets:
        said.append(("people", o.CHECK_ON_PEOPLE))
    return said


def _earlier(account: ReleasedFile) -> str:
    """What of it an earlier run with the same state file had released."""
    new = account.events - account.earlier
    if new > 0:
        return f"{account.earlier} of the rows were released by an earlier run and stand as they were; {new} are new"
    return (
        "nothing new: all rows were released by an earlier run, and stand as they were; rows are known by their "
        "users and order alone, so give another input a state file of its own, or add its rows to the end of this one"
    )


def _realised(account: ReleasedFile, bound: str) -> str:
    """What was leaked, and what holds beside it."""
    if account.whole_sequence and not isfinite(account.leakage):
        return account.whole_sequence
    total = f"worst total over a stream {bound}{account.leakage:.4g}"
    if account.whole_sequence:
        return f"{total} ({account.whole_sequence})"
    charged = f"composition charges {account.composition:.4g}"
    return f"{total} ({charged}); without any model {figure(account.ldp)}{'-LDP' * isfinite(account.ldp)}"
