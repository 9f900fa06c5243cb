"""Distortions: each rule against its formula, guesses against brute force, refusals that say why."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import streams as ref
from seqveil.core.alphabet import Alphabet, Grid
from seqveil.core.distortion import absolute, euclidean, hamming, matrix, resolve, squared
from seqveil.core.errors import InputError


def every_kind(rng, n):
    return {
        "hamming": hamming(),
        "absolute": absolute(rng.normal(size=n)),
        "squared": squared(rng.normal(size=n)),
        "euclidean": euclidean(rng.normal(size=(n, 2))),
        "matrix": matrix(rng.random((n, n))),
    }


def by_formula(kind, x, y):
    if kind.name == "hamming":
        return float(x != y)
    if kind.name == "matrix":
        return kind.table[x, y]
    if kind.name == "euclidean":
        return math.dist(kind.points[x], kind.points[y])
    gap = kind.points[x] - kind.points[y]
    return gap * gap if kind.name == "squared" else abs(gap)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 7))
def test_costs_expectations_and_guesses_equal_the_formula(seed, n):
    rng = np.random.default_rng(seed)
    beliefs = np.array([ref.random_belief(rng, n) for _ in range(5)])
    for kind in every_kind(rng, n).values():
        table = np.array([[by_formula(kind, x, y) for y in range(n)] for x in range(n)])
        np.testing.assert_allclose(kind.matrix(n), table, atol=1e-12)
        expected = np.array([[math.fsum(b * table[:, y]) for y in range(n)] for b in beliefs])
        np.testing.assert_allclose(kind.expected(beliefs), expected, atol=1e-12)
        guessed = np.take_along_axis(expected, kind.best_guess(beliefs)[:, None], 1)[:, 0]
        np.testing.assert_allclose(guessed, expected.min(1), atol=1e-12)


@pytest.mark.parametrize("make", [absolute, squared], ids=["absolute", "squared"])
@pytest.mark.parametrize("offset", [0.0, 1e6, 1.7e9])
def test_the_best_guess_does_not_depend_on_where_zero_is(make, offset):
    """Clock times are large numbers close together; the guess must not drown in their squares."""
    kind = make(offset + np.arange(4.0))
    assert kind.best_guess(np.eye(4)).tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(kind.expected(np.eye(4)), make(np.arange(4.0)).matrix(4), atol=1e-6)


def test_a_large_alphabet_is_summed_in_parts():
    rng = np.random.default_rng(2)
    kind, belief = euclidean(rng.random((2100, 2))), np.zeros((1, 2100))
    belief[0, [3, 700, 2099]] = [0.5, 0.3, 0.2]
    wanted = [sum(belief[0, x] * by_formula(kind, x, y) for x in (3, 700, 2099)) for y in range(0, 2100, 300)]
    np.testing.assert_allclose(kind.expected(belief)[0, ::300], wanted, atol=1e-12)


def test_names_take_positions_from_the_alphabet():
    numbers, words = Alphabet([10, 20, 40]), Alphabet(["a", "b"])
    assert resolve("absolute", numbers).between(0, 2) == 30
    assert resolve("squared", numbers).between(0, 1) == 100
    assert resolve("euclidean", numbers).between(1, 2) == 20
    assert resolve("hamming", words).is_hamming
    assert resolve([[0, 3], [1, 0]], words).between(0, 1) == 3
    with pytest.raises(InputError, match="numbers"):
        resolve("absolute", words)
    with pytest.raises(InputError, match="among"):
        resolve("cosine", words)


def test_a_grid_is_measured_in_the_plane():
    grid = Grid.regular(2, 2, bounds=(0, 6, 0, 8))
    kind = resolve("euclidean", grid)
    assert kind.between(grid.encode_one((1, 1)), grid.encode_one((5, 7))) == 5
    with pytest.raises(InputError, match="euclidean"):
        resolve("absolute", grid)


@pytest.mark.parametrize(
    ("make", "bad"),
    [(matrix, bad) for bad in ([[0, 1]], [[0, -1], [1, 0]], [[0, math.nan], [1, 0]], [[0, math.inf], [1, 0]])]
    + [(absolute, bad) for bad in ([], [1.0, math.nan], [[1.0], [2.0]])]
    + [
        (lambda other: resolve(other, Alphabet([1, 2, 3])), bad) for bad in (absolute([1, 2]), matrix(np.zeros((2, 2))))
    ],
)
def test_what_is_no_distortion_of_the_alphabet_is_refused(make, bad):
    with pytest.raises(InputError):
        make(bad)


def test_costs_and_guesses_do_not_depend_on_the_other_beliefs():
    """To the last bit; ties are common on grids, and who else is in a fleet must not decide them."""
    side, rng = 18, np.random.default_rng(4)
    grid = euclidean(np.array([(x, y) for x in range(side) for y in range(side)], float))
    even = np.zeros((3, side**2))
    even[0, [0, 1]], even[1, [20, 22, 56, 58]], even[2] = 0.5, 0.25, 1 / side**2
    crowds = [(grid, np.concatenate((rng.dirichlet(np.full(side**2, 0.05), 12), even)))]
    crowds += [(kind, rng.dirichlet(np.ones(9), 20)) for kind in every_kind(rng, 9).values()]
    for kind, beliefs in crowds:
        together, guesses = kind.expected(beliefs), kind.best_guess(beliefs)
        for row, belief in enumerate(beliefs):
            assert together[row].tolist() == kind.expected(belief[None])[0].tolist()
            assert guesses[row] == int(kind.best_guess(belief))
