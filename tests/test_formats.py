"""A file of another version is refused in one line, whatever it is."""

import json

import numpy as np
import pytest

from seqveil import MarkovModel
from seqveil.core.errors import InputError, ModelError
from seqveil.engine.policy import Policy
from seqveil.engine.terms import refuse_other
from seqveil.interfaces.service import tokens
from seqveil.interfaces.spark.checkpoint import parts
from seqveil.interfaces.spark.job import facts_of_job

MODEL = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize("types", [1, 2])
def test_a_model(tmp_path, types):
    path = tmp_path / "m"
    (MODEL if types == 1 else MarkovModel.mixture([MODEL, MODEL], [0.5, 0.5])).save(path)
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    header = json.loads(arrays.pop("header").tobytes())
    assert header["version"] == 1
    header["version"] = 2
    with open(path, "wb") as out:
        np.savez(out, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    with pytest.raises(ModelError, match="has model format 2, this seqveil reads 1; refit it"):
        MarkovModel.load(path)


def test_a_side_file(seqveil, place):
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


def test_a_file_of_tokens(tmp_path):
    path = tmp_path / "tokens.json"
    tokens.add(path, ["release"])
    saved = json.loads(path.read_text())
    assert saved["version"] == 1
    path.write_text(json.dumps(saved | {"version": 2}))
    with pytest.raises(InputError, match="is no file of tokens; make one with"):
        tokens.read(path)


def test_a_checkpoint_of_spark():
    facts = facts_of_job(Policy(epsilon=1.0).on(MODEL), 32, bytes(32))
    assert facts["version"] == 1
    with pytest.raises(InputError, match="another version; use"):
        refuse_other(parts(facts | {"version": 2}), parts(facts), "the checkpoint", "a new checkpoint")
