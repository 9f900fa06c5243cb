"""States and streams: every user exactly as in a session of its own, whoever else is there or was put aside."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_streams as ref
import seqveil as sv
from reference_streams import Rows
from seqveil import mechanisms
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.leakage import Leakages
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import packing, stream
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.session import Session
from seqveil.engine.state import ARRAYS, rounds
from seqveil.engine.streams import CodeStreams

SOUND = [name for name in mechanisms.instantaneous() if mechanisms.get(name).sound]


def rows_of(state, row):
    """One user's state as plain lists; empty places of a window are dropped."""
    part = state.take(np.array([row]))
    held = np.isfinite(part.window.stamps[0])
    return (
        [getattr(part, name).tolist() for name in ARRAYS]
        + [getattr(part.account, f.name).tolist() for f in fields(Leakages)]
        + [part.window.costs[0, held].tolist(), part.window.stamps[0, held].tolist()]
    )


def chain(seed=0, n=4, order=1, zeros=False):
    return MarkovModel(*ref.random_chain(np.random.default_rng(seed), n, order, zeros), order=order)


@pytest.mark.slow
@pytest.mark.parametrize("name", mechanisms.instantaneous())
@pytest.mark.parametrize(("order", "zeros"), [(1, False), (1, True), (2, False)])
def test_a_row_evolves_as_a_session_with_its_own_randomness(name, order, zeros):
    model, users, length = chain(1, 3, order, zeros), 5, 8
    rng = np.random.default_rng(2)
    randomness = rng.integers(0, 2**62, (length, users))
    raw = model.sample(length, users, seed=3)
    fleet = Rows(Policy(epsilon=0.8, mechanism=name).on(model), users)
    sessions = [Session(model, mechanism=name, epsilon=0.8) for _ in range(users)]
    for t in range(length):
        present = np.flatnonzero(rng.random(users) < 0.8) if t else np.arange(users)
        made = fleet.release(present, raw[present, t], ref.GivenCoins(randomness[t, present]))
        for at, user in enumerate(present):
            sessions[user]._randomness = ref.GivenCoins([randomness[t, user]])
            assert sessions[user].release(int(raw[user, t])) == made.codes[at]
    for user in range(users):
        assert rows_of(fleet.state, user) == rows_of(sessions[user]._state, 0)


SPENDING = {
    "total": {"budget": Budget(total=1.5)},
    "stop": {"budget": Budget(total=1.0, when_spent="stop")},
    "window": {"budget": Budget(per_window=1.2, releases=3)},
    "without a model": {"budget": Budget(ldp_total=3.0)},
}


@pytest.mark.parametrize("options", SPENDING.values(), ids=SPENDING.keys())
@pytest.mark.parametrize("name", SOUND)
def test_a_row_evolves_as_a_session_under_every_budget(name, options):
    """One coin a step for everyone, so that the order in which users are served does not matter."""
    model, users, length, uniform = chain(4), 6, 9, ref.OneCoin()
    rng = np.random.default_rng(5)
    raw = model.sample(length, users, seed=6)
    fleet = Rows(Policy(epsilon=0.8, mechanism=name, **options).on(model), users)
    sessions = [Session(model, mechanism=name, epsilon=0.8, **options) for _ in range(users)]
    for t in range(length):
        present = np.flatnonzero(rng.random(users) < 0.7)
        uniform.value = int(rng.integers(0, 2**62))
        made = fleet.release(present, raw[present, t], uniform)
        for at, user in enumerate(present):
            sessions[user]._randomness = uniform
            out = sessions[user].release(int(raw[user, t]))
            assert (stream.NOTHING if out is None else out) == made.codes[at]
    for user in range(users):
        assert rows_of(fleet.state, user) == rows_of(sessions[user]._state, 0)


