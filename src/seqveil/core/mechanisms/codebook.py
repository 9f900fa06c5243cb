"""Kernels over whole batches: a table with a row for every batch that can occur.

A batch o = (x_1..x_w) is what an observer sees of a walk over the model's states. Where the model backs off to shorter
contexts, one batch may come from several walks, so walks are enumerated and grouped by their symbols:

    β(o) = Σ_{walks with symbols o} states(s_1) P(s_2|s_1) … P(s_w|s_w-1)

`Support` holds these batches, for problems small enough to write them out. A `Codebook` is a kernel over them, and
`TabledSent` a release from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, Kernels
from seqveil.core.mechanisms.base import Batch
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import Randomness

WALKS_A_BATCH = 64  # walks that may share their symbols, on average, before we call the problem too large


@dataclass(frozen=True, eq=False)
class Support:
    """N possible batches in lexicographic order, their distribution, and the P walks behind them.

    A batch that cannot occur is released like the possible one nearest to it, so no batch has other lifts than those of
    a row of the table.
    """

    batch: Batch
    batches: Ints  # (N, w) symbols
    mass: Floats  # (N,) sums to one
    first: Ints  # (P,) first state of each walk
    last: Ints  # (P,) last state
    batch_of: Ints  # (P,) index of the walk's batch
    walks: Floats  # (P,) probability of the walk; sums to one
    given_first: Floats  # (P,) probability of the walk given its first state

    @property
    def drift(self) -> float:
        """What every lift must be widened by: how far rounding may move its log, all of whose sums run over walks."""
        return 4 * (self.batches.shape[1] + len(self.walks) + 4) * UNIT

    def row(self, codes: Ints) -> int:
        """Index of the batch; for one that cannot occur, of the possible batch nearest to it (ties: the first).

        A public rule that costs O(N·w), so that a model that is wrong never stops a release.
        """
        same = np.flatnonzero((self.batches == codes).all(1))
        if same.size:
            return int(same[0])
        return int(self.batch.distortion.between(codes, self.batches).sum(1).argmin())

    def kernels(self, table: Floats) -> Kernels:
        """A stack of one from a table (N, K) over the batches; an output is known by its column."""
        return Kernels.from_tables(np.arange(table.shape[1])[None], table[None], None, self.mass[None])

    def costs(self, labels: Ints) -> Floats:
        """(batches, labels) the distortion of releasing each label for each batch."""
        total = np.zeros((len(self.batches), len(labels)))
        for truth, released in zip(self.batches.T, labels.T, strict=True):
            total += self.batch.distortion.between(truth[:, None], released[None, :])
        return total

    def guesses(self, weights: Floats) -> Ints:
        """The best guess at each position of a batch, for each row of weights over the batches."""
        return self.batch.distortion.best_guess(self.distributions(weights))

    def distributions(self, weights: Floats) -> Floats:
        """The w symbols' distributions under each row of weights over batches: (K, N) → (K, w, n), not normalised."""
        out = np.zeros((len(weights), self.batches.shape[1], self.batch.model.n))
        for position, symbols in enumerate(self.batches.T):
            np.add.at(out[:, position, :].T, symbols, weights.T)
        return out

    def last_states(self, lifts: Floats) -> Floats:
        """(S,) distribution of the state at the last symbol after a release with these lifts, one for each batch."""
        distribution = np.bincount(self.last, self.walks * lifts[self.batch_of], self.batch.model.size)
        return np.asarray(distribution / distribution.sum(), dtype=np.float64)

    def smooth(self, lifts: Floats, later: Floats) -> tuple[Floats, Floats]:
        """Distributions of the w symbols and the likelihood of the first state; see `Sent.smooth`."""
        likelihood = lifts[self.batch_of] * later[self.last]
        post: Floats = np.bincount(self.batch_of, self.walks * likelihood, len(self.batches)).astype(np.float64)
        first = np.bincount(self.first, self.given_first * likelihood, self.batch.model.size).astype(np.float64)
        return self.distributions(post[None])[0] / post.sum(), first


@dataclass(frozen=True, eq=False)
class Codebook:
    """A kernel over the batches that can occur, and what each of its K outputs stands for."""

    rows: Support
    labels: Ints  # (K, w)
    kernels: Kernels  # a stack of one over the N rows

    def draw(self, codes: Ints, randomness: Randomness) -> TabledSent:
        """Release a batch: find its row, then draw a label from the row's kernel."""
        row = self.rows.row(codes)
        return TabledSent(self, int(self.kernels.draw(np.array([row]), randomness)[0]))

    def read(self, path: tuple[int, ...]) -> TabledSent:
        """The release with this path; one the kernel never makes is refused."""
        count = len(self.labels)
        if len(path) != 1 or not 0 <= path[0] < count or not self.kernels.extremes()[1][0, path[0]]:
            raise DataError(
                f"expected a path of one output below {count} that can be released, got {path}; "
                "read with the model, ε, batch length and past paths it was released with"
            )
        return TabledSent(self, int(path[0]))

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """Logs of the least and largest lift of each output, rounded outward."""
        least, largest = self.kernels.lift_bounds(self.rows.mass[None], whole_alphabet=True)
        return least[0] - self.rows.drift, largest[0] + self.rows.drift

    def lifts(self, index: int) -> Floats:
        """(N,) lift of every row when this output is released."""
        column = self.kernels.column(np.array([index]))[0].astype(np.float64)
        return column / (self.rows.mass @ column)

    @cached_property
    def table(self) -> Floats:
        """Q(y | row), (N, K)."""
        columns = [self.kernels.column(np.array([index]))[0] for index in range(len(self.labels))]
        return np.stack(columns, axis=1) / float(DENOMINATOR)

    @cached_property
    def expected(self) -> float:
        """Expected cost of the whole batch under the belief, from the integers."""
        return float((self.rows.mass[:, None] * self.table * self.rows.costs(self.labels)).sum())

    @property
    def memory(self) -> int:
        """Bytes that it takes, about: the kernel, and as much again for what is computed from it."""
        return 2 * self.kernels.extra.nbytes + 16 * self.rows.mass.size * self.labels.shape[1]


