"""Our reading of Algorithm 2: a kernel at every step, its leakage as it is, and never better than the optimum."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.batches import check_kernel, check_release, every_batch, expected, random_model
from seqveil.core.distortion import absolute, hamming
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import Batch, batch_lp, published
from seqveil.core.mechanisms import batch_descent as MECHANISM
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness


def plain_descent(belief, costs, epsilon, step):
    """The same reading, one move and one whole column at a time."""
    count = len(belief)
    table, active = np.full((count, count), 1.0 / count), np.ones((count, count), bool)

    def broken(column):
        lifts = column / (belief @ column)
        return lifts.max() > math.exp(epsilon) or lifts.min() < math.exp(-epsilon)

    moving = True
    while moving:
        moving = False
        for o in range(count):
            cells = [r for r in range(count) if active[o, r]]
            if not cells:
                continue
            target = min(cells, key=lambda r: (costs[o, r], r))
            for r in sorted((r for r in cells if costs[o, r] > costs[o, target]), key=lambda r: (-costs[o, r], r)):
                moving = True
                moved = min(step / count, table[o, r])
                before = table[:, [r, target]].copy()
                table[o, r] -= moved
                if broken(table[:, r]):
                    active[o, r] = False
                    table[:, [r, target]] = before
                    continue
                if not active[o, target]:
                    table[:, [r, target]] = before
                    continue
                table[o, target] += moved
                if broken(table[:, target]):
                    active[o, target] = False
                    table[:, [r, target]] = before
    return table


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([0.25, 1.0, 3.0]), st.sampled_from([0.05, 0.2, 1.0]))
def test_rows_at_once_are_moves_one_by_one(seed, count, epsilon, step):
    generator = np.random.default_rng(seed)
    belief = generator.dirichlet(np.ones(count))
    costs = generator.random((count, count)) * (1.0 - np.eye(count))
    ours = published.descend(belief, costs, epsilon, step)
    np.testing.assert_allclose(ours, plain_descent(belief, costs, epsilon, step), atol=1e-9)


def table_of(batch):
    """Q over all of X^w, possible or not."""
    book = MECHANISM.rule(batch).draw(np.zeros(batch.length, np.int64), SeededRandomness(0)).book
    batches, _ = every_batch(batch.model, batch.length)
    return book.table[[book.rows.row(o) for o in batches]]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_within_the_bound_and_never_better_than_the_optimum(epsilon):
    assert not MECHANISM.sound  # whatever it keeps here
    for seed, (n, length) in enumerate([(2, 2), (3, 2), (2, 4)]):
        for distortion in (hamming(), absolute(np.arange(n))):
            model = random_model(np.random.default_rng(seed), n)
            batch = Batch(model, model.initial, length, epsilon, distortion)
            table = table_of(batch)
            check_kernel(batch, table, epsilon)
            assert expected(MECHANISM, batch) >= expected(batch_lp, batch) - 1e-9
            _, walks = every_batch(model, length)
            marginal = np.einsum("s,ose->o", batch.states, walks) @ table
            sent = MECHANISM.rule(batch).draw(np.zeros(length, np.int64), SeededRandomness(seed))
            assert -epsilon - 1e-9 <= sent.least <= sent.most <= epsilon + 1e-9
            check_release(batch, sent, table[:, sent.path[0]] / marginal[sent.path[0]])


def test_refusals():
    model = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    with pytest.raises(InputError, match=r'at most 300 possible batches.*use mechanism="tree"'):
        MECHANISM.rule(Batch(model, model.initial, 6, 1.0, hamming()))
