"""The journeys of examples/ as somebody would run them, and what docs/bridges.md shows."""

import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import mosquitto
from bridges import VALUES, chain

EXAMPLES = Path(__file__).parent.parent / "examples"


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


@pytest.mark.slow
def test_lines_of_mosquitto_sub_are_released_as_they_come(tmp_path):
    """The program itself is not needed: these are the lines that `mosquitto_sub -F %j` prints."""
    chain().save(tmp_path / "m.model")
    options = ["--format", "jsonl", "--user-column", "topic", "--value-column", "payload", "--time-column", "tst"]
    command = [sys.executable, "-m", "seqveil", "release", "-", "-m", "m.model", "-e", "1", *options, "--out", "-"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as running:
        for second, value in enumerate([*VALUES, "unavailable"]):
            about = {"tst": f"2026-03-01T10:00:{second:02d}.000000+0000", "topic": "raw/ann", "qos": 1, "retain": 0}
            about |= {"payloadlen": len(value), "mid": second + 1, "payload": value}
            running.stdin.write(json.dumps(about).encode() + b"\n")
            running.stdin.flush()
            released = json.loads(running.stdout.readline())  # before the next line is sent
            assert released["topic"] == "raw/ann"
            assert released["payload"] in VALUES
        running.stdin.close()
        assert running.wait(timeout=60) == 0
        running.stderr.read()
