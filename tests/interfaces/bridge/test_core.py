"""The core of all bridges: each event once, whatever comes again, is refused, damaged or erased; and the command."""

import itertools
import json
import os
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv
from bridges import KEY, SECRET, VALUES, Wire, came, chain, core_of, damage, event, noted, setting_of
from seqveil.core.model import MarkovModel
from seqveil.core.times import Slots
from seqveil.engine.budget import Budget
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import erase, verify
from seqveil.interfaces.bridge.core import KEPT, Numbers
from seqveil.interfaces.bridge.payloads import PayloadEvent, Refusal
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import bridge


def released(path, *messages, setting=None, form="seqveil", **options):
    """What a bridge that begins with this state file publishes of messages."""
    with CodeStreams.open(path, setting or setting_of(), key=KEY) as store:
        wire = Wire()
        core_of(store, form, wire, **options).round(messages)
    return wire


def seqs(wire):
    return [(user, json.loads(payload).get("seqveil", json.loads(payload))["seq"]) for user, payload in wire.published]


MESSAGES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=12)
LIVES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)), max_size=6)


@pytest.mark.slow
@settings(deadline=None)  # the first one may compile
@given(MESSAGES, LIVES, st.booleans())
def test_cut_anywhere_each_message_is_drawn_once(events, lives, certain):
    """In each life some more messages come, some are acknowledged, and of those some come again nevertheless."""
    sent = [(user, {"v": VALUES[code]}, mid) for mid, (user, code) in enumerate(events)]
    store, taken, acknowledged, drawn = CodeStreams(setting_of()), 0, 0, 0
    answers = {mid: set() for _, _, mid in sent}
    for more, settled, lost in [*lives, (len(sent), len(sent), 0)]:
        wire = Wire(certain=certain)
        core = core_of(store, "json:v", wire)
        first, taken, before = max(0, acknowledged - lost), min(taken + more, len(sent)), taken
        core.round([came(*message, again=message[2] < before) for message in sent[first:taken]])
        assert not wire.refused
        for mid, (user, payload) in zip(range(first, taken), wire.published, strict=True):
            assert user == sent[mid][0]
            answers[mid].add(payload)
        acknowledged, drawn = max(acknowledged, min(taken, acknowledged + settled)), drawn + core.counts.released
    assert drawn == len(sent)
    assert all(len(payloads) == 1 for payloads in answers.values())
    for user in {user for user, _, _ in sent}:
        numbers = [json.loads(*answers[mid])["seqveil"]["seq"] for name, _, mid in sent if name == user]
        assert numbers == list(range(len(numbers)))


def numbered(seq):
    return {"value": VALUES[0]} | ({} if seq is None else {"seq": seq})


def dated(time):
    return {"value": VALUES[0], "at": 1_700_000_000 + time}


@pytest.mark.parametrize(
    ("form", "gaps", "content", "choices"),
    [
        ("seqveil", "refuse", numbered, (None, 0, 1, 2)),
        ("seqveil", "skip", numbered, (None, 0, 1, 2)),
        ("json:value@at", "refuse", dated, (0, 1, 2)),
    ],
)
def test_read_again_each_message_has_the_same_outcome(form, gaps, content, choices):
    """Where no message is published twice: all rounds of four messages, read again as a whole and one by one."""
    for chosen in itertools.product(choices, repeat=4):
        store = CodeStreams(setting_of(), gaps=gaps)

        def read(places, again=True):
            wire, came_as = Wire(certain=True), [(k, content(chosen[k])) for k in places]  # noqa: B023
            core_of(store, form, wire).round([came("ann", each, f"0:{k}", again) for k, each in came_as])  # noqa: B023
            return wire.published, [refusal.payload() for _, refusal in wire.refused]

        released, errors = read(range(4), again=False)
        assert len(released) == len(set(released)) >= chosen.count(None)
        assert read(range(4)) == (released, errors)
        alone = [read([k]) for k in range(4)]
        assert [payload for one, _ in alone for payload in one] == released
        assert [error for _, one in alone for error in one] == errors


class Cut(BaseException):
    """Stands for the end of a process."""


class CutStreams(CodeStreams):
    """Streams whose process ends after so many transactions."""

    left = -1

    def release(self, *given):
        made = super().release(*given)
        self.left -= 1
        if not self.left:
            raise Cut
        return made


@pytest.mark.parametrize("stamped", [True, False])
def test_cut_between_two_transactions_of_a_round_it_ends_as_if_it_were_not(stamped):
    """Times that go back split a round."""
    setting, cuts = setting_of(budget=Budget(per_window=9.0, seconds=60.0)), 0
    for times in itertools.product((5.0, 6.0, 7.0), repeat=4):
        whole = None
        for left in (-1, 1, 2, 3):
            store = CutStreams(setting)
            store.left, again, made = left, False, None
            while made is None:
                events = [
                    PayloadEvent("ann", None, 1, time, time if stamped and k % 2 else None, f"{k}/ann", again)
                    for k, time in enumerate(times)
                ]
                with suppress(Cut):
                    made = core_of(store, wire=Wire(certain=True)).release(events)
                again = True
            cuts += left > 0 and store.left < 0
            found = [one.payload() if isinstance(one, Refusal) else json.loads(one)["seq"] for one in made]
            whole = whole or found
            assert found == whole
    assert cuts


