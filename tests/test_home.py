"""What docs/home.md shows: a day of OwnTracks through the bridge, and mosquitto_sub piped into `release`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mosquitto
from bridges import VALUES, chain

ROOT = Path(__file__).parent.parent


@mosquitto.needed
def test_a_day_of_owntracks_and_what_a_friend_sees(tmp_path):
    with mosquitto.broker(tmp_path) as running:
        command = [sys.executable, ROOT / "examples" / "owntracks.py", "--broker", running.address, "--out", "day.png"]
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
