"""Loaders on small files of the same shape (and the real ones where they are); generators against their figures."""

import itertools
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqveil import datasets
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.datasets.real import FACTS

REAL = os.environ.get("SEQVEIL_DATA")
real = pytest.mark.skipif(not REAL, reason="SEQVEIL_DATA names no folder with the real sets")


def table(data, length):
    return data.streams["value"].to_numpy().reshape(-1, length)


def entropy(codes):
    distribution = np.bincount(codes.ravel()) / codes.size
    return float(-(distribution[distribution > 0] * np.log2(distribution[distribution > 0])).sum())


def stays(codes):
    return float((codes[:, 1:] == codes[:, :-1]).mean())


class TestSynthetic:
    @pytest.mark.parametrize("kind", datasets.kinds())
    def test_same_seed_same_streams_and_well_formed(self, kind):
        one, again, other = (datasets.synthetic(kind, 7, 30, seed) for seed in (3, 3, 4))
        assert one.streams.equals(again.streams)
        assert not one.streams.equals(other.streams)
        assert one.streams.columns == ["user", "value"]
        codes = table(one, 30)
        assert codes.shape == (7, 30)
        assert 0 <= codes.min() <= codes.max() < one.alphabet.n
        assert one.index["length"].to_list() == [30] * 7
        assert one.people == list(range(7))
        assert one.order_is_real == (kind != "sets")
        assert one.distortion.between(codes[0], codes[0]).sum() == 0
        assert one.model(smoothing=1.0).n == one.alphabet.n

    @settings(max_examples=20, deadline=None)
    @given(st.sampled_from(datasets.kinds()), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
    def test_any_size(self, kind, users, length, seed):
        assert datasets.synthetic(kind, users, length, seed).streams.shape == (users * length, 2)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "users", "length", "options", "staying", "bits"),
        [
            ("clicks", 2_000, 40, {}, 0.655, 3.67),
            ("items", 20_000, 5, {}, 0.092, None),
            ("gaze", 200, 1_000, {"side": 10}, 0.907, 5.41),
            ("gaze", 200, 1_000, {}, 0.611, None),
            ("heart_rate", 150, 1_200, {}, 0.963, None),
            ("power", 400, 96 * 14, {}, 0.453, 3.32),
            ("places", 300, 300, {}, 0.768, 7.82),
        ],
    )
    def test_streams_stay_and_vary_as_the_real_ones_do(self, kind, users, length, options, staying, bits):
        codes = table(datasets.synthetic(kind, users, length, 1, **options), length)
        assert stays(codes) == pytest.approx(staying, abs=0.04)
        assert bits is None or entropy(codes) == pytest.approx(bits, abs=0.3)

    @pytest.mark.slow
    def test_sets_are_sorted_as_kosarak_is(self):
        codes = table(datasets.synthetic("sets", 4_000, 8, 1), 8)
        assert all(len(set(row)) == 8 for row in codes.tolist())
        steps = {(a, b) for row in codes.tolist() for a, b in itertools.pairwise(row)}
        assert not any((b, a) in steps for a, b in steps)
        lines = np.sort(np.bincount(codes.ravel()))[::-1] / len(codes)
        assert lines[:4] == pytest.approx([0.607, 0.457, 0.365, 0.199], abs=0.03)
        assert lines[:10].sum() / 8 == pytest.approx(0.259, abs=0.03)

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: datasets.synthetic("tea", 1, 1), "kind of stream among clicks"),
            (lambda: datasets.synthetic("clicks", 0, 5), "must be >= 1"),
            (lambda: datasets.synthetic("clicks", 1, 1, side=3), "no option 'side'"),
            (lambda: datasets.synthetic("sets", 1, 50, n=60), "at least 108 items"),
            (lambda: datasets.load("tea"), "data set among msnbc"),
            (lambda: datasets.load("gaze_vr", levels=3), "its options are side"),
        ],
    )
    def test_what_cannot_be_is_refused_in_one_line(self, call, says):
        with pytest.raises(InputError, match=says) as error:
            call()
        assert "\n" not in str(error.value)


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


