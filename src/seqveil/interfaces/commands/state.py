"""`seqveil state`: look at a state file, copy it and check it, while a service may have it open."""

from __future__ import annotations

import json as codec
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.core.model import replacing, target_of
from seqveil.core.words import aligned, count
from seqveil.engine.policy import saved_terms
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import Section, accounts, note, show

if TYPE_CHECKING:
    from seqveil.engine.sqlite import SqliteRecords
    from seqveil.engine.store import UserRow
    from seqveil.engine.stream import Terms

StateFile = Annotated[Path, typer.Argument(metavar="FILE", help="The state file.")]
Users = Annotated[list[str] | None, o.opt("NAME", "Only this user; may be repeated  [default: all]")]
HEADINGS = ("user", "events", "releases", "leakage", "epsilon_spent", "ldp")

state = Section(
    no_args_is_help=True, rich_markup_mode=None, help="Inspect, copy or check a state file; erase a person's data."
)


@state.command()
def verify(file: StateFile, json: o.Json = False) -> None:
    """Check every record of a state file against its checksum.

    Exit code 1 where something is damaged. A service may keep the file open meanwhile.

    Example: seqveil state verify clicks.db
    """
    from seqveil.engine.upkeep import verify as look

    found = look(file)
    held = f"{count(found.users, 'user')}, {count(found.releases, 'release')}"
    said = [*(("damaged", problem) for problem in found.problems), ("verified" if found.sound else "read", held)]
    facts = {**vars(found), "sound": found.sound, "damaged_users": sorted(found.damaged_users)}
    show(facts if json else aligned(said), json)
    if not found.sound:
        raise typer.Exit(1)


@state.command()
def backup(
    file: StateFile,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Where the copy goes: a new name, since nothing is overwritten.")
    ],
    json: o.Json = False,
) -> None:
    """Copy a state file as it is now, and check the copy.

    Only the owner may read the copy. A service may keep the file open meanwhile. Whoever continues from an older copy
    draws values a second time, which reveals more than the account says: see docs/operations.md first.

    Example: seqveil state backup clicks.db backups/clicks.db
    """
    from seqveil.engine.upkeep import backup as copy

    found = copy(file, out)
    facts = {"out": out, "users": found.users, "releases": found.releases}
    held = f"{count(found.users, 'user')}, {count(found.releases, 'release')}"
    show(facts if json else f"copied  {held} to {out}, and checked them", json)


@state.command()
def account(file: StateFile, user: Users = None, json: o.Json = False) -> None:
    """Show each user's account.

    It lists events, releases, leakage in nats, the sum of ε by composition, and the LDP level; for each declared
    secret, the furthest that its log odds have moved, and its ε.

    Example: seqveil state account clicks.db --user ann
    """
    from seqveil.engine.sqlite import reading

    terms = _terms_of(file)
    with reading(file) as found:
        found.whole()
        private = found.facts()["private"] == "yes"
        named = ((0, *each) for each in _rows(found, user)) if user else found.users()
        rows: list[dict[str, Any]] = [
            {"user": f"user number {k}", "damaged": True} if row is None else _account(terms, name, row, private)
            for k, name, row in named
            if not isinstance(name, bytes)  # of whom only the total is kept
        ]
    show(rows if json else accounts(HEADINGS, rows), json)


def _account(terms: Terms, name: str, row: UserRow, private: bool) -> dict[str, Any]:
    """A user's account by name, with what was disclosed about each declared secret."""
    from seqveil.engine.packing import unpack
    from seqveil.engine.store import Account

    trackers = unpack(terms, [row]).trackers if row.events else None
    return vars(Account.of(terms, name, row, private, None if trackers is None else trackers[0]))


