"""One batch at a time over every batch that can occur, for small X^w: kernels by a table, and the exact optimum.

A batch o = (x_1..x_w) is what an observer sees of a walk over the model's states. Where the model backs off to shorter
contexts, one batch may come from several walks, so walks are enumerated and grouped by their symbols.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqveil.core import programs
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, Kernels, usable
from seqveil.core.mechanisms.base import Batch, Sent, rules_kept
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import Randomness

LARGEST = 400  # possible batches: seconds where symbols are correlated, up to minutes where they hardly are
WALKS_A_BATCH = 64  # walks that may share their symbols, on average, before we call the problem too large


@dataclass(frozen=True, eq=False)
class Support:
    """N possible batches in lexicographic order, their distribution, and the P walks behind them."""

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
        between = self.batch.distortion.between(self.batches.T[:, :, None], labels.T[:, None, :])
        return np.asarray(between.sum(0))

    def distributions(self, weights: Floats) -> Floats:
        """The w symbols' distributions under each row of weights over batches: (K, N) → (K, w, n), not normalised."""
        out = np.zeros((len(weights), self.batches.shape[1], self.batch.model.n))
        for position, symbols in enumerate(self.batches.T):
            np.add.at(out[:, position, :].T, symbols, weights.T)
        return out


@dataclass(frozen=True, eq=False)
class Codebook:
    """A kernel over the batches that can occur, and what each of its K outputs stands for."""

    rows: Support
    labels: Ints  # (K, w)
    kernels: Kernels  # a stack of one over the N rows

    def draw(self, codes: Ints, randomness: Randomness) -> TabledSent:
        """Release a batch: find its row, then draw a label from the row's kernel."""
        row = self.rows.row(codes)
        return self._sent(int(self.kernels.pick(np.array([row]), randomness.draw(1))[0]))

    def read(self, path: tuple[int, ...]) -> TabledSent:
        """The release with this path; one the kernel never makes is refused."""
        count = len(self.labels)
        if len(path) != 1 or not 0 <= path[0] < count or not self.table[:, path[0]].any():
            raise DataError(
                f"expected a path of one output below {count} that can be released, got {path}; "
                "model, ε or history must differ"
            )
        return self._sent(int(path[0]))

    def _sent(self, index: int) -> TabledSent:
        column, rows = self.table[:, index], self.rows
        lifts = column / (rows.mass @ column)
        sides = float(self.bounds[0][index]), float(self.bounds[1][index])
        last = np.bincount(rows.last, rows.walks * lifts[rows.batch_of], rows.batch.model.size)
        return TabledSent(rows.batch, (index,), self.labels[index], last / last.sum(), *sides, self, lifts)

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """Logs of the least and largest lift of each output, rounded outward."""
        least, largest = self.kernels.lift_bounds(self.rows.mass[None], whole_alphabet=True)
        return least[0] - self.rows.drift, largest[0] + self.rows.drift

    @cached_property
    def table(self) -> Floats:
        """Q(y | row), (N, K): a codebook writes every row out."""
        return self.kernels.extra[0] / float(DENOMINATOR)


