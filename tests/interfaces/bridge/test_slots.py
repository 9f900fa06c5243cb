"""Slots of time in the bridge: one release for each slot and stream, drawn once, whatever happened in it."""

import json
import signal

import pytest

import mosquitto
from bridges import KEY, Wire, came, core_of, damage, noted
from mosquitto import until
from seqveil.core.alphabet import Alphabet, Bins
from seqveil.core.errors import InputError
from seqveil.core.geography import Cells
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import ever
from seqveil.core.times import NOTHING, Slots
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import erase

SLOT = 60.0
BEGIN = 1_700_000_040.0  # a multiple of a minute
NAMES = Alphabet(["zq-home", "zq-away", NOTHING])
IDLE = 15  # times that nothing comes after each step, so that what has ended is drawn


def setting_of(alphabet=NAMES, rule="last", epsilon=16.0, mechanism="balanced", slot=SLOT, **options):
    """A setting in slots; with its large ε releases are nearly always the truth."""
    n = alphabet.n
    rows = [[0.5 if a == b else 0.5 / (n - 1) for b in range(n)] for a in range(n)]
    model = MarkovModel([1 / n] * n, rows, alphabet=alphabet.with_slots(Slots(slot, rule)))
    return Policy(epsilon=epsilon, mechanism=mechanism, **options).on(model)


class Life:
    """A bridge with a clock that is moved by hand, from its start to its end."""

    def __init__(self, store, *steps, begin=0.0, form="json:v"):
        """Messages come at moments, each a user and a value; what is published goes to `said`."""
        self.now, self.lines, self.wire = BEGIN + begin, [], Wire()
        self.core = core_of(store, form, self.wire, log=noted(self.lines), clock=lambda: self.now)
        for at, *messages in steps:
            self.wire.steps += [lambda at=at, messages=messages: self.at(at, messages), *([[]] * IDLE)]
        self.core.run()
        self.said = [said_of(user, payload) for user, payload in self.wire.published]

    def at(self, at, messages):
        self.now = BEGIN + at
        return [came(one[0], {"v": one[1]}, *one[2:]) if isinstance(one, tuple) else one for one in messages]

    @property
    def warnings(self):
        return [details for name, details in self.lines if name == "warning"]


def said_of(user, payload):
    """User, number, minute and value of a release."""
    said = json.loads(payload)
    return user, said["seqveil"]["seq"], (said["seqveil"]["slot"] - BEGIN) / SLOT, said.get("v")


def opened(path, gaps="refuse"):
    return CodeStreams.open(path, setting_of(), key=KEY, gaps=gaps)


def test_a_release_for_every_slot_something_or_nothing():
    steps = [(59.9,), (61, ("bob", "zq-away")), (62, ("ann", "zq-home")), (63, ("ann", "zq-away")), (119.9,)]
    assert Life(CodeStreams(setting_of()), *steps).said == []
    life = Life(CodeStreams(setting_of()), *steps, (121,), (180, ("bob", "zq-home")), (240,))
    assert life.said == [
        *(("ann", 0, 1, "zq-away"), ("bob", 0, 1, "zq-away"), ("ann", 1, 2, NOTHING), ("bob", 1, 2, NOTHING)),
        *(("ann", 2, 3, NOTHING), ("bob", 2, 3, "zq-home")),
    ]
    assert life.core.counts.released == 6


def test_numbers_go_on_with_the_value_before_and_a_kept_message_says_it():
    kept = came("bob", {"v": 25}, retained=True)
    steps = [(1, kept, ("ann", 15)), (60,), (120, ("bob", "off")), (180, ("ann", 5)), (240,)]
    life = Life(CodeStreams(setting_of(Bins([0, 10, 20, 30]))), *steps)
    said = {(user, minute): value for user, _, minute, value in life.said}
    assert [said["ann", minute] for minute in range(4)] == [15.0, 15.0, 15.0, 5.0]
    assert min(minute for user, minute in said if user == "bob") == 2  # what was kept begins no stream
    assert life.core.hidden == 2  # bob's value is not known in the slot after, either
    assert life.core.counts.states == 1


