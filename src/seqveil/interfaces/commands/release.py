"""`seqveil release`: a file of streams, released row by row or in batches."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import InputError
from seqveil.core.words import aligned
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, rows, show

if TYPE_CHECKING:
    from seqveil.engine.policy import Policy


@dataclass(frozen=True)
class StateOptions:
    """What a release keeps so that it can go on later."""

    state: Path | None = o.opt(
        "FILE",
        "Record releases here, so that the same command continues after a stop or crash, and draws no value twice.",
    )
    key: Path | None = o.opt(
        "FILE",
        "With --state: derive the randomness from the secret key in this file (created if missing), so that "
        "repeating an event gives the same value. Anyone with it and the releases can recover the true values.",
    )
    must_exist: bool = o.switch("Refuse a state file that is missing or empty, rather than begin one.")


@dataclass(frozen=True)
class PromiseOptions(o.SecretOptions):
    """What is promised: a policy in a file, or the most usual fields of one."""

    policy: Path | None = o.opt(
        "FILE",
        "A policy from `seqveil plan`, instead of --secret*, --epsilon, --batch, --block, --budget, --mechanism.",
    )
    epsilon: float | None = o.opt(
        "E", "The most that a release, batch or block may leak, in nats under the model.", "-e"
    )
    batch: int | None = o.opt("W", "Release W events of a user at a time: less error, more delay  [default: 1]")
    block: int | None = o.opt(
        "W", "W events share one ε, each released at once: less error than one by one at ε/W  [default: 1]"
    )
    budget: float | None = o.opt("TOTAL", "The most that a user's stream may leak, in nats under the model.")
    mechanism: str | None = o.opt("NAME", "See `seqveil mechanisms`  [default: optimal; auto for batches]")

    def source(self) -> Policy | Path:
        """The file of the policy, or the policy that the options spell out."""
        from seqveil.engine.policy import Policy

        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "policy"}
        given = {name: value for name, value in given.items() if value not in (None, [])}
        if self.policy is not None:
            if given:
                named = ", ".join(map(o.spelled, given))
                raise InputError(f"--policy says what is promised; leave out {named}, or write it into the policy")
            return self.policy
        if not given:
            raise InputError(
                "expected what is promised, got nothing; pass --epsilon E, --secret ever:VALUE with --secret-epsilon "
                "E, or --policy FILE"
            )
        plain = {name: given[name] for name in ("epsilon", "batch", "block", "budget", "mechanism") if name in given}
        secrets = self.promised() if any(name.startswith("secret") for name in given) else ()
        return Policy(secrets=secrets, **plain)


@o.option_groups
def release(
    data: o.Data,
    out: o.Out,
    model: o.ModelFile,
    *,
    chosen: PromiseOptions,
    on_unknown: o.OnUnknown = None,
    seed: int | None = o.opt("N", "For research only: the release is NOT private."),
    columns: o.ColumnOptions,
    format: o.Format = None,
    meta: o.Meta = None,
    kept: StateOptions,
    force: bool = o.switch("Replace an earlier release; only safe if nobody saw it: two reveal more than either."),
    yes: bool = o.switch("Suppress the warning that a stream reveals so much that little is protected."),
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes for each row the user, the order column as it is (so timestamps are published), the released value and the ε
    used; all other columns are dropped. The model remembers how files are read; name columns only where this file
    differs.

    With --batch W a user's events are released W at a time. ε is for the whole batch. The first row of a batch has
    its ε and, in the column `path`, the batch's code, which receivers need to decode it.

    With --state FILE the run can be stopped or killed at any point; the same command continues, no row is lost, and no
    row's released value is drawn twice.

    With --secret, all releases together move the odds of the secret by at most a factor of e^E in total over its window
    (--secret-epsilon E), if the stream follows the model; `seqveil plan` estimates the error. Without --epsilon
    nothing is promised about anything else.

    Example: seqveil release clicks.csv --model clicks.model --epsilon 1 --out released.csv

    Example: seqveil release clicks.csv -m clicks.model --secret ever:health --secret-epsilon 0.5 --out released.csv

    Example: seqveil release clicks.csv --model clicks.model --policy policy.toml --out released.csv

    Example: seqveil release - --model clicks.model --epsilon 1 --out - < clicks.csv
    """
    from seqveil.interfaces.files.release import release as run

    begins = kept.state is not None and not (kept.state.is_file() and kept.state.stat().st_size)
    terminal = sys.stderr.isatty() and not json  # what follows from raw data no log and no file sees
    raw: list[tuple[str, str]] = []
    try:
        with rows("releasing") as meter:
            how: dict[str, Any] = {"on_unknown": on_unknown, **vars(kept), **vars(columns)}
            found = run(
                data, model, chosen.source(), out=out, seed=seed, format=format, meta=meta, force=force,
                progress=meter.advance, shown=raw.extend if terminal else None, **how,
            )  # fmt: skip
    except INTERRUPTIONS:
        if kept.state is None:
            raise
        raise Interrupted("interrupted; what was released stands, and the same command goes on with it") from None
    if json:
        show({**found.to_dict(), "out": out}, json, to_stderr=out == "-")
        return
    said = [("state", f"{kept.state.name} is new: all accounts begin at zero")] if begins and kept.state else []
    show(aligned([*said, *found.lines(warned=yes), *raw]), to_stderr=True)
