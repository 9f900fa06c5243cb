"""The MQTT bridge at a real Mosquitto: messages a second beside a bare echo through the same broker, and kills.

Messages at QoS 1 wait at the broker; a client takes them, and a receiver counts what it publishes. The echo publishes
each payload as it came and then acknowledges it, by the same client code as the bridge: what is missing to its speed is
the price of releasing. Rates are by the clock, and by the seconds of processor time that the client took.

`python -m benchmarks.bridge --kills 100` is the whole trial of kills, with restarts of the broker in between.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live_kills import KINDS, PLAIN, Kills, judged
from benchmarks.store import SYMBOLS, chain
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.core import BridgeCounts, Numbers

PROGRAM = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
TICKS = os.sysconf("SC_CLK_TCK")
FORMS = {"seqveil": "seqveil", "json": "json:v"}


def run(
    data: Path | None, messages: int = 20_000, devices: int = 10_000, kills: int = 5, after: int = 400
) -> dict[str, float]:
    if PROGRAM is None:
        print("mosquitto is not installed; nothing was measured")
        return {}
    print(f"{messages:,} messages of {devices:,} devices at QoS 1, and {kills} kills with restarts of the broker")
    found: dict[str, float] = {}
    for name, payload, command in trials():
        with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
            chain().save(Path(folder) / "m.model")
            rate, by_processor = drained(broker, command(broker), payload, messages, devices)
        print(f"  {name}: {rate:,.0f} messages/s, {by_processor:,.0f} per second of processor time")
        found |= {f"{name} messages/s": rate, f"{name} messages/processor second": by_processor}
    verdict = kill_trials(kills, after)
    print("  " + ", ".join(f"{key} {value:,.0f}" for key, value in verdict.items()))
    return found | verdict


def kill_trials(kills: int, after: int = 400) -> dict[str, float]:
    """Half of the kills with numbers of the devices, half with numbers of the bridge."""
    found, done = Counter[str](), Kills()
    for form, count in (("seqveil", (kills + 1) // 2), ("json", kills)):
        with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
            chain().save(Path(folder) / "m.model")
            found.update(killed(broker, count, after, form, done))
    return done.figures() | found


def trials() -> Iterator[tuple[str, Callable[[int, int], bytes], Callable[[Mosquitto], list[str]]]]:
    def numbered(seq: int, value: int) -> bytes:
        return json.dumps({"seq": seq, "value": value}).encode()

    def plain(seq: int, value: int) -> bytes:
        return json.dumps({"v": value}).encode()

    yield "echo", numbered, lambda broker: [sys.executable, "-m", "benchmarks.bridge", "--echo", str(broker.port)]
    yield "bridge", numbered, lambda broker: bridge(broker, "seqveil")
    yield "bridge, unnumbered", plain, lambda broker: bridge(broker, "json")


def bridge(broker: Mosquitto, form: str) -> list[str]:
    options = ["--model", f"{broker.folder}/m.model", "--state", f"{broker.folder}/s.db", "--payload", FORMS[form]]
    command = [sys.executable, "-m", "seqveil", "bridge", "mqtt", "--begin", "--broker", f"127.0.0.1:{broker.port}"]
    KINDS[PLAIN].save(broker.folder / "policy.toml")
    return [*command, *options, "--policy", f"{broker.folder}/policy.toml"]


class Mosquitto:
    """A broker on a port of its own that keeps sessions across restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        owner = "user root\n" if os.geteuid() == 0 else ""
        limits = "max_queued_messages 0\nmax_inflight_messages 1000\nset_tcp_nodelay true\n"
        kept = f"persistence true\npersistence_location {folder}/\nallow_anonymous true\n"
        (folder / "conf").write_text(f"{owner}listener {self.port} 127.0.0.1\n{limits}{kept}")

    def __enter__(self) -> Mosquitto:
        assert PROGRAM is not None
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([PROGRAM, "-c", self.folder / "conf"], **quiet)
        for _ in range(500):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            time.sleep(0.02)
        raise RuntimeError("mosquitto does not answer")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def restart(self) -> None:
        self.__exit__()
        self.__enter__()


