"""`seqveil plan`: the error to expect at each ε, and the policy that does what somebody wants, as `policy.toml`."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import lines, show, steps

if TYPE_CHECKING:
    from seqveil.core.kernel import Ints
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.planning import Wishes

USUAL_LENGTH = 50
QUESTIONS = {
    "seen_by": "1. Who sees it? public, partner or team; empty for a table alone",
    "secret": "2. What must stay secret? Such as ever:health; empty for nothing in particular",
    "wait": "3. For how many later events may a release wait? Empty for none",
    "wrong": "4. How wrong may it be? Such as 20%; empty for whatever the protection costs",
}


@dataclass(frozen=True)
class WishOptions:
    """What is wanted of a release, in words of the command line."""

    seen_by: Annotated[
        str | None,
        o.option(
            "public|partner|team|10:30",
            "Recommend a policy by who sees the release, or by odds: 10:30 keeps a suspicion of 10 % under 30 %.",
        ),
    ] = None
    wrong: Annotated[str | None, o.option("0.2|20%", "Recommend the policy whose error is at most this.")] = None
    wait: Annotated[int | None, o.option("N", "How many events a release may wait (batches)  [default: 0]")] = None
    secret: o.SecretOption = None
    secret_window: o.SecretWindow = None
    secret_epsilon: Annotated[str | None, o.option("E,E,…", "ε of each --secret to compare.")] = None
    policy: Annotated[Path | None, o.option("FILE", "Plan for this policy; instead of --secret and the like.")] = None
    epsilon: Annotated[str | None, o.option("E,E,…", "ε of an event to compare.", "--epsilon", "-e")] = None
    block: Annotated[str | None, o.option("W,W,…", "Lengths of blocks to choose from  [default: 5,10,20,40]")] = None
    distortion: o.DistortionName = None

    def wishes(self) -> Wishes:
        """What is wished; at a terminal it asks for what the options leave out."""
        from seqveil.engine.policy import Policy
        from seqveil.interfaces.planning import BLOCKS, Wishes

        if self.policy is not None:
            self._refuse("policy", *(each.name for each in fields(self) if each.name != "policy"))
            return Wishes(policy=Policy.load(self.policy))
        asked = self._asked()
        secrets = tuple(o.ShortSecrets(asked["secret"], None, self.secret_window).declared())
        if secrets:
            self._refuse("secret", "epsilon", "block", "wait")
        elif (self.secret_epsilon, self.secret_window) != (None, None):
            raise InputError("--secret-epsilon and --secret-window came without a secret; add --secret ever:VALUE")
        name, text = ("secret-epsilon", self.secret_epsilon) if secrets else ("epsilon", self.epsilon)
        return Wishes(
            odds=None if asked["seen_by"] is None else _odds(asked["seen_by"]),
            wrong=None if asked["wrong"] is None else _share(asked["wrong"]),
            wait=asked["wait"] or 0,
            epsilons=None if text is None else tuple(o.parse_epsilons(text, name)),
            blocks=BLOCKS if self.block is None else tuple(o.parse_batches(self.block, "block")),
            secrets=secrets,
            distortion=self.distortion or "hamming",
        )

    def _refuse(self, beside: str, *names: str) -> None:
        given = ["--" + name.replace("_", "-") for name in names if getattr(self, name) not in (None, [])]
        if given:
            raise InputError(f"--{beside} does not go with {', '.join(given)}; leave one of them out")

    def _asked(self) -> dict[str, Any]:
        """The answers to the four questions: those of the options, then of the terminal."""
        given: dict[str, Any] = {name: getattr(self, name) or None for name in QUESTIONS}
        if any(value is not None for value in given.values()) or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return given
        for name, question in QUESTIONS.items():
            answer = str(typer.prompt(question, default="", show_default=False, err=True)).strip()
            if name == "seen_by" and not answer:
                return given
            given[name] = answer or None
        given["secret"] = None if given["secret"] is None else [part.strip() for part in given["secret"].split(";")]
        given["wait"] = None if given["wait"] is None else o.parse_batches(given["wait"], "wait")[0]
        return given


@o.option_groups
def plan(
    source: Annotated[str, typer.Argument(metavar="DATA|MODEL", help="Data, or a model that `seqveil fit` wrote.")],
    *,
    wanted: WishOptions,
    data: Annotated[
        str | None, o.option("FILE", "With a model: people whom it was not fitted to, to try policies on.")
    ] = None,
    length: Annotated[
        int | None, o.option("T", "Events of a stream  [default: the median of the data, else 50]")
    ] = None,
    people: Annotated[int | None, o.option("N", "People to try on  [default: 200; 20 to 40 where it is slow]")] = None,
    plot: Annotated[Path | None, o.option("FILE.png", "Draw error against ε.")] = None,
    out: Annotated[Path | None, o.option("FILE", "Write the recommended policy.", "--out", "-o")] = None,
    force: Annotated[bool, o.flag("--force", "Replace a policy that is there already.")] = False,
    columns: o.ColumnOptions,
    json: o.Json = False,
) -> None:
    """Show the error to expect at each ε, and recommend a policy.

    With data it fits a model to four people in five and tries every policy on the others. With a model and --data it
    tries them on those people; with a model alone, on simulated people: errors are larger for people who do not follow
    the model. Nothing is released.

    It shows the error of releases one by one, in blocks (several events share one ε, each is answered at once) and in
    batches, where releases may wait; for a --secret, the error of people who have it and of those who do not.

    With --seen-by or --wrong it recommends a policy: what to promise, what that costs, and what it means for a person.
    At a terminal it asks. --out writes the policy; release, serve, bridge and spark take it by --policy.

    Example: seqveil plan clicks.csv --seen-by partner --secret ever:health --out policy.toml

    Example: seqveil plan clicks.model --data others.csv --epsilon 0.25,0.5,1 --plot plan.png
    """
    from seqveil.interfaces import planning

    o.check_picture(plot)
    wishes = wanted.wishes()
    if out is not None:
        _check_out(out, force, wishes)
    model, streams = _read(source, data, columns)
    usual = USUAL_LENGTH if streams is None else int(np.median([len(codes) for codes in streams]))
    with steps(None, "policies tried") as tell:
        made = planning.plan(
            model, wishes, length=usual if length is None else length, streams=streams, people=people, progress=tell
        )
    if plot is not None:
        from seqveil.interfaces import plots

        plots.tradeoff(made, plot)
    show(made, json)
    if out is not None:
        _write(made, out)
        if not json:
            lines([("wrote", f"{out}; use it by `seqveil release DATA --model MODEL --policy {out} --out RELEASED`")])


def _check_out(out: Path, force: bool, wishes: Wishes) -> None:
    from seqveil.interfaces.files.writing import taken

    if wishes.odds is None and wishes.wrong is None and wishes.policy is None:
        raise InputError("--out is for a recommended policy; add --seen-by partner, or --wrong 20%")
    if not force and taken(out):
        raise InputError(f"{out.name}: is there already; name another file by --out, or pass --force to replace it")


def _write(made: Any, out: Path) -> None:
    from seqveil.engine import toml
    from seqveil.interfaces.files.writing import write_text

    said = [f"{name}: {text}" for name, text in made.lines() if name not in ("policy", "promise")]
    comments = ["Written by `seqveil plan`; release, serve, bridge and spark take it by --policy.", *said]
    write_text(out, toml.written(made.policy.to_dict(), comments))


def _read(source: str, data: str | None, columns: o.ColumnOptions) -> tuple[MarkovModel, list[Ints] | None]:
    """The model, and people whom it was not fitted to: those of --data, or a fifth of those that were to be fitted."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.choosing import Context, people_held_out
    from seqveil.interfaces.files.fit import fit
    from seqveil.interfaces.files.table import known_format

    if source != "-" and known_format(source) is None:
        model = MarkovModel.load(source)
        return model, None if data is None else [*_coded(data, model, columns)]
    if data is not None:
        raise InputError("--data goes with a model; with data in its place some people are held out of the fit")
    everyone = fit(source, **columns.given)
    streams = [*_coded(source, everyone, columns)]
    held = set(people_held_out(len(streams)).tolist())
    kept = [codes for k, codes in enumerate(streams) if k not in held]
    users = np.repeat(np.arange(len(kept)), [codes.size for codes in kept])
    model = Context().fit(users, np.concatenate(kept), everyone.alphabet)
    return model, [streams[k] for k in sorted(held)]


