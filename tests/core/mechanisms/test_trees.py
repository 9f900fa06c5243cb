"""The tree-quantised release against brute force: every batch, every leaf, every coin, in fractions."""

import inspect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import streams as ref
from reference.batches import (
    check_kernel,
    check_release,
    every_batch,
    every_leaf,
    expected,
    lift_of,
    random_model,
    sequence_leakage,
)
from seqveil import MarkovModel, distortion
from seqveil.core.errors import DataError, InputError
from seqveil.core.mechanisms import Batch, questions, tree, trees
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.receiver.audit import Audit

few = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 10_000)


def random_batch(seed, length=None, epsilon=None, n=None, order=None):
    generator = np.random.default_rng(seed)
    n = n or int(generator.integers(2, 4))
    order = order or int(generator.integers(1, 3))
    model = random_model(generator, n, order, zeros=n > 2)
    states = generator.dirichlet(np.full(model.size, 0.5))
    states[generator.integers(model.size)] = 0.0
    costs = distortion.hamming() if seed % 2 else distortion.absolute(np.arange(n))
    length = length or int(generator.integers(1, 5))
    return Batch(model, states / states.sum(), length, epsilon or float(generator.choice([0.3, 1.0, 2.5])), costs)


def batches_of(batch):
    return every_batch(batch.model, batch.length)[0]


def belief_of(batch):
    """Pr of every batch."""
    return np.einsum("s,ose->o", batch.states, every_batch(batch.model, batch.length)[1])


def channel(batch):
    """a(y|o) of every leaf and batch from the tree's own integers, (Y, N), with leaves and marginals."""
    grown = trees.tree(batch)
    disclosed = grown.disclosed / 2.0**62
    outputs, leaves = batches_of(batch), list(every_leaf(grown))
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
    belief = belief_of(batch)
    assert table.sum(0) == pytest.approx(np.ones(table.shape[1]), abs=1e-12)
    marginal = table @ belief
    lifts = table / marginal[:, None]
    assert np.abs(np.log(lifts)).max() <= batch.epsilon
    for y, leaf in enumerate(leaves):
        sent = tree.rule(batch).read(leaf.path)
        assert sent.marginal == pytest.approx(marginal[y], rel=1e-9)
        assert sent.least <= np.log(lifts[y].min()) + 1e-15
        assert sent.most >= np.log(lifts[y].max()) - 1e-15
        assert (sent.least, sent.most) == pytest.approx((np.log(lifts[y].min()), np.log(lifts[y].max())), abs=1e-9)
        assert lift_of(sent, batches_of(batch)[0]) == pytest.approx(lifts[y, 0], rel=1e-9)
        assert len(leaves) == 1 or leaf.mass >= 1 / (1 + math.exp(batch.epsilon))
    assert np.log(table.max(1) / table.min(1)).max() <= 2 * batch.epsilon


