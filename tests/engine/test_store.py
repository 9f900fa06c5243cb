"""One suite for all stores of states: memory, a state file, and what Spark keeps (without a JVM)."""

import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sparks
from reference import streams as ref
from seqveil.core.errors import GuaranteeError, InputError
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import KeyedRandomness
from seqveil.core.secrets import always, ever
from seqveil.engine import stream
from seqveil.engine.budget import Budget
from seqveil.engine.calls import OutOfOrder
from seqveil.engine.packing import Sealing
from seqveil.engine.policy import Policy
from seqveil.engine.sqlite import checksum
from seqveil.engine.store import EARLIER, GAP, Damaged, Memory, StateStore
from seqveil.engine.stream import REFUSED, Private
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import opened, verify
from seqveil.interfaces.spark.operator import SparkStore
from seqveil.receiver.audit import Audit
from served import words_setting

USERS = ["ann", "bob", "cé"]
CHAIN = MarkovModel(*ref.random_chain(np.random.default_rng(1), 3, 1, zeros=True))
SETTINGS = {
    "symbols": Policy(epsilon=0.8, mechanism="balanced").on(CHAIN),
    "window": Policy(epsilon=0.8, budget=Budget(per_window=1.2, releases=3), mechanism="balanced").on(CHAIN),
    "batches": Policy(epsilon=1.5, batch=2, mechanism="tree").on(CHAIN),
    "guarded": Policy(
        secrets=[ever(2, epsilon=0.4, window=3), always([0, 1], epsilon=0.6, window="first 9")],
        mechanism="guarded",
        side_information=0,
    ).on(CHAIN),
    "withheld": Policy(secrets=ever(1, epsilon=0.5, window=4), mechanism="guarded", withhold=True).on(CHAIN),
}


class Kinds:
    """A store of each kind, and the same one again as another process would find it."""

    def __init__(self, folder: Path):
        self.folder, self.kept = folder, sparks.MapState()

    def memory(self, setting) -> StateStore:
        return Memory()

    def file(self, setting) -> StateStore:
        return opened(self.folder / "s.db", setting, True, None, False)

    def spark(self, setting) -> StateStore:
        return SparkStore(self.kept, b"salt")


@pytest.fixture(params=["memory", "file", "spark"])
def name_of(request):
    return request.param


@pytest.fixture
def kind(name_of, tmp_path):
    return getattr(Kinds(tmp_path), name_of)


def randomness():
    return KeyedRandomness.seeded(1)


def events(setting, count=40, seed=0):
    rng = np.random.default_rng(seed)
    users = [USERS[k] for k in rng.integers(0, 3, count)]
    return users, rng.integers(0, 3, (count, 2)).tolist() if setting.in_batches else rng.integers(0, 3, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("cut", "memory"), [(40, 1 << 20), (7, 1 << 20), (5, 1)])
def test_every_store_gives_the_same_releases_and_standings(kind, name, cut, memory):
    """However calls are cut, with room for all users or for one."""
    setting = SETTINGS[name]
    users, raw = events(setting)
    twin = CodeStreams(setting, randomness=randomness())
    whole = twin.release(users, raw)
    with CodeStreams(setting, kind(setting), randomness(), memory=memory) as streams:
        parts = [streams.release(users[at : at + cut], raw[at : at + cut]) for at in range(0, 40, cut)]
        assert [path for part in parts for path in part.paths] == whole.paths
        for user in USERS:
            mine, other = streams.account(user), twin.account(user)
            assert (mine.events, mine.releases) == (other.events, other.releases)
            assert (mine.most, mine.least, mine.ldp) == (other.most, other.least, other.ldp)
            assert [_disclosed(tracker) for tracker in mine.secrets] == [
                _disclosed(tracker) for tracker in other.secrets
            ]


def _disclosed(tracker):
    return tracker.name, tracker.log_odds, tracker.lowest, tracker.highest, tracker.worst


def test_a_call_that_cannot_be_leaves_no_user_behind(kind):
    streams = CodeStreams(SETTINGS["symbols"], kind(SETTINGS["symbols"]), randomness())
    with pytest.raises(OutOfOrder, match="event 1 has sequence number 1, and 0 is next") as caught:
        streams.release(["ann", "bob"], [0, 0], seqs=[0, 1])
    assert caught.value.position == 1
    assert streams.account("ann") is None
    assert streams.next_seqs(["ann", "bob"]).tolist() == [0, 0]
    streams.release(["ann"], [0], seqs=[0])
    assert streams.next_seqs(["ann", "bob"]).tolist() == [1, 0]
    streams.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["symbols", "batches", "guarded", "withheld"])
