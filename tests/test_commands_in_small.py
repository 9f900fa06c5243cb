"""Every command on a file of 200 rows: it does its work, its figures agree with each other, and it says so."""

import json

import polars as pl
import pytest


def test_an_audit_finds_what_the_side_file_says(seqveil, place):
    assert seqveil("release", "raw.csv", "-m", "m", "-e", 1, "--out", "out.csv").code == 0
    said = seqveil("audit", "out.csv", "-m", "m", "--json")
    assert said.code == 0, said.err
    side = json.loads((place / "out.csv.meta.json").read_text())
    assert said.json["leakage"] == pytest.approx(side["leakage"], abs=1e-6)
    changed = pl.read_csv("out.csv").with_columns(epsilon=pl.lit(0.5))
    changed.write_csv("changed.csv")
    assert seqveil("audit", "changed.csv", "-m", "m", "--meta", "out.csv.meta.json").code != 0


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
