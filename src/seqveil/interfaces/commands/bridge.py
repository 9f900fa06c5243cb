"""`seqveil bridge mqtt`: releases what devices publish, as they publish it."""

from __future__ import annotations

import json as codec
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import Interrupted, emit_json

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


@dataclass(frozen=True)
class ConnectionOptions:
    """How the bridge reaches its broker, and as whom."""

    tls: Annotated[bool, o.flag("--tls", "Use TLS, with the system's authorities unless --ca is given.")] = False
    ca: Annotated[Path | None, o.option("FILE", "Certificate of the broker's authority.")] = None
    cert: Annotated[Path | None, o.option("FILE", "The bridge's own certificate.")] = None
    cert_key: Annotated[Path | None, o.option("FILE", "Key of --cert.")] = None
    username: Annotated[str | None, o.option("NAME", f"Log in; the password is in {PASSWORD}, or in …")] = None
    password_file: Annotated[Path | None, o.option("FILE", "… the first line of this file.")] = None
    client_id: Annotated[str, o.option("ID", "The broker queues under it: keep it, and use it once.")] = (
        "seqveil-bridge"
    )
    keepalive: Annotated[int, o.option("S", "Seconds of silence before the connection is checked.")] = 60
    session_expiry: Annotated[int, o.option("S", "How long the broker queues while the bridge is down (MQTT 5).")] = (
        7 * 24 * 3600
    )
    in_flight: Annotated[int, o.option("N", "Messages taken before one is acknowledged (MQTT 5).")] = 1000
    protocol: Annotated[str, o.option("5|3.1.1", "Version of MQTT.")] = "5"

    def broker(self, text: str) -> Broker:
        """The broker at this address."""
        with needs_extra("the bridge", "mqtt"):
            from seqveil.interfaces.mqtt import Broker, address
        secure = self.tls or self.ca or self.cert or self.cert_key
        tls, password = self._context() if secure else None, self._password()
        host, port = address(text, tls is not None)
        limits = (VERSIONS.get(self.protocol, 0), self.keepalive, self.session_expiry, self.in_flight)
        return Broker(host, port, self.client_id, self.username, password, tls, *limits)

    def _password(self) -> str | None:
        """The password, from a file or the environment: the command line would show it to everyone on the machine."""
        file = self.password_file
        if file is None:
            return os.environ.get(PASSWORD) if self.username is not None else None
        if self.username is None:
            raise InputError("--password-file needs --username")
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            raise InputError(f"{file.name}: the password cannot be read; check the path") from None
        if not lines or not lines[0]:
            raise InputError(f"{file.name}: expected the password in the first line")
        return lines[0]

    def _context(self) -> ssl.SSLContext:
        import ssl

        ca, cert, cert_key = self.ca, self.cert, self.cert_key
        if cert is None and cert_key is not None:
            raise InputError("--cert-key needs --cert")
        try:
            context = ssl.create_default_context(cafile=ca)
            if cert is not None:
                context.load_cert_chain(cert, cert_key, password=lambda: b"")  # never ask at the terminal
        except (OSError, ValueError):
            names = ", ".join(path.name for path in (ca, cert, cert_key) if path is not None)
            raise InputError(
                f"{names}: cannot be used for TLS; expected PEM files, the key without a password"
            ) from None
        return context


@dataclass(frozen=True)
class TopicOptions:
    """Where devices publish, and where they are answered."""

    raw: Annotated[str, o.option("TOPIC", "Where devices publish; {user} is one level.")] = "raw/{user}"
    released: Annotated[str, o.option("TOPIC", "Where releases go.")] = "released/{user}"
    errors: Annotated[
        str | None, o.option("TOPIC", "Where a device is told what was refused  [default: the log only]")
    ] = None


@dataclass(frozen=True)
class PolicyOptions:
    """What becomes of events that are not as they should be."""

    gaps: Annotated[str, o.option("refuse|skip", "An event that leaves others out: refuse it, or give those up.")] = (
        "refuse"
    )
    on_unknown: o.OnUnknownLive = None
    on_refused: Annotated[
        str, o.option("report|stop", "Events that cannot be released: drop and report, or end the bridge.")
    ] = "report"
    must_exist: Annotated[
        bool, o.flag("--must-exist", "Refuse a state file that is missing or empty, rather than begin one.")
    ] = False


@bridge.command()
@o.option_groups
def mqtt(
    address: Annotated[str, o.option("HOST[:PORT]", "The broker; port 1883, 8883 with TLS.", "--broker")],
    model: o.ModelFile,
    state: Annotated[Path, o.option("FILE", "Where what was released is kept; made if missing.")],
    *,
    topics: TopicOptions,
    chosen: o.SettingOptions,
    key: Annotated[Path | None, o.option("FILE", "Draw from the secret key in this file (made if missing).")] = None,
    policies: PolicyOptions,
    connection: ConnectionOptions,
    config: o.ConfigFile = None,
    json: o.Json = False,
) -> None:
    """Release what devices publish, each event once, whatever is cut or repeated on the way.

    In: {"seq": 0, "value": V}, or {"seq": 0, "values": [...]} with --batch. Out: {"seq", "value", "epsilon"}.

    Ctrl-C finishes what was accepted. The log, one JSON object a line on standard error, names no user and no value.

    Example: seqveil bridge mqtt --broker localhost --model m.model --epsilon 1 --state bridge.db
    """
    from seqveil.core.model import MarkovModel

    broker = connection.broker(address)
    _run(broker, chosen.setting(MarkovModel.load(model)), topics, state, key, policies, json)


def _run(
    broker: Broker,
    setting: Setting,
    topics: TopicOptions,
    state: Path,
    key: Path | None,
    policies: PolicyOptions,
    json: bool,
) -> None:
    from seqveil.core import fast
    from seqveil.interfaces.mqtt import Bridge, Link, Topics
    from seqveil.release.store.backup import key_for
    from seqveil.release.streams import Streams

    fast.load()  # now rather than while somebody waits
    named = Topics(topics.raw, topics.released, topics.errors)
    secret, gaps = key_for(state, key), cast(Any, policies.gaps)
    with Streams.open(state, setting, key=secret, gaps=gaps, must_exist=policies.must_exist) as store:
        link = Link(broker, named.subscription)
        refusing: dict[str, Any] = {"on_unknown": policies.on_unknown, "on_refused": policies.on_refused}
        working = Bridge(store, link, named, log=_log, **refusing)
        _log("started", {"protocol": broker.version, "tls": broker.tls is not None, "private": store.private})
        if store.begun:
            _log("warning", {"reason": f"{state.name} was missing or empty: its ledger begins at zero"})
        if broker.tls is None and broker.host not in LOOPBACK:
            _log("warning", {"reason": "raw data crosses the network unencrypted; use --tls"})
        with _ended_by_signals(working):
            counts = working.run()
    if json:
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
