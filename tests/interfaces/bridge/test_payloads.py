"""Payloads of bridges: seqveil's own, plain values, Zigbee2MQTT, OwnTracks; topics, and what Home Assistant hears."""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges import SECRET, VALUES, setting_of, town
from seqveil.core.alphabet import Grid
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import ever
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.bridge.mqtt import Broker, Topics
from seqveil.interfaces.bridge.payloads import REASONS, Discovery, Form, NoEvent, PayloadEvent, Payloads, Refusal

NOW = 1_700_000_000
ANN = PayloadEvent("ann", None, 0)
KINDS = ({}, {"budget": Budget(per_window=1.0, seconds=5.0)})
PAYLOADS = [Payloads(setting_of(**kind)) for kind in KINDS]
GUARDED = Payloads(Policy(secrets=ever(VALUES[0], epsilon=0.5, window=4)).on(setting_of().model))
SYMBOLS = setting_of().model.alphabet.decode(np.arange(3))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*VALUES, SECRET]) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["seq", "value", "time"]), inner),
    max_leaves=8,
)
LIKELY = st.fixed_dictionaries(
    {}, optional={"seq": JSON | st.integers(0, 5), "value": JSON | st.lists(JSON, max_size=3), "time": JSON}
).map(lambda content: json.dumps(content).encode())


def of(model, form="seqveil"):
    return Payloads(Policy(epsilon=1.0, mechanism="balanced").on(model), Form.parse(form))


def read(payloads, payload, **more):
    try:
        return payloads.read("ann", payload if isinstance(payload, bytes) else json.dumps(payload).encode(), **more)
    except (Refusal, NoEvent) as found:
        return found


def reason(*given):
    return getattr(read(*given), "reason", "none")


@pytest.mark.slow
@given(payload=st.binary() | JSON.map(lambda content: json.dumps(content).encode()) | LIKELY, which=st.integers(0, 1))
def test_any_payload_is_an_event_or_a_refusal(payload, which):
    found = read(PAYLOADS[which], payload)
    if isinstance(found, Refusal):
        assert found.reason in REASONS
        assert set(json.loads(found.payload())) <= {"seq", "reason", "detail"}
        return
    assert isinstance(found, PayloadEvent)
    assert 0 <= found.code < 3 or found.code == UNKNOWN
    assert found.seq is None or 0 <= found.seq < 2**62
    assert np.isfinite(found.time)
    content = json.loads(payload)
    assert content["value"] not in VALUES if found.code == UNKNOWN else content["value"] == SYMBOLS[found.code]
    assert "zq" not in repr(found)
    assert "code" not in repr(found)


@given(seq=st.integers(0, 2**62 - 1), code=st.integers(0, 2), epsilon=st.floats(0, 20))
def test_a_release_reads_back_as_it_was_written(seq, code, epsilon):
    written = PAYLOADS[0].write(seq, code, epsilon, ANN)
    assert json.loads(written) == {"seq": seq, "value": SYMBOLS[code], "epsilon": epsilon}
    assert json.loads(PAYLOADS[0].write(seq, UNKNOWN, 0.0, ANN)) == {"seq": seq, "value": None, "epsilon": 0.0}
    assert json.loads(GUARDED.write(seq, code, math.inf, ANN))["epsilon"] is None
    with pytest.raises(InputError, match="in batches"):
        Payloads(setting_of(mechanism="tree", batch=2))


def test_the_time_is_that_of_the_payload_or_of_the_arrival():
    timed = PAYLOADS[1]
    assert read(timed, {"seq": 0, "value": "zq-up", "time": NOW}, arrival=5.0).time == NOW
    assert read(timed, {"seq": 0, "value": "zq-up"}, arrival=5.0).time == 5.0
    assert reason(timed, {"seq": 0, "value": "zq-up", "time": "zq-soon"}) == "time"


def test_points_travel_as_json_and_what_json_cannot_hold_is_refused_at_the_start():
    grid = MarkovModel.fit([[(0.1, 0.2), (1.5, 0.7), (0.1, 0.9)]], alphabet=Grid([0, 1, 2], [0, 1]), smoothing=1.0)
    payloads = of(grid)
    assert read(payloads, {"seq": 0, "value": [1.2, 0.5]}).code == 1
    assert json.loads(payloads.write(0, 1, 1.0, ANN))["value"] == [1.5, 0.5]
    assert read(payloads, {"seq": 0, "value": [1.2]}).code == UNKNOWN
    with pytest.raises(InputError, match="JSON"):
        of(MarkovModel.fit([[0.0, float("inf"), 0.0]]))


def test_a_plain_value_is_a_word_or_a_number():
    words = Payloads(setting_of(), Form.parse("value"))
    assert read(words, b"zq-up").code == read(words, b'"zq-up"').code == SYMBOLS.index("zq-up")
    for other in (b"unavailable", b"\xff\xfe", b"{", b"3", b"{}", b"[" * 9000):
        assert read(words, other).code == UNKNOWN
    assert words.write(5, 2, 1.0, ANN) == SYMBOLS[2].encode()
    assert words.write(5, UNKNOWN, 0.0, ANN) == b""
    numbers = of(MarkovModel.fit([[1.5, 2.5, 1.5]]), "value")
    assert read(numbers, b"2.5").code == 1
    assert numbers.write(0, 1, 1.0, ANN) == b"2.5"
    switch = of(MarkovModel.fit([[True, False, True]]), "value")
    assert read(switch, b"true").code != read(switch, b"false").code


