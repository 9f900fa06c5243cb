"""An ε too small to tell anything is refused in one line, and a short batch is a whole one wherever it stands."""

from __future__ import annotations

import json

import numpy as np
import pytest

from seqveil import Budget, MarkovModel, Session, secrets
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import InputError
from seqveil.engine.accounting import GONE
from seqveil.engine.policy import Policy
from seqveil.engine.streams import Streams
from seqveil.interfaces.cli import main

MODEL = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize("mechanism", ["optimal", "balanced", "crr", "randomized_response"])
def test_an_epsilon_that_tells_nothing_is_refused(mechanism):
    with pytest.raises(InputError, match="at least 1e-06, got 1e-09: with less a release only repeats"):
        Session(MODEL, mechanism=mechanism, epsilon=1e-9)
    session = Session(MODEL, mechanism=mechanism, epsilon=GONE, seed=1)
    session.release(0)
    assert 0 < session.account.epsilon_spent <= GONE


def test_so_is_that_of_a_batch():
    with pytest.raises(InputError, match="only repeats"):
        Session(MODEL, epsilon=1e-9, batch=3)


def test_pulses_count_by_what_they_spend():
    with pytest.raises(InputError, match="at least 1e-07, got 1e-08"):
        Session(MODEL, epsilon=1e-8, every=10)
    session = Session(MODEL, epsilon=1e-7, seed=1, every=10)
    session.release(0)
    assert session.account.epsilon_spent > 0


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


def test_the_command_says_so_in_one_line_and_writes_nothing(tmp_path, capsys):
    (tmp_path / "data.csv").write_text("user,value\nann,0\nann,1\n")
    MODEL.save(tmp_path / "m.model")
    out = tmp_path / "out.csv"
    named = [str(tmp_path / "data.csv"), "--model", str(tmp_path / "m.model"), "--out", str(out)]
    assert main(["release", *named, "--epsilon", "1e-9"]) == 2
    told = capsys.readouterr().err.strip()
    assert "expected epsilon of at least 1e-06, got 1e-09" in told
    assert "Traceback" not in told
    assert not out.exists()


@pytest.mark.parametrize("mechanism", ["tree", "batch_lp"])
def test_a_short_batch_between_others_is_followed_and_charged(mechanism):
    setting = Policy(epsilon=1.0, batch=3, mechanism=mechanism).on(MODEL)
    streams = Streams(setting, coins=SeededCoins(3))
    sizes = [3, 1, 2, 3]
    batches = [np.arange(size) % 2 for size in sizes]
    made = streams.release(["ann"] * 4, batches)
    assert [len(each) for each in made.symbols] == sizes
    assert made.epsilons.tolist() == [1.0] * 4
    receiver = Streams(setting)
    seen = receiver.observe(["ann"] * 4, made.paths, sizes=sizes)
    assert json.dumps([each.tolist() for each in seen.symbols]) == json.dumps([each.tolist() for each in made.symbols])
    ours, theirs = streams.account("ann"), receiver.account("ann")
    assert (ours.leakage, ours.epsilon_spent) == (theirs.leakage, theirs.epsilon_spent)
    assert 0 < ours.leakage <= 4.0
    for length in (0, 4):
        with pytest.raises(InputError, match="1 to 3 codes"):
            streams.release(["ann"], [[0] * length])
