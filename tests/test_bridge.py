"""A bridge goes on where events are missing, or records are damaged or erased; erasing leaves no name behind."""

import json
import os
import signal
from contextlib import suppress

import pytest

import seqveil as sv
from bridges import KEY, VALUES, chain, setting_of
from seqveil.engine.accounting import Budget
from seqveil.engine.coded import CodeStreams
from seqveil.engine.upkeep import erase, verify
from seqveil.interfaces.bridge import DROPPED, BridgeResult, Core
from seqveil.interfaces.broker import Arrived
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import bridge
from seqveil.interfaces.commands.terminal import Interrupted
from seqveil.interfaces.mqtt import Broker, MqttBridge, Topics
from seqveil.interfaces.payloads import Form, PayloadEvent, Payloads, Refusal
from test_bridge_slots import damage, reasons


def core_of(store, form="seqveil", log=None):
    return Core(store, Payloads(store.setting, form=Form.parse(form)), "mqtt", log=log)


def released(path, events, setting=None, form="seqveil", log=None):
    with CodeStreams.open(path, setting or setting_of(), key=KEY) as store:
        return core_of(store, form, log).release(events)


def numbered(core, *seqs):
    return core.release([PayloadEvent("ann", seq, (seq % 3,)) for seq in seqs])


def test_an_event_that_leaves_others_out_is_refused_until_they_come():
    lines = []
    core = core_of(CodeStreams(setting_of()), log=lambda *line: lines.append(line))
    assert reasons(numbered(core, 0, 2)) == ["BridgeResult", "order"]
    assert reasons(numbered(core, 3)) == ["order"]
    assert core.counts.stalled == 1
    core.report()
    core.report()
    (said,) = [details for name, details in lines if name == "stalled"]
    assert "--gaps skip" in said["reason"]
    assert "ann" not in repr(lines)
    again = numbered(core, 1, 2, 0)
    assert [made.repeated for made in again] == [False, False, True]
    assert (core.counts.stalled, core.counts.released, core.counts.repeated) == (0, 3, 1)


def test_events_that_were_given_up_come_too_late():
    core = core_of(CodeStreams(setting_of(), gaps="skip"))
    made = numbered(core, 0, 2, 1)
    assert reasons(made) == ["BridgeResult"] * 3
    assert json.loads(made[2].payload)["value"] is None
    assert core.counts.stalled == 0
    assert reasons(numbered(core, 30_000)) == ["order"]  # more than may be given up at once


def test_an_event_whose_release_was_erased_stops_nothing_when_it_comes_again(tmp_path):
    path, lines = tmp_path / "s.db", []
    event = {"ident": "7/ann", "again": True}
    released(path, [PayloadEvent("ann", 0, (1,), **event), PayloadEvent("bob", 0, (1,))])
    erase(path, ["ann"], KEY)
    events = [PayloadEvent("ann", 0, (2,), **event), PayloadEvent("bob", 1, (1,))]
    gone, made = released(path, events, log=lambda *line: lines.append(line))
    assert gone is None
    assert not made.repeated
    assert lines == [("warning", {"reason": DROPPED})]


@pytest.mark.parametrize("numbered", [True, False])
def test_a_damaged_user_is_refused_and_all_others_go_on(tmp_path, numbered):
    path, form = tmp_path / "s.db", "seqveil" if numbered else "value"
    seq = (lambda k: k) if numbered else (lambda k: None)
    released(path, [PayloadEvent(user, seq(0), (1,)) for user in ("ann", "bob")], form=form)
    damage(path, "ann")
    with CodeStreams.open(path, setting_of(), key=KEY) as store:
        core = core_of(store, form)
        for k in (1, 2):
            events = [PayloadEvent(user, seq(k), (1,), ident=f"{k}/{user}") for user in ("ann", "bob")]
            assert reasons(core.release(events)) == ["damaged", "BridgeResult"]
            assert f"{k}/ann" not in core.numbers


