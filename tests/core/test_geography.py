"""Distances on the globe, cells of the map and places, against slow and obvious twins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqveil.core import geography
from seqveil.core.alphabet import UNKNOWN, Alphabet, Grid, from_json
from seqveil.core.distortion import metres, resolve
from seqveil.core.errors import InputError, UnknownSymbol
from seqveil.core.geography import Cells, count_cells

LATITUDE = st.floats(-90, 90, allow_nan=False).map(lambda value: round(value, 5))
LONGITUDE = st.floats(-180, 180, allow_nan=False).map(lambda value: round(value, 5))
POINT = st.tuples(LATITUDE, LONGITUDE)


def vincenty(here, there):
    """The angle by its tangent, which no rounding spoils: another formula than the package's."""
    (a, b), (c, d) = (map(math.radians, point) for point in (here, there))
    turn = d - b
    across = math.hypot(
        math.cos(c) * math.sin(turn), math.cos(a) * math.sin(c) - math.sin(a) * math.cos(c) * math.cos(turn)
    )
    return 6_371_008.8 * math.atan2(across, math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(turn))


def haversine(points, point):
    (lat, lon), (other, across) = (np.moveaxis(np.radians(one), -1, 0) for one in (points, point))
    half = np.sin((other - lat) / 2) ** 2 + np.cos(lat) * np.cos(other) * np.sin((across - lon) / 2) ** 2
    return 2 * geography.EARTH * np.arcsin(np.sqrt(np.clip(half, 0, 1)))


@given(POINT, POINT)
@example((0.0, 0.0), (0.0, 180.0))
@example((90.0, 10.0), (90.0, -70.0))
@example((12.3, 179.99999), (12.3, -180.0))
def test_distances(here, there):
    want = vincenty(here, there)
    near_antipode = 0.5 if want > 2e7 else 1e-3  # there the chord is ill-conditioned: centimetres of 20,000 km
    assert metres([here, there]).between(0, 1).item() == pytest.approx(want, abs=near_antipode)
    assert metres([here, there]).between(1, 0).item() == metres([here, there]).between(0, 1).item()


@given(st.lists(POINT, min_size=2, max_size=8, unique=True))
@settings(max_examples=40)
def test_a_flat_map_keeps_distances_from_the_middle(points):
    where = np.array(points)
    flat = geography.plane(where)
    assert flat.shape == where.shape
    assert np.isfinite(flat).all()
    centre = geography.sphere(where).mean(0)
    if np.sqrt((centre**2).sum()) < 0.2 * geography.EARTH:
        return
    lat, lon = math.asin(centre[2] / np.sqrt((centre**2).sum())), math.atan2(centre[1], centre[0])
    away = np.array([vincenty((math.degrees(lat), math.degrees(lon)), point) for point in points])
    assert np.hypot(*flat.T) == pytest.approx(away, abs=5.0)


def test_a_flat_map_of_a_town_is_true():
    town = np.random.default_rng(1).normal((52.5, 13.4), (0.05, 0.08), (40, 2))
    flat = geography.plane(town)
    for a, b in itertools.combinations(range(40), 2):
        assert math.dist(flat[a], flat[b]) == pytest.approx(vincenty(town[a], town[b]), rel=2e-5)


@given(POINT, POINT, st.floats(0.001, 40), st.floats(0.001, 80))
@settings(max_examples=40)
def test_the_way_to_a_box(point, corner, high, wide):
    south, west = min(corner[0], 89.0), corner[1]
    north, east = min(90.0, south + high), west + wide
    got = geography.to_box(point, *(np.array([edge]) for edge in (south, north, west, east))).item()
    lat, lon = np.meshgrid(np.linspace(south, north, 40), np.linspace(west, east, 40))
    tried = haversine(np.stack((lat, lon), -1), np.array(point))
    assert got <= tried.min() + 1.0
    step = geography.DEGREE * (high + wide) / 39  # no point of the box is farther from the mesh
    assert got >= tried.min() - step
    inside = south <= point[0] <= north and (point[1] - west) % 360 <= wide
    assert (got < 1.0) or not inside