@pytest.mark.slow
@few
@given(seeds)
def test_what_receivers_compute_equals_bayes(seed):
    """Posteriors, smoothing, the best estimate and what it costs on average, from every leaf."""
    batch, total = random_batch(seed), 0.0
    outputs, belief = batches_of(batch), belief_of(batch)
    leaves, table = channel(batch)
    for y, leaf in enumerate(leaves):
        sent = tree.rule(batch).read(leaf.path)
        check_release(batch, sent, table[y] / (belief @ table[y]))
        costs = sent.smooth(np.ones(batch.model.size))[0] @ batch.distortion.matrix(batch.model.n)
        assert costs[np.arange(batch.length), sent.codes] == pytest.approx(costs.min(1), abs=1e-9)
        total += float((belief * table[y]) @ batch.distortion.between(outputs, sent.codes[None]).sum(1))
    assert expected(tree, batch) == pytest.approx(total, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_leakage_of_whole_streams_is_within_the_sum(seed):
    """Every raw sequence against every sequence of leaves, two batches of two or three symbols."""
    model = random_model(np.random.default_rng(seed), 2, zeros=bool(seed % 2))

    def read(batch, path):
        return tree.rule(batch).read(channel(batch)[0][path[0]].path)

    worst = sequence_leakage(
        model, 2 + seed % 2, (0.8, 1.1), distortion.hamming(), lambda batch: channel(batch)[1].T, read
    )
    assert 0.5 < worst <= 1.9


EPSILONS = (0.5, 8.0, 18.0, 32.0)
WHOLE = 1 << 62


def small_batch(seed: int, epsilon: float) -> Batch:
    """Two or three symbols, from well mixed to nearly certain, so that some cells are about as small as may be."""
    rng = np.random.default_rng(seed)
    n, shape = int(rng.choice([2, 3])), float(rng.choice([1.0, 0.2, 0.05, 0.01]))
    prior = rng.dirichlet(np.full(n, shape)) + 1e-300
    if seed % 3 == 0:
        prior = np.r_[1.0, np.exp(-rng.uniform(10, 32, n - 1))]
    model = MarkovModel(prior / prior.sum(), rng.dirichlet(np.full(n, shape), n))
    return Batch(model, model.initial, 1 + seed % 2, epsilon, distortion.hamming())


class ScriptedCoin:
    """A coin that passes or fails each comparison by a script, and keeps how likely each turn was."""

    private = False

    def __init__(self, script):
        self.script, self.turns = script, []

    def draw(self, count):
        assert count == 1
        return [self]

    def __lt__(self, weight):
        step = len(self.turns)
        wanted = self.script[step] if step < len(self.script) else True
        turn = bool((wanted and weight > 0) or weight == WHOLE)  # what no coin does is not tried
        self.turns.append((turn, 0 < weight < WHOLE, Fraction(int(weight) if turn else WHOLE - int(weight), WHOLE)))
        return turn

    def __ge__(self, weight):
        return not self < weight


def walks(mechanism, batch, codes):
    """The release and the probability of every path of coins."""
    script = []
    while True:
        coin = ScriptedCoin(script)
        yield mechanism.rule(batch).draw(codes, coin), math.prod((share for *_, share in coin.turns), start=Fraction(1))
        taken = coin.turns
        while taken and not all(taken[-1][:2]):
            taken.pop()
        if not taken:
            return
        script = [*(turn for turn, *_ in taken[:-1]), False]


def leaves_in_fractions(grown, raw) -> dict[tuple[int, ...], list[Fraction]]:
    """a(y|o) of every leaf and batch from the integers that are drawn from."""
    disclosed, found = Fraction(grown.disclosed, WHOLE), {}

    def go(node, fresh, shares):
        split = node.split
        if split is None:
            found[node.path] = [(1 - disclosed) * fresh + disclosed * share for share in shares]
            return
        chance, left = Fraction(split.fresh, WHOLE), [Fraction(int(split.left[o[split.position]]), WHOLE) for o in raw]
        go(node.children[0], fresh * chance, [share * turn for share, turn in zip(shares, left, strict=True)])
        rest = [share * (1 - turn) for share, turn in zip(shares, left, strict=True)]
        go(node.children[1], fresh * (1 - chance), rest)

    list(every_leaf(grown))
    go(grown.root, Fraction(1), [Fraction(1)] * len(raw))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_draw_of_the_walk_gives_the_channel(epsilon):
    """Whatever the raw batch and the coins, nothing is refused once anything is drawn; exactly, in fractions."""
    for seed in range(6):
        batch = small_batch(seed, epsilon)
        raw = batches_of(batch)
        table = leaves_in_fractions(trees.tree(batch), raw.tolist())
        for column, codes in enumerate(raw):
            found = dict.fromkeys(table, Fraction(0))
            for sent, chance in walks(tree, batch, codes):
                found[sent.path] += chance
                assert -batch.epsilon <= sent.least <= sent.most <= batch.epsilon
                assert sent.ahead.sum() == pytest.approx(1.0)
            assert list(found.values()) == [weights[column] for weights in table.values()]


def exact_distribution(model: MarkovModel, length: int) -> dict[tuple[int, ...], Fraction]:
    """Pr of every batch, in fractions of the model's own floats."""
    rows = [[Fraction(float(p)) for p in model.advance(row)] for row in np.eye(model.size)]
    distribution = {(x,): Fraction(float(p)) for x, p in enumerate(model.initial)}
    for _ in range(length - 1):
        distribution = {(*o, x): p * rows[o[-1]][x] for o, p in distribution.items() for x in range(model.n)}
    return distribution


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), epsilon=st.floats(12.0, 32.0))
def test_every_leaf_keeps_its_promise_in_exact_arithmetic(seed, epsilon):
    batch = small_batch(seed, epsilon)
    distribution = exact_distribution(batch.model, batch.length)
    total = sum(distribution.values())
    table = leaves_in_fractions(trees.tree(batch), list(distribution))
    for path, weights in table.items():
        marginal = sum(p * w for p, w in zip(distribution.values(), weights, strict=True)) / total
        sent = tree.rule(batch).read(path)
        high, low = ref.log(max(weights) / marginal), ref.log(min(weights) / marginal)
        assert -epsilon <= sent.least <= low + 1e-15
        assert high - 1e-15 <= sent.most <= epsilon
        assert ref.log(max(weights) / min(weights)) <= 2 * epsilon


