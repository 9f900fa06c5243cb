"""The comparison as a whole: who takes part, the table, and the command."""

from __future__ import annotations

import math
import signal

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from policies import promise
from seqveil import mechanisms
from seqveil.core.errors import InputError
from seqveil.evaluate.compare import Arena, Way, compare, comparison, measured, ways
from seqveil.evaluate.compare.comparison import read_streams

NAMES = ["news", "sports", "health"]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=NAMES)
EVER = sv.secrets.ever("health", epsilon=0.5, window="first 6")
SECRET = "zq-secret-77"


@pytest.mark.slow
def test_everyone_promises_and_keeps_what_it_says():
    found = compare(list(MODEL.sample(6, 15, seed=1)), MODEL, sv.Policy(secrets=EVER), epsilons=[0.5], batches=[2])
    rows = {row.label: row for row in found.rows}
    assert {row.mechanism for row in rows.values()} >= {*mechanisms.instantaneous(), "tree", "guarded"}
    assert "blocks of 6" in rows
    assert "blocks of 20" not in rows
    for label, row in rows.items():
        if row.status in ("skipped", "limit"):
            continue
        worst = max(row.lift_most, -row.lift_least)
        if row.claimed is not None:
            promised = mechanisms.find(row.mechanism).sound
            expected = "unsound" if worst > row.claimed + 1e-9 else "sound" if promised else "no promise"
            assert row.status == expected, label
            assert row.status != "unsound" or not promised, label
        one = row.secrets[0]
        assert one.promised is None or one.log_odds_worst is None or one.log_odds_worst <= one.promised, label
    assert rows["crr"].status == "unsound"
    assert rows["randomized_response at 2ε"].claimed == rows["tree, 2 at a time"].claimed == 1.0
    promises = {"optimal": 6.0, "randomized_response": 3.0, "optimal, total ε": 1.0, "guarded": 0.5, "crr": None}
    promises |= {"suppression of the named symbols": None, "tree, 2 at a time": 6.0}
    assert {label: rows[label].secrets[0].promised for label in promises} == promises
    assert rows["tree, 2 at a time"].secrets[0].log_odds_worst is None  # batches have no account
    assert (rows["guarded"].status, rows["guarded"].epsilon) == ("sound", None)
    field = [row for row in found.rows if row.epsilon == 0.5 and row.status == "sound"]
    best = min((row for row in field if "2ε" not in row.label), key=lambda row: row.filtered)
    assert best in found.best()


def test_what_cannot_be_compared_is_refused_before_anything_is_released():
    streams, follow = list(MODEL.sample(6, 30, seed=1)), sv.secrets.followed_by("news", ["sports", "health"], window=3,
                                                                               epsilon=1.0)  # fmt: skip
    for expected, act in {
        "what an event may cost": lambda: compare(streams, MODEL),
        "expected a mechanism among": lambda: compare(streams, MODEL, epsilons=[1.0], names=["suppression2"]),
        "on a declared secret": lambda: compare(streams, MODEL, epsilons=[1.0], attack=True),
        "at most 1000 events": lambda: Arena.of(
            MODEL, list(MODEL.sample(1001, 1, seed=3)), sv.Policy(secrets=sv.secrets.ever("health", epsilon=1.0))
        ),
        "names of mechanisms": lambda: ways([]),
        "at least one stream": lambda: compare([], MODEL, epsilons=[1.0]),
    }.items():
        with pytest.raises(InputError, match=expected):
            act()
    row = measured(Arena.of(MODEL, streams, sv.Policy(secrets=follow)), Way("suppression"), None)
    assert "name every symbol" in row.reason


