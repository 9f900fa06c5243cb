"""Slots of time in the bridge: one release for each slot and stream, drawn once, whatever happened in it."""

import json
import signal
import sqlite3

import pytest

import mosquitto
from bridges import KEY
from mosquitto import until
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import ever
from seqveil.core.slots import NOTHING, Slots
from seqveil.engine.accounting import Budget
from seqveil.engine.coded import CodeStreams
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.engine.upkeep import erase
from seqveil.interfaces.bridge import Core
from seqveil.interfaces.payloads import Form, PayloadEvent, Payloads, Refusal
from seqveil.interfaces.slotting import SlotStreams
from test_mqtt_command import meet, process

SLOT = 60.0
BEGIN = 1_700_000_040.0  # a multiple of a minute
NAMES = Alphabet(["zq-home", "zq-away", NOTHING])


def setting_of(alphabet=NAMES, rule="last", epsilon=16.0, mechanism="balanced", slot=SLOT, **options):
    """A setting in slots; with its large ε releases are nearly always the truth."""
    n = alphabet.n
    rows = [[0.5 if a == b else 0.5 / (n - 1) for b in range(n)] for a in range(n)]
    model = MarkovModel([1 / n] * n, rows, alphabet=alphabet.with_slots(Slots(slot, rule)))
    return Policy(epsilon=epsilon, mechanism=mechanism, **options).on(model)


class Fake:
    """A source with a clock that is moved by hand."""

    def __init__(self, store, form="json:v", now=BEGIN, **more):
        self.now = now
        self.core = Core(store, Payloads(store.setting, form=Form.parse(form)), "mqtt")
        slots = store.setting.model.alphabet.slots
        self.slots = SlotStreams(self.core, store, slots, "mqtt", lambda: self.now, **more)

    def come(self, user, code, at=None, **more):
        self.now = self.now if at is None else BEGIN + at
        return self.slots.take(f"{user} {code}", PayloadEvent(user, None, (code,), **more))

    def drawn(self, at):
        """What was released until this moment, as (user, number, minute, value); all of it counts as published."""
        self.now, out = BEGIN + at, []
        while (found := self.slots.draw()) is not None:
            out += [disclosed(user, outcome) for user, outcome in found.releases]
            self.slots.published = found.slot
        return out


def disclosed(user, outcome):
    said = json.loads(outcome.payload)
    return user, said["seqveil"]["seq"], (said["seqveil"]["slot"] - BEGIN) / SLOT, said.get("v")


def test_a_release_for_every_slot_something_or_nothing():
    fake = Fake(CodeStreams(setting_of()))
    assert fake.drawn(59.9) == []
    assert fake.slots.remaining == pytest.approx(0.1)
    fake.come("bob", 1, 61)
    fake.come("ann", 0, 62)
    fake.come("ann", 1, 63)
    assert fake.drawn(119) == []
    assert fake.drawn(121) == [("ann", 0, 1, "zq-away"), ("bob", 0, 1, "zq-away")]
    assert fake.drawn(179) == []
    assert fake.drawn(180) == [("ann", 1, 2, NOTHING), ("bob", 1, 2, NOTHING)]
    fake.come("bob", 0)
    assert fake.drawn(240) == [("ann", 2, 3, NOTHING), ("bob", 2, 3, "zq-home")]
    assert fake.core.counts.released == 6


def test_numbers_go_on_with_the_value_before_and_a_kept_message_says_it():
    fake = Fake(CodeStreams(setting_of(Bins([0, 10, 20, 30]))))
    fake.slots.state(PayloadEvent("bob", None, (2,)))
    fake.come("ann", 1, 1)
    assert [value for *_, value in fake.drawn(60) + fake.drawn(120)] == [15.0, 15.0]  # bob has no stream yet
    fake.come("bob", UNKNOWN)
    assert [row[:3] for row in fake.drawn(180)] == [("ann", 2, 2), ("bob", 0, 2)]
    fake.come("ann", 0)
    assert fake.drawn(240)[0][3] == 5.0
    assert fake.core.hidden == 2  # bob's value is not known in the slot after, either


