"""What is said "under the model" is checked against the releases: two kinds of people are not one chain."""

import json
import re

import numpy as np
import polars as pl
import pytest

from filed import in_public_order
from policies import promise
from reference_streams import Rows
from seqveil import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.receiver.drift import Kinds, staying

N, LENGTH = 4, 30
NAMES = list("abcd")
ENOUGH = 0.85  # of intervals of 95 %
INTERVAL = re.compile(r"\(\S+ to \S+\)")


def two_kinds(users, seed):
    """Every second person stays where they are, the others never do."""
    rng = np.random.default_rng(seed)
    codes = np.empty((users, LENGTH), np.int64)
    for u in range(users):
        x = int(rng.integers(N))
        for t in range(LENGTH):
            codes[u, t] = x
            rarely = rng.random() < 0.05
            if u % 2 == 0:
                x = int(rng.integers(N)) if rarely else x
            else:
                x = x if rarely else (x + 1 + int(rng.integers(N - 1))) % N
    return codes


FITTED = MarkovModel.fit([[NAMES[x] for x in row] for row in two_kinds(400, seed=1)], alphabet=NAMES)
PEOPLE = {  # held out: nobody the model was fitted on
    "two kinds": lambda seed: two_kinds(300, seed=10 + seed),
    "the chain": lambda seed: FITTED.sample(LENGTH, users=300, seed=20 + seed),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FITTED.save("m")
    return tmp_path


def release(people, seed, *options):
    codes = PEOPLE[people](seed)
    users = np.repeat(np.arange(len(codes)), LENGTH)
    pl.DataFrame({"user": users, "value": [NAMES[x] for x in codes.ravel()]}).write_csv("raw.csv")
    run = ["release", "raw.csv", "--model", "m", "--seed", str(30 + seed), "--out", "out.csv", "--force", *options]
    assert main(run) == 0
    return codes


def truth(codes):
    moves = np.zeros((N, N))
    np.add.at(moves, (codes[:, :-1].ravel(), codes[:, 1:].ravel()), 1)
    counts = np.bincount(codes.ravel(), minlength=N)
    return {"histogram": counts, "transitions": moves, "dwell": counts / (counts - np.diagonal(moves))}


def covered(found, wanted):
    """Which of the printed intervals hold the truth, all figures together; none where none is printed."""
    inside = []
    for name, value in wanted.items():
        low, high = (np.array(found[name][end], float) for end in ("low", "high"))
        inside.append(((low <= value) & (value <= high))[~np.isnan(low)])
    return np.concatenate(inside)


def summary(capsys):
    capsys.readouterr()
    assert main(["stats", "out.csv", "--model", "m", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


HOW = {
    "optimal": ["--epsilon", "1"],
    "optimal, budget": list(promise(epsilon=1, budget=12)),
    "randomized response": ["--epsilon", "1.5", "--mechanism", "randomized_response"],
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("people", PEOPLE)
def test_printed_intervals_cover_or_are_not_printed(place, capsys, people, how):
    inside, said = [], []
    for seed in range(2):
        codes = release(people, seed, *HOW[how])
        found = summary(capsys)
        said.append(found["model"]["fits"])
        held = covered(found, truth(codes))
        assert bool(held.size) is found["intervals"]
        inside.append(held)
    assert said == [people == "the chain"] * 2
    shown = np.concatenate(inside)
    assert shown.mean() >= ENOUGH if shown.size else people == "two kinds"
    assert bool(shown.size) is (people == "the chain" or how == "randomized response")


@pytest.mark.slow
def test_the_text_says_so_and_prints_no_interval(place, capsys):
    release("two kinds", 0, "--epsilon", "1")
    capsys.readouterr()
    assert main(["stats", "out.csv", "--model", "m", "--per", "10"]) == 0
    said = capsys.readouterr().out
    assert "the releases do not fit the model (odds of e^" in said
    assert "intervals  none" in said
    assert not INTERVAL.search(said)
    assert "surely a" not in said
    release("the chain", 0, "--epsilon", "1")
    capsys.readouterr()
    assert main(["stats", "out.csv", "--model", "m"]) == 0
    said = capsys.readouterr().out
    assert "do not speak against it" in said
    assert "do not fit" not in said
    assert INTERVAL.search(said)


@pytest.mark.slow
@pytest.mark.parametrize("people", PEOPLE)
def test_decode_says_under_the_model_and_whether_it_fits(place, capsys, people):
    release(people, 0, "--epsilon", "1")
    capsys.readouterr()
    assert main(["decode", "out.csv", "--model", "m", "--out", "d.csv"]) == 0
    said = capsys.readouterr().err
    assert "under the model" in said
    assert ("do not fit the model" in said) is (people == "two kinds")
    assert main(["decode", "out.csv", "--model", "m", "--out", "d.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["confidence_holds"] == "under the model"
    assert found["model"]["fits"] is (people == "the chain")
    if people == "the chain":
        right = (pl.read_csv("d.csv")["value"] == in_public_order(pl.read_csv("raw.csv"))["value"]).mean()
        assert abs(right - found["confidence"]) < 0.03


@pytest.mark.slow
def test_decode_of_what_cannot_be_asked_says_that(place, capsys):
    (place / "raw.csv").write_text("user,value\nann,a\nann,b\nbob,a\n")
    batches = ["--epsilon", "1", "--batch", "2", "--mechanism", "tree"]
    assert main(["release", "raw.csv", "--model", "m", *batches, "--out", "out.csv"]) == 0
    assert main(["decode", "out.csv", "--model", "m", "--out", "d.csv"]) == 0
    assert "was not checked" in capsys.readouterr().err


def test_the_odds_of_staying_are_multiplied():
    table, moved = FITTED.advance(np.eye(N)), staying(FITTED, 3.0).advance(np.eye(N))
    odds = [np.diagonal(rows) / (1 - np.diagonal(rows)) for rows in (table, moved)]
    assert np.allclose(odds[1], 3 * odds[0])
    away = ~np.eye(N, dtype=bool)
    assert np.allclose((moved / table)[away].reshape(N, -1).std(1), 0)
    assert np.allclose(staying(FITTED, 1.0).advance(np.eye(N)), table)


def test_a_bet_on_kinds_is_fair_whatever_came_before():
    """Given the past, its odds against the model have mean 1: summed over every next release, exactly."""
    setting = Policy(epsilon=1.0, mechanism="randomized_response").on(FITTED)
    rng, rows = np.random.default_rng(4), np.arange(3)
    for length in range(4):
        past = rng.integers(0, N, (length, 3))
        mean = np.zeros(3)
        for y in range(N):
            fleet, kinds = Rows(setting, 3), Kinds(FITTED)
            kinds.grow(3)
            for codes in (*past, np.full(3, y)):
                seen = fleet.observe(rows, codes)
                mine, theirs = (seen.beliefs * seen.columns).sum(1), kinds.weigh(rows, seen.columns.astype(float))
            mean += theirs / mine * (mine / 2.0**62)
        assert np.allclose(mean, 1.0)
