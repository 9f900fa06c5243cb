"""`seqveil bridge mqtt`: releases what devices publish, as they publish it."""

from __future__ import annotations

import json as codec
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.interrupt import Interrupted

if TYPE_CHECKING:
    import ssl

    from seqveil.interfaces.mqtt import Bridge, Broker
    from seqveil.release.stream import Setting

PASSWORD = "SEQVEIL_MQTT_PASSWORD"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
VERSIONS = {"5": 5, "3.1.1": 4}

bridge = typer.Typer(help="Release what arrives on a message broker.", rich_markup_mode=None)


@bridge.callback()
def _bridges() -> None:
    """One sub-command for each kind of broker."""


Address = Annotated[str, typer.Option("--broker", metavar="HOST[:PORT]", help="The broker; port 1883, 8883 with TLS.")]
StateFile = Annotated[
    Path, typer.Option("--state", metavar="FILE", help="Where what was released is kept; made if missing.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Draw from the secret key in this file (made if missing)."),
]
Raw = Annotated[str, typer.Option(metavar="TOPIC", help="Where devices publish; {user} is one level.")]
ReleasedTo = Annotated[str, typer.Option("--released", metavar="TOPIC", help="Where releases go.")]
ErrorsTo = Annotated[
    str | None,
    typer.Option("--errors", metavar="TOPIC", help="Where a device is told what was refused  [default: the log only]"),
]
Gaps = Annotated[
    str, typer.Option(metavar="refuse|skip", help="An event that leaves others out: refuse it, or give those up.")
]
OnUnknown = Annotated[
    str | None,
    typer.Option(metavar="hide|nearest", help="Values outside the alphabet  [default: the model's, hide for error]"),
]
OnRefused = Annotated[
    str,
    typer.Option(metavar="report|stop", help="Events that cannot be released: drop and report, or end the bridge."),
]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS, with the system's authorities unless --ca is given.")]
Authority = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="Certificate of the broker's authority.")]
Certificate = Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="The bridge's own certificate.")]
CertificateKey = Annotated[Path | None, typer.Option("--cert-key", metavar="FILE", help="Key of --cert.")]
UserName = Annotated[str | None, typer.Option(metavar="NAME", help=f"Log in; the password is in {PASSWORD}, or in …")]
PasswordFile = Annotated[Path | None, typer.Option(metavar="FILE", help="… the first line of this file.")]
ClientId = Annotated[str, typer.Option(metavar="ID", help="The broker queues under it: keep it, and use it once.")]
KeepAlive = Annotated[int, typer.Option(metavar="S", help="Seconds of silence before the connection is checked.")]
Expiry = Annotated[int, typer.Option(metavar="S", help="How long the broker queues while the bridge is down (MQTT 5).")]
InFlight = Annotated[int, typer.Option(metavar="N", help="Messages taken before one is acknowledged (MQTT 5).")]
Protocol = Annotated[str, typer.Option(metavar="5|3.1.1", help="Version of MQTT.")]


@bridge.command()
def mqtt(
    address: Address,
    model: o.ModelFile,
    state: StateFile,
    epsilon: o.Epsilon = None,
    raw: Raw = "raw/{user}",
    released: ReleasedTo = "released/{user}",
    errors: ErrorsTo = None,
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
    key: KeyFile = None,
    gaps: Gaps = "refuse",
    on_unknown: OnUnknown = None,
    on_refused: OnRefused = "report",
    tls: Tls = False,
    ca: Authority = None,
    cert: Certificate = None,
    cert_key: CertificateKey = None,
    username: UserName = None,
    password_file: PasswordFile = None,
    client_id: ClientId = "seqveil-bridge",
    keepalive: KeepAlive = 60,
    session_expiry: Expiry = 7 * 24 * 3600,
    in_flight: InFlight = 1000,
    protocol: Protocol = "5",
    json: o.Json = False,
) -> None:
    """Release what devices publish, each event once, whatever is cut or repeated on the way.

    In: {"seq": 0, "value": V}, or {"seq": 0, "values": [...]} with --batch. Out: {"seq", "value", "epsilon"}.

    Ctrl-C finishes what was accepted. The log, one JSON object a line on standard error, names no user and no value.

    Example: seqveil bridge mqtt --broker localhost --model m.model --epsilon 1 --state bridge.db
    """
    from seqveil.core.model import MarkovModel

    secure = _context(ca, cert, cert_key) if tls or ca or cert or cert_key else None
    who = (client_id, username, _password(username, password_file), secure)
    broker = _broker(address, *who, VERSIONS.get(protocol, 0), keepalive, session_expiry, in_flight)
    spend = (budget, horizon, window, window_releases, window_seconds, when_spent, ldp_budget)
    setting = o.setting_of(MarkovModel.load(model), batch, mechanism, epsilon, distortion, every, spend_above, *spend)
    _run(broker, setting, (raw, released, errors), state, key, gaps, on_unknown, on_refused, json)


