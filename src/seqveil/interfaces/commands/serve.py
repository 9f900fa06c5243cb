"""`seqveil serve`: releases over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.interrupt import Interrupted

SETTING = (
    "batch",
    "mechanism",
    "epsilon",
    "distortion",
    "every",
    "spend_above",
    "budget",
    "horizon",
    "window",
    "window_releases",
    "window_seconds",
    "when_spent",
    "ldp_budget",
)  # in the order of `options.setting_of`
MISSING = "the service needs more packages; run pip install 'seqveil[serve]'"


ModelFile = Annotated[Path | None, typer.Option("--model", "-m", metavar="MODEL", help="The model file.")]
State = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where releases and ledgers are kept; made if missing.")
]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw from the secret key in this file (made if missing); keep it apart."),
]
OnUnknown = Annotated[
    str | None,
    typer.Option(metavar="hide|nearest", help="Values outside the alphabet  [default: the model's, hide for error]"),
]
Gaps = Annotated[
    str | None,
    typer.Option(metavar="refuse|skip", help="Events that leave others of their user out  [default: refuse]"),
]
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address to bind  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(metavar="N", help="Port; 0 takes a free one  [default: 8713]")]
Tokens = Annotated[Path | None, typer.Option(metavar="FILE", help="Made by `seqveil tokens add`.")]
NoAuth = Annotated[bool | None, typer.Option("--no-auth", help="Ask for no tokens; on a loopback address only.")]
TlsCert = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")]
Insecure = Annotated[
    bool | None, typer.Option("--insecure", help="Serve a network address without TLS: something in front does it.")
]
MaxBody = Annotated[int | None, typer.Option(metavar="BYTES", help="Largest body  [default: 4 MiB]")]
MaxEvents = Annotated[int | None, typer.Option(metavar="N", help="Events of a request  [default: 10000]")]
Rate = Annotated[float | None, typer.Option(metavar="N", help="Events a second of one token  [default: 100000]")]
Timeout = Annotated[float | None, typer.Option(metavar="S", help="Seconds for a request  [default: 10]")]
LogLevel = Annotated[str | None, typer.Option(metavar="debug|info|warning|error", help="[default: info]")]
LogUsers = Annotated[
    bool | None, typer.Option("--log-users", help="Log users as hashes that mean nothing outside this run.")
]
Page = Annotated[
    bool | None,
    typer.Option("--page/--no-page", help="The page at /, a sandbox  [default: on a loopback address alone]"),
]
ConfigFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TOML with the same names; flags and environment win.")
]


def serve(
    model: ModelFile = None,
    epsilon: o.Epsilon = None,
    state: State = None,
    key: Key = None,
    mechanism: o.Mechanism = None,
    batch: o.BatchSize = None,
    distortion: o.DistortionName = None,
    every: o.Every = None,
    spend_above: o.SpendAbove = None,
    budget: o.TotalBudget = None,
    horizon: o.Horizon = None,
    window: o.WindowBudget = None,
    window_releases: o.WindowReleases = None,
    window_seconds: o.WindowSeconds = None,
    ldp_budget: o.LdpBudget = None,
    when_spent: o.WhenSpent = None,
    on_unknown: OnUnknown = None,
    gaps: Gaps = None,
    host: Host = None,
    port: Port = None,
    tokens: Tokens = None,
    no_auth: NoAuth = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = None,
    max_body: MaxBody = None,
    max_events: MaxEvents = None,
    rate: Rate = None,
    timeout: Timeout = None,
    log_level: LogLevel = None,
    log_users: LogUsers = None,
    page: Page = None,
    config: ConfigFile = None,
) -> None:
    """Release over HTTP, each event on the disk before it is answered.

    Every option may stand in --config FILE, or in the environment as SEQVEIL_SERVE_NAME; see docs/http.md.

    Ends on SIGTERM or Ctrl-C after it has released and answered what it had accepted.

    Example: seqveil serve --model clicks.model --epsilon 1 --state clicks.db --tokens tokens.json
    """
    given = dict(locals())
    file = given.pop("config")
    try:
        _run(given, file)
    except Interrupted:  # the signal that ended it, passed on by the server when all was done
        return


def _run(given: dict[str, Any], file: Path | None) -> None:
    try:
        from seqveil.interfaces.service import config, server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("seqveil"):
            raise
        raise InputError(MISSING) from None
    from seqveil.core.model import MarkovModel

    chosen = config.load(given, file)
    if chosen.model is None:
        raise InputError("expected --model MODEL, the file that `seqveil fit` wrote")
    setting = o.setting_of(MarkovModel.load(chosen.model), *(getattr(chosen, name) for name in SETTING))
    server.serve(setting, chosen)
