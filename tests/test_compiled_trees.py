"""Trees of batches and best guesses come out the same, to the last bit, by compiled code and by numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import compiling
from compiling import restored  # noqa: F401 -- it restores after every test
from seqveil import MarkovModel, distortion
from seqveil.core import fast
from seqveil.core.coins import SeededCoins
from seqveil.core.mechanisms import Batch, questions, samples, tree, tree_ldp, trees

pytest.importorskip("numba", reason="the compiled path needs numba (pip install -e '.[fast]')")
pytestmark = pytest.mark.slow  # where nothing is compiled yet, that takes ten seconds


def use(compiled: bool) -> None:
    """Take batches by compiled code from now on, or by numpy."""
    compiling.use(compiled)
    assert fast.load(batches=True) == compiled


def chain_of(kind: str, n: int = 36) -> MarkovModel:
    """A chain that jumps anywhere, one that backs off, one of order 2, and a walk that rules most steps out."""
    rng = np.random.default_rng(4)
    if kind == "jumps":
        return MarkovModel(np.full(n, 1 / n), 0.8 * np.eye(n) + 0.2 * rng.dirichlet(np.full(n, 0.3), n))
    if kind == "walk":
        steps = np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)
        return MarkovModel(np.full(n, 1 / n), steps / steps.sum(1, keepdims=True))
    streams = list(rng.integers(0, n, (12, 30)))
    return MarkovModel.fit(streams, n=n, order=2 if kind == "order 2" else 1, smoothing=1.0)


def costs_of(name: str, n: int = 36) -> distortion.Distortion:
    """Costs of each kind over n symbols."""
    line = np.arange(n, dtype=float)
    if name == "euclidean":
        return distortion.euclidean(np.stack((line // 6, line % 6), axis=1))
    if name == "matrix":
        return distortion.matrix(np.sqrt(np.abs(line[:, None] - line)))
    return {
        "hamming": distortion.hamming(),
        "absolute": distortion.absolute(line),
        "squared": distortion.squared(line),
    }[name]


def releases(model, costs, mechanism, length, epsilon):
    """Everything that follows from the batches of two streams, as bytes."""
    trees.tree.clear(), trees.tree_ldp.clear()
    coins, found = SeededCoins(3), []
    for stream in model.sample(3 * length, 2, seed=1):
        states = model.initial
        for at in range(0, 3 * length, length):
            sent = mechanism.draw(Batch(model, states, length, epsilon, costs), stream[at : at + length], coins)
            states = sent.ahead
            found.append((sent.path, sent.codes.tolist(), sent.most, sent.least, states.tobytes()))
            assert max(sent.most, -sent.least) <= epsilon
    return found


CASES = [
    ("jumps", "hamming", tree, 11, 6.0),
    ("fitted", "hamming", tree_ldp, 10, 5.0),
    ("order 2", "hamming", tree, 9, 4.0),
    ("walk", "euclidean", tree, 10, 6.0),
    ("jumps", "squared", tree, 10, 5.0),
    ("fitted", "absolute", tree, 12, 3.0),
    ("jumps", "matrix", tree, 10, 3.0),
]


@pytest.mark.parametrize(("kind", "name", "mechanism", "length", "epsilon"), CASES)
def test_batches_are_the_same(kind, name, mechanism, length, epsilon):
    model, costs = chain_of(kind), costs_of(name)
    found = []
    for compiled in (True, False):
        use(compiled)
        found.append(releases(model, costs, mechanism, length, epsilon))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["hamming", "euclidean", "squared"])
def test_samples_are_judged_alike(name):
    use(True)
    code, rng, n = fast.trees(), np.random.default_rng(6), 36
    costs, levels = costs_of(name), [rng.permutation(n), rng.integers(0, 4, n), np.zeros(n, np.int64)]
    for count, length in itertools.product((1, 2, 10, 37, 300), (1, 2, 9, 20)):
        for codes in (rng.integers(0, n, (count, length)), np.full((count, length), 5), np.zeros((count, length), int)):
            ours, theirs = (samples.sample_of(levels, costs, codes, each) for each in (code, None))
            for one, other in zip(ours.gains(), theirs.gains(), strict=True):
                assert np.array_equal(one, other)
            weight = np.round(rng.random((6, count)) * samples.SCALE) / samples.SCALE
            assert np.array_equal(ours.both(weight), theirs.both(weight))
            half = np.arange(0, count, 2)
            assert np.array_equal(ours.part(half).both(weight[:, half]), theirs.part(half).both(weight[:, half]))


def test_cuts_are_the_same():
    use(True)
    code, rng = fast.trees(), np.random.default_rng(7)
    for size, share in itertools.product((1, 2, 3, 8, 100), (1e-14, 0.002, 0.05, 0.3, 0.49)):
        masses = rng.dirichlet(np.full(size, 0.2)) * rng.random()
        masses[rng.random(size) < 0.3] = 0.0
        mass, level = float(masses.sum()) or 1.0, rng.integers(0, size, 200)
        for aims in (None, samples.AIMS, samples.MANY_AIMS):
            found = [questions.cut(2, level, masses, mass, share * mass, aims, each) for each in (code, None)]
            for field in ("position", "levels", "place", "theta", "mass", "rest"):
                ours, theirs = (getattr(each, field) for each in found)
                assert np.array_equal(ours, theirs), field


@pytest.mark.parametrize("spread", [1e-3, 0.05, 5.0])
def test_the_middle_of_a_law_over_a_map_is_the_same_and_nearly_the_best(spread):
    side, rng = 40, np.random.default_rng(8)
    points = np.stack(np.divmod(np.arange(side**2), side), axis=1).astype(float)
    costs, laws = distortion.euclidean(points), rng.dirichlet(np.full(side**2, spread), 3)
    found = []
    for compiled in (True, False):
        use(compiled)
        found.append(costs.best_guess(laws))
    assert np.array_equal(*found)
    expected = costs.expected(laws)
    assert (expected[np.arange(3), found[0]] <= expected.min(1) * (1 + 1e-3)).all()


def test_numpy_alone_where_compiled_code_is_switched_off():
    use(False)
    assert fast.trees(10**6) is None
