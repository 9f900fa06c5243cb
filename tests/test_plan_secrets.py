"""`seqveil plan --secret`: every option works, or is refused in one line."""

from __future__ import annotations

import json

import pytest

import seqveil as sv
from seqveil.interfaces.cli import main
from seqveil.receiver import planning

MODEL = sv.MarkovModel(
    [0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=["news", "sports", "health"]
)
SHORT = ("--length", 8, "--users", 4)
SECRET = ("--secret", "ever:health", "--secret-window", 4)


@pytest.fixture
def planned(capsys, tmp_path):
    MODEL.save(tmp_path / "m.model")
    (tmp_path / "with.toml").write_text('[[secret]]\never = "health"\nwindow = 4\nepsilon = 0.5\n')
    (tmp_path / "without.toml").write_text('[[secret]]\never = "health"\nwindow = 4\n')

    def run(*args):
        capsys.readouterr()
        code = main(["plan", str(tmp_path / "m.model"), *(str(arg) for arg in (*SHORT, *args))])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.slow
def test_totals_are_compared(planned, tmp_path):
    picture = tmp_path / "plan.png"
    code, out, err = planned(*SECRET, "--secret-epsilon", "0.1,2", "--plot", picture, "--json")
    assert code == 0, err
    found = json.loads(out)
    small, large = found["rows"]
    assert [row["totals"] for row in found["rows"]] == [[0.1], [2.0]]
    assert large["error"] < small["error"] <= small["constant_error"] + 0.1
    assert small["told"] <= 0.1
    assert large["told"] <= 2.0
    assert all(row["epsilon"] is None and row["withheld"] == 0.0 for row in found["rows"])
    assert len(found["guarantees"]) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, _ = planned(*SECRET, "--secret-epsilon", "0.1")
    assert code == 0
    assert "no bound" in out
    assert "if the stream follows the model" in out


@pytest.mark.slow
def test_secrets_from_a_file_and_an_epsilon_beside_them(planned, tmp_path):
    code, out, err = planned("--secrets", tmp_path / "with.toml", "--epsilon", "0.5,1", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(row["totals"], row["epsilon"]) for row in rows] == [([0.5], 0.5), ([0.5], 1.0)]
    assert rows[1]["error"] <= rows[0]["error"]
    alone = json.loads(planned("--secrets", tmp_path / "with.toml", "--json")[1])["rows"][0]
    assert alone["error"] <= rows[1]["error"]


@pytest.mark.slow
def test_how_secrets_are_kept_is_planned_too(planned, tmp_path):
    total = ("--secret-epsilon", 0.5, "--json")
    (told,) = json.loads(planned(*SECRET, *total)[1])["rows"]
    (withheld,) = json.loads(planned(*SECRET, *total, "--secret-withhold", "--mechanism", "guarded")[1])["rows"]
    assert withheld["error"] == pytest.approx(withheld["withheld"])
    assert withheld["truth"] == pytest.approx(1 - withheld["withheld"])
    assert withheld["withheld"] > told["error"]
    assert planned(*SECRET, *total, "--observer", tmp_path / "m.model")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*SECRET, "--secret-epsilon", 1, "--mechanism", "optimal"), "does not keep secrets"),
        ((*SECRET, "--secret-epsilon", 1, "--batch", "1,5"), "--batch does not go with --secret"),
        ((*SECRET, "--secret-epsilon", 1, "--every", 2), "--every does not go with --secret"),
        ((*SECRET, "--secret-epsilon", 1, "--find-period"), "--find-period does not go with --secret"),
        ((*SECRET, "--secret-epsilon", 1, "--plot", "plan.doc"), "expected a picture"),
        ((*SECRET, "--secret-epsilon", "1,many"), "for secret-epsilon"),
        ((*SECRET, "--secret-epsilon", 1, "--epsilon", "many"), "for epsilon"),
        ((*SECRET, "--secret-epsilon", 1, "--secret-withhold", "--epsilon", 1), "leave one of them out"),
        ((*SECRET, "--secret-epsilon", 1, "--users", 0), "≥ 1"),
        (SECRET, "add --secret-epsilon"),
        (("--secret-epsilon", 1), "without a secret"),
        (("--secret-withhold",), "--secret-withhold says how a secret is kept"),
        (("--mechanism", "guarded"), ""),
        (("--secret", "ever:helth", "--secret-epsilon", 1), "not in the alphabet"),
        (("--secrets", "nowhere.toml"), "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(planned, args, words):
    code, out, err = planned(*args)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not out


def test_a_file_without_totals_is_refused(planned, tmp_path):
    code, _, err = planned("--secrets", tmp_path / "without.toml")
    assert code == 2
    assert "has no epsilon" in err


@pytest.mark.slow
def test_plans_without_secrets_stay_as_they_were(planned):
    code, out, _ = planned("--every", 2, "--batch", "1,2", "--json")
    assert code == 0
    assert {row["epsilon"] for row in json.loads(out)["rows"]} == {0.25, 0.5, 1.0, 2.0}


def test_only_settings_that_keep_secrets_are_simulated():
    with pytest.raises(sv.errors.InputError, match="guarded"):
        planning.simulate_secrets(sv.Policy(epsilon=1.0, mechanism="optimal").on(MODEL))
