"""The journeys of examples/ as somebody would run them: thousands of places with coordinates, and gaze at 30 Hz."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import seqveil as sv

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder):
    done = subprocess.run([sys.executable, EXAMPLES / name, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_checkins_at_places_with_coordinates(tmp_path):
    said = run("places.py", tmp_path)
    assert "600 with coordinates" in said
    assert "off" in said.split("truth")[-1]
    assert "BROKEN" not in said
    known = set(pl.read_csv(tmp_path / "places.csv")["name"])
    released, raw = (pl.read_csv(tmp_path / name) for name in ("released.csv", "others.csv"))
    assert set(released["venue"]) <= known
    assert released.height == raw.height
    model = sv.MarkovModel.load(tmp_path / "m.model")
    costs = sv.distortion.metres(model.alphabet.points)
    truth, told = (model.alphabet.encode(frame["venue"]) for frame in (raw, released))
    guess = costs.best_guess(model.prior[None])[0]
    assert costs.between(truth, told).mean() < costs.between(truth, guess).mean()  # the releases tell where people are


@pytest.mark.slow
def test_gaze_in_slots(tmp_path):
    said = run("gaze.py", tmp_path)
    assert "--grid auto" in said
    assert "held" in said
    assert "BROKEN" not in said
    released = pl.read_csv(tmp_path / "released.csv")
    assert released.columns[:4] == ["participant", "timestamp", "x", "y"]
    steps = (
        released.sort("participant", "timestamp").group_by("participant").agg(pl.col("timestamp").diff().drop_nulls())
    )
    assert set(steps["timestamp"].explode()) == {100}  # one release for each slot, blink or not


def test_no_helper_stands_twice():
    scripts = [path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")]
    assert sum("def seqveil(" in text for text in scripts) == 1
    assert sum("tempfile.TemporaryDirectory" in text and "def journey" in text for text in scripts) == 0
