"""What a model calls impossible: a fit rules nothing out unless asked to, and words and grades do not rest on it."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from seqveil import Budget, MarkovModel, Session, secrets
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.core.words import IMPOSSIBLE, DisclosedSecret, Risk
from seqveil.engine.budget import GONE
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.files.release import guarantee

TURNS = [[0, 1] * 10] * 50  # nobody ever does 2, or the same twice
PEOPLE = np.random.default_rng(1).integers(0, 3, 200)  # who does all of that
ASSUMES = "assumes that what the model calls impossible never happens; without that, 400-LDP holds"


def after_two_hundred(model):
    session = Session(model, mechanism="randomized_response", epsilon=2.0, seed=1)
    for symbol in PEOPLE.tolist():
        session.release(symbol)
    return session


def test_an_unsmoothed_fit_hides_what_was_released_and_says_so():
    """An account of 8e-13 nats stands beside 400-LDP: true under the model, and worth nothing to these people."""
    session = after_two_hundred(MarkovModel.fit(TURNS, n=3, smoothing=0))
    account = session.account
    assert account.leakage < 1e-11
    assert account.ldp == pytest.approx(400.0)
    assert account.sentences[0].endswith("even a suspicion of 1 % may become certainty")
    assert ASSUMES in account.sentences[1]
    assert account.risk.grade.colour == "red"
    assert "a suspicion of 1 % becomes at most 100 %" in repr(session)
    assert ASSUMES in session._repr_html_()


def test_a_fit_smooths_by_default_and_its_account_counts_what_was_released():
    model = MarkovModel.fit(TURNS, n=3)
    account = after_two_hundred(model).account
    assert not model.rules_out
    assert 200.0 < account.leakage <= account.ldp
    assert len(account.sentences) == 1


@pytest.mark.parametrize("order", [1, 2])
def test_what_a_model_rules_out_is_what_has_no_probability(order):
    rng, found = np.random.default_rng(order), set()
    for _ in range(60):
        table = rng.dirichlet(np.ones(3), 3**order) * (rng.random((3**order, 3)) > 0.03)
        table = np.where(table.sum(1, keepdims=True) > 0, table, 1.0)
        model = MarkovModel(np.full((3,) * order, 3.0**-order), table / table.sum(1, keepdims=True), order)
        every = itertools.product(range(3), repeat=order + 1)
        impossible = any(model.log_likelihood(list(x)) == -math.inf for x in every)
        assert model.rules_out == impossible
        found.add(impossible)
    assert found == {False, True}
    assert MarkovModel([1.0, 0.0], [[0.5, 0.5]] * 2).rules_out  # at the start alone


@pytest.mark.parametrize("how", [{"order": 2}, {"types": 2, "least_people": 1}, {"prior": "uniform"}])
@pytest.mark.filterwarnings("ignore:a type may now be made up of")
def test_no_fit_rules_anything_out_unless_asked_to(how):
    streams = [[0, 1, 0, 1], [1, 1, 1, 1]] * 20
    assert not MarkovModel.fit(streams, n=5, **how).rules_out
    assert MarkovModel.fit(streams, n=5, smoothing=0, **how).rules_out


def test_a_secret_under_such_a_model_is_not_called_green():
    sure, open_to_all = (Risk(0.0, 0.0, doubts=(), ldp=ldp) for ldp in (math.inf, None))
    assert (sure.grade.colour, open_to_all.grade.colour) == ("red", "green")

    kept = Risk(math.inf, secrets=(DisclosedSecret("ever:1", 0.5),), doubts=(), ldp=math.inf)
    assert kept.grade.colour == "unchecked"
    assert kept.grade.why.endswith(IMPOSSIBLE)
    assert "nothing is promised" in kept.sentences[-1]


def test_totals_say_whom_they_are_for():
    said = "; totals are for people who never do what the model calls impossible"
    ruling, smoothed = MarkovModel.fit(TURNS, n=3, smoothing=0), MarkovModel.fit(TURNS, n=3)
    assert guarantee(Policy(epsilon=1.0, budget=3.0).on(ruling)).endswith(said)
    assert said not in guarantee(Policy(epsilon=1.0).on(ruling)) + guarantee(Policy(epsilon=1.0).on(smoothed))
    assert Risk.promised(Policy(epsilon=0.1, budget=0.1).on(ruling)).grade.colour == "red"
    assert Risk.promised(Policy(epsilon=0.1, budget=0.1).on(smoothed)).grade.colour == "unchecked"


def test_many_streams_say_it_too():
    streams = CodeStreams(
        Policy(epsilon=2.0, mechanism="randomized_response").on(MarkovModel.fit(TURNS, n=3, smoothing=0))
    )
    streams.release(["ann"] * 200, PEOPLE)
    assert ASSUMES in streams.account("ann").sentences[1]


def test_the_commands_say_how_much_was_smoothed_and_what_holds_without(seqveil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"u{user},{'abc'[x]}\n" for user, own in enumerate(TURNS) for x in own)
    (tmp_path / "turns.csv").write_text("user,value\n" + rows)
    (tmp_path / "raw.csv").write_text("user,value\n" + "".join(f"ann,{'abc'[x]}\n" for x in PEOPLE))
    (tmp_path / "names").write_text("a\nb\nc\n")
    usual = seqveil("fit", "turns.csv", "-o", "m", "--alphabet", "names")
    assert "added  1 event to each context, spread as all are: nothing is called impossible" in usual.out
    asked = seqveil("fit", "turns.csv", "-o", "zeros", "--alphabet", "names", "--smoothing", 0)
    assert "what nobody did is called impossible, and every account assumes" in asked.out
    facts = json.loads(
        seqveil("fit", "turns.csv", "-o", "zeros", "--smoothing", 0, "--alphabet", "names", "--json").out
    )
    assert (facts["smoothing"], facts["rules_out"]) == (0.0, True)
    for model, says in (("m", False), ("zeros", True)):
        out = f"{model}.csv"
        how = ("--mechanism", "randomized_response", "-e", 2, "--out", out)
        said = seqveil("release", "raw.csv", "-m", model, *how)
        assert (ASSUMES in said.err) == says
        side = json.loads((tmp_path / f"{out}.meta.json").read_text())
        assert any(ASSUMES in sentence for sentence in side["words"]) == says
        assert side["grade"] == "red"
        assert (ASSUMES in seqveil("audit", out, "-m", model).out) == says


MODEL = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize("mechanism", ["optimal", "balanced", "crr", "randomized_response"])
def test_an_epsilon_that_tells_nothing_is_refused(mechanism):
    with pytest.raises(InputError, match="at least 1e-06, got 1e-09: with less a release only repeats"):
        Session(MODEL, mechanism=mechanism, epsilon=1e-9)
    with pytest.raises(InputError, match="only repeats"):
        Session(MODEL, epsilon=1e-9, batch=3)
    session = Session(MODEL, mechanism=mechanism, epsilon=GONE, seed=1)
    session.release(0)
    assert 0 < session.account.epsilon_spent <= GONE


def test_what_is_left_of_a_budget_may_be_as_little_as_it_likes():
    session = Session(MODEL, epsilon=1.0, budget=Budget(total=1e-9), seed=1)
    session.release(0)
    assert session.leakage == 0.0


def test_a_declared_secret_has_its_own_total():
    guarded = Policy(secrets=secrets.ever(1, epsilon=0.5, window="first 3"), mechanism="guarded").on(MODEL)
    assert guarded.unbounded


def test_an_epsilon_beside_declared_secrets_is_refused_too():
    secret = secrets.ever(1, epsilon=0.5, window="first 3")
    with pytest.raises(InputError, match=r"at least 1e-06, got 1e-08.*leave it out where the declared secrets"):
        Policy(epsilon=1e-8, secrets=secret, mechanism="guarded").on(MODEL)
    session = Session(MODEL, mechanism="guarded", epsilon=GONE, secrets=secret, seed=1)
    session.release(0)
    assert session.leakage <= session.account.epsilon_spent == GONE


@pytest.mark.parametrize("mechanism", ["tree", "batch_lp"])
def test_a_short_batch_between_others_is_followed_and_charged(mechanism):
    setting = Policy(epsilon=1.0, batch=3, mechanism=mechanism).on(MODEL)
    streams = CodeStreams(setting, randomness=SeededRandomness(3))
    sizes = [3, 1, 2, 3]
    batches = [np.arange(size) % 2 for size in sizes]
    made = streams.release(["ann"] * 4, batches)
    assert [len(each) for each in made.symbols] == sizes
    assert made.epsilons.tolist() == [1.0] * 4
    receiver = CodeStreams(setting)
    seen = receiver.observe(["ann"] * 4, made.paths, sizes=sizes)
    assert json.dumps([each.tolist() for each in seen.symbols]) == json.dumps([each.tolist() for each in made.symbols])
    ours, theirs = streams.account("ann"), receiver.account("ann")
    assert (ours.leakage, ours.epsilon_spent) == (theirs.leakage, theirs.epsilon_spent)
    assert 0 < ours.leakage <= 4.0
    for length in (0, 4):
        with pytest.raises(InputError, match="1 to 3 codes"):
            streams.release(["ann"], [[0] * length])
