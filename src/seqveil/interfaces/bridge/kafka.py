"""The link to a Kafka cluster: a raw topic in, a released topic out, by read–process–write transactions. Needs
`confluent-kafka` (extra `kafka`).

Messages are released durably together with how far each partition was read, then written in one Kafka transaction with
the offsets. **One state file owns its partitions**: a group that rebalances would hand a user to a state file that does
not know what was drawn, so the bridge joins none. It commits its offsets with the name of its state file, and refuses
to go on where those say that another file has read a partition, or that its own is older than what was committed.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from seqveil.core.errors import InputError
from seqveil.engine.store import Position
from seqveil.interfaces.bridge.core import GROUP, BrokerError, Core, Message
from seqveil.interfaces.bridge.payloads import MOST_NAME, Refusal

IDLE = 0.2  # seconds between two tries
PATIENCE = 30.0  # seconds for an answer of the cluster
TRIES = 5  # transactions before the bridge gives up
OURS = {  # settings of librdkafka that nobody else may make
    *("bootstrap.servers", "group.id", "group.instance.id", "transactional.id", "acks", "enable.idempotence"),
    *("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "isolation.level"),
    "plugin.library.paths",
}
NO_RIGHT = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION
TAKEN_OVER = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}


@dataclass(frozen=True)
class Cluster:
    """Where the cluster is, which topics are read and written, and under which name."""

    bootstrap: str  # HOST:PORT of some brokers, with commas between
    raw: str  # the topic to read
    released: str  # the topic to write
    errors: str | None = None  # the topic for refusals; None: they are in the log only
    group: str = "seqveil-bridge"  # under which offsets are committed
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # of librdkafka: TLS, passwords

    def __post_init__(self) -> None:
        named = [name for name in (self.raw, self.released, self.errors) if name is not None]
        if len(set(named)) < len(named):
            raise InputError("the raw, released and errors topics must differ; name another one")
        if not self.group or not self.bootstrap:
            raise InputError("expected --bootstrap HOST:PORT and a group.id, the same at every start")
        for name in OURS & self.settings.keys():
            raise InputError(f"{name} is the bridge's own to set; leave it out of the client's settings")


def settings_of(file: Path) -> dict[str, str]:
    """Settings of librdkafka, NAME=VALUE a line, as Kafka's own tools read them; no error shows a value."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        raise InputError(f"{file.name}: cannot be read; expected a file with NAME=VALUE a line") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise InputError(f"{file.name}: expected NAME=VALUE a line, as in security.protocol=SASL_SSL")
    return {name.strip(): value.strip() for name, _, value in pairs}


