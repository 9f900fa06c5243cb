"""The program on leaves: sound for every batch whatever the leaves, exact for the receiver, close to the optimum."""

import itertools

import numpy as np
import pytest
from scipy.stats import chi2

from reference_batches import FixedCoins, check_kernel, check_release, every_batch, random_model, sequence_leakage
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import absolute, euclidean, hamming
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.mechanisms import Batch, batch_lp, program, tree, tree_refined
from seqveil.core.mechanisms import leaves as leaves_module
from seqveil.core.mechanisms.leaves import Leaves, better, grow, refine
from seqveil.core.model import Counts, MarkovModel


def random_boxes(generator, length, n, count):
    """Soft boxes that add up to one, by random splits, hard and soft."""
    boxes = [np.ones((length, n))]
    while len(boxes) < count:
        box = boxes.pop(int(generator.integers(len(boxes))))
        share = generator.choice([0.0, 1.0, generator.random()], n)
        position = int(generator.integers(length))
        for side in (share, 1.0 - share):
            child = box.copy()
            child[position] *= side
            boxes.append(child)
    return np.array(boxes)


def shares_of(leaves):
    batches, _ = every_batch(leaves.batch.model, leaves.batch.length)
    return np.array([leaves.shares(o) for o in batches]) / DENOMINATOR


def table_of(refined):
    """Q over all of X^w, possible or not."""
    columns = [refined.kernels.column(np.array([y]))[0] for y in range(len(refined.labels))]
    return shares_of(refined.rows) @ (np.stack(columns, axis=1) / DENOMINATOR)


def a_batch(seed, n, length, epsilon, order=1, distortion=None):
    model = random_model(np.random.default_rng(seed), n, order)
    states = model.advance(model.initial)
    return Batch(model, states / states.sum(), length, epsilon, distortion or hamming())


CASES = [
    (seed, n, length, epsilon, order)
    for seed, (n, length) in enumerate([(2, 1), (2, 3), (2, 4), (3, 2), (3, 3), (5, 2)])
    for epsilon, order in ((0.4, 1), (1.0, 2), (3.0, 1))
]


@pytest.mark.parametrize(("seed", "n", "length", "epsilon", "order"), CASES)
def test_any_leaves_give_a_sound_release(seed, n, length, epsilon, order):
    generator = np.random.default_rng(seed)
    batch = a_batch(seed, n, length, epsilon, order)
    leaves = Leaves(batch, random_boxes(generator, length, n, 9))
    refined = refine(leaves)
    table = table_of(refined)
    check_kernel(batch, table, epsilon)
    batches, walks = every_batch(batch.model, length)
    belief = np.einsum("s,ose->o", batch.states, walks)
    np.testing.assert_allclose(leaves.mass, belief @ shares_of(leaves), atol=1e-12)
    costs = batch.distortion.between(batches[:, None], refined.labels[None]).sum(2)
    assert refined.expected == pytest.approx((belief[:, None] * table * costs).sum(), abs=1e-12)
    marginal = belief @ table
    for index in np.flatnonzero(marginal > 0)[:5]:
        sent = refined.read((int(index),))
        assert -epsilon <= sent.least <= sent.most <= epsilon
        check_release(batch, sent, table[:, index] / marginal[index])


def test_smoothed_models_too():
    counts = Counts(n=3, order=2)
    counts.add(["a"] * 12, [0, 0, 1, 0, 2, 1, 1, 0, 1, 2, 1, 0])
    model = counts.model(smoothing=0.5)
    batch = Batch(model, model.advance(model.initial), 2, 1.0, hamming())
    refined = refine(Leaves(batch, random_boxes(np.random.default_rng(1), 2, 3, 8)))
    table, (_, walks) = table_of(refined), every_batch(model, 2)
    marginal = np.einsum("s,ose->o", batch.states, walks) @ table
    for index in range(len(refined.labels)):
        check_release(batch, refined.read((index,)), table[:, index] / marginal[index])


