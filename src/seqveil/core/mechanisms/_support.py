"""The batches that can occur: X^w on the support of the belief, written out for problems small enough for it.

A batch o = (x_1..x_w) is what an observer sees of a walk over the model's states. Where the model backs off to shorter
contexts, one batch may come from several walks, so walks are enumerated and grouped by their symbols:

    β(o) = Σ_{walks with symbols o} states(s_1) P(s_2|s_1) … P(s_w|s_w-1)

A `Codebook` is a kernel over these batches, and `TabledSent` a release from one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np

from seqveil.core import filtering
from seqveil.core.coins import Coins
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import DENOMINATOR, UNIT, Floats, Ints, Kernels
from seqveil.core.mechanisms._batch import Batch
from seqveil.core.model import MarkovModel

WALKS_A_BATCH = 64  # walks that may share their symbols, on average, before we call the problem too large
REMEMBERED = 256  # contexts; a table of 400 × 400 takes 1.3 MB, most are far smaller

Built = TypeVar("Built")


@dataclass(frozen=True, eq=False)
class Support:
    """N possible batches in lexicographic order, their law, and the P walks behind them."""

    model: MarkovModel
    batches: Ints  # (N, w) symbols
    belief: Floats  # (N,) sums to one
    first: Ints  # (P,) first state of each walk
    last: Ints  # (P,) last state
    batch: Ints  # (P,) index of the walk's batch
    mass: Floats  # (P,) probability of the walk; sums to one
    given_first: Floats  # (P,) probability of the walk given its first state

    @property
    def drift(self) -> float:
        """Relative error that float64 may have left in the belief: what every lift must be widened by."""
        return 4 * (self.batches.shape[1] + len(self.mass) + 4) * UNIT

    def row(self, batch: Ints, distortion: Distortion) -> int:
        """Index of the batch; for one that cannot occur, of the possible batch nearest to it (ties: the first).

        A public rule that costs O(N·w), so that a model that is wrong never stops a release.
        """
        same = np.flatnonzero((self.batches == batch).all(1))
        if same.size:
            return int(same[0])
        return int(distortion.between(batch, self.batches).sum(1).argmin())

    def costs(self, labels: Ints, distortion: Distortion) -> Floats:
        """Σ_t D(x_t, r_t) of every batch and label: (N, M) for labels (M, w)."""
        total = np.zeros((len(self.batches), len(labels)))
        for truth, released in zip(self.batches.T, labels.T, strict=True):
            total += distortion.between(truth[:, None], released[None, :])
        return total

    def laws(self, weights: Floats) -> Floats:
        """Law of each of the w symbols under each row of weights over batches: (K, N) → (K, w, n), not normalised."""
        out = np.zeros((len(weights), self.batches.shape[1], self.model.n))
        for position, symbols in enumerate(self.batches.T):
            np.add.at(out[:, position, :].T, symbols, weights.T)
        return out

    def last_states(self, lifts: Floats) -> Floats:
        """Law (S,) of the batch's last state after a release with these lifts (N,)."""
        law = np.bincount(self.last, self.mass * lifts[self.batch], self.model.size)
        return np.asarray(law / law.sum(), dtype=np.float64)

    def smooth(self, lifts: Floats, later: Floats) -> tuple[Floats, Floats]:
        """Laws of the symbols (w, n) given this and all later releases, and the likelihood of them by first state."""
        likelihood = lifts[self.batch] * later[self.last]
        post: Floats = np.bincount(self.batch, self.mass * likelihood, len(self.batches)).astype(np.float64)
        laws = self.laws(post[None])[0] / post.sum()
        return laws, np.bincount(self.first, self.given_first * likelihood, self.model.size).astype(np.float64)


