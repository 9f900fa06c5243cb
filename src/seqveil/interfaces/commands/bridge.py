"""`seqveil bridge mqtt` and `seqveil bridge kafka`: release what is published, as it is published."""

from __future__ import annotations

import json as codec
import os
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import ARRIVAL, Interrupted, emit_json, tell_hidden

if TYPE_CHECKING:
    import ssl

    from seqveil.engine.coded import CodeStreams
    from seqveil.interfaces.bridge import BridgeCounts
    from seqveil.interfaces.mqtt import Broker
    from seqveil.interfaces.payloads import Form

PASSWORD = "SEQVEIL_MQTT_PASSWORD"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
VERSIONS = {"5": 5, "3.1.1": 4}
MOST_PORT = 65_535
MAPPED = ("payload", "time", "retained", "discovery")

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
        str | None, o.option("TOPIC", "Where a device learns what was refused  [default: the log only]")
    ] = None


@dataclass(frozen=True)
class PayloadOptions:
    """What payloads look like, and which of them are events."""

    payload: Annotated[
        str | None,
        o.option("FORM", "seqveil, value, json:PATH, owntracks or homeassistant: see docs/home.md  [default: seqveil]"),
    ] = None
    time_member: Annotated[
        str | None, o.option("PATH|arrival", "Where the time of an event is, for json:PATH  [default: arrival]")
    ] = None
    mapping: Annotated[
        Path | None, o.option("FILE", "TOML with payload, time, retained, discovery; options go before it.")
    ] = None

    def words(self, **more: str | None) -> dict[str, str]:
        """What was asked for, by options or else in the file."""
        given = {"payload": self.payload, "time": self.time_member, **more}
        return self._in_file() | {name: text for name, text in given.items() if text is not None}

    def _in_file(self) -> dict[str, str]:
        if self.mapping is None:
            return {}
        try:
            found = tomllib.loads(self.mapping.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"{self.mapping.name}: cannot be read; expected a TOML file") from None
        for name, text in found.items():
            if name not in MAPPED or type(text) is not str:
                raise InputError(f"{self.mapping.name}: expected texts named {', '.join(MAPPED)}; see docs/home.md")
        return found


def form_of(words: dict[str, str]) -> Form:
    """The form of payloads that these words name."""
    from seqveil.interfaces.payloads import Form

    return Form.parse(words.get("payload", "seqveil"), words.get("time"), words.get("retained"))


@dataclass(frozen=True)
class StoreOptions:
    """The model, and where what was released with it is kept."""

    model: o.ModelFile
    policy: o.PolicyFile
    state: Annotated[Path, o.option("FILE", "Where what was released is kept.")]
    key: Annotated[Path | None, o.option("FILE", "Draw from the secret key in this file (made if missing).")] = None
    begin: Annotated[
        bool, o.flag("--begin", "Begin a state file that is missing or empty: its ledger starts at zero.")
    ] = False

    def opened(self, gaps: str) -> CodeStreams:
        """The streams in the state file."""
        from seqveil.core import compiled
        from seqveil.core.model import MarkovModel
        from seqveil.engine.coded import CodeStreams
        from seqveil.engine.policy import Policy
        from seqveil.engine.upkeep import key_for
        from seqveil.interfaces.events import check_begun

        check_begun(self.state, self.begin)
        setting = Policy.load(self.policy).on(MarkovModel.load(self.model))
        compiled.load()  # now rather than while somebody waits
        secret, policy = key_for(self.state, self.key), cast(Any, gaps)
        return CodeStreams.open(self.state, setting, key=secret, gaps=policy, must_exist=not self.begin)


@dataclass(frozen=True)
class RefusalOptions:
    """What becomes of events that are not as they should be."""

    gaps: Annotated[str, o.option("refuse|skip", "An event that leaves others out: refuse it, or give those up.")] = (
        "refuse"
    )
    on_unknown: o.OnUnknownLive = None
    on_refused: Annotated[
        str, o.option("report|stop", "Events that cannot be released: drop and report, or end the bridge.")
    ] = "report"

    @property
    def refusing(self) -> dict[str, Any]:
        """What a bridge takes of them."""
        return {"on_unknown": self.on_unknown, "on_refused": self.on_refused, "log": _log}


