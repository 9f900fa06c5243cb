"""The Kafka bridge: a raw topic in, a released topic out, by read–process–write transactions. Needs `confluent-kafka`
(extra `kafka`).

A round goes this way: messages are read, released durably in the state file together with how far each partition was
read, and then written to the released topic in one Kafka transaction with the offsets of what was read. Killed before
that transaction is committed, the bridge reads the same messages again; the state file gives the same releases back,
and the same bytes are written. Killed after it, those messages do not come again.

**One state file owns its partitions.** A user's state is in one state file, so partitions must not move between
bridges: a consumer group that rebalances would hand a user to a file that does not know what was drawn. The bridge
therefore never joins a group. It reads partitions that are fixed (all of them, or `partitions`), and commits its
offsets under the group's name with the name of its state file. It refuses to go on where those say that another state
file has read a partition, that its own file is older than what was committed, or that the topic now has another number
of partitions, which would send users to other ones.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from seqveil.core.alphabet import OnUnknown
from seqveil.core.errors import InputError
from seqveil.engine.coded import CodeStreams
from seqveil.interfaces.bridge import GROUP, BridgeCounts, BrokerError, Core, Log, OnRefused
from seqveil.interfaces.payloads import MOST_NAME, Form, NoEvent, PayloadEvent, Payloads, Refusal

IDLE = 0.2  # seconds that a read waits for messages
PATIENCE = 30.0  # seconds for an answer of the cluster
TRIES = 5  # transactions before the bridge gives up
OURS = (
    "bootstrap.servers",
    "group.id",
    "group.instance.id",
    "transactional.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "isolation.level",
    "enable.idempotence",
    "acks",
    "plugin.library.paths",
)
NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class Cluster:
    """Where the cluster is, which topics are read and written, and under which name.

    Parameters:
        bootstrap: HOST:PORT of some brokers, with commas between.
        raw: the topic to read.
        released: the topic to write.
        errors: where refusals go; None: to the log only.
        group: under which offsets are committed.
        partitions: of the raw topic that this bridge reads; None: all.
        settings: of librdkafka, such as those for TLS and passwords.
    """

    bootstrap: str
    raw: str
    released: str
    errors: str | None = None
    group: str = "seqveil-bridge"
    partitions: tuple[int, ...] | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        named = [name for name in (self.raw, self.released, self.errors) if name is not None]
        if not all(NAME.fullmatch(name) and name not in (".", "..") for name in named):
            raise InputError("expected topics of letters, digits, dots, dashes and underscores, as in raw-places")
        if len(set(named)) < len(named):
            raise InputError("the raw, released and errors topics must differ; name another one")
        if not self.group or not self.bootstrap:
            raise InputError("expected --bootstrap HOST:PORT and a --group, the same at every start")
        for name in set(self.settings) & set(OURS):
            raise InputError(f"{name} is the bridge's own to set; leave it out of the client's settings")

    @property
    def transactional_id(self) -> str:
        """Under which a second bridge at the same work is found by the cluster, which then stops the first."""
        part = "all" if self.partitions is None else "-".join(map(str, self.partitions))
        return f"seqveil-{self.group}-{self.raw}-{part}"


def partitions_of(text: str) -> tuple[int, ...]:
    """Partitions as they are written on the command line.

    >>> partitions_of("0-2,7")
    (0, 1, 2, 7)
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None or int(match[1]) > int(match[2] or match[1]) or int(match[2] or 0) > 99_999:
            raise InputError("expected partitions as in 0-3 or 0,2,5")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


