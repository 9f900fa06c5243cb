"""Figures of real people: `decode --truth`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seqveil import MarkovModel
from seqveil.interfaces.cli import main

NAMES = ["a", "b", "c"]
CALM = MarkovModel([0.4, 0.3, 0.3], 0.9 * np.eye(3) + 0.1 / 3, alphabet=NAMES)


def write(path: Path, streams: np.ndarray, by_step: bool = False) -> Path:
    rows = [(t if by_step else k, k, t, x) for k, s in enumerate(streams) for t, x in enumerate(s)]
    rows.sort(key=lambda row: row[0])
    path.write_text("user,seq,value\n" + "\n".join(f"u{k},{t},{NAMES[x]}" for _, k, t, x in rows) + "\n")
    return path


def asked(capsys: pytest.CaptureFixture[str], *call: object) -> dict[str, object]:
    assert main([*map(str, call), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_decoding_says_how_many_estimates_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    CALM.save(tmp_path / "m")
    truth = CALM.sample(20, 60, seed=5)
    raw, out = write(tmp_path / "raw.csv", truth, by_step=True), tmp_path / "out.csv"
    call = ["release", raw, "-m", tmp_path / "m", "-e", 2, "--batch", batch, "--out", out, "--seed", 1]
    assert main(list(map(str, call))) == 0
    capsys.readouterr()
    decode = ["decode", out, "-m", tmp_path / "m", "--out", tmp_path / "decoded.csv"]
    found = asked(capsys, *decode, "--truth", raw)
    assert found["right"] == pytest.approx(found["confidence"], abs=0.05)
    lines = (tmp_path / "decoded.csv").read_text().splitlines()[1:]
    seen = {(line.split(",")[0], line.split(",")[1]): line.split(",")[2] for line in lines}
    right = np.mean([seen[f"u{k}", str(t)] == NAMES[x] for k, s in enumerate(truth) for t, x in enumerate(s)])
    assert found["right"] == pytest.approx(right)
    assert asked(capsys, *decode)["right"] is None
    assert main([*map(str, decode), "--truth", str(raw)]) == 0
    assert "of the estimates are right" in capsys.readouterr().err
    assert main([*map(str, decode[:-1]), str(raw), "--truth", str(raw)]) != 0  # never over what it reads
    assert "u0" in raw.read_text()
    capsys.readouterr()
    before = (tmp_path / "decoded.csv").read_bytes()
    short = write(tmp_path / "short.csv", truth[:, :10])
    for wrong in (short, write(tmp_path / "fewer.csv", truth[:30]), write(tmp_path / "other.csv", truth[:, :1])):
        assert main([*map(str, decode), "--truth", str(wrong)]) != 0
        error = capsys.readouterr().err.strip()
        assert "the same" in error
        assert "\n" not in error
    assert (tmp_path / "decoded.csv").read_bytes() == before
