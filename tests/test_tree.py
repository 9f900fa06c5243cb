"""The tree-quantised release against brute force: every batch, every leaf, every coin."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqveil import MarkovModel, distortion
from seqveil.core.errors import DataError
from seqveil.core.mechanisms import Batch, questions, tree, tree_ldp, trees
from seqveil.core.randomness import SeededRandomness

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10_000)
MODES = (tree, tree_ldp)


def random_model(generator, n, order=1, zeros=True):
    rows = generator.dirichlet(np.full(n, 0.8), size=n**order)
    prior = generator.dirichlet(np.ones(n))
    if zeros and n > 2:
        rows[generator.integers(n**order), generator.integers(n)] = 0.0
        prior[generator.integers(n)] = 0.0
    return MarkovModel(prior / prior.sum(), rows / rows.sum(1, keepdims=True), order=order)


def random_batch(seed, length=None, epsilon=None, n=None, order=None):
    generator = np.random.default_rng(seed)
    n = n or int(generator.integers(2, 4))
    order = order or int(generator.integers(1, 3))
    model = random_model(generator, n, order)
    states = generator.dirichlet(np.full(model.size, 0.5))
    states[generator.integers(model.size)] = 0.0
    costs = distortion.hamming() if seed % 2 else distortion.absolute(np.arange(n))
    length = length or int(generator.integers(1, 5))
    return Batch(model, states / states.sum(), length, epsilon or float(generator.choice([0.3, 1.0, 2.5])), costs)


def batches_of(batch):
    return np.array(list(itertools.product(range(batch.model.n), repeat=batch.length)))


def dense(model):
    return np.stack([model.advance(row) for row in np.eye(model.size)])


def joint_with_last_state(batch, outputs):
    """Pr(batch = o, last state = s) for every o, by following states one at a time: (N, S)."""
    steps, found = dense(batch.model), np.empty((len(outputs), batch.model.size))
    for row, codes in enumerate(outputs):
        distribution = np.where(batch.model.newest == codes[0], batch.states, 0.0)
        for code in codes[1:]:
            distribution = np.where(batch.model.newest == code, distribution @ steps, 0.0)
        found[row] = distribution
    return found


def channel(batch, ldp=False):
    """a(y|o) of every leaf and batch from the tree's own integers, (Y, N), with leaves and marginals."""
    grown = trees.plant(batch, ldp)
    disclosed = grown.disclosed / 2.0**62
    outputs, leaves = batches_of(batch), grown.everything()
    inside = np.ones((len(leaves), len(outputs)))
    for y, leaf in enumerate(leaves):
        for position, weights in leaf.box.items():
            inside[y] *= weights[outputs[:, position]]
    fresh = np.array([leaf.chance for leaf in leaves])
    return leaves, (1.0 - disclosed) * fresh[:, None] + disclosed * inside


@pytest.mark.slow
@few
@given(seeds)
def test_channel_is_a_channel_and_every_lift_is_within_epsilon(seed):
    batch = random_batch(seed)
    leaves, table = channel(batch)
    belief = joint_with_last_state(batch, batches_of(batch)).sum(1)
    assert table.sum(0) == pytest.approx(np.ones(table.shape[1]), abs=1e-12)
    marginal = table @ belief
    lifts = table / marginal[:, None]
    assert np.abs(np.log(lifts)).max() <= batch.epsilon
    for y, leaf in enumerate(leaves):
        sent = tree.read(batch, leaf.path)
        assert sent.marginal == pytest.approx(marginal[y], rel=1e-9)
        assert sent.least <= np.log(lifts[y].min()) + 1e-15
        assert sent.most >= np.log(lifts[y].max()) - 1e-15
        assert (sent.least, sent.most) == pytest.approx((np.log(lifts[y].min()), np.log(lifts[y].max())), abs=1e-9)
        assert sent.lift(batches_of(batch)[0]) == pytest.approx(lifts[y, 0], rel=1e-9)


