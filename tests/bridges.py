"""A bridge at work beside a real Mosquitto, in one place for each test."""

import json
import random
import threading
from collections import defaultdict
from contextlib import contextmanager

import numpy as np

import mosquitto
from mosquitto import Client, until
from seqveil.core.model import MarkovModel
from seqveil.engine.coded import CodeStreams
from seqveil.engine.policy import Policy
from seqveil.interfaces.mqtt import Broker, Link, MqttBridge, Topics

KEY = bytes(range(32))
VALUES = ["zq-left", "zq-right", "zq-up"]
SECRET = "zq-secret-88"


def chain():
    rng = np.random.default_rng(4)
    return MarkovModel.fit([[VALUES[k] for k in rng.integers(0, 3, 200)]], smoothing=1.0)


def setting_of(**options):
    return Policy(**{"mechanism": "balanced", "epsilon": 1.0, **options}).on(chain())


def event(seq, value, **more):
    return json.dumps({"seq": seq, "value": value, **more}).encode()


class Place:
    """Topics, names and files of one test, beside other tests at the same broker."""

    def __init__(self, mosquitto, folder, number):
        self.mosquitto, self.folder, self.name = mosquitto, folder, f"t{number}"
        self.topics = Topics(*(f"{self.name}/{kind}/{{user}}" for kind in ("raw", "released", "errors")))
        self.state, self.log = folder / "state.db", []
        self._clients = []

    def client(self, name, topic=None):
        made = Client(self.mosquitto.port, f"{self.name}-{name}", topic)
        self._clients.append(made)
        return made

    def device(self):
        return self.client("device")

    def receiver(self, kind="released"):
        return self.client(kind, f"{self.name}/{kind}/+")

    def raw(self, user):
        return f"{self.name}/raw/{user}"

    def broker(self, **options):
        return Broker("127.0.0.1", self.mosquitto.port, f"{self.name}-bridge", **options)

    @contextmanager
    def bridge(self, setting=None, key=KEY, gaps="refuse", version=5, retained="refuse", **options):
        """A bridge at work in another thread; it must end without an error."""
        with CodeStreams.open(self.state, setting or setting_of(), key=key, gaps=gaps) as store:
            link = Link(self.broker(version=version), self.topics.subscription, retained)
            made = MqttBridge(store, link, self.topics, log=lambda *line: self.log.append(line), **options)
            failures, begin = [], len(self.log)

            def work():
                try:
                    made.run()
                except Exception as error:
                    failures.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            try:
                until(lambda: failures or ("subscribed", {}) in self.log[begin:])
                made.failures = failures
                yield made
            finally:
                made.stop()
                thread.join()
        assert not failures, failures

    def close(self):
        for each in self._clients:
            each.close()


@contextmanager
def alone(folder):
    """A place at a broker of its own."""
    with mosquitto.broker(folder) as running:
        made = Place(running, folder, 0)
        try:
            yield made
        finally:
            made.close()


def published(receiver):
    """Payloads by user and sequence number; a list, as they may come again."""
    out = defaultdict(list)
    for topic, payload in list(receiver.got):
        out[topic.split("/")[-1], json.loads(payload)["seq"]].append(payload)
    return out


def some_events(users=3, each=30, seed=0):
    """Events of users in turns: user, number, value."""
    rng = random.Random(seed)
    return [(f"user {u}", seq, rng.choice(VALUES)) for seq in range(each) for u in range(users)]


def send(place, device, events):
    assert all(device.send_all([(place.raw(user), event(seq, value)) for user, seq, value in events]))
