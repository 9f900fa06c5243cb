"""The command itself at a real Mosquitto: killed, asked to end, with TLS, passwords and the ACL of the docs."""

import json
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import mosquitto
from bridges import SECRET, VALUES, Place, alone, chain, event, published, setting_of, some_events
from mosquitto import Client, needed, until
from policies import promise
from seqveil.engine.coded import CodeStreams
from seqveil.interfaces.mqtt import Topics
from seqveil.interfaces.payloads import Form

DOCS = Path(__file__).parent.parent / "docs" / "mqtt.md"


def command(place, *more):
    model = place.folder / "m.model"
    if not model.exists():
        chain().save(model)
    topics = ("--raw", place.topics.raw, "--released", place.topics.released, "--errors", place.topics.errors)
    return [
        *(sys.executable, "-m", "seqveil", "bridge", "mqtt", "--broker", place.mosquitto.address, "--model", model),
        *(*promise(epsilon=1, mechanism="balanced"), "--state", place.state, "--client-id", f"{place.name}-bridge"),
        *("--begin", *topics, *more),
    ]


@contextmanager
def process(place, *more, env=None):
    """The real command, with its log in a file."""
    with open(place.folder / "log", "ab") as log:
        running = subprocess.Popen(command(place, *more), stdout=subprocess.PIPE, stderr=log, env=env)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def meet(place, running):
    """Wait until the broker knows the bridge: from then on it queues."""
    until(lambda: running.poll() is not None or "subscribed" in (place.folder / "log").read_text())
    assert running.poll() is None


def log_lines(place):
    return [json.loads(line) for line in (place.folder / "log").read_text().splitlines()]


