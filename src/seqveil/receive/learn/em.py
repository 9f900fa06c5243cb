"""Expectation–maximisation with a Dirichlet prior, and the small family of chains that the prior is centred on.

At a modest ε a log says little about single transitions and much about the whole: whether people stay, move to what
lies next, or jump anywhere. So first a family with a few numbers is fitted,

    F = stay·I + near·N + jump·1π,       N: a step to a neighbour, where the symbols are bins or cells of a grid,

then every row of the chain gets a Dirichlet prior of `strength` pseudo-moves spread as its row of F, and EM climbs to
the top of likelihood × prior. Rows that the log says little about stay close to the family. Over a large alphabet whose
possible moves are few, `sparse_learn` climbs on the states of a sparse model instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Bins, Grid, Symbols
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.states import States
from seqveil.receive.learn.evidence import Evidence
from seqveil.receive.learn.expected import Chain, Statistics, Walk, check, expect, law

FAMILY_ROUNDS = 40
FASTEST = 8.0  # longest step of over-relaxed EM
FLOOR = 1e-12  # of a learned probability: a chain learned from releases rules nothing out


@dataclass(frozen=True, eq=False)
class Climb:
    """Where EM came to, and whether it had arrived."""

    chain: Chain
    rounds: int
    change: float  # of log likelihood + log prior in the last round, per event
    converged: bool


def climb(evidence: Evidence, start: Chain, centre: Chain, strength: float, rounds: int, tolerance: float) -> Climb:
    """max over chains of log Pr(releases) + strength · Σ_s Σ_z centre(z|s) log P(z|s), from `start`.

    Each round takes the rows P(z|s) ∝ expected moves + strength · centre(z|s), pushed on beyond that as long as the
    sum rises (over-relaxed EM: P^(1-η) EM^η, η growing by a tenth, back to 1 after a fall).

    Reference: Dempster, Laird, Rubin 1977; Salakhutdinov, Roweis, *Adaptive overrelaxed bound optimization*, ICML 2003.
    """
    chain, found = start, expect(evidence, start)
    value, push, change, done = _value(found, chain, centre, strength), 1.0, np.inf, 0
    while done < rounds and change > tolerance * evidence.events:
        done += 1
        plain = maximise(found, centre, strength)
        tried = _pushed(chain, plain, push)
        seen = expect(evidence, tried)
        new = _value(seen, tried, centre, strength)
        if new < value and push > 1.0:
            tried, push = plain, 1.0
            seen = expect(evidence, tried)
            new = _value(seen, tried, centre, strength)
        else:
            push = min(FASTEST, push * 1.1)
        chain, found, change, value = tried, seen, abs(new - value), new
    return Climb(chain, done, change / evidence.events, bool(change <= tolerance * evidence.events))


def maximise(found: Statistics, centre: Chain, strength: float) -> Chain:
    """The chain that expected counts and prior ask for."""
    first, rows = found.first + strength * centre.first, found.moves + strength * centre.rows
    return Chain(law(first, FLOOR), law(rows, FLOOR))


def family(evidence: Evidence, alphabet: Symbols | None, rounds: int = FAMILY_ROUNDS) -> Chain:
    """The best chain of order 1 in the family: a few shares and one law of where jumps go.

    >>> from seqveil.core.model import MarkovModel
    >>> walk = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]]).sample(50, users=50, seed=1)
    >>> raw = Evidence(np.eye(2), np.repeat(np.arange(50), 50), walk.ravel())
    >>> family(raw, None).rows.round(1).tolist()
    [[0.9, 0.1], [0.1, 0.9]]
    """
    n = evidence.n
    shapes = [np.eye(n), *near(alphabet)]
    shares, base = np.full(len(shapes), 0.5 / len(shapes)), np.full(n, 1.0 / n)
    for _ in range(rounds):
        rows = sum((share * shape for share, shape in zip(shares, shapes, strict=True)), np.zeros((n, n)))
        rows = rows + (1.0 - shares.sum()) * base
        found = expect(evidence, Chain(base, rows))
        total = found.moves.sum()
        ratio = found.moves / np.maximum(rows, FLOOR)
        jumps = (ratio * (1.0 - shares.sum())).sum(0) * base
        base = law(jumps + found.first + 1.0 / n, FLOOR)
        if total:
            shares = np.array([share * (ratio * shape).sum() for share, shape in zip(shares, shapes, strict=True)])
            shares = shares / (total + 2.0)  # two pseudo-moves that jump: nothing is ever ruled out
    rows = sum((share * shape for share, shape in zip(shares, shapes, strict=True)), np.zeros((n, n)))
    return Chain(base, law(rows + (1.0 - shares.sum()) * base, FLOOR))


def near(alphabet: Symbols | None) -> list[Floats]:
    """A step to one of the closest other symbols, for bins of a number and cells of a grid: one matrix, or none."""
    points = alphabet.points if isinstance(alphabet, Bins | Grid) else None
    if points is None or len(points) < 3:
        return []
    place = np.asarray(points, np.float64).reshape(len(points), -1)
    if place.shape[1] == 1:  # a line: the next on either side, whatever the gaps
        rank = np.argsort(np.argsort(place[:, 0], kind="stable"), kind="stable")
        beside = np.abs(rank[:, None] - rank) == 1
    else:
        apart = np.sqrt(((place[:, None] - place) ** 2).sum(2))
        np.fill_diagonal(apart, np.inf)
        beside = apart <= apart.min(1, keepdims=True) * 1.01
    return [beside / beside.sum(1, keepdims=True)]


def _value(found: Statistics, chain: Chain, centre: Chain, strength: float) -> float:
    """log likelihood + log prior, up to a constant."""
    prior = (centre.rows * np.log(chain.rows)).sum() + (centre.first * np.log(chain.first)).sum()
    return found.log_likelihood + strength * float(prior)


def _pushed(chain: Chain, plain: Chain, push: float) -> Chain:
    if push == 1.0:
        return plain
    both = (chain.first, plain.first), (chain.rows, plain.rows)
    return Chain(*(law(old * (new / old) ** push, FLOOR) for old, new in both))


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
    check(evidence, start.n)
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
    )
    return MarkovModel._of(states, model.alphabet)
