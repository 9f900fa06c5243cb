"""What a service takes at its start: the options of the command, and how much there may be of everything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o


@dataclass(frozen=True)
class Limits:
    """How much there may be at a time, the same for every service; seconds where nothing else is said."""

    body: int = 4 << 20  # bytes
    events: int = 1000  # of a request, and those that a transaction is filled up to
    one_user: int = 200  # events of one user in a request: they are drawn one after another, and others wait
    one_user_slow: int = 20  # the same in batches or with declared secrets
    waiting: int = 100_000  # events accepted and not yet on the disk
    one_token: int = 64  # requests in progress
    one_address: int = 256  # the same, whatever the tokens
    connections: int = 2000
    connections_of_one: int = 1000  # from one address
    strangers: float = 100.0  # requests a second without a token, from one address; more are answered slowly
    request: float = 10.0  # for a body to come, and again for its release
    connection: float = 30.0  # in which a connection must bring a request to its end
    linger: float = 0.0005  # that a transaction waits for more events
    grace: float = 30.0  # at the end, for what was accepted
    figures: float = 60.0  # for which figures over all users hold
    free: int = 64 << 20  # bytes on the disk, below which the service is not ready


@dataclass(frozen=True)
class ServeOptions:
    """How a service is reached, by whom, and how it draws; model, policy and state file come beside it.

    >>> ServeOptions(no_auth=True).check()
    """

    key: Annotated[
        Path | None,
        o.option(
            "FILE",
            "Derive the randomness from the secret key in this file (created if missing); keep it on a different "
            "volume from the state file and its backups.",
        ),
    ] = None
    begin: o.Begin = False
    on_unknown: o.OnUnknownLive = None
    gaps: o.Gaps = "refuse"
    host: Annotated[str, o.option("ADDRESS", "Address to bind.")] = "127.0.0.1"
    port: Annotated[int, o.option("N", "Port; 0 takes a free one.")] = 8713
    tokens: Annotated[Path | None, o.option("FILE", "Made by `seqveil serve token add`.")] = None
    no_auth: Annotated[bool, o.flag("--no-auth", "Require no tokens; loopback addresses only.")] = False
    tls_cert: Annotated[Path | None, o.option("FILE", "Certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, o.option("FILE", "Its private key (PEM).")] = None
    insecure: Annotated[
        bool, o.flag("--insecure", "Serve a network address without TLS: a proxy in front provides it.")
    ] = False
    rate: Annotated[float, o.option("N", "Limit in events per second for tokens without a limit of their own.")] = (
        100_000.0
    )

    def check(self) -> None:
        """Refuse to serve in a way that lets strangers in or raw symbols out."""
        from seqveil.interfaces.client import is_loopback  # with a model and all, which other commands do not need

        if not 0 <= self.port < 1 << 16 or not 0 < self.rate < float("inf"):
            raise InputError("expected --port from 0 to 65535 and --rate above 0; see serve --help")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("TLS needs both --tls-cert and --tls-key")
        if self.tokens is not None and self.no_auth:
            raise InputError("pass --tokens or --no-auth, not both")
        if self.tokens is None and not self.no_auth:
            raise InputError(
                "without tokens anyone could release for anyone; make some with `seqveil serve token add FILE` and "
                "pass --tokens FILE, or --no-auth on a loopback address"
            )
        if self.no_auth and not is_loopback(self.host):
            raise InputError("--no-auth is for a loopback address alone; pass --tokens FILE")
        if not is_loopback(self.host) and self.tls_cert is None and not self.insecure:
            raise InputError(
                "raw symbols would cross the network unprotected; pass --tls-cert and --tls-key, or --insecure where "
                "something in front of the service does TLS"
            )