@pytest.mark.slow
def test_the_attack_finds_what_is_left_out_and_not_what_is_guarded():
    telling = sv.MarkovModel(
        [0.9, 0.0, 0.1, 0.0],
        [[0.8, 0.1, 0.1, 0.0], [0.0, 0.1, 0.0, 0.9], [0.5, 0.0, 0.5, 0.0], [0.9, 0.0, 0.0, 0.1]],
        alphabet=["news", "health", "sports", "chemist"],
    )
    policy = sv.Policy(secrets=sv.secrets.ever("health", epsilon=0.5, window="first 8"))
    found = compare(list(telling.sample(8, 1500, seed=5)), telling, policy, names=["suppression", "guarded"],
                    attack=True)  # fmt: skip
    first = found.rows[0].secrets[0]  # a visit to the chemist follows health alone, so what is left gives it away
    assert (found.rows[0].status, first.promised, first.log_odds_worst) == ("no promise", None, math.inf)
    leaky, *kept = (row.secrets[0].attack for row in found.rows)
    assert (leaky.verdict, leaky.people) == ("broken", 1500)
    assert len(kept) == 3  # by symbol, and with memory
    assert all(each.verdict != "broken" for each in kept)
    assert max(each.epsilon_at_least for each in kept) <= 0.5 < leaky.epsilon_at_least
    assert "  broken: " in str(found)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = MODEL.sample(6, 60, seed=7)
    users = [f"{SECRET}-{user}" for user in np.repeat(np.arange(60), 6)]
    pl.DataFrame({"user": users, "value": [NAMES[x] for x in codes.ravel()]}).write_csv("d.csv")
    MODEL.save("m.model")
    return tmp_path


def test_people_are_drawn_by_their_names_and_not_by_the_file(files):
    frame = pl.read_csv("d.csv").with_columns(seq=pl.int_range(pl.len()).over("user"))
    frame.write_csv("d.csv")
    frame.sample(fraction=1, shuffle=True, seed=1).write_csv("shuffled.csv")
    one = [codes.tolist() for codes in read_streams("d.csv", MODEL, people=5, first=4)]
    assert [len(codes) for codes in one] == [4] * 5
    assert [codes.tolist() for codes in read_streams("shuffled.csv", MODEL, people=5, first=4)] == one
    assert [codes.tolist() for codes in read_streams("d.csv", MODEL, people=5, first=4, seed=1)] != one
    assert [codes.tolist() for codes in read_streams("d.csv", MODEL, people=7, first=4)][:5] == one
    assert len(read_streams("d.csv", MODEL)) == 60


RUN = ("compare", "d.csv", "-m", "m.model", "--people", 20)


@pytest.mark.slow
def test_the_command(seqveil, files):
    made = seqveil(*RUN, "--epsilon", "0.5,2", "--mechanisms", "optimal,crr,guarded", *promise(secrets=EVER))
    assert made.code == 0, made.err
    assert SECRET not in made.out + made.err
    for text in ("★", "✗", "promises", "disclosed", "limit: best guess", "in the paper", "(seeded, not private)"):
        assert text in made.out
    facts = seqveil(*RUN, "--mechanisms", "guarded,suppression", *promise(secrets=EVER), "--json").json
    rows = {row["label"]: row for row in facts["rows"]}
    assert [rows["guarded"][name] for name in ("epsilon", "status")] == [None, "sound"]
    assert facts["people"] == 20
    assert rows["guarded"]["secrets"][0]["log_odds_worst"] <= 0.5
    assert rows["suppression of the named symbols"]["secrets"][0]["promised"] is None


@pytest.mark.slow
def test_bad_input_is_one_line(seqveil, files):
    (files / "no_total.toml").write_text('[[secret]]\never = "health"\n')
    cases = {
        "no such file": ("compare", "none.csv", "-m", "m.model", "-e", 1),
        "above 0": (*RUN, "--epsilon", "0"),
        "whole numbers above 0": (*RUN, "-e", 1, "--batch", "0,5"),
        "a seed": (*RUN, "-e", 1, "--seed", "-1"),
        "--first of at least 1": (*RUN, "-e", 1, "--first", "0"),
        "needs numbers": (*RUN, *promise(epsilon=1, distortion="absolute")),
        "a declared secret has no epsilon": (*RUN, "--policy", "no_total.toml"),
        "not in the alphabet": (*RUN, *promise(secrets=sv.secrets.ever(SECRET, epsilon=0.5))),
    }
    for expected, args in cases.items():
        made = seqveil(*args)
        assert (made.code, made.out, made.err.count("\n")) == (2, "", 1), (expected, made.err)
        assert expected in made.err, made.err
        assert SECRET not in made.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_ends_in_one_line_and_writes_nothing(seqveil, files, monkeypatch, number):
    before = sorted(files.iterdir())
    monkeypatch.setattr(comparison, "measured", lambda *row: signal.raise_signal(number))
    made = seqveil(*RUN, "--epsilon", 1)
    assert made == (1, "", "interrupted; no file was written\n")
    assert sorted(files.iterdir()) == before
