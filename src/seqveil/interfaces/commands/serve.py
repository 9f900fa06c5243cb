"""`seqveil serve`: releases over HTTP."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS


@dataclass(frozen=True)
class ServiceOptions:
    """How the service is reached, by whom and how much; None leaves an option to the environment and the file."""

    on_unknown: o.OnUnknownLive = None
    gaps: Annotated[
        str | None,
        typer.Option(metavar="refuse|skip", help="Events that leave others of their user out  [default: refuse]"),
    ] = None
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address to bind  [default: 127.0.0.1]")] = None
    port: Annotated[int | None, typer.Option(metavar="N", help="Port; 0 takes a free one  [default: 8713]")] = None
    tokens: Annotated[Path | None, typer.Option(metavar="FILE", help="Made by `seqveil tokens add`.")] = None
    no_auth: Annotated[
        bool | None, typer.Option("--no-auth", help="Ask for no tokens; on a loopback address only.")
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")] = None
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve a network address without TLS: something in front does it.")
    ] = None
    max_body: Annotated[int | None, typer.Option(metavar="BYTES", help="Largest body  [default: 4 MiB]")] = None
    max_events: Annotated[int | None, typer.Option(metavar="N", help="Events of a request  [default: 10000]")] = None
    rate: Annotated[float | None, typer.Option(metavar="N", help="Events a second of one token  [default: 100000]")] = (
        None
    )
    timeout: Annotated[float | None, typer.Option(metavar="S", help="Seconds for a request  [default: 10]")] = None
    log_level: Annotated[str | None, typer.Option(metavar="debug|info|warning|error", help="[default: info]")] = None
    log_users: Annotated[
        bool | None, typer.Option("--log-users", help="Log users as hashes that mean nothing outside this run.")
    ] = None
    page: Annotated[
        bool | None,
        typer.Option("--page/--no-page", help="The page at /, a sandbox  [default: on a loopback address alone]"),
    ] = None


@o.option_groups
def serve(
    model: o.ModelOrNone = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where releases and ledgers are kept; made if missing.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw from the secret key in this file (made if missing); keep it apart."),
    ] = None,
    *,
    chosen: o.SettingOptions,
    service: ServiceOptions,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with the same names; flags and environment win.")
    ] = None,
) -> None:
    """Release over HTTP, each event on the disk before it is answered.

    Every option may stand in --config FILE, or in the environment as SEQVEIL_SERVE_NAME; see docs/http.md.

    Ends on SIGTERM or Ctrl-C after it has released and answered what it had accepted.

    Example: seqveil serve --model clicks.model --epsilon 1 --state clicks.db --tokens tokens.json
    """
    given = {"model": model, "state": state, "key": key, **asdict(chosen), **asdict(service)}
    try:
        _run(given, config)
    except INTERRUPTIONS:  # the signal that ended it, passed on by the server when all was done
        return


def _run(given: dict[str, Any], file: Path | None) -> None:
    from seqveil.core.model import MarkovModel

    with needs_extra("the service", "serve"):
        from seqveil.interfaces.service import app, config
    loaded = config.load(given, file)
    if loaded.model is None:
        raise InputError("expected --model MODEL, the file that `seqveil fit` wrote")
    chosen = o.SettingOptions(**{each.name: getattr(loaded, each.name) for each in fields(o.SettingOptions)})
    app.serve(chosen.setting(MarkovModel.load(loaded.model)), loaded)
