"""Places in files, frames and services: latitude and longitude, cells in metres."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import fit_file, release_file
from policies import promise
from seqveil.core.errors import DataError, InputError
from seqveil.core.geography import Cells
from seqveil.interfaces.bridge.payloads import Form, Payloads
from seqveil.interfaces.events import Wording
from seqveil.interfaces.files.cuts import cells_over
from seqveil.receiver.learn import near

HOME, WORK = (52.52, 13.40), (52.55, 13.45)


def walks(people=12, events=12, seed=1):
    """People who go between home and work, with the noise of a phone."""
    rng = np.random.default_rng(seed)
    where = np.array([HOME, WORK])[rng.integers(0, 2, (people, events // 4)).repeat(4, 1)]
    where = where + rng.normal(0, 0.004, where.shape)
    users = np.repeat([f"u{k:02}" for k in range(people)], events)
    times = np.tile(np.arange(events) * 60, people)
    return pl.DataFrame({"user": users, "time": times, "lat": where[..., 0].ravel(), "lon": where[..., 1].ravel()})


def test_columns_are_known_by_their_names():
    frame = walks(4, 12)
    for names in (("Latitude", "Longitude"), ("LAT", "lng"), ("lat", "lon")):
        fitted = fit_file(frame.rename(dict(zip(("lat", "lon"), names, strict=True))), cell_metres=2000)
        assert fitted.model.reading.value == ",".join(names)
    named = frame.with_columns(value=pl.lit("x"))
    assert fit_file(named, cell_metres=2000).read["value"] == "lat,lon"  # cells need two columns
    odd = frame.rename({"lat": "y", "lon": "x"})
    assert fit_file(odd, cell_metres=2000, value="y,x").model.n > 3
    with pytest.raises(DataError, match="no column 'value'"):
        fit_file(odd, cell_metres=2000)


def test_the_date_line_is_no_border(tmp_path):
    frame = walks(6, 32).with_columns((pl.col("lon") - 13.42 + 360.0) % 360.0 - 180.0)
    here, there = fit_file(walks(6, 32), cell_metres=1000).model, fit_file(frame, cell_metres=1000).model
    assert there.n < 2 * here.n
    assert {int(math.copysign(1, lon)) for lon in there.alphabet.points[:, 1]} == {-1, 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--cell-metres", "1"], "10 to"),
        (["--cell-metres", "nan"], "size of cells"),
        (["--cell-metres", "500", "--grid", "auto"], "at most one of"),
        (["--cell-metres", "500", "--value-column", "lat"], "need two columns"),
        (["--cell-metres", "500", "--value-column", "lon,time"], "are no places"),
        (["--cell-metres", "500", "--value-column", "user,lon"], "different names"),
        (["--cell-metres", "500", "--other", "3"], "at most one of"),
        (["--cell-metres", "500", "--missing", "symbol"], "--missing drop or"),
        (["--cell-metres", "500", "--range", "1,2"], "SOUTH,NORTH,WEST,EAST"),
        (["--value-column", "lat,lon"], "pass --cell-metres 500"),
    ],
)
def test_what_does_not_go_is_one_line(tmp_path, seqveil, options, line):
    walks(3, 8).write_csv(tmp_path / "w.csv")
    said = seqveil("fit", tmp_path / "w.csv", "-o", tmp_path / "m", *options)
    assert said.code == 2, said.out
    assert line in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_too_many_cells_say_which_size_fits():
    europe = (36.0, 60.0, -10.0, 30.0)
    with pytest.raises(InputError, match=r"cell_metres=.[0-9]+") as error:
        cells_over(500, europe)
    size = float(str(error.value).split("cell_metres=")[1].split()[0].strip("'"))
    assert cells_over(size, europe).n <= 100_000


def test_frames_take_the_same_words():
    frame = walks()
    model = sv.fit(frame, cell_metres=1000, smoothing=1)
    made = sv.release(frame, model, epsilon=2, distortion="metres", mechanism="balanced")
    assert made.frame.columns[:4] == ["user", "time", "lat", "lon"]
    assert sv.audit(made, model).passed
    assert sv.decode(made, model, truth=frame).away < 4000
    odd = frame.rename({"lat": "y", "lon": "x"}).to_pandas()
    assert sv.fit(odd, cell_metres=1000, smoothing=1, value="y,x").fingerprint == model.fingerprint
    assert "--cell-metres" in sv.inspect(frame).command
    with pytest.raises(InputError, match="at most one of"):
        sv.fit(frame, alphabet=["a"], cell_metres=500)
    with pytest.raises(InputError, match="the latitude before the longitude in value=; got lon,lat"):
        sv.fit(frame, value="lon,lat", cell_metres=500)
    noisy = sv.fit(frame, cell_metres=2000, range="52.4,52.6,13.3,13.5", private=5.0, seed=1)
    assert noisy.alphabet == Cells(2000, (52.4, 52.6, 13.3, 13.5), "nearest")


@pytest.mark.slow
def test_zones_in_metres(tmp_path, seqveil):
    walks().write_csv(tmp_path / "w.csv")
    model, out = tmp_path / "m", tmp_path / "out.csv"
    assert seqveil("fit", tmp_path / "w.csv", "-o", model, "--cell-metres", 1000, "--smoothing", 1).code == 0
    secret = sv.secrets.zone(centre=HOME, radius=300.0, epsilon=1.0, window=10)
    assert secret.name == "zone:52.52,13.4,300"
    assert len(sv.secrets.declared.codes_within(secret.circle, sv.MarkovModel.load(model).alphabet)) <= 4
    kept = promise(secrets=secret, distortion="metres")
    assert seqveil("release", tmp_path / "w.csv", "-m", model, *kept, "--out", out).code == 0
    asked = seqveil("audit", out, "-m", model, "--secret", secret.name, "--secret-window", 10, "--json").json
    assert asked["secrets"][0]["log_odds_worst"] <= 1.0 + 1e-9
    for wrong in ("zone:95,13.4,300", "zone:13.4,300", "zone:0,0,300"):
        how = ("--secret", wrong, "--secret-epsilon", 1, "--secret-window", 10, "--out", "x.csv")
        refused = seqveil("release", tmp_path / "w.csv", "-m", model, *how)
        assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_slots_hold_the_last_place(tmp_path):
    walks(4, 12).with_columns(time=pl.Series(np.tile(np.arange(12) * 90, 4))).write_csv(tmp_path / "w.csv")
    model = fit_file(tmp_path / "w.csv", cell_metres=1000, every_seconds=60, smoothing=1).model
    setting = sv.Policy(epsilon=1.0, mechanism="balanced", distortion="metres").on(model)
    release_file(tmp_path / "w.csv", setting, tmp_path / "out.csv")
    assert pl.read_csv(tmp_path / "out.csv").height == 4 * (11 * 90 // 60 + 1)
    with pytest.raises(InputError, match="holds the last value"):
        fit_file(walks(), cell_metres=2000, every_seconds=60, slot="last,nothing")


def test_live_interfaces_use_the_same_places():
    cells = fit_file(walks(), cell_metres=1000, smoothing=1).model
    wording = Wording(cells.alphabet)
    code = int(wording.encode([[52.52, 13.4]])[0])
    assert wording.shown[code] == list(cells.alphabet.decode([code])[0])
    location = json.dumps({"_type": "location", "lat": 52.52, "lon": 13.4, "tst": 1_700_000_000}).encode()
    payloads = Payloads(
        sv.Policy(epsilon=1.0, mechanism="balanced", distortion="metres").on(cells), form=Form.parse("owntracks")
    )
    assert payloads.read("ann", location).code == code


def test_the_learner_knows_places():
    model = fit_file(walks(), cell_metres=2000, smoothing=1).model
    [steps] = near(model.alphabet)
    assert np.allclose(steps.sum(1), 1.0)
    apart = sv.distortion.metres(model.alphabet.points).matrix(model.n) + np.diag(np.full(model.n, np.inf))
    likeliest = steps.argmax(1)
    assert (apart[np.arange(model.n), likeliest] <= 1.01 * apart.min(1)).mean() > 0.9  # a step goes to a nearest one
