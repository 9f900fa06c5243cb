"""The connection to the broker: a session that outlives us, acknowledgements in our hands, everything else as events.

paho's network thread only puts what happens into a queue; one other thread reads it and decides. So no state is shared
but the number of the connection, by which a message of an earlier connection is disclosed: the broker sends that one
again.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from seqveil.core.errors import InputError
from seqveil.interfaces.bridge import BrokerError
from seqveil.interfaces.payloads import Retained

BACKOFF = (1, 60)  # seconds before connecting again: at first, at most
PATIENCE = 5.0  # seconds for the network thread to end
MOST_PACKET = 1 << 20  # bytes that the broker may send at once (MQTT 5)
TAKEN_OVER = 0x8E
SHORT, MANY = 5.0, 3  # seconds of a connection, and connections in a row, that look like two clients with one id
HOPELESS = {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C}  # refusals that trying again does not change


@dataclass(frozen=True)
class Broker:
    """Where the broker is and who we are to it."""

    host: str
    port: int
    client_id: str = "seqveil-bridge"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    version: int = 5  # or 4, which is MQTT 3.1.1
    keepalive: int = 60
    expiry: int = 7 * 24 * 3600  # seconds that the broker queues for us while we are away (MQTT 5)
    in_flight: int = 1000  # messages that it sends before the first is acknowledged (MQTT 5)

    def __post_init__(self) -> None:
        if self.version not in (4, 5):
            raise InputError("expected protocol 5 or 3.1.1")
        if not self.client_id or len(self.client_id.encode()) > 1024:
            raise InputError("expected a client id, the same at every start: the broker queues under it")
        for name, value, most in (
            ("keepalive", self.keepalive, 65_535),
            ("session expiry", self.expiry, 2**32 - 1),
            ("in-flight", self.in_flight, 65_535),
        ):
            if not 1 <= value <= most:
                raise InputError(f"expected {name} from 1 to {most}, got {value}")


def address(text: str, tls: bool = False) -> tuple[str, int]:
    """Host and port of `HOST[:PORT]`, with MQTT's own ports by default.

    >>> address("broker.example"), address("[::1]:1884"), address("10.0.0.1", tls=True)
    (('broker.example', 1883), ('::1', 1884), ('10.0.0.1', 8883))
    """
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, port = text.split(":")
    number = int(port) if port.isdecimal() and len(port) < 6 else (8883 if tls else 1883) if not port else 0
    if not host or any(sign in host for sign in "/@ []") or not 0 < number < 65_536:
        raise InputError("expected the broker as HOST, HOST:PORT or [IPV6]:PORT, without a scheme")
    return host, number


def _send_at_once(client: paho.Client, data: Any, connection: Any) -> None:
    """Small packets must not wait for the answers to those before them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@dataclass(slots=True)  # not frozen: that takes longer, and there is one for each message
class Arrived:
    """A message; `mid` and `connection` say how to acknowledge it. What it holds is in no repr."""

    topic: str = field(repr=False)
    payload: bytes = field(repr=False)
    mid: int
    reliable: bool  # at QoS 1
    retained: bool
    connection: int
    again: bool = False  # the broker says that it may have sent it before, under the same `mid`


@dataclass(slots=True)
class Confirmed:
    """The broker has a message of ours, or refuses it."""

    mid: int
    refused: str | None


@dataclass(frozen=True)
class Changed:
    """The connection came up or went down, or could not be made."""

    event: str
    detail: dict[str, object]


@dataclass(frozen=True)
class Failed:
    """There is no point in going on."""

    why: str


@dataclass(frozen=True)
class Stop:
    """Somebody asked us to end."""


Happening = Arrived | Confirmed | Changed | Failed | Stop