@state.command()
def export(file: StateFile, out: o.Out, user: Users = None) -> None:
    """Write what was released as lines of JSON.

    A line has user, seq, status, value (or values and path), epsilon and time: only what was released, with users'
    names, numbers and times. Raw symbols are never written.

    Example: seqveil state export clicks.db --out releases.jsonl
    """
    from seqveil.engine.sqlite import reading
    from seqveil.engine.store import with_gaps
    from seqveil.interfaces.events import Wording

    setting = _terms_of(file)
    if out != "-" and os.path.exists(out):
        raise InputError(f"{os.path.basename(out)}: is there already; name a file that is not")
    wording = Wording(setting.model.alphabet)
    made = 0
    with ExitStack() as held:
        found, sink = held.enter_context(reading(file)), sys.stdout
        found.whole()
        if out != "-":
            part = held.enter_context(replacing(target_of(out), private=True))
            sink = held.enter_context(part.open("w", encoding="utf-8"))
        names = user or [str(name) for _, name, row in found.users() if row is None or not row.erased]
        for name, row in _rows(found, names):
            for stored in with_gaps(found.releases(row), 0):
                sink.write(codec.dumps({"user": name} | wording.stored(stored, setting)) + "\n")
                made += 1
    if out != "-":
        show(f"wrote  {count(made, 'release')} to {out}")


@state.command()
def adopt(
    file: StateFile,
    model: Path | None = o.opt("FILE", "Another model of the same values, to continue with."),
    key: Path | None = o.opt("FILE", "With --model: the key of the state file, where it has one."),
) -> None:
    """Continue with another model, or accept a restored copy.

    With --model: all stored releases are replayed, so that beliefs, leakage and accounts become those of the new model,
    exactly; budgets continue from them.

    Without --model: accept a copy that was restored in place of the file, once, before the first release from it. With
    a key, later events then use fresh randomness. What was released after the copy was made is missing from its
    accounts: read docs/operations.md first. Close every program that has the file open first.

    Example: seqveil state adopt clicks.db --model refitted.model
    """
    from seqveil.core.model import MarkovModel
    from seqveil.core.randomness import key_file
    from seqveil.engine.streams import CodeStreams
    from seqveil.engine.upkeep import accept

    if model is None:
        accept(file)
        show(f"adopted  {file}: it goes on from what it holds, with randomness of its own")
        return
    new, secret = MarkovModel.load(model), None if key is None else key_file(key)
    with CodeStreams.open(file, _terms_of(file), key=secret, must_exist=True) as streams:
        streams.adopt(new)
        disclosed, found = streams.secrets(), streams.accounts()
        total = streams.setting.budget.exact_total
    whose = f"{count(len(found), 'user goes', 'users go')} on with what they disclosed under this model"
    show(f"adopted  {model} for {file}: {whose}")
    past = 0 if total is None else int((found.leakage > total).sum())
    if past:
        note(f"{past} of the users are past the total of the budget under this model: nothing is left of it for them")
    for each in disclosed:
        if each.epsilon is not None and each.log_odds_worst > each.epsilon:
            moved = f"the log odds of {each.name} have moved by up to {each.log_odds_worst:.4g}"
            note(f"{moved}, past its ε = {each.epsilon:g}")


@state.command()
def erase(
    file: StateFile,
    user: Annotated[list[str], typer.Argument(metavar="USER", help="Whom to erase; several names may be given.")],
    key: Path | None = o.opt("FILE", "The key of the state file, where it has one."),
) -> None:
    """Erase a person's data: releases, state and name, everywhere in the file.

    Only the account's total is kept, under a keyed hash of the name, so that whoever returns is refused: a new account
    would begin at zero. Close every program that has the file open first. Copies of the file are not touched; see
    docs/operations.md.

    Example: seqveil state erase clicks.db ann --key clicks.key
    """
    from seqveil.core.randomness import key_file
    from seqveil.engine.upkeep import erase as take_out

    releases = take_out(file, user, None if key is None else key_file(key))
    gone = f"{count(len(set(user)), 'user')} and {count(releases, 'release')} from {file}"
    show(f"erased  {gone}; the total of the account is kept under a keyed hash of the name")


def _terms_of(file: Path) -> Terms:
    """What a state file is released with, under its present model."""
    from seqveil.engine.sqlite import reading
    from seqveil.engine.upkeep import models

    with reading(file) as found:
        facts = found.facts()
    return saved_terms(codec.loads(facts["setting"]), models(facts)[-1])


def _rows(found: SqliteRecords, names: Sequence[str]) -> Iterator[tuple[str, UserRow]]:
    """Where these users stand, each of whom something was released."""
    for name, row in zip(names, found.find(names), strict=True):
        if row is None or row.erased:
            raise DataError(f"{found.name}: nothing was released of this user; `seqveil state account` lists all")
        yield name, row