def test_a_state_grows():
    model = chain(7)
    setting = Policy(epsilon=1.0, budget=Budget(per_window=2.0, releases=3)).on(model)
    fleet = Rows(setting, 2)
    fleet.release(np.array([0, 1]), np.array([0, 1]), SeededRandomness(1))
    kept = rows_of(fleet.state, 1)
    fleet.state = fleet.state.grown(setting, 5).grown(setting, 3)
    assert len(fleet.state) == 5
    fresh = rows_of(stream.State.start(setting), 0)
    assert rows_of(fleet.state, 1) == kept != fresh
    assert all(rows_of(fleet.state, row) == fresh for row in (2, 3, 4))
    fleet.release(np.array([4, 1]), np.array([3, 2]), SeededRandomness(2))
    assert fleet.state.steps.tolist() == [1, 2, 0, 0, 1]


def test_a_user_comes_once_a_call():
    fleet = Rows(Policy(epsilon=0.5).on(chain()), 3)
    with pytest.raises(InputError, match="at most once"):
        fleet.release(np.array([1, 1]), np.array([0, 0]), SeededRandomness(1))


def test_an_observer_reaches_the_same_state():
    setting = Policy(epsilon=0.9, budget=Budget(total=1.5, when_spent="stop"), mechanism="balanced").on(chain(8))
    sender, receiver, randomness = Rows(setting, 4), Rows(setting, 4), SeededRandomness(3)
    for t in range(8):
        made = sender.release(np.arange(4), np.full(4, t % 4), randomness)
        receiver.observe(np.arange(4), made.codes)
    assert all(rows_of(sender.state, row) == rows_of(receiver.state, row) for row in range(4))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 5), max_size=30))
def test_rounds_hold_each_user_once_in_the_order_of_events(users):
    made = rounds(np.array(users, np.intp))
    assert sorted(at for turn in made for at in turn.tolist()) == list(range(len(users)))
    for turn in made:
        assert len({users[at] for at in turn}) == len(turn)
        assert turn.tolist() == sorted(turn.tolist())
    place = {at: number for number, turn in enumerate(made) for at in turn.tolist()}
    for at, user in enumerate(users):
        assert place[at] == users[:at].count(user)


def events_of(count, users, n, seed):
    rng = np.random.default_rng(seed)
    names = [f"user {u}" for u in rng.integers(0, users, count)]
    return names, rng.integers(0, n, count), np.cumsum(rng.random(count))


def figures(made):
    accounts = made.accounts()
    names = ("events", "releases", "epsilon_spent", "most", "least", "leakage")
    return [accounts.users] + [getattr(accounts, name).tolist() for name in names]


SETTINGS = {
    "plain": {},
    "total": {"budget": Budget(total=1.5, when_spent="stop")},
    "window": {"budget": Budget(per_window=1.0, releases=3)},
    "seconds": {"budget": Budget(per_window=1.0, seconds=2.0)},
}


@pytest.mark.slow
def test_a_chunk_is_worth_its_events_one_by_one(monkeypatch):
    """A receiver may take releases in chunks of any size, with users coming and going."""
    setting = Policy(epsilon=0.7, budget=Budget(total=2.0), mechanism="optimal").on(chain(15))
    names, codes, _ = events_of(50, 7, 4, seed=16)
    sender = CodeStreams(setting, randomness=SeededRandomness(17))
    made = sender.release(names, codes)
    released, epsilons = made.codes, made.epsilons
    for small, memory, size in [(4096, 1 << 30, 1), (0, 1, 50), (0, 300, 7), (0, 1 << 20, 13)]:
        monkeypatch.setattr(packing, "SMALL", small)
        receiver = CodeStreams(setting, memory=memory)
        for at in range(0, 50, size):
            seen = receiver.observe(names[at : at + size], released[at : at + size])
            assert seen.codes.tolist() == released[at : at + size].tolist()
            assert seen.epsilons.tolist() == epsilons[at : at + size].tolist()
        assert figures(receiver) == figures(sender)


def test_an_empty_chunk_is_nothing():
    assert len(CodeStreams(Policy(epsilon=0.5).on(chain())).release([], np.zeros(0, np.int64))) == 0


@pytest.mark.parametrize("code", [-1, 4])
def test_a_code_outside_the_alphabet_is_refused(code):
    """-1 must not be taken for the last symbol."""
    fleet = Rows(Policy(epsilon=0.5, mechanism="randomized_response").on(chain()), 1)
    with pytest.raises(InputError):
        fleet.release(np.array([0]), np.array([code]), SeededRandomness(1))
    assert fleet.state.steps.tolist() == [0]


