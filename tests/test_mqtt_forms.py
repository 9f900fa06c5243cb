"""Payloads as they are spoken at home: plain values, Zigbee2MQTT, OwnTracks, Home Assistant."""

import itertools
import json
import random
import signal
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mosquitto
from bridges import KEY, SECRET, VALUES, setting_of
from mosquitto import until
from seqveil.core.alphabet import Grid
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.coded import CodeStreams
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.bridge import BridgeCounts, BridgeResult, Core
from seqveil.interfaces.homeassistant import Discovery
from seqveil.interfaces.mqtt import Broker, MqttBridge, Topics
from seqveil.interfaces.payloads import Form, NoEvent, PayloadEvent, Payloads, Refusal
from test_mqtt_command import meet, process

NOW = 1_700_000_000


def town():
    """A small town of 4 × 3 cells, in degrees."""
    grid = Grid.regular(4, 3, bounds=(8.0, 8.4, 49.0, 49.3))
    rng = random.Random(1)
    return MarkovModel.fit([[rng.choice(grid.points.tolist()) for _ in range(80)]], alphabet=grid, smoothing=1.0)


def read(payloads, payload, **more):
    try:
        return payloads.read("ann", payload if isinstance(payload, bytes) else json.dumps(payload).encode(), **more)
    except (Refusal, NoEvent) as found:
        return getattr(found, "reason", "none")


def test_a_plain_value_is_a_word_or_a_number():
    words = Payloads(setting_of(), form=Form.parse("value"))
    assert read(words, b"zq-up").codes == (VALUES.index("zq-up"),)
    assert read(words, b'"zq-up"').codes == (VALUES.index("zq-up"),)
    for other in (b"unavailable", b"\xff\xfe", b"{", b"3", b"{}", b"[" * 9000):
        assert read(words, other).codes == (UNKNOWN,)
    assert words.write(5, [2], 1.0, (2,)) == VALUES[2].encode()
    assert words.write(5, [], 0.0, None) == b""
    numbers = Payloads(
        Policy(epsilon=1.0, mechanism="balanced").on(MarkovModel.fit([[1.5, 2.5, 1.5]])), form=Form.parse("value")
    )
    assert read(numbers, b"2.5").codes == (1,)
    assert numbers.write(0, [1], 1.0, (1,)) == b"2.5"
    switch = Payloads(
        Policy(epsilon=1.0, mechanism="balanced").on(MarkovModel.fit([[True, False, True]])), form=Form.parse("value")
    )
    assert read(switch, b"true").codes != read(switch, b"false").codes


def test_a_member_of_a_json_object():
    door = Payloads(setting_of(), form=Form.parse("json:state.contact", "state.at"))
    full = {"state": {"contact": "zq-up", "at": NOW}, "battery": 3, "secret": SECRET}
    assert read(door, full).codes == (VALUES.index("zq-up"),)
    assert read(door, full).stamp == NOW
    assert read(door, {"state": {"at": NOW}}) == "member"
    assert read(door, {"state": "zq-up"}) == "member"
    assert read(door, {"state": {"contact": "zq-up"}}) == "time"
    assert read(door, {"state": {"contact": {"a": 1}, "at": NOW}}).codes == (UNKNOWN,)
    assert read(door, [1]) == "json"
    assert read(door, b" " * 70_000) == "size"
    written = json.loads(door.write(7, [0], 0.5, (0,)))
    assert written == {"state": {"contact": VALUES[0]}, "seqveil": {"seq": 7, "epsilon": 0.5}}
    assert json.loads(door.write(7, [], 0.0, None))["state"] == {"contact": None}


def test_a_location_of_owntracks():
    payloads = Payloads(Policy(epsilon=1.0, mechanism="balanced").on(town()), form=Form.parse("owntracks"))
    sent = {"_type": "location", "lat": 49.05, "lon": 8.15, "tst": NOW, "acc": 12, "tid": "an", "inregions": ["home"]}
    event = read(payloads, sent)
    assert (event.codes, event.stamp) == ((3,), NOW)
    assert read(payloads, {"_type": "transition", "event": "enter", "desc": "home", "tst": NOW}) == "none"
    assert read(payloads, {"_type": "lwt"}) == "none"
    assert read(payloads, sent | {"lat": 12.0}).codes == (UNKNOWN,)
    assert read(payloads, sent | {"lat": "here"}).codes == (UNKNOWN,)
    assert read(payloads, {"_type": "location", "lon": 8.15, "tst": NOW}) == "member"
    assert read(payloads, {"_type": "location", "lat": 49.05, "lon": 8.15}) == "time"
    assert read(payloads, sent | {"tst": time.time() + 10**6}) == "time"
    disclosed = json.loads(payloads.write(4, [3], 1.0, (3,), "joanne", NOW + 0.5))
    assert disclosed.pop("lat") == pytest.approx(49.05)
    assert disclosed.pop("lon") == pytest.approx(8.15)
    assert disclosed.pop("acc") == pytest.approx(6640, abs=30)  # half the diagonal of a cell of 7.3 by 11.1 km
    assert disclosed == {"_type": "location", "tid": "ne", "tst": NOW, "seqveil": {"seq": 4, "epsilon": 1.0}}
    assert json.loads(payloads.write(4, [], 0.0, None, "ann", NOW))["_type"] == "nothing"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *(((form,), "payload") for form in ("xml", "json", "value:x")),
        *(((form,), "path") for form in ("json:a..b", "json:seqveil.x")),
        (("value", "at"), "brings no time"),
        (("seqveil", "at"), "leave time"),
        (("seqveil", None, "state"), "leave time"),
        (("value", None, "maybe"), "retained"),
    ],
)
def test_forms_that_cannot_be_are_refused(words, text):
    with pytest.raises(InputError, match=text):
        Form.parse(*words)


