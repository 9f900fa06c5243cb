"""The journeys of examples/ as somebody would run them, and what docs/bridges.md shows."""

import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import mosquitto

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *folder):
    done = subprocess.run([sys.executable, EXAMPLES / name, *map(str, folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


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


SAID = {
    "checkins.py": ("kept      every stream within the total budget", "64 values that fewer than 10 people have"),
    "pointer.py": ("slots of 0.5 s (last, padded)", "of the estimates are right"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_a_journey_says_what_it_did(name):
    said = run(name)
    assert all(each in said for each in SAID[name])


@mosquitto.needed
def test_a_day_of_owntracks_and_what_a_friend_sees(tmp_path):
    with mosquitto.broker(tmp_path) as running:
        command = [sys.executable, EXAMPLES / "owntracks.py", "--broker", running.address, "--out", "day.png"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert "sent 96 locations, a friend got 96" in ran.stdout
    moved, promised = map(float, re.search(r"at most ([\d.]+), promised ([\d.]+)", ran.stdout).groups())
    assert moved <= promised == 1.0
    assert (tmp_path / "day.png").read_bytes()[:4] == b"\x89PNG"
