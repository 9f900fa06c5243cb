"""What can be learned from: releases as likelihoods and nothing else, and the transitions that they lead one to expect.

A release y made by a known kernel says of the truth x only Q(y|x). `Evidence` holds those numbers, event by event, and
whose event it was. Mechanism, ε and history may differ from event to event; the numbers do not care. There is no field
a raw symbol could be in, so whatever is computed from it is post-processing and costs no budget.

With b_k(x) = Q(y_k|x), α_k(s) ∝ Pr(s_k = s, y_1..y_k) and ω_k(s) ∝ Pr(y_k+1.. | s_k = s), the expected number of moves
from context s to symbol z is Σ_k α_k(s) P(z|s) b_k+1(z) ω_k+1(s'), each term divided by the likelihood. It is exact: it
equals the sum over all sequences. The recursions are those of `core.filtering`. Learning runs dozens of rounds over all
streams, so a block of streams of like length goes together, and each step is one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqveil.core import filtering
from seqveil.core.alphabet import Symbols
from seqveil.core.bulk import Layout, places_within
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.engine import stream
from seqveil.engine.state import Rows
from seqveil.receiver.follow import Followed

IMPOSSIBLE = "a release has probability 0 under the chain to learn from; start with a wider one"
BLOCK = 1 << 20  # numbers of one block's forward distributions
PRODUCT = 1 << 18  # multiplications of one product: larger ones are spread over threads, which costs more than it gains


@dataclass(frozen=True, eq=False)
class Evidence:
    """A log of releases, in the order of each user's events: `table[index[k], x]` = Q(y_k | x), of user `users[k]`.

    Only proportions within a row matter. A row of ones says nothing: an event without a release, or a held one.

    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> from seqveil import Policy
    >>> setting = Policy(epsilon=1.0, mechanism="randomized_response").on(model)
    >>> Evidence.of(setting, [[0, 0, 1], [1]])
    Evidence(2 users, 4 releases, 2 symbols)
    """

    table: Floats  # (R, n)
    users: Ints  # (E,) 0..U-1
    index: Ints  # (E,) 0..R-1

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or self.users.shape != self.index.shape or self.users.ndim != 1:
            raise InputError("expected a table (rows, n) and one user and one row number for each event")
        if not (np.isfinite(self.table).all() and (self.table >= 0).all() and (self.table.max(1) > 0).all()):
            raise InputError("expected likelihoods that are finite, not negative, and not all zero in a row")
        if self.index.size and not (self.index.min() >= 0 and self.index.max() < len(self.table)):
            raise InputError(f"expected row numbers 0..{len(self.table) - 1}")
        if self.users.size and self.users.min() < 0:
            raise InputError("expected users numbered from 0")

    @property
    def n(self) -> int:
        """Symbols of the alphabet."""
        return int(self.table.shape[1])

    @property
    def events(self) -> int:
        """How many releases it holds."""
        return int(self.users.size)

    @cached_property
    def people(self) -> int:
        """Users with at least one event."""
        return int(np.unique(self.users).size)

    @classmethod
    def of(
        cls,
        setting: stream.Terms,
        released: Iterable[ArrayLike],
        times: Iterable[ArrayLike] | None = None,
    ) -> Evidence:
        """Of released codes, one sequence a user (NOTHING where nothing was released), made under `setting`.

        Events come user by user. Releases in batches are refused: the likelihood of a path joins several symbols, which
        this log has no place for. Release one by one what shall be learned from.
        """
        if setting.in_batches or setting.in_blocks:
            raise InputError(
                "a release in batches or blocks cannot be learned from; use a mechanism that releases one by one"
            )
        streams = [np.asarray(codes, np.int64) for codes in released]
        stamps = None if times is None else [np.asarray(each, np.float64) for each in times]
        if not streams or any(codes.ndim != 1 for codes in streams):
            raise DataError("expected one sequence of released codes a user")
        users = np.repeat(np.arange(len(streams)), [codes.size for codes in streams])
        moments = None if stamps is None else np.concatenate(stamps)
        return cls.of_streams(setting, users, np.concatenate(streams), moments)

    @classmethod
    def of_streams(
        cls,
        setting: stream.Terms,
        users: Rows,
        codes: Ints,
        times: Floats | None = None,
    ) -> Evidence:
        """Of releases in the order they were made.

        Parameters:
          setting: what they were made with.
          users: whose each is, numbered from 0.
          codes: what was released.
          times: when, in seconds.
        """
        tables, count, index = [np.zeros((0, setting.model.n))], 0, np.empty(users.size, np.int64)
        for turn, seen in Followed(setting).observe(users, codes, times):
            # many releases of a round are alike
            whole = np.ascontiguousarray(seen.columns).view(np.dtype((np.void, seen.columns[0].nbytes))).ravel()
            _, first, which = np.unique(whole, return_index=True, return_inverse=True)
            index[turn] = count + which
            tables.append(seen.columns[first] / float(DENOMINATOR))
            count += first.size
        return cls(np.concatenate(tables), users.astype(np.int64), index)

    def of_users(self, chosen: NDArray[np.bool_]) -> Evidence:
        """The events of the users for which `chosen` is true."""
        kept = chosen[self.users]
        return Evidence(self.table, self.users[kept], self.index[kept])

    def cut(self, length: int) -> Evidence:
        """The same events with every stream cut into pieces of at most `length`, each a user of its own."""
        lengths = np.bincount(self.users)
        if lengths.max(initial=0) <= length:
            return self
        order = np.argsort(self.users, kind="stable")
        place = np.empty(self.events, np.int64)
        place[order] = places_within(lengths)
        pieces = -(-lengths // length)
        return Evidence(self.table, (np.cumsum(pieces) - pieces)[self.users] + place // length, self.index)

    def __repr__(self) -> str:
        return f"Evidence({self.people} users, {self.events} releases, {self.n} symbols)"

    @cached_property
    def layout(self) -> Layout:
        """The streams side by side."""
        return Layout.of(self.users)

    def blocks(self, numbers: int, most: int) -> Iterator[tuple[Ints, Ints]]:
        """Users of like length together: row numbers (U, T), any past a stream's end, and lengths, longest first.

        A block has about `numbers` entries and at most so many users.
        """
        for places, lengths in self.layout.blocks(numbers, most):
            yield self.index[places], lengths


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of order m as full tables: the first m symbols jointly (n^m,) and a row a context (n^m, n)."""

    first: Floats
    rows: Floats

    @property
    def n(self) -> int:
        """Symbols of the alphabet."""
        return int(self.rows.shape[1])

    @property
    def order(self) -> int:
        """How many symbols the next one depends on."""
        return round(np.log(len(self.rows)) / np.log(self.n)) if self.n > 1 else 1

    @classmethod
    def uniform(cls, n: int, order: int = 1) -> Chain:
        """The chain in which nothing is likelier than anything else."""
        return cls(np.full(n**order, float(n) ** -order), np.full((n**order, n), 1.0 / n))

    def model(self, names: Symbols) -> MarkovModel:
        """The chain as a model over these symbols."""
        return MarkovModel(self.first.reshape((self.n,) * self.order), self.rows, self.order, names)

    def deeper(self, order: int) -> Chain:
        """The same as a chain of a higher order: contexts that differ in older symbols alone share a row."""
        chain = self
        while chain.order < order:
            first = (chain.first[:, None] * chain.rows).ravel()
            chain = Chain(first, np.tile(chain.rows, (self.n, 1)))
        return chain