def core_of(store, form):
    return Core(store, Payloads(store.setting, form=form), "mqtt")


def disclosed(outcomes):
    return [one if one is None else one.reason if isinstance(one, Refusal) else one.payload for one in outcomes]


@pytest.mark.slow
@settings(deadline=None)  # the first one may compile
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), max_size=12), st.integers(0, 12))
def test_events_that_come_again_before_they_were_confirmed_are_the_same(events, cut):
    """Numbers are kept with the releases: a core that begins anew finds them, and draws only what is new."""
    named = [PayloadEvent(user, None, (code,), ident=f"{k}/{user}") for k, (user, code, _) in enumerate(events)]
    store = CodeStreams(setting_of())  # in memory, with the positions beside
    first = core_of(store, Form.parse("value"))
    made = first.release(named[:cut])
    settled = [event.ident for event, (*_, confirmed) in zip(named[:cut], events, strict=False) if confirmed]
    first.confirmed(settled)
    first.close()
    again = core_of(store, Form.parse("value"))
    sent = [PayloadEvent(e.user, None, e.codes, ident=e.ident, again=k < cut) for k, e in enumerate(named)]
    left = [event for event in sent if event.ident not in settled]
    repeated = dict(zip((e.ident for e in left), again.release(left), strict=True))
    for event, outcome in zip(named[:cut], made, strict=False):
        if event.ident not in settled:
            assert repeated[event.ident] == BridgeResult(outcome.payload, True)
    assert again.counts.released == len(named[cut:])
    assert [store.account(u).events for u in "ab" if store.account(u)] == [
        n for n in (sum(e.user == u for e in named) for u in "ab") if n
    ]


def test_a_name_that_the_broker_uses_anew_is_a_new_event():
    core = core_of(CodeStreams(setting_of()), Form.parse("value"))
    event = PayloadEvent("ann", None, (0,), ident="7/ann")
    core.release([event])
    core.release([event])
    assert (core.counts.released, core.counts.repeated) == (2, 0)


def test_events_with_and_without_numbers_do_not_take_each_others():
    core = Core(CodeStreams(setting_of()), Payloads(setting_of(), needs_seq=False), "kafka")
    outcomes = core.release([PayloadEvent("ann", seq, (0,)) for seq in (0, None, 9, None, 3, 3, None)])
    seqs = [one.reason if isinstance(one, Refusal) else json.loads(one.payload)["seq"] for one in outcomes]
    assert seqs == [0, 1, "order", 2, 3, 3, 4]
    assert (core.counts.released, core.counts.repeated) == (5, 1)


def test_only_as_many_numbers_are_kept_as_messages_may_be_under_way():
    """An acknowledgement may get lost, so what was acknowledged may come again."""
    core = core_of(CodeStreams(setting_of()), Form.parse("value"))
    sent = [PayloadEvent("ann", None, (0,), ident=f"{k}/ann") for k in range(5)]
    first = core.release(sent)
    core.keep(3)
    again = core.release([PayloadEvent("ann", None, (1,), ident=f"{k}/ann", again=True) for k in (2, 3, 4)])
    assert again == [BridgeResult(one.payload, True) for one in first[2:]]
    assert list(core.numbers) == ["2/ann", "3/ann", "4/ann"]


def test_what_may_still_come_again_keeps_its_number_and_that_has_an_end():
    """A restarted Mosquitto sends more messages again than it may have under way."""
    core = core_of(CodeStreams(setting_of()), Form.parse("value"))
    core.release([PayloadEvent("ann", None, (0,), ident=f"{k}/ann") for k in range(10)])
    core.keep(3, lambda ident: ident in ("0/ann", "2/ann"))
    assert list(core.numbers) == ["0/ann", "2/ann", "9/ann"]
    core.release([PayloadEvent("ann", None, (0,), ident=f"{k}/ann") for k in range(10, 30)])
    core.keep(3, lambda ident: True)
    assert list(core.numbers)[:1] == ["18/ann"]
    assert len(core.numbers) == 12


def test_a_session_that_the_broker_has_forgotten_brings_nothing_again():
    core = core_of(CodeStreams(setting_of()), Form.parse("value"))
    core.release([PayloadEvent("ann", None, (0,), ident="7/ann")])
    core.forget()
    core.release([PayloadEvent("ann", None, (0,), ident="7/ann", again=True)])
    assert core.counts.released == 2


