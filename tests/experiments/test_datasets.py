"""Loaders on small files of the same shape, and the real ones where they are."""

import os
from pathlib import Path

import polars as pl
import pytest

from experiments import datasets
from experiments.datasets import FACTS
from experiments.generated import KINDS
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import DataError, InputError

REAL = os.environ.get("SEQVEIL_DATA")
real = pytest.mark.skipif(not REAL, reason="SEQVEIL_DATA names no folder with the real sets")


def small_files(root: Path) -> None:
    """Tiny files with the columns of the real ones."""
    frames = {
        "msnbc/msnbc_categories.parquet": {"code": [1, 2, 3], "name": ["front", "news", "tech"]},
        "msnbc/msnbc_sequences.parquet": {"user": [0, 1, 2], "seq": [[1, 1], [3], [2, 1, 3]]},
        "shopclicks/diginetica_train.parquet": {"session": [0, 1], "seq": [[1, 43_097], [7, 7, 9]]},
        "kosarak/kosarak_first100k.parquet": {"user": [0, 1], "items": [[1, 2, 3], [23_496]]},
        "gaze_vr/recordings.parquet": {"rec": [0, 1, 2], "user": [1, 2, 1]},
        "gaze_vr/gaze.parquet": {
            "rec": [0, 0, 1, 2, 2],
            "eye_x": [0, 9_999, 2_900, -5, 10_003],
            "eye_y": [0, 100, 2_900, 50, 9_999],
        },
        "heart_rate/heart_rate_1hz.parquet": {"user": [1, 1, 2], "bpm": [45.0, 149.9, 72.6]},
        "geolife/geolife_1min.parquet": {
            "user": [0, 0, 0, 0, 4],
            "trip": [0, 0, 0, 1, 0],
            "t_min": [10, 11, 20, 21, 5],
            "lat_e5": [3_975_000, 4_010_000, 3_990_000, 3_990_000, 1_000_000],
            "lon_e5": [11_615_000, 11_660_000, 11_630_000, 11_630_000, 11_630_000],
        },
    }
    readings = {0: [10, 20, 30, 40], 1: [0, 0, 0, 0], 2: [5, -1, 5, 5], 3: [1, 2, 10_001, 4], 4: [100, 200, 300, 400]}
    frames["electricity/swiss_15min.parquet"] = {
        "household": [h for h in readings for _ in range(4)],
        "t": list(range(4)) * 5,
        "wh": [wh for row in readings.values() for wh in row],
    }
    for name, columns in frames.items():
        (root / name).parent.mkdir(exist_ok=True)
        pl.DataFrame(columns).write_parquet(root / name)


@pytest.fixture
def load(tmp_path):
    small_files(tmp_path)
    return lambda name, **options: datasets.load(name, tmp_path, verify=False, **options)


LOADED = {  # options, the streams as codes, the people, and how far apart the first and the last symbol are
    "msnbc": ({}, [[0, 0], [2], [1, 0, 2]], [0, 1, 2], 1.0),
    "heart_rate": ({}, [[0, 20], [5]], [1, 2], 100.0),
    "electricity": ({"levels": 4}, [[0, 0, 1, 1], [2, 2, 3, 3]], [0, 4], 3.0),  # without what cannot be
    "gaze_vr": ({}, [[0, 9_901], [0, 9_999], [2_929]], [1, 2], 140.0),  # what is outside goes to the border
    "geolife": ({}, [[0, 1_599], [537], [537]], [0], 53.2),  # in km; a stream ends at silence and with the track
}


@pytest.mark.parametrize(("name", "expected"), LOADED.items())
def test_streams_of_small_files(load, name, expected):
    options, streams, people, apart = expected
    data = load(name, **options)
    assert ([each.tolist() for each in data.arrays()], data.people) == (streams, people)
    assert data.distortion.between(0, data.alphabet.n - 1) == pytest.approx(apart, rel=0.01)
    assert load(name, users=1, **options).people == people[:1]


def test_alphabets_and_options_of_the_sets(load):
    assert load("msnbc").alphabet == Alphabet(["front", "news", "tech"])
    assert [each.tolist() for each in load("msnbc").arrays(at_least=2)] == [[0, 0], [1, 0, 2]]
    assert load("diginetica").alphabet.decode(load("diginetica").arrays()[0]) == [1, 43_097]
    assert load("kosarak").alphabet.decode(load("kosarak").arrays()[1]) == [23_496]
    assert "a sorted SET, not a sequence" in load("kosarak").about
    gaze, pulse = load("gaze_vr", side=10).alphabet, load("heart_rate", width=10).alphabet
    assert (type(gaze), gaze.n, type(pulse), pulse.n) == (Grid, 100, Bins, 11)
    assert load("gaze_vr").index["recording"].to_list() == [0, 2, 1]
    assert load("electricity", scale="log").alphabet.n == 10
    with pytest.raises(InputError, match="scale"):
        load("electricity", scale="square")


def test_a_changed_file_is_refused(tmp_path):
    small_files(tmp_path)
    with pytest.raises(DataError, match=r"heart_rate_1hz.parquet is not the file .* sha256 .* verify=False"):
        datasets.load("heart_rate", tmp_path)


def test_a_missing_file_is_named_with_its_source_and_the_way_out(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"gaze_vr/recordings.parquet.*xuyanyu-shh.*synthetic\(\"gaze\"\)"):
        datasets.load("gaze_vr", tmp_path)
    monkeypatch.delenv("SEQVEIL_DATA", raising=False)
    with pytest.raises(DataError, match="SEQVEIL_DATA"):
        datasets.load("msnbc")
    monkeypatch.setenv("SEQVEIL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"msnbc_categories\.parquet"):
        datasets.load("msnbc")
    assert datasets.missing("gaze_vr") == list(FACTS["gaze_vr"].files)


def test_facts_are_there_for_every_set():
    with pytest.raises(InputError, match="data set among msnbc"):
        datasets.load("tea")
    for facts in FACTS.values():
        assert all(len(found) == 64 for found in facts.files.values())
        assert facts.stand_in in KINDS
        assert facts.source
        assert facts.about


@real
class TestRealSets:
    @pytest.mark.parametrize(
        ("name", "streams", "events", "symbols", "staying"),
        [
            ("msnbc", 989_818, 4_698_794, 17, 0.655),
            ("diginetica", 186_670, 906_140, 43_097, 0.092),
            ("kosarak", 100_000, 801_947, 23_496, 0.0),
            ("gaze_vr", 6_672, 6_891_579, 10_000, 0.611),
            ("heart_rate", 35, 115_720, 21, 0.963),
            ("electricity", 521, 2_450_784, 10, 0.453),
            ("geolife", 46_580, 969_531, 1_600, 0.766),
        ],
    )
    def test_counts_and_staying_are_those_stated(self, name, streams, events, symbols, staying):
        if datasets.missing(name):
            pytest.skip(f"{name} is not in the data folder")
        data = datasets.load(name)
        assert (len(data.index), len(data.streams), data.alphabet.n) == (streams, events, symbols)
        value, user = data.streams["value"].to_numpy(), data.streams["user"].to_numpy()
        same = user[1:] == user[:-1]
        assert (value[1:] == value[:-1])[same].mean() == pytest.approx(staying, abs=0.0006)
