"""Sentences and grades against exact arithmetic done by hand, and where they are shown."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqveil as sv
from seqveil.core import words
from seqveil.core.words import IMPOSSIBLE, DisclosedSecret, Risk
from seqveil.interfaces.files.release import promises

PAIR = [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]


def odds_twin(suspicion, factor):
    """The suspicion whose odds are `factor` times those of another, in fractions."""
    odds = suspicion / (1 - suspicion) * factor
    return odds / (1 + odds)


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(3, 2), Fraction(11), Fraction(99), Fraction(1, 4)])
@pytest.mark.parametrize("suspicion", [Fraction(1, 100), Fraction(1, 10), Fraction(1, 2)])
def test_odds_move_as_fractions_say(suspicion, factor):
    found = words.moved(float(suspicion), math.log(factor))
    assert found == pytest.approx(float(odds_twin(suspicion, factor)), rel=1e-12)
    if factor > 1:
        assert words.log_odds_for(float(suspicion), found) == pytest.approx(math.log(factor), rel=1e-9)


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5),
    st.lists(st.integers(1, 40), min_size=5, max_size=5),
    st.lists(st.floats(-3, 3), min_size=5, max_size=5),
    st.integers(0, 31),
)
def test_no_posterior_of_any_statement_passes_what_is_said_whatever_was_thought_before(model, own, logs, chosen):
    """Lifts are those of the model; whoever suspects something has weights of their own."""
    prior = np.array(model) / sum(model)
    lifts = np.exp(logs[: prior.size])
    lifts /= lifts @ prior
    up, down = math.log(lifts.max()), -math.log(lifts.min())
    inside = np.array([chosen >> k & 1 for k in range(prior.size)], bool)
    believed = np.array(own[: prior.size]) / sum(own[: prior.size])
    after = believed * lifts / (believed @ lifts)
    assert after[inside].sum() <= words.moved(believed[inside].sum(), up + down) + 1e-9


def test_probabilities_stay_probabilities():
    for leakage in (0.0, 1e-300, 5.0, 699.0, 701.0, 1e6, math.inf):
        for suspicion in (0.0, 1e-12, 0.01, 0.5, 1 - 1e-12, 1.0):
            assert 0.0 <= words.moved(suspicion, leakage) <= 1.0
            assert 0.0 <= words.moved(suspicion, -leakage) <= suspicion + 1e-12


@given(st.floats(1e-9, 1.0))
def test_at_most_is_rounded_up(share):
    said = float(words.percent_up(share).removesuffix(" %")) / 100
    assert share <= said * (1 + 1e-6)
    assert said <= max(share * 1.11, share + 0.0101)


def test_a_sentence_by_hand():
    # e^0.5 = 1.6487: odds 1/99, 1/9 and 1 become 0.01665, 0.18319 and 1.6487, so 1.638 %, 15.48 % and 62.25 %
    assert words.by_odds(0.5) == (
        "a suspicion of 1 % becomes at most 1.7 %, one of 10 % at most 16 %, one of 50 % at most 63 %"
    )
    assert words.by_odds(9.2).startswith("a suspicion of 1 % becomes at most 99.1 %, one of 10 % may become certainty")
    assert words.by_odds(2 * 173.0) == "even a suspicion of 1 % may become certainty"


def test_grades_change_where_one_per_cent_becomes_ten_and_fifty():
    for colour, lower, edge in (("green", 0.0, math.log(11) / 2), ("amber", math.log(11) / 2, math.log(99) / 2)):
        assert Risk(edge, doubts=()).grade.colour == colour
        assert Risk(edge * (1 - 1e-6), doubts=()).grade.colour == colour
        assert Risk(edge * (1 + 1e-6), doubts=()).grade.colour != colour
        assert Risk(lower * (1 + 1e-6), doubts=()).grade.colour == colour
    for colour, edge in (("green", math.log(11)), ("amber", math.log(99))):  # odds of 1:99 become 1:9, and 1:1
        secret = [DisclosedSecret("ever:x", edge * (1 + move)) for move in (-1e-6, 0, 1e-6)]
        found = [Risk(math.inf, secrets=(each,), doubts=()).grade.colour for each in secret]
        assert found[:2] == [colour, colour]
        assert found[2] != colour
    assert Risk(0.0).grade.colour == "unchecked"
    assert words.UNCHECKED in Risk(0.0).grade.why
    assert Risk(0.0, doubts=()).grade.colour == "green"
    assert Risk(math.inf).grade.colour == "red"
    assert Risk(0.0, undone="seeded").grade.colour == "red"


def test_a_session_and_its_account_say_it():
    session = sv.Session(sv.MarkovModel(*PAIR), epsilon=1.0, seed=1)
    session.release(0)
    account = session.account
    becomes = words.percent_up(words.moved(0.01, account.most - account.least))
    assert f"a suspicion of 1 % becomes at most {becomes}" in repr(session)
    assert len(account.sentences) == 1
    assert becomes in account.sentences[0]
    promised = Risk.promised(sv.Policy(epsilon=1.0, budget=3.0).on(sv.MarkovModel(*PAIR))).sentences
    assert [words.AS_RELEASED in said for said in (account.sentences[-1], promised[-1])] == [True, False]


# what a model calls impossible: words and grades do not rest on it

TURNS = [[0, 1] * 10] * 50  # nobody ever does 2, or the same twice
PEOPLE = np.random.default_rng(1).integers(0, 3, 200)  # who does all of that
ASSUMES = "assumes that what the model calls impossible never happens; without that, 400-LDP holds"


def after_two_hundred(model):
    session = sv.Session(model, mechanism="randomized_response", epsilon=2.0, seed=1)
    for symbol in PEOPLE.tolist():
        session.release(symbol)
    return session


def test_an_unsmoothed_fit_hides_what_was_released_and_says_so():
    """An account of 8e-13 nats stands beside 400-LDP: true under the model, and worth nothing to these people."""
    session = after_two_hundred(sv.MarkovModel.fit(TURNS, alphabet=range(3), smoothing=0))
    account = session.account
    assert account.leakage < 1e-11
    assert account.ldp == pytest.approx(400.0)
    assert account.sentences[0].endswith("even a suspicion of 1 % may become certainty")
    assert ASSUMES in account.sentences[1]
    assert account.risk.grade.colour == "red"
    assert "a suspicion of 1 % becomes at most 100 %" in repr(session)


def test_a_fit_smooths_by_default_and_its_account_counts_what_was_released():
    model = sv.MarkovModel.fit(TURNS, alphabet=range(3))
    account = after_two_hundred(model).account
    assert not model.rules_out
    assert 200.0 < account.leakage <= account.ldp
    assert len(account.sentences) == 1


def test_a_secret_under_such_a_model_is_not_called_green():
    sure, open_to_all = (Risk(0.0, 0.0, doubts=(), ldp=ldp) for ldp in (math.inf, None))
    assert (sure.grade.colour, open_to_all.grade.colour) == ("red", "green")

    kept = Risk(math.inf, secrets=(DisclosedSecret("ever:1", 0.5),), doubts=(), ldp=math.inf)
    assert kept.grade.colour == "unchecked"
    assert kept.grade.why.endswith(IMPOSSIBLE)
    assert "nothing is promised" in kept.sentences[-1]


def test_totals_say_whom_they_are_for():
    said = "totals are for people who never do what the model calls impossible"
    ruling, smoothed = (
        sv.MarkovModel.fit(TURNS, alphabet=range(3), smoothing=0),
        sv.MarkovModel.fit(TURNS, alphabet=range(3)),
    )
    assert list(promises(sv.Policy(epsilon=1.0, budget=3.0).on(ruling)))[-1] == said
    assert not any(said in promises(sv.Policy(epsilon=1.0).on(model)) for model in (ruling, smoothed))
    assert Risk.promised(sv.Policy(epsilon=0.1, budget=0.1).on(ruling)).grade.colour == "red"
    assert Risk.promised(sv.Policy(epsilon=0.1, budget=0.1).on(smoothed)).grade.colour == "unchecked"