def test_a_large_epsilon_still_tells_small_cells_apart():
    """The check costs nothing where it is not needed: e^-18 of belief is a cell of its own at ε = 20."""
    rare = float(np.exp(-18.0))
    model = MarkovModel([1 - rare, rare], [[1 - rare, rare], [0.5, 0.5]])
    batch = Batch(model, model.initial, 1, 20.0, distortion.hamming())
    disclosed = {tree.rule(batch).draw(np.array([x]), ref.GivenCoins((0,) * 9)).codes[0] for x in (0, 1)}
    assert disclosed == {0, 1}


def test_impossible_paths_are_refused():
    batch = random_batch(5, length=2, epsilon=2.5)
    path = next(every_leaf(trees.tree(batch))).path
    assert path
    for wrong in (path[:-1], (*path, 0), (2, *path[1:])):
        with pytest.raises(DataError):
            tree.rule(batch).read(wrong)


def test_a_tree_errs_little_more_than_the_optimum_of_its_batch():
    """Any question is sound; those that are chosen tell what costs most."""
    rows = 0.5 * np.eye(6) + 0.5 * np.arange(6, 0, -1) / 21
    six = MarkovModel(np.arange(1, 7) / 21, rows)
    three = MarkovModel([0.6, 0.3, 0.1], [[0.8, 0.15, 0.05], [0.2, 0.75, 0.05], [0.3, 0.1, 0.6]])
    for batch, known in (  # a little more than 0.1477 and 0.2554
        (Batch(six, six.initial, 1, 2.0, distortion.hamming()), 0.1483),
        (Batch(three, three.initial, 3, 3.0, distortion.absolute(range(3))), 0.3077),
    ):
        leaves, table = channel(batch)
        released = np.array([tree.rule(batch).read(leaf.path).codes for leaf in leaves])
        costs = batch.distortion.between(batches_of(batch), released[:, None]).sum(2)
        assert (table * costs).sum(0) @ belief_of(batch) < known


def test_no_budget_says_nothing():
    batch = random_batch(7, length=3, epsilon=1e-12)
    sent = tree.rule(batch).draw(np.zeros(3, int), SeededRandomness(0))
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
def test_large_alphabets_keep_the_promise_and_read_back():
    generator = np.random.default_rng(4)
    model, costs = random_walk(30, generator)
    states, randomness = np.zeros(model.size), SeededRandomness(9)
    states[465] = 1.0
    stream = [465]
    for _ in range(17):
        stream.append(int(generator.choice(model.size, p=model.advance(np.eye(1, model.size, stream[-1])[0]))))
    errors = []
    for start in range(0, 18, 6):
        batch = Batch(model, states, 6, 6.0, costs)
        codes = np.array(stream[start : start + 6])
        sent = tree.rule(batch).draw(codes, randomness)
        again = tree.rule(batch).read(sent.path)
        assert (again.posterior == sent.posterior).all()
        assert (again.codes == sent.codes).all()
        assert max(sent.most, -sent.least) <= 6.0
        assert math.exp(sent.least) - 1e-9 <= lift_of(sent, codes) <= math.exp(sent.most) + 1e-9
        states = model.advance(sent.posterior)
        errors.append(costs.between(codes, sent.codes).mean())
    assert np.mean(errors) < 4.0


