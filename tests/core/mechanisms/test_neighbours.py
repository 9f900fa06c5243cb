"""Cells of neighbours against a twin that halves all cells at once with sorted arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import restored, use  # noqa: F401 -- it restores after every test
from seqveil.core import filtering
from seqveil.core.distortion import euclidean, hamming
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.leakage import Leakages
from seqveil.core.mechanisms.base import Asked
from seqveil.core.mechanisms.blocks import BlockRule, Blocks, Question, follow, release
from seqveil.core.mechanisms.neighbours import ROUNDING, near_table
from seqveil.core.model import MarkovModel


def even_cut(belief, line, members, least):
    """The most even cut of a cell along a line that leaves both halves their mass: the largest value kept, or None."""
    order = members[np.argsort(line[members], kind="stable")]
    below, mass = np.cumsum(belief[order]), belief[order].sum()
    fits = (below >= least) & (mass - below >= least)
    fits[:-1] &= line[order][1:] > line[order][:-1]
    fits[-1] = False
    return None if not fits.any() else line[order[np.where(fits, np.abs(below - mass / 2), np.inf).argmin()]]


def twin(belief, points, least):
    """The cells as sets of symbols."""
    todo, done = [np.arange(len(belief))], []
    while todo:
        members = todo.pop()
        mass = belief[members].sum()
        cut = None
        if mass >= 2 * least:
            mean = belief[members] @ points[members] / mass
            for axis in np.argsort(-(belief[members] @ (points[members] - mean) ** 2), kind="stable"):
                cut = even_cut(belief, points[:, axis], members, least)
                if cut is not None:
                    beyond = points[members, axis] > cut
                    todo += [members[~beyond], members[beyond]]
                    break
        if cut is None:
            done.append(frozenset(members.tolist()))
    return set(done)


def cells(belief, points, cap, first=0.0):
    n = len(belief)
    model = MarkovModel(np.full(n, 1 / n), np.full((n, n), 1 / n))
    rule = BlockRule(model, 3.0, 1, euclidean(points), (Question(8, 8),))
    made = tuple([0] * n for _ in range(7))
    count, everything = near_table(belief.tolist(), *(each.tolist() for each in rule.places), cap, first, *made)
    assert everything == pytest.approx(belief.sum())
    return count, [np.array(each) for each in made]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.integers(1, 3), st.floats(0.01, 0.6), st.integers(0, 10_000))
def test_cells_are_those_of_the_twin_and_keep_their_mass(n, axes, cap, seed):
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.full(n, 0.4)) + 1e-9
    points = rng.integers(0, 8, (n, axes)).astype(float) if seed % 2 else rng.normal(size=(n, axes))
    count, (labels, base, classes, masses, owners, places, extras) = cells(belief, points, cap, 0.25)
    found = {frozenset(np.flatnonzero(classes == k).tolist()) for k in range(count)}
    assert found == twin(belief, points, cap * belief.sum() * (1 + ROUNDING))
    assert np.allclose([belief[classes == k].sum() for k in range(count)], masses[:count])
    assert (masses[:count] >= cap * belief.sum()).all() or count == 1
    assert (np.diff(masses[:count]) <= 0).all()
    assert owners[:count].tolist() == places[:count].tolist() == list(range(count))
    assert (base[0], base[1:].any()) == (DENOMINATOR // 4, False)
    assert (extras[:count] + base[0] == DENOMINATOR).all()
    for k in range(count):
        inside = np.flatnonzero(classes == k)
        mean = belief[inside] @ points[inside] / belief[inside].sum()
        far = ((points[inside] - mean) ** 2).sum(1)
        assert far[inside == labels[k]].item() <= far.min() + 1e-9


def test_no_more_cells_than_there_is_room_for():
    made = tuple([0] * 3 for _ in range(7))
    assert near_table([0.25] * 4, [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3], 0.1, 0.0, *made[:2], [0] * 4, *made[3:])[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_events_of_blocks_are_the_same_to_the_last_bit_in_either_form(axes):
    """Cells of the closed form (no axes) and of neighbours: what is released, and the columns and weights behind it."""
    rng, n, users, found = np.random.default_rng(axes), 12, 200, []
    rows = np.maximum(rng.dirichlet(np.full(n, 0.4), n), 1e-4)
    model = MarkovModel(rng.dirichlet(np.ones(n)), rows / rows.sum(1, keepdims=True))
    costs = euclidean(rng.normal(size=(n, axes))) if axes else hamming()
    rule = BlockRule(model, 4.0, 3, costs, (Question(4, 7), Question(8, 8), Question(8, 8)))
    truth, draws = rng.integers(0, n, (3, users)), rng.integers(0, DENOMINATOR, (3, users))
    real, everyone = rng.random(users) < 0.7, np.ones(users, bool)
    for translated in (True, False):
        use(translated)
        states, account = filtering.start(model, users), Leakages.start(model, users)
        running = Blocks.start(rule, users).begin(rule, everyone, np.full(users, 4.0), states, account)
        for codes, drawn in zip(truth, draws, strict=True):
            made = release(rule, running, states, Asked(codes, drawn), real)
            found += [made.codes, made.columns, made.drawn]
            states, running, _ = follow(rule, running, made)
    for one, two in zip(found[:9], found[9:], strict=True):
        assert (one == two).all()
    assert np.unique(found[0]).size > 2
