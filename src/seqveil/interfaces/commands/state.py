"""`seqveil state`: look at a state file, copy it and check it, while a service may have it open."""

from __future__ import annotations

import json as codec
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.engine.policy import saved_terms
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, table

if TYPE_CHECKING:
    from seqveil.engine.sqlite import SqliteRecords
    from seqveil.engine.store import Stored, UserRow
    from seqveil.engine.stream import Terms

StateFile = Annotated[Path, typer.Argument(metavar="FILE", help="The state file.")]
HEADINGS = ("user", "events", "releases", "leakage", "epsilon_spent", "ldp")

state = typer.Typer(
    name="state",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at a state file, copy it, check it, erase people.",
)


@state.command()
def verify(file: StateFile, json: o.Json = False) -> None:
    """Check every record of a state file against its checksum.

    Exit code 1 where something is damaged. A service may keep the file open meanwhile.

    Example: seqveil state verify clicks.db
    """
    from seqveil.engine.upkeep import verify as look

    found = look(file)
    facts = {"users": found.users, "releases": found.releases}
    if json:
        wrong = {"damaged_users": sorted(found.damaged_users), "problems": found.problems}
        emit_json({"sound": found.sound} | facts | wrong)
    else:
        said = [("damaged", problem) for problem in found.problems]
        lines([*said, ("verified" if found.sound else "read", f"{found.users} users, {found.releases} releases")])
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
    """Copy a state file as it is now, for its owner alone, and check the copy.

    A service may keep the file open meanwhile. Going on from an older copy draws the events since then again:
    see docs/operations.md first.

    Example: seqveil state backup clicks.db backups/clicks.db
    """
    from seqveil.engine.upkeep import backup as copy

    found = copy(file, out)
    if json:
        emit_json({"out": str(out), "users": found.users, "releases": found.releases})
    else:
        print(f"copied  {found.users} users, {found.releases} releases to {out}, and checked them")


@state.command()
def account(
    file: StateFile,
    user: Annotated[list[str] | None, o.option("NAME", "Only this user; may be repeated  [default: all]")] = None,
    json: o.Json = False,
) -> None:
    """Show the ledgers: events, releases, leakage in nats, what composition charges, LDP level.

    Example: seqveil state account clicks.db --user ann
    """
    from seqveil.engine.sqlite import reading

    with reading(file) as found:
        if user:
            rows = [{"user": name} | _figures(row) for name, row in _rows(found, user)]
        else:
            everyone = ((k, name, row) for k, name, row in found.users() if not isinstance(name, bytes))
            rows = [
                {"user": f"user number {k}", "damaged": True} if row is None else {"user": name} | _figures(row)
                for k, name, row in everyone
            ]
    if json:
        emit_json(rows)
    else:
        table(HEADINGS, [[_shown(row.get(name, "damaged")) for name in HEADINGS] for row in rows])


@state.command()
def export(
    file: StateFile,
    out: o.Out,
    user: Annotated[list[str] | None, o.option("NAME", "Only this user; may be repeated  [default: all]")] = None,
) -> None:
    """Write what was released as lines of JSON: user, seq, status, value (or values and path), epsilon, time.

    Everything in it was published before; no raw symbol is in a state file.

    Example: seqveil state export clicks.db --out releases.jsonl
    """
    from seqveil.engine.sqlite import reading
    from seqveil.engine.store import ERASED, with_gaps
    from seqveil.interfaces.events import Wording

    setting = _terms_of(file)
    if out != "-" and os.path.exists(out):
        raise InputError(f"{os.path.basename(out)}: is there already; name a file that is not")
    shown = Wording(setting.model.alphabet).shown
    count, dropped = 0, 0
    with reading(file) as found, _written(out) as sink:
        names = user or [str(name) for _, name, row in found.users() if row is None or not row.erased]
        for name, row in _rows(found, names):
            for stored in with_gaps(found.releases(row), 0):
                if stored.code == ERASED:
                    dropped += 1
                    continue
                sink.write(codec.dumps({"user": name} | _disclosed(stored, shown, setting)) + "\n")
                count += 1
    if out != "-":
        print(f"wrote  {count} releases to {out}")
    if dropped:
        note = "begin later than with number 0, for their first releases were erased"
        print(f"note: the releases of {dropped} users {note}", file=sys.stderr)


@state.command()
def adopt(
    file: StateFile,
    model: Annotated[Path | None, o.option("FILE", "Another model of the same values, to go on with.")] = None,
    key: Annotated[Path | None, o.option("FILE", "With --model: the key of the state file, where it has one.")] = None,
) -> None:
    """Go on with another model, or with a state file that is not the latest one.

    With --model: all stored releases are replayed, so that beliefs, leakage and the accounts of secrets become
    those of the new model, exact for the kernels that were drawn from, and every budget goes on. Of erased
    releases only the LDP level is kept.

    Without it: for a copy that was put in the place of the file, or a file that lost its end. Run it once before
    the first release. With a key, later events then use fresh randomness. What was released since the copy is not
    in its ledger: see docs/operations.md first.

    Nobody may have the file open.

    Example: seqveil state adopt clicks.db --model refitted.model
    """
    from seqveil.engine.upkeep import accept as take_on

    if model is not None:
        _adopt_model(file, model, key)
        return
    take_on(file)
    print(f"adopted  {file}: it goes on from what it holds, with randomness of its own")


