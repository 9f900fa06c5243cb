"""A file that was released with --sort is its own truth as it is: decode and attack put it in order as well."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from seqveil.interfaces.cli import main


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_sorted_release_has_an_unsorted_truth(tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(1)
    rows = [f"P{u},{k // 2},{draw.choice(['home', 'work', 'gym'])}" for u in range(30) for k in range(8)]
    draw.shuffle(rows)
    text = "\n".join(["user,time,value", *rows, ""]).encode()
    raw, model, out = tmp_path / f"raw.{ending}", tmp_path / "raw.model", tmp_path / "out.csv"
    raw.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)

    def call(*words: object) -> str:
        code = main([str(word) for word in words])
        said = "".join(capfd.readouterr())
        assert code == 0, said
        return said

    call("fit", raw, "-o", model, "--smoothing", 1, "--sort")
    call("release", raw, "-m", model, "--epsilon", 16, "--yes", "--sort", "--out", out)
    told = call("decode", out, "-m", model, "--truth", raw, "--out", tmp_path / "decoded.csv")
    assert "1.000 of the estimates are right" in told
    call("release", raw, "-m", model, "--secret", "ever:gym", "--secret-epsilon", 1, "--sort", "--force", "--out", out)
    assert "verdict" in call("attack", out, "--truth", raw)
