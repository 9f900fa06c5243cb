"""A bridge keeps the numbers of events that may come again; erasing a person takes the name out of them."""

import json

import pytest

from bridges import KEY, setting_of
from seqveil.engine.streams import Streams
from seqveil.engine.upkeep import erase, verify
from seqveil.interfaces.bridge import Core
from seqveil.interfaces.payloads import Event, Form, Payloads

NUMBERS = "mqtt:numbers"


def released(path, users, again=False, log=None):
    """Release one event of each of these users, as the broker's message 7; what came of it and what is kept."""
    with Streams.open(path, setting_of(), key=KEY) as store:
        core = Core(store, Payloads(store.setting, form=Form.parse("value")), "mqtt", log=log)
        made = core.release([Event(user, None, (1,), ident=f"7/{user}", again=again) for user in users])
        return made, json.loads(str(store.position(NUMBERS)))


@pytest.mark.parametrize("forget", [False, True])
def test_the_name_goes_from_the_numbers_of_events(tmp_path, forget):
    path, users = tmp_path / "s.db", ["zq-ann", "bob", 'zq-é"q', "zq-ann2"]
    released(path, users)
    assert erase(path, ["zq-ann", 'zq-é"q'], KEY, forget) == (2, [])
    content = path.read_bytes()
    assert b"q-\\u00e9" not in content
    assert content.count(b"zq-ann") == content.count(b"zq-ann2") > 0
    assert verify(path).sound
    with Streams.open(path, setting_of(), key=KEY) as store:
        kept = json.loads(str(store.position(NUMBERS)))
    assert list(kept) == ["7/bob", "7/zq-ann2"]


@pytest.mark.parametrize("value", ["no JSON", "[1]", "7", 7, b"\xff"])
def test_what_is_no_bridges_stays_as_it_is(tmp_path, value):
    path = tmp_path / "s.db"
    with Streams.open(path, setting_of(), key=KEY) as store:
        store.release(["ann"], [1], positions={"my:numbers": value})
    erase(path, ["ann"], KEY)
    with Streams.open(path, setting_of(), key=KEY) as store:
        assert store.position("my:numbers") == value
