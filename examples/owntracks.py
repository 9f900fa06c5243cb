"""A day of OwnTracks through the bridge: where a phone was, and what a friend who gets the releases sees of it.

    python examples/owntracks.py --broker localhost:1883 --out day.png

The day is generated, in the shape that OwnTracks publishes. The town's clinic is declared secret: whoever gets the
releases can hardly tell whether the phone was there on this day or that. The clinic is the same for everyone, so that
its place may be public, as a declaration is. The picture has the way of the phone, and what was released of it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from paho.mqtt import client as paho

import seqveil as sv
from seqveil.core.geography import DEGREE, Cells
from seqveil.core.model import MarkovModel
from seqveil.engine.stream import Terms
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.core import Core
from seqveil.interfaces.bridge.mqtt import Broker, MqttLink, Topics
from seqveil.interfaces.bridge.payloads import Form, Payloads

WEST, EAST, SOUTH, NORTH = 8.38, 8.42, 49.00, 49.02  # a town, in degrees
HOME, WORK, SHOP, PARK = (8.3875, 49.005), (8.4125, 49.0150), (8.4025, 49.0083), (8.3925, 49.0150)
CLINIC, RADIUS = (8.4125, 49.005), 300.0  # metres around it
NARROW = math.cos(math.radians(SOUTH))  # a degree of longitude in degrees of latitude
QUARTER = 900  # seconds between two messages
MIDNIGHT = 1_700_006_400


def a_day(rng: np.random.Generator) -> list[tuple[float, float]]:
    """Where somebody is, each quarter of an hour: home, work, perhaps other places, and home again."""
    plan = [(HOME, 7 * 4 + rng.integers(0, 5)), (WORK, 8 * 4 + rng.integers(-4, 5))]
    plan += [(place, rng.integers(2, 7)) for place in (SHOP, CLINIC, PARK) if rng.random() < 0.5]
    way: list[tuple[float, float]] = []
    for (here, stay), (there, _) in zip(plan, [*plan[1:], (HOME, 0)], strict=True):
        way += [here] * int(stay) + [_between(here, there, part) for part in (0.33, 0.67)]
    way = (way + [HOME] * 96)[:96]
    return [(x + rng.normal(0, 0.0004), y + rng.normal(0, 0.0003)) for x, y in way]


def _between(here: tuple[float, float], there: tuple[float, float], part: float) -> tuple[float, float]:
    return here[0] + part * (there[0] - here[0]), here[1] + part * (there[1] - here[1])


def setting_of(epsilon: float) -> Terms:
    """What is released: cells of the map, the clinic kept secret; the model is that of many other people's days."""
    cells = Cells(400, (SOUTH, NORTH, WEST, EAST), on_unknown="nearest")
    rng = np.random.default_rng(1)
    days = [[(lat, lon) for lon, lat in a_day(rng)] for _ in range(200)]
    clinic = sv.secrets.zone(centre=CLINIC[::-1], radius=RADIUS, epsilon=epsilon, window=96)
    return sv.Policy(secrets=clinic, distortion="metres").on(MarkovModel.fit(days, alphabet=cells))


def messages(way: list[tuple[float, float]]) -> list[bytes]:
    """The day as OwnTracks publishes it."""
    shape = {"_type": "location", "tid": "an", "acc": 15, "batt": 80, "conn": "m", "t": "t"}
    return [
        json.dumps(shape | {"lon": round(x, 6), "lat": round(y, 6), "tst": MIDNIGHT + k * QUARTER}).encode()
        for k, (x, y) in enumerate(way)
    ]


def through_the_bridge(broker: Broker, setting: Terms, sent: list[bytes], state: Path) -> list[dict[str, float]]:
    """Publish the day as the phone does, and collect what a friend gets."""
    payloads = Payloads(setting, Form.parse("owntracks"))
    link = MqttLink(broker, Topics("owntracks/{user}/phone", "friends/{user}/phone"))
    got: dict[int, dict[str, float]] = {}
    with CodeStreams.open(state, setting) as store:
        bridge = Core(store, payloads, link)
        working = threading.Thread(target=bridge.run)
        working.start()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.on_message = lambda _, __, message: _keep(got, message.payload)
        client.connect(broker.host, broker.port)
        client.subscribe("friends/ann/phone", qos=1)
        client.loop_start()
        time.sleep(1.0)  # until the broker knows both
        for payload in sent:
            client.publish("owntracks/ann/phone", payload, qos=1, retain=True)  # OwnTracks retains
        end = time.monotonic() + 60
        while len(got) < len(sent) and time.monotonic() < end:
            time.sleep(0.05)
        link.stop()
        working.join()
        client.disconnect()
        client.loop_stop()
        [total] = store.secrets()
    print(f"sent {len(sent)} locations, a friend got {len(got)}")
    moved = f"its log odds moved by at most {total.log_odds_worst:.3f}, promised {total.epsilon:.3f}"
    print(f"the clinic on each day: {moved}")
    return [got[seq] for seq in sorted(got)]


def _keep(got: dict[int, dict[str, float]], payload: bytes) -> None:
    location = json.loads(payload)
    got[location["seqveil"]["seq"]] = location


def draw(way: list[tuple[float, float]], seen: list[dict[str, float]], out: Path) -> None:
    """Two plain maps: the way of the phone, and what a friend sees."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    rng = np.random.default_rng(0)
    released = [(one["lon"] + rng.normal(0, 0.0004), one["lat"] + rng.normal(0, 0.0003)) for one in seen]
    for axes, points, title in zip(
        figure.subplots(1, 2, sharex=True, sharey=True),
        (way, released),
        ("where the phone was", "what a friend sees"),
        strict=True,
    ):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color="0.8", linewidth=0.8)
        shown = axes.scatter(x, y, c=np.arange(len(x)) / 4, cmap="viridis", s=18)
        angle = np.linspace(0, 2 * math.pi, 90)
        wide, high = np.cos(angle) / NARROW, np.sin(angle)
        axes.plot(CLINIC[0] + RADIUS / DEGREE * wide, CLINIC[1] + RADIUS / DEGREE * high, color="crimson")
        axes.annotate("clinic", CLINIC, color="crimson", ha="center")
        axes.set(title=title, xlim=(WEST, EAST), ylim=(SOUTH, NORTH), xlabel="longitude")
        axes.grid(color="0.92")
        axes.set_aspect(1 / NARROW)
    figure.colorbar(shown, ax=axes, label="hour of the day")
    figure.savefig(out, dpi=110)


def main() -> None:
    """Run the day."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--broker", default="localhost:1883")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the secret, for each day")
    parser.add_argument("--out", type=Path, default=Path("day.png"))
    given = parser.parse_args()
    way = a_day(np.random.default_rng(10))
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.at(given.broker, "owntracks-example")
        seen = through_the_bridge(broker, setting_of(given.epsilon), messages(way), Path(folder) / "state.db")
    shown, truly = (
        [math.hypot((lon - CLINIC[0]) * NARROW, lat - CLINIC[1]) * DEGREE <= RADIUS for lon, lat in points]
        for points in ([(one["lon"], one["lat"]) for one in seen], way)
    )
    print(f"at the clinic in {np.mean(truly):.0%} of the day, and in {np.mean(shown):.0%} of what a friend sees")
    draw(way, seen, given.out)
    print(f"drawn to {given.out}")


if __name__ == "__main__":
    main()