def test_a_member_of_a_json_object():
    door = Payloads(setting_of(), Form.parse("json:state.contact@state.at"))
    full = {"state": {"contact": "zq-up", "at": NOW}, "battery": 3, "secret": SECRET}
    assert read(door, full).code == SYMBOLS.index("zq-up")
    assert read(door, full).stamp == NOW
    assert reason(door, {"state": {"at": NOW}}) == reason(door, {"state": "zq-up"}) == "member"
    assert reason(door, {"state": {"contact": "zq-up"}}) == "time"
    assert read(door, {"state": {"contact": {"a": 1}, "at": NOW}}).code == UNKNOWN
    assert reason(door, [1]) == "json"
    assert reason(door, b" " * 70_000) == "size"
    written = json.loads(door.write(7, 0, 0.5, ANN))
    assert written == {"state": {"contact": SYMBOLS[0]}, "seqveil": {"seq": 7, "epsilon": 0.5}}
    assert json.loads(door.write(7, UNKNOWN, 0.0, ANN))["state"] == {"contact": None}


def test_a_location_of_owntracks():
    payloads = of(town(), "owntracks")
    sent = {"_type": "location", "lat": 49.05, "lon": 8.15, "tst": NOW, "acc": 12, "tid": "an", "inregions": ["home"]}
    event, cells = read(payloads, sent), payloads.setting.model.alphabet
    assert (event.code, event.stamp) == (cells.encode_one((49.05, 8.15)), NOW)
    assert reason(payloads, {"_type": "transition", "event": "enter", "desc": "home", "tst": NOW}) == "none"
    assert read(payloads, sent | {"lat": 12.0}).code == read(payloads, sent | {"lat": "here"}).code == UNKNOWN
    assert reason(payloads, {"_type": "location", "lon": 8.15, "tst": NOW}) == "member"
    assert reason(payloads, {"_type": "location", "lat": 49.05, "lon": 8.15}) == "time"
    assert reason(payloads, sent | {"tst": time.time() + 10**6}) == "time"
    disclosed = json.loads(payloads.write(4, 3, 1.0, PayloadEvent("joanne", None, 0, stamp=NOW + 0.5)))
    assert (disclosed.pop("lat"), disclosed.pop("lon")) == cells.decode([3])[0]
    assert disclosed.pop("acc") == 7072  # half the diagonal of a cell of 10 by 10 km
    assert disclosed == {"_type": "location", "tid": "ne", "tst": NOW, "seqveil": {"seq": 4, "epsilon": 1.0}}
    assert json.loads(payloads.write(4, UNKNOWN, 0.0, ANN))["_type"] == "nothing"


@pytest.mark.parametrize(
    "form", ["", "xml", "json", "json:", "value:x", "json:a..b", "json:seqveil.x", "json:a@", "json:@t"]
)
def test_forms_that_cannot_be_are_refused(form):
    with pytest.raises(InputError, match=r"payload|path"):
        Form.parse(form)


def test_what_home_assistant_is_disclosed():
    discovery = Discovery("homeassistant", Form.parse("json:state.it's"))
    topic, payload = discovery.announcement("küche 1", "released/küche 1")
    content = json.loads(payload)
    assert topic == f"homeassistant/sensor/{content['unique_id']}/config"
    assert content["value_template"] == "{{ value_json['state'][\"it's\"] }}"
    assert content["state_topic"] == content["json_attributes_topic"] == "released/küche 1"
    assert discovery.announcement("küche 1", "x") is None
    assert discovery.announcement("kuche_1", "x")[0] != topic
    tracker = Discovery("ha", Form.parse("owntracks")).announcement("ann", "owntracks/ann/released")
    assert tracker[0].startswith("ha/device_tracker/")
    for prefix in ("", "a/+", "$SYS"):
        with pytest.raises(InputError, match="prefix"):
            Discovery(prefix, Form())


@pytest.mark.parametrize(
    "patterns",
    [
        *((raw, "released/{user}") for raw in ("raw", "raw/x-{user}", "raw/{user}/{user}", "raw/+/{user}")),
        *((raw, "released/{user}") for raw in ("raw/{user}/#", "$share/g/{user}", "{user}/raw")),
        *(("raw/{user}", released) for released in ("released/{name}", "raw/{user}")),
        ("raw/{user}", "released/{user}", "{user}/x"),
    ],
)
def test_topics_that_cannot_work_are_refused(patterns):
    with pytest.raises(InputError, match="topic"):
        Topics(*patterns)


LEVEL = st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=5)


@given(before=st.lists(LEVEL, max_size=2), user=LEVEL, after=st.lists(LEVEL, max_size=2), other=LEVEL)
def test_a_topic_gives_its_user_back(before, user, after, other):
    pattern = "/".join([*before, "{user}", *after])
    if pattern.startswith("$") or any(sign in pattern.replace("{user}", "") for sign in "{}"):
        return
    topics = Topics(pattern, f"some/{pattern}/else")
    topic = pattern.replace("{user}", user)
    assert topics.user_of(topic) == (None if not user or user.startswith("$") else user)
    assert topics.user_of(f"{topic}/{other}") is None
    assert topics.user_of(pattern.replace("{user}", "x" * 257)) is None


def test_where_the_broker_is():
    found = [Broker.at(text) for text in ("broker.example", "[::1]:1884", "mqtts://ann@10.0.0.1", "mqtt://host:")]
    assert [made.port for made in found] == [1883, 1884, 8883, 1883]
    assert [made.host for made in found] == ["broker.example", "::1", "10.0.0.1", "host"]
    assert (found[2].username, found[2].tls is None, found[0].tls) == ("ann", False, None)
