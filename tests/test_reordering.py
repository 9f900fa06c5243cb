"""Events that overtake others wait for a while; then the policy for gaps decides, and nothing is lost or doubled."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mosquitto
from bridges import KEY, VALUES, Place, event, published, send, setting_of
from mosquitto import until
from seqveil.core.errors import InputError
from seqveil.engine.streams import Streams
from seqveil.interfaces.bridge import Core, Made
from seqveil.interfaces.payloads import Event, Payloads, Refusal
from seqveil.interfaces.reordering import Reorder, Window


def core_of(store, **limits):
    lines = []
    core = Core(store, Payloads(store.setting), "mqtt", log=lambda *line: lines.append(line), reorder=Reorder(**limits))
    core.lines = lines
    return core


def of(*seqs, user="ann"):
    return [(f"{user}{seq}", Event(user, seq, (seq % 3,))) for seq in seqs]


def worked(core, arrivals, hurry=False):
    """What a source does with arrivals: the numbers that were drawn, and those refused."""
    found = core.in_order(arrivals, hurry)
    made = core.release([one for _, one in found.ready])
    drawn = [one.seq for (_, one), out in zip(found.ready, made, strict=True) if isinstance(out, Made)]
    return drawn, [out.seq for out in made if isinstance(out, Refusal)]


def waited(core, seconds):
    """As if the clock had moved on by so much."""
    for events in core.window._held.values():
        for seq, one in events.items():
            events[seq] = one._replace(since=one.since - seconds)


def test_an_event_that_overtook_another_waits_for_it():
    core = core_of(Streams(setting_of()), most=4, wait=5.0)
    assert worked(core, of(0, 2)) == ([0], [])
    assert worked(core, of(3) + of(0, user="bob")) == ([0], [])
    assert len(core.window) == 2
    assert worked(core, of(1)) == ([1, 2, 3], [])
    assert (len(core.window), core.counts.reordered, core.counts.stalled, core.counts.released) == (0, 2, 0, 5)


def test_without_a_window_nothing_waits():
    core = core_of(Streams(setting_of()), most=0)
    assert worked(core, of(0, 2, 1)) == ([0, 1], [2])
    assert core.counts.stalled == 0  # the missing one came


@pytest.mark.parametrize("end", ["time", "number", "hurry"])
def test_after_the_wait_the_stream_is_stalled_and_says_so(end):
    core = core_of(Streams(setting_of()), most=3, wait=5.0)
    worked(core, of(0, 2, 4))
    assert worked(core, []) == ([], [])
    if end == "time":
        waited(core, 6.0)
    found = worked(core, of(6, 8) if end == "number" else [], end == "hurry")
    assert found == ([], [2, 4] if end == "time" else [2])
    assert core.window.due == (float("inf") if end == "time" else -float("inf"))  # the others wait for nothing any more
    assert worked(core, [])[1] == {"time": [], "number": [4, 6, 8], "hurry": [4]}[end]
    assert core.counts.stalled == 1
    assert worked(core, of(9)) == ([], [9])  # at once
    core.report()
    core.report()
    said = [line for line in core.lines if line[0] == "stalled"]
    assert len(said) == 1
    assert "--gaps skip" in said[0][1]["reason"]
    assert "ann" not in repr(core.lines)
    assert worked(core, of(1, 2)) == ([1, 2], [])
    assert core.counts.stalled == 0
    assert worked(core, of(4)) == ([], [])  # and waits again


def test_what_is_missing_is_given_up_after_the_wait():
    core = core_of(Streams(setting_of(), gaps="skip"), most=3, wait=5.0)
    assert worked(core, of(0, 2, 5)) == ([0], [])
    waited(core, 3.0)
    assert worked(core, of(7)) == ([], [])
    waited(core, 3.0)
    assert worked(core, []) == ([2, 5], [])
    waited(core, 3.0)
    assert worked(core, of(6)) == ([6, 7], [])
    assert core.counts.stalled == 0
    assert worked(core, of(1))[0] == [1]  # answered with nothing: its place was given up
    jump = of(30_000)
    worked(core, jump)
    waited(core, 6.0)
    assert worked(core, []) == ([], [30_000])  # more than may be given up at once
    assert core.counts.stalled == 1


def test_an_event_that_comes_again_while_it_waits_takes_the_place_of_the_first():
    core = core_of(Streams(setting_of()), most=1, wait=5.0)
    assert core.in_order(of(1)).replaced == []
    waited(core, 3.0)
    again = core.in_order([("second", Event("ann", 1, (2,)))])
    assert (again.replaced, again.ready, len(core.window)) == (["ann1"], [], 1)
    waited(core, 3.0)
    assert worked(core, []) == ([], [1])  # it has waited since it came first


def test_too_many_in_all_let_the_oldest_go():
    window = Window(Reorder(most=5, wait=9.0, total=2))
    upcoming = lambda users: dict.fromkeys("abc", 0)  # noqa: E731
    assert window.sort([("a", Event("a", 3, (0,)))], upcoming, 0.0).ready == []
    assert window.sort([("b", Event("b", 3, (0,)))], upcoming, 1.0).ready == []
    gone = window.sort([("c", Event("c", 3, (0,)))], upcoming, 2.0).ready
    assert [item for item, _ in gone] == ["a"]
    assert len(window) == 2


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.booleans()), max_size=30),
    st.integers(0, 4),
    st.integers(1, 5),
)
def test_whatever_comes_is_ready_once_or_held_or_replaced(arrivals, most, total):
    """Nothing is lost or doubled by the window, and it stays within its bounds."""
    window, after, out, clock = Window(Reorder(most=most, wait=2.0, total=total)), {"a": 0, "b": 0}, [], 0.0
    for k, (user, seq, pause) in enumerate(arrivals):
        clock += 3.0 if pause else 0.1
        found = window.sort([(k, Event(user, seq, (0,)))], lambda users: after, clock)
        for item, one in found.ready:
            if one.seq == after[one.user]:
                after[one.user] += 1
            out.append(item)
        out += found.replaced
        assert len(window) <= total
        assert all(len(events) <= most for events in window._held.values())
        assert window.due >= clock
    held = [one.item for events in window._held.values() for one in events.values()]
    assert sorted(out + held) == list(range(len(arrivals)))
    assert len(held) == len(window)


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(6)))
def test_any_order_within_the_window_is_released_as_the_right_one(order):
    streams = Streams(setting_of())
    core = core_of(streams, most=6, wait=60.0)
    drawn = [seq for k in order for seq in worked(core, of(k))[0]]
    assert drawn == list(range(6))
    assert (core.counts.released, core.counts.repeated, streams.standing("ann").events) == (6, 0, 6)


@pytest.mark.parametrize("limits", [{"most": -1}, {"most": 10_001}, {"wait": 0.0}, {"wait": float("nan")}])
def test_limits_that_cannot_be_are_refused(limits):
    with pytest.raises(InputError, match="expected"):
        Reorder(**limits)


@mosquitto.needed
def test_events_out_of_order_at_a_real_broker(bridged):
    """Held events are not acknowledged: a bridge that ends leaves them, and the next one has them again."""
    device, receiver, errors = bridged.device(), bridged.receiver(), bridged.receiver("errors")
    with bridged.bridge(reorder=Reorder(8, 60.0)) as bridge:
        send(bridged, device, [("ann", seq, VALUES[0]) for seq in (0, 2, 3)] + [("bob", 0, VALUES[1])])
        until(lambda: len(published(receiver)) == 2)
        until(lambda: bridge.counts.reordered == 2)
        until(lambda: bridge.counts.acknowledged == 1)  # the one before those that wait
    assert bridged.log[-1][1]["left with the broker"] == 3
    with bridged.bridge(reorder=Reorder(8, 60.0)) as bridge:
        send(bridged, device, [("ann", 1, VALUES[2])])
        until(lambda: bridge.counts.acknowledged == 4)
        assert (bridge.counts.released, bridge.counts.repeated) == (3, 1)
    told = published(receiver)
    assert set(told) == {("ann", seq) for seq in range(4)} | {("bob", 0)}
    assert all(len(set(payloads)) == 1 for payloads in told.values())
    with bridged.bridge(reorder=Reorder(8, 0.2)) as bridge:
        device.send_all([(bridged.raw("ann"), event(seq, VALUES[0])) for seq in (6, 5)])
        until(lambda: bridge.counts.acknowledged == 2)
        assert bridge.counts.stalled == 1
    until(lambda: len(errors.got) == 2)
    said = [json.loads(payload) for _, payload in errors.got]
    assert [(one["seq"], one["next"]) for one in said] == [(5, 4), (6, 4)]
    assert all("--gaps skip" in one["detail"] for one in said)
    assert "stalled" in [name for name, _ in bridged.log]
    with Streams.open(bridged.state, setting_of(), key=KEY) as store:
        assert store.standing("ann").events == 4


@mosquitto.needed
def test_a_broker_that_waits_for_acknowledgements_is_not_waited_for(bridged):
    """All that may be under way is held back or behind it, so the missing event could never come."""
    device, receiver = bridged.device(), bridged.receiver()
    bridged.broker = lambda **options: Place.broker(bridged, in_flight=4, **options)
    with bridged.bridge(gaps="skip", reorder=Reorder(8, 300.0)) as bridge:
        numbers = (("ann", 1), ("bob", 0), ("bob", 1), ("bob", 2), ("bob", 3), ("ann", 0), ("ann", 2))
        send(bridged, device, [(user, seq, VALUES[0]) for user, seq in numbers])
        until(lambda: bridge.counts.acknowledged == 7)
    assert set(published(receiver)) == set(numbers)
