"""A zone as a secret counts every cell that somebody in it can be in, on a flat grid as on the map."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqveil as sv
from seqveil.core import geography
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import InputError
from seqveil.core.secrets.declared import codes_within
from studios import studio

NUMBERS = st.floats(-12, 12, allow_nan=False)


@given(st.tuples(NUMBERS, NUMBERS), st.floats(0, 9), st.tuples(NUMBERS, NUMBERS))
def test_whoever_is_in_the_zone_is_in_a_cell_that_counts(centre, radius, point):
    grid = Grid([-10, -3, 0, 0.5, 10], [-10, 1, 4, 10], "nearest")
    if np.hypot(*np.subtract(point, centre)) > radius:
        return
    inside = max(map(abs, centre)) <= 10
    try:
        counted = codes_within((*centre, radius), grid)
    except InputError:  # all of the zone is outside
        counted = np.zeros(0, int)
    assert grid.encode([point])[0] in counted or not (inside or counted.size)


@given(NUMBERS, st.floats(0, 9), NUMBERS)
def test_bins_count_by_what_falls_into_them(centre, radius, number):
    bins = Bins([-10, -3, 0, 0.5, 10], "nearest")
    if abs(number - centre) <= radius and abs(centre) <= 10:
        assert bins.encode([number])[0] in codes_within((centre, radius), bins)


def test_a_cell_counts_whose_centre_is_outside():
    grid = Grid.regular(2, 1, bounds=(0, 20, 0, 10))
    model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=grid)
    secret = sv.secrets.zone(centre=(9, 5), radius=2.0, epsilon=1.0)  # reaches one unit into the second cell
    assert secret.over(model.alphabet).read([1]) == 1
    assert sv.secrets.zone(centre=(4, 5), radius=2.0, epsilon=1.0).over(grid).read([1]) == 0


def test_numbers_that_are_symbols_themselves_count_by_where_they_are():
    assert sv.secrets.zone(centre=3, radius=1, epsilon=1.0).named(Alphabet([1, 2, 3, 4, 5])).tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="lies in the zone"):
        sv.secrets.zone(centre=(40, 5), radius=2.0, epsilon=1.0).over(
            Grid.regular(2, 1, bounds=(0, 20, 0, 10), on_unknown="nearest")
        )


def test_the_unit_of_a_zone_is_said():
    assert "radius 200 (metres on the map" in sv.secrets.zone(centre=(48.85, 2.35), radius=200, epsilon=1).sentence


PUBLIC = "the zone is public: name places that are the same for everyone, never one person's home"


@pytest.mark.slow
def test_whoever_declares_a_zone_is_disclosed_that_it_is_public(seqveil, tmp_path, monkeypatch):
    """The place stands in what is handed out, so it is said where it is declared, and for other secrets it is not."""
    monkeypatch.chdir(tmp_path)
    grid = Grid.regular(3, 3, bounds=(0, 3, 0, 3))
    rows = np.full((9, 9), 0.05) + 0.55 * np.eye(9)
    model = sv.MarkovModel(np.full(9, 1 / 9), rows, alphabet=grid)
    model.save("m.model")
    codes = model.sample(4, 6, seed=1)
    points = grid.points[codes.ravel()]
    frame = pl.DataFrame({"user": np.repeat(np.arange(6), 4), "x": points[:, 0], "y": points[:, 1]})
    frame.write_csv("d.csv")
    for kind, said in (("zone:0.5,0.5,0.3", True), ("pattern:'0.5,0.5'", False)):
        secret = ("--secret", kind, "--secret-window", 4)
        kept = (*secret, "--secret-epsilon", 1)
        made = seqveil("release", "d.csv", "-m", "m.model", "--value-column", "x,y", *kept, "--out", f"{said}.csv")
        assert made.code == 0, made.err
        assert (PUBLIC in made.err) == said
        planned = seqveil("plan", "m.model", *kept, "--length", 4, "--people", 2)
        assert planned.code == 0, planned.err
        assert (PUBLIC in planned.out) == said
        advised = seqveil("plan", "m.model", "--seen-by", "partner", *secret, "--length", 4, "--out", f"{said}.toml")
        assert advised.code == 0, advised.err
        assert (PUBLIC in advised.out) == said
    secrets = [sv.secrets.zone(centre=(0.5, 0.5), radius=0.3, epsilon=1.0, window=4)]
    assert ("public", PUBLIC) in sv.release(frame, model, secrets=secrets, value="x,y").lines()


@pytest.mark.slow
def test_the_page_says_it_where_a_zone_is_chosen():
    with studio() as page:
        front = page.ask("GET", "/", token=None).content.decode()
    (shown,) = re.findall(r'<p data-kind="zone"[^>]*>([^<]*)</p>', front)
    assert shown.lower().rstrip(".").replace("’", "'") == PUBLIC


@pytest.mark.parametrize(
    ("centre", "metres", "bounds"),
    [
        ((52.606, 13.51), 1500, (52.4, 52.6, 13.2, 13.5)),
        ((52.62, 13.35), 4000, (52.4, 52.6, 13.2, 13.5)),
        ((10.0, -179.89), 3000, (9.9, 10.1, 179.9, -179.9)),
        ((89.995, 30.0), 3000, (89.9, 89.98, -180, 180)),
        ((50.0, 8.0), 900, (50.0, 50.0, 8.0, 8.0)),
    ],
)
def test_whoever_is_in_a_zone_is_in_its_cells_off_the_map_too(centre, metres, bounds):
    cells = sv.Cells(500, bounds, "nearest")
    spread = np.random.default_rng(0).uniform(-1, 1, (20_000, 2)) * [
        0.06,
        0.06 / max(0.001, np.cos(np.radians(centre[0]))),
    ]
    points = np.asarray(centre) + spread
    points[:, 0], points[:, 1] = np.clip(points[:, 0], -90, 90), (points[:, 1] + 180) % 360 - 180
    near = points[geography.haversine(points, np.asarray(centre)) <= metres]
    assert len(near) > 50
    assert set(cells.encode(near).tolist()) <= set(cells.within(centre, metres).tolist())


def test_a_zone_that_lies_off_the_map_has_no_cells():
    assert not sv.Cells(500, (52.4, 52.6, 13.2, 13.5)).within((53.0, 13.3), 300).size
