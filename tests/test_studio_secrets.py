"""A secret chosen on the page: the odds that it draws are those of a session, and its words promise nothing more."""

import json
import tomllib

import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.interfaces.cli import main
from seqveil.interfaces.studio import Ask, builtin, picture
from seqveil.interfaces.studio.ask import offers
from seqveil.interfaces.studio.exports import python, unpack
from seqveil.interfaces.studio.sandbox import Sandbox
from studios import finish

KEPT = {"source": "clicks", "events": 30, "mechanism": "guarded", "epsilon": None, "secret": 5, "secret_epsilon": 1.0}


@pytest.mark.slow
def test_a_chosen_secret_is_kept_and_its_odds_are_those_of_a_session():
    shown = finish(Sandbox().show, **KEPT)
    json.dumps(shown, allow_nan=False)
    source, disclosed = builtin("clicks"), shown["secret"]
    secret = sv.secrets.ever(source.labels[5], epsilon=1.0, window="first 30")
    session = sv.Session(source.model, mechanism="guarded", epsilon=None, secrets=[secret], seed=1)
    odds = []
    for code, released in zip(shown["series"]["raw"], shown["series"]["released"], strict=True):
        assert session.release(source.labels[code]) == source.labels[released]
        odds.append(session.trackers.rows[0][0].log_odds)
    assert disclosed["odds"] == pytest.approx(odds, rel=1e-5)
    assert max(map(abs, disclosed["odds"])) <= 1.0
    assert disclosed["kept"]
    assert disclosed["suspicions"] == ["10 %", "25 %", "48 %"]
    assert disclosed["sentence"].startswith(
        "A suspicion of 25 % stays between 10 % and 48 %; after the releases shown it is "
    )


@pytest.mark.slow
def test_without_an_epsilon_it_says_that_nothing_is_promised_about_the_whole_sequence():
    alone, both = (picture(builtin("clicks"), Ask.of({**KEPT, "events": 8, "epsilon": e})) for e in (None, 1.0))
    assert "a suspicion of 25 % stays between 10 % and 48 %" in alone["sentence"]
    assert "no bound: nothing is promised about the whole sequence" in alone["sentence"]
    assert alone["figures"]["composition"] == alone["figures"]["claimed"] == "inf"
    assert "locally differentially private" not in " ".join(alone["notes"])
    assert "no bound" not in both["sentence"]
    assert "to any whole sequence by more than a factor 2.72" in both["sentence"]
    assert both["figures"]["leakage"] <= both["figures"]["composition"] == 8.0
    assert max(map(abs, both["secret"]["odds"])) <= 1.0
    plain = picture(builtin("clicks"), Ask("clicks", events=4, epsilon=1.0))
    assert plain["secret"] is None


POWER = {"source": "power", "distortion": "absolute"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": 17}, {"secret": -1}, {"secret": "x"}, {"secret": 1.5}, {"secret": None}, {"secret_epsilon": 0},
        {"secret_epsilon": 101}, {"secret_epsilon": None}, {"mechanism": "optimal"}, {"batch": 2}, {"every": 2},
        {"budget": 3.0}, {"secret_kind": "zone"}, {"secret_kind": "followed_by"},
        {"secret_kind": "followed_by", "secret_then": 17},
        {"secret_kind": "during"}, {"secret_kind": "joint"}, {"secret_kind": "count", "secret_count": 0},
        {"secret_kind": "zone", "secret_radius": -1, **POWER}, {"secret_window": 0}, {"secret_kind": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_in_one_line(wrong):
    with pytest.raises(InputError) as caught:
        Sandbox().show({**KEPT, **wrong})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_only_what_keeps_a_secret_is_offered_with_one():
    assert [each.name for each in offers(builtin("clicks"), Ask.of(KEPT)) if not each.why_not] == ["guarded"]
    assert Sandbox().curve({**KEPT, "mechanism": "balanced"})["mechanism"] == "balanced"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("clicks", 5), ("gaze", 44), ("heart_rate", 12)])
def test_the_exported_commands_and_script_reprint_the_odds(name, code, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    source = builtin(name)
    asked = Ask.of({**KEPT, "source": name, "secret": code, "events": 12})
    shown = picture(source, asked)
    unpack(shown["configuration"], source, tmp_path / "page")
    (tmp_path / "policy.toml").write_text(shown["files"]["toml"])
    written = tomllib.loads(shown["files"]["toml"])
    assert (written["secret"][0]["epsilon"], written["secret"][0]["window"]) == (1.0, "first 12")
    assert "epsilon" not in written
    _, release, audit = shown["files"]["steps"].strip().splitlines()
    assert main([*release.split()[1:], "--seed", "1"]) == 0
    capfd.readouterr()
    assert main([*audit.split()[1:], "--json"]) == 1  # a seeded release is not private
    [disclosed] = json.loads(capfd.readouterr().out)["secrets"]
    assert disclosed["log_odds_last"] == pytest.approx(abs(shown["secret"]["odds"][-1]), rel=1e-5)
    script = python(asked, source).replace("session = sv.Session(model, ", "session = sv.Session(model, seed=1, ")
    exec(compile(script, "snippet", "exec"), {})
    assert float(capfd.readouterr().out.split()[-1]) == pytest.approx(shown["secret"]["odds"][-1], rel=1e-4)
