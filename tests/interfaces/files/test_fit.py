"""What a fit takes, whoever makes it; numbers and points cut by themselves: `--bins auto`, `--grid auto`."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import fit_file
from seqveil.core.alphabet import Bins
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel, Reading
from seqveil.interfaces.cli import main
from seqveil.interfaces.files import cuts
from tests.core.test_times import gaze

ROWS = pl.DataFrame({"who": ["a", "b"] * 30, "value": ["x", "y", "y", "x", "x"] * 12})


def test_options_and_keywords_make_the_same_model_and_it_remembers_the_columns(tmp_path):
    ROWS.write_csv(tmp_path / "d.csv")
    ours = [sv.fit(tmp_path / "d.csv", user="who"), sv.fit(ROWS, user="who"), sv.fit(ROWS.to_pandas(), user="who")]
    assert main(["fit", str(tmp_path / "d.csv"), "-o", str(tmp_path / "m"), "--user-column", "who"]) == 0
    loaded = sv.MarkovModel.load(tmp_path / "m")
    assert {model.fingerprint for model in ours} == {loaded.fingerprint}
    assert loaded.reading == ours[1].reading == Reading("who")
    assert sv.release(ROWS, loaded, epsilon=1.0).frame.columns == ["who", "value", "epsilon"]
    renamed = ROWS.rename({"who": "person"})
    assert sv.release(renamed, loaded, epsilon=1.0, user="person").account.users == 2  # a file gives only what differs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"order": 2}, "'order' is not known here"),
        ({"seed": 1}, "are for a private fit"),
        ({"private": 1.0, "context": "auto"}, "of one chain"),
        ({"private": 1.0, "smoothing": 2}, "smooths by its noise"),
        ({"private": 1.0, "other": 2}, "needs a public alphabet"),
        ({"private": 1.0}, "needs a public alphabet"),
        ({"alphabet": ["x", "y"], "bins": 2}, "at most one of bins=, alphabet="),
        ({"every_second": 3}, "'every_second' is not known here"),
        ({"columns": "who"}, "'columns' is not known here"),
    ],
)
def test_what_does_not_go_together_is_refused_wherever_it_comes_from(words, said):
    with pytest.raises(InputError, match=said):
        sv.fit(ROWS.rename({"who": "user"}), **words)


NUMBERS = {"user": [1, 1, 2, 2], "value": [41.0, 60.5, 70.0, 80.0]}


def test_a_range_goes_with_bins_a_grid_or_cells() -> None:
    with pytest.raises(InputError, match="range= goes with bins="):
        sv.fit(pl.DataFrame(NUMBERS), range="40,200")


def pulse(path, bad=80, n=40_000):
    """Heart rates of 40 people, and a few rows of a broken sensor."""
    rng = np.random.default_rng(1)
    beats = rng.normal(75, 12, n).clip(40, 160)
    beats[rng.choice(n, bad, replace=False)] = rng.choice([-1e9, 6.5e7, 1e12], bad)
    pl.DataFrame({"user": np.repeat(np.arange(40), n // 40), "value": beats}).write_csv(path)
    return beats


@pytest.mark.slow
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
    fitted.model.save(tmp_path / "pulse.model")  # a release maps as the fit did
    made = sv.release(tmp_path / "pulse.csv", tmp_path / "pulse.model", epsilon=1.0, mechanism="randomized_response")
    assert set(made.meta["alphabet"]["edges"]) == set(alphabet.edges.tolist())
    assert made.account.events == beats.size


def test_a_policy_of_ones_own_is_for_later_values_alone(tmp_path):
    pulse(tmp_path / "pulse.csv", n=4_000, bad=8)
    with pytest.raises(DataError, match="not in the model's alphabet"):
        fit_file(tmp_path / "pulse.csv", bins="auto", on_unknown="hide")
    assert fit_file(tmp_path / "pulse.csv", bins="auto").events == 4_000


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
    assert fit_file(pl.DataFrame({"user": ["a", "a"], "value": [-1.7e308, 1.7e308]}), bins="auto").model.n > 1
    with pytest.raises(InputError, match="too close"):
        fit_file(pl.DataFrame({"user": ["a", "a"], "value": [1e16, 1e16 + 2]}), bins="auto")


def test_a_range_of_ones_own_needs_no_look_at_the_data(tmp_path):
    pulse(tmp_path / "pulse.csv", n=2_000, bad=4)
    words = {"bins": "auto", "range": "40,140"}
    fitted = fit_file(tmp_path / "pulse.csv", **words)
    bins = fitted.model.alphabet
    assert (bins.n, bins.edges[[0, -1]].tolist(), bins.on_unknown) == (20, [40, 140], "nearest")
    assert fitted.clamped >= 4
    plane = cuts.cut("grid", "auto", None, "0,10,0,5")
    assert (plane.x.n, plane.y.n) == (10, 10)
    private = fit_file(tmp_path / "pulse.csv", **words, private=1.0, seed=1)
    assert private.model.n == 20
    assert private.clamped == 0  # a count without noise is not known
    assert "warning" not in dict(private.lines())


def test_a_private_fit_to_a_few_people_is_called_noise():
    frame = pl.DataFrame({"user": [*"abcdefghijkl"] * 5, "value": [k % 5 for k in range(60)]})
    few = fit_file(frame, bins="1", range="0,5", private=1.0, seed=1)
    assert "mostly noise" in dict(few.lines())["warning"]


def test_a_grid_of_ones_own_is_kept_and_points_far_away_are_counted(tmp_path, seqveil):
    """Five samples of 60,000 that say 65535 leave the grid where people look."""
    rng = np.random.default_rng(3)
    points = rng.normal(500, 100, (60_000, 2))
    points[::12_000] = 65535
    frame = pl.DataFrame({"user": np.repeat(np.arange(60), 1_000), "x": points[:, 0], "y": points[:, 1]})
    frame.write_parquet(tmp_path / "gaze.parquet")
    command = ("fit", tmp_path / "gaze.parquet", "-o", tmp_path / "m", "--value-column", "x,y", "--grid", "4x3")
    assert "clamped" in seqveil(*command).out
    model = MarkovModel.load(tmp_path / "m")
    assert (model.n, model.transitions) == (12, 143)
    ends = np.concatenate([side.edges[[0, -1]] for side in (model.alphabet.x, model.alphabet.y)])
    assert (ends % 20 == 0).all()  # round numbers: nobody's own extremes
    assert seqveil(*command, "--range", "0,1000,0,1000", "--json").json["clamped"] >= 5
    with pytest.raises(DataError, match="not in the model's alphabet"):
        sv.fit(frame, value="x,y", grid="4x3", range="0,1000,0,1000", on_unknown="error")


def test_a_missing_coordinate_is_not_offered_as_a_symbol_and_only_a_fit_says_what_becomes_of_it():
    rows = gaze("seq").with_columns(pl.when(pl.col("seq") > 33).then(pl.col("x")))
    with pytest.raises(DataError, match=r"fit the model with missing=.drop. or missing=.hold.$"):
        sv.fit(rows, value="x,y", grid="3x2", smoothing=1)
    model = sv.fit(gaze("seq"), value="x,y", grid="3x2", smoothing=1)
    with pytest.raises(DataError, match=r"fit the model with missing=.drop. or missing=.hold.$"):
        sv.release(rows, model, epsilon=1.0)


def test_edges_of_grids_are_no_numbers_of_the_data():
    """The least and the greatest are somebody's: outer edges are rounded outward."""
    pulse = np.sort(np.random.default_rng(1).lognormal(4.0, 0.5, 2_000))
    frame = pl.DataFrame({"user": np.arange(2_000) % 40, "x": pulse, "y": -pulse})
    grid = sv.fit(frame, value="x,y", grid="5x5").alphabet
    for edges in (grid.x.edges[[0, -1]], -grid.y.edges[[-1, 0]]):
        assert edges[0] < pulse[0]
        assert edges[-1] > pulse[1_980]
        assert all(f"{edge:.3g}" == f"{edge:.12g}" for edge in edges)