class TestLoaders:
    @pytest.fixture
    def load(self, tmp_path):
        small_files(tmp_path)
        return lambda name, **options: datasets.load(name, tmp_path, verify=False, **options)

    def test_lists_of_clicks(self, load):
        data = load("msnbc")
        assert data.streams.rows() == [(0, 0), (0, 0), (1, 2), (2, 1), (2, 0), (2, 2)]
        assert data.alphabet == Alphabet(["front", "news", "tech"])
        assert [a.tolist() for a in data.arrays(at_least=2)] == [[0, 0], [1, 0, 2]]
        assert load("msnbc", users=2).people == [0, 1]
        assert load("diginetica").alphabet.decode(load("diginetica").arrays()[0]) == [1, 43_097]
        sets = load("kosarak")
        assert sets.alphabet.decode(sets.arrays()[1]) == [23_496]
        assert not sets.order_is_real

    def test_gaze_by_person_and_recording(self, load):
        data = load("gaze_vr")
        assert data.index.select("person", "recording", "length").rows() == [(1, 0, 2), (1, 2, 2), (2, 1, 1)]
        # the few outside go to the border, and 29.00 is cell 29 without rounding
        assert [a.tolist() for a in data.arrays()] == [[0, 9_901], [0, 9_999], [2_929]]
        assert isinstance(data.alphabet, Grid)
        assert load("gaze_vr", side=10).alphabet.n == 100
        assert load("gaze_vr", users=1).people == [1]
        assert data.distortion.between(0, 3) == pytest.approx(3.0)
        assert [a.tolist() for a in data.arrays(people=[2])] == [[2_929]]

    def test_heart_rate_in_bins(self, load):
        data = load("heart_rate")
        assert [a.tolist() for a in data.arrays()] == [[0, 20], [5]]
        assert isinstance(data.alphabet, Bins)
        assert load("heart_rate", width=10).alphabet.n == 11

    def test_electricity_leaves_out_what_cannot_be(self, load):
        data = load("electricity", levels=4)
        assert data.people == [0, 4]
        assert [a.tolist() for a in data.arrays()] == [[0, 0, 1, 1], [2, 2, 3, 3]]
        assert data.distortion.between(0, 3) == 3.0
        assert load("electricity", scale="log").alphabet.n == 10
        with pytest.raises(InputError, match="scale"):
            load("electricity", scale="square")

    def test_geolife_ends_a_stream_at_silence_and_with_the_track(self, load):
        data = load("geolife")
        assert data.index.select("person", "recording", "length").rows() == [(0, 0, 2), (0, 1, 1), (0, 2, 1)]
        assert data.arrays()[0].tolist() == [0, 1_599]
        assert data.distortion.between(0, 1_599) == pytest.approx(39 / 40 * 54.6, rel=0.01)  # km across the box

    def test_a_changed_file_is_refused(self, tmp_path):
        small_files(tmp_path)
        with pytest.raises(DataError, match=r"heart_rate_1hz.parquet is not the file .* sha256 .* verify=False"):
            datasets.load("heart_rate", tmp_path)

    def test_a_missing_file_is_named_with_its_source_and_the_way_out(self, tmp_path, monkeypatch):
        with pytest.raises(DataError, match=r"gaze_vr/recordings.parquet.*xuyanyu-shh.*synthetic\(\"gaze\"\)"):
            datasets.load("gaze_vr", tmp_path)
        monkeypatch.delenv("SEQVEIL_DATA", raising=False)
        with pytest.raises(DataError, match="SEQVEIL_DATA"):
            datasets.load("msnbc")
        monkeypatch.setenv("SEQVEIL_DATA", str(tmp_path))
        with pytest.raises(DataError, match=r"msnbc_categories\.parquet"):
            datasets.load("msnbc")
        assert datasets.missing("gaze_vr") == list(FACTS["gaze_vr"].files)

    def test_facts_are_there_for_every_set(self):
        assert list(FACTS) == datasets.names()
        for facts in FACTS.values():
            assert all(len(found) == 64 for found in facts.files.values())
            assert facts.stand_in in datasets.kinds()
            assert all((facts.licence, facts.citation, facts.source, facts.note))


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
