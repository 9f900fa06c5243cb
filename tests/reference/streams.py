"""Slow, obvious twins for streams: every sequence and every release path written out, in exact fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np

from reference.mixtures import mixture
from seqveil import MarkovModel
from seqveil.core.randomness import KeyedRandomness
from seqveil.engine import stream
from seqveil.engine.store import Memory
from seqveil.engine.streams import CodeStreams


class GivenCoins:
    """Randomness that were chosen beforehand, handed out one by one."""

    private = False

    def __init__(self, values):
        self._values = iter(values)

    def draw(self, count):
        return np.array([next(self._values) for _ in range(count)], np.int64)


class OneCoin:
    """The same coin for whoever asks, until it is changed: who asks first does not matter."""

    private = False
    value = 0

    def draw(self, count):
        return np.full(count, self.value, np.int64)


def random_chain(rng, n, order=1, zeros=False):
    """(prior, transitions) of a random chain; with zeros, about a third of the entries, never a whole row."""
    distributions = [
        rng.dirichlet(np.ones(n), size=(n,) * order),
        rng.dirichlet(np.ones(n**order)).reshape((n,) * order),
    ]
    if zeros:
        for distribution in distributions:
            keep = distribution >= distribution.max(-1, keepdims=True)
            distribution[(rng.random(distribution.shape) < 0.35) & ~keep] = 0.0
    transitions, prior = distributions
    return prior / prior.sum(), transitions / transitions.sum(-1, keepdims=True)


CHAINS = [(1, False, 1), (1, True, 1), (2, False, 1), (2, True, 1), (1, False, 2)]  # order, impossible steps, types


def model_of(order, zeros, types=1, n=3, seed=0):
    """A random model, of one chain or of types of people, and the exact distribution of its sequences."""
    rng = np.random.default_rng(seed)
    parts = [random_chain(rng, n, order, zeros) for _ in range(types)]
    models = [MarkovModel(*part, order=order) for part in parts]
    model = models[0] if types == 1 else mixture(models, [1 / types] * types)

    def distribution(length):
        each = [sequence_distribution(*part, length) for part in parts]
        total = sum(sum(own.values()) for own in each)  # nearly `types`: floats as they are
        return {x: sum(own[x] for own in each) / total for x in each[0]}

    return model, distribution


def released_with_columns(session, raw):
    """Releases of a session and, for each, the weights that every symbol puts on it (ones where nothing came out)."""
    released, columns = [], []
    for x in raw:
        kernel = session.kernel()
        released.append(session.release(x))
        quiet = released[-1] is None
        columns.append(
            np.ones(len(kernel.weights), int) if quiet else kernel.column(list(kernel.outputs).index(released[-1]))
        )
    return released, columns


def random_belief(rng, n):
    """A belief of one of the kinds a filter meets: flat, peaked, with zeros, with tiny entries."""
    belief = rng.dirichlet(np.full(n, rng.choice([0.1, 1.0, 10.0]))) + 1e-300
    rare = (rng.random(n) < 0.4) & (belief < belief.max())
    belief[rare] = rng.choice([0.0, 1e-12, 1e-5]) if rng.random() < 0.6 else belief[rare]
    return belief / belief.sum()


def sequence_distribution(prior, transitions, length):
    """Exact Pr(x_1..x_length) of every sequence; the order is that of the arrays."""
    order, n = transitions.ndim - 1, transitions.shape[-1]
    distribution = {}
    for sequence in itertools.product(range(n), repeat=max(length, order)):
        chance = Fraction(float(prior[sequence[:order]]))
        for k in range(order, len(sequence)):
            chance *= Fraction(float(transitions[sequence[k - order : k + 1]]))
        distribution[sequence[:length]] = distribution.get(sequence[:length], 0) + chance
    return distribution


def log(ratio):
    """Natural logarithm of a fraction, also of a huge or tiny one."""
    if ratio == 0:
        return -math.inf
    if Fraction(1, 2) < ratio < 2:
        return math.log1p(float(ratio - 1))
    if Fraction(1, 2**1000) < ratio < 2**1000:
        return math.log(float(ratio))
    return math.log(ratio.numerator) - math.log(ratio.denominator)


def explained(sequence, columns):
    """Π_k Q(y_k | x_k) in whole weights."""
    return math.prod(int(column[x]) for x, column in zip(sequence, columns, strict=True))


def sequence_leakage(distribution, columns):
    """max and min over possible sequences of log Pr(x|y)/Pr(x), by Bayes over all of them."""
    total = sum(chance * explained(sequence, columns) for sequence, chance in distribution.items())
    lifts = [explained(sequence, columns) / total for sequence, chance in distribution.items() if chance > 0]
    return log(max(lifts)), log(min(lifts))


def symbol_distribution(distribution, columns, position, n):
    """Pr(x_position | y_1..y_k) for k = len(columns), by Bayes over all sequences (they may be longer than k)."""
    mass = [Fraction(0)] * n
    for sequence, chance in distribution.items():
        mass[sequence[position]] += chance * explained(sequence[: len(columns)], columns)
    total = sum(mass)
    return np.array([float(m / total) for m in mass])


def exact_lifts(weights, belief, whole_alphabet=False):
    """Per output, the log of the least and of the largest lift; None for an output nobody in question can make."""
    shares = [Fraction(float(b)) for b in belief]
    rows = [x for x in range(len(belief)) if whole_alphabet or shares[x] > 0]
    bounds = []
    for y in range(weights.shape[1]):
        marginal = sum(shares[x] * int(weights[x, y]) for x in range(len(belief)))
        column = [int(weights[x, y]) for x in rows]
        if max(column) == 0:
            bounds.append(None)
        elif marginal == 0:
            bounds.append((log(Fraction(min(column))), math.inf))
        else:
            bounds.append((log(min(column) / marginal), log(max(column) / marginal)))
    return bounds


def exact_leakage(weights, belief, whole_alphabet=False):
    """max |log lift| over symbols and outputs."""
    return max(max(-pair[0], pair[1]) for pair in exact_lifts(weights, belief, whole_alphabet) if pair)


def exact_ldp(weights):
    """max over outputs of log(largest / least weight)."""
    used = [column for column in weights.T.tolist() if max(column) > 0]
    return max(math.inf if min(column) == 0 else log(Fraction(max(column), min(column))) for column in used)


def release_paths(setting, length, state=None, columns=()):
    """Every release sequence of positive probability, as its columns and the state after it."""
    state = stream.State.start(setting) if state is None else state
    if length == 0:
        yield columns, state
        return
    epsilons, gone = stream.allowance(setting, state)
    if gone[0] and setting.budget.when_spent == "stop":
        _, after = stream.observe(setting, state, np.array([stream.NOTHING]))
        yield from release_paths(setting, length - 1, after, (*columns, np.ones(setting.model.n, np.int64)))
        return
    belief = stream.filtering.symbols(setting.model, state.states)
    kernel = stream.kernels(setting, belief, float(epsilons[0])).one(0)
    for index, code in enumerate(kernel.codes.tolist()):
        if not kernel.marginal(belief[0])[index] > 0:
            continue
        _, after = stream.observe(setting, state, np.array([code]))
        yield from release_paths(setting, length - 1, after, (*columns, kernel.column(index)))


class Rows:
    """Streams without names, one row each: `State.move` and a step, and nothing else."""

    def __init__(self, setting, users=0):
        self.setting, self.state = setting, stream.State.start(setting, users)

    def release(self, rows, codes, randomness, times=None):
        made, self.state = self.state.move(rows, lambda part: stream.step(self.setting, part, codes, randomness, times))
        return made

    def observe(self, rows, codes, times=None):
        made, self.state = self.state.move(rows, lambda part: stream.observe(self.setting, part, codes, times))
        return made


def twin(setting, salt, key=bytes(range(32)), **more):
    """Streams in memory that draw as the state with this salt does."""
    store = Memory()
    store.salt = salt
    return CodeStreams(setting, store, KeyedRandomness(key), **more)


def likelihood(evidence, user, x):
    """Pr(releases | x) of a user, over all that the case may be at each event."""
    own, weights = np.flatnonzero(evidence.users == user), None
    for k, symbol in zip(own, x, strict=False):
        rows = evidence.table[np.atleast_1d(evidence.index[k]), symbol]
        join = np.ones((1, 1)) if evidence.joins is None else evidence.joins[evidence.links[k], :, :, symbol]
        weights = (join[0] if weights is None else weights @ join) * rows
    return weights.sum()
