"""`seqveil release`: a file of streams, released row by row or in batches."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import InputError
from seqveil.core.words import aligned
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, progress, show

if TYPE_CHECKING:
    from seqveil.engine.policy import Policy


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

        given = {name: value for name, value in vars(self).items() if name != "policy" and value not in (None, [])}
        if self.policy is not None:
            if given:
                named = ", ".join(map(o.spelled, given))
                raise InputError(f"--policy says what is promised; leave out {named}, or write it into the policy")
            return self.policy
        if not given:
            raise InputError("nothing is promised; pass --epsilon E, --secret with --secret-epsilon, or --policy FILE")
        plain = {name: value for name, value in given.items() if not name.startswith("secret")}
        if plain == given:
            return Policy(**plain)
        self.check()
        if self.secret_epsilon is None:
            raise InputError("--secret needs an ε; add --secret-epsilon E, for instance --secret-epsilon 0.5")
        return Policy(secrets=self.declared(), **plain)


def release(
    data: o.Data,
    out: o.Out,
    model: o.ModelFile,
    *,
    chosen: PromiseOptions,
    on_unknown: str | None = o.opt(
        "error|hide|nearest|other", "Values outside the alphabet  [default: the model's setting]"
    ),
    seed: int | None = o.opt("N", "For research only: the release is NOT private."),
    columns: o.ColumnOptions,
    format: o.Format = None,
    meta: o.Meta = None,
    state: Path | None = o.opt("FILE", "Record releases here: after a stop or crash the same command continues."),
    key: Path | None = o.opt(
        "FILE",
        "With --state: derive the randomness from the secret key in this file (created if missing). Anyone with it and "
        "the releases can recover the true values.",
    ),
    must_exist: bool = o.switch("Refuse a state file that is missing or empty, rather than begin one."),
    force: bool = o.switch("Replace an earlier release; only safe if nobody saw it: two reveal more than either."),
    json: o.Json = False,
) -> None:
    """Release every row of a file, with a guarantee.

    Writes for each row the user, the order column as it is (so timestamps are published), the released value and the ε
    used; all other columns are dropped. The model remembers how files are read; name columns only where this file
    differs.

    With --batch W a user's events are released W at a time. ε is for the whole batch. The first row of a batch has
    its ε and, in the column `path`, the batch's code, which receivers need to decode it.

    With --secret, all releases together move the odds of the secret by at most a factor of e^E over its window
    (--secret-epsilon E), if the stream follows the model. Without --epsilon nothing is promised about anything else.

    Example: seqveil release clicks.csv --model clicks.model --policy policy.toml --out released.csv

    Example: seqveil release - -m clicks.model --secret ever:health --secret-epsilon 0.5 --out - < clicks.csv
    """
    from seqveil.interfaces.files.release import release as run

    begins = state is not None and not (state.is_file() and state.stat().st_size)
    terminal = sys.stderr.isatty() and not json  # what follows from raw data no log and no file sees
    raw: list[tuple[str, str]] = []
    how: dict[str, Any] = {"on_unknown": on_unknown, "state": state, "key": key, "must_exist": must_exist}
    how |= {"seed": seed, "format": format, "meta": meta, "force": force, **vars(columns)}
    try:
        with progress("releasing") as meter:
            shown = raw.extend if terminal else None
            found = run(data, model, chosen.source(), out=out, progress=meter.advance, shown=shown, **how)
    except INTERRUPTIONS:
        if state is None:
            raise
        raise Interrupted("interrupted; what was released stands, and the same command goes on with it") from None
    if json:
        show(found, json, to_stderr=out == "-", out=out)
        return
    said = [("state", f"{state.name} is new: all accounts begin at zero")] if begins and state else []
    show(aligned([*said, *found.lines(), *raw]), to_stderr=True)
