"""The expected transitions behind a log of releases, given a chain: forward–backward over many users at once.

With b_k(x) = Q(y_k|x), α_k(s) ∝ Pr(s_k = s, y_1..y_k) and ω_k(s) ∝ Pr(y_k+1.. | s_k = s), the expected number of moves
from context s to symbol z is Σ_k α_k(s) P(z|s) b_k+1(z) ω_k+1(s'), each term divided by the likelihood. It is exact: it
equals the sum over all sequences. Streams are laid side by side, so that a step is one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.receive.learn.evidence import Evidence

BLOCK = 1 << 20  # numbers of one block's forward laws
PRODUCT = 1 << 18  # multiplications of one product: larger ones are spread over threads, which costs more than it gains


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain of order m as full tables: the joint law of the first m symbols (n^m,) and a row a context (n^m, n)."""

    first: Floats
    rows: Floats

    @property
    def n(self) -> int:
        return int(self.rows.shape[1])

    @property
    def order(self) -> int:
        return round(np.log(len(self.rows)) / np.log(self.n)) if self.n > 1 else 1

    @classmethod
    def uniform(cls, n: int, order: int = 1) -> Chain:
        return cls(np.full(n**order, float(n) ** -order), np.full((n**order, n), 1.0 / n))

    def deeper(self) -> Chain:
        """The same law as a chain of one order more: contexts that agree in all but their oldest symbol share a row."""
        first = (self.first[:, None] * self.rows).ravel()
        return Chain(first, np.tile(self.rows, (self.n, 1)))


@dataclass(frozen=True, eq=False)
class Statistics:
    """Expected counts behind some releases under one chain; they add up over users and machines."""

    first: Floats  # (n^m,)
    moves: Floats  # (n^m, n)
    log_likelihood: float
    users: int
    events: int

    @classmethod
    def none(cls, chain: Chain) -> Statistics:
        return cls(np.zeros_like(chain.first), np.zeros_like(chain.rows), 0.0, 0, 0)

    def __add__(self, other: Statistics) -> Statistics:
        total = self.log_likelihood + other.log_likelihood
        people, events = self.users + other.users, self.events + other.events
        return Statistics(self.first + other.first, self.moves + other.moves, total, people, events)

    def scaled(self, factor: float) -> Statistics:
        """The same evidence counted `factor` times."""
        return Statistics(
            self.first * factor, self.moves * factor, self.log_likelihood * factor, self.users, self.events
        )


