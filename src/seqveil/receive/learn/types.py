"""Types of people learned from releases: a chain for each type, found by the same E-step with columns as evidence.

With b_k(x) = Q(y_k|x) for the releases of a user, w_j the share of type j and P_j its chain,

    max over w, P of  Σ_users log Σ_j w_j Pr_{P_j}(y) + strength · Σ_j Σ_s Σ_z F_j(z|s) log P_j(z|s).

A user counts for type j with probability r_j ∝ w_j Pr_{P_j}(y); the expected moves of `expected.Walk`, weighted so and
added up, are those of the type. F_j is the chain of everyone, or the chain of type j in a public mixture to start from.
Everything is computed from releases, so it costs no budget, and a type may be made up of few: what it shows of them was
released already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mixture import SWITCH
from seqveil.core.model import MarkovModel
from seqveil.receive.learn.evidence import Evidence
from seqveil.receive.learn.expected import BLOCK, PRODUCT, Chain, Walk, law

STARTS, TRIAL_ROUNDS, ROUNDS, TOLERANCE = 3, 15, 120, 2e-6
GROUPING = 20  # rounds in which users are first put into groups
FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class Types:
    """A mixture of chains of order 1 as full tables: how common each type is, and its chain."""

    weights: Floats
    chains: tuple[Chain, ...]

    @classmethod
    def of(cls, model: MarkovModel) -> Types:
        """The types of a mixture of chains of order 1; that a stream may change its type is left out.

        >>> calm, lively = (MarkovModel([0.5, 0.5], [[s, 1 - s], [1 - s, s]]) for s in (0.9, 0.2))
        >>> found = Types.of(MarkovModel.mixture([calm, lively], [0.3, 0.7]))
        >>> found.weights.round(3).tolist(), found.chains[0].rows.round(3).tolist()
        ([0.3, 0.7], [[0.9, 0.1], [0.1, 0.9]])
        """
        if model.order != 1 or not model.stacked:
            raise InputError(f"expected a mixture of chains of order 1 to start from, got order {model.order}")
        n, floor = model.n, 1e-9 / model.n
        moved = model.advance(np.eye(model.size))
        first = model.initial.reshape(model.types, n)
        chains = [
            Chain(law(first[k], floor), law(moved[k * n : (k + 1) * n, k * n : (k + 1) * n], floor))
            for k in range(model.types)
        ]
        return cls(first.sum(1), tuple(chains))

    def model(self, names: Symbols) -> MarkovModel:
        """The types as a model; a stream may go on as somebody else, as in every fitted mixture."""
        return MarkovModel.mixture([chain.model(names) for chain in self.chains], self.weights, SWITCH)


@dataclass(frozen=True, eq=False)
class TypesFound:
    """Where EM came to, and whether it had arrived."""

    types: Types
    rounds: int
    change: float  # of log likelihood + log prior in the last round, nats an event
    converged: bool
    value: float


def climb_types(
    evidence: Evidence,
    begin: Types,
    centres: Sequence[Chain],
    strength: float,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
) -> TypesFound:
    """EM from some types until a round hardly gains; likelihood times prior never falls.

    Parameters:
      evidence: the releases, a stream a user; a user has one type.
      begin: the types to begin with.
      centres: the chain that each type's rows lean to.
      strength: pseudo-moves a row of it.
      rounds: at most so many.
      tolerance: nats an event that a round must gain for another to follow.
    """
    types, value, change, done = begin, -np.inf, np.inf, 0
    while done < rounds and change > tolerance * evidence.events:
        done += 1
        after, likelihood = _round(evidence, types, centres, strength)
        new = likelihood + _prior(types, centres, strength)
        change, value = (new - value if np.isfinite(value) else np.inf), new
        types = after
    return TypesFound(types, done, change / evidence.events, change <= tolerance * evidence.events, value)


def split(evidence: Evidence, chain: Chain, count: int, strength: float, seed: int = 0) -> TypesFound:
    """Types found in releases, from groups of users that did alike under the chain of everyone: the best of a few."""
    told, lengths = _habits(evidence, chain), np.bincount(evidence.users)
    told = told / lengths[lengths > 0][:, None]
    centres, tried = [chain] * count, list[TypesFound]()
    for start in range(STARTS):
        groups = _groups(told, count, np.random.default_rng([seed, start]))
        begin = _of_groups(evidence, chain, groups, count, strength)
        tried.append(climb_types(evidence, begin, centres, strength, TRIAL_ROUNDS))
    best = max(tried, key=lambda found: found.value)
    return climb_types(evidence, best.types, centres, strength)


def _prior(types: Types, centres: Sequence[Chain], strength: float) -> float:
    parts = [
        (centre.rows * np.log(chain.rows)).sum() + (centre.first * np.log(chain.first)).sum()
        for chain, centre in zip(types.chains, centres, strict=True)
    ]
    return float(strength * sum(parts) + np.log(types.weights).sum())


def _round(evidence: Evidence, types: Types, centres: Sequence[Chain], strength: float) -> tuple[Types, float]:
    """One round of EM: the next types, and the log-likelihood of the present ones."""
    count, n = len(types.chains), evidence.n
    first, moves = np.zeros((count, n)), np.zeros((count, n, n))
    members, total = np.ones(count), 0.0  # one user of each type to begin with
    for index, lengths in _blocks(evidence, count):
        walks = [Walk(chain, evidence.table, index, lengths) for chain in types.chains]
        logs = np.stack([walk.forward() for walk in walks]) + np.log(types.weights)[:, None]
        most = logs.max(0)
        shares = np.exp(logs - most)
        sums = shares.sum(0)
        total += float((most + np.log(sums)).sum())
        shares /= sums
        members += shares.sum(1)
        for k, walk in enumerate(walks):
            first_part, moves_part = walk.counts(shares[k])
            first[k] += first_part
            moves[k] += moves_part
    chains = tuple(
        Chain(
            law(first[k] + strength * centre.first, FLOOR),
            law(moves[k] * types.chains[k].rows + strength * centre.rows, FLOOR),
        )
        for k, centre in enumerate(centres)
    )
    return Types(members / members.sum(), chains), total


def _blocks(evidence: Evidence, times: int) -> list[tuple[Ints, Ints]]:
    most = max(1, PRODUCT // evidence.n**2)
    return list(evidence.blocks(max(1, BLOCK // (evidence.n * times)), most))


def _habits(evidence: Evidence, chain: Chain) -> Floats:
    """How often each user is expected to have been at each symbol, and to have stayed there: (users with events, 2n).

    Users in the order of their numbers.
    """
    parts = []
    for index, lengths in _blocks(evidence, evidence.n):
        walk = Walk(chain, evidence.table, index, lengths, apart=True)
        walk.forward()
        first, moves = walk.counts()
        moves = moves * chain.rows
        parts.append(np.concatenate([first + moves.sum(1), np.diagonal(moves, axis1=1, axis2=2)], axis=1))
    told = np.concatenate(parts)
    lengths = np.bincount(evidence.users)
    present = lengths[lengths > 0]
    out = np.empty_like(told)
    out[np.argsort(-present, kind="stable")] = told  # blocks have long streams first, equal ones by their numbers
    return out


def _groups(told: Floats, count: int, generator: np.random.Generator) -> Ints:
    """Users in so many groups by what they did: centres far apart to begin with, then each user to the nearest."""
    scaled = told / np.maximum(told.std(0), 1e-12)
    centres = scaled[generator.integers(len(scaled))][None]
    for _ in range(count - 1):
        apart = ((scaled[:, None] - centres) ** 2).sum(2).min(1)
        total = apart.sum()
        chosen = generator.choice(len(scaled), p=apart / total if total > 0 else None)
        centres = np.concatenate([centres, scaled[chosen][None]])
    nearest = np.zeros(len(scaled), np.int64)
    for _ in range(GROUPING):
        nearest = (-2 * scaled @ centres.T + (centres**2).sum(1)).argmin(1)
        sizes = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, column, minlength=count) for column in scaled.T], axis=1)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    return np.asarray(nearest, np.int64)


def _of_groups(evidence: Evidence, chain: Chain, groups: Ints, count: int, strength: float) -> Types:
    """Each group's chain, one round of EM away from that of everyone."""
    numbers = np.unique(evidence.users)
    chains, members = [], np.ones(count)
    for k in range(count):
        mask = np.zeros(int(numbers.max(initial=-1)) + 1, bool)
        mask[numbers[groups == k]] = True
        members[k] += int(mask.sum())
        if not mask.any():
            chains.append(chain)
            continue
        found, _ = _round(evidence.of_users(mask), Types(np.ones(1), (chain,)), [chain], strength)
        chains.append(found.chains[0])
    return Types(members / members.sum(), tuple(chains))
