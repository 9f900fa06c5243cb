"""What is said "under the model" is checked against the releases: two kinds of people are not one chain."""

import re

import numpy as np
import polars as pl
import pytest

from filed import in_public_order
from reference.streams import Rows
from seqveil import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.receiver.drift import Habits

N, LENGTH = 4, 30
NAMES = list("abcd")
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


HOW = {"optimal": ["--epsilon", "1"], "blocks": ["--epsilon", "4", "--block", "4"]}


@pytest.mark.slow
@pytest.mark.parametrize("people", PEOPLE)
@pytest.mark.parametrize("how", HOW)
def test_decode_and_stats_say_whether_the_model_fits(place, seqveil, people, how):
    fits = people == "the chain"
    release(people, 0, *HOW[how])
    decode = ("decode", "out.csv", "--model", "m", "--out", "d.csv")
    said = seqveil(*decode).err
    assert ("under the model" in said, "do not fit the model" in said) == (True, not fits)
    found = seqveil(*decode, "--json").json
    assert (found["confidence_holds"], found["model"]["fits"]) == ("under the model", fits)
    if fits:
        right = (pl.read_csv("d.csv")["value"] == in_public_order(pl.read_csv("raw.csv"))["value"]).mean()
        assert abs(right - found["confidence"]) < 0.03
        told = seqveil(*decode, "--truth", "raw.csv", "--json").json
        assert told["right"] == pytest.approx(right)
    if how == "optimal":  # intervals under a model that does not fit would be wrong, so there are none
        said = seqveil("stats", "out.csv", "--model", "m", "--per", 10).out
        assert (bool(INTERVAL.search(said)), "do not fit the model (accounts are off by at least" in said) == (
            fits,
            not fits,
        )
        assert fits or "surely a" not in said


@pytest.mark.slow
def test_what_cannot_be_checked_or_compared_is_said_and_nothing_is_written_over(place, seqveil):
    (place / "raw.csv").write_text("user,value\nann,a\nann,b\nbob,a\n")
    batches = ("--epsilon", 1, "--batch", 2, "--mechanism", "tree")
    assert seqveil("release", "raw.csv", "--model", "m", *batches, "--out", "out.csv").code == 0
    assert (
        "is not known: that takes releases one by one"
        in seqveil("decode", "out.csv", "--model", "m", "--out", "d.csv").err
    )
    (place / "wrong.csv").write_text("user,value\nann,a\nbob,a\n")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    for out, truth in (("raw.csv", "raw.csv"), ("d.csv", "wrong.csv")):
        refused = seqveil("decode", "out.csv", "--model", "m", "--out", out, "--truth", truth)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_bet_on_habits_is_fair_whatever_came_before():
    """Given the past, its odds against the model have mean 1: summed over every next release, exactly."""
    setting = Policy(epsilon=1.0, mechanism="randomized_response").on(FITTED)
    rng, rows = np.random.default_rng(4), np.arange(3)
    for length in range(4):
        past = rng.integers(0, N, (length, 3))
        mean = np.zeros((Habits.bets, 3))
        for y in range(N):
            fleet, habits = Rows(setting, 3), Habits(FITTED, 3)
            for codes in (*past, np.full(3, y)):
                seen = fleet.observe(rows, codes)
                mine = (seen.beliefs * seen.columns).sum(1)
                theirs = habits.weigh(rows, seen.columns.astype(float), seen.beliefs)
            mean += theirs / mine * (mine / 2.0**62)
        assert np.allclose(mean, 1.0)  # of each of its bets, for each user