def test_a_name_that_the_broker_uses_anew_is_a_new_event(tmp_path):
    """Be it that the same session goes on, or that the broker has forgotten it."""
    path, form = tmp_path / "s.db", {"form": "value"}
    for _ in range(2):
        assert released(path, came("ann", b"zq-up", 7), **form).published
    with CodeStreams.open(path, setting_of(), key=KEY) as store:
        assert store.account("ann").events == 2
        core_of(store).numbers.forget()
    released(path, came("ann", b"zq-up", 7, again=True), **form)
    released(path, came("bob", b"zq-up", 7, again=True), **form)  # nor is another user's message the same
    with CodeStreams.open(path, setting_of(), key=KEY) as store:
        assert [store.account(user).events for user in ("ann", "bob")] == [3, 1]


@pytest.mark.parametrize("count", [1, KEPT, 2 * KEPT + 7])
def test_the_latest_names_are_known_after_a_restart_and_no_older_ones(count):
    store = CodeStreams(setting_of())
    numbers = Numbers(store, "mqtt")
    for k in range(count):
        numbers.add(PayloadEvent("ann", None, 0, ident=f"{k}/ann"), k)
        if k % 7 == 0 or k == count - 1:
            store.release([], [], [], None, numbers.unsaved())
            numbers.saved()
    again = Numbers(store, "mqtt")
    known = [again.of(PayloadEvent("ann", None, 0, ident=f"{k}/ann", again=True)) for k in range(count)]
    assert known == [k if k >= count - KEPT else None for k in range(count)]
    again.forget()
    assert Numbers(store, "mqtt").of(PayloadEvent("ann", None, 0, ident=f"{count - 1}/ann", again=True)) is None


def test_events_with_and_without_numbers_do_not_take_each_others():
    wire = Wire()
    core = core_of(CodeStreams(setting_of()), wire=wire)
    numbers = (0, None, 9, None, 3, 3, None)
    core.round([came("ann", {"value": "zq-up"} | ({} if seq is None else {"seq": seq})) for seq in numbers])
    assert [seq for _, seq in seqs(wire)] == [0, 1, 2, 3, 3, 4]
    assert wire.reasons == ["order"]
    assert (core.counts.released, core.counts.repeated) == (5, 1)


def test_an_event_that_leaves_others_out_is_refused_until_they_come():
    wire, lines = Wire(), []
    core = core_of(CodeStreams(setting_of()), wire=wire, log=noted(lines))
    for seq in (0, 2, 3, 1, 2):
        core.round([came("ann", event(seq, VALUES[seq % 3]))])
    assert seqs(wire) == [("ann", 0), ("ann", 1), ("ann", 2)]
    assert [(refusal.seq, refusal.upcoming) for _, refusal in wire.refused] == [(2, 1), (3, 1)]
    core.report()
    assert core.counts.refused == {"order": 2}
    assert lines == [("refused", {"reasons": {"order": 2}, "received": 5})]
    assert "ann" not in repr(lines) + repr(came("ann", SECRET.encode()))


def test_events_that_were_given_up_come_too_late():
    wire = Wire()
    core = core_of(CodeStreams(setting_of(), gaps="skip"), wire=wire)
    core.round([came("ann", {"value": VALUES[0]} | seq) for seq in ({"seq": 5}, {}, {"seq": 30_000}, {})])
    assert seqs(wire) == [("ann", 5), ("ann", 6), ("ann", 7)]
    wire = core.link = Wire()
    core.round([came("bob", event(seq, VALUES[0])) for seq in (0, 2, 1, 30_000)])
    assert [json.loads(payload)["value"] is None for _, payload in wire.published] == [False, False, True]
    assert wire.reasons == ["order"]  # more than may be given up at once


@pytest.mark.parametrize("stamped", [True, False])
def test_late_events_are_refused_and_take_no_number_also_after_a_restart(tmp_path, stamped):
    """By a time of their payload, or by the time that a budget in seconds counts by."""
    setting = setting_of(budget=Budget(per_window=3.0, seconds=60.0))
    for times, expected in (((5.0, 6.0, 4.0, 7.0), [0, 1, "late", 2]), ((6.5, 8.0), ["late", 3])):
        with CodeStreams.open(tmp_path / "s.db", setting, key=KEY) as store:
            events = [PayloadEvent("ann", None, 1, time, time if stamped else None) for time in times]
            made = core_of(store).release(events)
        disclosed = [one.reason if isinstance(one, Refusal) else json.loads(one)["seq"] for one in made]
        assert disclosed == expected


