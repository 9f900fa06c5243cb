"""`seqveil tokens`: who may use the service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, table

if TYPE_CHECKING:
    from seqveil.interfaces.service.tokens import Token

TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of tokens.")]

tokens = typer.Typer(
    name="tokens", no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens for the service."
)


@tokens.command()
def add(
    file: TokenFile,
    scope: Annotated[
        list[str],
        typer.Option("--scope", "-s", metavar="NAME", help="release, read-account, read, metrics or admin; repeat it."),
    ],
    user: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="The users it is for; * stands for any text  [default: all]")
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Events a second  [default: the service's]")] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for; shown by list.")] = "",
    json: o.Json = False,
) -> None:
    """Make a token and print it, this once: the file keeps its hash alone.

    Example: seqveil tokens add tokens.json --scope release --scope read-account --user ann
    """
    from seqveil.interfaces.service import tokens as kept

    token, secret = kept.add(file, scope, user, rate, note)
    if json:
        emit_json(_facts(token) | {"token": secret})
    else:
        print(secret)


@tokens.command("list")
def list_(file: TokenFile, json: o.Json = False) -> None:
    """Show the tokens' ids, scopes and users; a token itself cannot be shown again.

    Example: seqveil tokens list tokens.json
    """
    from seqveil.interfaces.service import tokens as kept

    found = [_facts(token) for token in kept.read(file)]
    if json:
        emit_json(found)
    else:
        headings = ("id", "scopes", "user", "rate", "created", "note")
        table(headings, [[str(row[name] or "") for name in headings] for row in found])


@tokens.command()
def revoke(
    file: TokenFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as list shows it.")],
    json: o.Json = False,
) -> None:
    """Take a token away; a running service knows within a second.

    Example: seqveil tokens revoke tokens.json 3f9a0c11d2e4
    """
    from seqveil.interfaces.service import tokens as kept

    gone = kept.revoke(file, id)
    if json:
        emit_json(_facts(gone))
    else:
        print(f"revoked {gone.id}")


def _facts(token: Token) -> dict[str, object]:
    shown = ("id", "user", "rate", "created", "note")
    return {name: getattr(token, name) for name in shown} | {"scopes": " ".join(token.scopes)}
