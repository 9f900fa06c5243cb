"""The recipe of docs/bridges.md with Home Assistant itself: a raw sensor and a phone go in, guarded ones appear.

Home Assistant pins its own versions of everything, so it lives in an environment of its own:

    python3.11 -m venv hass && hass/bin/pip install homeassistant==2024.3.3 paho-mqtt==1.6.1
    SEQVEIL_HASS=hass/bin/hass pytest -m homeassistant
"""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

import mosquitto
from bridges import at_work, town
from mosquitto import Client, until
from seqveil.core.alphabet import Grid
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import zone
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.core import Core
from seqveil.interfaces.bridge.homeassistant import Discovery
from seqveil.interfaces.bridge.mqtt import Broker, MqttLink, Topics
from seqveil.interfaces.bridge.payloads import Form, Payloads

HASS = os.environ.get("SEQVEIL_HASS") or shutil.which("hass")

pytestmark = [
    pytest.mark.homeassistant,
    pytest.mark.skipif(HASS is None or mosquitto.PROGRAM is None, reason="needs Home Assistant and mosquitto"),
]

CONFIGURATION = """
homeassistant:
  name: Test
mqtt_statestream:
  base_topic: states
  publish_attributes: true
"""


@contextmanager
def home_assistant(folder, port):
    """Home Assistant with its MQTT integration at this broker, until it is connected."""
    (folder / ".storage").mkdir(parents=True)
    (folder / "configuration.yaml").write_text(CONFIGURATION)
    broker = {"broker": "127.0.0.1", "port": port, "discovery": True, "discovery_prefix": "homeassistant"}
    entry = {"entry_id": "a" * 32, "version": 1, "minor_version": 1, "domain": "mqtt", "title": "broker"}
    entry |= {"data": broker, "options": {}, "source": "user", "unique_id": None, "disabled_by": None}
    entry |= {"pref_disable_new_entities": False, "pref_disable_polling": False}
    stored = {"version": 1, "minor_version": 1, "key": "core.config_entries", "data": {"entries": [entry]}}
    (folder / ".storage" / "core.config_entries").write_text(json.dumps(stored))
    with open(folder / "log", "wb") as log:
        running = subprocess.Popen([HASS, "-c", folder], stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(60)


@contextmanager
def bridge(port, name, setting, patterns, form, folder):
    """A bridge that tells Home Assistant of what it releases."""
    parsed = Form.parse(form)
    topics = Topics(*patterns, discovery=Discovery("homeassistant", parsed))
    with CodeStreams.open(folder / f"{name}.db", setting) as store:
        link = MqttLink(Broker("127.0.0.1", port, name), topics, parsed.own)
        with at_work(Core(store, Payloads(setting, parsed), link)) as core:
            yield core


def test_a_raw_sensor_and_a_phone_go_in_and_guarded_ones_appear(tmp_path):
    motion = Policy(epsilon=1.0, mechanism="balanced").on(
        MarkovModel.fit([["on", "off", "off", "on", "off"]], smoothing=1.0)
    )
    home = zone(centre=(8.15, 49.05), radius=0.06, epsilon=1.0, window=4)
    places = Policy(secrets=home, mechanism="guarded", distortion="euclidean").on(town())
    rooms = ("states/binary_sensor/{user}/state", "guarded/{user}", "errors/{user}")
    phones = ("owntracks/{user}/phone", "friends/{user}/phone")
    with mosquitto.broker(tmp_path) as running:
        tracker = Client(running.port, "tracker", "states/#")
        device = Client(running.port, "device")
        raw = {"name": "motion", "unique_id": "m1", "object_id": "hall_motion", "state_topic": "zigbee2mqtt/hall"}
        raw |= {"value_template": "{{ 'ON' if value_json.occupancy else 'OFF' }}"}
        device.send_all([("homeassistant/binary_sensor/hall/config", json.dumps(raw).encode(), 1, True)])
        with (
            home_assistant(tmp_path / "hass", running.port),
            bridge(running.port, "rooms", motion, rooms, "value", tmp_path) as guarding,
            bridge(running.port, "phones", places, phones, "owntracks", tmp_path),
        ):

            def last(start, end):
                found = [payload for topic, payload in tracker.got if topic.startswith(start) and topic.endswith(end)]
                return found[-1].decode() if found else None

            until(lambda: last("states/binary_sensor/hall_motion", "/state"), 240)  # the raw sensor is there
            for turn in range(20):
                device.send_all(
                    [("zigbee2mqtt/hall", json.dumps({"occupancy": turn % 2 == 0, "battery": 90}).encode())]
                )
                place = {"_type": "location", "lat": 49.05, "lon": 8.15, "tid": "an"}
                place["tst"] = int(time.time()) - 100 + turn
                device.send_all([("owntracks/ann/phone", json.dumps(place).encode(), 1, True)])
                time.sleep(0.2)
            until(lambda: guarding.counts.released >= 10, 60)
            until(lambda: last("states/sensor/seqveil_hall_motion", "/state") in ("on", "off"), 60)
            until(lambda: last("states/device_tracker/seqveil_ann", "/latitude"), 60)
            latitude = float(last("states/device_tracker/seqveil_ann", "/latitude"))
            assert any(abs(latitude - y) < 1e-9 for y in Grid.regular(4, 3, (8.0, 8.4, 49.0, 49.3)).y.points)
            assert last("states/device_tracker/seqveil_ann", "/seq") is not None  # its account
        for client in (tracker, device):
            client.close()
    assert guarding.counts.refused == {}