def test_whether_something_is_published_does_not_depend_on_values():
    """Nothing is left out as a repeat: the silence would show that nothing changed."""
    for codes in itertools.product((0, 1, UNKNOWN), repeat=3):
        core = core_of(CodeStreams(setting_of()), Form.parse("json:occupancy"))
        outcomes = core.release([PayloadEvent("ann", None, (code,)) for code in codes])
        assert [type(one) for one in outcomes] == [BridgeResult] * 3
        assert core.counts == BridgeCounts(released=3)


def test_late_and_double_times_are_refused_also_after_a_restart(tmp_path):
    form = Form.parse("json:v", "t")
    for times, expected in (((5.0, 6.0, 6.0, 4.0), ["late", "late"]), ((6.0, 5.5, 7.0), ["late", "late"])):
        with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
            outcomes = core_of(store, form).release([PayloadEvent("ann", None, (0,), t, t) for t in times])
            assert [one for one in disclosed(outcomes) if isinstance(one, str)] == expected
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        assert store.account("ann").events == 3


def test_what_home_assistant_is_disclosed():
    discovery = Discovery("homeassistant", Form.parse("json:state.it's"))
    topic, payload = discovery.announcement("küche 1", "released/küche 1")
    content = json.loads(payload)
    assert topic == f"homeassistant/sensor/{content['unique_id']}/config"
    assert content["value_template"] == r"{{ value_json['state']['it\'s'] }}"
    assert content["state_topic"] == content["json_attributes_topic"] == "released/küche 1"
    assert discovery.announcement("küche 1", "x") is None
    assert discovery.announcement("kuche_1", "x")[0] != topic
    tracker = Discovery("ha", Form.parse("owntracks")).announcement("ann", "owntracks/ann/released")
    assert tracker[0].startswith("ha/device_tracker/")

    class NoLink:
        broker = Broker("localhost", 1)

    raw = Topics("ha/sensor/{user}/config", "released/{user}")
    with pytest.raises(InputError, match="discovery"):
        MqttBridge(CodeStreams(setting_of()), NoLink(), raw, discovery=Discovery("ha", Form()))
    for prefix in ("", "a/+", "$SYS"):
        with pytest.raises(InputError, match="prefix"):
            Discovery(prefix, Form())


@mosquitto.needed
@pytest.mark.parametrize("version", [5, 4])
def test_retained_state_is_no_event_and_live_messages_are(bridged, version):
    form = Form.parse("json:occupancy")
    device, receiver, errors = bridged.device(), bridged.receiver(), bridged.receiver("errors")
    sent = [{"occupancy": value, "battery": 4, "note": SECRET} for value in (VALUES[0], VALUES[0], VALUES[1])]
    device.send_all([(bridged.raw("hall"), json.dumps(sent[0]).encode(), 1, True)])
    with bridged.bridge(form=form, retained="state", version=version, discovery=Discovery("ha", form)) as bridge:
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
def test_kills_and_restarts_of_the_broker_draw_nothing_twice_without_numbers(bridged):
    """Plain values, as many equal ones as different ones: only the broker's own numbers tell them apart."""
    device, receiver, chance = bridged.device(), bridged.receiver(), random.Random(2)
    users = [f"room {k}" for k in range(5)]
    sent = [(user, chance.choice(VALUES)) for _ in range(40) for user in users]
    options = ("--payload", "json:v", "--mapping", bridged.folder / "mapping.toml")
    (bridged.folder / "mapping.toml").write_text('payload = "value"\nretained = "state"\n')
    for turn in range(4):
        (bridged.folder / "log").write_text("")
        with process(bridged, *options) as running:
            meet(bridged, running)
            before = len(receiver.got)
            some = sent[turn * 50 : turn * 50 + 50]
            device.send_all([(bridged.raw(user), json.dumps({"v": value}).encode()) for user, value in some])
            until(lambda: len(receiver.got) > before + chance.randrange(20))  # noqa: B023
            if turn == 2:
                bridged.mosquitto.stop()
                bridged.mosquitto.start()
            running.send_signal(signal.SIGKILL)
    (bridged.folder / "log").write_text("")
    with process(bridged, *options, "--json") as running:
        meet(bridged, running)
        until(lambda: len(disclosed_of(receiver)) == 200)
        time.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
    assert json.loads(said)["refused"] == {}
    assert all(len(payloads) == 1 for payloads in disclosed_of(receiver).values())
    with CodeStreams.open(bridged.state, setting_of()) as store:
        assert {user: store.account(user).events for user in users} == dict.fromkeys(users, 40)
    assert subprocess.run(["grep", "-c", "zq-", bridged.state], capture_output=True).stdout.strip() == b"0"


def disclosed_of(receiver):
    out = {}
    for topic, payload in list(receiver.got):
        out.setdefault((topic, json.loads(payload)["seqveil"]["seq"]), set()).add(payload)
    return out
