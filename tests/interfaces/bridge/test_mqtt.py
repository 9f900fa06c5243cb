"""The bridge at a real Mosquitto: each event released once, whatever is repeated, malformed, refused or cut."""

import json
import random
import re
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

import mosquitto
from bridges import SECRET, VALUES, Place, alone, by_number, chain, event, setting_of, some_events
from mosquitto import PATIENCE, Client, until
from reference import streams as ref
from seqveil.core.randomness import key_file
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.bridge.mqtt import Topics
from seqveil.interfaces.bridge.payloads import REASONS, Discovery, Form
from served import salt_of

DOCS = Path(__file__).parents[3] / "docs" / "bridges.md"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with mosquitto.broker(tmp_path_factory.mktemp("mosquitto")) as running:
        yield running


@pytest.fixture
def place(shared, tmp_path, request):
    made = Place(shared, tmp_path, request.node.name)
    yield made
    made.close()


def send(place, device, events):
    assert all(device.send_all([(place.raw(user), event(seq, value)) for user, seq, value in events]))


BLOCKS = Policy(epsilon=5.0, block=5)


@mosquitto.needed
@pytest.mark.parametrize("form", ["json:v", "blocks"])
def test_kills_and_restarts_of_the_broker_lose_nothing_and_change_nothing(bridged, form):
    """Without numbers, as many equal values as different ones: only the broker's own names tell messages apart.

    Killed within blocks, all is released as by a run that is not cut.
    """
    events, chance, key = some_events(users=20, each=120), random.Random(6), ()
    if in_blocks := form == "blocks":
        BLOCKS.save(bridged.folder / "policy.toml")
        form, key = "seqveil", ("--key", bridged.folder / "key")
    device, receiver = bridged.device(), bridged.receiver()

    def sent(some):
        contents = [{"seq": seq, "value": v} if form == "seqveil" else {"v": v} for _, seq, v in some]
        payloads = [json.dumps(content | {"note": SECRET}).encode() for content in contents]
        return [(bridged.raw(user), payload) for (user, *_), payload in zip(some, payloads, strict=True)]

    for kill in range(5):
        (bridged.folder / "log").write_text("")
        with bridged.process("--payload", form, *key) as running:
            bridged.meet(running)
            before, enough = len(receiver.got), chance.randrange(1, 250)
            device.send_all(sent(events[kill * 400 : kill * 400 + 400]))
            until(lambda: len(receiver.got) - before >= enough)  # noqa: B023
            if kill == 2:
                bridged.mosquitto.stop()
                bridged.mosquitto.start()
            running.send_signal(signal.SIGKILL)
            assert running.wait(PATIENCE) == -signal.SIGKILL
    device.send_all(sent(events[2000:]))
    with bridged.process("--payload", form, "--metrics", "0", *key) as running:
        until(lambda: len(by_number(receiver.got)) == len(events))
        port = re.search(r'"metrics", "port": (\d+)', bridged.said())[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            figures = answer.read().decode()
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0
        counts = json.loads(bridged.said().splitlines()[-1])
    disclosed = by_number(receiver.got)
    assert set(disclosed) == {(user, seq) for user, seq, _ in events}
    assert all(len(set(payloads)) == 1 for payloads in disclosed.values())
    assert counts["repeated"] + counts["released"] == counts["acknowledged"] == counts["received"]
    assert f"seqveil_bridge_released_total {counts['released']}.0" in figures
    alphabet = chain().alphabet
    secret = key_file(key[1]) if in_blocks else None
    terms = BLOCKS.on(chain()) if in_blocks else setting_of()
    with CodeStreams.open(bridged.state, terms, key=secret) as store:
        for user in {user for user, _, _ in events}:
            codes = [one.code for one in store.releases(user)]
            if in_blocks:
                own = [value for name, _, value in events if name == user]
                whole = ref.twin(terms, salt_of(bridged.state), secret).release([user] * 120, alphabet.encode(own))
                assert codes == whole.codes.tolist()
            stored = [alphabet.decode([code])[0] for code in codes]
            shown = [json.loads(disclosed[user, seq][0]) for seq in range(120)]
            assert stored == [one["value"] if form == "seqveil" else one["v"] for one in shown]
    files = b"".join(path.read_bytes() for path in bridged.folder.glob(f"{bridged.state.name}*"))
    assert b"zq-" not in files + (bridged.folder / "log").read_bytes() + figures.encode()
    assert "user 1" not in bridged.said() + figures


BAD = {
    SECRET.encode(): "json",
    b"[" * 20_000: "json",
    b'{"seq": -1, "value": "zq-up"}': "seq",
    b'{"seq": 0}': "shape",
    b'{"seq": 0, "value": "zq-up", "value": "zq-down"}': "json",
    b'{"seq": 7, "value": "zq-up"}': "order",
    b'{"seq": 0, "value": "' + SECRET.encode() * 6000 + b'"}': "size",
}


@mosquitto.needed
def test_what_cannot_be_released_is_reported_and_blocks_nothing(place):
    device, receiver, errors = place.device(), place.receiver(), place.receiver("errors")
    with place.bridge() as bridge:
        device.send_all([(place.raw("ann"), payload) for payload in BAD])
        good = [("ann", 0, VALUES[0]), ("bob", 0, SECRET), ("ann", 1, VALUES[2])]
        send(place, device, [*good, ("ann", 0, VALUES[1])])  # the last one comes again, with another value
        device.send_all([(place.raw("$ann"), event(0, VALUES[0])), (place.raw("x" * 300), event(0, VALUES[0]))])
        device.send_all([(place.raw("carl"), event(0, VALUES[0]), 0)])  # at QoS 0
        until(lambda: len(receiver.got) == 5)
        until(lambda: bridge.counts.acknowledged == len(BAD) + 6)
        assert (bridge.counts.released, bridge.counts.repeated) == (4, 1)
    assert {len(set(payloads)) for payloads in by_number(receiver.got).values()} == {1}
    disclosed = [json.loads(payload) for _, payload in errors.got]
    assert sorted(one["reason"] for one in disclosed) == sorted(BAD.values())
    assert all(one["detail"] == REASONS[one["reason"]] for one in disclosed)
    assert [(one["seq"], one["next"]) for one in disclosed if one["reason"] == "order"] == [(7, 0)]
    reasons = list(BAD.values())
    assert bridge.counts.refused == {reason: reasons.count(reason) for reason in reasons} | {"topic": 2}
    assert [line for line in place.log if line[0] == "warning" and "QoS 0" in line[1]["reason"]]
    assert SECRET not in repr(errors.got) + repr(receiver.got)
    assert not {word for word in ("zq-", "ann") if word in repr(place.log)}
    assert b"zq-" not in b"".join(path.read_bytes() for path in place.folder.glob(f"{place.state.name}*"))


@mosquitto.needed
def test_a_retained_raw_message_is_refused_and_taken_off_the_broker(place):
    device, receiver, errors = place.device(), place.receiver(), place.receiver("errors")
    device.send_all([(place.raw("ann"), event(0, VALUES[0]), 1, True)])  # before the bridge ever came
    with place.bridge() as bridge:
        until(lambda: bridge.counts.refused == {"retained": 1})
        device.send_all([(place.raw("bob"), event(0, VALUES[0]), 1, True)])  # and while it is there
        until(lambda: bridge.counts.refused == {"retained": 2})
        send(place, device, [("ann", 0, VALUES[1])])
        until(lambda: len(receiver.got) == 1)
    assert [json.loads(payload)["reason"] for _, payload in errors.got] == ["retained"] * 2
    late = place.client("late", f"{place.name}/raw/+")
    send(place, device, [("carl", 0, VALUES[0])])
    until(lambda: late.got)
    assert [topic for topic, _ in late.got] == [place.raw("carl")]  # no raw message is left for those who come later


@mosquitto.needed
def test_retained_state_is_no_event_and_live_messages_are_and_home_assistant_hears_of_them(bridged):
    form, patterns = "json:occupancy", (bridged.topics.raw, bridged.topics.released, bridged.topics.errors)
    topics = Topics(*patterns, Discovery("ha", Form.parse(form)))
    device, receiver, errors = bridged.device(), bridged.receiver(), bridged.receiver("errors")
    sent = [{"occupancy": value, "battery": 4, "note": SECRET} for value in (VALUES[0], VALUES[0], VALUES[1])]
    device.send_all([(bridged.raw("hall"), json.dumps(sent[0]).encode(), 1, True)])
    with bridged.bridge(form=form, topics=topics) as bridge:
        until(lambda: bridge.counts.states == 1)
        device.send_all([(bridged.raw("hall"), json.dumps(one).encode(), 1, True) for one in sent])
        device.send_all([(bridged.raw("hall"), b'{"linkquality": 3}'), (bridged.raw("hall"), SECRET.encode())])
        until(lambda: bridge.counts.acknowledged + 1 >= 6 and len(receiver.got) == 3)
    assert json.loads(receiver.got[0][1])["seqveil"] == {"seq": 0, "epsilon": 1.0}
    assert bridge.counts.refused == {"member": 1, "json": 1}
    assert SECRET not in repr(errors.got) + repr(receiver.got) + repr(bridged.log)
    late = bridged.client("late", "ha/#")  # the announcement is kept by the broker
    until(lambda: late.got)
    assert json.loads(late.got[0][1])["state_topic"] == f"{bridged.name}/released/hall"
    kept = bridged.client("kept", f"{bridged.name}/raw/+")
    until(lambda: kept.got)  # the state stays where it was


@mosquitto.needed
def test_two_clients_of_one_name_are_noticed(place):
    with place.bridge():
        other = Client(place.mosquitto.port, f"{place.name}-bridge")  # they take turns; this broker does not say why
        until(lambda: any(name == "warning" and "client id" in said["reason"] for name, said in place.log))
    other.send_all([("alone", b"")])  # connected for good, so that nothing is left open
    other.close()


@mosquitto.needed
def test_a_release_that_the_broker_refuses_is_not_acknowledged(tmp_path):
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\n" + "topic deny t-denied/released/#\n")
    acl.chmod(0o600)
    with mosquitto.broker(tmp_path, f"acl_file {acl}") as running:
        place = Place(running, tmp_path, "-denied")
        device, receiver = place.device(), place.receiver()
        with place.bridge() as bridge:
            send(place, device, [("ann", 0, VALUES[0])])
            until(lambda: bridge.failures)
            assert "check its ACL" in str(bridge.failures.pop())
        acl.write_text("topic readwrite #\n")
        running.reload()
        with place.bridge() as bridge:
            until(lambda: receiver.got)
            assert (bridge.counts.released, bridge.counts.repeated) == (0, 1)
        place.close()


@pytest.fixture
def guarded(tmp_path):
    """A broker with TLS, passwords and the ACL of the docs, for the topics raw/…, released/… and errors/…."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = [*make.split(), "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    authority = tmp_path / "ca.pem"
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
        running.address = f"mqtts://bridge@localhost:{running.port}"
        yield place


@mosquitto.needed
@pytest.mark.skipif(not mosquitto.found("openssl", "mosquitto_passwd"), reason="needs openssl and mosquitto_passwd")
def test_tls_passwords_and_the_acl_of_the_docs(guarded):
    place, context = guarded, ssl.create_default_context(cafile=guarded.authority)

    def client(name, topic=None):
        return Client(place.mosquitto.port, name, topic, (name, f"pw-{name}-77"), context)

    ann, bob, dashboard = client("ann", "errors/ann"), client("bob", "raw/#"), client("dashboard", "released/#")
    (place.folder / "password").write_text("pw-bridge-77\n")
    password = ("--password-file", place.folder / "password")
    with place.process("--ca", place.authority, *password) as running:
        place.meet(running)
        assert ann.send_all([("raw/ann", event(0, VALUES[0])), ("raw/bob", event(0, VALUES[0]))]) == [True, False]
        assert dashboard.send_all([("released/ann", b"forged"), ("raw/ann", event(1, VALUES[0]))]) == [False, False]
        until(lambda: dashboard.got)
        ann.send_all([("raw/ann", event(9, VALUES[0])), ("raw/ann", event(1, VALUES[0]))])
        until(lambda: ann.got and len(set(dashboard.got)) == 2)
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == 0
    assert {(topic, json.loads(payload)["seq"]) for topic, payload in dashboard.got} == {
        ("released/ann", 0),
        ("released/ann", 1),
    }
    assert json.loads(ann.got[0][1])["next"] == 1
    assert bob.got == []  # nobody but the bridge reads raw data
    for each in (ann, bob, dashboard):
        each.close()
    (place.folder / "password").write_text("pw-wrong-77\n")
    with place.process("--ca", place.authority, *password) as running:
        assert running.wait(PATIENCE) == 2
        assert "refuses the bridge" in place.said().splitlines()[-1]
    with place.process(*password) as running:  # the system's authorities do not know this one
        until(lambda: "cannot connect" in place.said() or running.poll() is not None)
        assert "cannot connect" in place.said()
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0
    assert "pw-" not in place.said()


EVENTS = 6


@pytest.mark.slow
@mosquitto.needed
@pytest.mark.parametrize(("form", "drawn"), [("seqveil", EVENTS), ("json:v@t", EVENTS), ("json:v", 2 * EVENTS)])
def test_what_waited_at_the_last_save_of_a_broker_that_crashes_comes_again(tmp_path, form, drawn):
    now, members = time.time(), ("seq", "value") if form == "seqveil" else ("n", "v")
    sent = [{members[0]: k, members[1]: VALUES[k % 3], "t": now - EVENTS + k} for k in range(EVENTS)]
    with alone(tmp_path) as place:
        with place.bridge(form=form):
            pass  # from now on the broker queues for it
        assert all(place.device().send_all([(place.raw("ann"), json.dumps(one).encode()) for one in sent]))
        place.mosquitto.save()
        with place.bridge(form=form) as bridge:
            until(lambda: bridge.counts.acknowledged == EVENTS)
            place.mosquitto.crash()
            until(lambda: bridge.counts.acknowledged == 2 * EVENTS)
        assert bridge.counts.released == drawn
