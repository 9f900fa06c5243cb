"""The Kafka bridge at librdkafka's mock cluster: each event drawn once and published once, whatever is cut."""

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("confluent_kafka")


from confluent_kafka import KafkaError, KafkaException

from benchmarks import live_kills
from bridges import KEY, SECRET, VALUES, chain, setting_of
from kafkas import KeepingLink, Place, once
from mosquitto import PATIENCE, ended, until
from reference import streams as ref
from seqveil.core.errors import InputError
from seqveil.core.randomness import key_file
from seqveil.core.secrets import ever
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import backup
from seqveil.interfaces.bridge import kafka
from seqveil.interfaces.bridge.core import BrokerError
from seqveil.interfaces.bridge.kafka import Cluster, KafkaLink
from served import salt_of


@pytest.fixture(scope="module")
def address():
    with live_kills.cluster() as found:
        yield found


@pytest.fixture
def place(address, tmp_path, request):
    return Place(address, tmp_path, f"t{abs(hash(request.node.name))}")


def some(users=3, each=20, seed=0, numbered=False):
    chance = random.Random(seed)
    turns = [(f"user {u}", seq) for seq in range(each) for u in range(users)]
    return [(u, ({"seq": seq} if numbered else {}) | {"value": chance.choice(VALUES)}) for u, seq in turns]


class Killed(Exception):
    """Stands for the end of a process."""


class Dying(KeepingLink):
    """Ends the bridge at a chance point around the transaction."""

    def write(self, messages, offsets, name):
        before, after = DICE.random() < 0.3, DICE.random() < 0.3
        if before:
            raise Killed
        super().write(messages, offsets, name)
        if after:
            raise Killed

    def read(self, most, timeout):
        return super().read(DICE.randrange(1, 15), timeout)


DICE = random.Random(3)
PROMISES = {
    "numbered": Policy(epsilon=1.0, mechanism="balanced"),
    "unnumbered": Policy(epsilon=1.0, mechanism="balanced"),
    "blocks": Policy(epsilon=5.0, block=5),
    "secrets": Policy(secrets=[ever(VALUES[0], epsilon=0.5, window=6)]),
}


def as_by_a_run_that_is_not_cut(place, terms, key, events, disclosed):
    """Each event once, and as a run that is not cut draws it: hidden bits, and what secrets remember, came back too."""
    assert {len(set(payloads)) for payloads in disclosed.values()} == {1}
    twin, alphabet = ref.twin(terms, salt_of(place.state), key), terms.model.alphabet
    for user in {user for user, _ in events}:
        codes = alphabet.encode([one["value"] for name, one in events if name == user])
        whole = alphabet.decode(twin.release([user] * codes.size, codes).codes)
        assert [json.loads(disclosed[user, seq][0])["value"] for seq in range(codes.size)] == whole
    assert len(disclosed) == len(events)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROMISES)
def test_killed_at_any_point_of_a_round_nothing_is_lost_or_published_twice(place, kind):
    events, terms = some(users=4, each=25, numbered=kind == "numbered"), PROMISES[kind].on(chain())
    CodeStreams(terms).release(["nobody"], [0])  # whatever must be compiled is, before anything waits for it
    place.send(events)
    twice = events[:3] if kind == "numbered" else []  # by its producer
    place.send(twice)
    total, done, drawn = len(events) + len(twice), 0, 0
    for _ in range(60):
        with place.bridge(link=Dying, terms=terms) as bridge:
            until(lambda: bridge.failures or done + bridge.counts.acknowledged >= total)  # noqa: B023
        drawn += bridge.counts.released
        done = sum(at for at, _ in committed(place).values())
        assert all(isinstance(failure, Killed) for failure in bridge.failures), bridge.failures
        if done == total:
            break
    assert (done, drawn) == (total, 100)
    disclosed = once(place.received(100))
    assert {len(payloads) for payloads in disclosed.values()} == {1}
    as_by_a_run_that_is_not_cut(place, terms, KEY, events, disclosed)


