"""Every command on a file of 200 rows: it does its work, its figures agree with each other, and it says so."""

import json

import polars as pl
import pytest

from seqveil import MarkovModel


@pytest.fixture
def released(seqveil, place):
    """The folder with out.csv, released at ε = 1 from a seed."""
    said = seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--seed", 1, "--out", "out.csv", "--json")
    assert said.code == 0, said.err
    return place


def test_a_fit_and_its_plan(seqveil, place):
    assert seqveil("fit", "raw.csv", "-o", "fitted", "--smoothing", 1).code == 0
    planned = seqveil("plan", "fitted", "-e", "0.5,1", "--json")
    assert planned.code == 0, planned.err
    assert {row["epsilon"] for row in planned.json["rows"]} == {0.5, 1.0}


def test_an_audit_finds_what_the_side_file_says(seqveil, place):
    assert seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--out", "out.csv").code == 0
    said = seqveil("audit", "out.csv", "-m", "m", "--json")
    assert said.code == 0, said.err
    side = json.loads((place / "out.csv.meta.json").read_text())
    assert said.json["leakage"] == pytest.approx(side["leakage"], abs=1e-6)
    changed = pl.read_csv("out.csv").with_columns(epsilon=pl.lit(0.5))
    changed.write_csv("changed.csv")
    assert seqveil("audit", "changed.csv", "-m", "m", "--meta", "out.csv.meta.json").code != 0


@pytest.mark.parametrize("more", [(), ("--online",)])
def test_estimates_have_the_rows_of_the_release(seqveil, released, more):
    assert seqveil("decode", "out.csv", "-m", "m", *more, "--out", "decoded.csv").code == 0
    one, two = pl.read_csv("out.csv"), pl.read_csv("decoded.csv")
    assert one["user"].equals(two["user"])
    assert set(two["value"]) <= {"a", "b"}


def test_a_comparison_of_two_mechanisms(seqveil, place):
    said = seqveil("compare", "raw.csv", "--epsilon", 1, "--mechanisms", "balanced,crr", "--batch", 1, "--json")
    assert said.code == 0, said.err
    names = {row["mechanism"] for row in said.json["rows"]}
    assert {"balanced", "crr"} <= names


def test_statistics_of_a_release(seqveil, released):
    said = seqveil("stats", "out.csv", "-m", "m", "--json")
    assert said.code == 0, said.err
    assert "transitions" in said.out


def test_a_report_is_one_page_without_raw_values(seqveil, released):
    said = seqveil("audit", "out.csv", "-m", "m", "--html", "page.html")
    assert said.code == 1, said.err  # the release was seeded
    assert "<html" in (released / "page.html").read_text()


def test_a_model_is_learned_from_a_release(seqveil, released):
    said = seqveil("learn", "out.csv", "-m", "m", "-o", "learned", "--json")
    assert said.code == 0, said.err
    assert MarkovModel.load("learned").n == 2


def test_a_file_is_released_and_read_in_batches(seqveil, place):
    args = ("release", "raw.csv", "-m", "m", "-e", 2, "--mechanism", "tree", "--batch", 2, "--out", "out.csv")
    assert seqveil(*args).code == 0
    assert seqveil("audit", "out.csv", "-m", "m").code == 0
    assert seqveil("decode", "out.csv", "-m", "m", "--out", "decoded.csv").code == 0
    assert pl.read_csv("decoded.csv").height == 200


def test_a_file_is_inspected(seqveil, place):
    said = seqveil("inspect", "raw.csv")
    assert said.code == 0, said.err
    assert "20 people, 200 events" in said.out


def test_a_state_file_is_released_over_and_looked_at(seqveil, place):
    args = ("release", "raw.csv", "-m", "m", "-e", 1, "--state", "s.db", "--out", "out.csv")
    assert seqveil(*args).code == 0
    before = (place / "out.csv").read_bytes()
    assert seqveil(*args).code == 0  # the same command again releases nothing more
    assert (place / "out.csv").read_bytes() == before
    assert seqveil("state", "verify", "s.db").code == 0
    one = seqveil("state", "account", "s.db", "--user", "7", "--json")
    assert one.code == 0, one.err
    assert "7" in one.out
    assert seqveil("state", "export", "s.db", "-m", "m", "--out", "log.jsonl").code == 0
    told = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    assert len(told) == 200
    rows = pl.read_csv("out.csv").filter(pl.col("user") == 7)["value"].to_list()
    assert [row["value"] for row in told if str(row["user"]) == "7"] == rows


def test_a_side_file_of_another_version_is_refused(seqveil, place):
    assert seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--out", "out.csv").code == 0
    side = place / "out.csv.meta.json"
    meta = json.loads(side.read_text())
    assert meta["version"] == 1
    side.write_text(json.dumps(meta | {"version": 2}))
    said = seqveil("audit", "out.csv", "-m", "m")
    assert said.code == 2
    assert said.err.strip().splitlines() == [
        "error: out.csv.meta.json: expected a side file of format seqveil-release 1; release the data again"
    ]
