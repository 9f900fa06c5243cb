"""What is killed while events flow in: the service, the Kafka bridge, and Spark from its first second on.

Beside them is what all kills share: the policies, how a kill is counted, and how what was released is judged. The MQTT
bridge is in `bridge`.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spark import write
from benchmarks.store import EPSILON, SYMBOLS, chain
from seqveil.core.kernel import Ints
from seqveil.core.randomness import KeyedRandomness, key_file
from seqveil.core.secrets import ever
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.store import Accounts, Memory
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import facts_of
from seqveil.receiver.evidence import Followed

USERS, AT_ONCE = 50, 20
PLAIN = "balanced"
KINDS = {  # what remembers raw symbols, hidden bits or what a secret has seen, has a key to keep that sealed
    PLAIN: Policy(epsilon=EPSILON, mechanism="balanced"),
    "blocks": Policy(epsilon=5.0, block=5),
    "secrets": Policy(secrets=[ever(0, epsilon=0.5, window=6)]),
}


@dataclass
class Kills:
    """Kills that ended a process: how many, how many of them while it started, and how late they came."""

    hits: int = 0
    early: int = 0
    late: int = 0  # of a file, once all was in the state file
    missed: int = 0  # it had ended before
    soonest: float = np.inf
    latest: float = 0.0

    def kill(self, running: subprocess.Popen[bytes], early: bool, after: float) -> None:
        """Kill a process, with all of its group where it leads one, `after` so many seconds."""
        with suppress(ProcessLookupError):
            leads = running.poll() is None and os.getpgid(running.pid) == running.pid
            os.killpg(running.pid, signal.SIGKILL) if leads else running.kill()
        hit = running.wait() == -signal.SIGKILL
        self.hits, self.early, self.missed = self.hits + hit, self.early + (hit and early), self.missed + (not hit)
        if hit:
            self.soonest, self.latest = min(self.soonest, after), max(self.latest, after)

    def figures(self) -> dict[str, float]:
        """What there is to say of them."""
        return {"kills": self.hits, "while starting": self.early, "first after ms": 1000 * self.soonest} | {
            "last after ms": 1000 * self.latest,
            "not counted, as it had ended": self.missed,
        }


def options(folder: Path, kind: str) -> list[str]:
    """The options of what releases by a policy into a state file; all but the plain one with a key."""
    chain().save(folder / "model.npz")
    KINDS[kind].save(folder / "policy.toml")
    files = {"model": "model.npz", "policy": "policy.toml", "state": "state.db"}
    files |= {} if kind == PLAIN else {"key": "key"}
    return [part for name, file in files.items() for part in (f"--{name}", str(folder / file))]


def key_in(folder: Path) -> bytes | None:
    return key_file(folder / "key") if (folder / "key").exists() else None


def judged(
    state: Path, setting: Terms, users: Sequence[str], raw: Ints, codes: Ints, key: bytes | None
) -> dict[str, int]:
    """How many releases differ from those of a run under the same key that is not killed, and how many accounts from
    those of that run; without a key, from what a receiver computes of these releases alone."""
    changed, facts = 0, facts_of(state)
    if key is None:
        index: dict[str, int] = {}
        receiver = Followed(setting)
        for _ in receiver.observe(np.array([index.setdefault(user, len(index)) for user in users]), codes):
            pass
        implied = receiver.state.take(slice(len(index)))
        right = list(zip(implied.steps, implied.spent, implied.account.most, implied.account.least, strict=True))
        wanted = dict(zip(index, right, strict=True))
    else:
        store = Memory()
        store.salt = f"{facts['salt']} {facts['epoch']}".encode()
        twin = CodeStreams(setting, store, KeyedRandomness(key))
        for at in range(0, len(users), 2000):
            made = twin.release(users[at : at + 2000], raw[at : at + 2000]).codes
            changed += int((made != codes[at : at + 2000]).sum())
        wanted = by_user(twin.accounts())
    with CodeStreams.open(state, setting, key=key) as streams:
        kept = by_user(streams.accounts())
    off = sum(kept.get(user) != wanted.get(user) for user in kept.keys() | wanted.keys())
    return {"changed": changed, "accounts off": off}


def by_user(found: Accounts) -> dict[str, tuple[float, ...]]:
    """Events, Σε and both sides of each user's account."""
    figures = zip(found.events, found.epsilon_spent, found.most, found.least, strict=True)
    return dict(zip(found.users, figures, strict=True))


