"""What `seqveil plan` recommends: a setting solved from who will see it, what must stay secret and how wrong it may be,
with its expected error and what it means, as `policy.toml`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.distortion import error_size
from seqveil.core.errors import InputError
from seqveil.core.words import percent
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.core.secrets import Secret
    from seqveil.interfaces.planning import Advice

NAME = "policy.toml"
QUESTIONS = {
    "seen_by": "1. Who sees it? public, partner or team",
    "secret": "2. What must stay secret? Such as ever:health; empty for nothing in particular",
    "wait": "3. For how many later events may a release wait? 0: none",
    "wrong": "4. How wrong may it be? Such as 20 %; empty for whatever the protection costs",
}


@dataclass(frozen=True)
class WishOptions:
    """What somebody can say who does not think in ε; any of the first four asks `plan` for a recommendation."""

    seen_by: Annotated[str | None, o.option("public|partner|team", "Recommend a setting for who will see it.")] = None
    wrong: Annotated[
        str | None, o.option("0.2|20%", "Recommend: expected error that is tolerated  [default: what protection costs]")
    ] = None
    odds: Annotated[
        str | None, o.option("10:30", "Recommend: a suspicion of 10 % must stay under 30 %  [default: by --seen-by]")
    ] = None
    wait: Annotated[
        int | None, o.option("N", "Recommend: later events that a release may wait for  [default: none]")
    ] = None
    out: Annotated[
        Path | None, o.option("FILE", f"Where to write the recommendation  [default: {NAME}]", "--out", "-o")
    ] = None
    force: Annotated[bool, o.flag("--force", "Replace a policy that is there already.")] = False

    @property
    def given(self) -> bool:
        """Whether a recommendation is asked for."""
        return any(wish is not None for wish in (self.seen_by, self.wrong, self.odds, self.wait))

    def refuse_idle(self) -> None:
        """Refuse what says where a recommendation goes where none is asked for."""
        if self.out is not None or self.force:
            raise InputError("--out and --force are for a recommended setting; add --seen-by")


def model_of(source: str) -> MarkovModel:
    """The model of a file; data that stand in its place are to be fitted first."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.table import known_format

    if source == "-" or known_format(source) is not None:
        raise InputError("expected a model, got data; fit one to them first, by `seqveil fit DATA --out MODEL`")
    return MarkovModel.load(source)


def recommend(
    source: str,
    wishes: WishOptions,
    declared: tuple[Secret, ...],
    distortion: str,
    window: str | None,
    length: int,
    json: bool,
) -> None:
    """Solve for a setting, say what it costs and means for a person, and write it.

    With --wrong it finds the largest protection whose expected error stays below; else, or with --odds, the setting
    that keeps a suspicion under its limit. At a terminal it asks for what the options leave out.
    """
    from seqveil.engine import toml
    from seqveil.interfaces.files.writing import taken, write_text
    from seqveil.interfaces.planning import SEEN_BY, Wishes, advise

    seen = _seen_by(_answer("seen_by", wishes.seen_by, None if wishes.odds is None else "public"))
    secrets = declared or _asked_secrets(window)
    waiting = _waiting(wishes.wait)
    tolerated = _share(wishes.wrong if wishes.wrong is not None else _answer("wrong", None, ""))
    before, after = SEEN_BY[seen] if wishes.odds is None else _odds(wishes.odds)
    out = Path(NAME) if wishes.out is None else wishes.out
    if not wishes.force and taken(out):
        raise InputError(f"{out.name}: is there already; name another file by --out, or pass --force to replace it")
    chain = model_of(source)
    asked = Wishes(length, before, after, tolerated, waiting, secrets, distortion)
    found = advise(chain, asked, from_accuracy=tolerated is not None and wishes.odds is None)
    comments = ["Written by `seqveil plan`; release, serve, bridge and spark take it by --policy.", *_said(found)]
    write_text(out, toml.written(found.policy.to_dict(), comments))
    if json:
        facts = {
            "model": source,
            "policy": found.policy.to_dict(),
            "error": found.error,
            "best_guess_error": found.guess,
            "out": str(out),
        }
        facts |= {"words": list(found.risk.sentences), "grade": found.risk.grade.colour, "notes": list(found.notes)}
        emit_json(facts | {"solved_from": found.solved_from, "length": length, "limit": [before, after]})
        return
    _say(found, source, out, seen if wishes.odds is None else None, (before, after))


