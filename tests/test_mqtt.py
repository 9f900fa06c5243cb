"""The bridge at a real Mosquitto: each event released once, whatever is repeated, malformed, refused or cut."""

import json

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

import mosquitto
from bridges import KEY, SECRET, VALUES, Place, event, published, send, setting_of, some_events
from mosquitto import Client, until
from seqveil.core.errors import DataError
from seqveil.engine.coded import CodeStreams
from seqveil.interfaces.mqtt import REASONS, BrokerError


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with mosquitto.broker(tmp_path_factory.mktemp("mosquitto")) as running:
        yield running


@pytest.fixture
def place(shared, tmp_path, request):
    made = Place(shared, tmp_path, request.node.name)
    yield made
    made.close()


def expected_of(setting, events, folder):
    """What a store with the key releases for these events, by (user, seq)."""
    alphabet = setting.model.alphabet
    with CodeStreams.open(folder / "twin.db", setting, key=KEY) as twin:
        users, seqs, values = zip(*events, strict=True)
        made = twin.release(users, alphabet.encode(list(values)), seqs)
    values = alphabet.decode(made.codes)
    disclosed = zip(users, seqs, values, made.epsilons.tolist(), strict=True)
    return {(user, seq): {"seq": seq, "value": value, "epsilon": epsilon} for user, seq, value, epsilon in disclosed}


@mosquitto.needed
@pytest.mark.parametrize("version", [5, 4])
def test_what_is_published_is_what_the_store_releases(place, version, tmp_path, one_salt):
    setting, events = setting_of(), some_events()
    device, receiver = place.device(), place.receiver()
    with place.bridge(version=version) as bridge:
        send(place, device, events)
        until(lambda: len(receiver.got) == len(events))
        until(lambda: bridge.counts.acknowledged == len(events))
    disclosed = published(receiver)
    assert {one: json.loads(payloads[0]) for one, payloads in disclosed.items()} == expected_of(
        setting, events, tmp_path
    )
    with CodeStreams.open(place.state, setting, key=KEY) as store:
        codes = {user: [stored.code for stored in store.releases(user)] for user, _, _ in events}
    encode = setting.model.alphabet.encode_one
    assert codes == {u: [encode(json.loads(disclosed[u, s][0])["value"]) for s in range(30)] for u in codes}
    send(place, device, [("user 0", 30, VALUES[0])])  # nobody is there: the broker keeps it
    with place.bridge(version=version) as again:  # and nothing else, as everything was acknowledged
        until(lambda: len(receiver.got) == len(events) + 1)
        assert (again.counts.received, again.counts.released) == (1, 1)


@mosquitto.needed
@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "system"])
def test_events_that_come_again_give_the_same_payload(place, key):
    events = some_events(each=12)
    device, receiver = place.device(), place.receiver()
    with place.bridge(key=key) as bridge:
        for seed in range(3):  # the same events with other values: the first release stands
            send(place, device, some_events(each=12, seed=seed))
        until(lambda: len(receiver.got) == 3 * len(events))
        assert (bridge.counts.released, bridge.counts.repeated) == (36, 72)
    disclosed = published(receiver)
    assert set(disclosed) == {(user, seq) for user, seq, _ in events}
    assert all(len(payloads) == 3 and len(set(payloads)) == 1 for payloads in disclosed.values())


@mosquitto.needed
def test_batches_travel_with_their_path(place):
    setting = setting_of(mechanism="tree", epsilon=2.0, batch=3)
    device, receiver = place.device(), place.receiver()
    batches = [VALUES, VALUES[::-1], VALUES[:2]]
    messages = [(place.raw("ann"), json.dumps({"seq": k, "values": v}).encode()) for k, v in enumerate(batches)]
    with place.bridge(setting) as bridge:
        device.send_all(messages * 2)
        until(lambda: len(receiver.got) == 6)
        device.send_all(
            [(place.raw("ann"), b'{"seq": 3, "value": "zq-up"}'), (place.raw("ann"), b'{"seq":3,"values":[]}')]
        )
        until(lambda: bridge.counts.refused.get("shape") == 2)
    disclosed = [json.loads(payload) for _, payload in receiver.got]
    assert disclosed[:3] == disclosed[3:]
    with CodeStreams.open(place.state, setting, key=KEY) as store:
        for said, stored in zip(disclosed, store.releases("ann"), strict=False):
            assert said["values"] == setting.model.alphabet.decode(list(stored.codes))
            assert said["path"]
    assert [len(said["values"]) for said in disclosed[:3]] == [3, 3, 2]


BAD = {
    b"": None,
    SECRET.encode(): "json",
    b"\xff\xfe\x00": "json",
    b'["zq-secret-88"]': "json",
    b"[" * 20_000: "json",
    b'{"value": "zq-secret-88"}': "seq",
    b'{"seq": -1, "value": "zq-up"}': "seq",
    b'{"seq": true, "value": "zq-up"}': "seq",
    b'{"seq": 0.0, "value": "zq-up"}': "seq",
    b'{"seq": 4611686018427387904, "value": "zq-up"}': "seq",
    b'{"seq": ' + b"9" * 5000 + b"}": "json",
    b'{"seq": 0}': "shape",
    b'{"seq": 0, "values": ["zq-up"]}': "shape",
    b'{"seq": 7, "value": "zq-up"}': "order",
    b'{"seq": 0, "value": "' + SECRET.encode() * 6000 + b'"}': "size",
}


