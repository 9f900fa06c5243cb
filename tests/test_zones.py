"""A zone as a secret counts every cell that somebody in it can be in, on a flat grid as on the map."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqveil as sv
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import InputError
from seqveil.core.secrets.declared import codes_within

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