@dataclass(frozen=True)
class MetricsOptions:
    """Where Prometheus finds figures."""

    metrics_port: Annotated[
        int | None, o.option("N", "Serve /metrics here for Prometheus; 0 takes a free one  [default: nowhere]")
    ] = None
    metrics_host: Annotated[str, o.option("ADDRESS", "Address for that; it asks for no token.")] = "127.0.0.1"

    def __post_init__(self) -> None:
        """Refuse what is no port before anything is opened."""
        if self.metrics_port is not None and not 0 <= self.metrics_port <= MOST_PORT:
            raise InputError(f"expected --metrics-port to be a port from 0 to {MOST_PORT}")

    @contextmanager
    def serving(self, working: Working, store: CodeStreams, state: Path) -> Iterator[int | None]:
        """Serve the figures of a bridge while it works; the port, or None where none is asked."""
        if self.metrics_port is None:
            yield None
            return
        with needs_extra("--metrics-port", "mqtt"):
            from prometheus_client import start_http_server

            from seqveil.interfaces import figures
        counts = figures.CountFigures(working.counts, lambda: working.waiting)
        registry = figures.registry_of(figures.StateFigures(store, state), counts)
        try:
            server, thread = start_http_server(self.metrics_port, self.metrics_host, registry)
        except OSError as error:
            where = f"{self.metrics_host}:{self.metrics_port}"
            raise InputError(f"cannot serve metrics on {where} ({error.strerror}); choose another") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@bridge.command()
@o.option_groups
def mqtt(
    broker: Annotated[str, o.option("HOST[:PORT]", "The broker; port 1883, 8883 with TLS.")],
    kept: StoreOptions,
    *,
    topics: TopicOptions,
    payloads: PayloadOptions,
    retained: Annotated[
        str | None,
        o.option("refuse|state|event", "A message that the broker had kept  [default: refuse for seqveil, else state]"),
    ] = None,
    discovery: Annotated[
        str | None, o.option("PREFIX", "Tell Home Assistant of released entities, under this prefix.")
    ] = None,
    refusals: RefusalOptions,
    connection: ConnectionOptions,
    metrics: MetricsOptions,
    json: o.Json = False,
) -> None:
    """Release what devices publish, each event once, whatever is cut or repeated on the way.

    In: {"seq": 0, "value": V}, or {"seq": 0, "values": [...]} with --batch. Out: {"seq", "value", "epsilon"}.
    With --payload, what OwnTracks, Zigbee2MQTT and Home Assistant publish; out comes the same with the released value.
    With such payloads and a model in slots of time (fit --every-seconds), one release for each slot: see docs/home.md.

    Ctrl-C finishes what was accepted. The log, one JSON object a line on standard error, names no user and no value.

    Example: seqveil bridge mqtt --broker localhost --model m.model --policy policy.toml --state bridge.db
    """
    reached = connection.broker(broker)
    from seqveil.interfaces.homeassistant import Discovery
    from seqveil.interfaces.mqtt import Link, MqttBridge, Topics

    words = payloads.words(retained=retained, discovery=discovery)
    named, form = Topics(topics.raw, topics.released, topics.errors), form_of(words)
    disclosed = Discovery(words["discovery"], form) if "discovery" in words else None
    with kept.opened(refusals.gaps) as store:
        link = Link(reached, named.subscription, form.retained)
        working = MqttBridge(store, link, named, form=form, discovery=disclosed, **refusals.refusing)
        _log("started", {"protocol": reached.version, "tls": reached.tls is not None, "private": store.private})
        if form.numbered or store.setting.model.alphabet.slots is None:
            _log("order", {"reason": ARRIVAL})
        if reached.tls is None and reached.host not in LOOPBACK:
            _log("warning", {"reason": "raw data crosses the network unencrypted; use --tls"})
        _work(working, store, kept.state, metrics, json)


