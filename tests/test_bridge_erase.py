"""A bridge keeps the numbers of events that may come again; erasing a person takes the name out of them."""

import json

import pytest

from bridges import KEY, setting_of
from seqveil.engine.store.backup import verify
from seqveil.engine.store.upkeep import erase
from seqveil.engine.streams import Streams
from seqveil.interfaces.bridge import DROPPED, Core, Made
from seqveil.interfaces.broker import Arrived, Broker
from seqveil.interfaces.mqtt import Bridge, Topics
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
    assert [ident for ident in kept if "$" not in ident] == ["7/bob", "7/zq-ann2"]
    assert len(kept) == (2 if forget else 4)


def test_an_event_of_who_was_erased_is_not_drawn_again(tmp_path):
    path, lines = tmp_path / "s.db", []
    released(path, ["ann", "bob"])
    erase(path, ["ann"], KEY)
    (gone, again), kept = released(path, ["ann", "bob"], again=True, log=lambda *line: lines.append(line))
    assert (gone, again.repeated) == (None, True)
    assert lines == [("warning", {"reason": DROPPED})]
    assert sorted(kept) == ["7/ann", "7/bob"]


def test_a_forgotten_ledger_knows_no_event(tmp_path):
    path = tmp_path / "s.db"
    released(path, ["ann", "bob"])
    erase(path, ["ann"], KEY, forget=True)
    (new, again), _ = released(path, ["ann", "bob"], again=True)
    assert isinstance(new, Made)
    assert (new.repeated, again.repeated) == (False, True)


@pytest.mark.parametrize("value", ["no JSON", "[1]", "7", 7, b"\xff"])
def test_what_is_no_bridges_stays_as_it_is(tmp_path, value):
    path = tmp_path / "s.db"
    with Streams.open(path, setting_of(), key=KEY) as store:
        store.release(["ann"], [1], positions={"my:numbers": value})
    erase(path, ["ann"], KEY)
    with Streams.open(path, setting_of(), key=KEY) as store:
        assert store.position("my:numbers") == value


class Link:
    """A broker's end without a broker: it takes what is published, and sends nothing by itself."""

    def __init__(self):
        self.broker, self.connection, self.published = Broker("localhost", 1883), 0, []

    def publish(self, topic, payload, retain=False):
        self.published.append((topic, payload))
        return len(self.published)

    def acknowledge(self, message):
        return True


def test_the_bridge_knows_a_message_of_who_was_erased_when_it_comes_again(tmp_path):
    path, topics = tmp_path / "s.db", Topics("raw/{user}", "released/{user}")

    def come(*messages):
        with Streams.open(path, setting_of(), key=KEY) as store:
            link = Link()
            bridge = Bridge(store, link, topics, form=Form.parse("value"))
            bridge._expect(new=False)
            for mid, user, again in messages:
                bridge._turn([Arrived(f"raw/{user}", b"zq-left", mid, True, False, 0, again)])
            return [topic for topic, _ in link.published], bridge.counts.released

    assert come((7, "ann", False), (8, "bob", False)) == (["released/ann", "released/bob"], 2)
    erase(path, ["ann"], KEY)
    assert come((7, "ann", True), (9, "ann", False)) == (["released/ann"], 1)
    assert come((7, "ann", True), (9, "ann", True)) == (["released/ann"], 0)