def _run(
    broker: Broker,
    setting: Setting,
    patterns: tuple[str, str, str | None],
    state: Path,
    key: Path | None,
    gaps: str,
    on_unknown: str | None,
    on_refused: str,
    json: bool,
) -> None:
    from seqveil.core import fast
    from seqveil.core.coins import key_file
    from seqveil.interfaces.mqtt import Bridge, Link, Topics
    from seqveil.release.streams import Streams

    fast.load()  # now rather than while somebody waits
    topics, secret = Topics(*patterns), None if key is None else key_file(key, create=True)
    with Streams.open(state, setting, key=secret, gaps=gaps) as store:  # type: ignore[arg-type]
        link = Link(broker, topics.subscription)
        policies = {"on_unknown": on_unknown, "on_refused": on_refused}
        working = Bridge(store, link, topics, log=_log, **policies)  # type: ignore[arg-type]
        _log("started", {"protocol": broker.version, "tls": broker.tls is not None, "private": store.private})
        if broker.tls is None and broker.host not in LOOPBACK:
            _log("warning", {"reason": "raw data crosses the network unencrypted; use --tls"})
        with _ended_by_signals(working):
            counts = working.run()
    if json:
        from seqveil.interfaces.commands.output import emit_json

        emit_json(asdict(counts))


def _log(event: str, details: dict[str, object]) -> None:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **details}
    print(codec.dumps(line, default=str), file=sys.stderr, flush=True)


@contextmanager
def _ended_by_signals(working: Bridge) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets it finish, the second does not."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, at_once)
        working.stop()

    def at_once(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted; what was released stands, and the broker sends the rest again")

    ours = threading.current_thread() is threading.main_thread()  # else whoever runs it owns the signals
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if ours}
    try:
        for number in before:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _broker(
    text: str,
    client_id: str,
    username: str | None,
    password: str | None,
    tls: ssl.SSLContext | None,
    *limits: int,
) -> Broker:
    try:
        from seqveil.interfaces.mqtt import Broker, address
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "paho":
            raise
        raise InputError("the bridge needs paho-mqtt; run: pip install 'seqveil[mqtt]'") from None
    host, port = address(text, tls is not None)
    return Broker(host, port, client_id, username, password, tls, *limits)


def _password(username: str | None, file: Path | None) -> str | None:
    """The password, from a file or the environment: the command line would show it to everyone on the machine."""
    if file is None:
        return os.environ.get(PASSWORD) if username is not None else None
    if username is None:
        raise InputError("--password-file needs --username")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise InputError(f"{file.name}: the password cannot be read; check the path") from None
    if not lines or not lines[0]:
        raise InputError(f"{file.name}: expected the password in the first line")
    return lines[0]


def _context(ca: Path | None, cert: Path | None, cert_key: Path | None) -> ssl.SSLContext:
    import ssl

    if cert is None and cert_key is not None:
        raise InputError("--cert-key needs --cert")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, cert_key, password=lambda: b"")  # never ask at the terminal
    except (OSError, ValueError):
        names = ", ".join(path.name for path in (ca, cert, cert_key) if path is not None)
        raise InputError(f"{names}: cannot be used for TLS; expected PEM files, the key without a password") from None
    return context
