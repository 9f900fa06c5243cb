"""What a fit takes, whoever makes it; numbers and points cut by themselves: `--bins auto`, `--grid auto`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from seqveil.core.alphabet import Bins, Grid
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.fit import fit_file
from seqveil.interfaces.files.release import release_file
from seqveil.interfaces.files.words import FitWords
from seqveil.interfaces.frames import FitKeywords
from test_times import gaze

ROWS = pl.DataFrame({"who": ["a", "b"] * 30, "value": ["x", "y", "y", "x", "x"] * 12})


def test_every_word_of_a_fit_can_be_given_to_the_function_and_has_a_type():
    disclosed = {each.name for each in fields(FitWords)} - {"columns", "slots", "chunk", "sort"}
    parts = {each.name.removesuffix("_column") for part in (o.ColumnOptions, o.FitSlotOptions) for each in fields(part)}
    assert disclosed | parts == set(FitKeywords.__annotations__)


def test_options_keywords_and_fields_make_the_same_model(tmp_path):
    ROWS.write_csv(tmp_path / "d.csv")
    words = o.fit_words(o.CutOptions(), o.FileOptions(user_column="who"), o.SlotOptions(), smoothing=1.0)
    by_record = fit_file(tmp_path / "d.csv", words).model
    others = (fit_file(ROWS, words).model, sv.fit(ROWS, user="who", smoothing=1.0))
    assert {model.fingerprint for model in others} == {by_record.fingerprint}
    command = ["fit", str(tmp_path / "d.csv"), "-o", str(tmp_path / "m"), "--user-column", "who", "--smoothing", "1"]
    assert main(command) == 0
    assert sv.MarkovModel.load(tmp_path / "m").fingerprint == by_record.fingerprint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"context": "order:2", "order": 2}, "--context says what --order says"),
        ({"seed": 1}, "are for a private fit"),
        ({"private": 1.0, "context": "auto"}, "of one chain"),
        ({"private": 1.0, "order": 2}, "of order 1"),
        ({"private": 1.0, "other": 2}, "--other looks at who has what"),
        ({"private": 1.0}, "needs a public alphabet"),
        ({"private": 1.0, "levels": 3}, "quantiles of the data"),
        ({"alphabet": ["x", "y"], "bins": 2}, "alphabet= names the values"),
        ({"every_second": 3}, "'every_second' is not known here"),
        ({"columns": "who"}, "'columns' is not known here"),
    ],
)
def test_what_does_not_go_together_is_refused_wherever_it_comes_from(words, said):
    with pytest.raises(InputError, match=said):
        sv.fit(ROWS.rename({"who": "user"}), **words)


def places(path):
    rows = [(f"u{k % 12}", 52.5 + 0.004 * (k % 7), 13.4 + 0.004 * (k % 5)) for k in range(240)]
    pl.DataFrame(rows, schema=["user", "lat", "lon"], orient="row").write_csv(path)
    return str(path)


def test_a_plan_finds_the_columns_of_places_for_real_people_too(tmp_path, capsys):
    data, model = places(tmp_path / "w.csv"), str(tmp_path / "w.model")
    assert main(["fit", data, "--cell-metres", "1000", "--smoothing", "1", "--out", model]) == 0
    assert main(["plan", model, "--data", data, "--epsilon", "1", "--people", "3", "--length", "4"]) == 0
    assert "3 held-out people" in capsys.readouterr().out


NUMBERS = {"user": [1, 1, 2, 2], "value": [41.0, 60.5, 70.0, 80.0]}


@pytest.mark.parametrize("words", [{}, {"levels": 4}])
def test_a_range_goes_with_bins_a_grid_or_cells(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--range goes with --bins, --grid or --cell-metres") as found:
        sv.fit(pl.DataFrame(NUMBERS), range="40,200", **words)
    assert "private" not in str(found.value)


def test_a_private_fit_still_says_why() -> None:
    with pytest.raises(InputError, match="a private fit may not look at"):
        sv.fit(pl.DataFrame(NUMBERS), range="40,200", levels=4, private=1.0)


PLANE = Columns(value="x,y")


def pulse(path, bad=80, n=40_000):
    """Heart rates of 40 people, and a few rows of a broken sensor."""
    rng = np.random.default_rng(1)
    beats = rng.normal(75, 12, n).clip(40, 160)
    beats[rng.choice(n, bad, replace=False)] = rng.choice([-1e9, 6.5e7, 1e12], bad)
    pl.DataFrame({"user": np.repeat(np.arange(40), n // 40), "value": beats}).write_csv(path)
    return beats


def test_bad_rows_do_not_squeeze_all_events_into_one_cell(tmp_path):
    beats = pulse(tmp_path / "pulse.csv")
    fitted = fit_file(tmp_path / "pulse.csv", bins="auto", smoothing=1)
    alphabet = fitted.model.alphabet
    assert isinstance(alphabet, Bins)
    assert 10 <= alphabet.n <= 40
    assert 20 <= alphabet.edges[0] <= 45
    assert 105 <= alphabet.edges[-1] <= 165
    assert 80 <= fitted.clamped <= 400  # the bad rows, and at most one in a hundred beside them
    shares = np.bincount(alphabet.encode(beats), minlength=alphabet.n) / beats.size
    assert shares.max() < 0.25
    width = np.diff(alphabet.edges)
    assert np.allclose(width, width[0])
    assert float(f"{width[0]:.1g}") == pytest.approx(width[0])  # one digit: little of the data is in it
    assert np.allclose(alphabet.edges / width[0], np.round(alphabet.edges / width[0]))


def test_release_maps_as_the_fit_did(tmp_path):
    pulse(tmp_path / "pulse.csv", n=4_000, bad=8)
    fit_file(tmp_path / "pulse.csv", bins="auto", smoothing=1).model.save(tmp_path / "pulse.model")
    model = MarkovModel.load(tmp_path / "pulse.model")
    assert model.alphabet.on_unknown == "nearest"
    out = tmp_path / "released.csv"
    setting = sv.Policy(epsilon=1.0, mechanism="randomized_response").on(model)
    assert release_file(tmp_path / "pulse.csv", setting, out, seed=1).events == 4_000
    assert set(pl.read_csv(out)["value"].unique()) <= set(model.alphabet.points.tolist())


def test_a_policy_of_ones_own_is_for_later_values_alone(tmp_path):
    pulse(tmp_path / "pulse.csv", n=4_000, bad=8)
    fitted = fit_file(tmp_path / "pulse.csv", bins="auto", on_unknown="hide")
    assert fitted.model.alphabet.on_unknown == "hide"
    assert fitted.clamped >= 8
    assert fitted.events == 4_000


def test_points_far_away_do_not_squeeze_a_grid(tmp_path):
    rng = np.random.default_rng(2)
    points = np.stack([rng.uniform(0, 1920, 8_000), rng.uniform(0, 1080, 8_000)], axis=1)
    points[::400] = (-1e7, 3e8)
    frame = pl.DataFrame({"user": np.repeat(np.arange(8), 1_000), "x": points[:, 0], "y": points[:, 1]})
    fitted = fit_file(frame, bins=None, grid="auto", columns=PLANE)
    grid = fitted.model.alphabet
    assert isinstance(grid, Grid)
    assert grid.x.edges[[0, -1]].tolist() == [0, 2000]
    assert grid.y.edges[[0, -1]].tolist() == [0, 1100]
    assert fitted.clamped == 20


@pytest.mark.parametrize(
    "numbers",
    [[5.0], [0.0, 0.0], [3.0] * 999 + [1e6], [-1e-7, 1e-7], [1e15, 1e15 + 8], [0.0] * 500 + [1.0, 2.0], [-4.0, 9.0]],
)
def test_odd_numbers_are_cut(numbers):
    frame = pl.DataFrame({"user": ["a"] * len(numbers), "value": numbers})
    fitted = fit_file(frame, bins="auto")
    assert fitted.events == len(numbers)
    assert fitted.clamped <= 1
    distinct = len(set(fitted.model.alphabet.encode(numbers).tolist()))
    assert distinct > 1 or len(set(numbers)) == 1


def test_numbers_of_any_size_are_cut_or_get_one_line():
    frame = pl.DataFrame({"user": ["a", "a"], "value": [-1.7e308, 1.7e308]})
    assert fit_file(frame, bins="auto").model.n > 1
    frame = pl.DataFrame({"user": ["a", "a"], "value": [1e16, 1e16 + 2]})
    with pytest.raises(InputError, match="too close"):
        fit_file(frame, bins="auto")


def test_the_order_of_rows_does_not_matter(tmp_path):
    beats = pulse(tmp_path / "pulse.csv", n=2_000, bad=4)
    edges = []
    for order in (np.arange(2_000), np.arange(2_000)[::-1]):
        frame = pl.DataFrame({"user": ["a"] * 2_000, "value": beats[order]})
        edges.append(fit_file(frame, bins="auto", chunk=300).model.alphabet.edges.tolist())
    assert edges[0] == edges[1]


def test_a_range_of_ones_own_needs_no_look_at_the_data(tmp_path):
    pulse(tmp_path / "pulse.csv", n=2_000, bad=4)
    words = FitWords(bins="auto", range="40,140")
    bins = words.named()
    assert bins.n == 20
    assert bins.edges[[0, -1]].tolist() == [40, 140]
    assert bins.on_unknown == "nearest"
    plane = FitWords(grid="auto", range="0,10,0,5").named()
    assert (plane.x.n, plane.y.n) == (10, 10)
    fitted = fit_file(tmp_path / "pulse.csv", words)
    assert fitted.model.alphabet.edges.tolist() == bins.edges.tolist()
    assert fitted.clamped >= 4
    private = fit_file(tmp_path / "pulse.csv", words, private=1.0, seed=1)
    assert private.model.n == 20
    assert private.clamped == 0  # a count without noise is not known


def test_a_point_outside_the_range_is_disclosed_how_to_be_counted():
    with pytest.raises(DataError, match=r"row 3: .* outside --range: widen that, or pass --on-unknown nearest"):
        sv.fit(gaze("seq"), value="x,y", grid="2x2", range="0,2,0,2", smoothing=1)


def test_a_missing_coordinate_is_not_offered_as_a_symbol():
    rows = gaze("seq").with_columns(pl.when(pl.col("seq") > 33).then(pl.col("x")))
    with pytest.raises(DataError, match=r"--missing drop or --missing hold$"):
        sv.fit(rows, value="x,y", grid="3x2", smoothing=1)
