"""Bridges for tests: one without a network, and one at work beside a real Mosquitto, in one place for each test."""

import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager
from zlib import crc32

import numpy as np

import mosquitto
from mosquitto import Client, until
from seqveil.core.geography import Cells
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.core import Core, Message
from seqveil.interfaces.bridge.mqtt import Broker, MqttLink, Topics
from seqveil.interfaces.bridge.payloads import Form, Payloads

KEY = bytes(range(32))
VALUES = ["zq-left", "zq-right", "zq-up"]
SECRET = "zq-secret-88"


def chain():
    rng = np.random.default_rng(4)
    return MarkovModel.fit([[VALUES[k] for k in rng.integers(0, 3, 200)]], smoothing=1.0)


def setting_of(**options):
    return Policy(**{"mechanism": "balanced", "epsilon": 1.0, **options}).on(chain())


def town():
    """A small town on the map, in cells of 10 km."""
    cells = Cells(10_000, (49.0, 49.3, 8.0, 8.4))
    rng = random.Random(1)
    return MarkovModel.fit([[rng.choice(cells.points.tolist()) for _ in range(80)]], alphabet=cells, smoothing=1.0)


def damage(path, name):
    with sqlite3.connect(path) as sql:
        assert sql.execute("UPDATE users SET spent = spent + 1 WHERE name = ?", (name,)).rowcount == 1
    sql.close()


def event(seq, value, **more):
    return json.dumps({"seq": seq, "value": value, **more}).encode()


class Wire:
    """A link without a network: what arrives is given in steps, what is published is kept."""

    name, nobody, slotted, waiting = "mqtt", "topic", True, 0

    def __init__(self, *steps, certain=False):
        self.steps, self.certain = list(steps), certain
        self.published, self.refused, self.unconfirmed = [], [], None

    @property
    def finished(self):
        return not self.steps

    def open(self, core):
        pass

    def close(self):
        pass

    def receive(self, timeout):
        step = self.steps.pop(0)
        return step() if callable(step) else step

    def positions(self, messages):
        return {}

    def release(self, message, user, payload):
        self.published.append((user, payload))
        if self.unconfirmed is not None:  # the broker confirms nothing for now
            message.waits += 1
            self.unconfirmed.append(message)

    def refuse(self, message, user, refusal):
        self.refused.append((user, refusal))

    def settle(self, messages):
        pass

    @property
    def reasons(self):
        return [refusal.reason for _, refusal in self.refused]


def noted(lines):
    """A log that keeps what is said."""
    return lambda event, *_, **facts: lines.append((event, facts))


def core_of(store, form="seqveil", wire=None, **options):
    return Core(store, Payloads(store.setting, Form.parse(form)), wire or Wire(), **options)


def came(user, payload, mid=None, again=False, **more):
    """A message as a link gives it; `mid` is what the broker calls it."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Message(user, content, ident=None if mid is None else str(mid), again=again, **more)


class Place:
    """Topics, names and files of one test, beside other tests at the same broker."""

    def __init__(self, mosquitto, folder, number):
        self.mosquitto, self.folder, self.name = mosquitto, folder, f"t{number}"
        self.topics = Topics(*(f"{self.name}/{kind}/{{user}}" for kind in ("raw", "released", "errors")))
        self.state, self.log = folder / f"t{crc32(self.name.encode())}.db", []  # its name is that of the session
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

    @contextmanager
    def bridge(self, setting=None, form="seqveil", topics=None, **options):
        """A bridge at work in another thread; it must end without an error."""
        setting, parsed = setting or setting_of(), Form.parse(form)
        with CodeStreams.open(self.state, setting, key=KEY) as store:
            broker = Broker("127.0.0.1", self.mosquitto.port, f"{self.name}-bridge")
            link = MqttLink(broker, topics or self.topics)
            made = Core(store, Payloads(setting, parsed), link, noted(self.log), **options)
            begin = len(self.log)
            with at_work(made):
                until(lambda: made.failures or ("subscribed", {}) in self.log[begin:])
                yield made
        assert not made.failures, made.failures

    def command(self, *more):
        """The command that is this bridge, with its model and policy, unless a test has written others."""
        model, policy = self.folder / "m.model", self.folder / "policy.toml"
        if not model.exists():
            chain().save(model)
        if not policy.exists():
            policy.write_text('epsilon = 1.0\nmechanism = "balanced"\n')
        topics = ("--raw", self.topics.raw, "--released", self.topics.released, "--errors", self.topics.errors)
        return [
            *(sys.executable, "-m", "seqveil", "bridge", "mqtt", "--broker", self.mosquitto.address, "--model", model),
            *("--policy", policy, "--state", self.state, "--begin", *topics, *more),
        ]

    @contextmanager
    def process(self, *more, env=None):
        """The real command, with its log in a file."""
        with open(self.folder / "log", "ab") as log:
            running = subprocess.Popen(self.command(*more), stdout=subprocess.PIPE, stderr=log, env=env)
        try:
            yield running
        finally:
            running.kill()
            running.wait()
            running.stdout.close()

    def meet(self, running):
        """Wait until the broker knows the bridge: from then on it queues."""
        until(lambda: running.poll() is not None or "subscribed" in self.said())
        assert running.poll() is None

    def said(self):
        return (self.folder / "log").read_text()

    def close(self):
        for each in self._clients:
            each.close()


@contextmanager
def at_work(core):
    """A bridge in another thread; what it ended with is in its `failures`."""
    core.failures = []

    def work():
        try:
            core.run()
        except Exception as error:
            core.failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield core
    finally:
        core.link.stop()
        thread.join()


@contextmanager
def alone(folder):
    """A place at a broker of its own."""
    with mosquitto.broker(folder) as running:
        made = Place(running, folder, 0)
        try:
            yield made
        finally:
            made.close()


def by_number(got):
    """Payloads by user and sequence number; a list, as they may come again."""
    out = defaultdict(list)
    for topic, payload in list(got):
        said = json.loads(payload)
        out[topic.split("/")[-1], said.get("seqveil", said)["seq"]].append(payload)
    return out


def some_events(users=3, each=30, seed=0):
    """Events of users in turns: user, number, value."""
    rng = random.Random(seed)
    return [(f"user {u}", seq, rng.choice(VALUES)) for seq in range(each) for u in range(users)]
