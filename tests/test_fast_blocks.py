"""Compiled code takes users in blocks of 8 and 32: whoever else is in a call, and however many, changes no bit."""

from __future__ import annotations

import numpy as np
import pytest

from compiling import restored  # noqa: F401 -- it restores after every test
from seqveil import MarkovModel
from seqveil.core import fast, filtering
from seqveil.core.distortion import hamming
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import optimal

pytest.importorskip("numba", reason="the compiled path needs numba (pip install -e '.[fast]')")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("users", [2, 8, 31, 32, 33, 41, 70])
def test_releases_of_several_blocks_are_those_of_each_user_alone(users):
    assert fast.load()
    rng, n = np.random.default_rng(users), 300
    beliefs = rng.dirichlet(np.full(n, 0.1), users)
    truths, thrown = rng.integers(0, n, users), rng.integers(0, DENOMINATOR, users)
    together = fast.release(optimal, beliefs, 2.0, hamming(), truths, thrown)
    assert together is not None
    for k in range(users):
        one = slice(k, k + 1)
        alone = fast.release(optimal, beliefs[one], 2.0, hamming(), truths[one], thrown[one])
        assert alone.left.size == (k in together.left)
        if not alone.left.size:
            assert alone.codes[0] == together.codes[k]
            assert (alone.columns[0] == together.columns[k]).all()


def chain(n: int, smoothing: float, rng: np.random.Generator) -> MarkovModel:
    """A sparse chain that visits every symbol."""
    return MarkovModel.fit([np.append(rng.permutation(n), rng.integers(0, n, 2 * n))], n=n, smoothing=smoothing)


@pytest.mark.parametrize("n", [129, 136, 257, 1031])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_laws_led_on_in_blocks_are_numpys(n, smoothing):
    assert fast.load()
    rng = np.random.default_rng(n)
    model = chain(n, smoothing, rng)
    laws = rng.dirichlet(np.full(model.size, 0.5), 17)
    weights = rng.integers(1, DENOMINATOR >> 8, (17, n))
    for columns in (weights, weights / weights.max(1, keepdims=True)):
        posterior, marginal = filtering.condition(model, laws, columns)
        wanted = model.advance(posterior)
        wanted /= wanted.sum(1, keepdims=True)
        for users in (1, 3, 4, 5, 8, 9, 12, 13, 16, 17):
            found = fast.update(model, laws[:users], columns[:users])
            assert found is not None
            ahead, mean, *extremes = found
            assert (ahead == wanted[:users]).all()
            assert (mean == marginal[:users]).all()
            if columns is weights:
                assert (extremes[0] == columns[:users].min(1)).all()
                assert (extremes[1] == columns[:users].max(1)).all()


@pytest.mark.parametrize("n", [129, 136, 1031])
def test_laws_led_back_in_blocks_are_numpys(n):
    assert fast.load()
    rng = np.random.default_rng(n)
    model = chain(n, 0.5, rng)
    values = rng.random((17, model.size))
    jump = (values[:, model.base_state] * model.base).sum(1)
    wanted = [model.chain @ row + model.backoff * jump[k] for k, row in enumerate(values)]
    for users in (1, 4, 5, 8, 9, 13, 16, 17):
        assert (fast.pull(model, values[:users], jump[:users]) == wanted[:users]).all()


def test_sums_are_numpys_whatever_their_number():
    from seqveil.core import compiled, compiled_laws

    rng = np.random.default_rng(3)
    for count in (1, 7, 8, 9, 127, 128, 129, 136, 255, 257, 1000, 1025, 5135, 20_011):
        values = rng.random((count, 8)) ** 8
        out, lanes = np.empty(8), np.empty(8)
        compiled_laws._sums(values, out)
        compiled.lane_sums(values, lanes)
        wanted = np.ascontiguousarray(values.T).sum(1)
        assert (out == wanted).all()
        assert (lanes == wanted).all()
        assert compiled.total(np.ascontiguousarray(values[:, 0]), count) == wanted[0]


def test_generated_code_refuses_rows_that_are_not_in_order():
    from seqveil.core import compiled_laws

    with pytest.raises(Exception, match="rows follow one another"):
        compiled_laws._side_by_side(np.asfortranarray(np.ones((8, 16))), 0, np.empty((16, 8)))