@mosquitto.needed
def test_what_cannot_be_released_is_reported_and_blocks_nothing(place):
    device, receiver, errors = place.device(), place.receiver(), place.receiver("errors")
    with place.bridge() as bridge:
        device.send_all([(place.raw("ann"), payload) for payload in BAD])
        send(place, device, [("ann", 0, VALUES[0]), ("bob", 0, VALUES[0]), ("ann", 1, VALUES[2])])
        until(lambda: len(receiver.got) == 3)
        device.send_all([(place.raw("$ann"), event(0, VALUES[0])), (place.raw("x" * 300), event(0, VALUES[0]))])
        until(lambda: bridge.counts.acknowledged == len(BAD) + 5)
    reasons = [reason for reason in BAD.values() if reason is not None]
    disclosed = [json.loads(payload) for _, payload in errors.got]
    assert [one["reason"] for one in disclosed if one["reason"] != "order"] == [r for r in reasons if r != "order"]
    assert all(one["detail"] == REASONS[one["reason"]] for one in disclosed)
    assert [(one["seq"], one["next"]) for one in disclosed if one["reason"] == "order"] == [(7, 0)]
    assert bridge.counts.refused == {reason: reasons.count(reason) for reason in reasons} | {"topic": 2}
    everything = repr(place.log) + repr(errors.got) + repr(receiver.got)
    files = b"".join(path.read_bytes() for path in place.folder.glob("state.db*"))
    assert SECRET not in everything
    assert "zq-" not in repr(place.log)
    assert "ann" not in repr(place.log)
    assert b"zq-" not in files


@mosquitto.needed
def test_the_broker_restarts_and_nothing_is_lost(tmp_path):
    with mosquitto.broker(tmp_path) as running:
        place = Place(running, tmp_path, "restart")
        device, receiver = place.device(), place.receiver()
        events = some_events(users=5, each=120)
        with place.bridge() as bridge:
            for at in range(0, 600, 200):
                for user, seq, value in events[at : at + 200]:
                    device.send(place.raw(user), event(seq, value))
                until(lambda: len(receiver.got) > at + 20)  # noqa: B023
                if at < 400:
                    running.stop()
                    running.start()
            until(lambda: len(published(receiver)) == 600)
            assert bridge.counts.released == 600
        disclosed = published(receiver)
        assert all(len(set(payloads)) == 1 for payloads in disclosed.values())
        names = [name for name, _ in place.log]
        assert names.count("connected") == 3
        assert place.log[-1][1]["left with the broker"] == 0
        place.close()


@mosquitto.needed
@pytest.mark.parametrize("version", [5, 4])
def test_a_retained_raw_message_is_refused_and_taken_off_the_broker(place, version):
    device, receiver, errors = place.device(), place.receiver(), place.receiver("errors")
    device.send_all([(place.raw("ann"), event(0, VALUES[0]), 1, True)])  # before the bridge ever came
    with place.bridge(version=version, on_refused="stop") as bridge:
        until(lambda: bridge.counts.cleared == 1)
        if version == 5:
            device.send_all([(place.raw("bob"), event(0, VALUES[0]), 1, True)])  # and while it is there
            until(lambda: bridge.counts.cleared == 2)
        send(place, device, [("ann", 0, VALUES[1])])
        until(lambda: len(receiver.got) == 1)
    assert [json.loads(payload)["reason"] for _, payload in errors.got] == ["retained"] * (2 if version == 5 else 1)
    assert "retain" in repr([line for line in place.log if line[0] == "warning"])
    late = place.client("late", f"{place.name}/raw/+")
    send(place, device, [("carl", 0, VALUES[0])])
    until(lambda: late.got)
    assert [topic for topic, _ in late.got] == [place.raw("carl")]  # no raw message is left for those who come later


@mosquitto.needed
def test_stop_leaves_what_was_refused_with_the_broker(place):
    device, receiver = place.device(), place.receiver()
    with place.bridge(on_refused="stop") as bridge:
        device.send_all([(place.raw("ann"), b'{"seq": 0, "valu": "' + SECRET.encode() + b'"}')])
        until(lambda: bridge.failures)
        failure = bridge.failures.pop()
    assert isinstance(failure, DataError)
    assert "expected value" in str(failure)
    assert SECRET not in str(failure)
    send(place, device, [("ann", 0, VALUES[0])])
    with place.bridge() as bridge:
        until(lambda: len(receiver.got) == 1)
        assert bridge.counts.refused == {"shape": 1}


@mosquitto.needed
def test_messages_at_qos_0_are_released_and_warned_about(place):
    device, receiver = place.device(), place.receiver()
    with place.bridge() as bridge:
        device.send_all([(place.raw("ann"), event(seq, VALUES[0]), 0) for seq in range(3)])
        until(lambda: len(receiver.got) == 3)
        assert (bridge.counts.unreliable, bridge.counts.acknowledged) == (3, 0)
    assert [line for line in place.log if line[0] == "warning" and "QoS 0" in line[1]["reason"]]


@mosquitto.needed
def test_two_clients_of_one_name_are_noticed(place):
    with place.bridge() as bridge:
        other = Client(place.mosquitto.port, f"{place.name}-bridge")  # they take turns; this broker does not say why
        until(lambda: any(name == "warning" and "client id" in said["reason"] for name, said in place.log))
        other.close()
        code = ReasonCode(PacketTypes.DISCONNECT, "Session taken over")  # what a broker says that does
        bridge._link._on_disconnect(None, None, None, code, None)
        until(lambda: bridge.failures)
        failure = bridge.failures.pop()
    assert isinstance(failure, BrokerError)
    assert "client id" in str(failure)


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
