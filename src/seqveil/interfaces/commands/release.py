"""`seqveil release`: a file of streams, released row by row or in batches, with a model or from a cold start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, emit_json, figure, lines, progress

if TYPE_CHECKING:
    from seqveil.core.alphabet import Symbols
    from seqveil.engine.stream import Setting
    from seqveil.interfaces.files.release import Released
    from seqveil.receiver.coldstart import ColdStart


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


@dataclass(frozen=True)
class ColdStartOptions:
    """How a release begins without a model."""

    cold_start: Annotated[bool, o.flag("--cold-start", "Without a model: learn one from the releases on the way.")] = (
        False
    )
    alphabet: Annotated[
        Path | None, o.option("FILE", "With --cold-start: the values, as in `fit`  [default: those in DATA]")
    ] = None
    learn_after: Annotated[
        int | None, o.option("N", "With --cold-start: rows before the first try  [default: 5000]")
    ] = None
    versions: Annotated[
        Path | None, o.option("FILE", "With --cold-start: the models it made  [default: OUT.versions]")
    ] = None
    types: Annotated[
        int | None, o.option("K", "With --cold-start: types of people, where they foretell better  [default: 1]")
    ] = None


@o.option_groups
def release(
    data: o.Data,
    out: o.Out,
    model: o.ModelOrNone = None,
    *,
    chosen: o.SettingOptions,
    on_unknown: o.OnUnknown = None,
    seed: Annotated[int | None, o.option("N", "For research only: the release is NOT private.")] = None,
    files: o.FileOptions,
    timing: o.SlotOptions,
    meta: o.Meta = None,
    kept: StateOptions,
    cold: ColdStartOptions,
    force: Annotated[
        bool, o.flag("--force", "Draw again over an earlier release, which nobody may have been shown.")
    ] = False,
    yes: Annotated[
        bool, o.flag("--yes", "Leave out the warning where a stream is told so much that little protects.")
    ] = False,
    config: o.ConfigFile = None,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes the user, the order, the released value and the ε it used, row by row; all other columns are dropped.

    With --batch W, events of a user go W at a time (ε is a batch's); its first row has its ε and path, which tell all.

    With --state FILE the run can be stopped or killed at any point; the same command goes on, no row twice or lost.
    Values outside the alphabet are then hidden (a draw from the public belief), as a run that stops would show them.

    With --secret rows are told as truly as can be while nobody's odds of the secret move by more than a factor e^E, in
    total for the whole stream (--secret-epsilon E). Without --epsilon nothing is promised about anything else.

    With --cold-start no model is needed: rows are released context-free until a chain learned from those releases
    foretells held-out ones beyond chance, tried after 5,000 rows and after every fourfold of them.

    Example: seqveil release clicks.csv --model clicks.model --epsilon 1 --out released.csv

    Example: seqveil release clicks.csv -m clicks.model --secret ever:health --secret-epsilon 0.5 --out released.csv

    Example: seqveil release clicks.csv --cold-start --epsilon 1 --every 4 --out released.csv
    """
    shared: dict[str, Any] = {
        "columns": files.columns,
        "seed": seed,
        "format": files.format if data == "-" else None,
        "sort": files.sort,
        "missing": files.missing,
        "slots": timing.slots,
        "meta": meta,
    }
    at_once = {"out_format": files.format if out == "-" else None, "force": force}
    if cold.cold_start:
        idle: dict[str, object] = {
            "--model": model,
            "--on-unknown": on_unknown,
            "--every-seconds": timing.every_seconds,
        }
        _refuse_with_cold_start(data, cold, chosen, kept, idle)
        _release_cold(data, out, chosen, cold, shared | at_once, json, yes)
        return
    _refuse_without_state(kept, force)
    if model is None or cold != ColdStartOptions():
        raise InputError(
            "expected --model MODEL, or --cold-start to begin without one (--alphabet, --learn-after, --types and "
            "--versions go with it)"
        )
    shared |= {"on_unknown": on_unknown} | (at_once if kept.state is None else {})
    _release_with_model(data, out, model, chosen, kept, shared, json, yes)


def _refuse_without_state(kept: StateOptions, force: bool) -> None:
    """Refuse what is about a state file where there is none, and what does not go with one."""
    if kept.state is not None and force:
        raise InputError("--force does not go with --state, which goes on with its own output; name another one")
    if kept.state is None and kept.key is not None:
        raise InputError("--key is for a release that can be gone on with; name its state file by --state")
    if kept.state is None and kept.must_exist:
        raise InputError("--must-exist is about a state file; name it by --state")