@pytest.mark.slow
def test_cut_before_anything_is_published_refusals_and_releases_stand_once(place):
    """The first message leaves others out, and its number comes again in time."""

    class Cut(KeepingLink):
        def write(self, messages, offsets, name):
            raise Killed

    place.send([("ann", {"seq": seq, "value": VALUES[0]}, 0) for seq in (2, 0, 1, 2)])
    for link in (Cut, Cut, KeepingLink):
        with place.bridge(link=link) as bridge:
            until(lambda: bridge.failures or bridge.counts.acknowledged == 4)
    assert not bridge.failures
    assert [json.loads(payload)["seq"] for _, payload in place.received(3)] == [0, 1, 2]
    [(_, error)] = place.received(1, "errors")
    said = json.loads(error)
    assert (said["seq"], said["reason"], said["next"]) == (2, "order", 0)


def committed(place):
    link = KeepingLink(place.cluster)
    try:
        return link.committed(4)
    finally:
        link.close()


BAD = [
    ("ann", SECRET.encode(), "json"),
    ("ann", {"seq": 0}, "shape"),
    ("ann", {"seq": 9, "value": VALUES[0]}, "order"),
    ("ann", {"value": SECRET * 6000}, "size"),
    (None, {"value": VALUES[0]}, "key"),
    (b"\xff", {"value": VALUES[0]}, "key"),
    ("x" * 300, {"value": VALUES[0]}, "key"),
    ("ann", None, None),
]


@pytest.mark.slow
def test_what_cannot_be_released_is_reported_and_stops_nothing(place):
    place.send([("ann", {"value": SECRET}, 0), *[(user, payload, 0) for user, payload, _ in BAD]])
    place.send([("ann", {"value": VALUES[1]}, 0)])
    with place.bridge() as bridge:
        until(lambda: bridge.failures or bridge.counts.acknowledged == len(BAD) + 2)
    assert not bridge.failures
    reasons = [reason for *_, reason in BAD if reason]
    assert bridge.counts.refused == {reason: reasons.count(reason) for reason in reasons}
    assert (bridge.counts.released, bridge.hidden, bridge.counts.states) == (2, 1, 1)
    assert sorted(once(place.received(2))) == [("ann", 0), ("ann", 1)]
    errors = place.received(len(reasons), "errors")
    assert sorted(json.loads(payload)["reason"] for _, payload in errors) == sorted(reasons)
    everything = repr(place.log) + repr(errors)
    assert SECRET not in everything
    files = b"".join(path.read_bytes() for path in place.folder.glob("state.db*"))
    assert b"zq-" not in files


@pytest.mark.slow
def test_another_state_file_an_older_one_and_other_partitions_are_refused(place, monkeypatch):
    place.send([("ann", {"value": VALUES[0]}, 0), ("bob", {"value": VALUES[0]}, 1)])
    with place.bridge() as bridge:
        until(lambda: bridge.failures or bridge.counts.acknowledged == 2)
    with CodeStreams.open(place.state, setting_of(), key=KEY) as store:
        backup(store.file, place.folder / "old.db")
    place.send([("ann", {"value": VALUES[0]}, 0)])
    with place.bridge() as bridge:
        until(lambda: bridge.failures or bridge.counts.acknowledged == 1)
    newest = place.state

    def refused(state, cluster=None):
        place.state = state
        with place.bridge(cluster=cluster) as bridge:
            until(lambda: bridge.failures)
        [failure] = bridge.failures
        assert isinstance(failure, InputError)
        return str(failure)

    assert "another state file" in refused(place.folder / "new.db")
    assert "older" in refused(place.folder / "old.db")
    assert "another group" in refused(newest, replace(place.cluster, group="other"))
    with monkeypatch.context() as grown:
        grown.setattr(KafkaLink, "partitions", lambda link: 5)
        assert "another number of partitions" in refused(newest)
    place.state = newest
    with place.bridge() as bridge:
        place.send([("ann", {"value": VALUES[0]}, 0)])
        until(lambda: bridge.failures or bridge.counts.acknowledged == 1)
    assert not bridge.failures
    assert len(once(place.received(4))) == 4


