"""`seqveil plan` from a data file to a policy, with secrets too; the file that every command that releases takes."""

from __future__ import annotations

import json

import pytest

import seqveil as sv
from seqveil.core import words
from seqveil.core.errors import InputError
from seqveil.interfaces import planning
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import recommend as asking
from seqveil.interfaces.planning import Wishes, advise

NAMES = ["home", "news", "health"]
MODEL = sv.MarkovModel([0.5, 0.4, 0.1], [[0.7, 0.25, 0.05], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]], alphabet=NAMES)


@pytest.fixture
def clicks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"p{user},{k},{NAMES[code]}"
        for user, codes in enumerate(MODEL.sample(6, 15, seed=2))
        for k, code in enumerate(codes)
    ]
    (tmp_path / "clicks.csv").write_text("person,seq,page\n" + "\n".join(rows) + "\n")
    MODEL.save(tmp_path / "m.model")
    return tmp_path


COLUMNS = ["--user-column", "person", "--value-column", "page"]


@pytest.mark.slow
def test_the_setting_it_writes_releases_as_the_same_options_do(clicks, capsys):
    assert main(["fit", "clicks.csv", "--out", "clicks.model", *COLUMNS]) == 0
    capsys.readouterr()
    assert main(["plan", "clicks.model", "--seen-by", "partner", "--secret", "ever:health"]) == 0
    said = capsys.readouterr().out
    assert "solved from odds; a suspicion of 10 % is to stay under 25 %" in said
    (secret,) = sv.Policy.load("policy.toml").secrets
    epsilon = secret.epsilon
    assert words.moved(0.10, epsilon) <= 0.25 < words.moved(0.10, epsilon * 1.02)
    shared = ["release", "clicks.csv", "-m", "clicks.model", *COLUMNS, "--seed", "5"]
    assert main([*shared, "--policy", "policy.toml", "-o", "a.csv"]) == 0
    options = ["--secret", "ever:health", "--secret-epsilon", str(epsilon)]
    assert main([*shared, *options, "-o", "b.csv"]) == 0
    assert (clicks / "a.csv").read_bytes() == (clicks / "b.csv").read_bytes()
    assert main([*shared, "--policy", "policy.toml", "--secret-epsilon", "3", "-o", "c.csv"]) == 2
    assert "leave out --secret-epsilon" in capsys.readouterr().err


@pytest.mark.slow
def test_without_secrets_the_whole_stream_keeps_the_odds():
    found = advise(MODEL, Wishes(length=12, suspicion=0.10, limit=0.30))
    assert (
        words.moved(0.10, 2 * found.policy.budget.total) <= 0.30 < words.moved(0.10, 2.04 * found.policy.budget.total)
    )
    assert found.risk.grade.colour == "unchecked"
    assert found.error <= found.guess + 1e-9
    assert "declare what must stay secret" in found.notes[0]  # so little is disclosed that a guess is nearly as good


@pytest.mark.slow
def test_from_accuracy_it_finds_the_least_that_reaches_it():
    wishes = Wishes(length=12, suspicion=0.10, limit=0.30, wrong=0.15)
    found = advise(MODEL, wishes)
    assert found.error <= 0.15
    assert found.solved_from == "accuracy"
    assert any("does not keep a suspicion of 10 % under 30 %" in note for note in found.notes)
    period = found.policy.every
    less = sv.Policy(epsilon=found.policy.epsilon * 0.85, mechanism="optimal", every=period).on(MODEL)
    assert planning.simulate(less, 12, 60).error > 0.15
    kept = advise(MODEL, wishes, from_accuracy=False)
    assert kept.policy.budget.total < found.policy.budget.total
    assert any("costs more error" in note for note in kept.notes)


@pytest.mark.slow
def test_waiting_helps():
    both = [
        advise(MODEL, Wishes(length=12, suspicion=0.1, limit=0.3, wrong=0.2, wait=wait)).policy.budget.total
        for wait in (0, 4)
    ]
    assert both[1] <= both[0]