def test_the_most_frequent_message_of_a_slot():
    fake = Fake(CodeStreams(setting_of(rule="most")))
    for code in (0, 1, 1, 0, 1):
        fake.come("ann", code, 1)
    assert fake.drawn(60)[0][3] == "zq-away"
    for code in (1, 0, 1, 0):
        fake.come("ann", code, 61)
    assert fake.drawn(120)[0][3] == "zq-home"  # of two that are as frequent the one that came last


@pytest.mark.parametrize("gaps", ["refuse", "skip"])
def test_slots_that_ended_while_nobody_was_there(tmp_path, gaps):
    """They are drawn as values that nobody knows, or given up; a slot that was drawn is not drawn again."""
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY, gaps=gaps) as store:
        fake = Fake(store)
        fake.come("ann", 0, 1)
        assert len(fake.drawn(60)) == 1
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY, gaps=gaps) as store:
        fake = Fake(store, now=BEGIN + 250)
        fake.come("ann", 1)
        found = [(seq, minute) for _, seq, minute, _ in fake.drawn(250)]
        if gaps == "refuse":
            assert found == [(1, 1), (2, 2), (3, 3)]
        else:
            assert found == [(3, 3)]
        assert [row[1:] for row in fake.drawn(300)] == [(4, 4, "zq-away")]  # what came is in the slot of now
        assert fake.core.hidden == {"refuse": 3, "skip": 1}[gaps]
        assert store.account("ann").releases == {"refuse": 5, "skip": 3}[gaps]


def test_a_slot_that_is_released_late_has_what_came_in_it():
    """While the broker confirms nothing no slot is drawn; what comes meanwhile stays in its own."""
    fake = Fake(CodeStreams(setting_of()))
    fake.come("ann", 0, 1)
    fake.come("ann", 1, 61)
    fake.come("bob", 0, 130)
    ann = [("ann", 0, 0, "zq-home"), ("ann", 1, 1, "zq-away"), ("ann", 2, 2, NOTHING)]
    assert fake.drawn(185) == [*ann, ("bob", 0, 2, "zq-home")]


@pytest.mark.parametrize("secret", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_long_time_away_is_given_up_in_parts(secret):
    plain = {"epsilon": 1.0}
    guarded = {"mechanism": "guarded", "epsilon": None, "secrets": ever("zq-home", epsilon=0.5, window=4)}
    count = 1_100 if secret else 10_050
    fake = Fake(CodeStreams(setting_of(**(guarded if secret else plain)), gaps="skip"))
    fake.come("ann", 0, 1)
    fake.drawn(60)
    found = fake.drawn(60 * (count + 2))
    assert [(seq, minute) for _, seq, minute, _ in found][-1] == (count + 1, count + 1)
    assert len(found) == (3 if secret else 2)


def test_a_clock_that_goes_back_draws_nothing_again():
    fake = Fake(CodeStreams(setting_of()))
    fake.come("ann", 0, 1)
    assert len(fake.drawn(120)) == 2
    assert fake.drawn(30) == []
    assert fake.drawn(179) == []
    assert len(fake.drawn(180)) == 1


def test_a_slot_that_was_drawn_and_perhaps_not_published_is_published_again(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store)
        fake.come("ann", 0, 1, ident="7/ann")
        fake.come("bob", 1)
        fake.now = BEGIN + 60
        first = fake.slots.draw()  # killed before anything was published
        assert first.items == ["ann 0", "bob 1"]
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store, now=BEGIN + 70)
        again = fake.slots.unpublished()
        assert [(user, out.payload, out.repeated) for user, out in again] == [
            (user, out.payload, True) for user, out in first.releases
        ]
        assert not fake.come("ann", 0, ident="7/ann", again=True)  # it was counted in the slot that was drawn
        assert fake.come("ann", 0, ident="7/ann")  # a new message under an old name
        fake.slots.published = fake.slots.last
        assert len(fake.drawn(120)) == 2
        assert store.account("ann").events == 2
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store, now=BEGIN + 130)
        assert [json.loads(out.payload)["seqveil"]["seq"] for _, out in fake.slots.unpublished()] == [1, 1]