@pytest.mark.slow
@pytest.mark.parametrize("batches", [2, 3])
def test_sequences_leak_no_more_than_the_sum(batches):
    for seed in range(4):
        model = random_model(np.random.default_rng(seed), 2, zeros=bool(seed % 2))
        boxes = random_boxes(np.random.default_rng(seed), 2, 2, 5)

        def refined_of(batch, boxes=boxes):
            return refine(Leaves(batch, boxes))

        epsilons = (0.7, 1.5, 0.4)[:batches]
        worst = sequence_leakage(
            model, 2, epsilons, hamming(), lambda b: table_of(refined_of(b)), lambda b, path: refined_of(b).read(path)
        )
        assert worst <= sum(epsilons)


@pytest.mark.slow
@pytest.mark.parametrize("distortion", [hamming(), absolute([0.0, 1.0, 4.0]), euclidean([[0, 0], [0, 1], [2, 0]])])
def test_leaves_are_a_partition_of_all_batches(distortion):
    for seed in range(6):
        batch = a_batch(seed, 3, 3, 1.0, 1 + seed % 2, distortion)
        batches, walks = every_batch(batch.model, 3)
        possible = int((np.einsum("s,ose->o", batch.states, walks) > 0).sum())
        for count in (1, 2, 5, 1000):
            leaves = grow(batch, count)
            shares = leaves.weights[:, np.arange(3), batches].prod(2)
            assert set(np.unique(shares)) <= {0.0, 1.0}
            np.testing.assert_array_equal(shares.sum(0), 1.0)
            assert len(leaves.weights) <= count
            assert leaves.mass.min() > 0.0
        assert len(leaves.weights) == possible


@pytest.mark.slow
def test_more_leaves_never_cost_more():
    batch = a_batch(2, 3, 4, 2.0)
    costs = [refine(grow(batch, count)).expected for count in (1, 2, 4, 8, 16, 100)]
    assert all(finer <= coarser + 1e-9 for coarser, finer in itertools.pairwise(costs))
    assert costs[-1] == pytest.approx(batch_lp.expected(batch), abs=1e-8)


def test_many_symbols_are_cut_at_few_borders():
    n = 40
    model = MarkovModel(np.full(n, 1 / n), np.full((n, n), 1 / n))
    for distortion in (hamming(), absolute(np.arange(n))):
        leaves = grow(Batch(model, model.initial, 2, 1.0, distortion), 12)
        assert len(leaves.weights) == 12
        codes = np.random.default_rng(0).integers(n, size=(200, 2))
        np.testing.assert_array_equal(leaves.weights[:, np.arange(2), codes].prod(2).sum(0), 1.0)


def test_every_batch_a_leaf_is_the_exact_optimum():
    for seed, distortion in enumerate((hamming(), absolute([0.0, 1.0, 4.0]))):
        batch = a_batch(seed, 3, 2, 1.5, distortion=distortion)
        batches, _ = every_batch(batch.model, 2)
        refined = refine(Leaves(batch, np.eye(3)[batches]))
        assert refined.expected == pytest.approx(batch_lp.expected(batch), abs=1e-9)


@pytest.mark.slow
def test_labels_of_leaves_are_improved_to_the_optimum(monkeypatch):
    """Starting from the leaves' own reproductions alone, relabelling must not end worse than they are."""
    monkeypatch.setattr(leaves_module, "MOST_LABELS", 1)
    for seed in range(6):
        batch = a_batch(seed, 3, 3, 1.0)
        leaves = Leaves(batch, random_boxes(np.random.default_rng(seed), 3, 3, 12))
        refined = refine(leaves)
        own = np.unique(leaves.guesses(np.eye(12)), axis=0)
        fixed = program.solve(leaves.mass, 1.0, leaves.costs(own))
        assert refined.expected <= fixed.error + 1e-8
        assert refined.expected >= batch_lp.expected(batch) - 1e-9