@mosquitto.needed
def test_five_kills_lose_nothing_and_change_nothing(bridged):
    events, chance = some_events(users=20, each=150), random.Random(6)
    device, receiver = bridged.device(), bridged.receiver()
    sent = iter(events)

    def some_more(count):
        for user, seq, value in (one for _, one in zip(range(count), sent, strict=False)):
            device.send(bridged.raw(user), event(seq, value, note=SECRET))

    for _ in range(5):
        with process(bridged) as running:
            meet(bridged, running)
            before, enough = len(receiver.got), chance.randrange(1, 300)
            some_more(550)
            until(lambda: len(receiver.got) - before >= enough or running.poll() is not None)  # noqa: B023
            running.send_signal(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
    some_more(len(events))
    with process(bridged, "--json") as running:
        until(lambda: len(published(receiver)) == len(events))
        running.send_signal(signal.SIGTERM)
        counts = json.loads(running.stdout.read())
        assert running.wait() == 0
    disclosed = published(receiver)
    assert set(disclosed) == {(user, seq) for user, seq, _ in events}
    assert all(len(set(payloads)) == 1 for payloads in disclosed.values())
    assert counts["repeated"] + counts["released"] == counts["acknowledged"] == counts["received"]
    alphabet = chain().alphabet
    with CodeStreams.open(bridged.state, setting_of()) as store:
        for user in {user for user, _, _ in events}:
            stored = [alphabet.decode_one(one.code) for one in store.releases(user)]
            assert stored == [json.loads(disclosed[user, seq][0])["value"] for seq in range(150)]
            assert store.account(user).releases == 150
    files = b"".join(path.read_bytes() for path in bridged.folder.glob("state.db*"))
    assert b"zq-" not in files + (bridged.folder / "log").read_bytes()
    assert "user 1" not in (bridged.folder / "log").read_text()
    assert [line["event"] for line in log_lines(bridged)].count("order") == 6  # once in each run


def make_certificates(folder):
    """An authority, and a certificate of localhost signed by it."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = [*make.split(), "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "ca.pem"


@pytest.fixture
def guarded(tmp_path):
    """A broker with TLS, passwords and the ACL of the docs, for the topics raw/…, released/… and errors/…."""
    authority = make_certificates(tmp_path)
    acl, users = tmp_path / "acl", tmp_path / "users"
    acl.write_text(re.search(r"```text\n(# ACL.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1])
    users.write_text("".join(f"{name}:pw-{name}-77\n" for name in ("bridge", "ann", "bob", "dashboard")))
    for path in (acl, users):
        path.chmod(0o600)
    subprocess.run(["mosquitto_passwd", "-U", users], check=True)
    lines = (f"acl_file {acl}", f"password_file {users}", f"certfile {authority}", f"keyfile {tmp_path / 'key.pem'}")
    with mosquitto.broker(tmp_path, *lines, anonymous=False) as running:
        place = Place(running, tmp_path, "guarded")
        place.topics, place.authority = Topics("raw/{user}", "released/{user}", "errors/{user}"), authority
        running.address = f"localhost:{running.port}"
        yield place


@mosquitto.needed
@pytest.mark.skipif(not mosquitto.found("openssl", "mosquitto_passwd"), reason="needs openssl and mosquitto_passwd")
def test_tls_passwords_and_the_acl_of_the_docs(guarded):
    place, context = guarded, ssl.create_default_context(cafile=guarded.authority)

    def client(name, topic=None):
        return Client(place.mosquitto.port, name, topic, (name, f"pw-{name}-77"), context)

    ann, bob, dashboard = client("ann", "errors/ann"), client("bob", "raw/#"), client("dashboard", "released/#")
    secure = ("--ca", place.authority, "--username", "bridge")
    env = os.environ | {"SEQVEIL_MQTT_PASSWORD": "pw-bridge-77"}
    with process(place, *secure, "--json", env=env) as running:
        meet(place, running)
        assert ann.send_all([("raw/ann", event(0, VALUES[0])), ("raw/bob", event(0, VALUES[0]))]) == [True, False]
        assert dashboard.send_all([("released/ann", b"forged"), ("raw/ann", event(1, VALUES[0]))]) == [False, False]
        until(lambda: dashboard.got)
        ann.send_all([("raw/ann", event(9, VALUES[0])), ("raw/ann", event(1, VALUES[0]))])
        until(lambda: ann.got and len(set(dashboard.got)) == 2)
        running.send_signal(signal.SIGINT)
        assert json.loads(running.stdout.read())["refused"] == {"order": 1}
        assert running.wait() == 0
    assert {(topic, json.loads(payload)["seq"]) for topic, payload in dashboard.got} == {
        ("released/ann", 0),
        ("released/ann", 1),
    }
    assert json.loads(ann.got[0][1])["next"] == 1
    assert bob.got == []  # nobody but the bridge reads raw data
    for each in (ann, bob, dashboard):
        each.close()
    wrong = place.folder / "password"
    wrong.write_text("pw-wrong-77\n")
    for options, text in (((*secure, "--password-file", wrong), "refuses the bridge"), (("--tls",), None)):
        with process(place, *options, env=env) as running:
            if text is None:  # the system's authorities do not know this one
                until(lambda: any(line["event"] == "cannot connect" for line in log_lines(place)))
                running.send_signal(signal.SIGTERM)
                assert running.wait() == 0
            else:
                assert running.wait() == 2
                assert text in (place.folder / "log").read_text().splitlines()[-1]
                (place.folder / "log").write_text("")
    assert "pw-" not in (place.folder / "log").read_text()


EVENTS = 6


def saved(place):
    """Have the broker write its queue down, as it does now and then."""
    file, before = place.folder / "broker" / "mosquitto.db", time.time_ns()
    os.kill(place.mosquitto._process.pid, signal.SIGUSR1)
    until(lambda: file.exists() and file.stat().st_mtime_ns >= before - 10**9)


def crash(mosquitto):
    mosquitto._process.kill()
    mosquitto._process.wait()
    mosquitto.start()


@pytest.mark.slow
@needed
@pytest.mark.parametrize(("form", "drawn"), [("seqveil", EVENTS), ("timed", EVENTS), ("plain", 2 * EVENTS)])
def test_what_waited_at_the_last_save_comes_again(tmp_path, form, drawn):
    now = time.time()
    plain = [json.dumps({"v": VALUES[k % 3], "t": now - EVENTS + k}).encode() for k in range(EVENTS)]
    payloads = [event(k, VALUES[k % 3]) for k in range(EVENTS)] if form == "seqveil" else plain
    parsed = {"seqveil": Form(), "timed": Form.parse("json:v", time="t"), "plain": Form.parse("json:v")}[form]
    with alone(tmp_path) as place:
        with place.bridge(form=parsed):
            pass  # from now on the broker queues for it
        assert all(place.device().send_all([(place.raw("ann"), payload) for payload in payloads]))
        saved(place)
        with place.bridge(form=parsed) as bridge:
            until(lambda: bridge.counts.acknowledged == EVENTS)
            crash(place.mosquitto)
            until(lambda: bridge.counts.acknowledged == 2 * EVENTS)
        assert bridge.counts.released == drawn
