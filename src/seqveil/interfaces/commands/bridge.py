"""`seqveil bridge mqtt` and `seqveil bridge kafka`: release what is published, as it is published."""

from __future__ import annotations

import json as codec
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import ARRIVAL, Interrupted, tell_hidden

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from seqveil.engine.streams import CodeStreams
    from seqveil.interfaces.bridge.core import Core, Link
    from seqveil.interfaces.bridge.payloads import Payloads

PASSWORD = "SEQVEIL_MQTT_PASSWORD"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ENDING = (signal.SIGINT, signal.SIGTERM)

bridge = typer.Typer(help="Release what arrives on a message broker.", rich_markup_mode=None)


@bridge.callback()
def _bridges() -> None:
    """One sub-command for each kind of broker."""


@dataclass(frozen=True)
class BridgeOptions:
    """What every bridge needs: the model and the policy, where releases are kept, and what payloads look like."""

    model: o.ModelFile
    policy: o.PolicyFile
    state: Annotated[Path, o.option("FILE", "Where releases and accounts are kept.")]
    key: Annotated[Path | None, o.option("FILE", "Draw from the secret key in this file (made if missing).")] = None
    begin: Annotated[
        bool, o.flag("--begin", "Begin a state file that is missing or empty: its ledger starts at zero.")
    ] = False
    payload: Annotated[
        str, o.option("FORM", "seqveil, value, owntracks, json:PATH or json:PATH@TIME: see docs/bridges.md.")
    ] = "seqveil"
    gaps: Annotated[
        str, o.option("refuse|skip", "An event that skips others: refuse it, or give up the skipped ones.")
    ] = "refuse"
    metrics: Annotated[
        str | None,
        o.option(
            "[HOST:]PORT",
            "Serve /metrics here for Prometheus, without a token; 0 picks a free port  [default: nowhere]",
        ),
    ] = None

    def payloads(self) -> Payloads:
        """How payloads are read and written; everything that these options can have wrong is refused here."""
        from seqveil.core.model import MarkovModel
        from seqveil.engine.policy import Policy
        from seqveil.interfaces.bridge.payloads import Form, Payloads
        from seqveil.interfaces.bridge.slots import slots_of
        from seqveil.interfaces.events import check_begun

        if self.gaps not in ("refuse", "skip"):
            raise InputError(f"expected --gaps to be refuse or skip, got {self.gaps}")
        check_begun(self.state, self.begin)
        form = Form.parse(self.payload)
        found = Payloads(Policy.load(self.policy).on(MarkovModel.load(self.model)), form)
        slots_of(found)
        return found

    def work(self, payloads: Payloads, link: Link, **about: object) -> None:
        """Open the state file, and let the bridge work until it is asked to end; `about` is for the log."""
        from seqveil.interfaces.bridge.core import Core
        from seqveil.interfaces.bridge.slots import slots_of

        with self._metrics() as registry, self._opened(payloads) as store:
            core = Core(store, payloads, link, _log)
            _log("started", {**about, "private": store.private})
            if store.begun:
                _log("warning", {"reason": f"{self.state.name} was missing or empty: its ledger begins at zero"})
            if not link.slotted or slots_of(payloads) is None:
                _log("order", {"reason": ARRIVAL})
            if registry is not None:
                from seqveil.interfaces.figures import CountFigures, StateFigures

                registry.register(StateFigures(store, self.state))
                registry.register(CountFigures(core.counts, lambda: link.waiting))
            with _ended_by_signals(core):
                core.run()
        tell_hidden(core.hidden)

    def _opened(self, payloads: Payloads) -> CodeStreams:
        from seqveil.core import compiled
        from seqveil.engine.streams import CodeStreams
        from seqveil.engine.upkeep import key_for

        compiled.load()  # now rather than while somebody waits
        secret, gaps = key_for(self.state, self.key), cast(Literal["refuse", "skip"], self.gaps)
        return CodeStreams.open(self.state, payloads.setting, key=secret, gaps=gaps, must_exist=not self.begin)

    @contextmanager
    def _metrics(self) -> Iterator[CollectorRegistry | None]:
        """The figures that Prometheus is served; None where nobody asked for any."""
        if self.metrics is None:
            yield None
            return
        with needs_extra("--metrics", "mqtt"):
            from seqveil.interfaces.figures import serving
        with serving(self.metrics) as (registry, port):
            _log("metrics", {"port": port})
            yield registry


