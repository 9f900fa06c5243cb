"""Commands to choose by: `seqveil plan`, the error to expect at each ε and a policy, and `seqveil mechanisms`."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from seqveil.core import mechanisms as registry
from seqveil.core.errors import InputError
from seqveil.core.words import ResultTable
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import progress, show

if TYPE_CHECKING:
    from seqveil.core.kernel import Ints
    from seqveil.core.model import MarkovModel

HEADINGS = ("name", "releases", "what it does", "guarantee", "LDP", "sound")
USUAL_LENGTH = 50


def plan(
    source: Annotated[str, typer.Argument(metavar="DATA|MODEL", help="Data, or a model that `seqveil fit` wrote.")],
    *,
    seen_by: str | None = o.opt(
        "public|partner|team|10:30",
        "Recommend a policy by who sees it: a suspicion of 10 % may grow to at most 15, 25 or 40 %, or to 30 %.",
    ),
    wrong: float | None = o.opt("0.2", "Recommend the policy with the least ε whose error is at most this."),
    wait: int = o.opt("N", "How many further events a release may wait for; allows batches.", default=0),
    secret: o.SecretOption = None,
    secret_window: o.SecretWindow = None,
    policy: Path | None = o.opt("FILE", "Plan for this policy."),
    epsilon: str | None = o.opt("E,E,…", "Values of ε to compare, per event or of each --secret.", "-e"),
    distortion: str = o.opt("hamming|absolute|squared|euclidean|metres", "Cost of a wrong release.", default="hamming"),
    data: str | None = o.opt("FILE", "With a model: people whom it was not fitted to, to try policies on."),
    length: int | None = o.opt("T", "Number of events in a stream  [default: the median of the data, else 50]"),
    people: int | None = o.opt("N", "People to try it on  [default: 200; fewer where it is slow]"),
    out: Path | None = o.opt("FILE", "Write the recommended policy.", "-o"),
    columns: o.ColumnOptions,
    json: o.Json = False,
) -> None:
    """Show the error to expect at each ε; recommend a policy.

    Given data, it fits a model to four fifths of the people, read as `seqveil inspect` proposes, and tries every policy
    on the data of the rest. With a model it tries them on the people of --data, or on simulated people; releases of
    real people, who do not follow the model exactly, may have larger errors. Nothing is released.

    It shows the error of releasing events one by one, in blocks (several events share one ε, and each is released at
    once) and, with --wait, in batches; with --secret, for people who have the secret and for those who do not. With
    --seen-by or --wrong it recommends a policy: what to promise, what that costs, and what it means for a person.

    Example: seqveil plan clicks.csv --seen-by partner --secret ever:health --out policy.toml
    """
    from seqveil.engine.policy import Policy
    from seqveil.interfaces import planning
    from seqveil.interfaces.files.writing import taken, write_text

    asked = o.SecretOptions(secret, None, secret_window)
    asked.check()
    wishes = planning.Wishes(
        odds=None if seen_by is None else _odds(seen_by),
        wrong=wrong,
        wait=wait,
        epsilons=None if epsilon is None else tuple(o.parse_numbers(epsilon, "epsilon")),
        secrets=tuple(asked.declared()),
        distortion=distortion,
        policy=None if policy is None else Policy.load(policy),
    )
    if out is not None and wishes.odds is None and wishes.wrong is None and wishes.policy is None:
        raise InputError("--out is for a recommended policy; add --seen-by partner, or --wrong 0.2")
    if out is not None and taken(out):
        raise InputError(f"{out.name}: is there already; name another file with --out, or remove it first")
    with progress("reading") as meter:
        model, streams, read = _read(source, data, columns)
        usual = USUAL_LENGTH if streams is None else int(np.median([len(codes) for codes in streams]))
        how: dict[str, Any] = {"length": usual if length is None else length, "streams": streams, "people": people}
        given = "" if data is None else Path(data).name
        made = replace(planning.plan(model, wishes, progress=meter.turn, **how), read=read, people_of=given)
    show(made, json)
    if out is not None and made.policy is not None:  # which is public, and how raw rows stood is not
        said = [f"{name}: {text}" for name, text in made.lines() if name not in ("read", "policy", "promise")]
        comments = ["Written by `seqveil plan`; pass it to release, serve, bridge and spark with --policy.", *said]
        write_text(out, made.policy.to_toml(comments))
        if not json:
            show(f"wrote  {out}; use it with `seqveil release DATA --model MODEL --policy {out} --out RELEASED`")


def _read(source: str, data: str | None, columns: o.ColumnOptions) -> tuple[MarkovModel, list[Ints] | None, str]:
    """The model, people whom it was not fitted to (those of --data, or a fifth of the data), and how data were read."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.choosing import CodedEvents, Context, people_held_out
    from seqveil.interfaces.files.fit import fit_table
    from seqveil.interfaces.files.inspection import inspect, option_words
    from seqveil.interfaces.files.table import known_format, read_table
    from seqveil.interfaces.trials import read_people

    if source != "-" and known_format(source) is None:
        model = MarkovModel.load(source)
        return model, None if data is None else list(read_people(data, model, **vars(columns)).values()), ""
    if data is not None:
        raise InputError("--data goes with a model; with data in its place some people are held out of the fit")
    table = read_table(source)
    how = inspect(table, **vars(columns)).options
    fitted = fit_table(table, **how)
    everyone, read = fitted.model, f"{fitted.read_as}; as by `seqveil fit{option_words(how)}`"
    streams = list(read_people(table, everyone).values())
    rows, held = np.repeat(np.arange(len(streams)), [codes.size for codes in streams]), people_held_out(len(streams))
    people = CodedEvents(rows, np.concatenate(streams), len(streams))
    return people.fit(Context(), everyone.alphabet, held), [streams[k] for k in sorted(held.tolist())], read


def _odds(text: str) -> tuple[float, float]:
    """A suspicion and its limit: those of who sees it, or as two percentages."""
    from seqveil.interfaces.planning import SEEN_BY

    if text in SEEN_BY:
        return SEEN_BY[text]
    before, _, after = text.partition(":")
    try:
        return float(before) / 100, float(after) / 100
    except ValueError:
        raise InputError(f"expected --seen-by as {', '.join(SEEN_BY)}, or as 10:30, for 10 and 30 %") from None


def mechanisms(json: o.Json = False) -> None:
    """List the mechanisms and what each promises.

    ε is that of a release, a batch, a block, or a secret for its whole window.

    Example: seqveil mechanisms --json
    """
    facts: dict[str, Any] = {}
    rows = []
    others = {registry.guarded.name: "with secrets", registry.in_blocks.name: "in blocks"}
    for name in registry.names():
        one, batched = registry.find(name), name in registry.batched()
        kind = "in batches" if batched else others.get(name, "one by one")
        ldp = f"{one.ldp:g}ε" if math.isfinite(one.ldp) else "none"
        ldp = f"none ({ldp} with an ε per release)" if name == registry.guarded.name else ldp
        rows.append((name, kind, one.summary, one.guarantee, ldp, "yes" if one.sound else "NO"))
        own = {each.name: getattr(one, each.name) for each in fields(one)}
        facts[name] = {key: value for key, value in own.items() if not callable(value)} | {"batched": batched}
    show(facts if json else ResultTable("", HEADINGS, rows), json)