@pytest.mark.slow
def test_offsets_that_expired_bring_no_second_draw(place):
    place.send(some(users=1, each=7))
    with place.bridge() as bridge:
        until(lambda: bridge.failures or bridge.counts.acknowledged == 7)

    class Forgetful(KeepingLink):
        def committed(self, partitions):
            return {}

    place.send([("user 0", {"value": VALUES[0]})])
    with place.bridge(link=Forgetful) as bridge:
        until(lambda: bridge.failures or bridge.counts.released == 1)
    assert not bridge.failures
    assert bridge.counts.released == 1
    disclosed = once(place.received(8))
    assert sorted(disclosed) == [("user 0", seq) for seq in range(8)]
    assert {len(set(payloads)) for payloads in disclosed.values()} == {1}


class Troubled:
    """A writer whose first transactions fail in one way or another."""

    def __init__(self, *failures):
        self.failures, self.begun, self.aborted, self.sent = list(failures), 0, 0, []

    def begin_transaction(self):
        self.begun += 1
        self.sent = []

    def produce(self, topic, key, value):
        self.sent.append((topic, key, value))

    def send_offsets_to_transaction(self, offsets, metadata, timeout):
        self.offsets = [(one.topic, one.partition, one.offset, one.metadata) for one in offsets]

    def commit_transaction(self, timeout):
        if self.failures:
            raise KafkaException(self.failures.pop(0))

    def abort_transaction(self, timeout):
        self.aborted += 1


@pytest.mark.slow
def test_a_transaction_that_was_taken_back_is_tried_again_and_a_takeover_ends_the_bridge(place, monkeypatch):
    lost, messages = KafkaError(KafkaError._TIMED_OUT, "zq", txn_requires_abort=True), [("out", b"ann", b"1")] * 2
    for failures in ([lost, lost], [KafkaError(KafkaError._FENCED, "zq", fatal=True)]):
        troubled = Troubled(*failures)
        monkeypatch.setattr(kafka, "Producer", lambda settings, made=troubled: made)
        link = KafkaLink(place.cluster)
        if len(failures) == 2:
            link.write(messages, {0: 5}, "me")
            assert (troubled.begun, troubled.aborted, troubled.sent) == (3, 2, messages)
            assert troubled.offsets == [(place.cluster.raw, 0, 5, "me")]
        else:
            with pytest.raises(BrokerError, match="another bridge does the same work") as refused:
                link.write(messages, {0: 5}, "me")
            assert "zq" not in str(refused.value)
        link.close()


def command(place, *more):
    chain().save(place.folder / "m.model")
    own, client = place.cluster, place.folder / "client.properties"
    client.write_text(f"group.id={own.group}\n")
    return [
        *(sys.executable, "-m", "seqveil", "bridge", "kafka", "--bootstrap", own.bootstrap, "--raw", own.raw),
        *("--released", own.released, "--errors", own.errors, "--client", client, "--begin", "--state", place.state),
        *("--model", place.folder / "m.model", "--policy", place.folder / "policy.toml", *more),
    ]


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["blocks", "secrets"])
def test_the_command_killed_five_times_releases_as_a_run_that_is_not_cut(place, kind):
    """The mock forgets the offsets of transactions, so the last round is published again, with the same bytes."""
    events, key = some(users=10, each=60), place.folder / "key"
    PROMISES[kind].save(place.folder / "policy.toml")
    started = command(place, "--key", key)
    with place.reader() as read:
        for kill in range(5):
            place.send(events[kill * 100 : kill * 100 + 100])
            before = len(read())
            with ended(started, stderr=subprocess.DEVNULL) as running:
                until(lambda: len(read()) > before or running.poll() is not None)  # noqa: B023
        place.send(events[500:])
        with ended(started, stderr=subprocess.PIPE) as running:
            until(lambda: len(once(read())) == 600)
            running.send_signal(signal.SIGTERM)
            log = running.communicate(timeout=PATIENCE)[1]
            assert running.returncode == 0
        disclosed = once(read())
    assert json.loads(log.splitlines()[-1])["refused"] == {}
    assert b"zq" not in log
    as_by_a_run_that_is_not_cut(place, PROMISES[kind].on(chain()), key_file(key), events, disclosed)


def test_settings_that_are_the_bridges_own_are_refused():
    with pytest.raises(InputError, match=r"enable\.auto\.commit is the bridge's own"):
        Cluster("localhost", "a", "b", settings={"enable.auto.commit": "true"})