def test_a_message_that_comes_again_within_its_slot_counts_once():
    fake = Fake(CodeStreams(setting_of(rule="most")))
    fake.come("ann", 0, 1, ident="1/ann")
    fake.come("ann", 0, 1, ident="2/ann")
    for k, again in ((3, False), (3, True), (3, True)):
        fake.come("ann", 1, 2, ident=f"{k}/ann", again=again)
    assert fake.drawn(60)[0][3] == "zq-home"


def test_times_of_payloads_must_not_go_back():
    fake = Fake(CodeStreams(setting_of()))
    fake.come("ann", 0, 1, stamp=100.0)
    for stamp in (100.0, 99.0):
        with pytest.raises(Refusal, match="later time"):
            fake.come("ann", 1, 2, stamp=stamp)
    assert fake.drawn(60)[0][3] == "zq-home"


def test_places_say_when_their_slot_begins():
    grid = Grid.regular(4, 3, bounds=(8.0, 8.4, 49.0, 49.3))
    fake = Fake(CodeStreams(setting_of(grid)), "owntracks")
    fake.come("ann", 5, 1, stamp=BEGIN + 0.5)
    fake.now = BEGIN + 60
    said = json.loads(fake.slots.draw().releases[0][1].payload)
    assert (said["tst"], said["seqveil"]["slot"]) == (BEGIN, BEGIN)


def test_a_spent_budget_is_no_gap(tmp_path):
    setting = setting_of(epsilon=1.0, budget=Budget(total=2.0, when_spent="stop"))
    fake = Fake(CodeStreams(setting))
    fake.come("ann", 0, 1)
    found = fake.drawn(600)
    assert [seq for _, seq, *_ in found] == list(range(10))
    assert found[-1][3] is None


def test_a_mean_cannot_be_released_slot_by_slot():
    with pytest.raises(InputError, match="--slot last or --slot most"):
        Fake(CodeStreams(setting_of(Bins([0, 1, 2]), rule="mean")))


def test_a_file_of_events_is_none_of_slots():
    store = CodeStreams(setting_of())
    store.release(["ann"], [0])
    with pytest.raises(InputError, match="begun without slots"):
        Fake(store)


def test_slots_go_on_after_the_last_one_was_erased(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store)
        fake.come("ann", 0, 1)
        fake.now = BEGIN + 60
        fake.slots.draw()
    erase(tmp_path / "s.db", ["ann"], KEY)
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store, now=BEGIN + 70)
        assert list(fake.slots.unpublished()) == []
        fake.come("ann", 0, 1)
        assert [seq for _, seq, *_ in fake.drawn(120)] == [1]


def damage(path, name):
    with sqlite3.connect(path) as sql:
        assert sql.execute("UPDATE users SET spent = spent + 1 WHERE name = ?", (name,)).rowcount == 1
    sql.close()


def reasons(outcomes):
    return [each.reason if isinstance(each, Refusal) else type(each).__name__ for each in outcomes]


def test_a_damaged_stream_in_slots_is_refused_and_all_others_go_on(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store)
        fake.come("ann", 0, 1)
        fake.come("bob", 1)
        fake.drawn(60)
    damage(tmp_path / "s.db", "ann")
    with CodeStreams.open(tmp_path / "s.db", setting_of(), key=KEY) as store:
        fake = Fake(store, now=BEGIN + 70)
        assert reasons(out for _, out in fake.slots.unpublished()) in (["BridgeResult"], ["damaged", "BridgeResult"])
        fake.come("ann", 0)
        fake.now = BEGIN + 120
        assert reasons(out for _, out in fake.slots.draw().releases) == ["damaged", "BridgeResult"]