@pytest.mark.slow
@few
@given(seeds)
def test_posterior_and_smoothing_equal_bayes(seed):
    batch = random_batch(seed)
    outputs = batches_of(batch)
    joint = joint_with_last_state(batch, outputs)
    leaves, table = channel(batch)
    later = np.random.default_rng(seed).random(batch.model.size)
    for y, leaf in enumerate(leaves):
        sent = tree.read(batch, leaf.path)
        posterior = table[y] @ joint
        assert sent.posterior == pytest.approx(posterior / posterior.sum(), abs=1e-12)
        weights = table[y] * (joint @ later)
        distributions, likelihood = sent.smooth(later)
        for position in range(batch.length):
            wanted = np.bincount(outputs[:, position], weights, batch.model.n)
            assert distributions[position] == pytest.approx(wanted / wanted.sum(), abs=1e-12)
        assert likelihood @ batch.states == pytest.approx(weights.sum() / sent.marginal, rel=1e-9)
        for state in np.flatnonzero(batch.states)[:2]:
            alone = Batch(batch.model, np.eye(batch.model.size)[state], batch.length, batch.epsilon, batch.distortion)
            wanted = (table[y] * (joint_with_last_state(alone, outputs) @ later)).sum() / sent.marginal
            assert likelihood[state] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
@few
@given(seeds)
def test_expected_distortion_equals_enumeration(seed):
    batch = random_batch(seed)
    outputs = batches_of(batch)
    belief = joint_with_last_state(batch, outputs).sum(1)
    for ldp in (False, True):
        leaves, table = channel(batch, ldp)
        total = 0.0
        for y, leaf in enumerate(leaves):
            costs = batch.distortion.between(outputs, MODES[ldp].read(batch, leaf.path).codes[None]).sum(1)
            total += float((belief * table[y] * costs).sum())
        assert MODES[ldp].expected(batch) == pytest.approx(total, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@few
@given(seeds)
def test_reproduction_is_the_best_estimate(seed):
    batch = random_batch(seed)
    for leaf in trees.plant(batch).everything():
        sent = tree.read(batch, leaf.path)
        distributions, _ = sent.smooth(np.ones(batch.model.size))
        costs = distributions @ batch.distortion.matrix(batch.model.n)
        assert costs[np.arange(batch.length), sent.codes] == pytest.approx(costs.min(1), abs=1e-9)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seeds, st.sampled_from([(2, 2), (2, 3), (3, 1)]))
def test_leakage_of_whole_streams_is_within_the_sum(seed, shape):
    length, count = shape
    first = random_batch(seed, length, epsilon=0.8, n=2)
    outputs = batches_of(first)
    histories = [((), first.states, 1.0, {(): (1.0, first.states)})]
    for _ in range(
        count
    ):  # per history of releases: the joint distribution of raw batches and last state, by brute force
        following = []
        for path, states, chance, raw in histories:
            batch = Batch(first.model, states, length, 0.8, first.distortion)
            leaves, table = channel(batch)
            for y, leaf in enumerate(leaves):
                grown = {}
                for past, (weight, distribution) in raw.items():
                    joint = joint_with_last_state(
                        Batch(first.model, distribution, length, 0.8, first.distortion), outputs
                    )
                    for o, last in enumerate(joint):
                        if last.sum() > 0:
                            grown[(*past, o)] = (weight * table[y, o], last @ dense(first.model))
                sent = tree.read(batch, leaf.path)
                following.append(
                    ((*path, leaf.path), first.model.advance(sent.posterior), chance * sent.marginal, grown)
                )
        histories = following
    assert sum(chance for _, _, chance, _ in histories) == pytest.approx(1.0, abs=1e-9)
    for _, _, chance, raw in histories:
        total = sum(weight * distribution.sum() for weight, distribution in raw.values())
        assert chance == pytest.approx(total, rel=1e-9)
        lifts = [weight / total for weight, _ in raw.values()]
        assert max(abs(math.log(lift)) for lift in lifts) <= 0.8 * count + 1e-12


class ScriptedCoin:
    """A coin that follows a script and adds up how likely each turn was."""

    def __init__(self, script):
        self.script, self.turns = script, []

    private = False

    def draw(self, count):
        assert count == 1
        return [self]

    def __lt__(self, weight):
        step = len(self.turns)
        taken = self.script[step] if step < len(self.script) else True
        share = int(weight) / 2.0**62
        self.turns.append((taken, share if taken else 1.0 - share))
        return taken

    def __ge__(self, weight):
        return not self < weight


