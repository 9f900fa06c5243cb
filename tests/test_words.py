"""Sentences and grades against exact arithmetic done by hand, and where they are shown."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqveil as sv
from policies import promise
from seqveil.core import words
from seqveil.core.words import DisclosedSecret, Risk
from seqveil.interfaces.cli import main

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


@pytest.mark.parametrize("suspicion", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("leakage", [0.1, 1.0, 3.0])
def test_what_is_said_of_a_leakage_is_attained(suspicion, leakage):
    """Two symbols and an optimal kernel at ε reach it: the model's probability of one is 1 / (1 + e^ε)."""
    model = 1 / (1 + math.exp(leakage))
    up = math.exp(leakage)
    down = (1 - model * up) / (1 - model)  # so that the mean lift is 1
    assert math.log(down) == pytest.approx(-leakage)
    after = suspicion * up / (suspicion * up + (1 - suspicion) * down)
    assert after == pytest.approx(words.moved(suspicion, 2 * leakage), rel=1e-9)
    assert words.leakage_for(suspicion, after) == pytest.approx(leakage, rel=1e-9)


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
    # e^2 = 7.3891: odds 1/99, 1/9 and 1 become 0.07464, 0.82101 and 7.3891, so 6.945 %, 45.09 % and 88.08 %
    assert words.by_leakage(1.0) == (
        "a suspicion of 1 % becomes at most 7 %, one of 10 % at most 46 %, one of 50 % at most 89 %"
    )
    assert words.by_leakage(173.0) == "even a suspicion of 1 % may become certainty"


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


def test_a_warning_names_the_remedy_in_one_line():
    warning = Risk(42.0).warning
    assert "\n" not in warning
    for remedy in ("what must stay secret", "a total budget", "in batches", "seqveil plan"):
        assert remedy in warning
    assert Risk(1.0).warning == ""
    assert "lower the ε of the secret" in Risk(math.inf, secrets=(DisclosedSecret("ever:x", 9.0),)).warning


def test_a_session_and_its_account_say_it():
    session = sv.Session(sv.MarkovModel(*PAIR), epsilon=1.0, seed=1)
    session.release(0)
    account = session.account
    becomes = words.percent_up(words.moved(0.01, account.most - account.least))
    assert f"a suspicion of 1 % becomes at most {becomes}" in repr(session)
    assert len(account.sentences) == 1
    assert becomes in account.sentences[0]
    assert account.sentences[0] in session._repr_html_().replace("&#x27;", "'")


@pytest.fixture
def clicks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = sv.MarkovModel(
        [0.5, 0.4, 0.1], [[0.7, 0.25, 0.05], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]], alphabet=["home", "news", "health"]
    )
    model.save(tmp_path / "m.model")
    rows = [
        f"u{user},{k},{model.alphabet.decode_one(int(code))}"
        for user, codes in enumerate(model.sample(25, 12, seed=2))
        for k, code in enumerate(codes)
    ]
    (tmp_path / "clicks.csv").write_text("user,seq,value\n" + "\n".join(rows) + "\n")
    return tmp_path


@pytest.mark.slow
def test_release_and_audit_say_it_and_yes_silences_the_warning(clicks, capsys):
    assert main(["release", "clicks.csv", "-m", "m.model", *promise(epsilon=3), "-o", "a.csv"]) == 0
    said = capsys.readouterr().err
    assert said.count("warning") == 1
    assert "red: a suspicion of 1 %" in said
    side = json.loads((clicks / "a.csv.meta.json").read_text())
    assert side["grade"] == "red"
    assert all(sentence in said for sentence in side["words"])
    assert main(["release", "clicks.csv", "-m", "m.model", "-e", "1", "-o", "b.csv", "--yes"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["audit", "a.csv", "-m", "m.model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["grade"] == "red"
    assert found["words"] == side["words"]
    assert main(["audit", "a.csv", "-m", "m.model"]) == 0
    assert "grade     red: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_small_budget_and_a_declared_secret_are_green(clicks, capsys):
    assert main(["release", "clicks.csv", "-m", "m.model", "-e", "0.5", "--budget", "1", "-o", "a.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["grade"], found["warning"]) == ("green", "")
    secret = ["--secret", "ever:health", "--secret-epsilon", "0.5"]
    assert main(["release", "clicks.csv", "-m", "m.model", *secret, "-o", "b.csv"]) == 0
    said = capsys.readouterr().err
    assert "warning" not in said
    assert "secret ever:health, over the whole stream: a suspicion of 1 % becomes at most 1.7 %" in said
    assert main(["audit", "b.csv", "-m", "m.model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grade"] == "green"
