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
from seqveil.receive.learn.walk import Chain, FullWalk

BLOCK = 1 << 20  # numbers of one block's forward laws
PRODUCT = 1 << 18  # multiplications of one product: larger ones are spread over threads, which costs more than it gains


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
        walk = FullWalk(chain, evidence.table, index, lengths)
        part = walk.forward()
        first_part, moves_part = walk.counts()
        first, moves, total = first + first_part, moves + moves_part, total + float(part.sum())
    return Statistics(first, moves * chain.rows, total, evidence.people, evidence.events)


def likelihoods(evidence: Evidence, chain: Chain) -> Floats:
    """log Pr(releases) of every user, longest stream first; users of equal length in the order of their numbers."""
    _check(evidence, chain)
    blocks = _blocks(evidence, chain)
    parts = [FullWalk(chain, evidence.table, *block).forward(keep=False) for block in blocks]
    return np.concatenate(parts) if parts else np.zeros(0)


def each_user(evidence: Evidence, chain: Chain) -> tuple[Floats, Floats]:
    """Expected counts user by user: firsts (U, n^m) and moves (U, n^m, n)."""
    _check(evidence, chain)
    firsts, moves = [], []
    for index, lengths in _blocks(evidence, chain, chain.n):
        walk = FullWalk(chain, evidence.table, index, lengths, apart=True)
        walk.forward()
        first, move = walk.counts()
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
