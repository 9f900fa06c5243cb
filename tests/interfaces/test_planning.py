"""`seqveil plan`: errors on people, the policy it recommends, and the file that every command that releases takes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import seqveil as sv
from seqveil.core import words
from seqveil.core.errors import InputError
from seqveil.interfaces import planning
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.release import promises
from seqveil.interfaces.planning import Wishes, plan
from seqveil.interfaces.trials import release

NAMES = ["home", "news", "health"]
MODEL = sv.MarkovModel([0.5, 0.4, 0.1], [[0.7, 0.25, 0.05], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]], alphabet=NAMES)
LIVELY = sv.MarkovModel([0.4, 0.3, 0.3], 0.1 * np.eye(3) + 0.9 / 3, alphabet=NAMES)
COLUMNS = ["--user-column", "person", "--value-column", "page"]
FEW = ["--people", "8", "--length", "6"]


def write(path, streams):
    rows = [f"p{user},{k},{NAMES[code]}" for user, codes in enumerate(streams) for k, code in enumerate(codes)]
    path.write_text("person,seq,page\n" + "\n".join(rows) + "\n")


@pytest.fixture
def clicks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "clicks.csv", MODEL.sample(6, 40, seed=2))
    MODEL.save(tmp_path / "m.model")
    sv.Policy(epsilon=1.0).save(tmp_path / "p.toml")
    return tmp_path


@pytest.mark.slow
def test_without_secrets_the_whole_stream_keeps_the_odds():
    found = plan(MODEL, Wishes(odds=(0.10, 0.30)), length=12)
    total = found.policy.budget.total
    assert words.moved(0.10, 2 * total) <= 0.30 < words.moved(0.10, 2.04 * total)
    assert found.risk.grade.colour == "unchecked"
    assert found.chosen.error <= found.guess + 0.05
    assert any("declare what must stay secret" in note for note in found.notes)  # a guess is nearly as good


@pytest.mark.slow
def test_from_accuracy_it_finds_the_least_that_reaches_it(monkeypatch):
    found = plan(MODEL, Wishes(odds=(0.10, 0.30), wrong=0.15), length=12)
    assert found.chosen.error <= 0.15
    assert any("does not keep a suspicion of 10 % under 30 %" in note for note in found.notes)
    below = [row for row in found.rows if row.total < found.chosen.total]
    assert below
    assert all(row.error > 0.15 for row in below)
    waiting = plan(MODEL, Wishes(wrong=0.15, wait=4), length=12)
    assert waiting.chosen.total <= found.chosen.total
    monkeypatch.setattr(planning, "LADDER", (0.1, 0.5))
    with pytest.raises(InputError, match="tolerate more"):
        plan(MODEL, Wishes(wrong=0.15), length=12)


def test_where_nobody_has_the_secret_no_error_is_made_up_for_them():
    policy = sv.Policy(secrets=[sv.secrets.ever("health", window=3, epsilon=0.5)])
    people = [np.array([0, 1, 0])] * 2
    found = plan(MODEL, Wishes(policy=policy), length=3, streams=people)
    assert found.chosen.with_secret is None
    assert "lasts" not in dict(found.lines())
    assert found.tables()[0].rows[0][4] == "nobody"
    everybody = plan(MODEL, Wishes(policy=policy), length=3, streams=[np.array([0, 2, 0])] * 2)
    assert (everybody.chosen.with_secret, everybody.chosen.without_secret) == (everybody.chosen.error, None)


def test_streams_of_one_event_are_planned_for():
    found = plan(MODEL, Wishes(odds=(0.1, 0.25)), length=1, people=3)
    assert max(row.total for row in found.rows) <= planning.HIGHEST
    with pytest.raises(InputError, match="all but the truth; ask for less"):
        plan(MODEL, Wishes(epsilons=(13.0,)), length=1, people=3)


def test_how_long_a_promise_lasts_is_said_before_it_ends():
    policy = sv.Policy(secrets=[sv.secrets.ever("health", epsilon=0.5)])
    said = "at most 1,000 events of a person; then releases are refused: give the secret a window"
    assert dict(plan(MODEL, Wishes(policy=policy), length=3, people=2).lines())["lasts"].startswith(said)
    assert any(said in each for each in promises(policy.on(MODEL)))
    held = sv.MarkovModel([0.5, 0.5], [[1 - 1e-6, 1e-6], [1e-6, 1 - 1e-6]])
    policy = sv.Policy(secrets=[sv.secrets.ever(1, epsilon=0.5, window=20)])
    assert "this model hardly forgets" in policy.on(held).lasts


@pytest.mark.slow
def test_errors_with_and_without_a_secret_are_those_of_its_windows():
    """Counted by hand: who reads about health in a window of four events, and what was released there."""
    secret = sv.secrets.ever("health", window=4, epsilon=0.5)
    policy = sv.Policy(secrets=[secret])
    streams = [*MODEL.sample(10, 25, seed=4)]
    found = plan(MODEL, Wishes(policy=policy), length=10, people=25, streams=streams, seed=3)
    costs = release(policy.on(MODEL), streams, seed=4).costs
    sides = {True: [], False: []}
    for place, codes in enumerate(streams):
        for begin in range(0, 10, 4):
            sides[2 in codes[begin : begin + 4]] += costs[place][begin : begin + 4].tolist()
    assert found.chosen.with_secret == pytest.approx(np.mean(sides[True]))
    assert found.chosen.without_secret == pytest.approx(np.mean(sides[False]))
    assert found.chosen.error == pytest.approx(np.mean(sides[True] + sides[False]))
    assert found.policy == policy


@pytest.mark.slow
def test_the_policy_it_writes_releases_as_the_same_options_do(clicks, capsys):
    assert main(["fit", "clicks.csv", "--out", "clicks.model", *COLUMNS]) == 0
    capsys.readouterr()
    asked = ["plan", "clicks.csv", *COLUMNS, "--seen-by", "partner", "--secret", "ever:health", "-o", "policy.toml"]
    assert main([*asked, "--epsilon", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "8 held-out people, 6 events each at most" in said
    assert "for people who have the secret" in said
    assert ("CSV with commas" in said, "CSV" in (clicks / "policy.toml").read_text()) == (True, False)
    (secret,) = sv.Policy.load("policy.toml").secrets
    epsilon = secret.epsilon
    assert words.moved(0.10, epsilon) <= 0.25 < words.moved(0.10, epsilon * 1.02)
    assert main(asked) == 2
    assert "is there already" in capsys.readouterr().err
    shared = ["release", "clicks.csv", "-m", "clicks.model", *COLUMNS, "--seed", "5"]
    assert main([*shared, "--policy", "policy.toml", "-o", "a.csv"]) == 0
    assert main([*shared, "--secret", "ever:health", "--secret-epsilon", str(epsilon), "-o", "b.csv"]) == 0
    assert (clicks / "a.csv").read_bytes() == (clicks / "b.csv").read_bytes()


@pytest.mark.slow
def test_the_plan_as_json_and_for_a_policy(clicks, capsys):
    def asked(*options):
        capsys.readouterr()
        assert main(["plan", "m.model", *FEW, *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = asked("--secret", "ever:health", "--secret-window", "4", "--epsilon", "0.1,2")
    assert [row["total"] for row in found["rows"]] == [0.1, 2.0]
    assert found["policy"] is None
    spent = {}
    for ends in ("hold", "stop"):
        (clicks / "total.toml").write_text(f'epsilon = 1.0\nbudget = {{ total = 2.0, when_spent = "{ends}" }}\n')
        spent[ends] = asked("--policy", "total.toml")
        assert spent[ends]["policy"]["budget"]["total"] == 2.0
    assert spent["stop"]["error"] > spent["hold"]["error"]
    write(clicks / "others.csv", LIVELY.sample(6, 20, seed=5))
    people = asked("--data", "others.csv", *COLUMNS, "--epsilon", "1")
    assert people["held_out"] is True
    assert people["people"] == 8
    assert main(["plan", "m.model", *FEW, "--data", "others.csv", *COLUMNS, "--epsilon", "1"]) == 0
    assert "8 people of others.csv, 6 events each at most" in capsys.readouterr().out
    (clicks / "odd.csv").write_text("person,page\nu,zq-secret\n")
    assert main(["plan", "m.model", "--data", "odd.csv", *COLUMNS]) == 2
    assert "zq-secret" not in capsys.readouterr().err


SECRET = ["--secret", "ever:health"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["m.model", "-o", "own.toml"], "add --seen-by"),
        (["m.model", "--seen-by", "nobody"], "--seen-by as public, partner, team, or as 10:30"),
        (["m.model", "--wrong", "nan"], "above 0"),
        (["m.model", "--wrong", "1.2"], "above 0 and below 1"),
        (["m.model", "--seen-by", "team", "--wait", "-1"], "wait of 0"),
        (["m.model", "--epsilon", "1,many"], "for --epsilon"),
        (["m.model", "--epsilon", "0"], "above 0"),
        (["m.model", "--people", "0"], "1 person or more"),
        (["m.model", "--secret-window", "4"], "without a secret"),
        (["m.model", *SECRET, "--wait", "4"], "0 with secrets"),
        (["m.model", "--policy", "p.toml", *SECRET], "--policy already says what to promise; drop --wrong, --secret"),
        (["m.model", "--policy", "p.toml", "--distortion", "absolute"], "drop --wrong, --secret, --distortion"),
        (["m.model", *SECRET, "--length", "5000"], "give it a window"),
        (["m.model", "--seen-by", "30:10"], "as a suspicion and a larger one"),
        (["none.csv"], "none.csv"),
        (["clicks.csv", "--data", "clicks.csv"], "--data goes with a model"),
        (["m.model", "--data", "none.csv"], "none.csv"),
    ],
)
def test_bad_answers_get_one_line_and_nothing_is_written(clicks, capsys, given, said):
    before = sorted(path.name for path in clicks.iterdir())
    assert main(["plan", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in clicks.iterdir()) == before


def test_every_command_that_releases_takes_a_policy_and_says_what_is_wrong_with_it(clicks, capsys):
    (clicks / "bad.toml").write_text("epsilon = -1\n")
    commands = (
        ["release", "clicks.csv", "-o", "x.csv"],
        ["serve", "--no-auth", "--state", "s.db"],
        ["bridge", "mqtt", "--broker", "localhost:1", "--state", "s.db", "--begin"],
        ["spark", "release", "clicks.csv", "--key", "k", "--out", "x", "--checkpoint", "c"],
    )
    for each in commands:
        assert main([*each, "--model", "m.model", "--policy", "bad.toml"]) == 2
        assert "bad.toml: expected epsilon to be a finite number above 0, got -1" in capsys.readouterr().err, each
        assert main([*each, "--model", "m.model", "--policy", "none.toml"]) == 2
        assert "none.toml: no such policy file" in capsys.readouterr().err, each
    assert not (clicks / "x.csv").exists()


@pytest.mark.slow
def test_a_file_is_planned_for_as_inspect_reads_it(tmp_path, seqveil):
    """Columns by other names, missing values, numbers that must be cut, and a pipe: no option is needed."""
    rows = [f"h{k % 20};{k // 20};{'' if k % 37 == 0 else k * 7919 % 977 / 10}" for k in range(400)]
    path = tmp_path / "home.csv"
    path.write_text("household;time;watts\n" + "\n".join(rows) + "\n")
    found = seqveil("plan", path, "--epsilon", 1, "--people", 3, "--json")
    assert found.json["held_out"], found.err
    assert "--missing hold --bins auto`" in found.json["read"]
    assert any("--distortion absolute" in note for note in found.json["notes"])


def test_rare_values_are_pooled_as_inspect_proposes(tmp_path, seqveil):
    rows = [f"u{k % 40},{'rare' if k == 7 else 'abb'[k % 3]}" for k in range(400)]
    (tmp_path / "d.csv").write_text("user,value\n" + "\n".join(rows) + "\n")
    assert "--other 10`" in seqveil("plan", tmp_path / "d.csv", "--epsilon", 1, "--people", 3, "--json").json["read"]