def test_a_clock_that_is_set_back_loses_no_event_under_a_budget_in_seconds():
    store, now = CodeStreams(setting_of(budget=Budget(per_window=3.0, seconds=60.0))), iter((1000.0, 500.0, 1001.0))
    core = core_of(store, "value", clock=lambda: next(now))
    for _ in range(3):
        core.round([came("ann", b"zq-up")])
    assert [each.time for each in store.releases("ann")] == [1000.0, 1000.0, 1001.0]


@pytest.mark.parametrize("numbered", [True, False])
def test_a_damaged_user_is_refused_and_all_others_go_on(tmp_path, numbered):
    path = tmp_path / "s.db"

    def both(seq):
        content = {"value": "zq-up"} | ({"seq": seq} if numbered else {})
        return released(path, *(came(user, content, seq) for user in ("ann", "bob")))

    both(0)
    damage(path, "ann")
    for seq in (1, 2):
        wire = both(seq)
        assert (seqs(wire), wire.reasons) == ([("bob", seq)], ["damaged"])


def test_who_was_erased_is_not_drawn_again_and_all_others_go_on(tmp_path):
    path = tmp_path / "s.db"
    released(path, came("ann", event(0, VALUES[1])), came("bob", event(0, VALUES[1])))
    erase(path, ["ann"], KEY)
    wire = released(path, came("ann", event(1, VALUES[1])), came("bob", event(1, VALUES[1])))
    assert (seqs(wire), wire.reasons) == ([("bob", 1)], ["erased"])


def test_erasing_takes_what_the_bridge_keeps_of_a_name(tmp_path):
    path, now = tmp_path / "s.db", 1_700_000_000.0
    users = ["zq-ann", "numbers", "zq-ann:latest:x"]
    messages = [came(user, {"v": VALUES[0], "t": now}, mid) for mid, user in enumerate(users)]
    assert len(released(path, *messages, form="json:v@t").published) == 3
    assert b"mqtt:latest:zq-ann" in path.read_bytes()
    assert b"0/zq-ann" in path.read_bytes()
    assert erase(path, ["zq-ann", "numbers"], KEY) == 2
    assert path.read_bytes().count(b"zq-ann") == path.read_bytes().count(b"zq-ann:latest:x") > 0
    assert verify(path).sound
    again = [came(user, {"v": VALUES[0], "t": now}, mid, again=True) for mid, user in enumerate(users)]
    wire = released(path, *again, form="json:v@t")
    assert seqs(wire)[-1] == ("zq-ann:latest:x", 0)  # who was not erased is known again


# the command


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_ends_no_bridge(monkeypatch):
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        assert bridge.log("started") is None  # it raises nothing, which would end the bridge
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


OWN = {
    "mqtt": ["--broker", "localhost:1", "--raw", "a/{user}", "--released", "b/{user}"],
    "kafka": ["--bootstrap", "localhost:1", "--raw", "a", "--released", "b"],
}


@pytest.fixture
def said(tmp_path, capfd, monkeypatch):
    """What a command says; nothing is reached and nothing is made, as it is refused before."""
    pytest.importorskip("paho")
    pytest.importorskip("confluent_kafka")
    monkeypatch.chdir(tmp_path)
    chain().save(tmp_path / "m.model")
    slotted = sv.core.alphabet.Bins([0, 1, 2]).with_slots(Slots(60.0, "mean"))
    MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], alphabet=slotted).save(tmp_path / "mean.model")

    def call(kind, options, policy="epsilon = 1.0"):
        (tmp_path / "policy.toml").write_text(policy)
        kept = ["--model", "m.model", "--policy", "policy.toml", "--state", "s.db", "--begin", "--key", "key"]
        assert main(["bridge", kind, *OWN[kind], *kept, *options]) == 2
        disclosed = capfd.readouterr().err
        assert len(disclosed.splitlines()) == 1
        assert not any((tmp_path / name).exists() for name in ("s.db", "s.db-lock", "key"))
        return disclosed

    return call


REFUSED = {
    "mqtt": [
        *((f"--broker {odd}", "HOST") for odd in ("http://x", "host:0", "host:x", "a:b@host", "[::1", "host/x", ":1")),
        ("--gaps maybe", "gaps"),
        ("--raw raw/+", "topic"),
        ("--discovery a/+", "prefix"),
        ("--ca missing.pem", "missing.pem: cannot be used for TLS"),
        ("--cert missing.pem", "missing.pem: cannot be used for TLS"),
        ("--password-file policy.toml", "NAME@HOST"),
        ("--broker u@localhost --password-file missing", "missing: the password cannot be read"),
        ("--password p", "No such option"),
        ("--metrics x", "PORT"),
        ("--metrics 70000", "PORT"),
        ("--payload xml", "payload"),
        ("--payload owntracks", "places"),
        ("--model mean.model --payload value", "--slot last"),
    ],
    "kafka": [
        ("--released a", "differ"),
        ("--client missing", "missing: cannot be read"),
        ("--payload json", "payload"),
        ("--metrics [::1]:99999", "PORT"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "text"), [(kind, *case) for kind, all in REFUSED.items() for case in all])
def test_the_command_refuses_in_one_line_before_anything_is_made(said, kind, options, text):
    assert text in said(kind, options.split())