def obvious(cells, point):
    """The cells that may hold a point, by looking at the box of each of them, borders to a last digit."""
    south, north, west, east = cells.boxes
    into = (point[1] - west + 1e-9) % 360
    inside = (south - 1e-9 <= point[0]) & (point[0] <= north + 1e-9) & (into <= east - west + 2e-9)
    return np.flatnonzero(inside)


@given(POINT, st.floats(0.01, 3), st.floats(0.01, 3), st.sampled_from([2e4, 7e4, 4e5]), st.data())
@settings(max_examples=30, deadline=None)
def test_cells_against_their_boxes(corner, high, wide, size, data):
    south = min(corner[0], 89.0)
    bounds = (south, min(90.0, south + high), corner[1], corner[1] + wide)
    cells = Cells(size, bounds)
    assert cells.n == count_cells(size, bounds)
    assert np.array_equal(cells.encode(cells.points), np.arange(cells.n))  # a centre is in its own cell
    assert from_json(cells.to_json()) == cells
    for _ in range(4):
        lat, lon = data.draw(st.floats(south, bounds[1])), data.draw(st.floats(corner[1], bounds[3]))
        point = (lat, float(geography.wrapped(lon)))
        code = cells.encode([point]).item()
        assert code in obvious(cells, point), (point, obvious(cells, point))


def test_cells_are_of_one_size_wherever_they_are():
    for lat in (-70, -33, 0, 48, 69):
        cells = Cells(1000, (lat, lat + 0.2, 10, 10.5))
        south, north, west, east = cells.boxes
        high = [vincenty((s, w), (n, w)) for s, n, w in zip(south, north, west, strict=True)]
        wide = [
            vincenty(((s + n) / 2, w), ((s + n) / 2, e)) for s, n, w, e in zip(south, north, west, east, strict=True)
        ]
        assert np.ptp(high) < 1
        assert max(abs(value - 1000) for value in [*high, *wide]) < 2


def test_cells_at_the_date_line_and_at_a_pole():
    fiji = Cells(5000, (-19, -16, 177, -178.5))
    east, west = fiji.encode([(-17, 179.999), (-17, -179.999)]).tolist()
    assert abs(east - west) <= 1  # neighbours, or the same
    assert fiji.n == pytest.approx((3 * 111.195 / 5) * (4.5 * 111.195 * math.cos(math.radians(17.5)) / 5), rel=0.08)
    pole = Cells(20_000, (88, 90, -180, 180))
    assert np.array_equal(pole.encode(pole.points), np.arange(pole.n))
    assert pole.encode([(90.0, 0.0), (89.99, 120.0)]).max() < pole.n
    area = 2 * math.pi * geography.EARTH**2 * (1 - math.sin(math.radians(88)))
    assert pole.n == pytest.approx(area / 20_000**2, rel=0.2)


def test_two_models_share_their_cells():
    one, two = Cells(500, (48.8, 48.9, 2.2, 2.4)), Cells(500, (48.85, 48.95, 2.3, 2.5))
    shared = {tuple(value) for value in one.points.tolist()} & {tuple(value) for value in two.points.tolist()}
    assert len(shared) > 60


def test_points_outside_the_cells():
    cells = Cells(1000, (52.4, 52.6, 13.3, 13.5))
    outside = [(53.0, 13.4), (52.5, 14.9), (0.0, 0.0), (-52.5, -166.6)]
    with pytest.raises(UnknownSymbol):
        cells.encode(outside[:1])
    assert (cells.with_policy("hide").encode(outside) == UNKNOWN).all()
    clamped = cells.with_policy("nearest")
    north, east = clamped.encode(outside[:2]).tolist()
    assert clamped.points[north, 0] == clamped.points[:, 0].max()
    assert clamped.points[east, 1] > 13.49
    assert clamped.encode([(400.0, 13.4), (52.5, 13.4 + 360)]).tolist() == [north, clamped.encode_one((52.5, 13.4))]
    for bad in ((math.nan, 1.0), (1.0, math.inf), "x", None, (1.0,)):
        assert clamped.tracked().encode([bad]).tolist() == [UNKNOWN]