def expect(evidence: Evidence, chain: Chain) -> Statistics:
    """Expected counts of all users together.

    >>> sure = Evidence(np.eye(2), np.array([0, 0, 0]), np.array([0, 0, 1]))
    >>> expect(sure, Chain.uniform(2)).moves.tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    _check(evidence, chain)
    first, moves, total = np.zeros_like(chain.first), np.zeros_like(chain.rows), 0.0
    for index, lengths in _blocks(evidence, chain):
        walk = _Walk(chain, evidence.table, index, lengths)
        part = walk.forward(keep=True)
        first_part, moves_part = walk.backward()
        first, moves, total = first + first_part, moves + moves_part, total + float(part.sum())
    return Statistics(first, moves * chain.rows, total, evidence.people, evidence.events)


def likelihoods(evidence: Evidence, chain: Chain) -> Floats:
    """log Pr(releases) of every user, longest stream first; users of equal length in the order of their numbers."""
    _check(evidence, chain)
    parts = [
        _Walk(chain, evidence.table, index, lengths).forward(keep=False) for index, lengths in _blocks(evidence, chain)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def each_user(evidence: Evidence, chain: Chain) -> tuple[Floats, Floats]:
    """Expected counts user by user: firsts (U, n^m) and moves (U, n^m, n)."""
    _check(evidence, chain)
    firsts, moves = [], []
    for index, lengths in _blocks(evidence, chain, chain.n):
        walk = _Walk(chain, evidence.table, index, lengths)
        walk.forward(keep=True)
        first, move = walk.backward(apart=True)
        firsts.append(first)
        moves.append(move * chain.rows)
    return np.concatenate(firsts), np.concatenate(moves)


def _blocks(evidence: Evidence, chain: Chain, times: int = 1) -> Iterator[tuple[Ints, Ints]]:
    most = max(1, PRODUCT // chain.n**2)
    return evidence.blocks(max(1, BLOCK // (len(chain.first) * times)), most)


def _check(evidence: Evidence, chain: Chain) -> None:
    if evidence.n != chain.n:
        raise InputError(f"expected evidence over {chain.n} symbols, got {evidence.n}")
    if not evidence.events:
        raise InputError("there is nothing to learn from: the evidence holds no events")


class _Walk:
    """Forward–backward over a block. A law over contexts (x_1 oldest .. x_m) lies as (x_2..x_m, user, x_1)."""

    def __init__(self, chain: Chain, table: Floats, index: Ints, lengths: Ints) -> None:
        self.n, self.order = chain.n, chain.order
        self.rest = self.n ** (self.order - 1)
        self.step = np.ascontiguousarray(chain.rows.reshape(self.n, self.rest, self.n).transpose(1, 0, 2))
        self.start = chain.first.reshape(self.n, self.rest).T[:, None, :]
        self.table, self.index, self.lengths = table, index, lengths
        # a stream shorter than the order goes on with events that say nothing
        self.steps = max(index.shape[1], self.order)

    def _says(self, t: int, users: int) -> Floats:
        """b_t(x) of the first `users` users, ones past a stream's end."""
        if t >= self.index.shape[1]:
            return np.ones((users, self.n))
        likely = self.table[self.index[:users, t]]
        ended = self.lengths[:users] <= t
        if ended.any():
            likely[ended] = 1.0
        return likely

    def _going(self, t: int) -> int:
        """How many users have a step t: all for the first m."""
        return int((self.lengths > t).sum()) if t >= self.order else self.lengths.size

    def _opening(self, users: int) -> Floats:
        law = np.broadcast_to(self.start, (self.rest, users, self.n)) * self._says(0, users)
        for t in range(1, self.order):
            digit = np.arange(self.rest) // self.n ** (self.order - 1 - t) % self.n
            law = law * self._says(t, users)[:, digit].T[:, :, None]
        return law

    def forward(self, keep: bool) -> Floats:
        """log Pr(releases) a user; keeps the laws for the way back."""
        users = self.lengths.size
        self.laws: list[Floats] = []
        self.says: list[Floats] = []
        self.scales: list[Floats] = []
        law, says, log = self._opening(users), np.ones((users, self.n)), np.zeros(users)
        for t in range(self.order - 1, self.steps):
            going = self._going(t)
            if t >= self.order:
                says = self._says(t, going)
                law = self._shift(np.matmul(law[:, :going], self.step) * says)
            scale = law.sum((0, 2))
            if not (scale > 0).all():
                raise InputError("a release has probability 0 under the chain to learn from; start with a full one")
            law = law / scale[:, None]
            log[:going] += np.log(scale)
            if keep:
                self.laws.append(law)
                self.says.append(says)
                self.scales.append(scale)
        return log

    def backward(self, apart: bool = False) -> tuple[Floats, Floats]:
        """Expected firsts and moves (the latter still to be multiplied by the rows), together or user by user."""
        users, n, rest = self.lengths.size, self.n, self.rest
        moves = np.zeros((rest, users, n, n) if apart else (rest, n, n))
        later = np.ones((rest, users, n))
        for at in range(len(self.laws) - 1, 0, -1):
            going = len(self.scales[at])
            value = self._unshift(later[:, :going]) * self.says[at] / self.scales[at][:, None]
            before = self.laws[at - 1][:, :going]
            if apart:
                moves[:, :going] += before[..., :, None] * value[..., None, :]
            else:
                moves += np.matmul(before.transpose(0, 2, 1), value)
            later[:, :going] = np.matmul(value, self.step.transpose(0, 2, 1))
        first = self.laws[0] * later
        if apart:
            told = first.transpose(1, 2, 0).reshape(users, -1)
            return told, moves.transpose(1, 2, 0, 3).reshape(users, rest * n, n)
        return first.sum(1).T.ravel(), moves.transpose(1, 0, 2).reshape(rest * n, n)

    def _shift(self, law: Floats) -> Floats:
        """(x_2..x_m, user, z) as a law over contexts (x_2..x_m, z)."""
        if self.order == 1:
            return law
        split = law.reshape(self.n, self.rest // self.n, law.shape[1], self.n)
        return np.ascontiguousarray(split.transpose(1, 3, 2, 0)).reshape(self.rest, law.shape[1], self.n)

    def _unshift(self, law: Floats) -> Floats:
        if self.order == 1:
            return law
        split = law.reshape(self.rest // self.n, self.n, law.shape[1], self.n)
        return np.ascontiguousarray(split.transpose(3, 0, 2, 1)).reshape(self.rest, law.shape[1], self.n)