def test_coins_fall_where_the_integers_say():
    batch = a_batch(3, 3, 2, 1.0)
    refined = refine(Leaves(batch, random_boxes(np.random.default_rng(2), 2, 3, 6)))
    for o in every_batch(batch.model, 2)[0]:
        steps = np.cumsum(refined.rows.shares(o))
        assert steps[-1] == DENOMINATOR
        for leaf in np.flatnonzero(np.diff(steps, prepend=0)):
            inner = np.cumsum([refined.kernels.column(np.array([y]))[0, leaf] for y in range(len(refined.labels))])
            for y in np.flatnonzero(np.diff(inner, prepend=0)):
                edge = int(inner[y]) - 1
                below = int(steps[leaf - 1]) if leaf else 0
                for outer in (below, int(steps[leaf]) - 1):
                    assert refined.draw(o, FixedCoins(outer, edge)).path == (y,)


@pytest.mark.slow
def test_draws_follow_the_table():
    """Chi-square; false alarm 1e-6."""
    batch = a_batch(8, 2, 3, 1.5)
    refined = refine(Leaves(batch, random_boxes(np.random.default_rng(4), 3, 2, 7)))
    coins, wanted = SeededCoins(5), 4000 * table_of(refined)[3]
    drawn = np.bincount([refined.draw(np.array([0, 1, 1]), coins).path[0] for _ in range(4000)], minlength=len(wanted))
    used = wanted > 0
    assert not drawn[~used].any()
    assert ((drawn - wanted)[used] ** 2 / wanted[used]).sum() <= chi2.isf(1e-6, max(1, used.sum() - 1))


def test_one_leaf_or_no_epsilon_tells_nothing():
    for epsilon, count in ((1e-13, 4), (1.0, 1)):
        batch = a_batch(1, 3, 2, epsilon)
        refined = refine(Leaves(batch, random_boxes(np.random.default_rng(0), 2, 3, count)))
        assert len(refined.labels) == 1
        assert refined.read((0,)).most < 1e-9
        with pytest.raises(InputError, match="expected a path"):
            refined.read((1,))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_leaves_of_the_tree_come_close_to_the_optimum(epsilon):
    ratios = []
    for seed, (n, length) in enumerate([(2, 4), (3, 2), (2, 3), (3, 3), (4, 2)]):
        batch = a_batch(50 + seed, n, length, epsilon)
        ours, alone = tree_refined.expected(batch), tree.expected(batch)
        assert ours <= alone + 1e-12
        ratios.append(ours / batch_lp.expected(batch))
    assert min(ratios) >= 1.0 - 1e-8
    assert np.exp(np.mean(np.log(ratios))) <= 1.01


@pytest.mark.slow
def test_released_and_read_alike_with_program_and_with_tree_alone():
    seen = set()
    for seed in range(12):
        batch = a_batch(seed, 3, 2, (0.5, 1.0, 2.0, 7.0)[seed % 4])
        sent = tree_refined.draw(batch, np.array([0, 2]), SeededCoins(seed))
        again = tree_refined.read(batch, sent.path)
        seen.add(better(batch) is None)
        assert again.path == sent.path
        np.testing.assert_array_equal(again.codes, sent.codes)
        np.testing.assert_array_equal(again.posterior, sent.posterior)
        assert -batch.epsilon <= sent.least <= sent.most <= batch.epsilon
    assert seen == {True, False}


@pytest.mark.slow
def test_batches_too_many_to_list():
    """10^12 batches: sound, and better than saying nothing."""
    n, length = 10, 12
    sticky = 0.9 * np.eye(n) + 0.01
    model = MarkovModel(np.full(n, 0.1), sticky)
    batch = Batch(model, model.initial, length, 2.0, hamming())
    refined = better(batch)
    assert refined is not None
    assert refined.expected < 0.6 * length
    generator = np.random.default_rng(0)
    for o in [*model.sample(length, 20, seed=1), *generator.integers(n, size=(20, length))]:
        sent = refined.draw(o, SeededCoins(0))
        lift = (refined.rows.shares(o) / DENOMINATOR) @ sent.lifts
        assert sent.least - 1e-12 <= np.log(lift) <= sent.most + 1e-12
        assert -2.0 <= sent.least <= sent.most <= 2.0
