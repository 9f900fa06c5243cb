"""A cluster for tests: librdkafka's mock, in a process of its own, and the bridge beside it.

The mock takes part in transactions but forgets the offsets that are sent with them, so `KeepingLink` commits those by
themselves right after the transaction, where a real cluster does both at once.
"""

import json
import time
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from bridges import KEY, at_work, noted, setting_of
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.core import Core
from seqveil.interfaces.bridge.kafka import Cluster, KafkaLink
from seqveil.interfaces.bridge.payloads import Payloads


class KeepingLink(KafkaLink):
    """Commits what the mock forgets."""

    def write(self, messages, offsets, name):
        super().write(messages, offsets, name)
        done = [TopicPartition(self.cluster.raw, number, at, name) for number, at in offsets.items()]
        self._consumer.commit(offsets=done, asynchronous=False)


class Place:
    """Topics and files of one test, beside other tests at the same cluster."""

    def __init__(self, address, folder, name):
        self.address, self.folder, self.name = address, folder, name
        self.state, self.log = folder / "state.db", []
        self.cluster = Cluster(address, f"{name}-raw", f"{name}-released", f"{name}-errors", group=f"{name}-group")
        self._producer = Producer({"bootstrap.servers": address, "log_level": 0})
        for topic in (self.cluster.raw, self.cluster.released, self.cluster.errors):
            self._producer.list_topics(topic, timeout=30)

    def send(self, events):
        """User, payload and, where it matters, the partition of each."""
        for user, payload, *where in events:
            self._producer.produce(
                self.cluster.raw,
                key=user,
                value=payload if payload is None or isinstance(payload, bytes) else json.dumps(payload),
                **({"partition": where[0]} if where else {}),
            )
        assert self._producer.flush(30) == 0

    def received(self, count, kind="released", seconds=90.0):
        """What a topic holds as (user, payload): at least so many, or it fails, and what comes right after them."""
        with self.reader(kind) as read:
            end = time.monotonic() + seconds
            while len(got := read()) < count:
                assert time.monotonic() < end, f"{len(got)} of {count}"
            return [*read()]

    @contextmanager
    def reader(self, kind="released"):
        """A function that reads on and gives all that it has read."""
        reader = Consumer({"bootstrap.servers": self.address, "group.id": "reader", "log_level": 0})
        reader.assign([TopicPartition(f"{self.name}-{kind}", number, 0) for number in range(4)])
        got = []

        def read():
            came = [message for message in reader.consume(1000, 0.4) if message.error() is None]
            got.extend(((message.key() or b"").decode(errors="replace"), message.value()) for message in came)
            return got

        try:
            yield read
        finally:
            reader.close()

    @contextmanager
    def bridge(self, link=KeepingLink, cluster=None, terms=None):
        """A bridge at work in another thread; what it ended with is in its `failures`."""
        with CodeStreams.open(self.state, terms or setting_of(), key=KEY) as store:
            own = link(cluster or self.cluster)
            with at_work(Core(store, Payloads(store.setting), own, noted(self.log))) as made:
                yield made


def once(got):
    """Payloads by user and sequence number, each a list, as they may come again."""
    out = {}
    for user, payload in got:
        out.setdefault((user, json.loads(payload)["seq"]), []).append(payload)
    return out
