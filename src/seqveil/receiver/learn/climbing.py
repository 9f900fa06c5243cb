"""EM with columns as evidence: the chain that makes releases likeliest, given a prior.

With b_k(x) = Q(y_k|x) for the releases of a user and P the chain,

    max over P of  Σ_users log Pr_P(y) + strength · Σ_s Σ_z F(z|s) log P(z|s).

Everything is computed from releases, so it costs no budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqveil.core.kernel import Floats
from seqveil.receiver.learn.evidence import Evidence
from seqveil.receiver.learn.expected import Chain, Statistics, expect, law

FASTEST = 8.0  # longest step of over-relaxed EM
FLOOR = 1e-12  # of a learned probability: a chain learned from releases rules nothing out


@dataclass(frozen=True, eq=False)
class Climb:
    """Where EM came to, and whether it had arrived."""

    chain: Chain
    rounds: int
    change: float  # of log likelihood + log prior in the last round, nats an event
    converged: bool
    value: float


def climb(evidence: Evidence, start: Chain, centre: Chain, strength: float, rounds: int, tolerance: float) -> Climb:
    """max over chains of log Pr(releases) + strength · Σ_s Σ_z centre(z|s) log P(z|s), from `start`, until it is there.

    Each round takes the rows P(z|s) ∝ expected moves + strength · centre(z|s). They are pushed on beyond that as long
    as the sum rises (over-relaxed EM: P^(1-η) EM^η, η growing by a tenth up to FASTEST, back to 1 after a fall).

    Parameters:
      evidence: the releases, a stream a user.
      start: the chain to begin with.
      centre: the chain that the rows lean to.
      strength: pseudo-moves a row of it.
      rounds: at most so many.
      tolerance: nats an event that a round must gain for another to follow.

    Reference: Dempster, Laird, Rubin 1977; Salakhutdinov, Roweis, *Adaptive overrelaxed bound optimization*, ICML 2003.
    """
    chain, (plain, value) = start, _round(evidence, start, centre, strength)
    push, change, done = 1.0, np.inf, 0
    while done < rounds and change > tolerance * evidence.events:
        done += 1
        tried = _pushed(chain, plain, push)
        after, new = _round(evidence, tried, centre, strength)
        if new < value and push > 1.0:
            tried, push = plain, 1.0
            after, new = _round(evidence, tried, centre, strength)
        else:
            push = min(FASTEST, push * 1.1)
        chain, plain, change, value = tried, after, abs(new - value), new
    return Climb(chain, done, change / evidence.events, bool(change <= tolerance * evidence.events), value)


def _round(evidence: Evidence, chain: Chain, centre: Chain, strength: float) -> tuple[Chain, float]:
    """One round of EM: the next chain, and log likelihood + log prior of the present one, up to a constant."""
    found = expect(evidence, chain)
    prior = float((centre.rows * np.log(chain.rows)).sum() + (centre.first * np.log(chain.first)).sum())
    return maximise(found, centre, strength), found.log_likelihood + strength * prior


def maximise(found: Statistics, centre: Chain, strength: float) -> Chain:
    """The chain that expected counts and prior ask for."""
    first, rows = found.first + strength * centre.first, found.moves + strength * centre.rows
    return Chain(law(first, FLOOR), law(rows, FLOOR))


def _pushed(chain: Chain, plain: Chain, push: float) -> Chain:
    """A step beyond what a round asks for, by so much."""
    if push == 1.0:
        return plain

    def beyond(old: Floats, new: Floats) -> Floats:
        return law(old * (new / old) ** push, FLOOR)

    return Chain(beyond(chain.first, plain.first), beyond(chain.rows, plain.rows))