@dataclass(frozen=True, eq=False)
class TabledSent:
    """One release from a book; see `Sent`."""

    book: Codebook
    index: int

    @property
    def path(self) -> tuple[int, ...]:
        """The label's number, which is all that is published."""
        return (self.index,)

    @property
    def codes(self) -> Ints:
        """(w,) the label: the batch that is released."""
        return self.book.labels[self.index]

    @cached_property
    def lifts(self) -> Floats:
        """(N,) lift of every row of the book."""
        return self.book.lifts(self.index)

    @cached_property
    def posterior(self) -> Floats:
        """(S,) distribution of the state at the batch's last symbol, given this release too."""
        return self.book.rows.last_states(self.lifts)

    @cached_property
    def ahead(self) -> Floats:
        """(S,) distribution of the state at the next batch's first symbol, given this release too."""
        return filtering.predict(self.book.rows.batch.model, self.posterior[None])[0]

    @property
    def least(self) -> float:
        """Log of the least lift over all batches, rounded down."""
        return float(self.book.bounds[0][self.index])

    @property
    def most(self) -> float:
        """Log of the largest lift over all batches, rounded up."""
        return float(self.book.bounds[1][self.index])

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        """Distributions of the w symbols and the likelihood of the first state; see `Sent.smooth`."""
        return self.book.rows.smooth(self.lifts, later)


def support(batch: Batch, at_most: int) -> Support:
    """Every batch of positive probability under the chain and the distribution of its first state.

    >>> from seqveil.core.distortion import hamming
    >>> model = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.0, 1.0]])
    >>> found = support(Batch(model, model.initial, 2, 1.0, hamming()), 10)
    >>> found.batches.tolist(), found.mass.tolist()
    ([[0, 0], [0, 1], [1, 1]], [0.25, 0.25, 0.5])
    """
    model = batch.model
    first = np.flatnonzero(batch.states > 0)
    last, given_first = first, np.ones(len(first))
    symbols, place = np.unique(model.newest[first][:, None], axis=0, return_inverse=True)
    place = place.reshape(-1)
    _check_size(len(symbols), len(first), at_most, batch)
    for _ in range(batch.length - 1):
        parent, state, chance = _next_states(model, last, at_most, batch)
        first, last, given_first = first[parent], state, given_first[parent] * chance
        alive = given_first * batch.states[first] > 0  # products may underflow
        first, last, given_first, place = first[alive], last[alive], given_first[alive], place[parent][alive]
        keys, grouped = np.unique(place * model.n + model.newest[last], return_inverse=True)
        symbols, place = np.column_stack((symbols[keys // model.n], keys % model.n)), grouped.reshape(-1)
        _check_size(len(symbols), len(last), at_most, batch)
    walks = given_first * batch.states[first]
    walks /= walks.sum()
    mass = np.bincount(place, walks, len(symbols)).astype(np.float64)
    return Support(batch, symbols, mass, first, last, place, walks, given_first)


def _next_states(model: MarkovModel, last: Ints, at_most: int, batch: Batch) -> tuple[Ints, Ints, Floats]:
    """Every step out of each of the states `last`: index of the walk it continues, next state, probability."""
    chain = model.chain
    begin, counts = chain.indptr[last].astype(np.int64), np.diff(chain.indptr)[last].astype(np.int64)
    restart = np.flatnonzero(model.base > 0)
    restarting = np.flatnonzero(model.backoff[last] > 0)
    _check_size(0, int(counts.sum()) + restart.size * restarting.size, at_most, batch)
    parent = np.repeat(np.arange(len(last)), counts)
    entry = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts) + begin[parent]
    state, chance = chain.indices[entry].astype(np.int64), chain.data[entry]
    if restarting.size:
        again = np.repeat(restarting, restart.size)
        parent = np.concatenate((parent, again))
        state = np.concatenate((state, np.tile(model.base_state[restart], restarting.size)))
        chance = np.concatenate((chance, model.backoff[last[again]] * np.tile(model.base[restart], restarting.size)))
    steps, group = np.unique(parent * model.size + state, return_inverse=True)
    total = np.bincount(group.reshape(-1), chance, len(steps)).astype(np.float64)
    return steps // model.size, steps % model.size, total


def _check_size(batches: int, walks: int, at_most: int, batch: Batch) -> None:
    if batches > at_most or walks > WALKS_A_BATCH * at_most:
        size = batch.length * np.log10(batch.model.n)
        shown = f"{batch.model.n**batch.length}" if size < 7 else f"about 10^{size:.0f}"
        raise InputError(
            f"expected at most {at_most} possible batches, got more: {batch.model.n} symbols and batches of "
            f'{batch.length} make up to {shown} batches; use mechanism="tree" or shorter batches'
        )
