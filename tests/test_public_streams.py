"""Many people's streams by value, as `seqveil.Streams` shows them: a model, a policy, a store."""

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.engine.streams import CodeStreams

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