class KafkaLink:
    """The clients of one bridge at the cluster: a reader of fixed partitions and a transactional writer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        shared = {**cluster.settings, "bootstrap.servers": cluster.bootstrap, "error_cb": lambda error: None}
        quiet = {"log_level": 2, **shared}  # their log would stand between the lines of ours
        reading = {
            "group.id": cluster.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
        try:
            self._consumer = Consumer({**quiet, **reading})
            self._producer = Producer({**quiet, "transactional.id": cluster.transactional_id, "linger.ms": 5})
        except KafkaException as error:
            raise InputError(f"the client's settings cannot be used ({_why(error)}); check them") from None

    def open(self) -> None:
        """Take the transactional id over from whoever had it: a bridge that was killed, or a second one."""
        self._call("cannot begin transactions", self._producer.init_transactions, PATIENCE)

    def close(self) -> None:
        """Leave the cluster."""
        self._consumer.close()

    def partitions(self) -> int:
        """How many partitions the raw topic has."""
        raw = self.cluster.raw
        for _ in range(TRIES):  # a cluster that makes topics when they are asked for needs a moment
            listed = self._call("cannot be reached", self._consumer.list_topics, raw, PATIENCE).topics[raw]
            if listed.partitions:
                return len(listed.partitions)
            time.sleep(IDLE)
        raise BrokerError(f"the cluster has no topic {raw}; make it first")

    def committed(self, partitions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """How far each partition was committed, and by which state file."""
        wanted = [TopicPartition(self.cluster.raw, number) for number in partitions]
        found = self._call("does not give offsets", self._consumer.committed, wanted, PATIENCE)
        return {one.partition: (one.offset, one.metadata or "") for one in found if one.offset >= 0}

    def ends(self, partition: int) -> tuple[int, int]:
        """The first offset that a partition still has, and the one after its last."""
        wanted = TopicPartition(self.cluster.raw, partition)
        found = self._call("does not give offsets", self._consumer.get_watermark_offsets, wanted, PATIENCE)
        return int(found[0]), int(found[1])

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Read from these offsets on."""
        self._consumer.assign([TopicPartition(self.cluster.raw, number, at) for number, at in offsets.items()])

    def read(self, most: int, timeout: float) -> list[Message]:
        """What came, waiting at most so long for it."""
        found = []
        for message in self._consumer.consume(most, timeout):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.fatal() or error.code() in HOPELESS:
                raise BrokerError(f"the cluster does not let the bridge read ({error.name()}); check its ACL")
        return found

    def write(self, messages: Sequence[tuple[str, bytes, bytes]], offsets: Mapping[int, int], name: str) -> None:
        """Publish topic, key and payload of each, and commit these offsets, all in one transaction.

        Parameters:
            messages: to publish.
            offsets: the next one to read of each partition.
            name: of the state file.
        """
        for tried in range(TRIES):
            try:
                self._transaction(messages, offsets, name)
                return
            except KafkaException as error:
                if not self._may_try_again(error):
                    raise BrokerError(f"the cluster refuses releases ({_why(error)}); {_advice(error)}") from None
                time.sleep(IDLE * 2**tried)
        raise BrokerError("the cluster did not take releases in several tries; start the bridge again")

    def _transaction(self, messages: Sequence[tuple[str, bytes, bytes]], offsets: Mapping[int, int], name: str) -> None:
        self._producer.begin_transaction()
        for topic, key, payload in messages:
            while True:
                try:
                    self._producer.produce(topic, key=key, value=payload)
                    break
                except BufferError:
                    self._producer.poll(IDLE)
        done = [TopicPartition(self.cluster.raw, number, at, name) for number, at in offsets.items()]
        self._producer.send_offsets_to_transaction(done, self._consumer.consumer_group_metadata(), PATIENCE)
        self._producer.commit_transaction(PATIENCE)

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


HOPELESS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
}
TAKEN_OVER = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}


def _why(error: KafkaException) -> str:
    """The name of an error; its text could hold what was sent."""
    return str(error.args[0].name())


def _advice(error: KafkaException) -> str:
    if error.args[0].code() in TAKEN_OVER:
        return "another bridge does the same work; stop one of the two"
    return "check --bootstrap, the topics and the client's settings, and start the bridge again"


