"""`seqveil bridge mqtt` and `seqveil bridge kafka`: release what is published, as it is published."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import ARRIVAL, INTERRUPTIONS, Interrupted, Section, tell_hidden
from seqveil.interfaces.logs import log

if TYPE_CHECKING:
    from seqveil.interfaces.bridge.core import Core, Link
    from seqveil.interfaces.bridge.payloads import Payloads

bridge = Section(help="Release what arrives on a message broker.", no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True)
class BridgeOptions:
    """What every bridge needs: the model and the policy, where releases are kept, and what payloads look like."""

    model: o.ModelFile
    policy: o.PolicyFile
    state: Path = o.required("FILE", "Where releases and accounts are kept.")
    key: o.Key = None
    begin: o.Begin = False
    payload: str = o.opt(
        "FORM", "seqveil, value, owntracks, json:PATH or json:PATH@TIME: see docs/bridges.md.", default="seqveil"
    )
    gaps: o.Gaps = "refuse"
    metrics: str | None = o.opt(
        "[HOST:]PORT", "Serve /metrics here for Prometheus, without a token; 0 picks a free port  [default: off]"
    )

    def payloads(self) -> Payloads:
        """How payloads are read and written; everything that these options can have wrong is refused here."""
        from seqveil.core.model import MarkovModel
        from seqveil.engine.policy import Policy
        from seqveil.interfaces.bridge.payloads import Form, Payloads

        return Payloads(Policy.load(self.policy).on(MarkovModel.load(self.model)), Form.parse(self.payload))

    def work(self, payloads: Payloads, link: Link, **about: object) -> None:
        """Open the state file, and let the bridge work until it is asked to end; `about` is for the log."""
        from seqveil.core import bulk
        from seqveil.interfaces.bridge.core import Core
        from seqveil.interfaces.bridge.slots import slots_of
        from seqveil.interfaces.events import open_state

        slotted = slots_of(payloads) is not None and link.slotted
        with ExitStack() as held:
            if self.metrics is not None:
                with needs_extra("--metrics", "mqtt"):
                    from seqveil.interfaces.figures import CountFigures, StateFigures, serving
                registry, port = held.enter_context(serving(self.metrics))
                log("metrics", port=port)
            bulk.load()  # now rather than while somebody waits
            store = open_state(self.state, payloads.setting, self.key, self.begin, self.gaps)
            core = Core(held.enter_context(store), payloads, link)
            log("started", private=store.private, **about)
            if not slotted:
                log("order", reason=ARRIVAL)
            if self.metrics is not None:
                registry.register(StateFigures(store, self.state))
                registry.register(CountFigures(core.counts, lambda: link.waiting))
            with _ended_by_signals(core):
                core.run()
        tell_hidden(core.hidden)


@bridge.command()
def mqtt(
    kept: BridgeOptions,
    *,
    broker: str = o.required("[mqtt[s]://][NAME@]HOST[:PORT]", "The broker; mqtts is MQTT over TLS."),
    raw: str = o.opt(
        "TOPIC", "Topic on which devices publish; {user} stands for one topic level.", default="raw/{user}"
    ),
    released: str = o.opt("TOPIC", "Where releases go.", default="released/{user}"),
    errors: str | None = o.opt("TOPIC", "Where a device learns what was refused  [default: the log only]"),
    discovery: str | None = o.opt(
        "PREFIX", "Announce the released values to Home Assistant as entities, under this prefix."
    ),
    ca: Path | None = o.opt("FILE", "Certificate of the CA that signed the broker's  [default: the system's CAs]"),
    cert: Path | None = o.opt("FILE", "The bridge's own certificate and its key, in one file."),
    password_file: Path | None = o.opt("FILE", "Has the password in its first line."),
) -> None:
    """Release what devices publish; the released value of each event is drawn once.

    That holds across crashes and redeliveries. In: {"seq": 0, "value": V}. Out: {"seq", "value", "epsilon"}. With
    --payload it reads and publishes what OwnTracks, Zigbee2MQTT and Home Assistant do: see docs/bridges.md.

    Ctrl-C stops the bridge after it has finished the events it has accepted. The log names no user and no value.

    Example: seqveil bridge mqtt --broker localhost --model m.model --policy policy.toml --state bridge.db
    """
    with needs_extra("the bridge", "mqtt"):
        from seqveil.interfaces.bridge.mqtt import Broker, MqttLink, Topics
        from seqveil.interfaces.bridge.payloads import Discovery
        from seqveil.interfaces.client import is_loopback
    # the broker queues under the client's name, which like the state file is to be kept and used once
    reached = Broker.at(broker, f"seqveil-{kept.state.stem}", _password(password_file), ca, cert)
    payloads = kept.payloads()
    topics = Topics(raw, released, errors, None if discovery is None else Discovery(discovery, payloads.form))
    if reached.tls is None and not is_loopback(reached.host):
        log("warning", "warning", reason="raw data crosses the network unencrypted; use --broker mqtts://…")
    kept.work(payloads, MqttLink(reached, topics), tls=reached.tls is not None)


def _password(file: Path | None) -> str | None:
    """The password, from a file: the command line would show it to everyone on the machine."""
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise InputError(f"{file.name}: the password cannot be read; check the path") from None
    if not lines or not lines[0]:
        raise InputError(f"{file.name}: expected the password in the first line")
    return lines[0]


@bridge.command()
def kafka(
    kept: BridgeOptions,
    *,
    bootstrap: str = o.required("HOST:PORT", "Brokers of the cluster, comma-separated."),
    raw: str = o.required("TOPIC", "Where events are written; the key of a message is its user."),
    released: str = o.required("TOPIC", "Where releases go."),
    errors: str | None = o.opt("TOPIC", "Where refusals go  [default: the log only]"),
    client: Path | None = o.opt("FILE", "File of librdkafka settings, one NAME=VALUE per line: TLS, SASL, group.id."),
) -> None:
    """Release what is written to a topic, using Kafka transactions.

    The released value of each event is drawn once and, for consumers with isolation.level=read_committed, published
    once. In: {"value": V}, with "seq" where the producer numbers the events of a user; otherwise the bridge numbers
    events by partition and offset. Out: {"seq", "value", "epsilon"} under the same key. The bridge joins no consumer
    group; it only commits offsets under group.id, so that lag can be monitored.

    Ctrl-C or SIGTERM finishes the current transaction, then stops. The log names no user and no value.

    Example: seqveil bridge kafka --bootstrap localhost:9092 --raw places --released places-released --model m.model
    --policy policy.toml --state bridge.db
    """
    with needs_extra("the bridge", "kafka"):
        from seqveil.interfaces.bridge.kafka import Cluster, KafkaLink, settings_of
    settings = {} if client is None else settings_of(client)
    group = settings.pop("group.id", "seqveil-bridge")
    link = KafkaLink(Cluster(bootstrap, raw, released, errors, group, settings))
    kept.work(kept.payloads(), link, group=group)


@contextmanager
def _ended_by_signals(core: Core) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets it finish, a second does not."""

    def as_before() -> None:
        """Let signals do again what they did."""
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        """Let the link finish what it has accepted; the next signal does not wait."""
        as_before()
        core.link.stop()

    ours = threading.current_thread() is threading.main_thread()  # else whoever runs it owns the signals
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM) if ours}
    try:
        yield
    except INTERRUPTIONS:
        raise Interrupted("interrupted; what was released stands, and the broker sends the rest again") from None
    finally:
        as_before()