def _coded(data: str, model: MarkovModel, columns: o.ColumnOptions) -> list[Ints]:
    """The codes of each person of a file, by name."""
    from seqveil.core.reading import Reading
    from seqveil.interfaces.files.events import model_events

    events = model_events(data, model, (model.reading or Reading()).but(**columns.given))
    kept = model.alphabet if model.alphabet.on_unknown in ("other", "nearest") else model.alphabet.strict
    return [codes for _, codes in sorted(events.streams(kept).items())]


def _share(text: str) -> float:
    """A share as people write it: 0.2, 20% or 20 %."""
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("expected how wrong it may be as 0.2 or 20%, for one release in five; got something else")
    return value


def _odds(text: str) -> tuple[float, float]:
    """A suspicion and its limit: those of who sees it, or as two percentages."""
    from seqveil.interfaces.planning import SEEN_BY

    if text in SEEN_BY:
        return SEEN_BY[text]
    before, _, after = text.replace("%", "").partition(":")
    try:
        found = float(before) / 100, float(after) / 100
    except ValueError:
        found = math.nan, math.nan
    if not 0 < found[0] < found[1] < 1:
        raise InputError(
            f"expected --seen-by as {', '.join(SEEN_BY)}, or as 10:30 for a suspicion of 10 % that must stay under "
            "30 %; got something else"
        )
    return found