AREAS = [(1, 0, 0, 1), (-91, 0, 0, 1), (0, math.nan, 0, 1), (0, 1, 0), (0, 1, -900, 1), "abcd"]


@pytest.mark.parametrize(
    ("given", "said"),
    [((size, (0, 1, 0, 1)), "size of cells") for size in (9.9, -1, 0, math.nan, math.inf, 1e7, True, "500", None)]
    + [((500, bounds), "bounds") for bounds in AREAS],
)
def test_cells_that_are_none(given, said):
    with pytest.raises(InputError, match=said):
        Cells(*given)


def test_saved_cells_that_are_damaged():
    good = Cells(5000, (48, 49, 2, 3)).to_json()
    for change in (
        {"rows": []}, {"rows": [[10, 2, 0]]}, {"rows": [[10, 10, 1]]}, {"rows": [[10, 1, 11]]}, {"south": -1},
        {"around": 3}, {"metres": "x"}, {"rows": [[10.5, 1, 2]]}, {"rows": [[10, 1]]}, {"rows": None}, {"south": 1.5},
    ):  # fmt: skip
        with pytest.raises(InputError):
            from_json(good | change)


def test_costs_in_metres_are_those_of_places():
    where = [(48.85, 2.35), (48.86, 2.35), (48.86, 2.40)]
    costs = metres(where)
    exact = np.array([[vincenty(a, b) for b in where] for a in where])
    assert costs.matrix(3) == pytest.approx(exact, abs=1e-3)
    beliefs = np.array([[0.2, 0.5, 0.3], [0.0, 0.1, 0.9]])
    assert costs.expected(beliefs) == pytest.approx(beliefs @ exact, abs=1e-3)
    assert costs.best_guess(beliefs).tolist() == (beliefs @ exact).argmin(1).tolist()
    for name in ("euclidean", "absolute", "squared"):
        with pytest.raises(InputError, match='use "metres"'):
            resolve(name, Cells(5000, (48.8, 48.9, 2.3, 2.4)))
    for other in (Alphabet(["a", "b"]), Grid.regular(2, 2, (0, 1, 0, 1))):
        with pytest.raises(InputError, match=r"needs cells of the map.*with cell_metres=500"):
            resolve("metres", other)


def test_rows_of_many_places_are_computed_on_demand():
    rng = np.random.default_rng(2)
    where = rng.normal((48.85, 2.35), 0.1, (2100, 2))
    costs, distribution = metres(where), np.zeros(2100)
    distribution[[3, 700, 2000]] = 0.2, 0.5, 0.3
    want = sum(distribution[k] * haversine(where, where[k]) for k in (3, 700, 2000))
    assert costs.expected(distribution[None])[0] == pytest.approx(want, abs=1e-3)
    assert want[costs.best_guess(distribution[None])[0]] <= want.min() * 1.05


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
    cells = Cells(500, bounds, "nearest")
    wide = 0.06 / max(0.001, np.cos(np.radians(centre[0])))
    points = np.asarray(centre) + np.random.default_rng(0).uniform(-1, 1, (20_000, 2)) * [0.06, wide]
    points[:, 0], points[:, 1] = np.clip(points[:, 0], -90, 90), (points[:, 1] + 180) % 360 - 180
    near = points[haversine(points, np.asarray(centre)) <= metres]
    assert len(near) > 50
    assert set(cells.encode(near).tolist()) <= set(cells.within(centre, metres).tolist())


def test_a_zone_that_lies_off_the_map_has_no_cells():
    assert not Cells(500, (52.4, 52.6, 13.2, 13.5)).within((53.0, 13.3), 300).size