def test_the_most_frequent_message_of_a_slot_counts_each_message_once():
    words = {0: "zq-home", 1: "zq-away"}
    first = [("ann", words[code]) for code in (0, 1, 1, 0, 1)]
    even = [("ann", words[code]) for code in (1, 0, 1, 0)]
    again = [
        ("ann", "zq-home", 1),
        ("ann", "zq-home", 2),
        *(("ann", "zq-away", 3, again) for again in (False, True, True)),
    ]
    life = Life(CodeStreams(setting_of(rule="most")), (1, *first), (61, *even), (121, *again), (180,))
    assert [value for *_, value in life.said] == ["zq-away", "zq-home", "zq-home"]  # of two as frequent the later one


@pytest.mark.parametrize(("gaps", "drawn"), [("refuse", [1, 2, 3]), ("skip", [3])])
def test_slots_that_ended_while_nobody_was_there(tmp_path, gaps, drawn):
    """They are drawn as values that nobody knows, or given up; a slot that was drawn is not drawn again."""
    with opened(tmp_path / "s.db", gaps) as store:
        first = Life(store, (1, ("ann", "zq-home")), (60,)).said
        assert first == [("ann", 0, 0, "zq-home")]
    with opened(tmp_path / "s.db", gaps) as store:
        life = Life(store, (250, ("ann", "zq-away")), (300,), begin=250)
        assert life.said[0] == first[0]  # it may not have been published
        assert [(seq, minute) for _, seq, minute, _ in life.said[1:-1]] == [(k, k) for k in drawn]
        assert life.said[-1] == ("ann", 4, 4, "zq-away")  # what came is in the slot of now
        assert life.core.hidden == len(drawn)
        assert store.account("ann").releases == 2 + len(drawn)


def test_a_slot_that_is_released_late_has_what_came_in_it():
    """While the broker confirms nothing no slot is drawn; what comes meanwhile stays in its own."""
    life = Life(CodeStreams(setting_of()))
    life.wire.unconfirmed = []

    def confirm():
        assert [said_of(*one)[:2] for one in life.wire.published] == [("ann", 0)]
        for message in life.wire.unconfirmed:
            message.waits -= 1
        life.wire.unconfirmed = None
        return []

    def at(moment, *messages):
        return [lambda: life.at(moment, messages), [], []]

    life.wire.steps = [*at(1, ("ann", "zq-home")), *at(60), *at(61, ("ann", "zq-away")), *at(130, ("bob", "zq-home"))]
    life.wire.steps += [*at(185), confirm, [], [], []]
    life.core.run()
    ann = [("ann", 0, 0, "zq-home"), ("ann", 1, 1, "zq-away"), ("ann", 2, 2, NOTHING)]
    assert [said_of(*one) for one in life.wire.published] == [*ann, ("bob", 0, 2, "zq-home")]