def test_slots_say_once_that_the_clock_went_back_or_ahead():
    fake, lines = Fake(CodeStreams(setting_of())), []
    fake.core.log = lambda *line: lines.append(line)
    fake.come("ann", 0, 1)
    fake.drawn(61)
    fake.drawn(60.5)  # set a little, which nobody need know
    assert lines == []
    fake.drawn(-600)
    fake.drawn(-599)
    (event, disclosed), *more = lines
    assert (event, disclosed["seconds"], more) == ("warning", 660, [])
    assert "behind" in disclosed["reason"]
    assert len(fake.drawn(121)) == 1
    assert len(lines) == 1
    assert len(fake.drawn(721)) == 10
    assert len(fake.drawn(781)) == 1
    assert [disclosed["slots"] for _, disclosed in lines[1:]] == [10]


@mosquitto.needed
def test_slots_at_a_real_broker(bridged):
    device, receiver, errors = bridged.device(), bridged.receiver(), bridged.receiver("errors")
    clock = [BEGIN]
    how = {"form": Form.parse("json:v"), "retained": "state", "clock": lambda: clock[0]}

    def seen():
        return [(topic.split("/")[-1], json.loads(payload)) for topic, payload in list(receiver.got)]

    with bridged.bridge(setting_of(), **how) as bridge:
        words = [("ann", "zq-away"), ("bob", "zq-secret"), ("ann", "zq-home")]
        device.send_all([(bridged.raw(user), json.dumps({"v": word}).encode()) for user, word in words])
        device.send_all([(bridged.raw("ann"), b'{"w": "zq-secret"}')])
        until(lambda: bridge.counts.received == 4)
        assert not receiver.got
        assert bridge.counts.acknowledged == 0  # they wait for their slot
        clock[0] += 60
        until(lambda: len(receiver.got) == 2)
        until(lambda: bridge.counts.acknowledged == 4)
        assert [(user, said["seqveil"]["seq"]) for user, said in seen()] == [("ann", 0), ("bob", 0)]
        assert seen()[0][1]["v"] == "zq-home"
        clock[0] += 60
        until(lambda: len(receiver.got) == 4)
        device.send_all([(bridged.raw("ann"), b'{"v": "zq-away"}')] * 30)  # more than the broker keeps under way
        until(lambda: bridge.counts.received == 34)
        assert bridge.hidden == 1
    assert [json.loads(payload)["reason"] for _, payload in errors.got] == ["member"]
    receiver.got.clear()
    with bridged.bridge(setting_of(), **how) as bridge:
        until(lambda: bridge.counts.received == 8)  # those that were left with the broker
        clock[0] += 60
        until(lambda: len(receiver.got) >= 4)
        fresh = {(user, said["seqveil"]["seq"]): said["v"] for user, said in seen()}
        assert fresh[("ann", 2)] == "zq-away"
        assert set(fresh) == {(user, seq) for user in ("ann", "bob") for seq in (1, 2)}
    with CodeStreams.open(bridged.state, setting_of(), key=KEY) as store:
        assert [store.account(user).events for user in ("ann", "bob")] == [3, 3]
    assert "zq-" not in repr(bridged.log)


@pytest.mark.slow
@mosquitto.needed
def test_the_command_killed_within_its_slots_draws_none_twice(bridged):
    """Slots of a second by the real clock; after each kill the slots that ended meanwhile are drawn as nobody's."""
    setting_of(epsilon=1.0, slot=1.0).model.save(bridged.folder / "m.model")
    device, receiver = bridged.device(), bridged.receiver()

    def disclosed():
        return {(topic, payload) for topic, payload in list(receiver.got)}

    for _ in range(4):
        with process(bridged, "--payload", "json:v") as running:
            meet(bridged, running)
            before = len(disclosed())
            device.send_all([(bridged.raw(user), b'{"v": "zq-home"}') for user in ("ann", "bob")])
            until(lambda: len(disclosed()) > before + 3)  # noqa: B023
            running.send_signal(signal.SIGKILL)
    assert "in the order in which events arrive" not in (bridged.folder / "log").read_text()
    for user in ("ann", "bob"):
        said = [json.loads(payload)["seqveil"] for topic, payload in disclosed() if topic.endswith(user)]
        seqs = sorted(one["seq"] for one in said)
        assert seqs == list(range(len(seqs)))  # none is missing, and none has two payloads
        begun = min(one["slot"] for one in said)
        assert all(one["slot"] - begun == one["seq"] for one in said)
