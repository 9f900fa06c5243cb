"""Commands that serve: `seqveil serve` over HTTP, and `serve token` for who may use it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, emit_json, table

if TYPE_CHECKING:
    from seqveil.interfaces.service.tokens import Token


@dataclass(frozen=True)
class ServiceOptions:
    """How the service is reached, by whom and how much; None leaves an option to the environment and the file."""

    on_unknown: o.OnUnknownLive = None
    gaps: Annotated[
        str | None, o.option("refuse|skip", "Events that leave others of their user out  [default: refuse]")
    ] = None
    host: Annotated[str | None, o.option("ADDRESS", "Address to bind  [default: 127.0.0.1]")] = None
    port: Annotated[int | None, o.option("N", "Port; 0 takes a free one  [default: 8713]")] = None
    tokens: Annotated[Path | None, o.option("FILE", "Made by `seqveil serve token add`.")] = None
    no_auth: Annotated[bool | None, o.flag("--no-auth", "Ask for no tokens; on a loopback address only.")] = None
    tls_cert: Annotated[Path | None, o.option("FILE", "Certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, o.option("FILE", "Its private key (PEM).")] = None
    insecure: Annotated[
        bool | None, o.flag("--insecure", "Serve a network address without TLS: something in front does it.")
    ] = None
    backups: Annotated[Path | None, o.option("FOLDER", "Where POST /v1/backup puts copies  [default: nowhere]")] = None
    max_body: Annotated[int | None, o.option("BYTES", "Largest body  [default: 4 MiB]")] = None
    max_events: Annotated[int | None, o.option("N", "Events of a request  [default: 10000]")] = None
    rate: Annotated[float | None, o.option("N", "Events a second of one token  [default: 100000]")] = None
    timeout: Annotated[float | None, o.option("S", "Seconds for a request  [default: 10]")] = None
    log_level: Annotated[str | None, o.option("debug|info|warning|error", "[default: info]")] = None
    log_users: Annotated[
        bool | None, o.flag("--log-users", "Log users as hashes that mean nothing outside this run.")
    ] = None


serve = typer.Typer(name="serve", rich_markup_mode=None)


@serve.callback(invoke_without_command=True)
@o.option_groups
def _serve(
    context: typer.Context,
    model: o.ModelOrNone = None,
    policy: Annotated[
        Path | None, o.option("FILE", "What is promised: the policy, as `seqveil plan` writes it.", "--policy")
    ] = None,
    state: Annotated[Path | None, o.option("FILE", "Where releases and ledgers are kept.")] = None,
    key: Annotated[
        Path | None, o.option("FILE", "Draw from the secret key in this file (made if missing); keep it apart.")
    ] = None,
    begin: Annotated[
        bool | None, o.flag("--begin", "Begin a state file that is missing or empty: its ledger starts at zero.")
    ] = None,
    *,
    service: ServiceOptions,
    config: Annotated[Path | None, o.option("FILE", "TOML with the same names; flags and environment win.")] = None,
) -> None:
    """Release over HTTP, each event on the disk before it is answered.

    Every option may stand in --config FILE, or in the environment as SEQVEIL_SERVE_NAME; see docs/http.md.

    Ends on SIGTERM or Ctrl-C after it has released and answered what it had accepted.

    Example: seqveil serve --model clicks.model --policy policy.toml --state clicks.db --tokens tokens.json
    """
    if context.invoked_subcommand is not None:
        return
    kept = {"model": model, "policy": policy, "state": state, "key": key, "begin": begin}
    given = {**kept, **asdict(service)}
    try:
        _run(given, config)
    except INTERRUPTIONS:  # the signal that ended it, passed on by the server when all was done
        return


def _run(given: dict[str, Any], file: Path | None) -> None:
    from seqveil.core.model import MarkovModel
    from seqveil.engine.policy import Policy

    with needs_extra("the service", "serve"):
        from seqveil.interfaces.service import app, config
    loaded = config.load(given, file)
    if loaded.model is None:
        raise InputError("expected --model MODEL, the file that `seqveil fit` wrote")
    if loaded.policy is None:
        raise InputError("expected --policy FILE, what is promised, as `seqveil plan` writes it")
    app.serve(Policy.load(loaded.policy).on(MarkovModel.load(loaded.model)), loaded)


TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of tokens.")]

token = typer.Typer(
    name="token", no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens for the service."
)
serve.add_typer(token)


@token.command()
def add(
    file: TokenFile,
    scope: Annotated[
        list[str], o.option("NAME", "release, read-account, read, metrics or admin; repeat it.", "--scope", "-s")
    ],
    user: Annotated[
        str | None, o.option("PATTERN", "The users it is for; * stands for any text  [default: all]")
    ] = None,
    rate: Annotated[float | None, o.option("N", "Events a second  [default: the service's]")] = None,
    note: Annotated[str, o.option("TEXT", "What it is for; shown by list.")] = "",
    expires: Annotated[
        str | None, o.option("30d|DATE", "Good for so many hours (h), days (d) or weeks (w), or to the end of a day.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Make a token and print it, this once: the file keeps its hash alone.

    Example: seqveil serve token add tokens.json --scope release --scope read-account --user ann
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

    Example: seqveil serve token list tokens.json
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
    """Take a token away; a running service knows within a second.

    Example: seqveil serve token revoke tokens.json 3f9a0c11d2e4
    """
    from seqveil.interfaces.service import tokens as kept

    gone = kept.revoke(file, id)
    if json:
        emit_json(_token_facts(gone))
    else:
        print(f"revoked {gone.id}")


def _token_facts(token: Token) -> dict[str, object]:
    shown = ("id", "user", "rate", "created", "note")
    facts = {name: getattr(token, name) for name in shown} | {"scopes": " ".join(token.scopes)}
    return facts | {"expires": token.expires or None, "expired": token.expired()}
