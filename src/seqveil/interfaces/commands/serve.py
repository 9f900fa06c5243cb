"""Commands that serve: `seqveil serve` over HTTP, and `serve token` for who may use it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, emit_json, table
from seqveil.interfaces.service.config import ServeOptions

if TYPE_CHECKING:
    from seqveil.interfaces.service.tokens import Token


serve = typer.Typer(name="serve", rich_markup_mode=None)


@serve.callback(invoke_without_command=True)
@o.option_groups
def _serve(
    context: typer.Context,
    model: o.ModelOrNone = None,
    policy: Annotated[Path | None, o.option("FILE", "What is promised, as `seqveil plan` writes it.")] = None,
    state: Annotated[Path | None, o.option("FILE", "Where releases and accounts are kept.")] = None,
    *,
    options: ServeOptions,
) -> None:
    """Release over HTTP, each event on the disk before it is answered.

    Ends on SIGTERM or Ctrl-C after it has released and answered what it had accepted; see docs/service.md.

    Example: seqveil serve --model clicks.model --policy policy.toml --state clicks.db --tokens tokens.db
    """
    if context.invoked_subcommand is not None:
        return
    from seqveil.core.model import MarkovModel
    from seqveil.engine.policy import Policy

    if model is None or policy is None or state is None:
        raise InputError("expected --model MODEL, --policy FILE and --state FILE; see serve --help")
    with needs_extra("the service", "serve"):
        from seqveil.interfaces.service.server import serve
    with suppress(*INTERRUPTIONS):  # the signal that ended it, passed on by the server when all was done
        serve(Policy.load(policy).on(MarkovModel.load(model)), state, options)


TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of tokens.")]

token = typer.Typer(
    name="token", no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens for the service."
)
serve.add_typer(token)


@token.command()
def add(
    file: TokenFile,
    scope: Annotated[list[str], o.option("NAME", "release, read, metrics or admin; repeat it.", "--scope", "-s")],
    user: Annotated[
        str | None, o.option("PATTERN", "The user it is for; a * at the end: all whose names begin so.")
    ] = None,
    rate: Annotated[float | None, o.option("N", "Events a second  [default: the service's]")] = None,
    note: Annotated[str, o.option("TEXT", "What it is for; shown by list.")] = "",
    expires: Annotated[
        str | None, o.option("30d|DATE", "Good for so many hours (h), days (d) or weeks (w), or to the end of a day.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Make a token and print it, this once: the file keeps its hash alone.

    Example: seqveil serve token add tokens.db --scope release --scope read --user ann
    """
    from seqveil.interfaces.service import tokens as kept

    made, secret = kept.add(file, scope, user, rate, note, expires)
    if json:
        emit_json(_token_facts(made) | {"token": secret})
    else:
        print(secret)


@token.command("list")
def list_(file: TokenFile, json: o.Json = False) -> None:
    """Show the tokens' ids, scopes, users and when they expire; a token itself cannot be shown again.

    Example: seqveil serve token list tokens.db
    """
    from seqveil.interfaces.service import tokens as kept

    found = [_token_facts(each) for each in kept.read(file)]
    if json:
        emit_json(found)
    else:
        for row in found:
            row["expires"] = f"{row['expires']} (no longer good)" if row["expired"] else row["expires"]
        headings = ("id", "scopes", "user", "rate", "created", "expires", "note")
        table(headings, [[str(row[name] or "") for name in headings] for row in found])


@token.command()
def revoke(
    file: TokenFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as list shows it.")],
    json: o.Json = False,
) -> None:
    """Take a token away; a running service knows at once.

    Example: seqveil serve token revoke tokens.db 3f9a0c11d2e4
    """
    from seqveil.interfaces.service import tokens as kept

    gone = kept.revoke(file, id)
    if json:
        emit_json(_token_facts(gone))
    else:
        print(f"revoked {gone.id}")


def _token_facts(token: Token) -> dict[str, object]:
    facts = {name: getattr(token, name) for name in ("id", "scopes", "user", "rate", "created", "note", "expired")}
    return facts | {"expires": token.end}
