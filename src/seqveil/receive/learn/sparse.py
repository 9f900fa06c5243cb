"""Learning over a large alphabet whose possible moves are few: EM on the states of a sparse model, of any order."""

from __future__ import annotations

import numpy as np

from seqveil.core import filtering
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.states import States
from seqveil.receive.learn.evidence import Evidence
from seqveil.receive.learn.walk import Walk

BLOCK = 1 << 21  # numbers of one block's forward laws, and of one block's moves


def sparse_learn(
    evidence: Evidence, start: MarkovModel, strength: float = 30.0, rounds: int = 50, tolerance: float = 1e-6
) -> tuple[MarkovModel, list[float]]:
    """The chain most likely behind the releases among those that move only where `start` does; any order.

    As `learn`, with the Dirichlet prior centred on `start`: each round takes chain[s, s'] in proportion to expected
    moves + strength · start[s, s'], within the share that `start` leaves to its chain. Back-off shares and their law
    stay as they are. Costs O(users · length · moves) a round and O(moves) memory beside the block.

    Returns the model and the log-likelihood an event under each round's chain, which never falls but for the prior.

    >>> ring = np.roll(np.eye(4), 1, axis=1) * 0.5 + np.eye(4) * 0.5
    >>> walk = MarkovModel(np.full(4, 0.25), np.roll(np.eye(4), 1, axis=1) * 0.9 + np.eye(4) * 0.1).sample(30, 50, 1)
    >>> raw = Evidence(np.eye(4), np.repeat(np.arange(50), 30), walk.ravel())
    >>> model, path = sparse_learn(raw, MarkovModel(np.full(4, 0.25), ring), strength=1.0)
    >>> model.chain.toarray()[0].round(1).tolist(), path[-1] > path[0]
    ([0.1, 0.9, 0.0, 0.0], True)
    """
    if evidence.n != start.n:
        raise InputError(f"expected a start over {evidence.n} symbols, got {start.n}")
    if not evidence.events:
        raise InputError("there is nothing to learn from: the evidence holds no events")
    model, path = start, list[float]()
    while len(path) < rounds and (len(path) < 2 or path[-1] - path[-2] > tolerance):
        first, moves, likelihood = _expect(evidence, model)
        path.append(likelihood / evidence.events)
        model = _maximise(model, start, first, moves, strength)
    return model, path


def _expect(evidence: Evidence, model: MarkovModel) -> tuple[Floats, Floats, float]:
    """Expected first states (S,), expected moves along each entry of the chain, log-likelihood."""
    sources = np.repeat(np.arange(model.size), np.diff(model.chain.indptr))
    first, moves, total = np.zeros(model.size), np.zeros(model.chain.nnz), 0.0
    most = max(1, BLOCK // max(model.chain.nnz, model.size))
    for index, lengths in evidence.blocks(max(1, BLOCK // model.size), most):
        walk = _SparseWalk(model, sources, evidence.table, index, lengths)
        total += float(walk.forward().sum())
        first, moves = first + walk.backward()[0].sum(0), moves + walk.moves
    return first, moves * model.chain.data, total


class _SparseWalk(Walk):
    """A walk along the states of a sparse model; moves are counted for each entry of its chain."""

    def __init__(self, model: MarkovModel, sources: Ints, table: Floats, index: Ints, lengths: Ints) -> None:
        super().__init__(table, index, lengths)
        self.model, self.sources, self.moves = model, sources, np.zeros(model.chain.nnz)

    def _first(self, users: int) -> Floats:
        return (self.model.initial * self.says(0, users)[:, self.model.newest])[None]

    def _onward(self, law: Floats, says: Floats) -> Floats:
        return (self.model.advance(law[0]) * says[:, self.model.newest])[None]

    def _ahead(self, later: Floats, says: Floats) -> Floats:
        return later * says[:, self.model.newest]

    def _back(self, value: Floats) -> Floats:
        return filtering.pull(self.model, value[0])[None]

    def _count(self, before: Floats, value: Floats) -> None:
        self.moves += (before[0][:, self.sources] * value[0][:, self.model.chain.indices]).sum(0)


def _maximise(model: MarkovModel, start: MarkovModel, first: Floats, moves: Floats, strength: float) -> MarkovModel:
    from scipy import sparse

    weights = moves + strength * start.chain.data
    rows = np.repeat(np.arange(model.size), np.diff(model.chain.indptr))
    totals = np.bincount(rows, weights, minlength=model.size)
    data = weights / totals[rows] * (1.0 - model.backoff)[rows]
    parts = (data, model.chain.indices.copy(), model.chain.indptr.copy())
    opening = first + strength * start.initial
    states = States(
        model.order,
        model.n,
        opening / opening.sum(),
        sparse.csr_array(parts, shape=model.chain.shape),
        model.backoff.copy(),
        model.base.copy(),
        model.base_state.copy(),
        model.newest.copy(),
        model.types,
    )
    return MarkovModel._of(states, model.alphabet)