@pytest.mark.slow
@pytest.mark.parametrize("ldp", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_every_draw_of_the_walk_gives_the_channel(seed, ldp):
    batch = random_batch(seed, length=3)
    leaves, table = channel(batch, ldp)
    for o in (0, len(table[0]) // 2, len(table[0]) - 1):
        found, script = dict.fromkeys((leaf.path for leaf in leaves), 0.0), []
        while True:
            uniform = ScriptedCoin(script)
            sent = MODES[ldp].draw(batch, batches_of(batch)[o], uniform)
            found[sent.path] += math.prod(share for _, share in uniform.turns)
            taken = [turn for turn, _ in uniform.turns]
            while taken and not taken[-1]:
                taken.pop()
            if not taken:
                break
            script = [*taken[:-1], False]
        assert list(found.values()) == pytest.approx(table[:, o].tolist(), abs=1e-12)


@pytest.mark.slow
@few
@given(seeds)
def test_reading_the_path_gives_what_was_drawn(seed):
    batch = random_batch(seed)
    for ldp in (False, True):
        codes = np.random.default_rng(seed).integers(0, batch.model.n, batch.length)  # possible or not
        sent = MODES[ldp].draw(batch, codes, SeededRandomness(seed))
        again = MODES[ldp].read(batch, sent.path)
        for name in ("path", "least", "most", "marginal"):
            assert getattr(sent, name) == getattr(again, name)
        assert (sent.codes == again.codes).all()
        assert (sent.posterior == again.posterior).all()
        assert again.most <= batch.epsilon
        assert -again.least <= batch.epsilon


@pytest.mark.slow
def test_impossible_paths_are_refused():
    batch = random_batch(5, length=2, epsilon=2.5)
    path = trees.plant(batch).everything()[0].path
    assert path
    for wrong in (path[:-1], (*path, 0), (2, *path[1:])):
        with pytest.raises(DataError):
            tree.read(batch, wrong)


@pytest.mark.slow
@few
@given(seeds)
def test_ldp_mode_holds_for_every_pair_whatever_the_belief(seed):
    batch = random_batch(seed)
    _, table = channel(batch, ldp=True)
    assert table.sum(0) == pytest.approx(np.ones(table.shape[1]), abs=1e-12)
    assert np.log(table.max(1) / table.min(1)).max() <= batch.epsilon
    _, plain = channel(batch)
    assert np.log(plain.max(1) / plain.min(1)).max() <= 2 * batch.epsilon


def test_no_budget_says_nothing():
    batch = random_batch(7, length=3, epsilon=1e-12)
    sent = tree.draw(batch, np.zeros(3, int), SeededRandomness(0))
    assert (sent.path, sent.least, sent.most) == ((), 0.0, 0.0)
    distribution = batch.states
    for _ in range(2):
        distribution = batch.model.advance(distribution)
    assert sent.posterior == pytest.approx(distribution)


def random_walk(side, generator):
    """A lazy walk on a side × side grid, as a model on codes with points."""
    from scipy import sparse

    line = sparse.diags_array([0.25, 0.5, 0.25], offsets=[-1, 0, 1], shape=(side, side)).tocsr()
    steps = sparse.csr_array(sparse.kron(line, line))
    rows = sparse.diags_array(1.0 / np.asarray(steps.sum(1)).ravel())
    points = np.array(list(itertools.product(range(side), repeat=2)), float)
    prior = generator.dirichlet(np.ones(side * side))
    return MarkovModel(prior, (rows @ steps).tocsr()), distortion.euclidean(points)


@pytest.mark.slow
@pytest.mark.parametrize("ldp", [False, True])
def test_large_alphabets_keep_the_promise_and_read_back(ldp):
    generator = np.random.default_rng(4)
    model, costs = random_walk(60, generator)
    states, randomness = np.zeros(model.size), SeededRandomness(9)
    states[1830] = 1.0
    stream = [1830]
    for _ in range(17):
        stream.append(int(generator.choice(model.size, p=model.advance(np.eye(1, model.size, stream[-1])[0]))))
    errors = []
    for start in range(0, 18, 6):
        batch = Batch(model, states, 6, 6.0, costs)
        codes = np.array(stream[start : start + 6])
        sent = MODES[ldp].draw(batch, codes, randomness)
        again = MODES[ldp].read(batch, sent.path)
        assert (again.posterior == sent.posterior).all()
        assert (again.codes == sent.codes).all()
        assert max(sent.most, -sent.least) <= 6.0
        assert math.exp(sent.least) - 1e-9 <= sent.lift(codes) <= math.exp(sent.most) + 1e-9
        states = model.advance(sent.posterior)
        errors.append(costs.between(codes, sent.codes).mean())
    assert np.mean(errors) < 4.0


@pytest.mark.slow
def test_leaves_cover_every_batch_once():
    batch = random_batch(11, length=3, epsilon=3.0, n=3)
    found = trees.plant(batch).everything()
    outputs = batches_of(batch)
    inside = np.ones((len(found), len(outputs)))
    for y, leaf in enumerate(found):
        for position, weights in leaf.box.items():
            inside[y] *= weights[outputs[:, position]]
    belief = joint_with_last_state(batch, outputs).sum(1)
    assert inside.sum(0) == pytest.approx(np.ones(len(outputs)))
    assert [leaf.mass for leaf in found] == pytest.approx((inside @ belief).tolist())
    assert len(found) > 9
    assert min(leaf.mass for leaf in found) >= 1 / (1 + math.exp(3.0))


@pytest.mark.parametrize("seed", range(12))
def test_sampled_trees_keep_the_promise_for_every_batch(seed, monkeypatch):
    """Splits judged by samples on small chains: still sound and exact."""
    monkeypatch.setattr(questions, "EXACT", 0)
    batch = random_batch(seed, length=3, n=3)
    if seed % 3 == 0:
        costs = distortion.matrix(np.random.default_rng(seed).random((3, 3)) * (1 - np.eye(3)))
        batch = Batch(batch.model, batch.states, 3, batch.epsilon, costs)
    outputs = batches_of(batch)
    joint = joint_with_last_state(batch, outputs)
    leaves, table = channel(batch)
    assert table.sum(0) == pytest.approx(np.ones(len(outputs)), abs=1e-12)
    lifts = table / (table @ joint.sum(1))[:, None]
    assert np.abs(np.log(lifts)).max() <= batch.epsilon
    for y, leaf in enumerate(leaves):
        sent = tree.read(batch, leaf.path)
        posterior = table[y] @ joint
        assert sent.posterior == pytest.approx(posterior / posterior.sum(), abs=1e-12)
        assert sent.most == pytest.approx(np.log(lifts[y].max()), abs=1e-9)
    _, table = channel(batch, ldp=True)
    assert np.log(table.max(1) / table.min(1)).max() <= batch.epsilon


@pytest.mark.slow
def test_the_same_batch_gives_the_same_tree_bit_for_bit():
    generator = np.random.default_rng(8)
    model, costs = random_walk(40, generator)
    for length, epsilon in ((4, 5.0), (7, 3.0)):
        batch = Batch(model, model.initial, length, epsilon, costs)
        first, second = (trees.plant(batch).everything() for _ in range(2))
        assert [leaf.path for leaf in first] == [leaf.path for leaf in second]
        assert [leaf.chance for leaf in first] == [leaf.chance for leaf in second]
        assert all((a.box[t] == b.box[t]).all() for a, b in zip(first, second, strict=True) for t in a.box)


@pytest.mark.slow
def test_a_large_budget_tells_every_likely_batch():
    """Batches far likelier than a cell end in cells of their own: no question is wasted on what is known already."""
    generator = np.random.default_rng(5)
    for n, length, epsilon in ((8, 5, 18.0), (12, 4, 16.0), (17, 5, 20.0)):
        rows = 0.95 * np.eye(n) + 0.05 * generator.dirichlet(np.ones(n), n)
        model = MarkovModel(np.full(n, 1.0 / n), rows)
        batch = Batch(model, model.initial, length, epsilon, distortion.absolute(np.arange(n)))
        for codes in model.sample(length, 60, seed=2):
            chance = math.log(1.0 / n) + sum(math.log(rows[a, b]) for a, b in itertools.pairwise(codes))
            if chance > 8.0 - epsilon:  # e^8 cells' worth
                assert tree.draw(batch, codes, SeededRandomness(1)).codes.tolist() == codes.tolist()