# by value, as `seqveil.Streams` shows them


NAMES = ["home", "work", "gym"]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.3, 0.3]], alphabet=NAMES)
NUMBERS = sv.MarkovModel([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.3, 0.3]], alphabet=[1, 2, 0])
POLICY = sv.Policy(epsilon=1.0, budget=sv.Budget(total=6.0))
KEY = bytes(range(32))
USERS = ["ann", "bob", "ann", "ann"]


@pytest.mark.parametrize("model", [MODEL, NUMBERS], ids=["names", "numbers that are codes too"])
def test_values_go_in_and_come_out_as_the_codes_behind_them_do(model, tmp_path):
    codes = np.array([0, 1, 2, 0])
    with sv.Streams(model, POLICY, store=tmp_path / "a.db", key=KEY) as streams, CodeStreams(POLICY.on(model)) as coded:
        made = streams.release(USERS, model.alphabet.decode(codes))
        assert set(made.values) <= set(model.alphabet.values)
        assert made.values == model.alphabet.decode(made.codes)
        again = streams.release(["ann"], model.alphabet.decode([1]), seqs=[0])
        assert (again.values, again.replayed.tolist()) == (made.values[:1], [True])
        kept = streams.releases("ann")
        assert [each.value for each in kept] == [made.values[k] for k in (0, 2, 3)]
        assert [(each.seq, each.status, each.epsilon) for each in kept] == [(k, "released", 1.0) for k in range(3)]
        receiver = sv.Streams(model, POLICY)
        receiver.observe(USERS, made.values)
        coded.observe(USERS, made.codes)
        for user in ("ann", "bob"):
            disclosed = streams.account(user)
            assert disclosed.leakage == receiver.account(user).leakage == coded.account(user).leakage
    with sv.Streams(model, POLICY, store=tmp_path / "a.db", key=KEY, must_exist=True) as streams:
        assert streams.next_seqs(["ann", "bob", "new"]).tolist() == [3, 1, 0]
        assert [each.value for each in streams.releases("ann")] == [each.value for each in kept]


def test_batches_are_lists_of_values():
    streams = sv.Streams(MODEL, epsilon=3.0, batch=3, seed=1)
    made = streams.release(["ann", "bob"], [["home", "home", "work"], ["gym"]])
    assert [len(values) for values in made.values] == [3, 1]
    assert not streams.private
    assert streams.releases("bob")[0].values == tuple(made.values[1])


def test_a_stream_has_the_releases_of_a_session():
    session = sv.Session(MODEL, POLICY, seed=7)
    streams = sv.Streams(MODEL, POLICY, seed=7)
    for value in ("home", "gym", "work", "home"):
        assert streams.release(["ann"], [value]).values == [session.release(value)]
    assert streams.account("ann").sentence == session.account.sentence


def test_what_is_wrong_is_refused_before_anything_is_drawn(tmp_path):
    streams = sv.Streams(MODEL, POLICY, store=tmp_path / "s.db")
    with pytest.raises(UnknownSymbol):
        streams.release(["ann", "ann"], ["home", "moon"])
    assert streams.account("ann") is None
    streams.close()
    with pytest.raises(InputError, match="begun with another epsilon; use the policy of its first run"):
        sv.Streams(MODEL, sv.Policy(epsilon=2.0, budget=sv.Budget(total=6.0)), store=tmp_path / "s.db")
    with pytest.raises(InputError, match="expected a Policy; for ε write epsilon=1"):
        sv.Streams(MODEL, 1.0)
    with pytest.raises(InputError, match="pass a key or randomness"):
        sv.Streams(MODEL, POLICY, key=KEY, seed=1)


def test_dir_shows_what_is_public_and_nothing_else():
    assert sorted(dir(sv)) == sorted([*sv.__all__, "__version__"])
    for name in sv.__all__:
        assert getattr(sv, name) is not None
    assert callable(sv.release)