@pytest.mark.parametrize("seed", range(6))
def test_sampled_trees_keep_the_promise_for_every_batch(seed, monkeypatch):
    """Splits judged by samples on small chains: still sound and exact."""
    monkeypatch.setattr(questions, "EXACT", 0)
    batch = random_batch(seed, length=3, n=3)
    if seed % 3 == 0:
        costs = distortion.matrix(np.random.default_rng(seed).random((3, 3)) * (1 - np.eye(3)))
        batch = Batch(batch.model, batch.states, 3, batch.epsilon, costs)
    leaves, table = channel(batch)
    check_kernel(batch, table.T, batch.epsilon)
    for y, leaf in enumerate(leaves):
        check_release(batch, tree.rule(batch).read(leaf.path), table[y] / (belief_of(batch) @ table[y]))


@pytest.mark.slow
def test_the_same_batch_gives_the_same_tree_bit_for_bit():
    generator = np.random.default_rng(8)
    model, costs = random_walk(20, generator)
    for length, epsilon in ((4, 5.0), (7, 3.0)):
        batch = Batch(model, model.initial, length, epsilon, costs)
        first, second = (list(every_leaf(inspect.unwrap(trees.tree)(batch))) for _ in range(2))
        assert [leaf.path for leaf in first] == [leaf.path for leaf in second]
        assert [leaf.chance for leaf in first] == [leaf.chance for leaf in second]
        assert all((a.box[t] == b.box[t]).all() for a, b in zip(first, second, strict=True) for t in a.box)


@pytest.mark.slow
def test_a_large_budget_tells_every_likely_batch():
    """Batches far likelier than a cell end in cells of their own: no question is wasted on what is known already."""
    generator = np.random.default_rng(5)
    for n, length, epsilon in ((8, 5, 18.0), (12, 4, 16.0)):
        rows = 0.95 * np.eye(n) + 0.05 * generator.dirichlet(np.ones(n), n)
        model = MarkovModel(np.full(n, 1.0 / n), rows)
        batch = Batch(model, model.initial, length, epsilon, distortion.absolute(np.arange(n)))
        for codes in model.sample(length, 60, seed=2):
            chance = math.log(1.0 / n) + sum(math.log(rows[a, b]) for a, b in itertools.pairwise(codes))
            if chance > 8.0 - epsilon:  # e^8 cells' worth
                assert tree.rule(batch).draw(codes, SeededRandomness(1)).codes.tolist() == codes.tolist()


PAIR = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])


@pytest.mark.parametrize("mechanism", ["tree", "batch_lp"])
def test_a_short_batch_between_others_is_followed_and_charged(mechanism):
    setting = Policy(epsilon=1.0, batch=3, mechanism=mechanism).on(PAIR)
    streams = CodeStreams(setting, randomness=SeededRandomness(3))
    sizes = [3, 1, 2, 3]
    batches = [np.arange(size) % 2 for size in sizes]
    made = streams.release(["ann"] * 4, batches)
    assert [len(symbols) for _, symbols in made.sent] == sizes
    assert made.epsilons.tolist() == [1.0] * 4
    audit, ours = Audit(setting), streams.account("ann")
    for path, symbols in made.sent:
        audit.take_batch("ann", path, symbols)
    report = audit.report()
    assert report.values
    assert (ours.leakage, ours.epsilon_spent) == (report.leakage, report.composition)
    assert 0 < ours.leakage <= 4.0
    for length in (0, 4):
        with pytest.raises(InputError, match="1 to 3 codes"):
            streams.release(["ann"], [[0] * length])