def test_an_event_that_comes_again_is_not_drawn_again(kind, name):
    """Where the releases are kept they are given back; where not, all there is to say is that there was one."""
    setting = SETTINGS[name]
    users, raw = events(setting, 9)
    store = kind(setting)
    streams = CodeStreams(setting, store, randomness())
    first = streams.release(users, raw)
    spent = [streams.account(user).epsilon_spent for user in USERS]
    other = [[0, 0]] * 9 if setting.in_batches else [0] * 9
    again = streams.release(users, other, seqs=first.seqs)
    assert again.replayed.all()
    if not store.keeps_releases:
        assert (again.codes == EARLIER).all()
    else:
        assert again.paths == first.paths
        assert again.epsilons.tolist() == first.epsilons.tolist()
    assert [streams.account(user).epsilon_spent for user in USERS] == spent
    streams.close()


def test_releases_are_disclosed_where_they_are_kept(kind, name_of):
    setting = SETTINGS["symbols"]
    streams = CodeStreams(setting, kind(setting), randomness(), gaps="skip")
    made = streams.release(["ann"] * 70, np.arange(70) % 3, seqs=[*range(69), 70])
    if name_of == "spark":
        with pytest.raises(InputError, match="keep no releases"):
            streams.releases("ann")
    else:
        disclosed = streams.releases("ann", since=5)
        assert [each.seq for each in disclosed] == list(range(5, 71))
        assert [each.code for each in disclosed] == [*made.codes[5:69], GAP, made.codes[69]]
        assert streams.releases("nobody") == []
    streams.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_lasts_goes_on_as_if_it_had_been_kept_open(tmp_path, name):
    setting = SETTINGS[name]
    users, raw = events(setting)
    whole = CodeStreams(setting, randomness=randomness()).release(users, raw).paths
    for kind in ("file", "spark"):
        kinds, found = Kinds(tmp_path / kind), []
        kinds.folder.mkdir()
        for at in range(0, 40, 9):
            with CodeStreams(setting, getattr(kinds, kind)(setting), randomness()) as streams:
                found += streams.release(users[at : at + 9], raw[at : at + 9]).paths
        assert found == whole


def test_what_was_drawn_before_a_failure_stands(kind, monkeypatch):
    setting, real, turns = SETTINGS["symbols"], stream.step, []

    def failing(*given):
        turns.append(1)
        if len(turns) == 3:
            raise GuaranteeError("a table broke")
        return real(*given)

    monkeypatch.setattr(stream, "step", failing)
    streams = CodeStreams(setting, kind(setting), randomness())
    with pytest.raises(GuaranteeError) as failed:
        streams.release(["ann"] * 4, [0] * 4)
    made = failed.value.made.codes.tolist()
    assert (made[2:], streams.next_seqs(["ann"])[0]) == ([REFUSED] * 2, 2)
    monkeypatch.undo()
    assert streams.release(["ann"], [0]).seqs.tolist() == [2]
    streams.close()


@pytest.mark.parametrize("name", ["symbols", "window", "batches", "guarded", "withheld"])
def test_an_audit_reaches_the_same_accounts(name):
    setting = SETTINGS[name]
    users, raw = events(setting)
    sender = CodeStreams(setting, randomness=randomness())
    made, audit = sender.release(users, raw), Audit(setting)
    if setting.in_batches:
        symbols = [np.zeros(0, np.int64) if each is None else each[1] for each in made.sent]
        used = [audit.take_batch(*each) for each in zip(users, made.paths, symbols, strict=True)]
    else:
        used = audit.take(users, made.codes).tolist()
    report, accounts = audit.report(), sender.accounts()
    assert used == made.epsilons.tolist()
    assert (report.users, report.composition) == (3, accounts.epsilon_spent.max())
    assert (report.leakage, report.ldp) == (accounts.leakage.max(), accounts.ldp.max())
    assert report.worst_user == accounts.users[accounts.leakage.argmax()]


def test_memory_that_keeps_no_releases_draws_none_twice():
    setting = SETTINGS["symbols"]
    streams = CodeStreams(setting, Memory(releases=False), randomness())
    streams.release(["ann"] * 3, [0, 1, 2])
    assert streams.release(["ann"], [0], seqs=[1]).codes.tolist() == [EARLIER]
    with pytest.raises(InputError, match="keep no releases"):
        streams.releases("ann")


# positions of sources, kept with the releases: what cannot be kept is refused, and takes nothing back