def _answer(name: str, given: str | None, default: str | None = None) -> str:
    """What an option says, or the terminal; without either the default, or a line that names the option."""
    if given is not None:
        return given
    if sys.stdin.isatty() and sys.stderr.isatty():
        given = str(typer.prompt(QUESTIONS[name], default=default or "", show_default=False, err=True)).strip()
    if given:
        return given
    if default is None:
        option = "--" + name.replace("_", "-")
        raise InputError(f"expected {option}, the answer to “{QUESTIONS[name][3:]}”; got none")
    return default


def _seen_by(text: str) -> str:
    from seqveil.interfaces.planning import SEEN_BY

    if text not in SEEN_BY:
        raise InputError(f"expected --seen-by as {', '.join(SEEN_BY)}; got something else")
    return text


def _asked_secrets(window: str | None) -> tuple[Secret, ...]:
    """The secrets that somebody names at the terminal, with semicolons between them."""
    named = [part for part in _answer("secret", None, "").split(";") if part.strip()]
    return tuple(o.ShortSecrets(named, None, window).declared())


def _waiting(given: int | None) -> int:
    if given is not None:
        return given
    text = _answer("wait", None, "") or "0"
    if not (text.isascii() and text.isdigit()):
        raise InputError("expected the events that a release may wait for as a whole number; try 0")
    return int(text)


def _share(text: str) -> float | None:
    """A share as people write it: 0.2, 20% or 20 %; None for nothing."""
    plain = text.strip()
    if not plain:
        return None
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("expected how wrong it may be as 0.2 or 20%, for one release in five; got something else")
    return value


def _odds(text: str) -> tuple[float, float]:
    """A suspicion and its limit, both in per cent."""
    before, colon, after = text.replace("%", "").partition(":")
    try:
        found = float(before) / 100, float(after) / 100
    except ValueError:
        found = math.nan, math.nan
    if not colon or not 0 < found[0] < found[1] < 1:
        raise InputError(
            "expected --odds as 10:30, for a suspicion of 10 % that must stay under 30 %; got another form"
        )
    return found


def _said(found: Advice) -> list[str]:
    """What the setting costs and means, a line each."""
    costs = str(found.policy.distortion)
    hamming = costs == "hamming"
    cost, guess = (percent(each) if hamming else error_size(each, costs) for each in (found.error, found.guess))
    what = f"{cost} of the events are released wrong" if hamming else f"expected error {cost} an event"
    error = f"{what}, under the model; the best guess with no release at all: {guess}"
    return [error, *found.risk.sentences, f"grade {found.risk.grade.text}", *found.notes]


def _say(found: Advice, model: str, out: Path, seen: str | None, limit: tuple[float, float]) -> None:
    from seqveil.engine import toml

    why = f"a suspicion of {percent(limit[0])} is to stay under {percent(limit[1])}"
    why += "" if seen is None else f", as is usual for what {seen} sees"
    error, *means = _said(found)[: 1 + len(found.risk.sentences)]
    said = [
        ("asked", f"solved from {found.solved_from}; {why}"),
        ("policy", "; ".join(toml.written(found.policy.to_dict()).replace("\n\n", "\n").splitlines())),
        ("error", error),
        *(("means", text) for text in means),
        ("grade", found.risk.grade.text),
        *(("note", text) for text in found.notes),
        ("wrote", f"{out}; use it by `seqveil release DATA --model {model} --policy {out} --out RELEASED`"),
    ]
    lines(said)
