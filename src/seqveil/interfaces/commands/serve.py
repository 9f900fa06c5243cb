"""Commands that serve: `seqveil serve` over HTTP, `serve token` for who may use it, and `seqveil studio`, the page."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.core.words import ResultTable
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Section, option_groups, show

if TYPE_CHECKING:
    from seqveil.interfaces.service.tokens import Token

serve = Section(rich_markup_mode=None)


@dataclass(frozen=True)
class ServeOptions:
    """How a service is reached, by whom, and how it draws; model, policy and state file come beside it."""

    key: o.Key = None
    begin: o.Begin = False
    gaps: o.Gaps = "refuse"
    host: str = o.opt("ADDRESS", "Address to bind.", default="127.0.0.1")
    port: int = o.opt("N", "Port; 0 takes a free one.", default=8713)
    tokens: Path | None = o.opt("FILE", "Made by `seqveil serve token add`.")
    no_auth: bool = o.switch("Require no tokens; loopback addresses only.")
    tls_cert: Path | None = o.opt("FILE", "Certificate chain (PEM).")
    tls_key: Path | None = o.opt("FILE", "Its private key (PEM).")
    insecure: bool = o.switch("Serve a network address without TLS: a proxy in front provides it.")

    def check(self) -> None:
        """Refuse to serve in a way that lets strangers in or raw symbols out."""
        from seqveil.interfaces.client import is_loopback  # with a model and all, which other commands do not need

        if not 0 <= self.port < 1 << 16:
            raise InputError("expected --port from 0 to 65535; see serve --help")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("TLS needs both --tls-cert and --tls-key")
        if (self.tokens is None) != self.no_auth or (self.no_auth and not is_loopback(self.host)):
            raise InputError(
                "without tokens anyone could release for anyone; make some with `seqveil serve token add FILE` and "
                "pass --tokens FILE, or --no-auth instead, on a loopback address alone"
            )
        if not is_loopback(self.host) and self.tls_cert is None and not self.insecure:
            raise InputError("raw symbols would cross the network unprotected; pass --tls-cert and --tls-key")


@serve.callback(invoke_without_command=True)
@option_groups
def _serve(
    context: typer.Context,
    model: Path | None = o.opt("MODEL", "The model file.  [required]", "-m"),
    policy: Path | None = o.opt("FILE", "What is promised: the policy, as `seqveil plan` writes it.  [required]"),
    state: Path | None = o.opt("FILE", "Where releases and accounts are kept.  [required]"),
    *,
    options: ServeOptions,
) -> None:
    """Release over HTTP; each release is on disk before it is sent.

    On SIGTERM or Ctrl-C it releases and answers what it has accepted (up to 30 seconds), then exits; see
    docs/service.md.

    Example: seqveil serve --model clicks.model --policy policy.toml --state clicks.db --tokens tokens.json
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


SHOWN = ("id", "scopes", "user", "created")  # of a token
TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of tokens.")]

token = Section(no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke tokens for the service.")
serve.add_typer(token, name="token")


@token.command()
def add(
    file: TokenFile,
    scope: list[str] = o.required(
        "NAME", "release, read, metrics, or admin, which allows everything; may be repeated.", "-s"
    ),
    user: str | None = o.opt("PATTERN", "The user it is for; end it with * for all users whose names begin that way."),
    json: o.Json = False,
) -> None:
    """Create a token and print it once; the file stores only its hash.

    Example: seqveil serve token add tokens.json --scope release --scope read --user ann
    """
    from seqveil.interfaces.service import tokens as kept

    made, secret = kept.add(file, scope, user)
    show(_token_facts(made) | {"token": secret} if json else secret, json)


@token.command("list")
def list_(file: TokenFile, json: o.Json = False) -> None:
    """Show the tokens' ids, scopes and users; a token itself cannot be shown again.

    Example: seqveil serve token list tokens.json
    """
    from seqveil.interfaces.service import tokens as kept

    found = [_token_facts(each) for each in kept.read(file).values()]
    rows = [[str(row[name] or "") for name in SHOWN] for row in found]
    show(found if json else ResultTable("", SHOWN, rows), json)


@token.command()
def revoke(
    file: TokenFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as list shows it.")],
) -> None:
    """Revoke a token; a running service stops accepting it at once.

    Example: seqveil serve token revoke tokens.json 3f9a0c11d2e4
    """
    from seqveil.interfaces.service import tokens as kept

    show(f"revoked {kept.revoke(file, id).id}")


def _token_facts(token: Token) -> dict[str, object]:
    return {name: getattr(token, name) for name in SHOWN}


def studio(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Any file that `inspect` reads  [default: none]")
    ] = None,
    *,
    columns: o.ColumnOptions,
    port: int = o.opt("N", "Port on 127.0.0.1; 0 takes a free one.", default=8714),
) -> None:
    """Find a policy step by step in the browser.

    Inspect the data, name a secret, choose how far a suspicion may grow, see what is released, save policy.toml. Serves
    a page that only this machine can reach and prints its address, which contains an access token: do not share it.
    Ctrl-C stops it; nothing is stored.

    Example: seqveil studio clicks.csv
    """
    with needs_extra("the page", "serve"):
        from seqveil.interfaces.studio.answers import Studio
        from seqveil.interfaces.studio.serving import serve
        from seqveil.interfaces.studio.upload import Upload, UploadChoice

    if not 0 <= port < 1 << 16:
        raise InputError("expected --port from 0 to 65535; 0 takes a free one")
    own = None if data is None else Upload.of(Path(data).read_bytes(), data)
    chosen = UploadChoice(columns.user or "", columns.value or "", columns.time or "")
    shown = "page  {}\nopen it in a browser on this machine; Ctrl-C ends it"
    try:
        serve(Studio(own, chosen), port, lambda address: print(shown.format(address), flush=True))
    except INTERRUPTIONS:  # the signal that ends it
        os._exit(0)  # an answer may be half made on another thread, in compiled code that Python's own end would abort