class KafkaBridge:
    """Releases what is written to a raw topic, each event once, and publishes each release once.

    *Guarantee*: each event is drawn once and charged once, and its release stands once in what a reader of committed
    messages sees, as far as the cluster keeps its own promises about transactions. An event is a user (the key) and a
    sequence number: the payload's own, or the user's next one, kept by partition and offset.

    Parameters:
        store: where events are released; its setting says how.
        link: to the cluster.
        on_unknown: in place of the model's policy, whose "error" means "hide" here.
        on_refused: "report" drops an event that cannot be released and reports it, "stop" ends the bridge before it.
        log: takes an event's name and details, never data or users.
        form: of the payloads.
    """

    waiting = 0  # what is read is released at once

    def __init__(
        self,
        store: CodeStreams,
        link: KafkaLink,
        *,
        on_unknown: OnUnknown | None = None,
        on_refused: OnRefused = "report",
        log: Log = lambda event, details: None,
        form: Form | None = None,
    ) -> None:
        payloads = Payloads(store.setting, on_unknown, form, needs_seq=False)
        self._core = Core(store, payloads, "kafka", on_refused, log)
        self.counts: BridgeCounts = self._core.counts
        self._store, self._link, self._log = store, link, log
        self._ending = threading.Event()
        self._next: dict[int, int] = {}  # the offset up to which each partition was released
        self._name = ""

    @property
    def hidden(self) -> int:
        """Values outside the alphabet in what was released, for the operator alone."""
        return self._core.hidden

    def run(self) -> BridgeCounts:
        """Work until `stop`, or until there is no point in going on."""
        self._link.open()
        try:
            self._begin()
            while not self._ending.is_set():
                messages = self._link.read(GROUP, IDLE)
                if messages:
                    self._round(messages)
                self._core.report()
            self._core.close()
        finally:
            self._link.close()
        self._core.report()
        self._log("stopped", asdict(self.counts))
        return self.counts

    def stop(self) -> None:
        """Finish the round and end; may be called from a signal handler."""
        self._ending.set()

    def _begin(self) -> None:
        """Find where to go on, and refuse where that would draw what was drawn."""
        cluster, count = self._link.cluster, self._link.partitions()
        wanted = tuple(range(count)) if cluster.partitions is None else cluster.partitions
        if wanted[-1] >= count:
            raise InputError(f"the topic {cluster.raw} has {count} partitions, from 0 on; check --partitions")
        self._name = self._agree(wanted, count)
        committed, offsets = self._link.committed(wanted), {}
        for number in wanted:
            kept = self._store.position(f"kafka:next:{number}")
            offsets[number] = self._start(number, None if kept is None else int(kept), committed.get(number))
        self._link.begin(offsets)
        self._log("reading", {"partitions": len(offsets), "of": count})

    def _agree(self, wanted: tuple[int, ...], count: int) -> str:
        """The name of the state file, which belongs to these partitions of this topic and to no others."""
        cluster = self._link.cluster
        source: dict[str, Any] = {"topic": cluster.raw, "partitions": list(wanted), "of": count, "group": cluster.group}
        kept = self._store.position("kafka:source")
        if kept is None:
            name = f"seqveil {secrets.token_hex(8)}"
            self._store.release([], [], [], None, {"kafka:source": json.dumps(source | {"name": name})})
            return name
        known = json.loads(str(kept))
        for part in source:
            if known[part] != source[part]:
                raise InputError(
                    f"the state file belongs to another {part} of the raw topic than now; its users could be drawn "
                    "twice: go on as before, or begin a new topic with a new state file and group"
                )
        return str(known["name"])

    def _start(self, number: int, kept: int | None, committed: tuple[int, str] | None) -> int:
        first, end = self._link.ends(number)
        if committed is not None and committed[1] != self._name:
            raise InputError(
                f"partition {number} was read in this group with another state file; go on with that one, "
                "because this one does not know what was drawn"
            )
        at, behind = (0 if committed is None else committed[0]), (0 if kept is None else kept)
        if at > behind:
            raise InputError(
                "the state file is older than what was published; go on with the newest one: see docs/operations.md"
            )
        if behind > end:
            raise InputError("the raw topic ends before what was released; was it made anew? Begin a new state file")
        self._next[number] = behind
        if committed is None and behind:  # the offsets were never committed, or have expired since
            begun = self._store.position(f"kafka:begun:{number}")
            at = behind if begun is None else int(begun)
        if first > at:
            self._core.warn("the cluster has deleted raw events that were never released; keep them for longer")
        return max(at, first)

    def _round(self, messages: Sequence[Message]) -> None:
        """Release a round of messages and publish it, in one transaction with the offsets."""
        readable: list[tuple[Message, PayloadEvent]] = []
        disclosed: list[tuple[str, bytes, bytes]] = []
        begun: dict[int, int] = {}
        offsets: dict[int, int] = {}
        for message in messages:
            number, offset = _place(message)
            begun.setdefault(number, offset)
            offsets[number] = offset + 1
            self.counts.received += 1
            event = self._read(message, disclosed)
            if event is not None:
                readable.append((message, event))
        furthest = {number: max(at, self._next[number]) for number, at in offsets.items()}
        kept = {f"kafka:next:{number}": at for number, at in furthest.items()}
        kept |= {f"kafka:begun:{number}": at for number, at in begun.items()}
        made = self._core.release([event for _, event in readable], kept)
        for (message, event), outcome in zip(readable, made, strict=True):
            if isinstance(outcome, Refusal):
                self._refuse(message, outcome, disclosed)
            elif outcome is not None and (event.again or not outcome.repeated):
                disclosed.append((self._link.cluster.released, event.user.encode(), outcome.payload))
        self._link.write(disclosed, offsets, self._name)
        self._next |= furthest
        self.counts.acknowledged += len(messages)
        self._core.confirmed(event.ident for _, event in readable)

    def _read(self, message: Message, disclosed: list[tuple[str, bytes, bytes]]) -> PayloadEvent | None:
        payload, now, stamp = message.value(), time.time(), message.timestamp()[1] / 1000.0
        if not payload:
            self.counts.states += 1  # a tombstone, which says that what was there is no more
            return None
        try:
            user = _user(message.key())
            found = self._core.payloads.read(user, payload, min(stamp, now) if stamp > 0 else now)
        except Refusal as refusal:
            self._refuse(message, refusal, disclosed)
            return None
        except NoEvent:
            self.counts.states += 1
            return None
        number, offset = _place(message)
        ident, again = f"{number}:{offset}", offset < self._next[number]
        if again and found.seq is None and ident not in self._core.numbers:
            self.counts.repeated += 1  # read and confirmed before; its number is not known any more
            return None
        return replace(found, ident=ident, again=again)

    def _refuse(self, message: Message, refusal: Refusal, disclosed: list[tuple[str, bytes, bytes]]) -> None:
        self._core.refuse(refusal)
        if self._link.cluster.errors is not None:
            disclosed.append((self._link.cluster.errors, message.key() or b"", refusal.payload()))


def _place(message: Message) -> tuple[int, int]:
    """The partition and the offset of a message that was read."""
    number, offset = message.partition(), message.offset()
    assert number is not None
    assert offset is not None
    return number, offset


def _user(key: bytes | None) -> str:
    try:
        user = (key or b"").decode()
    except UnicodeDecodeError:
        raise Refusal("key") from None
    if not 0 < len(user.encode()) <= MOST_NAME:
        raise Refusal("key")
    return user