class Sender(threading.Thread):
    """Sends requests one after another, each until it is answered, whatever happens to the service."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self._chance, self._ending = port, random.Random(6), threading.Event()
        self.answers: list[tuple[str, str]] = []  # each request and its answer

    def run(self) -> None:
        while not self._ending.is_set():
            first = len(self.answers) * AT_ONCE
            numbers = range(first, first + AT_ONCE)
            rows = [{"user": f"u{k % USERS}", "seq": k // USERS, "value": self._value()} for k in numbers]
            body = json.dumps({"events": rows})
            while (answer := self.asked(body)) is None and not self._ending.is_set():
                time.sleep(0.02)
            if answer is not None:
                self.answers.append((body, answer))

    def _value(self) -> int:
        return self._chance.randrange(SYMBOLS)

    def asked(self, body: str) -> str | None:
        with suppress(OSError, http.client.HTTPException):
            line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                line.request("POST", "/v1/release", body, {"Content-Type": "application/json"})
                answer = line.getresponse()
                content = answer.read().decode()
                return content if answer.status == 200 else None
            finally:
                line.close()
        return None

    def end(self) -> None:
        self._ending.set()
        self.join()


def service(kills: int) -> dict[str, float]:
    """Kill `seqveil serve` under each policy while requests come; then ask for everything again."""
    found, done = Counter[str](), Kills()
    for at, kind in enumerate(KINDS):
        with tempfile.TemporaryDirectory() as folder:
            found.update(_service(Path(folder), kind, kills * (at + 1) // len(KINDS), done))
    return done.figures() | found


def _service(folder: Path, kind: str, kills: int, done: Kills) -> dict[str, int]:
    """Kill it until there are so many kills in all."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "seqveil", "serve", "--begin", "--port", f"{port}", "--no-auth"]
    command += options(folder, kind)
    sender, chance = Sender(port), random.Random(7)
    sender.start()
    while done.hits < kills:
        running, begun = subprocess.Popen(command, stderr=subprocess.DEVNULL), time.monotonic()
        before, early = len(sender.answers), chance.random() < 0.2
        if not early:
            awaited(lambda before=before: len(sender.answers) > before, running)
        time.sleep(chance.random() * (3.0 if early else 0.3))
        done.kill(running, len(sender.answers) == before, time.monotonic() - begun)
    running, before = subprocess.Popen(command, stderr=subprocess.DEVNULL), len(sender.answers)
    awaited(lambda: len(sender.answers) > before, running)
    sender.end()
    disclosed = [(values(answer), values(sender.asked(body))) for body, answer in sender.answers]
    running.terminate()
    running.wait()
    sent = [row for body, _ in sender.answers for row in json.loads(body)["events"]]
    codes = np.array([value for first, _ in disclosed for _, value in first])
    users, raw = [row["user"] for row in sent], np.array([row["value"] for row in sent])
    verdict = judged(folder / "state.db", KINDS[kind].on(chain()), users, raw, codes, key_in(folder))
    twice = sum(first != again for first, again in disclosed)
    return {"sent": len(sent), "lost": len(sent) - codes.size, "drawn twice": twice, **verdict}


def values(answer: str | None) -> list[Any]:
    """The releases of an answer, without what says that they were there before."""
    return [] if answer is None else [(row["seq"], row["value"]) for row in json.loads(answer)["releases"]]


