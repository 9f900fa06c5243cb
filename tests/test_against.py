"""The leakage of a release under another chain than its model, against brute force over all sequences."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_streams import released_with_columns, sides, sparse_model
from seqveil import Budget, MarkovModel, Session, Setting
from seqveil.core.errors import InputError
from seqveil.engine.stream import NOTHING
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.audit import against_file
from seqveil.interfaces.files.release import release_file
from seqveil.receiver.reweigh import Against, merged, wrong_model_bound


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 4),
    length=st.integers(1, 4),
    epsilon=st.sampled_from([0.2, 1.0, 2.5]),
    mechanism=st.sampled_from(["optimal", "balanced", "randomized_response"]),
    period=st.sampled_from([1, 2]),
    zeros=st.booleans(),
)
def test_leakage_under_another_chain_is_that_of_brute_force(seed, n, length, epsilon, mechanism, period, zeros):
    rng = np.random.default_rng(seed)
    _, _, model = sparse_model(rng, n)
    prior, moves, other = sparse_model(rng, n, zeros)
    session = Session(model, mechanism, epsilon, seed=seed, schedule=period)
    released, columns = released_with_columns(session, other.sample(length, 1, seed)[0].tolist())
    against = Against(session.setting, other)
    against.take(["u"] * length, released)
    found = against.report()
    most, least = sides(prior, moves, columns)
    assert found.most == pytest.approx(most, abs=1e-9)
    assert found.least == pytest.approx(least, abs=1e-9)
    assert found.under_model == session.leakage
    assert found.within
    assert found.leakage <= found.bound * (1 + 1e-9) + 1e-9
    assert found.bound <= found.ldp * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6), epsilon=st.floats(0.05, 3.0), share=st.floats(0.0, 1.0))
def test_no_sound_kernel_leaks_more_than_the_bound_for_a_wrong_belief(seed, n, epsilon, share):
    rng = np.random.default_rng(seed)
    belief, elsewhere = rng.dirichlet(np.ones(n)), rng.dirichlet(np.full(n, 0.3))
    truth = (1 - share) * belief + share * elsewhere
    kernel = Session(MarkovModel(belief, np.full((n, n), 1 / n)), "optimal", epsilon).kernel()
    distance = 0.5 * np.abs(belief - truth).sum()
    bound = wrong_model_bound(np.array([epsilon]), np.array([distance]))[0]
    assert kernel.leakage(truth) <= bound + 1e-9


MODEL = MarkovModel([0.4, 0.3, 0.3], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]], alphabet=["a", "b", "c"])
OTHER = MarkovModel([0.1, 0.1, 0.8], [[0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.5, 0.2, 0.3]], alphabet=["a", "b", "c"])


def test_the_models_own_chain_gives_its_own_leakage():
    session = Session(MODEL, epsilon=0.7, seed=3)
    codes = MODEL.alphabet.encode([session.release(x) for x in "abcabca"])
    against = Against(session.setting, MODEL)
    against.take(["u"] * 7, codes)
    found = against.report()
    assert found.leakage == found.under_model == session.leakage
    assert found.distance == 0
    assert found.bound == pytest.approx(found.epsilon)


def test_users_followed_in_parts_are_those_followed_together():
    rng, setting = np.random.default_rng(5), Setting.of(MODEL, "randomized_response", 0.8)
    users, codes = rng.integers(0, 9, 200).tolist(), rng.integers(0, 3, 200)
    whole = Against(setting, OTHER)
    whole.take(users, codes)
    parts = [Against(setting, OTHER, (first, 4)) for first in (0, 4, 8)]
    for part in parts:
        for at in (slice(0, 70), slice(70, 200)):
            part.take(users[at], codes[at])
    together, cut = whole.report(), merged([part.report() for part in parts])
    assert cut.mean_distance == pytest.approx(together.mean_distance)
    assert (cut.leakage, cut.bound, cut.worst_user, cut.releases) == (
        together.leakage,
        together.bound,
        together.worst_user,
        200,
    )


def test_an_event_without_a_release_leaks_nothing_under_any_chain():
    setting = Setting.of(MODEL, "optimal", 1.0, budget=Budget(total=1e-12, when_spent="stop"))
    against = Against(setting, OTHER)
    against.take(["u", "u"], np.array([NOTHING, NOTHING]))
    assert against.report().leakage == 0
    assert against.report().releases == 0


def test_an_unsound_mechanism_has_no_bound():
    session = Session(MODEL, "crr", epsilon=0.3, seed=1)
    codes = MODEL.alphabet.encode([session.release(x) for x in "abc"])
    against = Against(session.setting, OTHER)
    against.take(["u"] * 3, codes)
    assert math.isinf(against.report().bound)


def test_a_chain_over_other_symbols_is_refused():
    with pytest.raises(InputError, match="alphabet"):
        Against(Setting.of(MODEL, epsilon=0.5), MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]))


def test_order_two_is_a_chain_like_any_other():
    two = MarkovModel.fit([list("abcacb" * 5)], order=2, alphabet=MODEL.alphabet, smoothing=1.0)
    against = Against(Setting.of(MODEL, epsilon=0.5), two)
    against.take(["u"], np.array([0]))
    assert 0 < against.report().leakage <= 1.0


@pytest.mark.parametrize("mechanism", ["tree", "batch_lp"])
def test_batches_are_bounded_from_above(mechanism):
    """Brute force over batches: under the other chain no batch's posterior moves more than is said."""
    session = Session(MODEL, mechanism, epsilon=2.0, batch=2, seed=4)
    session.release_batch(["a", "b"])
    against = Against(session.setting, OTHER)
    against.take_batch("u", session.paths[0], 2)
    found = against.report()
    assert not found.exact
    assert 0 < found.leakage <= found.ldp + 1e-9
    assert found.within
    own = Against(session.setting, MODEL)
    own.take_batch("u", session.paths[0], 2)
    assert own.report().leakage >= session.leakage - 1e-9


