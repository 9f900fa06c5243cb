"""The link to an MQTT broker: raw topics in, released topics out. Needs `paho-mqtt` (extra `mqtt`).

A raw message is acknowledged only when its event was released durably and the broker has confirmed the release; cut
anywhere, the broker sends it again. One without a number of its own is known by its packet identifier and its user: in
doubt it is the same event, because a second draw would tell more. The thread of the bridge works on the network too.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from seqveil.core.errors import InputError
from seqveil.engine.store import Position
from seqveil.interfaces.bridge.core import GROUP, BrokerError, Core, Message
from seqveil.interfaces.bridge.payloads import MOST_NAME, Discovery, Refusal

BACKOFF = (1.0, 60.0)  # seconds before connecting again: at first, at most
KEEPALIVE = 60  # seconds of silence before the connection is checked
EXPIRY = 7 * 24 * 3600  # seconds that the broker queues for us while we are away
IN_FLIGHT = 1000  # messages that it sends before the first is acknowledged
MOST = 2 * IN_FLIGHT  # messages of ours under way, and waiting at QoS 0
MOST_PACKET = 1 << 20  # bytes that the broker may send at once
FINISH = 10.0  # seconds for what was accepted, after being asked to end
SHORT, MANY = 5.0, 3  # seconds of a connection, and connections in a row, that look like two clients with one id
TAKEN_OVER = 0x8E
HOPELESS = {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C}  # refusals that trying again does not change
USER = "{user}"


@dataclass(frozen=True)
class Broker:
    """Where the broker is and who we are to it."""

    host: str
    port: int
    client_id: str = "seqveil-bridge"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def at(
        cls,
        address: str,
        client_id: str = "seqveil-bridge",
        password: str | None = None,
        ca: Path | None = None,
        cert: Path | None = None,
    ) -> Broker:
        """The broker there, with MQTT's own ports by default; `ca`, in place of the system's certificates, and `cert`,
        the bridge's own with its key, ask for TLS."""
        expected = "expected the broker as [mqtt[s]://][NAME@]HOST[:PORT], without a password"
        try:
            parts = urlsplit(address if "://" in address else f"mqtt://{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InputError(expected) from None
        odd = parts.password is not None or parts.path or parts.query or parts.fragment or port == 0
        if parts.scheme not in ("mqtt", "mqtts") or not host or " " in host or odd:
            raise InputError(expected)
        if password is not None and parts.username is None:
            raise InputError("a password needs a name; pass --broker NAME@HOST")
        if parts.scheme == "mqtt" and ca is None and cert is None:
            return cls(host, port or 1883, client_id, parts.username, password)
        try:
            tls = ssl.create_default_context(cafile=ca)
            if cert is not None:
                tls.load_cert_chain(cert, password=lambda: b"")  # never ask at the terminal
        except (OSError, ValueError):
            names = ", ".join(path.name for path in (ca, cert) if path is not None)
            raise InputError(f"{names}: cannot be used for TLS; expected PEM files, without a password") from None
        return cls(host, port or 8883, client_id, parts.username, password, tls)


@dataclass(frozen=True)
class Topics:
    """Where raw events come from and releases go to; each pattern has `{user}` as one whole level."""

    raw: str
    released: str
    errors: str | None = None
    discovery: Discovery | None = None

    def __post_init__(self) -> None:
        patterns = {"raw": self.raw, "released": self.released, "errors": self.errors}
        given = {name: pattern for name, pattern in patterns.items() if pattern is not None}
        for name, pattern in given.items():
            odd = any(sign in pattern.replace(USER, "", 1) for sign in "+#{}\0")
            if pattern.split("/").count(USER) != 1 or odd or pattern.startswith("$") or len(pattern.encode()) > 1024:
                raise InputError(f"expected a {name} topic as {name}/{USER}, without wildcards or $, at most 1 KiB")
        for (one, pattern), (other, against) in itertools.combinations(given.items(), 2):
            if _may_meet(pattern, against):
                raise InputError(f"the {one} and {other} topics could be the same for some user; tell them apart")

    def user_of(self, topic: str) -> str | None:
        """The user of a raw topic; None where it has none."""
        before, after = self.raw.split(USER)
        user = topic[len(before) : len(topic) - len(after)]
        named = user and user[0] != "$" and "/" not in user and before + user + after == topic
        return user if named and len(user.encode()) <= MOST_NAME else None


def _may_meet(one: str, other: str) -> bool:
    """Whether two patterns can name the same topic, with any two users."""
    levels, others = one.split("/"), other.split("/")
    pairs = zip(levels, others, strict=False)
    return len(levels) == len(others) and all(a == b or USER in (a, b) for a, b in pairs)


Kind = Literal["release", "report", "clearing", "announcement"]  # of a message of ours


class MqttLink:
    """One client of the broker, whose session outlives it."""

    name, nobody = "mqtt", "topic"
    slotted, certain = True, False

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self.broker, self.topics = broker, topics
        self._core: Core
        self._connection = 0  # changes whenever the connection is lost
        self._since, self._short = 0.0, 0  # when it came up; connections in a row that were short
        self._pause, self._next_try = BACKOFF[0], 0.0  # seconds between two tries, and when the next one is
        self._waiting: deque[Message] = deque()
        self._unacknowledged: deque[Message] = deque()  # in the order they came, in which they must be acknowledged
        self._under_way: dict[int, tuple[Kind, Message]] = {}  # our messages, by number
        self._deadline: float | None = None
        version, name = MQTTProtocolVersion.MQTTv5, broker.client_id
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=version, manual_ack=True)
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if broker.tls is not None:
            client.tls_set_context(broker.tls)
        # small packets must not wait for the answers to those before them
        client.on_socket_open = lambda *given: given[2].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe, client.on_publish = self._on_subscribe, self._on_publish
        client.on_message = self._on_message

    def open(self, core: Core) -> None:
        """Begin; the first try to connect is made when messages are asked for."""
        self._core = core
        wanted = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        wanted.SessionExpiryInterval, wanted.ReceiveMaximum, wanted.MaximumPacketSize = EXPIRY, IN_FLIGHT, MOST_PACKET
        where = self.broker.host, self.broker.port, KEEPALIVE
        self._client.connect_async(*where, clean_start=False, properties=wanted)

    def close(self) -> None:
        """Say goodbye, which keeps the session at the broker."""
        self._client.disconnect()
        del self._client  # which closes all that it has

    def stop(self) -> None:
        """Finish what was accepted and end; may be called from a signal handler."""
        self._deadline = self._deadline or time.monotonic() + FINISH

    @property
    def waiting(self) -> int:
        """Messages that came and were not received yet."""
        return len(self._waiting)

    @property
    def finished(self) -> bool:
        """Whether it was asked to stop, and has; what waits for its slot stays with the broker, and what came after."""
        idle = not self._waiting and not self._under_way
        return self._deadline is not None and (idle or time.monotonic() > self._deadline)

    def receive(self, timeout: float) -> list[Message]:
        """What came, at most a group, and none while too much of ours is under way."""
        self._work(0.0 if self._waiting and len(self._under_way) < MOST else timeout)
        found: list[Message] = []
        while self._waiting and len(found) < GROUP and len(self._under_way) < MOST:
            message = self._waiting.popleft()
            if message.ident is None or message.handle[0] == self._connection:  # else it comes again
                found.append(message)
        self._unacknowledged.extend(message for message in found if message.ident is not None)
        if not found:
            self.settle(())
        return found

    def _work(self, timeout: float) -> None:
        """Read and write what the network has and takes, waiting at most so long for the first of it."""
        if self._client.socket() is None and not self._connect(timeout):
            return
        for _ in range(GROUP):
            before = len(self._waiting), len(self._under_way)
            lost = self._client.loop(timeout) != MQTTErrorCode.MQTT_ERR_SUCCESS
            if lost or (len(self._waiting), len(self._under_way)) == before:
                return
            timeout = 0.0

    def _connect(self, timeout: float) -> bool:
        """Try to connect, now and then; whether that was begun."""
        wait = self._next_try - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, timeout))
            return False
        self._next_try, self._pause = time.monotonic() + self._pause, min(2 * self._pause, BACKOFF[1])
        try:
            self._client.reconnect()
        except (OSError, ValueError) as error:
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            self._core.log("cannot connect", reason=str(said))
            return False
        return True

    def positions(self, messages: Sequence[Message]) -> Mapping[str, Position]:
        """Nothing: the broker knows what it sent."""
        return {}

    def release(self, message: Message, user: str, payload: bytes) -> None:
        """Publish a release, and tell Home Assistant of it where that was not done."""
        topic = self.topics.released.replace(USER, user)
        discovery = self.topics.discovery
        found = None if discovery is None else discovery.announcement(user, topic)
        if found is not None:
            self._send("announcement", message, *found)
        self._send("release", message, topic, payload)

    def refuse(self, message: Message, user: str | None, refusal: Refusal) -> None:
        """Answer on the topic for errors; a retained message is taken off the broker."""
        if user is not None and self.topics.errors is not None:
            self._send("report", message, self.topics.errors.replace(USER, user), refusal.payload())
        if refusal.reason == "retained":
            self._send("clearing", message, message.handle[1].topic, b"")

    def settle(self, messages: Sequence[Message]) -> None:
        """Acknowledge, in order, what nothing is awaited for any more."""
        while self._unacknowledged and not self._unacknowledged[0].waits:
            connection, came = self._unacknowledged.popleft().handle
            if connection == self._connection:
                self._client.ack(came.mid, 1)
                self._core.counts.acknowledged += 1

    def _send(self, kind: Kind, message: Message, topic: str, payload: bytes) -> None:
        """Hand a message over, QoS 1; it is confirmed in time, if need be after connecting again."""
        sent = self._client.publish(topic, payload, qos=1, retain=kind in ("clearing", "announcement"))
        if sent.rc in (MQTTErrorCode.MQTT_ERR_QUEUE_SIZE, MQTTErrorCode.MQTT_ERR_PAYLOAD_SIZE):
            raise BrokerError("a message could not be queued for the broker; start the bridge again")
        message.waits += 1
        self._under_way[sent.mid] = kind, message

    # called by paho, while it works on the network

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.value in HOPELESS:
            raise BrokerError(f"the broker refuses the bridge ({reason}); check client id, user, password and ACL")
        if reason.is_failure:
            self._core.log("refused by the broker", reason=str(reason))
            return
        self._since, self._pause = time.monotonic(), BACKOFF[0]
        if not flags.session_present:
            self._core.numbers.forget()
        self._core.log("connected", session="resumed" if flags.session_present else "new")
        # of seqveil's own payloads the retain flag as the device set it, to refuse them. Else it says that the
        # broker had kept the message, which comes at every connection
        options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=self._core.payloads.form.own)
        client.subscribe(self.topics.raw.replace(USER, "+"), options=options)

    def _on_disconnect(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self._connection += 1
        self._short = self._short + 1 if time.monotonic() - self._since < SHORT else 0
        if self._short == MANY:  # not every broker says why it ends a connection
            self._core.warn("connections end soon; does another client use this client id?")
        if reason.value == TAKEN_OVER:
            raise BrokerError("another client uses this client id; give each bridge a state file of another name")
        self._core.log("disconnected", reason=str(reason))

    def _on_subscribe(self, client: paho.Client, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            raise BrokerError("the broker does not let the bridge read the raw topics; check its ACL")
        self._core.log("subscribed")

    def _on_message(self, client: paho.Client, data: Any, came: paho.MQTTMessage) -> None:
        if self._deadline is not None:
            return  # not acknowledged, so it comes again next time
        if not came.qos:
            self._core.warn("messages at QoS 0 may get lost on the way; devices should publish with QoS 1")
            if len(self._waiting) >= MOST:
                self._core.counts.refused["load"] += 1
                return
        try:
            topic = came.topic
        except UnicodeDecodeError:
            topic = ""
        message = Message(
            self.topics.user_of(topic),
            bytes(came.payload),
            ident=str(came.mid) if came.qos else None,
            again=bool(came.dup),
            retained=bool(came.retain),
            handle=(self._connection, came),
        )
        self._waiting.append(message)

    def _on_publish(self, client: paho.Client, data: Any, mid: int, reason: Any, properties: Any) -> None:
        kind, message = self._under_way.pop(mid)
        if reason.is_failure:
            said = f"the broker refuses a {kind} ({reason}); check its ACL"
            if kind == "release":
                raise BrokerError(f"{said} and limits")
            self._core.warn(said)
        message.waits -= 1
