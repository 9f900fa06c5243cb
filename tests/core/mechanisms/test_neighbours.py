"""The line from neighbour to neighbour, and its pieces against a twin that cuts it with arrays."""

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
from seqveil.core.mechanisms.blocks import BlockRule, Blocks, after, release
from seqveil.core.mechanisms.closed_form import room_for
from seqveil.core.mechanisms.neighbours import ROUNDING, line, near_table
from seqveil.core.model import MarkovModel


@pytest.mark.parametrize(("axes", "side"), [(1, 64), (2, 32), (3, 8)])
def test_the_line_goes_from_neighbour_to_neighbour(axes, side):
    points = np.stack(np.meshgrid(*[np.arange(side)] * axes), -1).reshape(-1, axes).astype(float)
    order = line(points)
    assert sorted(order.tolist()) == list(range(side**axes))
    assert (np.abs(np.diff(points[order], axis=0)).sum(1) == 1).all()


def twin(belief, order, least):
    """The cells as sets of symbols: pieces of the line, each ended as soon as it and what is left have their mass."""
    done, piece = [], []
    for k, x in enumerate(order.tolist()):
        piece.append(x)
        if belief[piece].sum() >= least and belief[order[k + 1 :]].sum() >= least:
            done.append(frozenset(piece))
            piece = []
    return {*done, frozenset(piece)}


def cells(belief, points, cap, first=0.0):
    rows, entries, _ = room_for(len(belief), len(belief))
    places, order = points.T.ravel().tolist(), line(points).tolist()
    count, everything = near_table(belief.tolist(), places, order, cap, first, rows, entries)
    assert everything == pytest.approx(belief.sum())
    return count, [np.array(each) for each in (*rows, *entries[:3])]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.integers(1, 3), st.floats(0.01, 0.6), st.integers(0, 10_000))
def test_cells_are_those_of_the_twin_and_keep_their_mass(n, axes, cap, seed):
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.full(n, 0.4)) + 1e-9
    points = rng.integers(0, 8, (n, axes)).astype(float) if seed % 2 else rng.normal(size=(n, axes))
    count, (labels, base, classes, masses, owners, places, extras) = cells(belief, points, cap, 0.25)
    found = {frozenset(np.flatnonzero(classes == k).tolist()) for k in range(count)}
    assert found == twin(belief, line(points), cap * belief.sum() * (1 + ROUNDING))
    assert np.allclose([belief[classes == k].sum() for k in range(count)], masses[:count])
    assert (masses[:count] >= cap * belief.sum()).all() or count == 1
    assert owners[:count].tolist() == places[:count].tolist() == list(range(count))
    assert base[masses[:count].argmax()] == base.sum() == DENOMINATOR // 4
    assert (extras[:count] + base.sum() == DENOMINATOR).all()
    for k in range(count):
        inside = np.flatnonzero(classes == k)
        mean = belief[inside] @ points[inside] / belief[inside].sum()
        far = ((points[inside] - mean) ** 2).sum(1)
        assert far[inside == labels[k]].item() <= far.min() + 1e-9


def test_no_more_cells_than_there_is_room_for():
    rows, entries, _ = room_for(4, 3)
    assert near_table([0.25] * 4, [0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3], 0.1, 0.0, rows, entries)[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_events_of_blocks_are_the_same_to_the_last_bit_in_either_form(axes):
    """Cells of the closed form (no axes) and of neighbours: what is released, and the columns and weights behind it."""
    rng, n, users, found = np.random.default_rng(axes), 12, 200, []
    rows = np.maximum(rng.dirichlet(np.full(n, 0.4), n), 1e-4)
    model = MarkovModel(rng.dirichlet(np.ones(n)), rows / rows.sum(1, keepdims=True))
    costs = euclidean(rng.normal(size=(n, axes))) if axes else hamming()
    rule = BlockRule(model, 4.0, 3, costs, (7, 8, 8))
    truth, draws = rng.integers(0, n, (3, users)), rng.integers(0, DENOMINATOR, (3, users))
    real, everyone = rng.random(users) < 0.7, np.ones(users, bool)
    for translated in (True, False):
        use(translated)
        states, account = filtering.start(model, users), Leakages.start(model, users)
        running = Blocks.start(rule, users).begin(rule, everyone, np.full(users, 4.0), states, account)
        for codes, drawn in zip(truth, draws, strict=True):
            made = release(rule, running, states, Asked(codes, drawn), real)
            found += [made.codes, made.columns, made.drawn]
            states, account, running = after(rule, running, made, account)
    for one, two in zip(found[:9], found[9:], strict=True):
        assert (one == two).all()
    assert np.unique(found[0]).size > 2