@dataclass(frozen=True, eq=False)
class TabledSent(Sent):
    """One release from a book: its path is the label's number, and the label is the batch that is released."""

    book: Codebook
    lifts: Floats  # (N,) of every row of the book

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        """Distributions of the w symbols and the likelihood of the first state; see `Sent.smooth`."""
        rows = self.book.rows
        likelihood = self.lifts[rows.batch_of] * later[rows.last]
        post: Floats = np.bincount(rows.batch_of, rows.walks * likelihood, len(rows.batches)).astype(np.float64)
        first = np.bincount(rows.first, rows.given_first * likelihood, rows.batch.model.size).astype(np.float64)
        return rows.distributions(post[None])[0] / post.sum(), first


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
    ways = model.n if model.full_support and batch.length > 1 else 1  # anything can come next
    _check_size(ways * len(symbols), len(first), at_most, batch)
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
    from scipy import sparse

    direct, again = np.diff(model.chain.indptr)[last].sum(), np.count_nonzero(model.backoff[last])
    _check_size(0, int(direct + again * np.count_nonzero(model.base)), at_most, batch)
    walks, answers = np.arange(last.size), model.restart_rows
    base = sparse.csr_array((model.base, (model.base_answer, model.base_state)), (answers, model.size))
    leaving = sparse.csr_array((model.backoff[last], (walks, model.answers[last])), (last.size, answers))
    steps = sparse.csr_array(model.chain[last] + leaving @ base)
    steps.sort_indices()
    return np.repeat(walks, np.diff(steps.indptr)), steps.indices.astype(np.int64), steps.data


def _check_size(batches: int, walks: int, at_most: int, batch: Batch) -> None:
    if batches > at_most or walks > WALKS_A_BATCH * at_most:
        size = batch.length * np.log10(batch.model.n)
        shown = f"{batch.model.n**batch.length}" if size < 7 else f"about 10^{size:.0f}"
        raise InputError(
            f"expected at most {at_most} possible batches, got more: {batch.model.n} symbols and batches of "
            f'{batch.length} make up to {shown} batches; use mechanism="tree" or shorter batches'
        )


@rules_kept
def batch_lp(batch: Batch) -> Codebook:
    """The kernel of least expected cost among all that are sound at ε, one batch at a time.

        minimise Σ_o,r β(o) Q(r|o) Σ_t D(o_t, r_t)   over row-stochastic Q with  e^-ε p(r) ≤ Q(r|o) ≤ e^ε p(r)

    o runs over the batches that can occur. r runs over all of X^w where the program stays within its size, and the
    optimum is then certified; else over the batches that can occur. Each output is released as the best reproduction
    under its posterior.

    *Guarantee*: |log lift| ≤ ε for every batch in X^w, from the integers: a batch that the model rules out is
    released like the possible batch nearest to it, so it has that batch's lifts. Hence BIL ≤ ε, SIL ≤ Σ ε, and 2ε-LDP
    whatever the true distribution is.

    The paper lets a kernel depend on the last L raw batches; within one release L = 1 is as good. Each program is
    solved from scratch, as an optimum need not be unique and a receiver must find the same one.

    >>> from seqveil.core import mechanisms
    >>> from seqveil.core.randomness import randomness
    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> context = Batch(sticky, sticky.initial, 6, 5.0, hamming())
    >>> sent = mechanisms.batch_lp.rule(context).draw(np.array([0, 0, 1, 1, 1, 1]), randomness(seed=1))
    >>> sent.codes.tolist(), sent.most <= 5.0
    ([0, 0, 1, 1, 1, 1], True)

    Reference: the paper's problem (eq:batch); docs/theory.md, sections 16 and 19.
    """
    found = support(batch, LARGEST)
    limit, mass, best_guess = batch.epsilon - found.drift, found.mass, batch.distortion.best_guess
    aim = usable(limit, len(mass))
    if aim == 0.0 or len(mass) == 1:  # nothing may be disclosed: the best guess whatever the truth is
        return Codebook(found, best_guess(found.distributions(mass[None])), found.kernels(np.ones((len(mass), 1))))
    n, length = batch.model.n, batch.length
    tried = found.batches  # or all of X^w, in lexicographic order, where a program with as many labels may be solved
    if len(mass) < n**length and n**length * len(mass) <= programs.CELLS_AT_MOST:
        tried = np.indices((n,) * length).reshape(length, -1).T.astype(np.int64)
    best = programs.sound(mass, aim, found.costs(tried))
    labels = best_guess(found.distributions((mass[:, None] * best.table).T))
    return Codebook(found, labels, found.kernels(best.table).made_sound(mass[None], limit, 2 * limit))
