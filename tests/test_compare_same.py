"""`seqveil compare` prints the same, to the last byte, whatever --jobs says."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from seqveil import MarkovModel
from seqveil.evaluate.comparison import workers

MODEL = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


@pytest.mark.slow
def test_the_command_prints_the_same_whatever_the_number_of_processes(seqveil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "PATIENCE", 0.0)  # the other processes are asked at once
    letters = np.array(list("abc"))[MODEL.sample(8, 20, seed=2).ravel()]
    pl.DataFrame({"user": np.repeat(np.arange(20), 8), "value": letters}).write_csv("raw.csv")
    args = ("compare", "raw.csv", "--epsilon", "0.5,2", "--mechanisms", "optimal,crr,tree", "--batch", "1,3")
    made = [seqveil(*args, "--markdown", "--jobs", jobs) for jobs in (1, 2, 3)]
    assert [each.code for each in made] == [0, 0, 0], made[-1].err
    assert made[0].out.count("\n") > 8
    assert made[0].out == made[1].out == made[2].out
