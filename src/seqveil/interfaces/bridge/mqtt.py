"""The link to an MQTT broker: raw topics in, released topics out. Needs `paho-mqtt` (extra `mqtt`).

An event goes this way: it arrives, is released durably (in one transaction with all that wait beside it), its release
is published, the broker confirms that, and only then is the raw message acknowledged. Cut anywhere, the broker sends
the raw message again; the store then gives the same release back, and the same payload is published again.

A message without a number of its own is known by the number that the broker gave it (its packet identifier, the same
when it comes again) and its user. A message that the broker sends again under both is the same event; in doubt that is
assumed, because a second draw would tell more.

paho's network thread only puts what is to be done into a queue; the thread of the bridge does it. So no state is shared
but the number of the connection, by which a message of an earlier one is recognised: the broker sends that one again.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
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
from seqveil.interfaces.bridge.homeassistant import Discovery
from seqveil.interfaces.bridge.payloads import MOST_NAME, Refusal

BACKOFF = (1, 60)  # seconds before connecting again: at first, at most
KEEPALIVE = 60  # seconds of silence before the connection is checked
EXPIRY = 7 * 24 * 3600  # seconds that the broker queues for us while we are away
IN_FLIGHT = 1000  # messages that it sends before the first is acknowledged
MOST = 2 * IN_FLIGHT  # messages of ours under way, and waiting at QoS 0
MOST_PACKET = 1 << 20  # bytes that the broker may send at once
FINISH = 10.0  # seconds for what was accepted, after being asked to end
PATIENCE = 5.0  # seconds for the network thread to end
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

    def __post_init__(self) -> None:
        if not self.client_id or len(self.client_id.encode()) > 1024:
            raise InputError("expected a client id, the same at every start: the broker queues under it")

    @classmethod
    def at(
        cls,
        address: str,
        client_id: str = "seqveil-bridge",
        password: str | None = None,
        ca: Path | None = None,
        cert: Path | None = None,
    ) -> Broker:
        """The broker at `[mqtt[s]://][NAME@]HOST[:PORT]`, with MQTT's own ports by default.

        Parameters:
            address: of the broker.
            client_id: the broker queues under it.
            password: of the name in the address.
            ca: certificate of the broker's authority, in place of the system's; asks for TLS, as `mqtts` does.
            cert: the bridge's own certificate with its key, in one file.

        >>> made = Broker.at("bridge@10.0.0.1")
        >>> made.host, made.port, made.username
        ('10.0.0.1', 1883, 'bridge')
        """
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
        tls = _context(ca, cert) if parts.scheme == "mqtts" or ca or cert else None
        usual = 1883 if tls is None else 8883
        return cls(host, port or usual, client_id, parts.username, password, tls)


def _context(ca: Path | None, cert: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, password=lambda: b"")  # never ask at the terminal
    except (OSError, ValueError):
        names = ", ".join(path.name for path in (ca, cert) if path is not None)
        raise InputError(f"{names}: cannot be used for TLS; expected PEM files, the key without a password") from None
    return context


@dataclass(frozen=True)
class Topics:
    """Where raw events come from and releases go to; each pattern has `{user}` as one whole level.

    >>> topics = Topics("home/{user}/raw", "released/{user}")
    >>> topics.subscription, topics.user_of("home/ann/raw")
    ('home/+/raw', 'ann')
    """

    raw: str
    released: str
    errors: str | None = None
    discovery: Discovery | None = None

    def __post_init__(self) -> None:
        patterns = {"raw": self.raw, "released": self.released, "errors": self.errors}
        given = {name: pattern for name, pattern in patterns.items() if pattern is not None}
        for name, pattern in given.items():
            _check_pattern(name, pattern)
        for (one, pattern), (other, against) in itertools.combinations(given.items(), 2):
            if _may_meet(pattern, against):
                raise InputError(f"the {one} and {other} topics could be the same for some user; tell them apart")
        if self.discovery is not None and any(_may_meet(self.raw, topic) for topic in self.discovery.topics):
            raise InputError("the raw topics could be those of discovery; tell them apart")

    @property
    def subscription(self) -> str:
        """The topic filter that takes in the raw events of all users."""
        return self.raw.replace(USER, "+")

    def user_of(self, topic: str) -> str | None:
        """The user of a raw topic; None where it has none."""
        levels, given = self.raw.split("/"), topic.split("/")
        at = levels.index(USER)
        user = given[at] if len(given) == len(levels) else ""
        fits = given[:at] == levels[:at] and given[at + 1 :] == levels[at + 1 :]
        return user if fits and not user.startswith("$") and 0 < len(user.encode()) <= MOST_NAME else None


def _check_pattern(name: str, pattern: str) -> None:
    levels = pattern.split("/")
    if levels.count(USER) != 1 or any(sign in pattern.replace(USER, "", 1) for sign in "+#{}\0"):
        raise InputError(f"expected a {name} topic with {USER} as one level and no wildcards, as in {name}/{USER}")
    if pattern.startswith("$") or not 0 < len(pattern.encode()) <= 1024:
        raise InputError(f"expected a {name} topic of at most 1024 bytes that does not begin with $")


def _may_meet(one: str, other: str) -> bool:
    """Whether two patterns can name the same topic, with any two users."""
    levels, others = one.split("/"), other.split("/")
    pairs = zip(levels, others, strict=False)
    return len(levels) == len(others) and all(a == b or USER in (a, b) for a, b in pairs)


Kind = Literal["release", "report", "clearing", "announcement"]  # of a message of ours


class MqttLink:
    """One client of the broker, whose session outlives it. Its methods are for one thread; `stop` is for any.

    Parameters:
        broker: where it is.
        topics: to read and to write.
        own: whether payloads are seqveil's own, which must not be retained; of others the broker may keep the latest.
    """

    name, nobody = "mqtt", "topic"
    slotted, certain = True, False

    def __init__(self, broker: Broker, topics: Topics, own: bool = True) -> None:
        self.broker, self.topics, self._own = broker, topics, own
        self._core: Core
        self._client = self._make_client()
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._connection = 0  # changes whenever the connection is lost
        self._since, self._short = 0.0, 0  # when it came up; connections in a row that were short
        self._waiting: deque[Message] = deque()
        self._unacknowledged: deque[Message] = deque()  # in the order they came, in which they must be acknowledged
        self._under_way: dict[int, tuple[Kind, Message]] = {}  # our messages, by number
        self._deadline: float | None = None

    def _make_client(self) -> paho.Client:
        version, client_id = MQTTProtocolVersion.MQTTv5, self.broker.client_id
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, manual_ack=True)
        if self.broker.username is not None:
            client.username_pw_set(self.broker.username, self.broker.password)
        if self.broker.tls is not None:
            client.tls_set_context(self.broker.tls)
        client.reconnect_delay_set(*BACKOFF)
        client.on_socket_open = _send_at_once
        client.on_connect, client.on_connect_fail = self._on_connect, self._on_connect_fail
        client.on_disconnect, client.on_subscribe = self._on_disconnect, self._on_subscribe
        client.on_message, client.on_publish = self._on_message, self._on_publish
        return client

    def open(self, core: Core) -> None:
        """Begin to connect, and go on trying."""
        self._core = core
        wanted = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        wanted.SessionExpiryInterval, wanted.ReceiveMaximum, wanted.MaximumPacketSize = EXPIRY, IN_FLIGHT, MOST_PACKET
        where = self.broker.host, self.broker.port, KEEPALIVE
        self._client.connect_async(*where, clean_start=False, properties=wanted)
        self._client.loop_start()

    def close(self) -> None:
        """Say goodbye, which keeps the session at the broker, and end the network thread."""
        self._client.disconnect()
        ending = threading.Thread(target=self._client.loop_stop, daemon=True)
        ending.start()
        ending.join(PATIENCE)

    def stop(self) -> None:
        """Finish what was accepted and end; may be called from a signal handler."""
        self._todo.put(self._begin_to_end)

    def _begin_to_end(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + FINISH
            self._core.log("stopping", {"waiting": self.waiting, "under way": len(self._under_way)})

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
        ready = self._waiting and len(self._under_way) < MOST
        if not self._work(0.0 if ready else timeout) and not self._alive:
            raise BrokerError("the connection to the broker ended unexpectedly; start the bridge again")
        found: list[Message] = []
        while self._waiting and len(found) < GROUP and len(self._under_way) < MOST:
            message = self._waiting.popleft()
            if message.ident is None or message.handle[0] == self._connection:  # else it comes again
                found.append(message)
        self._unacknowledged.extend(message for message in found if message.ident is not None)
        if not found:
            self.settle(())
        return found

    def _work(self, timeout: float) -> int:
        """Do what the network thread asks for, waiting at most so long for the first of it; how much that was."""
        for done in range(GROUP):
            try:
                todo = self._todo.get(timeout=timeout) if timeout > 0 and not done else self._todo.get_nowait()
            except Empty:
                return done
            todo()
        return GROUP

    @property
    def _alive(self) -> bool:
        """Whether the network thread runs."""
        name = f"paho-mqtt-client-{self.broker.client_id}"
        return any(thread.name == name for thread in threading.enumerate())

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
            with self._lock:
                if connection == self._connection:
                    self._client.ack(came.mid, 1)
                    self._core.counts.acknowledged += 1

    def _send(self, kind: Kind, message: Message, topic: str, payload: bytes) -> None:
        """Hand a message over, QoS 1; it is confirmed in time, if need be after connecting again."""
        sent = self._client.publish(topic, payload, qos=1, retain=kind in ("clearing", "announcement"))
        if sent.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
            raise BrokerError("a message could not be queued for the broker; start the bridge again")
        message.waits += 1
        self._under_way[sent.mid] = kind, message

    def _confirm(self, mid: int, refused: str | None) -> None:
        kind, message = self._under_way.pop(mid)
        if refused is not None and kind == "release":
            raise BrokerError(f"the broker refuses a release ({refused}); check its ACL and limits")
        message.waits -= 1
        if refused is not None:
            self._core.warn(f"the broker refuses a {kind} ({refused}); check its ACL")
        elif kind == "clearing":
            self._core.counts.cleared += 1
            self._core.warn("a retained raw message was taken off the broker; devices must publish without retain")

    def _accept(self, message: Message) -> None:
        if self._deadline is not None:
            return  # not acknowledged, so it comes again next time
        if message.ident is None:
            self._core.counts.unreliable += 1
            self._core.warn("messages at QoS 0 may get lost on the way; devices should publish with QoS 1")
            if len(self._waiting) >= MOST:
                self._core.count(Refusal("load"))
                return
        self._waiting.append(message)

    def _fail(self, why: str) -> None:
        raise BrokerError(why)

    def _connected(self, new: bool) -> None:
        if new:
            self._core.numbers.forget()
        self._core.log("connected", {"session": "new" if new else "resumed"})

    # called by paho, in its thread

    def _log(self, event: str, **details: object) -> None:
        self._todo.put(lambda: self._core.log(event, details))

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.value in HOPELESS:
            why = f"the broker refuses the bridge ({reason}); check client id, user, password and ACL"
            self._todo.put(partial(self._fail, why))
        elif reason.is_failure:
            self._log("refused by the broker", reason=str(reason))
        else:
            self._since = time.monotonic()
            self._todo.put(partial(self._connected, not flags.session_present))
            # of seqveil's own payloads the retain flag as the device set it, to refuse them. Else it says that the
            # broker had kept the message, which comes at every connection
            options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=self._own)
            client.subscribe(self.topics.subscription, options=options)

    def _on_connect_fail(self, client: paho.Client, data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this while it handles the error
        said = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        self._log("cannot connect", reason=str(said))

    def _on_disconnect(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._lock:
            self._connection += 1
        self._short = self._short + 1 if time.monotonic() - self._since < SHORT else 0
        if self._short == MANY:
            self._log("warning", reason="connections end soon; does another client use this client id?")
        if reason.value == TAKEN_OVER:
            why = "another client has taken this client id over; give each bridge a state file with a name of its own"
            self._todo.put(partial(self._fail, why))
        self._log("disconnected", reason=str(reason))

    def _on_subscribe(self, client: paho.Client, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._todo.put(partial(self._fail, "the broker does not let the bridge read the raw topics; check its ACL"))
        else:
            self._log("subscribed")

    def _on_message(self, client: paho.Client, data: Any, came: paho.MQTTMessage) -> None:
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
        self._todo.put(partial(self._accept, message))

    def _on_publish(self, client: paho.Client, data: Any, mid: int, reason: Any, properties: Any) -> None:
        self._todo.put(partial(self._confirm, mid, str(reason) if reason.is_failure else None))


def _send_at_once(client: paho.Client, data: Any, connection: Any) -> None:
    """Small packets must not wait for the answers to those before them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