def _adopt_model(file: Path, new: Path, key: Path | None) -> None:
    from seqveil.core.model import MarkovModel
    from seqveil.core.randomness import key_file
    from seqveil.engine.streams import CodeStreams

    model, secret = MarkovModel.load(new), None if key is None else key_file(key)
    with CodeStreams.open(file, _terms_of(file), key=secret, must_exist=True) as streams:
        found = streams.adopt(model)
        disclosed = [
            each for each in streams.secrets() if each.epsilon is not None and each.log_odds_worst > each.epsilon
        ]
    print(f"adopted  {new} for {file}: {found.users} users go on with what they disclosed under this model")
    if found.erased:
        note = "some releases were erased, so of those only the LDP level goes on"
        print(f"note: of {found.erased} users {note}", file=sys.stderr)
    if found.beyond:
        print(f"note: {found.beyond} users are past the total of the budget under this model", file=sys.stderr)
    for each in disclosed:
        said = f"under this model the log odds of {each.name} have moved by up to {each.log_odds_worst:.4g}"
        print(f"note: {said}, past its ε = {each.epsilon:g}; no later release moves them further", file=sys.stderr)


@state.command()
def erase(
    file: StateFile,
    user: Annotated[list[str], typer.Argument(metavar="USER", help="Whom to erase; name several at once.")],
    key: Annotated[Path | None, o.option("FILE", "The key of the state file, where it has one.")] = None,
    forget_ledger: Annotated[
        bool, typer.Option("--forget-ledger", help="Drop the ledger too: a person who returns starts at zero.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask about --forget-ledger.")] = False,
) -> None:
    """Erase a person: the releases, the state and the name, from the whole file.

    The total of the ledger is kept under a keyed hash of the name, so that a person who returns gets no new budget.
    Nobody may have the file open. Copies of the file are not touched; see docs/operations.md.

    Example: seqveil state erase clicks.db ann --key clicks.key
    """
    from seqveil.core.randomness import key_file
    from seqveil.engine.upkeep import erase as take_out

    if forget_ledger and not yes:
        print(
            "Without it nobody knows what was disclosed about this person. A return begins at zero, and what is "
            "disclosed then adds to what was disclosed before, beyond the budget.",
            file=sys.stderr,
        )
        if not _confirmed("Drop the ledger?"):
            raise InputError(
                "nothing was erased; leave --forget-ledger out to keep the total of the ledger, or answer y (--yes)"
            )
    count, left = take_out(file, user, None if key is None else key_file(key), forget_ledger)
    ledger = "dropped too" if forget_ledger else "kept under a keyed hash of the name"
    print(f"erased  {len(set(user))} users and {count} releases from {file}; the total of the ledger is {ledger}")
    for source in left:
        print(
            f"note: what {source} wrote down of how far it was read still has the name in it; let it read on, and run "
            "this again afterwards",
            file=sys.stderr,
        )


def _terms_of(file: Path) -> Terms:
    """What a state file was released with, the latest model included."""
    from seqveil.engine.upkeep import facts_of, models

    facts = facts_of(file)
    if "setting" not in facts:
        raise DataError(f"{file.name}: does not say what it was released with; run `seqveil state verify` on it")
    return saved_terms(codec.loads(facts["setting"]), models(facts)[-1])


def _confirmed(question: str) -> bool:
    """Whether somebody says yes; where nobody is there to answer, no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        print(file=sys.stderr)
        return False


@contextmanager
def _written(out: str) -> Iterator[TextIO]:
    """Standard output, or a file that is there whole or not at all."""
    if out == "-":
        yield sys.stdout
        return
    part = f"{out}.part"
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            yield file
        os.replace(part, out)
    except OSError as error:
        raise InputError(f"{os.path.basename(out)}: cannot be written ({error.strerror}); check the path") from None
    finally:
        with suppress(OSError):
            os.unlink(part)


def _rows(found: SqliteRecords, names: Sequence[str]) -> Iterator[tuple[str, UserRow]]:
    """Where these users stand, each of whom something was released."""
    for name, row in zip(names, found.find(names), strict=True):
        if row is None or row.erased:
            raise DataError(f"{found.name}: nothing was released of this user; `seqveil state account` lists all")
        yield name, row


def _figures(row: UserRow) -> dict[str, Any]:
    """A user's ledger by name, leakage in nats."""
    figures = {
        "events": row.events,
        "releases": row.releases,
        "leakage": max(row.most, -row.least, 0.0),
        "most": row.most,
        "least": row.least,
        "epsilon_spent": row.spent,
        "ldp": row.ldp,
    }
    return {name: _number(figure) for name, figure in figures.items()}


def _disclosed(stored: Stored, shown: list[Any], setting: Terms) -> dict[str, Any]:
    from seqveil.engine.store import GAP

    words = [shown[code] for code in stored.codes] if stored.released else None
    status = "released" if stored.released else "given-up" if stored.code == GAP else "withheld"
    said: dict[str, Any] = {"value": words[0] if words else None}
    if setting.in_batches:
        events = setting.batch if stored.code == GAP else stored.events
        said = {"values": words, "path": stored.path, "events": events}
    time = None if stored.time is None or math.isnan(stored.time) else stored.time
    return {"seq": stored.seq, "status": status} | said | {"epsilon": _number(stored.epsilon), "time": time}


def _number(value: float | int) -> float | int | str | None:
    """JSON has no infinity, and what is not known is null."""
    if isinstance(value, int) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