def client(port: int, name: str, topic: str | None = None, got: list[Any] | None = None) -> Any:
    """A client whose session outlives its connections; what it subscribed to is in `got`, with the time."""
    from paho.mqtt import client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    made.max_inflight_messages_set(1000)
    made.reconnect_delay_set(1, 1)
    if got is not None:
        made.on_message = lambda _, __, message: got.append((time.perf_counter(), message.topic, message.payload))
        made.on_connect = lambda connected, *_: connected.subscribe(topic, qos=1)
    kept = Properties(PacketTypes.CONNECT)
    kept.SessionExpiryInterval = 3600
    made.connect("127.0.0.1", port, clean_start=False, properties=kept)
    made.loop_start()
    time.sleep(0.5)
    return made


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A client at work, from when the broker knows it."""
    with subprocess.Popen(command, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if b"subscribed" in line:
                break
        else:
            raise RuntimeError("the client ended at once")
        yield running
        running.kill()


def drained(
    broker: Mosquitto, command: list[str], payload: Callable[[int, int], bytes], messages: int, devices: int
) -> tuple[float, float]:
    """How fast a client takes what waits for it, by the clock and by its own processor time."""
    got: list[tuple[float, str, bytes]] = []
    with started(command):
        pass  # from now on the broker queues for it
    device, chance = client(broker.port, "device"), random.Random(4)
    sent = [
        device.publish(f"raw/d{k % devices}", payload(k // devices, chance.randrange(SYMBOLS)), qos=1)
        for k in range(messages)
    ]
    for one in sent:
        one.wait_for_publish()
    receiver = client(broker.port, "receiver", "released/+", got)
    with started(command) as running:
        while len(got) < messages // 10:
            time.sleep(0.001)
        first, begun, before = len(got), time.perf_counter(), processor(running.pid)
        while len(got) < messages:
            time.sleep(0.005)
        seconds, used = got[messages - 1][0] - begun, processor(running.pid) - before
    for each in (device, receiver):
        each.disconnect()
        each.loop_stop()
    return (messages - first) / seconds, (messages - first) / used


def processor(pid: int) -> float:
    """Seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def killed(broker: Mosquitto, kills: int, after: int, form: str, done: Kills) -> dict[str, int]:
    """Kill the bridge until there are so many kills, and now and then restart the broker; then count what differs.

    The broker has confirmed all that was sent before it is restarted: what a device sends again, as it was not
    confirmed, may overtake what it follows, and without a number is an event of its own.
    """
    got: list[tuple[float, str, bytes]] = []
    device, chance, confirmed = client(broker.port, "device"), random.Random(5), set[int]()
    device.on_publish = lambda _client, _data, number, *_: confirmed.add(number)
    receiver, users, sent, restarts = client(broker.port, "receiver", "released/+", got), 50, list[int](), 0
    command = bridge(broker, form)
    with started(command):
        pass  # from now on the broker queues for it
    while done.hits < kills:
        before, under_way, begun = len(got), set[int](), time.monotonic()
        early, wanted = chance.random() < 0.2, before + chance.randrange(1, after)
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(after):
            k, value = len(sent), chance.randrange(SYMBOLS)
            payload = {"v": value} if form == "json" else {"seq": k // users, "value": value}
            under_way.add(device.publish(f"raw/d{k % users}", json.dumps(payload), qos=1).mid)
            sent.append(value)
        end = begun + (chance.random() * 3 if early else 60)
        while (early or len(got) < wanted) and time.monotonic() < end and running.poll() is None:
            time.sleep(0.001)
        done.kill(running, len(got) == before, time.monotonic() - begun)
        while not confirmed.issuperset(under_way):
            time.sleep(0.01)
        if done.hits % 5 == 4:
            restarts += 1
            broker.restart()
    with started(command):
        seen, end = len(got), time.monotonic() + 60
        while len(by_number(got, form)) < len(sent) and time.monotonic() < end:
            time.sleep(0.5)
            if len(got) > seen:  # only where nothing at all comes for a minute is the rest lost
                seen, end = len(got), time.monotonic() + 60
        time.sleep(1.0)  # for what should not come
    disclosed = by_number(got, form)
    for each in (device, receiver):
        each.disconnect()
        each.loop_stop()
    places = [(f"d{k % users}", k // users) for k in range(len(sent))]
    lost = [(user, seq) for user, seq in places if (f"released/{user}", seq) not in disclosed]
    said = [json.loads(next(iter(disclosed.get((f"released/{user}", seq), ['{"value": -9}'])))) for user, seq in places]
    codes = np.array([one["v" if form == "json" and "v" in one else "value"] for one in said])
    return {
        "restarts": restarts,
        "sent": len(sent),
        "lost": len(lost),
        "stalled": len({user for user, _ in lost}),
        "drawn twice": sum(len(payloads) > 1 for payloads in disclosed.values()) + max(0, len(disclosed) - len(sent)),
        **judged(
            broker.folder / "s.db", KINDS[PLAIN].on(chain()), [user for user, _ in places], np.array(sent), codes, None
        ),
    }


def by_number(got: list[tuple[float, str, bytes]], form: str) -> dict[tuple[str, int], set[bytes]]:
    disclosed: dict[tuple[str, int], set[bytes]] = {}
    for _, topic, payload in list(got):
        said = json.loads(payload)
        disclosed.setdefault((topic, (said["seqveil"] if form == "json" else said)["seq"]), set()).add(payload)
    return disclosed


class Echo:
    """In place of the core: what the link asks it for, and nothing is released."""

    def __init__(self) -> None:
        self.counts, self.numbers = BridgeCounts(), Numbers(CodeStreams(Policy(epsilon=1.0).on(chain())), "echo")

    def log(self, event: str, details: dict[str, object]) -> None:
        print(event, file=sys.stderr, flush=True)

    warn = print


def echo(port: int) -> None:
    """Publish each payload as it came, and acknowledge it after the broker has it."""
    from seqveil.interfaces.bridge.mqtt import Broker, MqttLink, Topics

    link = MqttLink(Broker("127.0.0.1", port), Topics("raw/{user}", "released/{user}"))
    link.open(Echo())
    while True:
        messages = link.receive(1.0)
        for message in messages:
            link.release(message, message.user, message.payload)
        link.settle(messages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bridge", description=__doc__)
    parser.add_argument("--echo", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    chosen = parser.parse_args()
    if chosen.echo is not None:
        echo(chosen.echo)
    else:
        run(None, chosen.messages, chosen.devices, chosen.kills)
