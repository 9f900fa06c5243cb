"""What `release --cold-start` does, and what `audit` and `decode` do with the versions it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.errors import InputError

if TYPE_CHECKING:
    from seqveil.audit import Report
    from seqveil.coldstart import ColdStart, Versions
    from seqveil.files import Columns
    from seqveil.flow import Decoded
    from seqveil.model import MarkovModel


def release(
    data: str,
    out: str,
    alphabet: Path | None,
    learn_after: int | None,
    versions: Path | None,
    seed: int | None,
    chosen: tuple[Any, ...],
    refused: Mapping[str, object],
    columns: Columns,
    sort: bool,
    files: Mapping[str, Any],
    json: bool,
) -> None:
    """Release a file without a model; see `seqveil release`."""
    from seqveil.commands.output import emit_json, progress
    from seqveil.flow.coldstart import release_cold, values_of, versions_file
    from seqveil.flow.meta import refuse_second
    from seqveil.flow.private import named_alphabet
    from seqveil.flow.rows import Source

    given = [name for name, value in refused.items() if value is not None]
    if given:
        raise InputError(f"{given[0]} does not go with --cold-start; leave one of them out")
    if alphabet is None and data == "-":
        raise InputError("standard input is read once, so its values must be known; name them by --alphabet")
    refuse_second(out, files["meta"], versions_file(out, versions), force=files["force"])  # before the data are read
    with progress(data, "releasing", passes=1 if alphabet is not None else 2) as advance:
        if alphabet is None:
            names = values_of(Source(data, columns, files["format"], False), advance)
        else:
            names = named_alphabet(alphabet)
        start = _start(names, chosen, learn_after, seed)
        account = release_cold(
            data, start, out, columns=columns, seed=seed, sort=sort, versions=versions, progress=advance, **files
        )
    listed = start.versions.describe()
    if json:
        facts = {"versions": listed, "versions_file": str(versions_file(out, versions)), "out": out}
        emit_json(asdict(account) | facts, to_stderr=out == "-")
        return
    from seqveil.commands.release import _say

    _say(account)
    _say_versions(start, alphabet is None)


def _start(names: Any, chosen: tuple[Any, ...], learn_after: int | None, seed: int | None) -> ColdStart:
    from seqveil.accounting import Budget, Schedule
    from seqveil.coldstart import ColdStart, Points

    mechanism, epsilon, distortion, every, above, *spend = chosen
    if epsilon is None:
        raise InputError("expected --epsilon, the bound for one release")
    budget, horizon, window, window_releases, window_seconds, when_spent, ldp_budget = spend
    return ColdStart(
        names,
        epsilon,
        mechanism or "optimal",
        distortion or "hamming",
        schedule=Schedule(1 if every is None else every, above),
        points=Points() if learn_after is None else Points(first=learn_after),
        budget=Budget(budget, horizon, window, window_releases, window_seconds, when_spent or "hold", ldp_budget),
        seed=seed,
    )


def _say_versions(start: ColdStart, from_data: bool) -> None:
    from seqveil.commands.output import lines

    said = []
    for version in start.versions:
        why = version.why
        known = f"learned from {why['releases']} releases of {why['users']} users, " if why else "no context, "
        gain = f", gains {why['gain']:.4f} ± {why['error']:.4f} nats an event on held-out users" if why else ""
        said.append(("version", f"{version.number}: {known}in force after {version.after} rows{gain}"))
    if from_data:
        said.append(("note", "the values that occur in DATA are now public; name them by --alphabet to avoid that"))
    lines(said, to_stderr=True)


def audit(released: Path, versions: Versions, meta: Path | None, columns: Columns | None) -> Report:
    """Audit a release made by a cold start."""
    from seqveil.commands.output import progress
    from seqveil.flow.coldstart import audit_cold

    with progress(str(released), "auditing") as advance:
        return audit_cold(released, versions, meta=meta, columns=columns, progress=advance)


def decode(
    released: Path, model: Path, out: str, online: bool, loss: str | None, meta: Path | None, columns: Columns | None,
    format: str | None,
) -> Decoded:  # fmt: skip
    """Decode a release made by a cold start."""
    from seqveil.coldstart import Versions
    from seqveil.commands.output import progress
    from seqveil.flow.coldstart import decode_cold

    with progress(str(released), "decoding", passes=2) as advance:
        return decode_cold(
            released,
            Versions.load(model),
            out,
            online=online,
            distortion=loss,
            meta=meta,
            columns=columns,
            out_format=format if out == "-" else None,
            inputs=(model,),
            progress=advance,
        )


def versions_in(model: Path, given: tuple[object, ...]) -> Versions | None:
    """The versions in a file that holds them; None for a single model. Options of a setting do not go with them."""
    from seqveil.coldstart import Versions

    if not Versions.is_one(model):
        return None
    if any(option is not None for option in given):
        raise InputError("a file of versions says how the release was made; leave the options of the setting out")
    return Versions.load(model)


def model_in(model: Path) -> MarkovModel:
    """The model in a file, for a command that takes no versions."""
    from seqveil.coldstart import Versions
    from seqveil.model import MarkovModel

    if Versions.is_one(model):
        raise InputError(
            f"{model.name} holds the versions of a cold start, which only audit and decode take; use those"
        )
    return MarkovModel.load(model)
