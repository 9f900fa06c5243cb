"""Expectation–maximisation with a Dirichlet prior, and the small family of chains that the prior is centred on.

At a modest ε a log says little about single transitions and much about the whole: whether people stay, move to what
lies next, or jump anywhere. So first a family with a few numbers is fitted,

    F = stay·I + near·N + jump·1π,       N: a step to a neighbour, where the symbols are bins or cells of a grid,

then every row of the chain gets a Dirichlet prior of `strength` pseudo-moves spread as its row of F, and EM climbs to
the top of likelihood × prior. Rows that the log says little about stay close to the family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.alphabet import Bins, Grid, Symbols
from seqveil.core.kernel import Floats
from seqveil.receive.learn.evidence import Evidence
from seqveil.receive.learn.expect import Statistics, expect
from seqveil.receive.learn.walk import Chain

FAMILY_ROUNDS = 40
FASTEST = 8.0  # longest step of over-relaxed EM
FLOOR = 1e-12  # of a learned probability: a chain learned from releases rules nothing out


@dataclass(frozen=True, eq=False)
class Climb:
    """Where EM came to, and whether it had arrived."""

    chain: Chain
    found: Statistics  # under the last chain but one: what `chain` was made from
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
    return Climb(chain, found, done, change / evidence.events, bool(change <= tolerance * evidence.events))


def maximise(found: Statistics, centre: Chain, strength: float) -> Chain:
    """The chain that expected counts and prior ask for."""
    return Chain(_law(found.first + strength * centre.first), _law(found.moves + strength * centre.rows))


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
        base = _law(jumps + found.first + 1.0 / n)
        if total:
            shares = np.array([share * (ratio * shape).sum() for share, shape in zip(shares, shapes, strict=True)])
            shares = shares / (total + 2.0)  # two pseudo-moves that jump: nothing is ever ruled out
    rows = sum((share * shape for share, shape in zip(shares, shapes, strict=True)), np.zeros((n, n)))
    return Chain(base, _law(rows + (1.0 - shares.sum()) * base))


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
    return Chain(
        *(_law(old * (new / old) ** push) for old, new in ((chain.first, plain.first), (chain.rows, plain.rows)))
    )


def _law(weights: Floats) -> Floats:
    weights = np.maximum(weights, FLOOR * weights.sum(-1, keepdims=True))
    law: Floats = weights / weights.sum(-1, keepdims=True)
    return law
