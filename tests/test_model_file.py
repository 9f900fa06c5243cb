"""Saved models: they come back whole, or they are refused in one line."""

import contextlib
import json
import os
import pickle

import numpy as np
import pytest

from seqveil import MarkovModel
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError, ModelError


def random_streams(seed, n, users=8, longest=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n, rng.integers(1, longest + 1)).tolist() for _ in range(users)]


def saved(tmp_path, **options):
    model = MarkovModel.fit(random_streams(3, 4), order=2, n=4, smoothing=0.3, **options)
    path = tmp_path / "chain.model"
    model.save(path)
    return model, path


@pytest.mark.parametrize("order", [1, 2, 3])
def test_saved_models_come_back_whole(tmp_path, order):
    streams = [[("é", "b", 3, 2.5, True, None, ("x", 1))[x] for x in s] for s in random_streams(1, 7)]
    alphabet = Alphabet(["é", "b", 3, 2.5, True, None, ("x", 1)])
    model = MarkovModel.fit(streams, order=order, alphabet=alphabet, smoothing=0.1)
    model.save(tmp_path / "m")
    again = MarkovModel.load(tmp_path / "m")
    assert again.fingerprint == model.fingerprint
    assert again.alphabet == alphabet
    for name in ("prior", "initial", "backoff", "base", "base_state", "newest"):
        assert getattr(again, name).tobytes() == getattr(model, name).tobytes()
    weights = np.random.default_rng(0).random(model.size)
    assert again.advance(weights).tobytes() == model.advance(weights).tobytes()
    assert pickle.loads(pickle.dumps(model)).fingerprint == model.fingerprint
    assert os.listdir(tmp_path) == ["m"]


def test_fingerprints_tell_models_apart(tmp_path):
    model, path = saved(tmp_path)
    first = path.read_bytes()
    model.save(path)
    assert path.read_bytes() == first
    others = [MarkovModel([0.5, 0.5], np.eye(2)), MarkovModel([0.4, 0.6], np.eye(2))]
    others += [MarkovModel([0.5, 0.5], np.eye(2), alphabet="ab"), MarkovModel([0.5, 0.5], [[1, 0], [1, 0]])]
    assert len({other.fingerprint for other in others}) == 4


def test_cut_files_are_refused(tmp_path):
    _, path = saved(tmp_path)
    content = path.read_bytes()
    for cut in np.linspace(0, len(content) - 1, 25).astype(int):
        path.write_bytes(content[:cut])
        with pytest.raises(ModelError, match=r"chain\.model is (cut short|not a seqveil model)"):
            MarkovModel.load(path)


@pytest.mark.slow
def test_flipped_bytes_never_load_as_another_model(tmp_path):
    model, path = saved(tmp_path)
    content = path.read_bytes()
    for place in np.linspace(0, len(content) - 1, 150).astype(int):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with contextlib.suppress(ModelError):  # any other exception is a failure
            assert MarkovModel.load(path).fingerprint == model.fingerprint


def rewrite(path, change):
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    with open(path, "wb") as out:
        np.savez(out, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, arrays: header.update(version=99), "has model format 99, this seqveil reads 1"),
        (lambda header, arrays: header.update(format="other"), "not a seqveil model"),
        (lambda header, arrays: header.update(fingerprint="0"), "fingerprint does not match"),
        (lambda header, arrays: header.update(order=3), "fingerprint does not match"),
        (lambda header, arrays: header.update(origin={"private": True, "epsilon": 0.1}), "fingerprint does not match"),
        (lambda header, arrays: header.update(n=5), "do not fit its alphabet"),
        (lambda header, arrays: header["alphabet"].update(n=5), "alphabet has 5 symbols but the model 4"),
        (lambda header, arrays: arrays["base"].__setitem__(0, np.nan), "negative or non-finite"),
        (lambda header, arrays: arrays["backoff"].__setitem__(0, 0.9), "do not sum to one"),
        (lambda header, arrays: arrays["initial"].__imul__(2), "do not sum to one"),
        (lambda header, arrays: arrays["newest"].__setitem__(0, 4), "do not exist"),
        (lambda header, arrays: arrays["base_state"].__setitem__(0, 1), "do not match its symbols"),
        (lambda header, arrays: arrays["chain_indices"].__setitem__(0, 10**6), "not a seqveil model, or is damaged"),
        (lambda header, arrays: arrays.update(initial=np.ones(3) / 3), "do not fit together"),
        (lambda header, arrays: arrays.pop("base"), "not a seqveil model, or is damaged"),
        (lambda header, arrays: arrays.update(base=np.array([{}], object)), "not a seqveil model, or is damaged"),
    ],
)
def test_altered_files_are_refused(tmp_path, change, message):
    _, path = saved(tmp_path)
    rewrite(path, change)
    with pytest.raises(ModelError, match=message) as caught:
        MarkovModel.load(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot read the model file none"):
        MarkovModel.load(tmp_path / "none")
    other = tmp_path / "other"
    other.write_bytes(pickle.dumps([1, 2, 3]))
    with pytest.raises(ModelError, match="other is not a seqveil model"):
        MarkovModel.load(other)
    with open(other, "wb") as file:
        np.savez(file, x=np.ones(3))
    with pytest.raises(ModelError, match="other is not a seqveil model"):
        MarkovModel.load(other)


def test_failed_save_leaves_nothing_and_keeps_the_old_file(tmp_path):
    model, path = saved(tmp_path)
    before = path.read_bytes()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    with pytest.raises(OSError):
        model.save(tmp_path / "folder")
    unsavable = MarkovModel.fit([[frozenset([1])]])
    with pytest.raises(InputError, match="frozenset cannot be saved"):
        unsavable.save(path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["chain.model", "folder"]