class Book(ABC):
    """A kernel over things that stand for batches (batches themselves, or leaves), and what each output stands for."""

    labels: Ints  # (K, w): what each output stands for
    kernels: Kernels  # a stack of one over the M things

    @property
    @abstractmethod
    def model(self) -> MarkovModel:
        """The chain that the batches are of."""

    @property
    @abstractmethod
    def mass(self) -> Floats:
        """(M,) law of the things under the belief."""

    @property
    @abstractmethod
    def drift(self) -> float:
        """Relative error float64 may have left in the masses."""

    @abstractmethod
    def costs(self) -> Floats:
        """(M, K) expected cost of each label for each thing."""

    @abstractmethod
    def last_states(self, lifts: Floats) -> Floats:
        """Law (S,) of the batch's last state after a release with these lifts (M,)."""

    @abstractmethod
    def smooth(self, lifts: Floats, later: Floats) -> tuple[Floats, Floats]:
        """Laws of the symbols (w, n) given this and all later releases, and the likelihood of them by first state."""

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
        least, largest = self.kernels.lift_bounds(self.mass[None], whole_alphabet=True)
        return least[0] - self.drift, largest[0] + self.drift

    def lifts(self, index: int) -> Floats:
        """(M,) lift of every thing when this output is released."""
        column = self.kernels.column(np.array([index]))[0].astype(np.float64)
        return column / (self.mass @ column)

    @cached_property
    def table(self) -> Floats:
        """Q(y | thing), (M, K)."""
        columns = [self.kernels.column(np.array([index]))[0] for index in range(len(self.labels))]
        return np.stack(columns, axis=1) / float(DENOMINATOR)

    @cached_property
    def expected(self) -> float:
        """Expected cost of the whole batch under the belief, from the integers."""
        return float((self.mass[:, None] * self.table * self.costs()).sum())


@dataclass(frozen=True, eq=False)
class Codebook(Book):
    """A kernel over the possible batches: row o of `kernels` says how likely each of the K labels is when o is true.

    A batch that cannot occur is released like the possible one `Support.row` gives it, so no batch has other lifts than
    those of a row of the table.
    """

    support: Support
    labels: Ints
    kernels: Kernels
    distortion: Distortion

    def draw(self, codes: Ints, coins: Coins) -> TabledSent:
        row = self.support.row(codes, self.distortion)
        return TabledSent(self, int(self.kernels.draw(np.array([row]), coins)[0]))

    @property
    def model(self) -> MarkovModel:
        return self.support.model

    @property
    def mass(self) -> Floats:
        return self.support.belief

    @property
    def drift(self) -> float:
        return self.support.drift

    def costs(self) -> Floats:
        return self.support.costs(self.labels, self.distortion)

    def last_states(self, lifts: Floats) -> Floats:
        return self.support.last_states(lifts)

    def smooth(self, lifts: Floats, later: Floats) -> tuple[Floats, Floats]:
        return self.support.smooth(lifts, later)


@dataclass(frozen=True, eq=False)
class TabledSent:
    """One release from a book; see `_batch.Sent`."""

    book: Book
    index: int

    @property
    def path(self) -> tuple[int, ...]:
        return (self.index,)

    @property
    def codes(self) -> Ints:
        return self.book.labels[self.index]

    @cached_property
    def lifts(self) -> Floats:
        """(M,) lift of everything the book's rows stand for."""
        return self.book.lifts(self.index)

    @cached_property
    def posterior(self) -> Floats:
        return self.book.last_states(self.lifts)

    @cached_property
    def ahead(self) -> Floats:
        return filtering.predict(self.book.model, self.posterior[None])[0]

    @property
    def least(self) -> float:
        return float(self.book.bounds[0][self.index])

    @property
    def most(self) -> float:
        return float(self.book.bounds[1][self.index])

    def smooth(self, later: Floats) -> tuple[Floats, Floats]:
        return self.book.smooth(self.lifts, later)


def support(batch: Batch, at_most: int) -> Support:
    """Every batch of positive probability under the chain and the law of its first state.

    >>> from seqveil.core.distortion import hamming
    >>> model = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.0, 1.0]])
    >>> found = support(Batch(model, model.initial, 2, 1.0, hamming()), 10)
    >>> found.batches.tolist(), found.belief.tolist()
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
    mass = given_first * batch.states[first]
    mass /= mass.sum()
    belief = np.bincount(place, mass, len(symbols)).astype(np.float64)
    return Support(model, symbols, belief, first, last, place, mass, given_first)


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


def remembered(build: Callable[[Batch], Built]) -> Callable[[Batch], Built]:
    """`build`, solving an equal public context only once: users alike in model and releases share the work."""

    @lru_cache(maxsize=REMEMBERED)
    def built(context: _Context) -> Built:
        return build(context.batch)

    def lookup(batch: Batch) -> Built:
        costs = batch.distortion
        parts = (batch.states, costs.points, costs.table)
        content = tuple(b"" if part is None else part.tobytes() for part in parts)
        return built(_Context((batch.model.fingerprint, batch.length, batch.epsilon, costs.name, *content), batch))

    return lookup


@dataclass(frozen=True)
class _Context:
    key: tuple[object, ...]
    batch: Batch = field(compare=False)
