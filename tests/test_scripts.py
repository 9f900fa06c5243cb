"""The scripts that show how the house is built: what one event takes, and the map of its rooms."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def printed(name, *arguments):
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_trace_has_a_row_for_each_interface():
    pytest.importorskip("pyspark")
    heading, *rows = printed("trace_release.py")
    assert heading.split() == ["one", "event", "takes", "files", "calls", "depth", "one", "more:", "files", "calls"]
    counts = {row[:32].strip(): [int(number) for number in row[32:].split()] for row in rows}
    assert len(counts) == 5
    files, calls, depth, more_files, more = counts.pop("Session.release")
    assert 3 <= files == more_files <= calls
    assert 3 <= depth <= calls == more  # each release of a session takes the same
    for others in counts.values():
        assert others[0] >= files  # all of them release by the session's own step
        assert others[0] > others[3] > 0
        assert others[1] > others[4] > 0


@pytest.mark.slow
def test_the_map_lists_every_layer_and_draws_it(tmp_path):
    lines = printed("house_map.py", tmp_path / "house.png")
    rooms = [line.partition("  (")[0] for line in lines if line[0] != " "]
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert rooms[:-1] == config["contracts"][0]["layers"]
    assert any(line.startswith("    -> ") for line in lines)
    assert (tmp_path / "house.png").read_bytes().startswith(b"\x89PNG")
