"""Batches by brute force: every batch of X^w with every walk behind it, and every sequence of releases."""

import itertools
import math

import numpy as np

from seqveil.core.filtering import predict
from seqveil.core.mechanisms import Batch
from seqveil.core.mechanisms.codebook import Codebook
from seqveil.core.mechanisms.trees import TreeRelease
from seqveil.core.model import MarkovModel


class FixedCoins:
    """Randomness that were thrown beforehand."""

    private = False

    def __init__(self, *values):
        self.values = list(values)

    def draw(self, count):
        taken, self.values = self.values[:count], self.values[count:]
        return np.array(taken, np.int64)


def random_model(generator, n, order=1, zeros=True):
    """A random chain, with impossible steps where `zeros`."""

    def distribution(shape):
        weights = generator.dirichlet(np.full(n, 0.7), shape)
        if zeros:
            weights = weights * (generator.random(weights.shape) < 0.7)
            np.put_along_axis(weights, generator.integers(n, size=(*weights.shape[:-1], 1)), 1.0, -1)
        return weights / weights.sum(-1, keepdims=True)

    return MarkovModel(distribution(()), distribution((n**order,)), order=order)


def transitions(model):
    """The dense distribution of the next state."""
    base = np.bincount(model.base_state, model.base, model.size)
    return model.chain.toarray() + np.outer(model.backoff, base)


def every_batch(model, length):
    """All of X^w (n^w, w), and P(walk shows o, ends in s' | starts in s): (n^w, S, S)."""
    step, shows = transitions(model), np.eye(model.n)[model.newest].T
    batches = np.array(list(itertools.product(range(model.n), repeat=length)))
    walks = []
    for batch in batches:
        walk = np.diag(shows[batch[0]])
        for symbol in batch[1:]:
            walk = walk @ step * shows[symbol]
        walks.append(walk)
    return batches, np.array(walks)


def lift_of(sent, codes):
    """a(y|o)/p(y) of a release for any batch o: from its soft box, or from the row of its codebook."""
    if not isinstance(sent, TreeRelease):
        return float(sent.lifts[sent.book.rows.row(codes)])
    inside = math.prod(float(weights[codes[position]]) for position, weights in sent.box.items())
    return (sent.fresh + sent.disclosed * inside) / sent.marginal


def every_leaf(tree):
    """All leaves of a tree, from left to right."""
    leaf = tree.walk(lambda level, split: 0)
    yield leaf
    while 0 in leaf.path:
        turn = max(level for level, side in enumerate(leaf.path) if side == 0)
        script = (*leaf.path[:turn], 1)
        leaf = tree.walk(lambda level, split, script=script: script[level] if level < len(script) else 0)
        yield leaf


def expected(mechanism, batch):
    """Expected cost of the whole batch: from the table of its codebook, or from all leaves of its tree."""
    rule, costs = mechanism.rule(batch), batch.distortion
    if isinstance(rule, Codebook):
        return float((rule.rows.mass[:, None] * rule.table * rule.rows.costs(rule.labels)).sum())
    columns, (share, rest), before = np.arange(batch.model.n), rule.shares, rule.search.before
    released = [share * leaf.symbol_distributions() + rest * leaf.chance * before for leaf in every_leaf(rule)]
    return float(sum((one * costs.between(columns, costs.best_guess(one)[:, None])).sum() for one in released))


def check_release(batch, sent, lifts):
    """`sent` against Bayes over all batches, for its lifts (n^w,) in the order of `every_batch`."""
    batches, walks = every_batch(batch.model, batch.length)
    joint = np.einsum("s,ose->ose", batch.states, walks)
    logs = np.log(lifts)
    assert sent.least <= logs.min() + 1e-12
    assert logs.max() - 1e-12 <= sent.most
    post = np.einsum("ose,o->e", joint, lifts)
    np.testing.assert_allclose(sent.posterior, post / post.sum(), rtol=0, atol=1e-12)
    for later in (np.ones(batch.model.size), np.random.default_rng(5).random(batch.model.size)):
        distributions, first = sent.smooth(later)
        likelihood = np.einsum("ose,o,e->so", walks, lifts, later)
        starts = batch.states > 0
        np.testing.assert_allclose(first[starts], likelihood.sum(1)[starts], rtol=1e-11, atol=1e-13)
        weights = batch.states @ likelihood
        for position in range(batch.length):
            distribution = np.bincount(batches[:, position], weights, batch.model.n)
            np.testing.assert_allclose(distributions[position], distribution / distribution.sum(), rtol=0, atol=1e-12)


def check_kernel(batch, table, promised):
    """A table (n^w, K) over all of X^w: stochastic, and within the promised leakage also where nothing can occur."""
    _, walks = every_batch(batch.model, batch.length)
    belief = np.einsum("s,ose->o", batch.states, walks)
    np.testing.assert_allclose(table.sum(1), 1.0, rtol=0, atol=1e-12)
    assert table.min() >= 0.0
    marginal = belief @ table
    used = marginal > 0
    assert not table[:, ~used].any()
    logs = np.log(table[:, used] / marginal[used])
    assert np.abs(logs).max() <= promised + 1e-12


def sequence_leakage(model, length, epsilons, distortion, table_of, read):
    """SIL over as many batches as there are epsilons: every raw sequence against every sequence of releases.

    `table_of(batch)` gives Q over all of X^w, (n^w, K); beliefs go from batch to batch by what `read` says. Order 1.
    """
    step, worst = transitions(model), 0.0
    batches, _ = every_batch(model, length)
    raw = np.array(list(itertools.product(range(len(batches)), repeat=len(epsilons))))
    symbols = batches[raw].reshape(len(raw), -1)
    prior = model.initial[symbols[:, 0]] * step[symbols[:, :-1], symbols[:, 1:]].prod(1)
    todo = [(0, model.initial, np.ones(len(raw)))]
    while todo:
        depth, states, likelihood = todo.pop()
        if depth == len(epsilons):
            lifts = likelihood[prior > 0] / (prior @ likelihood)
            worst = max(worst, float(np.abs(np.log(lifts)).max()))
            continue
        batch = Batch(model, states, length, epsilons[depth], distortion)
        table = table_of(batch)
        for output in np.flatnonzero(table.max(0) > 0):
            following = likelihood * table[raw[:, depth], output]
            sent = read(batch, (int(output),))
            last = np.bincount(symbols[:, (depth + 1) * length - 1], prior * following, model.n)
            np.testing.assert_allclose(sent.posterior, last / last.sum(), rtol=0, atol=1e-11)
            todo.append((depth + 1, predict(model, sent.posterior[None])[0], following))
    assert worst <= math.fsum(epsilons) + 1e-9
    return worst
