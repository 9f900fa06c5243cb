"""The exact optimum over batches against enumeration, the full LP and the symbol-by-symbol optimum."""

import numpy as np
import pytest

from reference.batches import (
    FixedCoins,
    check_kernel,
    check_release,
    every_batch,
    expected,
    random_model,
    sequence_leakage,
)
from reference.optimum import full_lp
from seqveil.core.distortion import absolute, hamming
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import Batch, batch_lp, optimal
from seqveil.core.mechanisms.codebook import support
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness


def table_of(batch):
    """Q over all of X^w, possible or not."""
    book = batch_lp.rule(batch)
    batches, _ = every_batch(batch.model, batch.length)
    return book.table[[book.rows.row(o) for o in batches]]


def a_batch(seed, n, length, epsilon, order=1, distortion=None, zeros=True):
    generator = np.random.default_rng(seed)
    model = random_model(generator, n, order, zeros)
    states = model.initial
    for _ in range(int(generator.integers(3))):
        states = model.advance(states)
    return Batch(model, states / states.sum(), length, epsilon, distortion or hamming())


CASES = [
    (seed, n, length, epsilon)
    for seed, (n, length) in enumerate([(2, 1), (2, 4), (3, 2), (4, 2)])
    for epsilon in (0.25, 1.0, 3.0)
]


def test_support_is_what_enumeration_finds():
    for seed in range(16):
        order = 1 + seed % 2
        batch = a_batch(seed, 2 + seed % 2, 1 + seed % 4, 1.0, order)
        batches, walks = every_batch(batch.model, batch.length)
        belief = np.einsum("s,ose->o", batch.states, walks)
        found = support(batch, 1000)
        np.testing.assert_array_equal(found.batches, batches[belief > 0])
        np.testing.assert_allclose(found.mass, belief[belief > 0], rtol=1e-12)


def test_support_joins_walks_that_back_off():
    """A smoothed model of order 2 shows one batch by several walks."""
    model = MarkovModel.fit([[0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0]], order=2, smoothing=0.5)
    batch = Batch(model, model.advance(model.initial), 3, 1.0, hamming())
    _, walks = every_batch(model, 3)
    found = support(batch, 1000)
    assert len(found.walks) > len(found.batches) == 8
    np.testing.assert_allclose(found.mass, np.einsum("s,ose->o", batch.states, walks), rtol=1e-12)
    for index in range(len(batch_lp.rule(batch).labels)):
        lifts = table_of(batch)[:, index]
        check_release(batch, batch_lp.rule(batch).read((index,)), lifts / (found.mass @ lifts))


@pytest.mark.parametrize(("seed", "n", "length", "epsilon"), CASES)
def test_sound_for_every_batch_and_exact_for_the_receiver(seed, n, length, epsilon):
    assert (batch_lp.sound, batch_lp.ldp) == (True, 2.0)
    for order in (1, 2):
        batch = a_batch(100 + seed, n, length, epsilon, order)
        table = table_of(batch)
        check_kernel(batch, table, epsilon)
        _, walks = every_batch(batch.model, length)
        marginal = np.einsum("s,ose->o", batch.states, walks) @ table
        for index in np.flatnonzero(marginal > 0)[:6]:
            sent = batch_lp.rule(batch).read((int(index),))
            assert sent.path == (index,)
            assert -epsilon <= sent.least <= sent.most <= epsilon
            check_release(batch, sent, table[:, index] / marginal[index])


@pytest.mark.parametrize(("seed", "n", "length", "epsilon"), CASES)
def test_cost_is_that_of_the_full_program(seed, n, length, epsilon):
    for distortion in (hamming(), absolute(np.arange(n) ** 1.5)):
        batch = a_batch(200 + seed, n, length, epsilon, distortion=distortion)
        batches, walks = every_batch(batch.model, length)
        belief = np.einsum("s,ose->o", batch.states, walks)
        costs = distortion.between(batches[:, None], batches[None]).sum(2)
        exact, _ = full_lp(belief[belief > 0], epsilon, costs[belief > 0])
        assert expected(batch_lp, batch) == pytest.approx(exact, abs=5e-9)