def test_a_user_erased_for_good_is_refused_and_all_others_go_on(tmp_path):
    path = tmp_path / "s.db"
    setting = sv.Policy(secrets=sv.secrets.ever(VALUES[0], epsilon=0.5, window=4), mechanism="guarded").on(chain())
    released(path, [PayloadEvent(user, 0, (1,)) for user in ("ann", "bob")], setting)
    erase(path, ["ann"], KEY)
    outcomes = released(path, [PayloadEvent(user, 1, (1,)) for user in ("ann", "bob")], setting)
    assert reasons(outcomes) == ["erased", "BridgeResult"]
    assert json.loads(outcomes[0].payload())["seq"] == 1


@pytest.mark.parametrize("forget", [False, True])
def test_erasing_takes_the_time_of_the_latest_event_with_the_name(tmp_path, forget):
    path, now = tmp_path / "s.db", 1_700_000_000.0
    users = ["zq-ann", "numbers", "zq-ann:latest:x"]
    made = released(path, [PayloadEvent(user, None, (1,), now, now) for user in users], form="json:v")
    assert all(isinstance(each, BridgeResult) for each in made)
    assert b"mqtt:latest:zq-ann" in path.read_bytes()
    count, left = erase(path, ["zq-ann", "numbers"], KEY, forget)
    assert (count, left) == (2, [])
    assert path.read_bytes().count(b"zq-ann") == path.read_bytes().count(b"zq-ann:latest:x") > 0
    assert verify(path).sound
    with CodeStreams.open(path, setting_of(), key=KEY) as store:
        assert store.position("mqtt:latest:zq-ann") is store.position("mqtt:latest:numbers") is None
        assert store.position("mqtt:latest:zq-ann:latest:x") == repr(now)


def test_the_first_signal_lets_a_bridge_finish_and_the_second_does_not():
    class Working:
        stopped = 0

        def stop(self):
            self.stopped += 1

    working, before = Working(), signal.getsignal(signal.SIGTERM)
    with bridge._ended_by_signals(working):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
    assert working.stopped == 1
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_ends_no_bridge(monkeypatch):
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        assert bridge._log("started", {}) is None  # it raises nothing, which would end the bridge
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


def test_nobody_to_answer_means_that_no_ledger_is_dropped(tmp_path, capfd, monkeypatch):
    path = tmp_path / "s.db"
    released(path, [PayloadEvent("ann", 0, (1,))])
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert main(["state", "erase", str(path), "ann", "--forget-ledger"]) == 2
    assert "nothing was erased" in capfd.readouterr().err.splitlines()[-1]
    with CodeStreams.open(path, setting_of(), key=KEY) as store:
        assert store.account("ann").events == 1


def test_an_empty_file_is_refused_without_naming_options_that_are_not_there(tmp_path, capfd):
    (tmp_path / "s.db").touch()
    assert main(["state", "erase", str(tmp_path / "s.db"), "ann"]) == 2
    disclosed = capfd.readouterr().err
    assert "is empty" in disclosed
    assert "--begin" not in disclosed


def test_verify_counts_the_releases_that_are_there(tmp_path):
    path = tmp_path / "s.db"
    released(path, [PayloadEvent(user, seq, (1,)) for user in ("ann", "bob") for seq in range(3)])
    assert verify(path).releases == 6
    erase(path, ["ann"], KEY)
    assert verify(path).releases == 3
    assert verify(path).sound


class NoLink:
    """A broker that is asked for nothing."""

    broker = Broker("localhost", 1, "bridge")
    connection = 0

    def __init__(self):
        self.sent = []

    def publish(self, topic, payload, retain=False):
        self.sent.append(topic)
        return len(self.sent)


def test_a_clock_that_is_set_back_loses_no_event_under_a_budget_in_seconds():
    store, link, now = CodeStreams(setting_of(budget=Budget(per_window=3.0, seconds=60.0))), NoLink(), [1000.0]
    topics = Topics("raw/{user}", "released/{user}", "errors/{user}")
    made = MqttBridge(store, link, topics, form=Form.parse("value"), clock=lambda: now[0])
    for moment in (1000.0, 999.9, 500.0, 1001.0):
        now[0] = moment
        made._release([Arrived("raw/ann", VALUES[0].encode(), 0, False, False, 0, False)])
    assert link.sent == ["released/ann"] * 4
    assert [each.time for each in store.releases("ann")] == [1000.0, 1000.0, 1000.0, 1001.0]