@pytest.fixture
def released(tmp_path):
    raw = tmp_path / "raw.csv"
    streams = MODEL.sample(12, 20, 3)
    rows = [f"u{k},{MODEL.alphabet.decode_one(int(x))}" for k, stream in enumerate(streams) for x in stream]
    raw.write_text("user,value\n" + "\n".join(rows) + "\n")
    release_file(raw, Setting.of(MODEL, epsilon=1.0), tmp_path / "out.csv", seed=1)
    MODEL.save(tmp_path / "own.model")
    OTHER.save(tmp_path / "other.model")
    return tmp_path


def test_a_file_read_in_parts_gives_the_same(released):
    whole = against_file(released / "out.csv", MODEL, OTHER)
    parts = against_file(released / "out.csv", MODEL, OTHER, memory=700)
    assert parts.mean_distance == pytest.approx(whole.mean_distance)
    assert (parts.users, parts.leakage, parts.bound) == (whole.users, whole.leakage, whole.bound)
    assert whole.under_model <= 12 < whole.leakage


@pytest.mark.slow
def test_the_command_says_both(released, capsys):
    args = ["audit", str(released / "out.csv"), "--model", str(released / "own.model")]  # exits with 1: it is seeded
    assert main([*args, "--against", str(released / "other.model"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["leakage"] == found["against"]["under_model"] < found["against"]["leakage"]
    assert found["against"]["leakage"] <= found["against"]["bound"] <= found["against"]["ldp"]
    assert main([*args, "--against", str(released / "other.model")]) == 1
    said = capsys.readouterr().out
    assert "if the other chain is the truth" in said
    assert main(args) == 1
    assert "other chain" not in capsys.readouterr().out


@pytest.mark.slow
def test_several_other_chains_have_a_line_each_and_the_worst_is_named(released, capsys):
    other, own = str(released / "other.model"), str(released / "own.model")
    args = ["audit", str(released / "out.csv"), "--model", own, "--against", own, "--against", other]
    assert main([*args, "--json"]) == 1  # it is seeded
    found = json.loads(capsys.readouterr().out)
    assert [each["model"] for each in found["against"]] == [own, other]
    assert found["against"][0]["leakage"] == found["leakage"] < found["against"][1]["leakage"]
    assert found["worst_against"] == other
    assert main(args) == 1
    said = capsys.readouterr().out
    assert said.count("over a stream if it is the truth") == 2
    assert f"{other}: {found['against'][1]['leakage']:.4g} (user" in said
    assert "every stream within the bound of each" in said