def test_labels_that_cannot_occur_may_be_the_best():
    """01, 12 and 20 alone can occur; with little to tell, 11 is nearest to all of them."""
    model = MarkovModel(np.full(3, 1 / 3), [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    batch = Batch(model, model.initial, 2, 0.1, absolute([0.0, 1.0, 2.0]))
    support_only, _ = full_lp(np.full(3, 1 / 3), 0.1, support(batch, 9).costs(np.array([[0, 1], [1, 2], [2, 0]])))
    assert expected(batch_lp, batch) < support_only - 0.01
    assert [1, 1] in batch_lp.rule(batch).labels.tolist()


def test_few_batches_of_a_large_alphabet_are_solved_over_themselves():
    """Ten batches of a million can occur: which of them it was is all there is to tell."""
    model = MarkovModel(np.full(10, 0.1), np.roll(np.eye(10), 1, axis=1))
    once = optimal.kernels(model.initial[None], 1.0).one(0).error(model.initial, hamming())
    book = batch_lp.rule(Batch(model, model.initial, 6, 1.0, hamming()))
    costs = book.rows.mass[:, None] * book.table * book.rows.costs(book.labels)
    assert costs.sum() == pytest.approx(6 * once, abs=1e-8)


def test_sequences_reach_the_sum():
    """The bound is not idle: independent fair randomness leak all of it."""
    model = MarkovModel([0.5, 0.5], np.full((2, 2), 0.5))
    leakage = sequence_leakage(
        model, 1, (0.5, 0.5), hamming(), table_of, lambda batch, path: batch_lp.rule(batch).read(path)
    )
    assert leakage == pytest.approx(1.0, abs=1e-6)


def test_randomness_fall_where_the_integers_say():
    batch = a_batch(3, 3, 2, 1.0)
    book = batch_lp.rule(batch)
    impossible = [o for o in every_batch(batch.model, 2)[0].tolist() if o not in book.rows.batches.tolist()]
    assert impossible
    for o in [*book.rows.batches[:3].tolist(), impossible[0]]:
        row = book.rows.row(np.array(o))
        steps = np.cumsum([int(book.kernels.column(np.array([y]))[0, row]) for y in range(len(book.labels))])
        assert steps[-1] == DENOMINATOR
        for y in np.flatnonzero(np.diff(steps, prepend=0)):
            below = int(steps[y - 1]) if y else 0
            for uniform in (below, int(steps[y]) - 1):
                assert batch_lp.rule(batch).draw(np.array(o), FixedCoins(uniform)).path == (y,)


def test_an_impossible_batch_goes_with_the_nearest_possible_one():
    model = MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    wrong, far = (support(Batch(model, model.initial, 2, 1.0, each), 9) for each in (hamming(), absolute([0, 1, 2])))
    assert wrong.batches.tolist() == [[0, 0], [0, 1]]
    assert wrong.row(np.array([2, 1])) == 1
    assert wrong.row(np.array([2, 2])) == 0  # a tie: the first
    assert far.row(np.array([2, 2])) == 1


def test_equal_contexts_are_solved_once():
    model = random_model(np.random.default_rng(0), 3)
    first, second = (Batch(model, model.initial.copy(), 2, 1.0, hamming()) for _ in range(2))
    assert batch_lp.rule(first) is batch_lp.rule(second)
    assert batch_lp.rule(Batch(model, model.initial, 2, 1.1, hamming())) is not batch_lp.rule(first)
    other = Batch(model, model.initial, 2, 1.0, absolute([0.0, 1.0, 2.0]))
    assert batch_lp.rule(other) is not batch_lp.rule(first)


def test_no_epsilon_no_information():
    batch = a_batch(5, 3, 2, 1e-12)
    sent = batch_lp.rule(batch).draw(np.array([0, 1]), SeededRandomness(0))
    assert sent.path == (0,)
    assert abs(sent.most) < 1e-9
    np.testing.assert_allclose(sent.posterior, batch.model.advance(batch.states), atol=1e-12)


def test_size_is_refused_with_the_remedy():
    model = MarkovModel(np.full(100, 0.01), np.full((100, 100), 0.01))
    with pytest.raises(InputError, match=r'10\^40 batches; use mechanism="tree"'):
        batch_lp.rule(Batch(model, model.initial, 20, 1.0, hamming()))
    small = MarkovModel(np.full(3, 1 / 3), np.full((3, 3), 1 / 3))
    with pytest.raises(InputError, match=r'up to 729 batches; use mechanism="tree"'):
        batch_lp.rule(Batch(small, small.initial, 6, 1.0, hamming()))


def test_paths_that_cannot_be_are_refused():
    batch = a_batch(7, 2, 2, 1.0)
    for path in ((), (-1,), (99,), (0, 0)):
        with pytest.raises(InputError, match="expected a path"):
            batch_lp.rule(batch).read(path)