class KafkaLink:
    """The clients of one bridge at the cluster: a reader of fixed partitions and a transactional writer.

    *Guarantee*: a release stands once in what a reader of committed messages sees, as far as the cluster keeps its own
    promises about transactions. An event is a user (the key) and a sequence number: the payload's own, or the user's
    next one, kept by partition and offset.
    """

    name, nobody = "kafka", "key"
    slotted, certain = False, True
    waiting = 0  # what is read is released at once

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._core: Core
        self._ending = threading.Event()
        self._next: dict[int, int] = {}  # the offset up to which each partition was released
        self._answers: list[tuple[str, bytes, bytes]] = []  # topic, key and payload of what this round publishes
        self._file = ""  # the name of the state file
        # their log would stand between the lines of ours, and what goes wrong is raised where it is met
        quiet = {"log_level": 2, **cluster.settings, "error_cb": lambda error: None}
        shared = {**quiet, "bootstrap.servers": cluster.bootstrap}
        reading = {"group.id": cluster.group, "enable.auto.commit": False}
        reading |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        work = f"seqveil-{cluster.group}-{cluster.raw}"  # a second bridge at the same work stops the first
        try:
            self._consumer = Consumer({**shared, **reading})
            self._producer = Producer({**shared, "transactional.id": work, "linger.ms": 5})
        except KafkaException as error:
            raise InputError(f"the client's settings cannot be used ({_why(error)}); check them") from None

    @property
    def finished(self) -> bool:
        """Whether it was asked to stop; nothing is under way between two rounds."""
        return self._ending.is_set()

    def stop(self) -> None:
        """Finish the round and end; may be called from a signal handler."""
        self._ending.set()

    def close(self) -> None:
        """Leave the cluster."""
        self._consumer.close()

    def open(self, core: Core) -> None:
        """Take the transactional id over from whoever had it, a bridge that was killed or a second one; then find where
        to go on, and refuse where that would draw what was drawn."""
        self._core = core
        self._call("cannot begin transactions", self._producer.init_transactions, PATIENCE)
        count = self.partitions()
        self._file = self._agree(count)
        committed = self.committed(count)
        places = [(self.cluster.raw, number, self._start(number, committed.get(number))) for number in range(count)]
        self._consumer.assign([TopicPartition(*place) for place in places])
        core.log("reading", partitions=count)

    def partitions(self) -> int:
        """How many partitions the raw topic has."""
        raw = self.cluster.raw
        topics = self._call("cannot be reached", self._consumer.list_topics, raw, PATIENCE).topics
        if not topics[raw].partitions:
            raise BrokerError(f"the cluster has no topic {raw}; make it first, and start the bridge again")
        return len(topics[raw].partitions)

    def committed(self, partitions: int) -> dict[int, tuple[int, str]]:
        """How far each partition was committed, and by which state file."""
        wanted = [TopicPartition(self.cluster.raw, number) for number in range(partitions)]
        found = self._call("does not give offsets", self._consumer.committed, wanted, PATIENCE)
        return {one.partition: (one.offset, one.metadata or "") for one in found if one.offset >= 0}

    def _agree(self, count: int) -> str:
        """The name of the state file, which belongs to this topic, with so many partitions, and to no other."""
        cluster, store = self.cluster, self._core.store
        source: dict[str, Any] = {"topic": cluster.raw, "number of partitions": count, "group": cluster.group}
        kept = store.position("kafka:source")
        if kept is None:
            name = f"seqveil {secrets.token_hex(8)}"
            store.release([], [], [], None, {"kafka:source": json.dumps(source | {"name": name})})
            return name
        known = json.loads(str(kept))
        for part in source:
            if known[part] != source[part]:
                raise InputError(f"the state file was begun with another {part}; users would be drawn twice")
        return str(known["name"])

    def _start(self, number: int, committed: tuple[int, str] | None) -> int:
        """The offset to read a partition from."""
        store, where = self._core.store, TopicPartition(self.cluster.raw, number)
        first, end = self._call("does not give offsets", self._consumer.get_watermark_offsets, where, PATIENCE)
        if committed is not None and committed[1] != self._file:
            raise InputError(f"partition {number} was read with another state file, which knows what was drawn; use it")
        at, behind = (0 if committed is None else committed[0]), int(store.position(f"kafka:next:{number}") or 0)
        if at > behind:
            raise InputError("the state file is older than what was published; go on with the newest one")
        if behind > end:
            raise InputError("the raw topic ends before what was released; was it made anew? Begin a new state file")
        self._next[number] = behind
        if committed is None and behind:  # the offsets were never committed, or have expired since
            at = int(store.position(f"kafka:begun:{number}") or 0)
        if first > at:
            self._core.warn("the cluster has deleted raw events that were never released; keep them for longer")
        return max(at, int(first))

    def receive(self, timeout: float) -> list[Message]:
        """What came, at most a group."""
        found, now = [], time.time()
        for came in self.read(GROUP, min(timeout, IDLE)):
            number, offset, stamp = came.partition(), came.offset(), came.timestamp()[1] / 1000.0
            when, ident = min(stamp, now) if stamp > 0 else now, f"{number}:{offset}"
            payload = came.value() or b""  # a tombstone says that what was there is no more
            found.append(Message(_user(came.key()), payload, when, ident, offset < self._next[number], handle=came))
        return found

    def read(self, most: int, timeout: float) -> list[Any]:
        """What the reader has, waiting at most so long for it."""
        found = []
        for message in self._consumer.consume(most, timeout):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.fatal() or error.code() in NO_RIGHT:
                raise BrokerError(f"the cluster does not let the bridge read ({error.name()}); check its ACL")
        return found

    def positions(self, messages: Sequence[Message]) -> Mapping[str, Position]:
        """How far each partition is read with these messages, and from where."""
        begun = {message.handle.partition(): message.handle.offset() for message in reversed(messages)}
        kept: dict[str, Position] = {f"kafka:begun:{number}": at for number, at in begun.items()}
        for number, at in _offsets(messages).items():
            kept[f"kafka:next:{number}"] = max(at, self._next[number])
        return kept

    def release(self, message: Message, user: str, payload: bytes) -> None:
        """Publish a release, when the round is settled."""
        self._answers.append((self.cluster.released, user.encode(), payload))

    def refuse(self, message: Message, user: str | None, refusal: Refusal) -> None:
        """Answer under the same key on the topic for errors, when the round is settled."""
        if self.cluster.errors is not None:
            self._answers.append((self.cluster.errors, message.handle.key() or b"", refusal.payload()))

    def settle(self, messages: Sequence[Message]) -> None:
        """Publish the answers and commit the offsets, in one transaction."""
        offsets = _offsets(messages)
        self.write(self._answers, offsets, self._file)
        self._answers = []
        self._next |= {number: max(at, self._next[number]) for number, at in offsets.items()}
        self._core.counts.acknowledged += len(messages)

    def write(self, messages: Sequence[tuple[str, bytes, bytes]], offsets: Mapping[int, int], name: str) -> None:
        """Publish topic, key and payload of each, and commit the next offset to read of each partition, under the name
        of the state file: all in one transaction."""
        done = [TopicPartition(self.cluster.raw, number, at, name) for number, at in offsets.items()]
        for tried in range(TRIES):
            try:
                self._producer.begin_transaction()
                for topic, key, payload in messages:
                    while True:
                        with suppress(BufferError):  # it is full
                            self._producer.produce(topic, key=key, value=payload)
                            break
                        self._producer.poll(IDLE)
                self._producer.send_offsets_to_transaction(done, self._consumer.consumer_group_metadata(), PATIENCE)
                self._producer.commit_transaction(PATIENCE)
                return
            except KafkaException as error:
                if not self._may_try_again(error):
                    raise BrokerError(f"the cluster refuses releases ({_why(error)}); {_advice(error)}") from None
                time.sleep(IDLE * 2**tried)
        raise BrokerError("the cluster did not take releases in several tries; start the bridge again")

    def _may_try_again(self, error: KafkaException) -> bool:
        """Whether the transaction was taken back, so that it can be tried anew with the same payloads."""
        found = error.args[0]
        if found.fatal() or not (found.txn_requires_abort() or found.retriable()):
            return False
        try:
            self._producer.abort_transaction(PATIENCE)
        except KafkaException:
            return False
        return True

    def _call(self, what: str, call: Any, *given: Any) -> Any:
        try:
            return call(*given)
        except KafkaException as error:
            raise BrokerError(f"the cluster {what} ({_why(error)}); {_advice(error)}") from None


def _why(error: KafkaException) -> str:
    """The name of an error; its text could hold what was sent."""
    return str(error.args[0].name())


def _advice(error: KafkaException) -> str:
    if error.args[0].code() in TAKEN_OVER:
        return "another bridge does the same work; stop one of the two"
    return "check --bootstrap, the topics and the client's settings, and start the bridge again"


def _offsets(messages: Sequence[Message]) -> dict[int, int]:
    """The next offset to read of each partition after these messages."""
    return {message.handle.partition(): message.handle.offset() + 1 for message in messages}


def _user(key: bytes | None) -> str | None:
    try:
        return key.decode() if key and len(key) <= MOST_NAME else None
    except UnicodeDecodeError:
        return None