@pytest.mark.parametrize("stamped", [True, False])
def test_a_late_event_takes_no_number_from_those_after_it(stamped):
    """By a time of its payload, or by the time that a budget in seconds counts by."""
    setting = setting_of(budget=Budget(per_window=3.0, seconds=60.0))
    core = Core(CodeStreams(setting), Payloads(setting, needs_seq=False), "kafka")
    events = [PayloadEvent("ann", None, (1,), time, time if stamped else None) for time in (10.0, 5.0, 11.0, 12.0)]
    disclosed = [
        one.reason if isinstance(one, Refusal) else json.loads(one.payload)["seq"] for one in core.release(events)
    ]
    assert disclosed == [0, "late", 1, 2]


def test_a_time_that_goes_back_is_refused_as_late():
    core = core_of(CodeStreams(setting_of(budget=Budget(per_window=3.0, seconds=60.0))))
    outcomes = core.release([PayloadEvent("ann", 0, (1,), 10.0)]) + core.release([PayloadEvent("ann", 1, (1,), 9.0)])
    assert reasons(outcomes) == ["BridgeResult", "late"]


OWN = {
    "mqtt": ["--broker", "localhost:1", "--raw", "a/{user}", "--released", "b/{user}"],
    "kafka": ["--bootstrap", "localhost:1", "--raw", "a", "--released", "b", "--group", "g"],
}


@pytest.fixture
def said(tmp_path, capfd, monkeypatch):
    """What a command says; nothing is reached, as it is refused before."""
    pytest.importorskip("paho")
    pytest.importorskip("confluent_kafka")
    monkeypatch.chdir(tmp_path)
    chain().save(tmp_path / "m.model")

    def call(kind, options, policy="epsilon = 1.0"):
        (tmp_path / "policy.toml").write_text(policy)
        kept = ["--model", "m.model", "--policy", "policy.toml", "--state", "s.db", "--begin"]
        assert main(["bridge", kind, *OWN[kind], *kept, *options]) == 2
        disclosed = capfd.readouterr().err
        assert len(disclosed.splitlines()) == 1
        return disclosed

    return call


REFUSED = {
    "mqtt": [
        ("--broker mqtt://x", "HOST"),
        ("--protocol 4", "3.1.1"),
        ("--gaps maybe", "gaps"),
        ("--on-refused maybe", "on_refused"),
        ("--on-unknown maybe", "on_unknown"),
        ("--raw raw/+", "topic"),
        ("--ca missing.pem", "missing.pem: cannot be used for TLS"),
        ("--cert-key missing.pem", "--cert"),
        ("--password-file missing", "--username"),
        ("--username u --password-file missing", "missing: the password cannot be read"),
        ("--password p", "No such option"),
    ],
    "kafka": [
        ("--raw", "topics"),
        ("--released a", "differ"),
        ("--partitions 3-1", "partitions"),
        ("--client missing", "missing: cannot be read"),
        ("--payload json", "payload"),
        ("--mapping missing", "missing: cannot be read"),
        ("--payload owntracks", "Grid"),
        ("--on-refused maybe", "on_refused"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "text"), [(kind, *case) for kind, all in REFUSED.items() for case in all])
def test_the_command_refuses_in_one_line(said, kind, options, text):
    assert text in said(kind, ["--raw", "a b"] if options == "--raw" else options.split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mqtt", "kafka"])
def test_so_it_does_a_bad_policy(said, kind):
    assert "policy.toml: 'epsilom' is no line of a policy" in said(kind, [], "epsilom = 1.0")
    assert "policy.toml: expected epsilon to be a finite number" in said(kind, [], 'epsilon = "much"')
    assert "batches" in said(kind, ["--payload", "json:a"], "epsilon = 3.0\nbatch = 3")
