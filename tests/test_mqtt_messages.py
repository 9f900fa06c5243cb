"""What the bridge reads and writes, and what it refuses to begin with; no broker needed."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqveil.core.alphabet import Grid
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.mqtt import REASONS, Broker, PayloadEvent, Payloads, Refusal, Topics, address

VALUES = ["zq-left", "zq-right", "zq-up"]
SECRET = "zq-secret-88"
KINDS = ({}, {"mechanism": "tree", "batch": 2}, {"budget": Budget(per_window=1.0, seconds=5.0)})
MODEL = MarkovModel.fit([VALUES * 5], smoothing=1.0)

PAYLOADS = [Payloads(Policy(**{"mechanism": "balanced", "epsilon": 1.0, **kind}).on(MODEL)) for kind in KINDS]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*VALUES, SECRET]) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["seq", "value", "values", "time"]), inner)
    ),
    max_leaves=8,
)
LIKELY = st.fixed_dictionaries(
    {}, optional={"seq": JSON | st.integers(0, 5), "value": JSON, "values": JSON, "time": JSON}
).map(lambda content: json.dumps(content).encode())


def read(payloads, payload):
    try:
        return payloads.read("ann", payload)
    except Refusal as refusal:
        return refusal


@pytest.mark.slow
@given(payload=st.binary() | JSON.map(lambda content: json.dumps(content).encode()) | LIKELY, which=st.integers(0, 2))
def test_any_payload_is_an_event_or_a_refusal(payload, which):
    found = read(PAYLOADS[which], payload)
    if isinstance(found, Refusal):
        assert found.reason in REASONS
        assert set(json.loads(found.payload())) <= {"seq", "reason", "detail"}
        return
    assert isinstance(found, PayloadEvent)
    assert all(0 <= code < 3 or code == UNKNOWN for code in found.codes)
    assert 1 <= len(found.codes) <= (2 if which == 1 else 1)
    assert 0 <= found.seq < 2**62
    assert np.isfinite(found.time)
    content = json.loads(payload)
    first = content["values"][0] if which == 1 else content["value"]
    assert first not in VALUES if found.codes[0] == UNKNOWN else first == VALUES[found.codes[0]]
    assert "zq" not in repr(found)
    assert "codes" not in repr(found)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [(b'{"seq": 0}', "shape"), (b'{"value": "zq-up"}', "seq"), (b"{", "json"), (b"[NaN]", "json")],
)
def test_what_is_no_event_is_refused_by_its_reason(payload, reason):
    assert read(PAYLOADS[0], payload).reason == reason


@given(seq=st.integers(0, 2**62 - 1), code=st.integers(0, 2), epsilon=st.floats(0, 20))
def test_a_release_reads_back_as_it_was_written(seq, code, epsilon):
    written = PAYLOADS[0].write(seq, [code], epsilon, (code,))
    assert json.loads(written) == {"seq": seq, "value": VALUES[code], "epsilon": epsilon}
    nothing = json.loads(PAYLOADS[0].write(seq, [], 0.0, None))
    assert nothing == {"seq": seq, "value": None, "epsilon": 0.0}
    batch = json.loads(PAYLOADS[1].write(seq, [code, 0], epsilon, (1, 0)))
    assert batch == {"seq": seq, "values": [VALUES[code], VALUES[0]], "epsilon": epsilon, "path": "x6"}
    assert json.loads(PAYLOADS[1].write(seq, [], 0.0, None))["values"] is None


def test_points_and_numbers_travel_as_json():
    grid = MarkovModel.fit([[(0.1, 0.2), (1.5, 0.7), (0.1, 0.9)]], alphabet=Grid([0, 1, 2], [0, 1]), smoothing=1.0)
    payloads = Payloads(Policy(epsilon=1.0, mechanism="balanced").on(grid))
    assert payloads.read("ann", b'{"seq": 0, "value": [1.2, 0.5]}').codes == (1,)
    assert json.loads(payloads.write(0, [1], 1.0, (1,)))["value"] == [1.5, 0.5]
    assert payloads.read("ann", b'{"seq": 0, "value": [1.2]}').codes == (UNKNOWN,)


def test_values_that_json_cannot_hold_are_refused_at_the_start():
    endless = MarkovModel.fit([[0.0, float("inf"), 0.0]])
    with pytest.raises(InputError, match="JSON"):
        Payloads(Policy(epsilon=1.0, mechanism="balanced").on(endless))
    with pytest.raises(InputError, match="would show receivers exactly where"):
        Payloads(Policy(epsilon=1.0, mechanism="balanced").on(MODEL), "error")


@pytest.mark.parametrize(
    "patterns",
    [
        *((raw, "released/{user}") for raw in ("raw", "raw/x-{user}", "raw/{user}/{user}", "raw/+/{user}")),
        *((raw, "released/{user}") for raw in ("raw/{user}/#", "$share/g/{user}", "{user}/raw")),
        *(("raw/{user}", released) for released in ("released/{name}", "raw/{user}")),
        ("raw/{user}", "released/{user}", "{user}/x"),
    ],
)
def test_patterns_that_cannot_work_are_refused(patterns):
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
    if not user or user.startswith("$"):
        with pytest.raises(Refusal):
            topics.user_of(topic)
        return
    assert topics.user_of(topic) == user
    assert topics.released_to(user) == f"some/{topic}/else"
    with pytest.raises(Refusal):
        topics.user_of(f"{topic}/{other}")


@pytest.mark.parametrize("text", ["", ":1883", "host:", "host:0", "host:99999", "host:x", "mqtt://host", "a@b", "[::1"])
def test_addresses_that_are_none_are_refused(text):
    if text == "host:" or text == "[::1":  # read kindly
        assert address(text)[1] == 1883
        return
    with pytest.raises(InputError, match="HOST"):
        address(text)


@pytest.mark.parametrize(
    "options", [{"keepalive": 0}, {"in_flight": 70_000}, {"expiry": -1}, {"version": 3}, {"client_id": ""}]
)
def test_limits_of_the_connection(options):
    with pytest.raises(InputError, match="expected"):
        Broker("localhost", 1883, **options)