@pytest.mark.parametrize("secret", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_long_time_away_is_given_up_in_parts(secret):
    plain = {"epsilon": 1.0}
    guarded = {"mechanism": "guarded", "epsilon": None, "secrets": ever("zq-home", epsilon=0.5, window=4)}
    count = 1_100 if secret else 10_050
    store = CodeStreams(setting_of(**(guarded if secret else plain)), gaps="skip")
    found = Life(store, (1, ("ann", "zq-home")), (60,), (60 * (count + 2),)).said[1:]
    assert found[-1][1:3] == (count + 1, count + 1)
    assert len(found) == (3 if secret else 2)


def test_a_clock_that_goes_back_draws_nothing_again_and_is_said_once():
    steps = [(1, ("ann", "zq-home")), (61,), (60.5,), (-600,), (-599,), (119,), (121,), (721,), (781,)]
    life = Life(CodeStreams(setting_of()), *steps)
    assert [seq for _, seq, *_ in life.said] == list(range(13))
    [back] = life.warnings
    assert "behind" in back["reason"]


def test_a_message_that_was_counted_in_a_slot_that_was_drawn_is_not_counted_again(tmp_path):
    with opened(tmp_path / "s.db") as store:
        first = Life(store, (1, ("ann", "zq-home", 7), ("bob", "zq-away")), (60,)).wire.published
    with opened(tmp_path / "s.db") as store:
        life = Life(store, (70, ("ann", "zq-away", 7, True)), (120, ("ann", "zq-away", 7)), (180,), begin=70)
        assert life.wire.published[:2] == first  # byte for byte
        assert [value for user, *_, value in life.said if user == "ann"] == ["zq-home", NOTHING, "zq-away"]
        assert store.account("ann").events == 3


def test_times_of_payloads_must_not_go_back_and_places_say_when_their_slot_begins():
    cells = Cells(10_000, (49.0, 49.3, 8.0, 8.4))
    place = {"_type": "location", "lat": 49.05, "lon": 8.15}
    sent = [came("ann", place | {"tst": BEGIN + at}) for at in (0.5, 0.5, 0.25)]
    life = Life(CodeStreams(setting_of(cells, distortion="metres")), (1, *sent), (60,), form="owntracks")
    assert life.wire.reasons == ["late", "late"]
    said = json.loads(life.wire.published[0][1])
    assert (said["tst"], said["seqveil"]["slot"]) == (BEGIN, BEGIN)


def test_a_spent_budget_is_no_gap():
    setting = setting_of(epsilon=1.0, budget=Budget(total=2.0, when_spent="stop"))
    found = Life(CodeStreams(setting), (1, ("ann", "zq-home")), (600,)).said
    assert [seq for _, seq, *_ in found] == list(range(10))
    assert found[-1][3] is None


def test_a_state_file_is_of_slots_or_of_events():
    store = CodeStreams(setting_of())
    store.release(["ann"], [0])
    with pytest.raises(InputError, match="begun without slots"):
        Life(store)
    store = CodeStreams(setting_of())
    Life(store, (1, ("ann", "zq-home")), (60,))
    with pytest.raises(InputError, match="begun in slots"):
        Life(store, form="seqveil")


def test_slots_go_on_after_somebody_was_erased_and_beside_somebody_damaged(tmp_path):
    path, both = tmp_path / "s.db", [("ann", "zq-home"), ("bob", "zq-away")]
    with opened(path) as store:
        Life(store, (1, *both), (60,))
    erase(path, ["ann"], KEY)
    with opened(path) as store:
        life = Life(store, (70, *both), (120,), begin=70)
        assert [each[:3] for each in life.said] == [("bob", 0, 0), ("bob", 1, 1)]
        assert set(life.wire.reasons) == {"erased"}
        Life(store, (130, ("cy", "zq-home")), (180,), begin=130)
    damage(path, "cy")
    both[0] = ("cy", "zq-home")
    with opened(path) as store:
        life = Life(store, (190, *both), (240,), begin=190)
        assert {each[0] for each in life.said} == {"bob"}
        assert set(life.wire.reasons) == {"damaged"}


@pytest.mark.slow
@mosquitto.needed
def test_the_command_killed_within_its_slots_draws_none_twice(bridged):
    """Slots of a second by the real clock; after each kill the slots that ended meanwhile are drawn as nobody's."""
    setting_of(epsilon=1.0, slot=1.0).model.save(bridged.folder / "m.model")
    device, receiver = bridged.device(), bridged.receiver()
    for _ in range(4):
        with bridged.process("--payload", "json:v") as running:
            bridged.meet(running)
            before = len(set(receiver.got))
            device.send_all([(bridged.raw(user), b'{"v": "zq-home"}') for user in ("ann", "bob")])
            until(lambda: len(set(receiver.got)) > before + 3)  # noqa: B023
            running.send_signal(signal.SIGKILL)
    assert "in the order in which events arrive" not in bridged.said()
    for user in ("ann", "bob"):
        said = [json.loads(payload)["seqveil"] for topic, payload in set(receiver.got) if topic.endswith(user)]
        seqs = sorted(one["seq"] for one in said)
        assert seqs == list(range(len(seqs)))  # none is missing, and none has two payloads
        begun = min(one["slot"] for one in said)
        assert all(one["slot"] - begun == one["seq"] for one in said)
