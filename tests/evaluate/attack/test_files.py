"""Released and raw files together: who is who, what was promised, and the command."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from attacks import NAMES, SECRET, TABLE, people
from seqveil.core.alphabet import UNKNOWN, Alphabet
from seqveil.core.errors import InputError
from seqveil.core.model import Reading
from seqveil.evaluate.attack.files import AttackedPeople, attack, read_people

MODEL = sv.MarkovModel([0.5, 0.4, 0.1], TABLE, alphabet=NAMES)


def write(path, streams, epsilon=None):
    rows = [
        f"u{k},{t},{NAMES[x]}" + ("" if epsilon is None else f",{epsilon}")
        for k, s in enumerate(streams)
        for t, x in enumerate(s)
    ]
    path.write_text("user,seq,value" + ("" if epsilon is None else ",epsilon") + "\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.slow
def test_the_command_and_the_function_say_the_same(tmp_path, seqveil):
    truth = people(500, seed=9)
    raw, out = write(tmp_path / "raw.csv", truth), write(tmp_path / "out.csv", truth, 0.1)
    MODEL.save(tmp_path / "m.model")
    run = ["attack", out, "--truth", raw, "-m", tmp_path / "m.model", "--secret", "ever:health", "--secret-window", "8"]
    done = seqveil(*run, "--json")
    assert done.code == 1, done.err
    facts = done.json
    assert (facts["verdict"], facts["people"], facts["windows"]) == ("broken", 500, 500)
    assert facts["epsilon_estimate"] >= facts["epsilon_at_least"] > facts["epsilon_claimed"]
    assert facts["epsilon_claimed"] == pytest.approx(2 * 0.8)
    assert facts["epsilon_noticeable"] > 1.6
    assert [one["verdict"] for one in facts["attacks"]] == ["broken"]
    made = sv.attack(out, raw, model=MODEL, secrets=sv.secrets.ever("health", epsilon=None, window=8))
    assert json.loads(json.dumps(made.to_dict())) == facts
    assert "broken: promised ε = 0.5" in seqveil(*run, "--secret-epsilon", "0.5").out


@pytest.mark.slow
def test_labels_of_people_are_read_from_the_raw_file(tmp_path):
    rng = np.random.default_rng(4)
    kind = rng.integers(2, size=400)
    streams = [np.where(rng.random(30) < (0.7 if k else 0.3), 1, 0) for k in kind]
    raw, out = write(tmp_path / "raw.csv", streams), write(tmp_path / "out.csv", streams, 0.01)
    frame = pl.read_csv(raw).with_columns(heating=pl.col("user").str.slice(1).cast(int).map_elements(
        lambda k: None if k % 10 == 0 else ["gas", "heat pump"][kind[k]], return_dtype=pl.String))  # fmt: skip
    frame.write_csv(raw)
    found = attack(out, raw, model=MODEL, secrets=sv.secrets.trait("heating", epsilon=1.0)).worst
    assert (found.verdict, found.people) == ("broken", 360)
    frame.with_columns(heating=pl.col("value")).write_csv(raw)
    with pytest.raises(InputError, match="two answers"):
        attack(out, raw, model=MODEL, secrets=sv.secrets.trait("heating", epsilon=1.0))


def test_a_release_that_is_red_stays_red_whatever_the_attack_finds(tmp_path):
    truth = people(50)
    raw, out = write(tmp_path / "raw.csv", truth), tmp_path / "out.csv"
    sv.release(raw, MODEL, sv.Policy(secrets=SECRET), out=out)
    side = tmp_path / "out.csv.meta.json"
    for grade in ("red", "green"):
        side.write_text(json.dumps(json.loads(side.read_text()) | {"grade": grade, "grade_why": "they do not follow"}))
        found = attack(out, raw, model=MODEL)
        assert found.worst.verdict == "not decided"
        assert found.to_dict()["grade"] == ("red" if grade == "red" else "unchecked")
        said = dict(found.lines())["grade"]
        assert said.startswith("of what was promised")
        assert ("red: they do not follow" in said) == (grade == "red")


def test_bad_input_gets_one_line(tmp_path):
    with pytest.raises(InputError, match=r"^none\.csv: no such file; check the path"):
        attack(tmp_path / "none.csv", tmp_path / "none.csv")
    truth = people(50)
    raw, out = write(tmp_path / "raw.csv", truth), write(tmp_path / "out.csv", truth[:40])
    with pytest.raises(ValueError, match="same people; 10 are in one of them only"):
        attack(out, raw, model=MODEL, secrets=SECRET)
    for expected, asked in {
        "at least 9 events": {"secrets": sv.secrets.ever("health", window=9, epsilon=1.0)},
        "false-alarm rate": {"secrets": SECRET, "false_alarm": 2.0},
        "alphabet": {"secrets": sv.secrets.ever("weather", window=8, epsilon=1.0)},
    }.items():
        with pytest.raises(InputError, match=expected):
            attack(raw, raw, model=MODEL, **asked)


def test_frequent_values_are_found_beside_values_outside_the_alphabet():
    streams = [np.array([0, 1, UNKNOWN]), np.array([1, 1])]
    few = AttackedPeople(Alphabet(["a", "b", "c"]), Reading(), streams, streams, None, None)
    assert [secret.values for secret in few.events()] == [("b",), ("a",)]


@pytest.mark.slow
def test_numbers_are_attacked_by_their_bins_and_no_raw_one_is_shown(tmp_path):
    rng = np.random.default_rng(5)
    pulse = pl.DataFrame({"user": np.repeat(np.arange(60), 8).astype(str), "value": rng.normal(70, 12, 480).round(3)})
    pulse.write_csv(tmp_path / "raw.csv")
    made = sv.release(pulse, sv.fit(pulse, bins=10), epsilon=1.0, out=tmp_path / "out.csv")
    found = sv.attack(tmp_path / "out.csv", tmp_path / "raw.csv")
    assert {one.about.split()[1] for one in found.attacks} <= {str(edge + 5.0) for edge in range(0, 200, 10)}
    pl.read_csv(made.frame).write_csv(tmp_path / "bare.csv")
    with pytest.raises(InputError, match="needs the model of the release; pass model="):
        sv.attack(tmp_path / "bare.csv", tmp_path / "raw.csv")


def test_what_was_promised_about_a_stream_is_its_budget_where_that_is_less(tmp_path):
    frame = [(f"u{k}", NAMES[code]) for k, stream in enumerate(people(5)) for code in stream]
    data = pl.DataFrame(frame, schema=["user", "value"], orient="row")
    for budget, want in ((None, 1.6), (0.5, 0.5)):
        made = sv.release(data, MODEL, sv.Policy(epsilon=0.2, budget=budget))
        assert read_people(made.frame, data, MODEL, made.meta).total == pytest.approx(want)


@pytest.mark.slow
def test_releases_in_blocks_and_batches_are_attacked_too():
    """Almost in the clear, as blocks are at a large ε: whoever says that little was promised is told otherwise."""
    frame = [(f"u{k}", t, NAMES[code]) for k, own in enumerate(people(600)) for t, code in enumerate(own)]
    data = pl.DataFrame(frame, schema=["user", "seq", "value"], orient="row")
    for policy in (sv.Policy(epsilon=8.0, block=8), sv.Policy(epsilon=8.0, batch=4)):
        made = sv.release(data, MODEL, policy)
        found = attack(made, data, model=MODEL, secrets=SECRET, epsilon=0.5).worst
        assert (found.verdict, found.people) == ("broken", 600)
        total = 8.0 if policy.block > 1 else 16.0
        assert read_people(made.frame, data, MODEL, made.meta).total == pytest.approx(total, abs=1.0)