def distribution(weights: Floats, floor: float) -> Floats:
    """The weights as a distribution, or one a row, in which nothing has less than `floor` of the sum."""
    lifted = np.maximum(weights, floor * weights.sum(-1, keepdims=True))
    found: Floats = lifted / lifted.sum(-1, keepdims=True)
    return found


class Walk:
    """A block of streams under one chain of any order, users with long streams first.

    A distribution over contexts (x_1 oldest .. x_m) lies as (x_2..x_m, user, x_1). Event t of user u says
    table[index[u, t]] of the symbols. `apart` counts the moves user by user.
    """

    def __init__(self, chain: Chain, table: Floats, index: Ints, lengths: Ints, apart: bool = False) -> None:
        self.table, self.index, self.lengths, self.apart = table, index, lengths, apart
        self.n = n = chain.n
        self.opening = chain.order  # events that the first distribution takes in
        self.rest = n ** (chain.order - 1)
        self.step = np.ascontiguousarray(chain.rows.reshape(n, self.rest, n).transpose(1, 0, 2))
        self.start = chain.first.reshape(n, self.rest).T[:, None, :]

    def forward(self, keep: bool = True) -> Floats:
        """log Pr(releases) a user; keeps the distributions for the way back."""
        users = self.lengths.size
        self.distributions: list[Floats] = []
        self.said: list[Floats] = []
        self.scales: list[Floats] = []
        log = np.zeros(users)
        # all have the opening, where a shorter stream has events that say nothing
        later = ((t, int((self.lengths > t).sum())) for t in range(self.opening, self.index.shape[1]))
        said = (self._says(t, going) for t, going in later)
        with np.errstate(divide="ignore", invalid="ignore"):
            for distribution, scale in filtering.forward(self._first(users), self._noted(said, keep), self._onward):
                if not (scale > 0).all():
                    raise InputError(IMPOSSIBLE)
                log[: scale.size] += np.log(scale)
                if keep:
                    self.distributions.append(distribution)
                    self.scales.append(scale)
        return log

    def _noted(self, said: Iterator[Floats], keep: bool) -> Iterator[Floats]:
        """What events say, step by step, kept for the way back."""
        self.said.append(np.ones((self.lengths.size, 1)))  # the opening has no way back
        for says in said:
            if keep:
                self.said.append(says)
            yield says

    def counts(self) -> tuple[Floats, Floats]:
        """Expected firsts and moves (the latter still to be multiplied by the rows), together or user by user."""
        users, n = self.lengths.size, self.n
        moves = np.zeros((self.rest, users, n, n) if self.apart else (self.rest, n, n))
        later, back = np.ones_like(self.distributions[0]), self.step.transpose(0, 2, 1)
        way = filtering.backward(later, self.said, self._ahead, lambda value: np.matmul(value, back), self.scales)
        for at, value in way:
            going = value.shape[1]
            before = self.distributions[at][:, :going]
            if self.apart:
                moves[:, :going] += before[..., :, None] * value[..., None, :]
            else:
                moves += np.matmul(before.transpose(0, 2, 1), value)
        first = self.distributions[0] * later
        if self.apart:
            disclosed = first.transpose(1, 2, 0).reshape(users, -1)
            return disclosed, moves.transpose(1, 2, 0, 3).reshape(users, self.rest * n, n)
        return first.sum(1).T.ravel(), moves.transpose(1, 0, 2).reshape(self.rest * n, n)

    def sample(self, generator: np.random.Generator) -> Ints:
        """One truth for each stream, (U, T), drawn backward, for order 1; what lies past its end is not to be read."""
        truth, table = np.zeros(self.index.shape, np.int64), self.step[0]
        after = 0  # streams that go on after the step
        for t in range(len(self.distributions) - 1, -1, -1):
            distribution = self.distributions[t][0].copy()
            distribution[:after] *= table[:, truth[:after, t + 1]].T if after else 1.0
            running = np.cumsum(distribution, axis=1)
            after = len(distribution)
            uniform = generator.random(len(truth))[:after] * running[:, -1]
            truth[:after, t] = np.minimum((running <= uniform[:, None]).sum(1), self.n - 1)
        return truth

    def _says(self, t: int, users: int) -> Floats:
        """Q(y_t | ·) of the first `users` users, ones past a stream's end."""
        if t >= self.index.shape[1]:
            return np.ones((users, self.n))
        likely = self.table[self.index[:users, t]]
        likely[self.lengths[:users] <= t] = 1.0
        return likely

    def _first(self, users: int) -> Floats:
        """The distribution of the first context, times what the first events say."""
        distribution = np.broadcast_to(self.start, (self.rest, users, self.n)) * self._says(0, users)
        for t in range(1, self.opening):
            digit = np.arange(self.rest) // self.n ** (self.opening - 1 - t) % self.n
            distribution = distribution * self._says(t, users)[:, digit].T[:, :, None]
        return distribution

    def _onward(self, distribution: Floats, says: Floats) -> Floats:
        """The distribution one move on, times what the event there says."""
        moved = np.matmul(distribution, self.step) * says
        if self.opening == 1:
            return moved
        # (x_2..x_m, user, z) as a distribution over contexts (x_2..x_m, z)
        split = moved.reshape(self.n, self.rest // self.n, distribution.shape[1], self.n)
        return np.ascontiguousarray(split.transpose(1, 3, 2, 0)).reshape(self.rest, distribution.shape[1], self.n)

    def _ahead(self, later: Floats, says: Floats) -> Floats:
        """What comes after a move, times what the event there says, for each symbol that it may go to."""
        if self.opening == 1:
            return later * says
        split = later.reshape(self.rest // self.n, self.n, later.shape[1], self.n)
        return np.ascontiguousarray(split.transpose(3, 0, 2, 1)).reshape(self.rest, later.shape[1], self.n) * says


@dataclass(frozen=True, eq=False)
class ExpectedStatistics:
    """Expected counts behind some releases under one chain."""

    first: Floats  # (n^m,)
    moves: Floats  # (n^m, n)
    log_likelihood: float
    users: int
    events: int


def expect(evidence: Evidence, chain: Chain) -> ExpectedStatistics:
    """Expected counts of all users together.

    >>> sure = Evidence(np.eye(2), np.array([0, 0, 0]), np.array([0, 0, 1]))
    >>> expect(sure, Chain.uniform(2)).moves.tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    check(evidence, chain.n)
    first, moves, total = np.zeros(chain.first.shape), np.zeros(chain.rows.shape), 0.0
    for index, lengths in _blocks(evidence, chain):
        walk = Walk(chain, evidence.table, index, lengths)
        total += float(walk.forward().sum())
        first_part, moves_part = walk.counts()
        first += first_part
        moves += moves_part
    return ExpectedStatistics(first, moves * chain.rows, total, evidence.people, evidence.events)


def likelihoods(evidence: Evidence, chain: Chain) -> Floats:
    """log Pr(releases) of every user, longest stream first; users of equal length in the order of their numbers."""
    check(evidence, chain.n)
    parts = [Walk(chain, evidence.table, *block).forward(keep=False) for block in _blocks(evidence, chain)]
    return np.concatenate(parts) if parts else np.zeros(0)


def by_user(evidence: Evidence, chain: Chain) -> Iterator[tuple[Floats, Floats]]:
    """Expected counts user by user, long streams first, a block at a time: firsts (U, n^m) and moves (U, n^m, n)."""
    check(evidence, chain.n)
    for index, lengths in _blocks(evidence, chain, chain.n):
        walk = Walk(chain, evidence.table, index, lengths, apart=True)
        walk.forward()
        first, moves = walk.counts()
        yield first, moves * chain.rows


def _blocks(evidence: Evidence, chain: Chain, times: int = 1) -> Iterator[tuple[Ints, Ints]]:
    most = max(1, PRODUCT // chain.n**2)
    return evidence.blocks(max(1, BLOCK // (len(chain.first) * times)), most)


def check(evidence: Evidence, n: int) -> None:
    """Refuse evidence over other symbols, and none at all."""
    if evidence.n != n:
        raise InputError(f"expected evidence over {n} symbols, got {evidence.n}")
    if not evidence.events:
        raise InputError("there is nothing to learn from: the evidence holds no events")