class Link:
    """One client of the broker. Its methods are for one thread; `put` is for any, and for signal handlers.

    Parameters:
        broker: where it is.
        subscription: the topic filter.
        retained: whether messages that the broker has kept are to be refused, taken as state or as events.
    """

    def __init__(self, broker: Broker, subscription: str, retained: Retained = "refuse") -> None:
        self.broker, self._subscription, self._retained = broker, subscription, retained
        self.connection = 0  # changes whenever the connection is lost
        self._since, self._short = 0.0, 0  # when it came up; connections in a row that were short
        self._lock = threading.Lock()
        self._happenings: SimpleQueue[Happening] = SimpleQueue()
        self._client = self._make_client()

    def _make_client(self) -> paho.Client:
        broker, five = self.broker, self.broker.version == 5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            broker.client_id,
            clean_session=None if five else False,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            manual_ack=True,
        )
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if broker.tls is not None:
            client.tls_set_context(broker.tls)
        client.reconnect_delay_set(*BACKOFF)
        client.on_socket_open = _send_at_once
        client.on_connect, client.on_connect_fail = self._on_connect, self._on_connect_fail
        client.on_disconnect, client.on_subscribe = self._on_disconnect, self._on_subscribe
        client.on_message, client.on_publish = self._on_message, self._on_publish
        return client

    def open(self) -> None:
        """Begin to connect, and go on trying; what comes of it is in `take`."""
        broker = self.broker
        if broker.version == 5:
            wanted = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            wanted.SessionExpiryInterval = broker.expiry
            wanted.ReceiveMaximum = broker.in_flight
            wanted.MaximumPacketSize = MOST_PACKET
            self._client.connect_async(broker.host, broker.port, broker.keepalive, clean_start=False, properties=wanted)
        else:
            self._client.connect_async(broker.host, broker.port, broker.keepalive)
        self._client.loop_start()

    def close(self) -> None:
        """Say goodbye, which keeps the session at the broker, and end the network thread."""
        self._client.disconnect()
        ending = threading.Thread(target=self._client.loop_stop, daemon=True)
        ending.start()
        ending.join(PATIENCE)

    def put(self, happening: Happening) -> None:
        """Hand over what happened on the connection; the loop that releases takes it from there."""
        self._happenings.put(happening)

    def take(self, most: int, timeout: float) -> list[Happening]:
        """What has happened, at most so much, waiting at most so long for the first of it."""
        out: list[Happening] = []
        try:
            out.append(self._happenings.get(timeout=timeout) if timeout > 0 else self._happenings.get_nowait())
            while len(out) < most:
                out.append(self._happenings.get_nowait())
        except Empty:
            pass
        return out

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> int:
        """Hand a message over, QoS 1; `Confirmed` comes with the number returned, if need be after connecting again."""
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        if sent.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
            raise BrokerError("a message could not be queued for the broker; start the bridge again")
        return sent.mid

    def acknowledge(self, message: Arrived) -> bool:
        """Tell the broker that a message need not come again; not for one of an earlier connection."""
        with self._lock:
            if message.connection != self.connection:
                return False
            self._client.ack(message.mid, 1)
            return True

    @property
    def alive(self) -> bool:
        """Whether the network thread runs."""
        name = f"paho-mqtt-client-{self.broker.client_id}"
        return any(thread.name == name for thread in threading.enumerate())

    # called by paho, in its thread

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            if reason.value in HOPELESS:
                self.put(Failed(f"the broker refuses the bridge ({reason}); check client id, user, password and ACL"))
            else:
                self.put(Changed("refused by the broker", {"reason": str(reason)}))
            return
        self._since = time.monotonic()
        self.put(Changed("connected", {"session": "resumed" if flags.session_present else "new"}))
        if self.broker.version == 5:
            # to refuse: the retain flag as the device set it. Else it says that the broker had kept the message, which
            # comes at every connection as state, and once in a session as an event
            as_set, handling = self._retained == "refuse", 1 if self._retained == "event" else 0
            options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=as_set, retainHandling=handling)
            client.subscribe(self._subscription, options=options)
        else:
            client.subscribe(self._subscription, qos=1)

    def _on_connect_fail(self, client: paho.Client, data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this while it handles the error
        said = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        self.put(Changed("cannot connect", {"reason": str(said)}))

    def _on_disconnect(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._lock:
            self.connection += 1
        self._short = self._short + 1 if time.monotonic() - self._since < SHORT else 0
        if self._short == MANY:
            self.put(Changed("warning", {"reason": "connections end soon; does another client use this client id?"}))
        if reason.value == TAKEN_OVER:
            self.put(Failed("another client has taken this client id over; give each bridge a client id of its own"))
        self.put(Changed("disconnected", {"reason": str(reason)}))

    def _on_subscribe(self, client: paho.Client, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self.put(Failed("the broker does not let the bridge read the raw topics; check its ACL"))
        else:
            self.put(Changed("subscribed", {}))

    def _on_message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        flags = (message.qos > 0, bool(message.retain), self.connection, bool(message.dup))
        self.put(Arrived(topic, bytes(message.payload), message.mid, *flags))

    def _on_publish(self, client: paho.Client, data: Any, mid: int, reason: Any, properties: Any) -> None:
        self.put(Confirmed(mid, str(reason) if reason.is_failure else None))