@pytest.mark.slow
def test_a_secret_from_accuracy():
    secret = sv.secrets.ever("health", window=4, epsilon=1.0)
    found = advise(MODEL, Wishes(length=8, suspicion=0.1, limit=0.3, wrong=0.1, secrets=(secret,)))
    assert found.error <= 0.1 * 1.05
    assert found.policy.secrets[0].window == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["m.model", "--wrong", "20%"], "expected --seen-by"),
        (["m.model", "-o", "own.toml"], "add --seen-by"),
        (["m.model", "--seen-by", "team", "--secret", "ever:health", "--secret-epsilon", "1"], "leave it out"),
        (["m.model", "--seen-by", "nobody"], "public, partner, team"),
        (["m.model", "--seen-by", "team", "--odds", "30:10"], "--odds as 10:30"),
        (["m.model", "--seen-by", "team", "--odds", "30"], "--odds as 10:30"),
        (["m.model", "--seen-by", "team", "--wrong", "nan"], "0.2 or 20%"),
        (["m.model", "--seen-by", "team", "--wrong", "120%"], "more often than always"),
        (["m.model", "--seen-by", "team", "--wrong", "0"], "above 0"),
        (["m.model", "--seen-by", "team", "--wait", "-1"], "wait of 0"),
        (["m.model", "--seen-by", "team", "--secret-window", "4"], "without a secret"),
        (["m.model", "--seen-by", "team", "--secret", "ever:x", "--length", "5000"], "give it a window"),
        (["none.model", "--seen-by", "team"], "none.model"),
        (["clicks.csv", "--seen-by", "team"], "seqveil fit DATA"),
        (["m.model", "--seen-by", "team", "--secret", "ever:helth"], "not in the alphabet"),
        (["m.model", "--seen-by", "team", "-o", "clicks.csv"], "is there already"),
    ],
)
def test_bad_answers_get_one_line_and_nothing_is_written(clicks, capsys, given, said):
    assert main(["plan", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (clicks / "policy.toml").exists()


def test_an_unreachable_accuracy_is_refused():
    near = sv.MarkovModel([0.02] * 50, [[0.02] * 50] * 50)
    with pytest.raises(InputError, match="tolerate more"):
        advise(near, Wishes(length=4, suspicion=0.1, limit=0.3, wrong=1e-7))


@pytest.mark.slow
def test_every_command_that_releases_takes_a_policy_and_says_what_is_wrong_with_it(clicks, capsys):
    (clicks / "bad.toml").write_text("epsilon = -1\n")
    commands = (
        ["release", "clicks.csv", "-o", "x.csv"],
        ["serve", "--no-auth", "--state", "s.db"],
        ["bridge", "mqtt", "--broker", "localhost:1", "--state", "s.db", "--begin"],
        ["spark", "release", "clicks.csv", "--key", "k", "--out", "x"],
    )
    for command in commands:
        assert main([*command, "--model", "m.model", "--policy", "bad.toml"]) == 2
        assert "bad.toml: expected epsilon to be a finite number above 0, got -1" in capsys.readouterr().err, command
        assert main([*command, "--model", "m.model", "--policy", "none.toml"]) == 2
        assert "none.toml: no such policy file" in capsys.readouterr().err, command
    assert not (clicks / "x.csv").exists()


@pytest.mark.slow
def test_at_a_terminal_it_asks_for_what_is_missing(clicks, capsys, monkeypatch):
    answers = {"1.": "partner", "2.": "ever:health", "3.": "", "4.": ""}
    asked = []

    def prompt(question, **more):
        asked.append(question[:2])
        return answers[question[:2]]

    monkeypatch.setattr(asking.typer, "prompt", prompt)
    monkeypatch.setattr(asking.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(asking.sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["plan", "m.model", "--wait", "0", "--length", "5", "--json"]) == 0
    assert asked == ["1.", "2.", "4."]
    assert json.loads(capsys.readouterr().out)["policy"]["secret"][0]["ever"] == ["health"]
    answers["1."] = ""
    assert main(["plan", "m.model", "--wait", "0", "-o", "other.toml"]) == 2
    assert "expected --seen-by" in capsys.readouterr().err


PAGES = sv.MarkovModel(
    [0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=["news", "sports", "health"]
)
SHORT = ("--length", 8, "--users", 4)
ASKED = ("--secret", "ever:health", "--secret-window", 4)


@pytest.fixture
def planned(capsys, tmp_path):
    PAGES.save(tmp_path / "m.model")
    (tmp_path / "with.toml").write_text('[[secret]]\never = "health"\nwindow = 4\nepsilon = 0.5\n')

    def run(*args):
        capsys.readouterr()
        code = main(["plan", str(tmp_path / "m.model"), *(str(arg) for arg in (*SHORT, *args))])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.slow
def test_totals_are_compared(planned, tmp_path):
    picture = tmp_path / "plan.png"
    code, out, err = planned(*ASKED, "--secret-epsilon", "0.1,2", "--plot", picture, "--json")
    assert code == 0, err
    found = json.loads(out)
    small, large = found["rows"]
    assert [row["totals"] for row in found["rows"]] == [[0.1], [2.0]]
    assert large["error"] < small["error"] <= small["constant_error"] + 0.1
    assert small["disclosed"] <= 0.1
    assert large["disclosed"] <= 2.0
    assert all(row["epsilon"] is None and row["withheld"] == 0.0 for row in found["rows"])
    assert len(found["guarantees"]) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, _ = planned(*ASKED, "--secret-epsilon", "0.1")
    assert code == 0
    assert "no bound" in out
    assert "if the stream follows the model" in out


@pytest.mark.slow
def test_a_policy_from_a_file_and_an_epsilon_in_it(planned, tmp_path):
    code, out, err = planned("--policy", tmp_path / "with.toml", "--epsilon", "0.5,1", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(row["totals"], row["epsilon"]) for row in rows] == [([0.5], 0.5), ([0.5], 1.0)]
    assert rows[1]["error"] <= rows[0]["error"]
    alone = json.loads(planned("--policy", tmp_path / "with.toml", "--json")[1])["rows"][0]
    assert alone["error"] <= rows[1]["error"]
    spent = {}
    for ends in ("hold", "stop"):
        (tmp_path / "total.toml").write_text(f'epsilon = 1.0\nbudget = {{ total = 2.0, when_spent = "{ends}" }}\n')
        (spent[ends],) = json.loads(planned("--policy", tmp_path / "total.toml", "--json")[1])["rows"]
        assert spent[ends]["leakage"] <= 2.0 * (1 + 1e-9)
    assert spent["stop"]["withheld"] > 0.5 > spent["hold"]["withheld"] == 0.0
    assert spent["stop"]["error"] > spent["hold"]["error"]
    (tmp_path / "timed.toml").write_text("epsilon = 1.0\nbudget = { window = { epsilon = 2.0, seconds = 60 } }\n")
    assert "a budget for seconds" in planned("--policy", tmp_path / "timed.toml")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*ASKED, "--secret-epsilon", 1, "--batch", "1,5"), "--batch does not go with --secret"),
        ((*ASKED, "--secret-epsilon", 1, "--every", 2), "--every does not go with --secret"),
        (("--every", "often"), "--every as a whole number"),
        (("--policy", "with.toml", "--batch", "1,5"), "--policy says what is promised; leave out --batch"),
        ((*ASKED, "--secret-epsilon", 1, "--plot", "plan.doc"), "expected a picture"),
        ((*ASKED, "--secret-epsilon", "1,many"), "for secret-epsilon"),
        ((*ASKED, "--secret-epsilon", 1, "--epsilon", "many"), "for epsilon"),
        ((*ASKED, "--secret-epsilon", 1, "--users", 0), "≥ 1"),
        (ASKED, "add --secret-epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(planned, args, words):
    code, out, err = planned(*args)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not out