ODD = {
    "huge": 2**70,
    "object": object(),
    "surrogate": "\ud800",
    "truth": True,
    "number": np.int64(3),
    "none": None,
    "bytes": b"7",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_what_a_position_has_seen_is_charged_though_it_cannot_be_kept(tmp_path, odd):
    seen = []

    def note(made):
        seen.append(int(made.codes[0]))
        return {"queue": odd}

    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        for _ in range(20):
            with pytest.raises(InputError, match="expected positions by source"):
                store.release(["ann"], [2], seqs=[0], positions=note)
        assert len(set(seen)) == 1
        assert store.account("ann").events == 1
        assert store.position("queue") is None
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        assert [each.code for each in store.releases("ann")] == seen[:1]


def interrupted(made):
    raise KeyboardInterrupt


@pytest.mark.parametrize("given", [lambda made: 1 / 0, lambda made: [7], lambda made: {7: 7}, interrupted])
def test_a_position_that_fails_takes_back_nothing(tmp_path, given):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        with pytest.raises((InputError, ZeroDivisionError, KeyboardInterrupt)):
            store.release(["ann"], [2], seqs=[0], positions=given)
        assert store.account("ann").events == 1


def test_positions_given_beforehand_are_refused_before_anything_is_drawn(tmp_path):
    with CodeStreams.open(tmp_path / "s.db", words_setting()) as store:
        for odd in ODD.values():
            with pytest.raises(InputError, match="expected positions by source"):
                store.release(["ann"], [2], positions={"queue": odd})
        assert store.account("ann") is None
        store.release(["ann"], [2], positions={"queue": -(2**63), "text": "ü"})
        assert [store.position(name) for name in ("queue", "text")] == [-(2**63), "ü"]


# what is private of a stream lies in a state file sealed, for one user, one event and one key


KEY, SALT = bytes(range(32)), b"salt"
SETTING = Policy(epsilon=0.8, mechanism="balanced").on(MarkovModel(*ref.random_chain(np.random.default_rng(1), 3)))
MARK = 7_340_033
MEMORY = np.array([MARK, 2, 0])


def test_what_is_sealed_opens_for_the_same_user_and_event_alone():
    sealing = Sealing(KEY, SALT)
    closed = sealing.close("ann", 5, MEMORY)
    assert sealing.open("ann", 5, closed).tolist() == MEMORY.tolist()
    assert MEMORY.astype("<i8").tobytes()[:3] not in closed
    assert closed != sealing.close("ann", 5, MEMORY)  # nothing shows that it did not change
    tampered = [closed[:k] + bytes([closed[k] ^ 1]) + closed[k + 1 :] for k in range(len(closed))]
    others = [
        *((sealing, "ann", 5, changed) for changed in (*tampered, closed[:-1], closed[:9], b"")),
        (sealing, "bob", 5, closed),
        (sealing, "ann", 4, closed),
        (Sealing(bytes(32), SALT), "ann", 5, closed),
        (Sealing(KEY, b"another file"), "ann", 5, closed),
    ]
    for opening, user, step, content in others:
        with pytest.raises(Damaged, match=r"does not open .* Use the key of the state file, or restore") as refused:
            opening.open(user, step, content)
        assert refused.value.users == (user,)
        assert "\n" not in str(refused.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InputError, match=r"pip install -e '.\[state\]'"):
        Sealing(KEY, SALT).close("ann", 0, MEMORY)


@pytest.fixture
def taken(monkeypatch):
    """A mechanism that remembers how often each raw symbol was 2; what it was given, step by step."""
    given, real = [], stream.step

    def step(setting, state, codes, *more):
        given.append(state.private.memory.tolist())
        made, after = real(setting, replace(state, private=Private()), codes, *more)
        return made, replace(after, private=Private(memory=state.private.memory + np.outer(codes == 2, [0, 1])))

    monkeypatch.setattr(Private, "start", lambda setting, users=1: Private(memory=np.tile([MARK, 0], (users, 1))))
    monkeypatch.setattr(stream, "step", step)
    return given


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_a_state_file_goes_on_with_what_was_remembered(tmp_path, taken, memory):
    path = tmp_path / "s.db"
    for raw in ([2, 2, 1], [1, 2, 2]):
        with CodeStreams.open(path, SETTING, key=KEY, memory=memory) as streams:
            for _ in range(2):
                streams.release(["ann", "bob", "cy"], raw)
    found = [row[1] for step in taken for row in step]
    assert found == [0, 0, 0, 1, 1, 0, 2, 2, 0, 2, 3, 1]
    assert np.int64(MARK).tobytes() not in path.read_bytes()
    assert verify(path).sound
    with sqlite3.connect(
        path
    ) as sql:  # the row of one user with what is sealed of another, and a checksum that is right
        rows = sql.execute("SELECT * FROM users ORDER BY id").fetchall()
        user, name, _, _, *ledger, state, _, _ = rows[0]
        own = checksum((user, name, *ledger, state, rows[1][11]))
        sql.execute("UPDATE users SET sealed = ?, checksum = ? WHERE id = 1", (rows[1][11], own))
    sql.close()
    with CodeStreams.open(path, SETTING, key=KEY) as streams:
        with pytest.raises(Damaged, match="does not open") as refused:
            streams.release(["bob", "ann"], [0, 0])
        assert refused.value.users == ("ann",)
        assert streams.release(["bob"], [0]).seqs.tolist() == [4]