def awaited(condition: Any, running: subprocess.Popen[bytes], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or running.poll() is not None:
            raise RuntimeError(f"no progress; the process ended with {running.poll()}")
        time.sleep(0.005)


MOCK = """
import sys
from confluent_kafka import Producer
mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


@contextmanager
def cluster() -> Iterator[str]:
    """The address of librdkafka's mock cluster, in a process of its own; its topics have four partitions."""
    with subprocess.Popen([sys.executable, "-c", MOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().decode().strip()
        finally:
            running.kill()


def kafka(kills: int) -> dict[str, float]:
    """Kill `seqveil bridge kafka` under each policy; what its group had read comes again from the cluster."""
    found, done = Counter[str](), Kills()
    for at, kind in enumerate(KINDS):
        with tempfile.TemporaryDirectory() as folder, cluster() as address:
            found.update(_kafka(Path(folder), address, kind, kills * (at + 1) // len(KINDS), done))
    return done.figures() | found


def _kafka(folder: Path, address: str, kind: str, kills: int, done: Kills, after: int = 400) -> dict[str, int]:
    """Kill it until there are so many kills in all, `after` so many events or before.

    The mock keeps no offsets that are committed in a transaction, so the last round before a kill is published again:
    with the same bytes. What differs is `doubled`.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    command = [sys.executable, "-m", "seqveil", "bridge", "kafka", "--begin", "--bootstrap", address, "--raw", "raw"]
    command += ["--released", "released", *options(folder, kind)]
    producer, chance, sent = Producer({"bootstrap.servers": address, "log_level": 0}), random.Random(9), list[Any]()
    for topic in ("raw", "released"):
        producer.list_topics(topic, timeout=30)
    reader = Consumer({"bootstrap.servers": address, "group.id": "reader", "log_level": 0})
    reader.assign([TopicPartition("released", number, 0) for number in range(4)])
    got: dict[tuple[str, int], Counter[bytes]] = {}

    def read() -> int:
        for message in reader.consume(1000, 0.02):
            if message.error() is None:
                seq = json.loads(message.value())["seq"]
                got.setdefault((message.key().decode(), seq), Counter())[message.value()] += 1
        return len(got)

    def send(count: int) -> None:
        for _ in range(count):
            sent.append((f"u{len(sent) % USERS}", chance.randrange(SYMBOLS)))
            producer.produce("raw", key=sent[-1][0], value=json.dumps({"value": sent[-1][1]}))
        producer.flush(30)

    while done.hits < kills:
        send(after)
        before, begun = read(), time.monotonic()
        wanted, early = before + chance.randrange(1, after), chance.random() < 0.2
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        end = begun + (chance.random() * 3 if early else 60)
        while read() < (np.inf if early else wanted) and time.monotonic() < end and running.poll() is None:
            pass
        done.kill(running, read() == before, time.monotonic() - begun)
    running, end = subprocess.Popen(command, stderr=subprocess.DEVNULL), time.monotonic() + 120
    while read() < len(sent) and time.monotonic() < end and running.poll() is None:
        pass
    time.sleep(1.0)  # for what should not come
    read()
    running.terminate()
    running.wait()
    places = [(user, k // USERS) for k, (user, _) in enumerate(sent)]
    lost = [place for place in places if place not in got]
    codes = np.array([json.loads(next(iter(got[place])))["value"] if place in got else -9 for place in places])
    users, raw = [user for user, _ in sent], np.array([value for _, value in sent])
    return {
        "sent": len(sent),
        "lost": len(lost),
        "stalled": len({user for user, _ in lost}),
        "doubled": sum(len(payloads) > 1 for payloads in got.values()) + max(0, len(got) - len(sent)),
        "published again alike": sum(sum(payloads.values()) - 1 for payloads in got.values()),
        **judged(folder / "state.db", KINDS[kind].on(chain()), users, raw, codes, key_in(folder)),
    }


def spark(kills: int, events: int = 8_000, users: int = 400, files: int = 8) -> dict[str, float]:
    """Kill `seqveil spark release --checkpoint` from its first second on; then let it finish and read what it lists."""
    with tempfile.TemporaryDirectory() as name:
        folder, chance, done = Path(name), random.Random(8), Kills()
        write(folder / "all", events, users, files)
        coming = sorted((folder / "all").glob("*.parquet"))
        (folder / "in").mkdir()
        chain().save(folder / "model")
        KINDS[PLAIN].save(folder / "policy.toml")
        options = "--model model --policy policy.toml --key key --checkpoint state --out out --log spark.log"
        command = [sys.executable, "-m", "seqveil", "spark", "release", "in", *options.split(), "--master", "local[2]"]
        while done.hits < kills:
            arrived(folder, coming[: 1 + done.hits * files // kills])
            running, begun = (
                subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True),
                time.monotonic(),
            )
            if done.hits < 3:
                time.sleep(chance.random())  # in its first second
            else:
                moment(folder, running, chance)
            early = not any((folder / "state" / "commits").glob("[0-9]*"))
            done.kill(running, early, time.monotonic() - begun)
        arrived(folder, coming)
        ending = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if ending.returncode:
            log = (folder / "spark.log").read_text().splitlines()
            said = [line for line in log if "ERROR" in line or "Caused by" in line or "Exception: " in line]
            raise RuntimeError("\n".join([ending.stderr, *said[-20:]]))  # the data are made up: Spark may show them
        return done.figures() | {"sent": events, **rows_of(folder)}


def arrived(folder: Path, coming: list[Path]) -> None:
    """Have these files in the folder that is released."""
    for path in coming:
        if not (folder / "in" / path.name).exists():
            os.link(path, folder / "in" / path.name)


def moment(folder: Path, running: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Wait for a moment to kill: at first within the start, or as soon as some part of a micro-batch is there."""
    count = sum(1 for _ in (folder / "state" / "commits").glob("[0-9]*"))
    stages = ("seqveil.json", f"offsets/{count}", f"state/0/0/{count + 1}.changelog", f"commits/{count}")
    stage = chance.choice(stages[1:] if count else stages)
    wait, end = chance.random() * 6, time.monotonic() + 240
    if chance.random() < 0.3:
        time.sleep(wait)
        return
    while not (folder / "state" / stage).exists() and running.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.1)


def rows_of(folder: Path) -> dict[str, float]:
    """What the sink lists, beside what streams in memory release with the same key and salt."""
    import polars as pl

    logs = sorted((folder / "out" / "_spark_metadata").glob("[0-9]*"))
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    listed = {line["path"].rpartition("/")[2] for line in lines if line["action"] == "add"}
    got = pl.concat(pl.read_parquet(folder / "out" / part) for part in sorted(listed))
    raw = pl.concat(pl.read_parquet(path) for path in sorted((folder / "in").glob("*.parquet")))
    setting, store = KINDS[PLAIN].on(chain()), Memory()
    store.salt = json.loads((folder / "state" / "metadata").read_text())["id"].encode()
    streams = CodeStreams(setting, store, KeyedRandomness(key_file(folder / "key")))
    made = streams.release(raw["user"].to_list(), raw["value"].to_numpy(), raw["seq"].to_numpy())
    right = dict(zip(zip(raw["user"], raw["seq"], strict=True), made.codes.tolist(), strict=True))
    seen = Counter(zip(got["user"], got["seq"], strict=True))
    return {
        "lost": len(right.keys() - seen.keys()),
        "doubled": sum(count - 1 for count in seen.values()),
        "changed": int(
            np.sum([right[user, seq] != value for user, seq, value in got.select("user", "seq", "value").iter_rows()])
        ),
    }