@bridge.command()
@o.option_groups
def kafka(
    bootstrap: Annotated[str, o.option("HOST:PORT", "Brokers of the cluster, with commas between.")],
    kept: StoreOptions,
    *,
    raw: Annotated[str, o.option("TOPIC", "Where events are written; the key of a message is its user.")],
    released: Annotated[str, o.option("TOPIC", "Where releases go.")],
    errors: Annotated[str | None, o.option("TOPIC", "Where refusals go  [default: the log only]")] = None,
    group: Annotated[str, o.option("ID", "Offsets are committed under it: keep it.")] = "seqveil-bridge",
    partitions: Annotated[
        str | None, o.option("0-3", "Partitions that this bridge and state file own, for good  [default: all]")
    ] = None,
    client: Annotated[
        Path | None, o.option("FILE", "Settings of librdkafka, NAME=VALUE a line: TLS, passwords.")
    ] = None,
    payloads: PayloadOptions,
    refusals: RefusalOptions,
    metrics: MetricsOptions,
    json: o.Json = False,
) -> None:
    """Release what is written to a topic, each event drawn once and published once, by transactions.

    In: {"value": V}, with "seq" where the producer numbers the events of a user; else the bridge does, by partition
    and offset. Out: {"seq", "value", "epsilon"} under the same key.

    Ctrl-C finishes the round. The log, one JSON object a line on standard error, names no user and no value.

    Example: seqveil bridge kafka --bootstrap localhost:9092 --raw places --released places-released --model m.model
    --policy policy.toml --state bridge.db
    """
    with needs_extra("the bridge", "kafka"):
        from seqveil.interfaces.kafka import Cluster, KafkaBridge, KafkaLink, partitions_of
    own = None if partitions is None else partitions_of(partitions)
    words = payloads.words()
    form = form_of(words)
    if "discovery" in words or "retained" in words:
        raise InputError("discovery and retained are for MQTT; leave them out")
    cluster = Cluster(bootstrap, raw, released, errors, group, own, {} if client is None else _settings(client))
    with kept.opened(refusals.gaps) as store:
        working = KafkaBridge(store, KafkaLink(cluster), form=form, **refusals.refusing)
        _log("started", {"group": group, "private": store.private})
        _log("order", {"reason": ARRIVAL})
        _work(working, store, kept.state, metrics, json)


def _settings(file: Path) -> dict[str, str]:
    """NAME=VALUE a line, as Kafka's own tools read them; no error shows a value."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        raise InputError(f"{file.name}: cannot be read; expected a file with NAME=VALUE a line") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise InputError(f"{file.name}: expected NAME=VALUE a line, as in security.protocol=SASL_SSL")
    return {name.strip(): value.strip() for name, _, value in pairs}


class Working(Protocol):
    """A bridge of any kind."""

    counts: BridgeCounts

    @property
    def waiting(self) -> int:
        """Messages that came and are not released yet."""

    @property
    def hidden(self) -> int:
        """Values outside the alphabet in what was released, for the operator alone."""

    def run(self) -> BridgeCounts:
        """Work until `stop`."""

    def stop(self) -> None:
        """Finish what was accepted and end."""


def _work(working: Working, store: CodeStreams, state: Path, metrics: MetricsOptions, json: bool) -> None:
    if store.begun:
        _log("warning", {"reason": f"{state.name} was missing or empty: its ledger begins at zero"})
    with metrics.serving(working, store, state) as port:
        if port is not None:
            _log("metrics", {"port": port})
        with _ended_by_signals(working):
            counts = working.run()
    tell_hidden(working.hidden)
    if json:
        emit_json(asdict(counts))


def _log(event: str, details: dict[str, object]) -> None:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **details}
    with suppress(OSError):  # a full disk, or a terminal that was closed: no reason to end
        print(codec.dumps(line, default=str), file=sys.stderr, flush=True)


ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _ended_by_signals(working: Working) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets it finish, a second does not."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, at_once)
        working.stop()

    def at_once(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted; what was released stands, and the broker sends the rest again")

    ours = threading.current_thread() is threading.main_thread()  # else whoever runs it owns the signals
    before = {number: signal.getsignal(number) for number in ENDING if ours}
    try:
        for number in before:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