@bridge.command()
@o.option_groups
def mqtt(
    broker: Annotated[str, o.option("[mqtt[s]://][NAME@]HOST[:PORT]", "The broker; mqtts is MQTT over TLS.")],
    kept: BridgeOptions,
    *,
    raw: Annotated[str, o.option("TOPIC", "Where devices publish; {user} is one level.")] = "raw/{user}",
    released: Annotated[str, o.option("TOPIC", "Where releases go.")] = "released/{user}",
    errors: Annotated[
        str | None, o.option("TOPIC", "Where a device learns what was refused  [default: the log only]")
    ] = None,
    discovery: Annotated[
        str | None, o.option("PREFIX", "Announce released entities to Home Assistant under this prefix.")
    ] = None,
    ca: Annotated[
        Path | None, o.option("FILE", "Certificate of the broker's authority  [default: the system's]")
    ] = None,
    cert: Annotated[Path | None, o.option("FILE", "The bridge's own certificate and its key, in one file.")] = None,
    password_file: Annotated[
        Path | None, o.option("FILE", f"Has the password in its first line  [default: {PASSWORD}]")
    ] = None,
) -> None:
    """Release what devices publish, each event once, across crashes and repeats.

    In: {"seq": 0, "value": V}, or {"seq": 0, "values": [...]} where the policy has a batch. Out: {"seq", "value",
    "epsilon"}. With --payload, what OwnTracks, Zigbee2MQTT and Home Assistant publish; out comes the same with the
    released value. With such payloads and a model in slots of time (fit --every-seconds), one release for each slot:
    see docs/bridges.md.

    Ctrl-C finishes what was accepted. The log, one JSON object a line on standard error, names no user and no value.

    Example: seqveil bridge mqtt --broker localhost --model m.model --policy policy.toml --state bridge.db
    """
    with needs_extra("the bridge", "mqtt"):
        from seqveil.interfaces.bridge.homeassistant import Discovery
        from seqveil.interfaces.bridge.mqtt import Broker, MqttLink, Topics
    # the broker queues under the client's name, which like the state file is to be kept and used once
    reached = Broker.at(broker, f"seqveil-{kept.state.stem}", _password(password_file, "@" in broker), ca, cert)
    payloads = kept.payloads()
    form = payloads.form
    topics = Topics(raw, released, errors, None if discovery is None else Discovery(discovery, form))
    if reached.tls is None and reached.host not in LOOPBACK:
        _log("warning", {"reason": "raw data crosses the network unencrypted; use --broker mqtts://…"})
    kept.work(payloads, MqttLink(reached, topics, form.own), tls=reached.tls is not None)


def _password(file: Path | None, named: bool) -> str | None:
    """The password, from a file or the environment: the command line would show it to everyone on the machine."""
    if file is None:
        return os.environ.get(PASSWORD) if named else None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise InputError(f"{file.name}: the password cannot be read; check the path") from None
    if not lines or not lines[0]:
        raise InputError(f"{file.name}: expected the password in the first line")
    return lines[0]


@bridge.command()
@o.option_groups
def kafka(
    bootstrap: Annotated[str, o.option("HOST:PORT", "Brokers of the cluster, with commas between.")],
    kept: BridgeOptions,
    *,
    raw: Annotated[str, o.option("TOPIC", "Where events are written; the key of a message is its user.")],
    released: Annotated[str, o.option("TOPIC", "Where releases go.")],
    errors: Annotated[str | None, o.option("TOPIC", "Where refusals go  [default: the log only]")] = None,
    partitions: Annotated[
        str | None, o.option("0-3", "Partitions that this bridge and state file own, for good  [default: all]")
    ] = None,
    client: Annotated[
        Path | None, o.option("FILE", "Settings of librdkafka, NAME=VALUE a line: TLS, passwords, group.id.")
    ] = None,
) -> None:
    """Release what is written to a topic, each event drawn once and published once, by transactions.

    In: {"value": V}, with "seq" where the producer numbers the events of a user; else the bridge does, by partition
    and offset. Out: {"seq", "value", "epsilon"} under the same key.

    Ctrl-C finishes the round. The log, one JSON object a line on standard error, names no user and no value.

    Example: seqveil bridge kafka --bootstrap localhost:9092 --raw places --released places-released --model m.model
    --policy policy.toml --state bridge.db
    """
    with needs_extra("the bridge", "kafka"):
        from seqveil.interfaces.bridge.kafka import Cluster, KafkaLink, partitions_of, settings_of
    own = None if partitions is None else partitions_of(partitions)
    settings = {} if client is None else settings_of(client)
    group = settings.pop("group.id", "seqveil-bridge")
    link = KafkaLink(Cluster(bootstrap, raw, released, errors, group, own, settings))
    payloads = kept.payloads()
    if own is not None:
        link.partitions()  # refuses those that the topic does not have before a state file is begun
    kept.work(payloads, link, group=group)


def _log(event: str, details: dict[str, object]) -> None:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **details}
    with suppress(OSError):  # a full disk, or a terminal that was closed: no reason to end
        print(codec.dumps(line, default=str), file=sys.stderr, flush=True)


@contextmanager
def _ended_by_signals(core: Core) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets it finish, a second does not."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, at_once)
        core.link.stop()

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
