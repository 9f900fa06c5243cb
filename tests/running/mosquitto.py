"""A real Mosquitto for tests, and the devices and receivers around it."""

import inspect
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PROGRAM = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
MISSING = "mosquitto is not installed (Debian: apt-get install mosquitto)"


def needed(test):
    """Marks a test that needs the broker, and skips it where there is none."""
    return pytest.mark.broker(pytest.mark.skipif(PROGRAM is None, reason=MISSING)(test))


PATIENCE = 240.0  # seconds: on a busy machine with nothing compiled yet a first release takes minutes


def until(condition, seconds=PATIENCE):
    """Wait until the condition holds; what it gives is returned."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {inspect.getsource(condition).strip()}"
        time.sleep(0.01)
    return found


@contextmanager
def ended(command, **how):
    """A process that does not outlive the block, or a test that fails would wait for it forever."""
    with subprocess.Popen(command, **how) as process:
        try:
            yield process
        finally:
            process.kill()


class Mosquitto:
    """A broker on a port of its own that keeps sessions across restarts."""

    def __init__(self, folder, *lines, anonymous=True):
        self.folder, self._process = folder, None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        (folder / "broker").mkdir()
        self.config = folder / "broker.conf"
        owner = ["user root"] if os.geteuid() == 0 else []  # else it would look for a user of its own
        lines = (
            *owner,
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {str(anonymous).lower()}",
            "persistence true",
            f"persistence_location {folder / 'broker'}/",
            "max_queued_messages 0",
            *lines,
        )
        self.config.write_text("\n".join(lines) + "\n")

    def start(self):
        with open(self.folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen([PROGRAM, "-c", self.config], stdout=log, stderr=log)
        until(self._answers)

    def _answers(self):
        assert self._process.poll() is None, (self.folder / "broker.log").read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def reload(self):
        self._process.send_signal(signal.SIGHUP)

    def save(self):
        """Have the broker write its queue down, as it does now and then."""
        file, before = self.folder / "broker" / "mosquitto.db", time.time_ns()
        self._process.send_signal(signal.SIGUSR1)
        until(lambda: file.exists() and file.stat().st_mtime_ns >= before - 10**9)

    def crash(self):
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self):
        self._process.terminate()
        self._process.wait()


@contextmanager
def broker(folder, *lines, **options):
    made = Mosquitto(folder, *lines, **options)
    made.start()
    try:
        yield made
    finally:
        made.stop()


class Client:
    """Publishes, and collects what it subscribed to, in a session that outlives its connections."""

    def __init__(self, port, name, topic=None, login=None, tls=None):
        self.got, self._topic, self.unconfirmed, self.codes = [], topic, set(), {}
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        if login:
            self._client.username_pw_set(*login)
        if tls:
            self._client.tls_set_context(tls)
        self._ready = topic is None
        self._client.on_connect = self._subscribe
        self._client.on_subscribe = lambda *_: setattr(self, "_ready", True)
        self._client.on_message = lambda client, data, message: self.got.append((message.topic, message.payload))
        self._client.on_publish = lambda client, data, mid, code, _: self.codes.__setitem__(mid, code)
        self._client.reconnect_delay_set(1, 1)
        kept = Properties(PacketTypes.CONNECT)
        kept.SessionExpiryInterval = 3600
        host = "localhost" if tls else "127.0.0.1"
        self._client.connect(host, port, clean_start=False, properties=kept)
        self._client.loop_start()
        until(lambda: self._client.is_connected() and self._ready)

    def _subscribe(self, client, *_):
        if self._topic is not None:
            client.subscribe(self._topic, qos=1)

    def send_all(self, messages):
        """Send these, each with its QoS and whether to retain it, and wait until the broker has them: which it took."""
        mids = [self._client.publish(topic, payload, *(how or [1])).mid for topic, payload, *how in messages]
        until(lambda: all(mid in self.codes for mid in mids))
        return [not self.codes[mid].is_failure for mid in mids]

    def close(self):
        self._client.disconnect()
        self._client.loop_stop()
        del self._client  # which closes what it wakes itself up with


def found(*programs):
    return all(shutil.which(program) for program in programs)