def _release_with_model(
    data: str,
    out: str,
    model: Path,
    chosen: o.SettingOptions,
    kept: StateOptions,
    shared: dict[str, Any],
    json: bool,
    yes: bool,
) -> None:
    """Release a file with a model, at once or going on with a state file, and say what was released."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.release import release_file
    from seqveil.interfaces.files.rows import columns_for

    setting = chosen.setting(MarkovModel.load(model))
    shared["columns"] = columns_for(setting, shared["columns"])
    shared["inputs"] = (model, *(chosen.observer or ()))
    with progress(data, "releasing") as advance:
        shared["progress"] = advance
        if kept.state is None:
            account = release_file(data, setting, out, **shared)
        else:
            account = _release_with_state(data, setting, out, kept.state, kept, shared)
    if json:
        emit_json(asdict(account) | {"setting": setting.to_dict(), "out": out}, to_stderr=out == "-")
    else:
        _say(account, yes)


def _release_with_state(
    data: str, setting: Setting, out: str, state: Path, kept: StateOptions, shared: dict[str, Any]
) -> Released:
    """Release a file over a state file; stopped in between, it says that the same command goes on."""
    from seqveil.engine.store.backup import key_for
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


def _refuse_with_cold_start(
    data: str, cold: ColdStartOptions, chosen: o.SettingOptions, kept: StateOptions, idle: dict[str, object]
) -> None:
    """Refuse what a cold start cannot do."""
    given: dict[str, object] = {**idle, "--batch": chosen.batch, "--state": kept.state, "--key": kept.key}
    about_secrets = (name for name in vars(chosen) if name.startswith("secret") or name == "observer")
    given |= {f"--{name.replace('_', '-')}": getattr(chosen, name) for name in about_secrets}
    for name in (name for name, value in given.items() if value is not None):
        raise InputError(f"{name} does not go with --cold-start; leave one of them out")
    if cold.alphabet is None and data == "-":
        raise InputError("standard input is read once, so its values must be known; name them by --alphabet")


def _release_cold(
    data: str, out: str, chosen: o.SettingOptions, cold: ColdStartOptions, shared: dict[str, Any], json: bool, yes: bool
) -> None:
    """Release a file without a model, and learn one on the way."""
    from seqveil.interfaces.files.fit import values_of
    from seqveil.interfaces.files.learning import versions_file
    from seqveil.interfaces.files.release import release_file
    from seqveil.interfaces.files.rows import Source
    from seqveil.interfaces.files.words import named_alphabet
    from seqveil.interfaces.files.writing import refuse_second

    written = versions_file(out, cold.versions)
    refuse_second(out, shared["meta"], written, force=shared["force"])  # before the data are read
    with progress(data, "releasing", passes=1 if cold.alphabet is not None else 2) as advance:
        if cold.alphabet is None:
            source = Source(data, shared["columns"], shared["format"], missing=shared["missing"])
            names = values_of(source, advance)
        else:
            names = named_alphabet(cold.alphabet)
        start = _cold_start(names, chosen, cold, shared["seed"])
        account = release_file(data, start, out, versions=cold.versions, progress=advance, **shared)
    if json:
        facts = {"versions": start.versions.describe(), "versions_file": str(written), "out": out}
        emit_json(asdict(account) | facts, to_stderr=out == "-")
        return
    _say(account, yes)
    _say_versions(start, cold.alphabet is None)


def _cold_start(names: Symbols, chosen: o.SettingOptions, cold: ColdStartOptions, seed: int | None) -> ColdStart:
    from seqveil.receiver.coldstart import ColdStart, Points

    if chosen.epsilon is None:
        raise InputError("expected --epsilon, the bound for one release")
    return ColdStart(
        names,
        chosen.epsilon,
        chosen.mechanism or "optimal",
        chosen.distortion or "hamming",
        schedule=chosen.schedule(),
        points=Points() if cold.learn_after is None else Points(first=cold.learn_after),
        budget=chosen.budgets(),
        seed=seed,
        types=1 if cold.types is None else cold.types,
    )


def _say(account: Released, yes: bool) -> None:
    lines(told(account, yes), to_stderr=True)


def told(account: Released, yes: bool = False) -> list[tuple[str, str]]:
    """What there is to say about a release, line by line; with `yes` without the warning that little protects."""
    batches, bound = account.batch > 1, "" if account.exact else "at most "
    extra = [f"{account.held} held at the best guess"] if account.held else []
    extra += [f"{account.withheld} with an empty value, to keep a secret"] if account.withheld else []
    extra += [f"{account.unknown} outside the alphabet hidden"] if account.unknown else []
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
        ),
    ]
    if account.model_check:
        said.append(("model", account.model_check))
    if account.times is not None:
        said.append(("times", f"read as {account.times}"))
    warnings = [*account.warnings, *([account.warning] if account.warning and not yes else [])]
    said += [("warning", text) for text in warnings]
    if account.secrets:
        said.append(("people", o.CHECK_ON_PEOPLE))
    return said


def _earlier(account: Released) -> str:
    """What of it an earlier run with the same state file had released."""
    new = account.events - account.earlier
    if new > 0:
        return f"{account.earlier} of the rows were released by an earlier run and stand as they were; {new} are new"
    return (
        "nothing new: all rows were released by an earlier run, and stand as they were; rows are told apart by their "
        "users and order alone, so give another input a state file of its own, or add its rows to the end of this one"
    )


def _realised(account: Released, bound: str) -> str:
    """What was leaked, and what holds beside it."""
    if account.whole_sequence and not isfinite(account.leakage):
        return account.whole_sequence
    total = f"worst total over a stream {bound}{account.leakage:.4g}"
    if account.whole_sequence:
        return f"{total} ({account.whole_sequence})"
    charged = f"composition charges {account.composition:.4g}"
    return f"{total} ({charged}); without any model {figure(account.ldp)}{'-LDP' * isfinite(account.ldp)}"


def _say_versions(start: ColdStart, from_data: bool) -> None:
    said = []
    for version in start.versions:
        why = version.why
        known = f"learned from {why['releases']} releases of {why['users']} users, " if why else "no context, "
        gain = f", gains {why['gain']:.4f} ± {why['error']:.4f} nats an event on held-out users" if why else ""
        said.append(("version", f"{version.number}: {known}in force after {version.after} rows{gain}"))
    if from_data:
        said.append(("note", "the values that occur in DATA are now public; name them by --alphabet to avoid that"))
    lines(said, to_stderr=True)
